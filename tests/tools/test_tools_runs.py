"""A step of three tool calls, cut short by a question, cancel, error or retry.

No finished tool runs again, and an interrupted tool runs again only if the user says so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.types import Command, RetryPolicy
from support.places import Place
from support.races import context
from support.savers import SAVERS, needing
from support.tool_graphs import BACKENDS, late_at_first
from support.tools.children import (
    GRAPHS,
    SLOW,
    Life,
    Lives,
    Moment,
    Outside,
    acting,
    asking,
    first_input,
    node_graph,
    open_nursery,
    said_by_tools,
    three_tools,
)

from langgraph_keel import KeelSaver, ToolCache, ToolOutcomeUnknown, ToolPolicy

CONFIG: Any = {"configurable": {"thread_id": "t"}}
ALL_SAID = ("fast did it", "quick did it", "slow did it")
faces = pytest.mark.parametrize("is_async", [False, True], ids=["sync-face", "async-face"])
durabilities = pytest.mark.parametrize("durability", ["sync", "async", "exit"])
shapes = pytest.mark.parametrize("shape", list(GRAPHS))


@dataclass
class Scene:
    """A saver, and the tools' log outside of it."""

    saver: KeelSaver
    outside: Outside

    def cache(self, unknown: Literal["raise", "retry", "ask"] = "raise", lease: float = 30.0) -> ToolCache:
        return ToolCache(self.saver, default=ToolPolicy(unknown=unknown), lease=lease)

    def states(self) -> dict[str, str]:
        return {call.tool: call.state for call in self.saver.tools.calls("t")}

    async def until(self, *lines: str) -> None:
        """Wait until the tools have written these lines."""
        async with asyncio.timeout(30):
            while not all(self.outside.lines()[line] for line in lines):
                await asyncio.sleep(0.005)

    def ran(self, *tools: str) -> list[tuple[int, int]]:
        """How often each tool has started and ended."""
        lines = self.outside.lines()
        return [(lines[f"begin {tool}"], lines[f"end {tool}"]) for tool in tools]


@pytest.fixture(params=BACKENDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        yield Scene(saver, Outside(tmp_path / "lines"))


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with open_nursery(context()) as opened:
        yield opened


async def invoke(is_async: bool, graph: Any, given: Any, durability: str = "async") -> Any:
    if is_async:
        return await graph.ainvoke(given, CONFIG, durability=durability)
    return await asyncio.to_thread(graph.invoke, given, CONFIG, durability=durability)


class Unlucky(Exception):
    """A tool failed."""


def waiting(
    name: str, outside: Outside, is_time: Callable[[], bool], fails: Callable[[], bool] = lambda: False
) -> BaseTool:
    """A tool that waits for a condition after it has started, and then fails or ends."""
    begun_at = time.monotonic()

    def is_over() -> bool:
        return is_time() or time.monotonic() > begun_at + 60  # a failing test must not wait forever

    def end() -> str:
        if fails():
            raise Unlucky(name)
        outside.note(f"end {name}")
        return f"{name} did it"

    def act(on: str) -> str:
        outside.note(f"begin {name}")
        while not is_over():
            time.sleep(0.005)
        return end()

    async def aact(on: str) -> str:
        outside.note(f"begin {name}")
        while not is_over():
            await asyncio.sleep(0.005)
        return end()

    return StructuredTool.from_function(act, aact, name=name, description="Waits.")


# -- a question --------------------------------------------------------------------------------------------------------


@shapes
@durabilities
@faces
async def test_an_answer_repeats_no_other_tool(scene: Scene, is_async: bool, durability: str, shape: str) -> None:
    fast, _, slow = three_tools(scene.outside)
    graph = GRAPHS[shape](scene.cache(), [fast, asking(scene.outside), slow])
    first = await invoke(is_async, graph, first_input(), durability)
    assert [question.value for question in first["__interrupt__"]] == [{"may I": "it"}]
    second = await invoke(is_async, graph, Command(resume="yes"), durability)
    assert said_by_tools(second) == ("fast did it", "asking did it: yes", "slow did it")
    assert scene.ran("fast", "asking", "slow") == [(1, 1)] * 3


@pytest.mark.slow
@durabilities
@faces
def test_a_run_killed_after_an_answer_was_used_asks_once(
    lives: Lives, place: Place, tmp_path: Path, is_async: bool, durability: Any
) -> None:
    """The person is asked once, though exit durability loses the answer."""
    chance, seen = random.Random(f"{place.kind} {is_async} {durability}"), 0
    life = Life(place=place, path=tmp_path, thread="", is_async=is_async, durability=durability, with_question=True)
    for number in range(12):
        moment = Moment("end asking", 1, chance.uniform(0.3, 0.7) * SLOW)
        seen += killed_after_the_answer(lives, replace(life, thread=f"{number}", path=tmp_path / f"{number}"), moment)
        if seen == 3:
            return
    pytest.fail(f"only {seen} were killed after the answer was used, and before the step ended")


def killed_after_the_answer(lives: Lives, life: Life, moment: Moment) -> bool:
    """Return whether the kill came after the answer was used, before the step ended."""
    asked = lives(life)
    assert asked.how == "asked"
    killed = lives(replace(life, answer="yes", moment=moment))
    with life.place.open() as saver:
        states = {call.tool: call.state for call in saver.tools.calls(life.thread)}
    if killed.how != "killed" or states["asking"] != "done":
        return False
    assert lives(life) == ("finished", ("fast did it", "asking did it: yes", "slow did it"))
    lines = Outside(life.path).lines()
    assert (lines["begin asking"], lines["end asking"], lines["begin fast"]) == (1, 1, 1)
    return True


# -- a cancellation ----------------------------------------------------------------------------------------------------


def held(outside: Outside) -> list[BaseTool]:
    """The slow tool runs until it is released."""
    fast, quick, _ = three_tools(outside)
    return [fast, quick, waiting("slow", outside, lambda: outside.lines()["release"] > 0)]


def held_in_a_thread(outside: Outside) -> list[BaseTool]:
    """The slow tool has no async form: its thread continues and its end is lost."""
    fast, quick, slow = held(outside)
    return [fast, quick, slow.model_copy(update={"coroutine": None})]


async def cancelled(scene: Scene, graph: Any, cache: ToolCache, durability: str = "async") -> None:
    task = asyncio.create_task(graph.ainvoke(first_input(), CONFIG, durability=durability))
    await scene.until("end fast", "end quick", "begin slow")
    while list(scene.states().values()).count("done") < 2:
        await asyncio.sleep(0.002)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(cache.close)
    scene.outside.note("release")
    assert scene.states() == {"fast": "done", "quick": "done", "slow": "unknown"}


@shapes
@pytest.mark.parametrize("tools", [held, held_in_a_thread])
@pytest.mark.parametrize("decision", ["retry", "done"])
@durabilities
async def test_a_cancelled_tool_waits_for_a_decision(
    scene: Scene, durability: str, decision: str, tools: Callable[[Outside], Sequence[BaseTool]], shape: str
) -> None:
    cache = scene.cache()
    graph = GRAPHS[shape](cache, tools(scene.outside))
    await cancelled(scene, graph, cache, durability)
    begun = scene.ran("slow")[0][0]
    given = None if await there_is_something(graph) else first_input()
    with pytest.raises(ToolOutcomeUnknown, match="'slow'") as caught:
        await graph.ainvoke(given, CONFIG, durability=durability)
    assert scene.ran("slow")[0][0] == begun == 1
    cache.settle("t", caught.value.key, decision)
    said = said_by_tools(await graph.ainvoke(None, CONFIG, durability=durability))
    assert said[:2] == ALL_SAID[:2]
    assert (said[2] == ALL_SAID[2]) == (decision == "retry")
    assert scene.ran("fast", "quick") == [(1, 1)] * 2
    assert scene.ran("slow")[0][0] == (2 if decision == "retry" else 1)


async def there_is_something(graph: Any) -> bool:
    return (await graph.aget_state(CONFIG)).created_at is not None


@shapes
async def test_a_cancelled_tool_with_unknown_retry_runs_again(scene: Scene, shape: str) -> None:
    cache = scene.cache(unknown="retry")
    graph = GRAPHS[shape](cache, held(scene.outside))
    await cancelled(scene, graph, cache)
    assert said_by_tools(await graph.ainvoke(None, CONFIG)) == ALL_SAID
    assert scene.ran("fast", "quick", "slow") == [(1, 1), (1, 1), (2, 1)]


def after(late: dict[str, float], name: str) -> Callable[[Any], str]:
    """A scope that delays a call: it is evaluated before the ledger is read."""

    def scope(config: Any) -> str:
        time.sleep(late.get(name, 0))
        return "all"

    return scope


@pytest.mark.parametrize("is_asked_late", [True, False], ids=["late", "as-it-comes"])
@faces
async def test_an_answer_about_one_call_is_not_used_for_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_async: bool, is_asked_late: bool
) -> None:
    """LangGraph gives answers in order of asking; a `ToolNode`'s calls are one task."""
    late_at_first(monkeypatch, "note_doubt")
    late: dict[str, float] = {}
    policies = {name: ToolPolicy(unknown="ask", scope=after(late, name)) for name in ("one", "two")}
    cache = ToolCache(scene.saver, policies)
    graph = node_graph(cache, [acting(name, scene.outside, SLOW) for name in policies])
    task = asyncio.create_task(graph.ainvoke(first_input(), CONFIG))
    await scene.until("begin one", "begin two")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(cache.close)
    asked = (await invoke(is_async, graph, None))["__interrupt__"][0].value["tool"]
    late[asked] = 0.2 if is_asked_late else 0
    await invoke(is_async, graph, Command(resume="retry"))
    assert {tool for tool in policies if scene.outside.lines()[f"begin {tool}"] > 1} <= {asked}


@pytest.mark.parametrize("unknown", ["raise", "ask"])
def test_a_question_lets_other_calls_of_its_step_finish(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, unknown: Literal["raise", "ask"]
) -> None:
    """A question ends an async run and its loop; running calls would be in doubt."""
    cache = scene.cache(unknown)
    graph = node_graph(cache, [asking(scene.outside), acting("slow", scene.outside, SLOW)])
    late_at_first(monkeypatch, "settle")
    assert asyncio.run(graph.ainvoke(first_input(), CONFIG))["__interrupt__"][0].value == {"may I": "it"}
    assert scene.ran("slow") == [(1, 1)]
    assert scene.states() == {"asking": "waiting", "slow": "done"}
    asyncio.run(graph.ainvoke(Command(resume="yes"), CONFIG))
    assert scene.ran("asking", "slow") == [(1, 1), (1, 1)]


# -- an error ----------------------------------------------------------------------------------------------------------


def one_fails(outside: Outside, slow: BaseTool) -> list[BaseTool]:
    """The quick tool fails once, as soon as the slow one runs."""
    is_time, is_first = lambda: outside.lines()["begin slow"] > 0, lambda: outside.lines()["begin quick"] == 1
    return [acting("fast", outside), waiting("quick", outside, is_time, fails=is_first), slow]


async def go_on(scene: Scene, cache: ToolCache, words: Counter[str], invoked: Callable[[], Awaitable[Any]]) -> Any:
    """Continue to the end. Settle interrupted calls with `retry`, and count them."""
    for _ in range(10):
        try:
            return await invoked()
        except ToolOutcomeUnknown:
            await asyncio.to_thread(cache.close)
            unknown = [call for call in scene.saver.tools.calls("t") if call.state == "unknown"]
            words.update(call.tool for call in unknown)
            for call in unknown:
                cache.settle("t", call.key, "retry")
    pytest.fail(f"it does not come to an end: {words}")


@durabilities
@pytest.mark.parametrize(("is_async", "shape"), [(False, "node"), (True, "node"), (False, "agent")])
async def test_a_failed_tool_is_repeated_without_its_siblings(
    scene: Scene, is_async: bool, durability: str, shape: str
) -> None:
    """The failed tool runs again, the others do not."""
    graph = GRAPHS[shape](scene.cache(), one_fails(scene.outside, acting("slow", scene.outside, SLOW)))
    with pytest.raises(Unlucky):
        await invoke(is_async, graph, first_input(), durability)
    assert said_by_tools(await invoke(is_async, graph, None, durability)) == ALL_SAID
    assert scene.ran("fast", "quick", "slow") == [(1, 1), (2, 1), (1, 1)]


@durabilities
async def test_a_failed_tool_that_cancels_its_siblings(scene: Scene, durability: str) -> None:
    """LangChain's agent on the async face: cancelled calls wait for a decision."""
    cache, words = scene.cache(lease=1.0), Counter[str]()  # as long as the error waits for the other calls
    graph = GRAPHS["agent"](cache, one_fails(scene.outside, held(scene.outside)[-1]))
    with pytest.raises(Unlucky):
        await graph.ainvoke(first_input(), CONFIG, durability=durability)
    scene.outside.note("release")
    last = await go_on(scene, cache, words, lambda: graph.ainvoke(None, CONFIG, durability=durability))
    assert said_by_tools(last) == ALL_SAID
    assert words["slow"] >= 1
    begun = [begun for begun, _ in scene.ran("fast", "quick", "slow")]
    allowed = [1 + words["fast"], 2 + words["quick"], 1 + words["slow"]]
    assert all(most >= count for most, count in zip(allowed, begun, strict=True))


async def test_a_doubt_puts_no_other_call_in_doubt(scene: Scene) -> None:
    """LangChain's agent cancels siblings when one raises: they must end before that."""
    cache, slow = scene.cache(lease=1.0), held(scene.outside)[-1]
    with pytest.raises(Unlucky):
        await GRAPHS["agent"](cache, one_fails(scene.outside, slow)).ainvoke(first_input(), CONFIG)
    again = [acting("fast", scene.outside), acting("quick", scene.outside, SLOW), slow]
    with pytest.raises(ToolOutcomeUnknown, match="'slow'"):
        await GRAPHS["agent"](cache, again).ainvoke(None, CONFIG)
    await asyncio.to_thread(cache.close)
    assert [tool for tool, state in scene.states().items() if state == "unknown"] == ["slow"]


# -- a retry policy ----------------------------------------------------------------------------------------------------


@durabilities
@faces
async def test_a_retry_policy_repeats_only_the_failed_tool(scene: Scene, is_async: bool, durability: str) -> None:
    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=Unlucky)
    slow = acting("slow", scene.outside, SLOW)
    graph = node_graph(scene.cache(), one_fails(scene.outside, slow), retry_policy=policy)
    assert said_by_tools(await invoke(is_async, graph, first_input(), durability)) == ALL_SAID
    assert scene.ran("fast", "quick", "slow") == [(1, 1), (2, 1), (1, 1)]


async def test_a_retry_policy_does_not_settle_a_doubt(scene: Scene) -> None:
    cache = scene.cache()
    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=Exception)
    graph = node_graph(cache, held(scene.outside), retry_policy=policy)
    await cancelled(scene, graph, cache)
    with pytest.raises(ToolOutcomeUnknown):
        await graph.ainvoke(None, CONFIG)
    assert scene.ran("fast", "quick", "slow") == [(1, 1), (1, 1), (1, 0)]
