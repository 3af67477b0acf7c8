"""`cache.tool(...)`: the tool is kept whatever calls it, and however it is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, interrupt
from support.savers import SAVERS, needing
from support.tool_graphs import (
    ASKED,
    BACKENDS,
    FACES,
    answers,
    calls,
    hello,
    is_replay,
    loop_of,
    question,
    resume,
    run,
    thread,
    tool_graph,
)
from support.tools.caches import THREAD

from langgraph_keel import InvalidConfig, MemorySaver, ToolCache, ToolPolicy


@pytest.fixture(params=BACKENDS)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolCache]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver, ToolCache(saver, default=THREAD) as cache:  # type: ignore[arg-type]
        yield cache


@pytest.fixture
def small() -> Iterator[ToolCache]:
    """A cache in memory, for tests that do not depend on the backend."""
    with ToolCache(MemorySaver(), default=THREAD) as cache:
        yield cache


class Doubled(TypedDict):
    n: int
    out: list[Any]


def doubling(runs: list[Any]) -> BaseTool:
    """A tool with both faces, which record the same runs."""

    @tool
    def double(n: int, by: int = 2) -> int:
        """Double a number."""
        runs.append(n)
        return n * by

    async def adouble(n: int, by: int = 2) -> int:
        runs.append(n)
        return n * by

    double.coroutine = adouble
    return double


def node_graph(cache: ToolCache, face: str, node: Any, anode: Any) -> Any:
    builder = StateGraph(Doubled)
    builder.add_node("node", node if face == "sync" else anode)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=cache.saver)


@pytest.mark.parametrize("face", FACES)
async def test_a_cached_tool_in_a_plain_node(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    kept = cache.tool(doubling(runs))

    def node(state: Doubled) -> dict[str, Any]:
        return {"out": [kept.invoke({"n": state["n"]}), kept.invoke({"by": 2, "n": str(state["n"])})]}

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [await kept.ainvoke({"n": state["n"]}), await kept.ainvoke({"by": 2, "n": str(state["n"])})]}

    graph = node_graph(cache, face, node, anode)
    for _ in range(2):
        assert (await run(graph, face, {"n": 4}, thread("1")))["out"] == [8, 8]
    assert runs == [4]
    assert (await run(graph, face, {"n": 4}, thread("2")))["out"] == [8, 8]
    assert runs == [4, 4]
    assert (await run(graph, face, {"n": 5}, thread("2")))["out"] == [10, 10]
    assert runs == [4, 4, 5]


@pytest.mark.parametrize("face", FACES)
async def test_a_node_that_failed_after_its_tool_does_not_repeat_it(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    kept, is_broken = cache.tool(doubling(runs)), [True]

    def node(state: Doubled) -> dict[str, Any]:
        result = kept.invoke({"n": state["n"]})
        if is_broken.pop():
            raise ConnectionError
        return {"out": [result]}

    async def anode(state: Doubled) -> dict[str, Any]:
        result = await kept.ainvoke({"n": state["n"]})
        if is_broken.pop():
            raise ConnectionError
        return {"out": [result]}

    graph = node_graph(cache, face, node, anode)
    with pytest.raises(ConnectionError):
        await run(graph, face, {"n": 4}, thread("1"))
    is_broken.append(False)
    assert (await run(graph, face, None, thread("1")))["out"] == [8]
    assert runs == [4]


@pytest.mark.parametrize("face", FACES)
async def test_a_cached_tool_in_an_entrypoint_and_a_task(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    kept = cache.tool(doubling(runs))

    @task
    def step(n: int) -> int:
        return int(kept.invoke({"n": n}))

    @task
    async def astep(n: int) -> int:
        return int(await kept.ainvoke({"n": n}))

    @entrypoint(checkpointer=cache.saver)
    def flow(n: int) -> list[int]:
        return [step(n).result(), kept.invoke({"n": n}), kept.invoke({"n": n + 1})]

    @entrypoint(checkpointer=cache.saver)
    async def aflow(n: int) -> list[int]:
        return [await astep(n), await kept.ainvoke({"n": n}), await kept.ainvoke({"n": n + 1})]

    graph = flow if face == "sync" else aflow
    assert await run(graph, face, 4, thread("1")) == [8, 8, 10]
    assert await run(graph, face, 4, thread("1")) == [8, 8, 10]
    assert runs == [4, 5]


@pytest.mark.parametrize("face", FACES)
async def test_equal_calls_inside_and_outside_a_subgraph_are_one_call(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    kept = cache.tool(doubling(runs))

    def node(state: Doubled) -> dict[str, Any]:
        return {"out": [*state.get("out", []), kept.invoke({"n": state["n"]})]}

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [*state.get("out", []), await kept.ainvoke({"n": state["n"]})]}

    chosen = node if face == "sync" else anode
    inner = StateGraph(Doubled).add_node("inside", chosen).add_edge(START, "inside").compile()
    outer = StateGraph(Doubled).add_node("child", inner).add_node("after", chosen)
    graph: Any = outer.add_edge(START, "child").add_edge("child", "after").compile(checkpointer=cache.saver)
    assert (await run(graph, face, {"n": 4}, thread("1")))["out"] == [8, 8]
    assert runs == [4]


@pytest.mark.parametrize("face", FACES)
async def test_a_cached_tool_in_a_tool_node(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("double", {"n": 4}, "a"), ("double", {"n": 5}, "b")), calls(("double", {"n": "4"}, "c"))]
    said = answers(
        await run(loop_of(ToolNode([cache.tool(doubling(runs))]), script, cache.saver), face, hello(), thread("1"))
    )
    assert sorted(runs) == [4, 5]
    assert [said[call_id].content for call_id in "abc"] == ["8", "10", "8"]
    assert [is_replay(said[call_id]) for call_id in "abc"] == [False, False, True]


@pytest.mark.parametrize("face", FACES)
async def test_a_tool_cached_twice_runs_once_without_a_deadlock(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph = tool_graph(cache, [cache.tool(doubling(runs))], [calls(("double", {"n": 4}, "a"))])
    assert answers(await run(graph, face, hello(), thread("1")))["a"].content == "8"
    assert runs == [4]


def as_call(call_id: str, **args: Any) -> dict[str, Any]:
    return {"name": "double", "args": args, "id": call_id, "type": "tool_call"}


@pytest.mark.parametrize("face", FACES)
async def test_a_tool_call_returns_a_message(small: ToolCache, face: str) -> None:
    runs: list[int] = []
    kept = small.tool(doubling(runs))

    def node(state: Doubled) -> dict[str, Any]:
        return {"out": [kept.invoke(as_call(call_id, n=4)) for call_id in "ab"]}

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [await kept.ainvoke(as_call(call_id, n=4)) for call_id in "ab"]}

    first, second = (await run(node_graph(small, face, node, anode), face, {"n": 0}, thread("1")))["out"]
    assert runs == [4]
    assert [(type(m), m.content, m.tool_call_id) for m in (first, second)] == [
        (ToolMessage, "8", "a"),
        (ToolMessage, "8", "b"),
    ]
    assert (is_replay(first), is_replay(second)) == (False, True)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("first", ["plain", "tool call"])
async def test_the_form_of_a_call_decides_the_form_of_its_result(small: ToolCache, face: str, first: str) -> None:
    """A tool call returns a message, plain arguments the content; also on a hit."""
    runs: list[int] = []
    kept = small.tool(doubling(runs))
    forms: list[Any] = [{"n": 4}, as_call("a", n=4)]
    wanted = forms if first == "plain" else forms[::-1]

    def node(state: Doubled) -> dict[str, Any]:
        return {"out": [kept.invoke(form) for form in wanted]}

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [await kept.ainvoke(form) for form in wanted]}

    out = (await run(node_graph(small, face, node, anode), face, {"n": 0}, thread("1")))["out"]
    plain, message = out if first == "plain" else out[::-1]
    assert plain == (8 if first == "plain" else "8")  # the content of the message that was kept
    assert isinstance(message, ToolMessage)
    assert (message.content, message.tool_call_id) == ("8", "a")


@pytest.mark.parametrize("face", FACES)
async def test_a_node_and_a_tool_node_can_share_a_tool(small: ToolCache, face: str) -> None:
    kept = small.tool(doubling([]))
    plain = node_graph(small, "sync", lambda state: {"out": [kept.invoke({"n": 4})]}, None)
    assert (await run(plain, "sync", {"n": 0}, thread("1")))["out"] == [8]
    graph = loop_of(ToolNode([kept]), [calls(("double", {"n": 4}, "a"))], small.saver)
    said = answers(await run(graph, face, hello(), thread("1")))
    assert (said["a"].content, said["a"].tool_call_id) == ("8", "a")


class Looking(MessagesState):
    user: str


def looking(seen: list[Any]) -> BaseTool:
    @tool(response_format="content_and_artifact")
    def look(
        what: str,
        user: Annotated[str, InjectedState("user")],
        call_id: Annotated[str, InjectedToolCallId],
        runtime: ToolRuntime,
    ) -> tuple[str, dict[str, Any]]:
        """Look at something."""
        seen.append((what, user, call_id, runtime.tool_call_id, runtime.state["user"]))
        get_stream_writer()({"looked": what})
        return f"{user} saw {what}", {"raw": what.encode()}

    return look


def looking_graph(cache: ToolCache, node: Any) -> Any:
    builder = StateGraph(Looking)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    return builder.compile(checkpointer=cache.saver)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("way", ["cache.tool", "wrap_tool_call"])
async def test_injected_arguments_are_passed_and_not_part_of_the_key(cache: ToolCache, face: str, way: str) -> None:
    seen: list[Any] = []
    look = looking(seen)
    wraps: Any = {"wrap_tool_call": cache.wrap_tool_call, "awrap_tool_call": cache.awrap_tool_call}
    node = ToolNode([cache.tool(look)]) if way == "cache.tool" else ToolNode([look], **wraps)
    graph = looking_graph(cache, node)
    for call_id, user in (("a", "ada"), ("b", "bob")):
        given = {"messages": [HumanMessage("look"), calls(("look", {"what": "it"}, call_id))], "user": user}
        said = answers(await run(graph, face, given, thread("1")))
        assert (said[call_id].content, said[call_id].artifact) == ("ada saw it", {"raw": b"it"})
    assert seen == [("it", "ada", "a", "a", "ada")]


@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_asks_in_a_node_asks_in_every_run(cache: ToolCache, face: str) -> None:
    answered: list[str] = []

    @tool
    def approve(what: str) -> str:
        """Ask a person."""
        answered.append(interrupt(what))
        return answered[-1]

    kept = cache.tool(approve)

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [await kept.ainvoke({"what": "it"})]}

    graph = node_graph(cache, face, lambda state: {"out": [kept.invoke({"what": "it"})]}, anode)
    for name, answer in (("1", "ada"), ("1", "bob"), ("2", "eve")):
        assert question(await run(graph, face, {"n": 1}, thread(name))) == "it"
        assert (await resume(graph, face, answer, thread(name)))["out"] == [answer]
    assert answered == ["ada", "bob", "eve"]


@pytest.mark.parametrize("face", FACES)
async def test_two_equal_questions_of_a_node_get_two_answers(small: ToolCache, face: str) -> None:
    """The calls look the same without ids; the first answer is not for the second."""

    @tool
    def approve(what: str) -> str:
        """Ask a person."""
        return str(interrupt(what))

    kept = small.tool(approve)

    async def anode(state: Doubled) -> dict[str, Any]:
        return {"out": [await kept.ainvoke({"what": "it"}), await kept.ainvoke({"what": "it"})]}

    graph = node_graph(
        small, face, lambda s: {"out": [kept.invoke({"what": "it"}), kept.invoke({"what": "it"})]}, anode
    )
    await run(graph, face, {"n": 1}, thread("1"))
    assert ASKED in await resume(graph, face, "ada", thread("1"))
    assert (await resume(graph, face, "bob", thread("1")))["out"] == ["ada", "bob"]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("config", [None, {"configurable": {"other": 1}}], ids=["no config", "no thread"])
async def test_a_cached_tool_without_a_thread_is_refused(small: ToolCache, face: str, config: Any) -> None:
    runs: list[int] = []
    kept = small.tool(doubling(runs))
    with pytest.raises(InvalidConfig, match="thread"):
        await run(kept, face, {"n": 1}, config)
    with pytest.raises(InvalidConfig, match="thread"):
        await run(kept, face, as_call("a", n=1), config)
    assert runs == []


@pytest.mark.parametrize("face", FACES)
async def test_a_volatile_tool_runs_without_a_thread(face: str) -> None:
    runs: list[int] = []
    with ToolCache(MemorySaver(), {"double": ToolPolicy(is_volatile=True)}) as cache:
        kept = cache.tool(doubling(runs))
        assert [await run(kept, face, {"n": 1}, None) for _ in range(2)] == [2, 2]
    assert runs == [1, 1]


def test_a_cached_tool_has_the_attributes_of_the_original(small: ToolCache) -> None:
    look = looking([])
    look.tags, look.metadata, look.return_direct, look.extras = ["eye"], {"of": "ada"}, True, {"cache_control": {}}
    kept = small.tool(look)
    for name in ("name", "description", "args", "response_format", "return_direct", "tags", "metadata", "extras"):
        assert getattr(kept, name) == getattr(look, name)
    assert kept.tool_call_schema.model_json_schema() == look.tool_call_schema.model_json_schema()  # type: ignore[union-attr]


@pytest.mark.parametrize("face", FACES)
async def test_a_replayed_command_updates_the_state_too(cache: ToolCache, face: str) -> None:
    runs: list[str] = []

    @tool
    def hand_over(to: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        runs.append(to)
        return Command(update={"user": to, "messages": [ToolMessage(f"to {to}", tool_call_id=call_id)]})

    graph = looking_graph(cache, ToolNode([cache.tool(hand_over)]))
    for call_id in ("call-1", "call-2"):
        given = {"messages": [calls(("hand_over", {"to": "bob"}, call_id))], "user": "ada"}
        result = await run(graph, face, given, thread("1"))
        assert (result["user"], answers(result)[call_id].content) == ("bob", "to bob")
    assert runs == ["bob"]
