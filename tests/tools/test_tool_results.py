"""Results of tools: stored and replayed values, their lifetime and their scope."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send
from support.tools.caches import Clock, Counting, call, config, keeping
from support.tools.caches import clock as clock
from support.tools.caches import saver as saver

from langgraph_keel import KeelSaver, MemorySaver, NotFound, ToolCache, ToolOutcomeUnknown, ToolPolicy

# -- messages ----------------------------------------------------------------------------------------------------------

BLOCKS: list[str | dict[Any, Any]] = [
    {"type": "text", "text": "grün"},
    {"type": "image", "base64": "aGk=", "mime_type": "image/png"},
]
ARTIFACT = {"docs": [Document("text", metadata={"n": 1})], "raw": bytes(range(256)), "pair": (1, {2, 3})}
ANSWERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "text": (lambda _: "plain \N{SNOWMAN}", "content"),
    "blocks": (lambda _: BLOCKS, "content"),
    "artifact": (lambda _: ("seen", ARTIFACT), "content_and_artifact"),
    "message": (
        lambda call_id: ToolMessage(
            BLOCKS,
            tool_call_id=call_id,
            id="old",
            artifact=ARTIFACT,
            additional_kwargs={"a": 1},
            response_metadata={"tokens": 7},
        ),
        "content",
    ),
}


def in_a_node(cache: ToolCache, it: BaseTool, call_id: str) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([it], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call))
    asked = AIMessage("", tool_calls=[{"name": it.name, "args": {}, "id": call_id}])
    told: Any = graph.add_edge(START, "tools").compile().invoke({"messages": [asked]}, config(), stream_mode="updates")
    return told[0]["tools"]["messages"][0]


def in_a_loop(cache: ToolCache, it: BaseTool, call_id: str) -> Any:
    asked = {"type": "tool_call", "name": it.name, "args": {}, "id": call_id}
    return asyncio.run(cache.tool(it).ainvoke(asked, config()))


@pytest.mark.parametrize("way", [call, in_a_loop, in_a_node])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_replayed_message_equals_the_first(saver: KeelSaver, way: Callable[..., Any], answer: str) -> None:
    make = Counting(ANSWERS[answer][0], response_format=ANSWERS[answer][1])
    first = way(keeping(saver), make.tool, "call-1")
    replay = way(keeping(saver), make.tool, "call-2")  # acts as another process
    assert make.runs == 1
    assert replay.tool_call_id == "call-2"
    mark = replay.response_metadata.pop("keel_replay")
    assert mark["tool_call_id"] == "call-1"
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", mark["from"])
    assert "keel_replay" not in first.response_metadata
    same = {"id": None, "tool_call_id": ""}
    assert replay.model_copy(update=same) == first.model_copy(update=same)
    assert way is in_a_node or replay.id is None
    assert replay.artifact == first.artifact


def test_replayed_messages_do_not_replace_each_other(saver: KeelSaver) -> None:
    make = Counting(ANSWERS["message"][0])
    messages = [in_a_node(keeping(saver), make.tool, f"call-{n}") for n in range(3)]
    assert make.runs == 1
    assert len({message.id for message in messages}) == 3


def test_changes_to_a_result_do_not_affect_the_next(saver: KeelSaver) -> None:
    make = Counting(lambda _: ("seen", {"list": [1]}), response_format="content_and_artifact")
    for call_id in ("call-1", "call-2", "call-3"):
        result = call(keeping(saver), make.tool, call_id)
        assert result.artifact == {"list": [1]}
        result.artifact["list"].append(2)
    assert make.runs == 1


# -- commands ----------------------------------------------------------------------------------------------------------


def message(call_id: str, **more: Any) -> ToolMessage:
    return ToolMessage("done", tool_call_id=call_id, name="make", **more)


REWRITTEN: dict[str, Callable[[str], Any]] = {
    "a dict": lambda i: Command(update={"messages": [message(i)], "count": 3}),
    "a list": lambda i: Command(update=[message(i)]),
    "for the parent": lambda i: Command(graph=Command.PARENT, goto="other", update={"messages": [message(i)]}),
    "with sends": lambda i: Command(goto=[Send("node", {"x": 1}), "end"], update={"messages": [message(i)]}),
    "nothing of the call": lambda i: Command(update={"count": 1}),
    "commands and messages": lambda i: [Command(update={"count": 1}), message(i)],
    "other messages": lambda i: Command(update={"messages": [HumanMessage("note"), message("other"), message(i)]}),
    "a message that is replaced": lambda i: Command(
        update={"messages": [HumanMessage("short", id="long"), message(i)]}
    ),
}


@dataclass
class Handoff:
    call_id: str


UNKNOWN_FORMS: dict[str, Callable[[str], Any]] = {
    "a message as a dict": lambda i: Command(update={"messages": [{"role": "tool", "tool_call_id": i, "content": ""}]}),
    "a message as a pair": lambda i: Command(update=[("messages", [message(i)])]),
    "the asking message": lambda i: Command(
        update={"messages": [AIMessage("", tool_calls=[{"name": "make", "args": {}, "id": i}]), message(i)]}
    ),
    "a send": lambda i: Command(goto=[Send("node", {"for": i})]),
    "an object": lambda i: Command(update={"handoff": Handoff(i)}),
    "a text": lambda i: Command(update={"note": f"call {i} is done", "messages": [message(i)]}),
    "a text in a list": lambda i: [message(i), Command(update={"note": [f"({i})"]})],
}


def plain(result: Any) -> Any:
    """A result without the marks of a replay."""
    if isinstance(result, list):
        return [plain(part) for part in result]
    if isinstance(result, Command):
        return {"graph": result.graph, "goto": result.goto, "resume": result.resume, "update": plain(result.update)}
    if isinstance(result, dict):
        return {name: plain(part) for name, part in result.items()}
    if isinstance(result, ToolMessage):
        result.response_metadata.pop("keel_replay", None)
    return result


@pytest.mark.parametrize("form", REWRITTEN)
def test_a_replayed_command_answers_the_new_call(saver: KeelSaver, form: str) -> None:
    make = Counting(REWRITTEN[form])
    first, replay = make.again(keeping(saver), "call-1", "call-2")
    assert make.runs == 1
    assert plain(first) == plain(REWRITTEN[form]("call-1"))
    assert plain(replay) == plain(REWRITTEN[form]("call-2"))


def encrypted() -> KeelSaver:
    return MemorySaver(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16))


@pytest.mark.parametrize("open_saver", [MemorySaver, encrypted])
@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_a_command_that_cannot_be_rewritten_is_not_cached(open_saver: Callable[[], KeelSaver], form: str) -> None:
    make = Counting(UNKNOWN_FORMS[form])
    first, second = make.again(keeping(open_saver()), "call-1", "call-2")
    assert (plain(first), plain(second)) == (plain(UNKNOWN_FORMS[form]("call-1")), plain(UNKNOWN_FORMS[form]("call-2")))
    assert make.runs == 2


# -- results that are never kept ---------------------------------------------------------------------------------------

ERRORS: dict[str, Callable[[str], Any]] = {
    "a message": lambda i: message(i, status="error"),
    "in a list": lambda i: [Command(update={"count": 1}), message(i, status="error")],
    "in a command": lambda i: Command(update={"messages": [message(i, status="error")]}),
}


@pytest.mark.parametrize("form", ERRORS)
def test_errors_are_not_cached(saver: KeelSaver, form: str) -> None:
    make = Counting(ERRORS[form])
    first, _ = make.again(keeping(saver), "call-1", "call-2")
    assert make.runs == 2
    assert plain(first) == plain(ERRORS[form]("call-1"))
    (kept,) = saver.tools.calls("t")
    assert (kept.state, kept.is_kept) == ("failed", False)


def test_exceptions_are_not_cached(saver: KeelSaver) -> None:
    make = Counting(lambda call_id: 1 // (call_id != "call-1"))
    with pytest.raises(ZeroDivisionError):
        make.again(keeping(saver), "call-1")
    assert [kept.error for kept in saver.tools.calls("t")] == ["ZeroDivisionError: integer division or modulo by zero"]
    assert [result.content for result in make.again(keeping(saver), "call-2", "call-3")] == ["1", "1"]
    assert make.runs == 2


@pytest.mark.parametrize("policies", [{"make": None}, {"make": ToolPolicy(is_volatile=True)}], ids=["none", "volatile"])
def test_a_tool_without_a_cache_stores_nothing(saver: KeelSaver, policies: Any) -> None:
    make, cache = Counting(), ToolCache(saver, policies)
    assert in_a_node(cache, make.tool, "call-1").content == "call-1"
    assert make.again(cache, "call-2")[0].content == "call-2"
    assert (make.runs, list(saver.tools.calls("t"))) == (2, [])


def test_invalid_arguments_are_refused_by_the_tool(saver: KeelSaver) -> None:
    make = Counting()
    for call_id in ("call-1", "call-2"):
        with pytest.raises(ValueError, match="x"):
            make.again(keeping(saver), call_id, x="no number")
    assert (make.runs, [call.state for call in saver.tools.calls("t")]) == (0, ["failed"])


# -- how long, and which results ---------------------------------------------------------------------------------------


def test_a_result_expires_after_its_ttl(saver: KeelSaver, clock: Clock) -> None:
    make, cache = Counting(), keeping(saver, ttl=60)
    make.again(cache, "call-1")
    clock.now += 59_999
    assert make.again(cache, "call-2")[0].content == "call-1"
    clock.now += 1
    assert make.again(cache, "call-3")[0].content == "call-3"
    clock.now += 59_999
    assert make.again(cache, "call-4")[0].content == "call-3"
    assert make.runs == 2


def test_cache_if_decides_which_results_are_cached(saver: KeelSaver) -> None:
    make, cache = Counting(), keeping(saver, cache_if=lambda result: result.content == "call-2")
    assert [result.content for result in make.again(cache, "call-1", "call-2", "call-3")] == [
        "call-1",
        "call-2",
        "call-2",
    ]


@pytest.mark.timeout(20)
def test_a_failing_cache_if_does_not_repeat_the_tool(saver: KeelSaver) -> None:
    """If the agent's result is lost before it is saved, the call is in doubt."""
    make, cache = Counting(), keeping(saver, cache_if=lambda result: 1 // 0)
    node = ToolNode([make.tool], wrap_tool_call=cache.wrap_tool_call)
    given: list[Any] = []

    def tools(state: MessagesState, config: RunnableConfig) -> Any:
        given.append(node.invoke(state, config))
        raise KeyboardInterrupt

    compiled = StateGraph(MessagesState).add_node("tools", tools).add_edge(START, "tools").compile(checkpointer=saver)
    asked = AIMessage("", tool_calls=[{"name": "make", "args": {}, "id": "call-1"}])
    with pytest.raises(KeyboardInterrupt):
        compiled.invoke({"messages": [asked]}, config())
    assert given[0]["messages"][0].content == "call-1"
    cache.close()
    with pytest.raises(ToolOutcomeUnknown, match="has finished, but left no result"):
        compiled.invoke(None, config())
    assert make.runs == 1


def test_a_result_larger_than_max_bytes_is_not_cached(saver: KeelSaver) -> None:
    noise = "".join(sha256(b"%d" % n).hexdigest() for n in range(64))
    make, cache = Counting(lambda call_id: noise if call_id == "call-1" else "small"), keeping(saver, max_bytes=1000)
    assert [len(result.content) for result in make.again(cache, "call-1", "call-2", "call-3")] == [4096, 5, 5]
    assert make.runs == 2


LARGE = "größer " * 1000


def test_an_offloaded_result_is_read_by_its_reference(saver: KeelSaver) -> None:
    make, cache = Counting(lambda _: LARGE), keeping(saver, offload_bytes=1000)
    for result in make.again(cache, "call-1", "call-2"):
        whole = result.response_metadata["keel_result"]
        assert len(result.content) < 1000
        assert whole["reference"] in result.content
        assert (whole["sha256"], whole["bytes"]) == (sha256(LARGE.encode()).hexdigest(), len(LARGE.encode()))
        assert cache.result("t", whole["reference"]).content == LARGE
        with pytest.raises(NotFound):
            cache.result("u", whole["reference"])
    assert make.runs == 1


def test_a_shared_offloaded_result_is_read_from_any_thread(saver: KeelSaver) -> None:
    make, cache = Counting(lambda _: LARGE), keeping(saver, offload_bytes=1000, scope="shared")
    (result,) = make.again(cache, "call-1")
    reference = result.response_metadata["keel_result"]["reference"]
    assert cache.result("u", reference).content == LARGE
    with pytest.raises(NotFound, match="keel-shared-tool:0000"):
        cache.result("t", "keel-shared-tool:0000")


@pytest.mark.parametrize("policy", [{"max_bytes": 10}, {"cache_if": lambda _: False}], ids=["max_bytes", "cache_if"])
def test_a_large_result_that_is_not_cached_is_not_offloaded(saver: KeelSaver, policy: dict[str, Any]) -> None:
    make, cache = Counting(lambda _: LARGE), keeping(saver, offload_bytes=1000, **policy)
    (result,) = make.again(cache, "call-1")
    assert result.content == LARGE


def test_a_reference_never_returns_a_different_result(saver: KeelSaver, clock: Clock) -> None:
    make, cache = Counting(lambda call_id: call_id + LARGE), keeping(saver, offload_bytes=1000, ttl=1)
    (first,) = make.again(cache, "call-1")
    clock.now += 1000
    make.again(cache, "call-2")
    with pytest.raises(NotFound):
        cache.result("t", first.response_metadata["keel_result"]["reference"])
