"""Unanswered calls of dead, failed or cancelled runs, answered on the next input."""

from __future__ import annotations

import asyncio
import random
from asyncio import to_thread
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from support.places import Place
from support.races import context
from support.savers import FACES, each_face
from support.tiers import examples, sized
from support.tool_graphs import Killed, Scripted, answers, calls, loop_of, resume, run
from support.tools.children import SLOW, Life, Lives, Moment, Outside, open_nursery
from support.tools.flight import wait_until
from support.tools.healing import ANSWER, CONFIG, GRAPHS, World, agent_of, live, problems_of, said

from langgraph_keel import InvalidConfig, KeelSaver, MemorySaver, ToolCache, ToolPolicy
from langgraph_keel.testing.faults import Counter, with_tap

TURNS = st.lists(st.sampled_from(["work", "work", "fail", "die", "hang", "ask"]), min_size=1, max_size=4)
LIVES = st.tuples(
    st.sampled_from(["say", "say", "resume", "answer"]),
    st.sampled_from(FACES),
    st.none() | st.none() | st.integers(0, 25),
    st.sampled_from(["sync", "async", "exit"]),
)
UNKNOWN, NOT_MADE = "It is not known whether this call was carried out", "This call was not made"


@pytest.mark.slow
@pytest.mark.parametrize("kind", GRAPHS)
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TURNS, min_size=1, max_size=4), st.lists(LIVES, max_size=5), st.booleans())
def test_each_call_has_one_answer_after_random_failures(kind: str, turns: Any, lives: Any, reuses_ids: bool) -> None:
    asyncio.run(_live_all(World(turns, reuses_ids), kind, [("say", "async", None, "async"), *lives]))


async def _live_all(world: World, kind: str, lives: Any) -> None:
    with MemorySaver() as saver:
        for number, (how, face, dies_at, durability) in enumerate(lives):
            value = {"say": said(f"message {number}"), "resume": None, "answer": ANSWER}[how]
            await live(saver, world, kind, face, value, dies_at=dies_at, durability=durability)
        world.turns.clear()
        messages = await live(saver, world, kind, "async", said("the end"))
    assert world.error is None
    assert messages[-1].text == "done"
    assert world.problems == []


# -- the answer to each call -------------------------------------------------------------------------------------------


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages if isinstance(message, ToolMessage)]


@pytest.mark.parametrize("kind", GRAPHS)
@each_face
async def test_a_thread_with_killed_tools_accepts_new_input(saver: KeelSaver, face: str, kind: str) -> None:
    world = World([["work", "fail"], ["work", "die"]], dies_last=True)
    await live(saver, world, kind, face, said("one"), durability="sync")
    await live(saver, world, kind, face, said("two"), durability="sync")
    await live(saver, world, kind, face, said("three"), durability="sync")
    assert world.problems == []
    messages = await live(saver, world, kind, face, said("four"))
    assert world.problems == []
    failed, (worked, died) = "This call failed: ValueError: no 1", texts(messages)[2:]
    assert texts(messages)[:2] == ["did 0", failed]
    assert worked == "did 2"
    assert died.startswith(UNKNOWN)
    states = [each.response_metadata["keel_healed"]["state"] for each in answers({"messages": messages}).values()]
    assert states == ["done", "failed", "done", "unknown"]


def test_a_conversation_without_healing_is_invalid_for_providers() -> None:
    with MemorySaver() as saver:
        graph = create_agent(Scripted(script=[calls(("work", {}, "a"))]), [dying()], checkpointer=saver)
        with pytest.raises(Killed):
            graph.invoke(said("one"), CONFIG)
        assert problems_of(graph.invoke(said("two"), CONFIG)["messages"]) == ["['a'] are answered by []"]


def dying() -> StructuredTool:
    def work() -> str:
        raise Killed

    return StructuredTool.from_function(work, description="Dies.")


async def test_healing_is_stored_and_happens_once() -> None:
    with MemorySaver() as saver:
        world, counter = World([["work", "die"]], dies_last=True), Counter()
        await live(saver, world, "loop", "async", said("one"))
        await live(saver, world, "loop", "async", said("two"))
        messages = await live(saver, world, "loop", "async", said("three"))
        cache = ToolCache(with_tap(saver, counter))
        assert cache.heal_tool_calls(messages, CONFIG) == []
        assert counter.taken() == 0
        assert cache.heal_tool_calls(messages, {}) == []


@each_face
async def test_an_equal_call_runs_again_after_a_healed_result(saver: KeelSaver, face: str) -> None:
    runs: list[str] = []
    died = [True]

    def pay(to: str) -> str:
        runs.append(to)
        return f"paid {to}"

    def stop() -> str:
        if died.pop():
            wait_until(lambda: [each.state for each in saver.tools.calls("t") if each.tool == "pay"] == ["done"])
            raise Killed
        return "stopped"

    tools = [StructuredTool.from_function(each, description="Acts.") for each in (pay, stop)]
    script = [calls(("pay", {"to": "bob"}, "a"), ("stop", {}, "b")), calls(("pay", {"to": "bob"}, "c"))]
    cache = ToolCache(saver)
    around = [cache.healing_middleware(), cache.middleware()]
    graph = create_agent(Scripted(script=script), tools, middleware=around, checkpointer=saver)
    with pytest.raises(Killed):
        await run(graph, face, said("pay"), CONFIG)
    result = await run(graph, face, said("pay once more"), CONFIG)
    assert texts(result["messages"])[::2] == ["paid bob", "paid bob"]
    assert runs == ["bob", "bob"]


async def test_a_result_survives_the_death_of_the_healing_run(saver: KeelSaver) -> None:
    world = World([["work", "die"]], dies_last=True)
    await live(saver, world, "agent", "async", said("one"), durability="sync")
    for dies_at in range(12):
        await live(saver, world, "agent", "async", said("again"), durability="sync", dies_at=dies_at)
    messages = await live(saver, world, "agent", "async", said("two"))
    assert texts(messages)[0] == "did 0"
    assert texts(messages)[1].startswith(UNKNOWN)
    assert world.problems == []


@each_face
async def test_a_call_running_elsewhere_is_reported_as_unknown(saver: KeelSaver, face: str) -> None:
    begun, may_end = Event(), Event()

    def work() -> str:
        begun.set()
        assert may_end.wait(60)
        return "done"

    tools = [StructuredTool.from_function(work, description="Works.")]
    script = [calls(("work", {}, "a"))]
    graphs: list[Any] = []
    for cache in (ToolCache(saver), ToolCache(saver)):
        around = [cache.healing_middleware(), cache.middleware()]
        graphs.append(create_agent(Scripted(script=script), tools, middleware=around, checkpointer=saver))
    first = asyncio.ensure_future(to_thread(graphs[0].invoke, said("one"), CONFIG, durability="sync"))
    await to_thread(begun.wait, 60)
    result = await run(graphs[1], face, said("two"), CONFIG)
    may_end.set()
    await asyncio.gather(first, return_exceptions=True)
    assert texts(result["messages"])[0].startswith(UNKNOWN)


@each_face
async def test_a_call_that_waits_for_a_person_is_left_alone(saver: KeelSaver, face: str) -> None:
    world = World([["work"]])
    cache = ToolCache(saver)
    graph = agent_of(cache, world, HumanInTheLoopMiddleware({"act": True}))
    asked = await run(graph, face, said("one"), CONFIG)
    assert cache.heal_tool_calls(asked["messages"], CONFIG) == []
    assert await cache.aheal_tool_calls(asked["messages"], CONFIG) == []
    result = await resume(graph, face, {"decisions": [{"type": "approve"}]}, CONFIG)
    assert texts(result["messages"]) == ["did 0"]


@each_face
async def test_a_question_replaced_by_new_input_is_answered(saver: KeelSaver, face: str) -> None:
    world = World([["work"]])
    graph = agent_of(ToolCache(saver), world, HumanInTheLoopMiddleware({"act": True}))
    await run(graph, face, said("one"), CONFIG)
    result = await run(graph, face, said("never mind"), CONFIG)
    assert texts(result["messages"])[0].startswith(NOT_MADE)
    assert (world.begun, world.problems) == (set(), [])


POLICIES = {
    "not kept": (None, UNKNOWN),
    "volatile": (ToolPolicy(is_volatile=True), UNKNOWN),
    "shared": (ToolPolicy(scope="shared"), UNKNOWN),
    "of the thread": (ToolPolicy(scope="thread"), NOT_MADE),
    "too large": (ToolPolicy(max_bytes=1), "This call was carried out, but its result was not kept"),
    "offloaded": (ToolPolicy(offload_bytes=3), "did it\n[... 6 bytes in all"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_healed_answer_depends_on_the_tools_policy(name: str) -> None:
    policy, expected = POLICIES[name]
    was_made = name in ("too large", "offloaded")

    @tool
    def act() -> str:
        """Act."""
        return "did it"

    with MemorySaver() as saver:
        cache = ToolCache(saver, {"act": policy})
        graph = dying_loop([act], cache, was_made)
        with pytest.raises(Killed):
            graph.invoke(said("go"), CONFIG)
        messages = graph.get_state(CONFIG).values["messages"]
        (*_, last) = cache.heal_tool_calls(messages, CONFIG)
    assert last.text[: len(expected)] == expected


def dying_loop(tools: list[Any], cache: ToolCache, was_made: bool) -> Any:
    """An agent whose only call dies before or after the tool has run."""

    def around(request: Any, execute: Any) -> Any:
        if was_made:
            cache.wrap_tool_call(request, execute)
        raise Killed

    return loop_of(ToolNode(tools, wrap_tool_call=around), [calls((tools[0].name, {}, "call-1"))], cache.saver)


def test_a_healed_command_contributes_only_its_message(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def act(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Act."""
        return Command(update={"messages": [ToolMessage("did it", tool_call_id=call_id)]})

    with MemorySaver() as saver:
        cache = ToolCache(saver)
        graph = dying_loop([act], cache, True)
        with pytest.raises(Killed):
            graph.invoke(said("go"), CONFIG)
        (*_, last) = cache.heal_tool_calls(graph.get_state(CONFIG).values["messages"], CONFIG)
    assert (last.text, last.response_metadata["keel_healed"]["state"]) == ("did it", "done")
    assert "only the message is put into the conversation" in caplog.text


def test_calls_of_another_branch_do_not_heal_a_branch() -> None:
    """Both calls have the same id, and the second branch never called the tool."""
    approve: Command[Any] = Command(resume={"decisions": [{"type": "approve"}]})
    with MemorySaver() as saver:
        world = World([["work"], ["work"]], reuses_ids=True)
        graph = agent_of(ToolCache(saver), world, HumanInTheLoopMiddleware({"act": True}))
        graph.invoke(said("one"), CONFIG)
        graph.invoke(approve, CONFIG)
        start = next(each for each in graph.get_state_history(CONFIG) if not each.values["messages"])
        graph.invoke(said("two"), start.config)
        result = graph.invoke(said("three"), CONFIG)
    assert texts(result["messages"])[0].startswith(NOT_MADE)


def late(saver: KeelSaver, until: Event) -> KeelSaver:
    """A saver that is slow: a step ends before the checkpoint it runs from is stored."""

    def put(*given: Any) -> Any:
        assert until.wait(60)
        return saver.put(*given)

    slow = copy(saver)
    slow.put = put  # type: ignore[assignment, method-assign]
    return slow


def noting(model_runs: Event, world: World) -> World:
    """A world that notes when its model is called."""
    answer = world.answer

    def note(messages: Any) -> AIMessage:
        model_runs.set()
        return answer(messages)

    world.answer = note  # type: ignore[method-assign]
    return world


@pytest.mark.parametrize("kind", GRAPHS)
def test_healing_works_before_the_new_input_is_stored(saver: KeelSaver, kind: str) -> None:
    model_runs = Event()
    world = noting(model_runs, World([["work", "die"]], dies_last=True))
    with pytest.raises(Killed):
        GRAPHS[kind](ToolCache(saver), world).invoke(said("one"), CONFIG, durability="sync")
    model_runs.clear()
    graph = GRAPHS[kind](ToolCache(late(saver, model_runs)), world)
    result = graph.invoke(said("two"), CONFIG, durability="async")
    assert texts(result["messages"])[0] == "did 0"
    assert texts(result["messages"])[1].startswith(UNKNOWN)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_branch_from_before_the_tools_ran_has_their_results(saver: KeelSaver, is_late: bool) -> None:
    model_runs = Event()
    world = noting(model_runs, World([["work"]]))
    graph = agent_of(ToolCache(saver), world)
    graph.invoke(said("one"), CONFIG)
    before = next(each for each in graph.get_state_history(CONFIG) if each.next == ("tools",))
    model_runs.clear()
    again = agent_of(ToolCache(late(saver, model_runs)), world) if is_late else graph
    result = again.invoke(said("two"), before.config, durability="async")
    assert texts(result["messages"]) == ["did 0"]
    assert world.problems == []


def test_healing_reads_the_ledger_of_the_tenant() -> None:
    with MemorySaver(tenants="allowed") as saver:
        cache = ToolCache(saver)
        world = World([["work", "die"]], dies_last=True)
        view = saver.for_tenant("acme")
        graph = agent_of(cache, world).copy({"checkpointer": view})
        with pytest.raises(Killed):
            graph.invoke(said("one"), CONFIG)
        assert texts(graph.invoke(said("two"), CONFIG)["messages"])[0] == "did 0"


# -- the place of answers ----------------------------------------------------------------------------------------------

HUMAN, DONE = HumanMessage("hello", id="h"), AIMessage("done", id="d")
ASKED = AIMessage("", id="a", tool_calls=[{"name": "act", "args": {}, "id": each} for each in ("1", "2")])


def told(call_id: str, text: str = "it") -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id, id=f"{call_id} {text}")


@pytest.mark.parametrize(
    ("given", "healed"),
    [
        ([ASKED, told("2"), told("1")], [ASKED, told("1"), told("2")]),
        ([ASKED, told("1"), HUMAN, told("2"), DONE], [ASKED, told("1"), told("2"), HUMAN, DONE]),
        ([ASKED, told("1"), told("2"), told("1", "again")], [ASKED, told("1"), told("2")]),
        (
            [ASKED, told("1"), told("2"), ASKED, told("2", "new"), told("1", "new")],
            [ASKED, told("1"), told("2"), ASKED, told("1", "new"), told("2", "new")],
        ),
        ([told("0"), HUMAN, ASKED, told("2"), told("1")], [told("0"), HUMAN, ASKED, told("1"), told("2")]),
    ],
)
def test_healed_answers_follow_their_calls_in_order(given: list[Any], healed: list[Any]) -> None:
    with MemorySaver() as saver:
        cache = ToolCache(saver)
        assert cache.heal_tool_calls(given, CONFIG)[1:] == healed
        assert cache.heal_tool_calls(healed, CONFIG) == []


def test_a_call_with_invalid_arguments_is_answered_too() -> None:
    invalid: Any = {"name": "act", "args": "{", "id": "3", "error": "no JSON"}
    asked = AIMessage("", tool_calls=ASKED.tool_calls, invalid_tool_calls=[invalid, {**invalid, "id": None}])
    with MemorySaver() as saver:
        healed = ToolCache(saver).heal_tool_calls([asked, told("1"), HUMAN], CONFIG)[1:]
    assert [each.type for each in healed] == ["ai", "tool", "tool", "tool", "human"]
    assert texts(healed)[2] == "This call was not made: its arguments could not be read."
    assert problems_of([asked.model_copy(update={"invalid_tool_calls": [invalid]}), *healed[1:]]) == []


def test_healing_without_a_thread_is_refused() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidConfig):
        ToolCache(saver).heal_tool_calls([ASKED], {})


# -- real processes ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with open_nursery(context()) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=FACES)
def test_calls_of_a_killed_process_are_healed_truthfully(
    place: Place, tmp_path: Path, lives: Lives, is_async: bool
) -> None:
    chance, said_to_model = random.Random(f"{place.kind} {is_async}"), set()
    for number in range(sized(3, 4, 12)):
        moment = Moment("begin slow", 1, chance.uniform(0, 1.2 * SLOW))
        life = Life(
            place=place,
            path=tmp_path / f"lines{number}",
            thread=f"t{number}",
            is_async=is_async,
            durability="sync",
            graph="agent",
            moment=moment,
        )
        lives(life)
        world, lines = World([], reuses_ids=True), Outside(life.path).lines()
        with place.open() as saver:
            graph = agent_of(ToolCache(saver), world)
            values = graph.get_state(life.config).values
            messages = asyncio.run(run(graph, FACES[is_async], said("again"), life.config))["messages"]
        asked = [call["name"] for message in values["messages"][1:2] for call in message.tool_calls]
        assert problems_of(messages) == []
        for name, text in zip(asked, texts(messages), strict=True):
            told = text == f"{name} did it", text.startswith(UNKNOWN), text.startswith(NOT_MADE)
            assert sum(told) == 1
            assert lines[f"end {name}"] or not told[0]
            assert not lines[f"begin {name}"] or not told[2]
            said_to_model.add(told.index(True))
    assert said_to_model >= {0, 1}
