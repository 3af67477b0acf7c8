"""`ToolPolicy(unknown="ask")`: a person decides each doubt once, for one call."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Barrier, Condition, Event, local
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.places import Place
from support.process_children import exit_code, forked
from support.savers import SAVERS, needing
from support.tool_graphs import (
    ASKED,
    BACKENDS,
    FACES,
    Killed,
    Scripted,
    answers,
    calls,
    hello,
    is_replay,
    question,
    resume,
    run,
    thread,
    tool_graph,
)
from support.tools.flight import wait_until

from langgraph_keel import KeelSaver, MemorySaver, ToolCache, ToolPolicy
from langgraph_keel.tools import cache as cache_module

ASK = ToolPolicy(unknown="ask")


@pytest.fixture(params=BACKENDS)
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolCache]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver, asking(saver) as cache:
        yield cache


@pytest.fixture
def small() -> Iterator[ToolCache]:
    """A cache in memory, for tests that do not depend on the backend."""
    with asking(MemorySaver()) as cache:
        yield cache


def asking(saver: Any) -> ToolCache:
    return ToolCache(saver, default=ASK, store_arguments=True)


def mortal(runs: list[int], deaths: int) -> BaseTool:
    """A tool that acts, and then dies the first `deaths` times."""

    @tool
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        if len(runs) <= deaths:
            raise Killed
        return f"paid {x}"

    return pay


def paying(cache: ToolCache, runs: list[int], deaths: int = 1) -> Any:
    script = [calls(("pay", {"x": 1}, "call-1")), calls(("pay", {"x": 1}, "call-2"))]
    return tool_graph(cache, [mortal(runs, deaths)], script[:1])


async def crash(cache: ToolCache, graph: Any, face: str, value: Any) -> None:
    with pytest.raises(Killed):
        await run(graph, face, value, thread("1"))
    await asyncio.to_thread(cache.close)  # the keeper writes that the call was cut off


@pytest.mark.parametrize("face", FACES)
async def test_the_question_shows_the_call(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph = paying(cache, runs)
    before = time.time()
    await crash(cache, graph, face, hello())
    asked = question(await run(graph, face, None, thread("1")))
    assert {name: asked[name] for name in ("type", "tool", "tool_call_id", "args", "decisions")} == {
        "type": "tool_outcome_unknown",
        "tool": "pay",
        "tool_call_id": "call-1",
        "args": {"x": 1},
        "decisions": ["retry", "done", "skip"],
    }
    assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(before)) <= asked["started_at"][:16]
    assert "problem" not in asked
    assert runs == [1]


DECISIONS: dict[str, tuple[Any, int, str, str]] = {
    "retry": ("retry", 2, "success", "paid 1"),
    "done": ("done", 1, "success", "A person confirmed"),
    "done with a result": ({"decision": "done", "result": "paid, says the bank"}, 1, "success", "paid, says the bank"),
    "skip": ("skip", 1, "error", "It is not known"),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_doubt_is_asked_about_once(cache: ToolCache, face: str, decision: str) -> None:
    answer, count, status, text = DECISIONS[decision]
    runs: list[int] = []
    graph = paying(cache, runs)
    await crash(cache, graph, face, hello())
    for _ in range(2):  # until the question is answered
        assert question(await run(graph, face, None, thread("1")))["tool"] == "pay"
    result = await resume(graph, face, answer, thread("1"))
    assert ASKED not in result
    assert runs == [1] * count
    said = answers(result)["call-1"]
    assert (said.status, said.name) == (status, "pay")
    assert str(said.content).startswith(text)
    assert result["messages"][-1].content == "done"


@pytest.mark.parametrize("face", FACES)
async def test_an_invalid_answer_is_asked_again_with_the_problem(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph = paying(cache, runs)
    await crash(cache, graph, face, hello())
    await run(graph, face, None, thread("1"))
    for answer in ("yes", {"decision": "maybe"}, 7):
        asked = question(await resume(graph, face, answer, thread("1")))
        assert repr(answer) in asked["problem"]
        assert asked["tool"] == "pay"
    said = answers(await resume(graph, face, {"decision": "done", "result": "ok"}, thread("1")))
    assert (said["call-1"].content, runs) == ("ok", [1])


@pytest.mark.parametrize("face", FACES)
async def test_a_second_crash_is_a_second_doubt(cache: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph = paying(cache, runs, deaths=2)
    await crash(cache, graph, face, hello())
    await run(graph, face, None, thread("1"))
    await crash(cache, graph, face, Command(resume="retry"))
    asked = question(await run(graph, face, None, thread("1")))
    assert runs == [1, 1]  # the answer to the first doubt does not apply to the second
    named = {"decision": "done", "attempt": asked["attempt"], "result": "ok"}
    said = answers(await resume(graph, face, named, thread("1")))
    assert (said["call-1"].content, runs) == ("ok", [1, 1])


@pytest.mark.parametrize("face", FACES)
async def test_a_second_doubt_survives_runs_before_its_answer(cache: ToolCache, face: str) -> None:
    """LangGraph passes the answer from before the crash to the next question."""
    runs: list[int] = []
    graph = paying(cache, runs, deaths=2)
    await crash(cache, graph, face, hello())
    await run(graph, face, None, thread("1"))
    await crash(cache, graph, face, Command(resume="retry"))
    for _ in range(3):
        asked = question(await run(graph, face, None, thread("1")))
        assert asked["tool"] == "pay"
    named = {"decision": "done", "attempt": asked["attempt"], "result": "ok"}
    said = answers(await resume(graph, face, named, thread("1")))
    assert (said["call-1"].content, runs) == ("ok", [1, 1])


@pytest.mark.parametrize("face", FACES)
async def test_an_invalid_answer_before_a_second_crash_is_ignored(small: ToolCache, face: str) -> None:
    runs: list[int] = []
    graph = paying(small, runs, deaths=2)
    await crash(small, graph, face, hello())
    await run(graph, face, None, thread("1"))
    await resume(graph, face, "yes", thread("1"))
    await crash(small, graph, face, Command(resume="retry"))
    asked = question(await run(graph, face, None, thread("1")))
    # The answer before that: "retry" may have been used, and is not given again (tools/answers.py).
    assert "'yes' is not an answer" in asked["problem"]
    # A word without the attempt might be the previous answer, which LangGraph keeps.
    again = question(await resume(graph, face, "retry", thread("1")))
    assert (again["attempt"], runs) == (asked["attempt"], [1, 1])
    result = await resume(graph, face, again["answer_like"], thread("1"))
    assert (answers(result)["call-1"].content, runs) == ("paid 1", [1, 1, 1])


# -- several calls of one step -----------------------------------------------------------------------------------------


def two_mortals(runs: list[str]) -> list[BaseTool]:
    @tool
    def slow(x: int) -> str:
        """Act."""
        runs.append("slow")
        raise Killed

    @tool
    def quick(x: int) -> str:
        """Act."""
        runs.append("quick")
        time.sleep(0.3)  # both have started when the first of them dies
        raise Killed

    return [slow, quick]


def late(config: Any) -> str:
    time.sleep(0.2)
    return "late"


TURNS = pytest.mark.parametrize("turn", [("slow", "quick"), ("quick", "slow")], ids=lambda turn: f"{turn[0]} first")


@pytest.mark.parametrize("face", FACES)
@TURNS
async def test_an_answer_reaches_the_call_in_question(face: str, turn: tuple[str, str]) -> None:
    """Even if calls reach the ledger in another order than the model's."""
    runs: list[str] = []
    policies = {"slow": ToolPolicy(unknown="ask", scope=late), "quick": ASK}
    with ToolCache(MemorySaver(), policies) as cache:
        graph = tool_graph(cache, two_mortals(runs), [calls(*((name, {"x": 1}, f"call-{name}") for name in turn))])
        await crash(cache, graph, face, hello())
        await asyncio.sleep(0.5)
        cache.close()
        result = await run(graph, face, None, thread("1"))
        for _ in range(2):
            name = question(result)["tool"]
            result = await resume(graph, face, {"decision": "done", "result": f"{name} is done"}, thread("1"))
        said = answers(result)
        assert {name: said[f"call-{name}"].content for name in turn} == {name: f"{name} is done" for name in turn}
        assert sorted(runs) == ["quick", "slow"]


class Arrivals:
    """Lets the calls of a step reach the ledger in an order drawn by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, draw: Callable[[], list[str]]) -> None:
        self._draw, self._order, self._changed, self._here = draw, draw(), Condition(), local()
        self._all_are_here = Barrier(len(self._order))  # LangGraph starts no more calls once another has ended the step
        self._plan, self._take_slot = ToolCache.answer, cache_module.take_slot  # type: ignore[attr-defined]
        monkeypatch.setattr(ToolCache, "answer", lambda cache, *args: self._wait(cache, *args))
        monkeypatch.setattr(cache_module, "take_slot", self._come)

    def _wait(self, cache: ToolCache, tool: BaseTool, args: Any, call_id: str, *more: Any) -> Any:
        self._here.call_id = call_id
        self._all_are_here.wait(timeout=20)
        with self._changed:
            assert self._changed.wait_for(lambda: self._order[0] == call_id, timeout=20)
        return (yield from self._plan(cache, tool, args, call_id, *more))

    def _come(self, config: Any) -> Any:
        slot = self._take_slot(config)
        with self._changed:
            assert self._order.pop(0) == self._here.call_id
            self._order = self._order or self._draw()
            self._changed.notify_all()
        return slot


@TURNS
async def test_an_answer_reaches_a_call_whose_thread_was_overtaken(
    turn: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `ToolNode` on threads shows the question of the first call, which comes last."""
    Arrivals(monkeypatch, lambda: [f"call-{name}" for name in reversed(turn)])
    await test_an_answer_reaches_the_call_in_question("sync", turn)


async def test_a_call_running_during_a_failure_changes_no_later_question(small: ToolCache) -> None:
    """An async `ToolNode` ends at the first error; its other calls would ask beside those of the next attempt."""
    has_started, has_failed, may_ask = Event(), Event(), Event()

    @tool
    def pay() -> str:
        """Pay; fail the first time."""
        if not has_failed.is_set():
            assert has_started.wait(20)
            has_failed.set()
            raise OSError
        return f"paid {interrupt('how much?')}"

    @tool
    def ask() -> str:
        """Ask a person; the first time, late."""
        if not has_started.is_set():
            has_started.set()
            assert may_ask.wait(20)
        return str(interrupt("when?"))

    def states() -> list[tuple[str, str]]:
        return [(call.tool, call.state) for call in small.saver.tools.calls("1")]

    graph = tool_graph(small, [pay, ask], [calls(("pay", {}, "call-1"), ("ask", {}, "call-2"))])
    attempt = asyncio.create_task(run(graph, "async", hello(), thread("1")))
    assert await asyncio.to_thread(has_failed.wait, 20)
    await asyncio.to_thread(wait_until, lambda: ("pay", "failed") in states())
    assert not attempt.done()
    may_ask.set()
    with suppress(OSError):
        await attempt
    said = {"how much?": "10", "when?": "noon"}
    result = await run(graph, "async", None, thread("1"))
    for _ in range(2):
        result = await resume(graph, "async", said[question(result)], thread("1"))
    assert {name: message.content for name, message in answers(result).items()} == {
        "call-1": "paid 10",
        "call-2": "noon",
    }


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("face", "deaths"), [("sync", 0), ("sync", 2), ("async", 2)])
async def test_each_call_receives_its_own_answers(
    small: ToolCache, face: str, deaths: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order of threads, also after crashes, and with answers by id."""
    random, left, asked = Random(seed), iter(range(deaths)), 0
    names = ["call-0", "call-1", "call-2"]
    if face == "sync":
        Arrivals(monkeypatch, lambda: random.sample(names, 3))

    @tool
    def ask(x: int) -> str:
        """Ask a person, once or twice."""
        said = []
        for nth in range(1 + x % 2):
            said.append(interrupt(f"{x}.{nth}"))
            assert said[-1] == f"to {x}.{nth}"
            if random.random() < 0.3 and next(left, None) is not None:
                raise Killed
        return " ".join(said)

    async def go(value: Any) -> Any:
        try:
            return await run(graph, face, value, thread("1"))
        except Killed:
            others = asyncio.all_tasks() - {asyncio.current_task()}  # a crash would end the other calls as well
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            small.close()  # records that the calls were cancelled
            return await go(None)

    script = [calls(*(("ask", {"x": x}, name) for x, name in enumerate(names)))]
    graph = tool_graph(small, [ask], script)
    result = await go(hello())
    while ASKED in result and (asked := asked + 1) < 20:
        if random.random() < 0.3:
            result = await go(None)
        (shown,) = result[ASKED]
        about = shown.value
        answer = f"to {about}" if isinstance(about, str) else {"decision": "retry", "attempt": about["attempt"]}
        result = await go(Command(resume=random.choice([answer, {shown.id: answer}])))
    said = {name: message.content for name, message in answers(result).items()}
    assert said == {"call-0": "to 0.0", "call-1": "to 1.0 to 1.1", "call-2": "to 2.0"}
    assert asked == 4 or (deaths and asked < 20)


def sibling(runs: list[Any]) -> BaseTool:
    @tool
    def look(x: int) -> str:
        """Look."""
        runs.append("look")
        return "seen"

    return look


@pytest.mark.parametrize("face", FACES)
async def test_sibling_calls_of_a_doubt_hit_the_cache(cache: ToolCache, face: str) -> None:
    looks: list[str] = []
    runs: list[int] = []
    script = [calls(("look", {"x": 1}, "call-1"), ("pay", {"x": 1}, "call-2"), ("look", {"x": 2}, "call-3"))]
    graph = tool_graph(cache, [sibling(looks), mortal(runs, 1)], script)
    await crash(cache, graph, face, hello())
    await run(graph, face, None, thread("1"))
    said = answers(await resume(graph, face, "retry", thread("1")))
    assert (looks, runs) == (["look", "look"], [1, 1])
    assert [said[f"call-{n}"].content for n in (1, 2, 3)] == ["seen", "paid 1", "seen"]
    assert is_replay(said["call-1"])


@pytest.mark.parametrize("face", FACES)
async def test_an_agent_asks_about_each_call_separately(small: ToolCache, face: str) -> None:
    runs: list[int] = []
    script = [calls(("pay", {"x": 1}, "call-1"), ("pay", {"x": 2}, "call-2"))]
    graph: Any = create_agent(
        Scripted(script=script), [mortal(runs, 2)], middleware=[small.middleware()], checkpointer=small.saver
    )
    await crash(small, graph, face, hello())
    result = await run(graph, face, None, thread("1"))
    while ASKED in result:
        said = {
            asked.id: {"decision": "done", "result": f"paid {asked.value['args']['x']} once"} for asked in result[ASKED]
        }
        result = await resume(graph, face, said, thread("1"))
    assert sorted(runs) in ([1, 2], [1], [2])
    for call_id, message in answers(result).items():
        assert str(message.content).startswith(f"paid {call_id[-1]}")


@pytest.mark.parametrize("face", FACES)
async def test_answers_of_one_node_keep_their_order(cache: ToolCache, face: str) -> None:
    """A replayed tool skips its used answers; the node's questions get theirs."""
    used: list[str] = []

    @tool
    def approve(what: str) -> str:
        """Ask a person, twice."""
        used.append(f"{interrupt(what)} {interrupt(what)}")
        return used[-1]

    kept = cache.tool(approve)

    def node(state: MessagesState) -> dict[str, Any]:
        said = [kept.invoke({"what": "a"}), interrupt("own"), kept.invoke({"what": "b"}), interrupt("last")]
        return {"messages": [("ai", ", ".join(said))]}

    async def anode(state: MessagesState) -> dict[str, Any]:
        said = [await kept.ainvoke({"what": "a"}), interrupt("own")]
        said += [await kept.ainvoke({"what": "b"}), interrupt("last")]
        return {"messages": [("ai", ", ".join(said))]}

    builder = StateGraph(MessagesState).add_node("node", node if face == "sync" else anode).add_edge(START, "node")
    graph: Any = builder.compile(checkpointer=cache.saver)
    asked = [question(await run(graph, face, hello(), thread("1")))]
    for number in range(5):
        asked.append(question(await resume(graph, face, str(number), thread("1"))))
    result = await resume(graph, face, "5", thread("1"))
    assert asked == ["a", "a", "own", "b", "b", "last"]
    assert result["messages"][-1].content == "0 1, 2, 3 4, 5"
    assert used == ["0 1", "3 4"]


# -- processes that die ------------------------------------------------------------------------------------------------


def dying(path: Path) -> BaseTool:
    """A tool that notes its run in a file, and kills its process the first two times."""

    @tool
    def pay(x: int) -> str:
        """Pay."""
        with path.open("a") as file:
            file.write("ran\n")
        if len(path.read_text().split()) <= 2:
            os._exit(9)
        return f"paid {x}"

    return pay


def life(place: Place, path: Path, durability: str, answer: str | None) -> None:
    """One life of an agent: it starts, continues, or is resumed with an answer."""
    with place.open() as saver, asking(saver) as cache:
        graph = tool_graph(cache, [dying(path)], [calls(("pay", {"x": 1}, "call-1"))])
        value = Command(resume=answer) if answer else rest_of(saver)
        graph.invoke(value, thread("1"), durability=durability)


def rest_of(saver: KeelSaver) -> Any:
    """The input that continues: `None`, or the first input if nothing was stored."""
    return None if saver.get_tuple(thread("1")) else hello()


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_call_killed_twice_is_asked_about_twice(place: Place, tmp_path: Path, durability: str) -> None:
    path = tmp_path / "runs"
    live = partial(forked, life, place, path, durability)
    assert exit_code(live(None)) == 9
    assert exit_code(live(None)) == 0  # it asked, and was left unanswered
    assert exit_code(live("retry")) == 9
    with place.open() as saver, asking(saver) as cache:
        graph = tool_graph(cache, [dying(path)], [calls(("pay", {"x": 1}, "call-1"))])
        asked = question(graph.invoke(None, thread("1"), durability=durability))
        result = graph.invoke(Command(resume=asked["answer_like"]), thread("1"), durability=durability)
        assert ASKED not in result, "the answer was taken for the one before, and the person is asked once more"
        assert answers(result)["call-1"].content == "paid 1"
    assert path.read_text() == "ran\n" * 3
