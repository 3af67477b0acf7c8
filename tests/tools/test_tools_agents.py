"""The tool cache in `create_agent`: edits, rejections, approvals, middleware."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolRetryMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt
from support.savers import SAVERS, needing
from support.tool_graphs import (
    ASKED,
    BACKENDS,
    FACES,
    Scripted,
    answers,
    calls,
    hello,
    is_replay,
    question,
    resume,
    run,
    thread,
)

from langgraph_keel import ToolCache, ToolPolicy

SHARED = ToolPolicy(scope="shared")


@pytest.fixture(params=BACKENDS)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolCache]:
    """A cache whose results all threads share, so that wrong sharing is visible."""
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver, ToolCache(saver, default=SHARED) as cache:  # type: ignore[arg-type]
        yield cache


def counting(runs: list[Any]) -> BaseTool:
    @tool
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        return f"paid {x}"

    return pay


def agent(cache: ToolCache, tools: list[BaseTool], script: list[Any], *outer: Any) -> Any:
    middleware = [*outer, cache.middleware()]
    return create_agent(Scripted(script=script), tools, middleware=middleware, checkpointer=cache.saver)


def decided(kind: str, **more: Any) -> dict[str, Any]:
    return {"decisions": [{"type": kind, **more}]}


def edited(x: int) -> dict[str, Any]:
    return decided("edit", edited_action={"name": "pay", "args": {"x": x}})


@pytest.mark.parametrize("face", FACES)
async def test_an_edit_does_not_poison_the_cache(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": x}, call_id)) for x, call_id in ((1, "a"), (1, "b"), (100, "c"))]
    graph = agent(cache, [counting(runs)], script, HumanInTheLoopMiddleware({"pay": True}))
    config = thread("1")
    assert question(await run(graph, face, hello(), config))["action_requests"][0]["args"] == {"x": 1}
    await resume(graph, face, edited(100), config)
    assert runs == [100]
    await resume(graph, face, decided("approve"), config)
    assert runs == [100, 1]
    said = answers(await resume(graph, face, decided("approve"), config))
    assert runs == [100, 1]
    assert [is_replay(said[call_id]) for call_id in "abc"] == [False, False, True]
    assert said["b"].content == "paid 1"
    assert said["c"].content == "paid 100"  # the notice of the edit belongs to the other call


@pytest.mark.parametrize("face", FACES)
async def test_a_rejected_call_is_not_in_the_cache(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": 1}, "a")), calls(("pay", {"x": 1}, "b"))]
    graph = agent(cache, [counting(runs)], script, HumanInTheLoopMiddleware({"pay": True}))
    await run(graph, face, hello(), thread("1"))
    await resume(graph, face, decided("reject", message="no"), thread("1"))
    assert (runs, cache.stats.misses) == ([], 0)
    said = answers(await resume(graph, face, decided("approve"), thread("1")))
    assert (runs, said["a"].status, said["b"].content) == ([1], "error", "paid 1")


@pytest.mark.parametrize("face", FACES)
async def test_an_edit_to_arguments_that_ran_before_is_a_hit(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": 7}, "a")), calls(("pay", {"x": 8}, "b"))]
    graph = agent(cache, [counting(runs)], script, HumanInTheLoopMiddleware({"pay": True}))
    await run(graph, face, hello(), thread("1"))
    await resume(graph, face, decided("approve"), thread("1"))
    said = answers(await resume(graph, face, edited(7), thread("1")))
    assert runs == [7]
    assert is_replay(said["b"])
    assert str(said["b"].content).endswith("paid 7")


def approval(runs: list[Any]) -> BaseTool:
    @tool
    def approve(what: str) -> str:
        """Ask a person."""
        answer = interrupt({"approve": what})
        runs.append(answer)
        return f"approved by {answer}"

    return approve


def three(turn: str) -> Any:
    return calls(("pay", {"x": 1}, f"{turn}1"), ("approve", {"what": "it"}, f"{turn}2"), ("pay", {"x": 2}, f"{turn}3"))


@pytest.mark.parametrize("face", FACES)
async def test_an_approval_is_requested_again_while_sibling_calls_hit(cache: ToolCache, face: str) -> None:
    paid: list[int] = []
    approved: list[str] = []
    graph = agent(cache, [counting(paid), approval(approved)], [three("a"), three("b")])
    assert question(await run(graph, face, hello(), thread("1"))) == {"approve": "it"}
    assert question(await resume(graph, face, "ada", thread("1"))) == {"approve": "it"}  # the question of the next turn
    said = answers(await resume(graph, face, "bob", thread("1")))
    assert sorted(paid) == [1, 2]
    assert approved == ["ada", "bob"]
    assert (said["a2"].content, said["b2"].content) == ("approved by ada", "approved by bob")
    assert [is_replay(said[call_id]) for call_id in ("b1", "b2", "b3")] == [True, False, True]


@pytest.mark.parametrize("face", FACES)
async def test_an_approval_is_not_valid_in_another_thread(cache: ToolCache, face: str) -> None:
    paid: list[int] = []
    approved: list[str] = []
    graph = agent(cache, [counting(paid), approval(approved)], [three("a")])
    await run(graph, face, hello(), thread("1"))
    await resume(graph, face, "ada", thread("1"))
    assert question(await run(graph, face, hello(), thread("2"))) == {"approve": "it"}
    said = answers(await resume(graph, face, "bob", thread("2")))
    assert (sorted(paid), approved) == ([1, 2], ["ada", "bob"])
    assert [is_replay(said[call_id]) for call_id in ("a1", "a2", "a3")] == [True, False, True]


def flaky(runs: list[Any], failures: int) -> BaseTool:
    @tool
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        if len(runs) <= failures:
            raise ConnectionError("try again")
        return f"paid {x}"

    return pay


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(("order", "misses"), [("cache inside", 2), ("cache outside", 1)])
async def test_a_retry_runs_again_and_then_hits(cache: ToolCache, face: str, order: str, misses: int) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": 1}, "a")), calls(("pay", {"x": 1}, "b"))]
    again = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False)
    middleware = [again, cache.middleware()] if order == "cache inside" else [cache.middleware(), again]
    graph: Any = create_agent(
        Scripted(script=list(script)), [flaky(runs, 1)], middleware=middleware, checkpointer=cache.saver
    )
    said = answers(await run(graph, face, hello(), thread("1")))
    assert (runs, cache.stats.misses, cache.stats.hits) == ([1, 1], misses, 1)
    assert [said[call_id].content for call_id in "ab"] == ["paid 1", "paid 1"]


@pytest.mark.parametrize("face", FACES)
async def test_a_failure_that_middleware_turned_into_a_message_is_not_cached(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": 1}, "a")), calls(("pay", {"x": 1}, "b"))]
    again = ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False, on_failure="continue")
    graph: Any = create_agent(
        Scripted(script=script), [flaky(runs, 2)], middleware=[cache.middleware(), again], checkpointer=cache.saver
    )
    said = answers(await run(graph, face, hello(), thread("1")))
    assert runs == [1, 1, 1]
    assert (said["a"].status, said["b"].content, is_replay(said["b"])) == ("error", "paid 1", False)


@pytest.mark.parametrize("face", FACES)
async def test_an_interrupt_before_the_tools_uses_no_cache(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph: Any = create_agent(
        Scripted(script=[calls(("pay", {"x": 1}, "a"))]),
        [counting(runs)],
        middleware=[cache.middleware()],
        checkpointer=cache.saver,
        interrupt_before=["tools"],
    )
    await run(graph, face, hello(), thread("1"))
    assert (runs, cache.stats.misses) == ([], 0)
    result = await run(graph, face, None, thread("1"))
    assert ASKED not in result
    assert answers(result)["a"].content == "paid 1"


@pytest.mark.slow
def test_middleware_without_langchain_explains_how_to_install_it() -> None:
    """In a separate process where `langchain` cannot be imported."""
    program = (
        "import sys; sys.modules['langchain'] = None\n"
        "from langgraph_keel import InvalidInput, MemorySaver\n"
        "from langgraph_keel import KeelCache, ToolCache\n"
        "cache = ToolCache(MemorySaver())\n"
        "try: cache.middleware()\n"
        "except InvalidInput as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install langchain" in said
