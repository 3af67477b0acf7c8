"""The default scope: no call is made twice after losses; a different call is made."""

from __future__ import annotations

import re
import threading
from ast import literal_eval
from asyncio import to_thread
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from support.savers import SAVERS, needing
from support.tool_graphs import ASKED, BACKENDS, FACES, Killed, is_replay, resume, run

from langgraph_keel import InvalidInput, KeelError, KeelSaver, Retention, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.testing.faults import Counter as Trips
from langgraph_keel.testing.faults import Fault, Injected, with_tap

CONFIG: Any = {"configurable": {"thread_id": "t"}}
DURABILITIES = ("sync", "async", "exit")
faces = pytest.mark.parametrize("face", FACES)
durabilities = pytest.mark.parametrize("durability", DURABILITIES)


@dataclass
class World:
    """An agent that follows its input, with new call ids each time.

    "pay bob 10 twice" is one turn with two equal calls; "poll" asks until the answer is "finished".
    """

    saver: KeelSaver
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    paid: list[str] = field(default_factory=list)
    desk: threading.Lock = field(default_factory=threading.Lock)  # calls of one step run in threads
    polls: int = 0
    ends: dict[str, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = ToolCache(self.saver, default=self.policy)

    def tools(self) -> list[BaseTool]:
        def pay(to: str) -> str:
            with self.desk:
                self.paid.append(to)
                number = len(self.paid)
            self.end("pay")
            return f"receipt {number} for {to}"

        async def apay(to: str) -> str:
            return pay(to)

        def poll() -> str:
            self.polls += 1
            return "finished" if self.polls % 3 == 0 else f"running {self.polls}"

        async def apoll() -> str:
            return poll()

        return [
            StructuredTool.from_function(pay, apay, name="pay", description="Pays."),
            StructuredTool.from_function(poll, apoll, name="poll", description="Asks."),
        ]

    def end(self, where: str) -> None:
        if error := self.ends.pop(where, None):
            raise error

    def think(self, state: MessagesState) -> Any:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage) and not last.text.startswith("running"):
            self.end("after")
            return {"messages": [AIMessage("done")]}
        is_polling = isinstance(last, ToolMessage) or "poll" in last.text
        asked = (
            [("poll", {})]
            if is_polling
            else [("pay", {"to": last.text.split()[1]})] * (2 if "twice" in last.text else 1)
        )
        calls: Any = [{"name": name, "args": args, "id": uuid4().hex} for name, args in asked]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    def agent(self, saver: Any = None) -> Any:
        node = ToolNode(
            self.tools(),
            wrap_tool_call=self.cache.wrap_tool_call,
            awrap_tool_call=self.cache.awrap_tool_call,
            handle_tool_errors=False,
        )
        builder = StateGraph(MessagesState).add_node("model", self.think).add_node("tools", node)
        builder.add_edge(START, "model").add_edge("tools", "model")
        builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
        return builder.compile(checkpointer=saver)

    def graph(self) -> Any:
        return self.agent(self.saver)

    def nested(self) -> Any:
        """The agent as a subgraph, which starts afresh at each call."""
        builder = StateGraph(MessagesState).add_node("agent", self.agent())
        return builder.add_edge(START, "agent").compile(checkpointer=self.saver)

    def shaped(self, shape: str) -> Any:
        return self.graph() if shape == "root" else self.nested()

    def lose(self, least: int = 0) -> None:
        """Remove all checkpoints except the first `least`, as if never stored."""
        store, engine = self.saver.engine.session.store, self.saver.engine
        nodes = engine.run(store.read_graph("t")).nodes
        engine.run(store.remove_entries("t", {node.stamp for node in nodes[least:]}, {}))
        engine.session.memo.forget_thread("t")

    def count(self) -> int:
        return len(self.saver.engine.run(self.saver.engine.session.store.read_graph("t")).nodes)


@pytest.fixture(params=BACKENDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        world = World(saver)
        yield world
        world.cache.close()


def told(text: str) -> Any:
    return {"messages": [HumanMessage(text)]}


async def tell(world: World, face: str, text: str, graph: Any = None, **options: Any) -> str:
    """Run one turn, and return the text of its last tool message."""
    result = await run(graph or world.graph(), face, told(text), CONFIG, **options)
    return str(last_of(result).text)


def receipts(result: Any) -> list[str]:
    return sorted(each.text for each in result["messages"] if isinstance(each, ToolMessage))


def last_of(result: Any) -> ToolMessage:
    return next(each for each in reversed(result["messages"]) if isinstance(each, ToolMessage))


# -- different calls ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["root", "nested"])
@durabilities
@faces
async def test_a_second_equal_payment_is_made(world: World, face: str, durability: Any, shape: str) -> None:
    for day in range(1, 4):
        said = await tell(world, face, "pay bob 10", world.shaped(shape), durability=durability)
        assert said == f"receipt {day} for bob"
    assert len({call.key for call in world.saver.tools.calls("t")}) == 3


@pytest.mark.parametrize("shape", ["root", "nested"])
@durabilities
@faces
async def test_a_polling_tool_is_called_until_it_has_finished(
    world: World, face: str, durability: Any, shape: str
) -> None:
    for turn in (1, 2):
        assert await tell(world, face, "poll", world.shaped(shape), durability=durability) == "finished"
        assert world.polls == 3 * turn


@faces
async def test_two_equal_calls_of_one_message_are_both_made(world: World, face: str) -> None:
    result = await run(world.graph(), face, told("pay bob twice"), CONFIG)
    assert sorted(receipts(result)) == ["receipt 1 for bob", "receipt 2 for bob"]


@faces
async def test_equal_calls_before_and_after_a_question_are_both_made(world: World, face: str) -> None:
    """The first call counts as used: its writes are stored, so it is not repeated."""
    pay = world.cache.tool(world.tools()[0])

    async def ask(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(str(interrupt("may I?")))]}

    def act(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(pay.invoke({"to": "bob"}))]}

    builder = StateGraph(MessagesState).add_node("ask", ask).add_node("act", act).add_node("again", act)
    builder.add_edge(START, "ask").add_edge(START, "act").add_edge(["ask", "act"], "again")
    graph = builder.compile(checkpointer=world.saver)
    asked = await run(graph, "async", told("go"), CONFIG)
    assert asked[ASKED]
    assert len(world.paid) == 1
    await resume(graph, "async", "yes", CONFIG)
    assert len(world.paid) == 2


# -- the same call under another name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["root", "nested"])
@durabilities
@faces
async def test_a_payment_is_not_repeated_if_its_checkpoint_was_lost(
    world: World, face: str, durability: Any, shape: str
) -> None:
    graph = world.shaped(shape)
    await tell(world, face, "pay ada 10", graph, durability=durability)
    before = world.count()
    world.ends["after"] = Killed()
    with pytest.raises(Killed):
        await run(graph, face, told("pay bob 10"), CONFIG, durability=durability)
    world.lose(before)
    result = await run(graph, face, told("pay bob 10"), CONFIG, durability=durability)
    assert last_of(result).text == "receipt 2 for bob"
    assert is_replay(last_of(result))
    assert world.paid == ["ada", "bob"]
    assert await tell(world, face, "pay bob 10", graph, durability=durability) == "receipt 3 for bob"


@durabilities
@faces
async def test_two_equal_payments_are_not_repeated_if_their_checkpoint_was_lost(
    world: World, face: str, durability: Any
) -> None:
    """Each result answers one call, and the third payment is made."""
    world.ends["after"] = Killed()
    with pytest.raises(Killed):
        await run(world.graph(), face, told("pay bob twice"), CONFIG, durability=durability)
    world.lose()
    result = await run(world.graph(), face, told("pay bob twice"), CONFIG, durability=durability)
    assert sorted(receipts(result)) == ["receipt 1 for bob", "receipt 2 for bob"]
    assert await tell(world, face, "pay bob 10", durability=durability) == "receipt 3 for bob"


@faces
async def test_a_lost_result_answers_only_one_call(world: World, face: str) -> None:
    world.ends["after"] = Killed()
    with pytest.raises(Killed):
        await run(world.graph(), face, told("pay bob 10"), CONFIG)
    world.lose()
    result = await run(world.graph(), face, told("pay bob twice"), CONFIG)
    assert sorted(is_replay(each) for each in result["messages"] if isinstance(each, ToolMessage)) == [False, True]
    assert len(world.paid) == 2


@faces
async def test_a_payment_is_not_repeated_after_several_losses(world: World, face: str) -> None:
    for _ in range(3):
        world.ends["after"] = Killed()
        with pytest.raises(Killed):
            await run(world.graph(), face, told("pay bob 10"), CONFIG)
        world.lose()
    assert await tell(world, face, "pay bob 10") == "receipt 1 for bob"
    assert await tell(world, face, "pay bob 10") == "receipt 2 for bob"


@durabilities
@faces
async def test_a_doubt_is_found_if_its_checkpoint_was_lost(world: World, face: str, durability: Any) -> None:
    world.ends["pay"] = Killed()
    with pytest.raises(Killed):
        await run(world.graph(), face, told("pay bob 10"), CONFIG, durability=durability)
    world.cache.close()
    world.lose()
    with pytest.raises(ToolOutcomeUnknown) as doubt:
        await run(world.graph(), face, told("pay bob 10"), CONFIG, durability=durability)
    assert world.paid == ["bob"]
    (unknown,) = world.saver.tools.calls("t")
    assert unknown.state == "unknown"
    world.cache.settle("t", doubt.value.key, "done", "paid")
    result = await run(world.graph(), face, None, CONFIG, durability=durability)
    assert last_of(result).text == "paid"
    assert await tell(world, face, "pay bob 10", durability=durability) == "receipt 2 for bob"


def test_a_doubt_is_found_by_a_short_key(world: World) -> None:
    world.ends["pay"] = Killed()
    with pytest.raises(Killed):
        world.graph().invoke(told("pay bob 10"), CONFIG)
    world.cache.close()
    with pytest.raises(ToolOutcomeUnknown, match=r"keel settle [0-9a-f]{6}\.[0-9a-f]{5} done ") as doubt:
        world.graph().invoke(None, CONFIG)
    assert "--thread t` if it happened, `keel settle " in str(doubt.value)
    (words,) = re.findall(r"cache\.settle\((.*?)\)", str(doubt.value))
    with pytest.raises(InvalidInput):  # as printed, the call lists all decisions, and must not act
        world.cache.settle(*literal_eval(words))
    assert [call.state for call in world.saver.tools.calls("t")] == ["unknown"]
    stem, _, own = doubt.value.key.partition(".")
    world.cache.settle("t", f"{stem[:6]}.{own[:5]}", "retry")
    world.graph().invoke(None, CONFIG)
    world.graph().invoke(told("pay bob 10"), CONFIG)
    assert len(world.paid) == 3
    with pytest.raises(InvalidInput, match="more than one"):
        world.cache.settle("t", stem[:6], "retry")


def test_each_attempt_at_a_lost_call_has_the_same_idempotency_key(world: World) -> None:
    keys: list[str] = []

    def pay(to: str, once: Annotated[str, InjectedToolArg] = "") -> str:
        """Pay."""
        keys.append(once)
        world.end("pay")
        return "paid"

    cache = ToolCache(world.saver, default=ToolPolicy(unknown="retry", idempotency_argument="once"))
    it = cache.tool(StructuredTool.from_function(pay, name="pay"))
    builder = StateGraph(MessagesState).add_node("pay", lambda state: {"messages": it.invoke({"to": "bob"})})
    graph = builder.add_edge(START, "pay").compile(checkpointer=world.saver)
    for end in (Killed(), ValueError(), Killed()):
        world.ends["pay"] = end
        with pytest.raises(type(end)):
            graph.invoke(told("go"), CONFIG)
        cache.close()
        world.lose()
    for _ in range(2):
        graph.invoke(told("go"), CONFIG)
    assert len(keys) == 5
    assert len(set(keys[:4])) == 1
    assert keys[4] != keys[3]


@faces
async def test_a_resumed_step_finds_a_call_of_the_thread_scope(world: World, face: str) -> None:
    """Earlier versions kept every call for the thread; a resumed step must find it."""
    old = World(world.saver, ToolPolicy(scope="thread"), paid=world.paid, ends={"after": Killed()})
    with pytest.raises(Killed):
        await run(old.graph(), face, told("pay bob 10"), CONFIG, durability="sync")
    world.lose(world.count() - 1)  # the step of the tools is not finished
    assert last_of(await run(world.graph(), face, None, CONFIG)).text == "receipt 1 for bob"
    assert await tell(world, face, "pay bob 10") == "receipt 2 for bob"


@faces
async def test_a_replay_answers_each_equal_call_with_its_own_result(world: World, face: str) -> None:
    await tell(world, face, "poll")
    replay = await to_thread(world.saver.provenance.replay, world.graph(), CONFIG)
    assert world.polls == 3
    assert replay.ended is None


# -- other paths through the history -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["root", "nested"])
@durabilities
@faces
async def test_a_call_after_a_rewind_is_answered_from_the_ledger(
    world: World, face: str, durability: Any, shape: str
) -> None:
    graph = world.shaped(shape)
    await tell(world, face, "pay ada 10", graph, durability=durability)
    before = await to_thread(graph.get_state, CONFIG)
    await tell(world, face, "pay bob 10", graph, durability=durability)
    await to_thread(world.saver.rewind, before.config)
    assert await tell(world, face, "pay bob 10", graph, durability=durability) == "receipt 2 for bob"
    assert await tell(world, face, "pay bob 10", graph, durability=durability) == "receipt 3 for bob"
    assert world.paid == ["ada", "bob", "bob"]


@faces
async def test_a_rewind_to_after_a_call_counts_it_as_used(world: World, face: str) -> None:
    """The twin of a checkpoint, and a twin of that, know the calls of the original."""
    for durability in DURABILITIES:
        await tell(world, face, "pay bob 10", durability=durability)
        for _ in range(2):
            state = await to_thread(world.graph().get_state, CONFIG)
            await to_thread(world.saver.rewind, state.config)
    assert len(world.paid) == 3


@durabilities
@faces
async def test_a_replay_by_langgraph_repeats_no_payment(world: World, face: str, durability: Any) -> None:
    await tell(world, face, "pay bob 10", durability="sync")
    history = await to_thread(lambda: list(world.graph().get_state_history(CONFIG)))
    for state in history:
        if state.next:
            await run(world.graph(), face, None, state.config, durability=durability)
    assert world.paid == ["bob"]


@faces
async def test_an_abandoned_branch_still_knows_its_calls(world: World, face: str) -> None:
    """Another payment on the first branch is a new call, though the rewind reused one."""
    graph = world.graph()
    await tell(world, face, "pay ada 10")
    before = await to_thread(graph.get_state, CONFIG)
    await tell(world, face, "pay bob 10")
    after = await to_thread(graph.get_state, CONFIG)
    await to_thread(world.saver.rewind, before.config)
    await tell(world, face, "pay bob 10")
    await to_thread(world.saver.rewind, after.config)
    assert await tell(world, face, "pay bob 10") == "receipt 3 for bob"


@faces
async def test_a_call_of_a_skipped_step_is_not_repeated(world: World, face: str) -> None:
    """The step of the payment did not end, and the user asked again."""
    world.ends["after"] = Killed()
    with pytest.raises(Killed):
        await run(world.graph(), face, told("pay bob 10"), CONFIG, durability="sync")
    world.lose(world.count() - 1)  # the step of the tools is not finished
    assert await tell(world, face, "pay bob 10") == "receipt 1 for bob"
    assert await tell(world, face, "pay bob 10") == "receipt 2 for bob"


@durabilities
@faces
async def test_a_pruned_payment_does_not_answer_a_new_one(world: World, face: str, durability: Any) -> None:
    await tell(world, face, "pay bob 10", durability=durability)
    label = (await to_thread(world.graph().get_state, CONFIG)).config
    for policy in (Retention(last=1), Retention(last=2)):
        await tell(world, face, "pay bob 10", durability=durability)
        await tell(world, face, "poll", durability=durability)
        await to_thread(world.saver.labels.set, label, "kept")
        await to_thread(world.saver.prune, ["t"], strategy=policy)
    assert await tell(world, face, "pay bob 10", durability=durability) == "receipt 4 for bob"


# -- concurrent calls --------------------------------------------------------------------------------------------------


def test_a_call_waits_for_an_equal_call_that_is_still_running(world: World) -> None:
    """The process seemed dead but was alive, or a request was sent twice."""
    has_begun, may_end = threading.Event(), threading.Event()
    other = World(world.saver, paid=world.paid)
    end = other.end

    def wait(where: str) -> None:
        end(where)
        if where == "pay":
            has_begun.set()
            may_end.wait(30)

    other.end = wait  # type: ignore[method-assign]

    def begin() -> None:
        with suppress(KeelError):  # the checkpoint that it continues from is removed
            # Store all checkpoints before the tool runs: a later one would become the head of the second run.
            other.graph().invoke(told("pay bob 10"), CONFIG, durability="sync")

    first = threading.Thread(target=begin)
    first.start()
    assert has_begun.wait(30)
    world.lose()
    said: list[Any] = []
    has_asked = threading.Event()
    # Wait until the second run has asked. Otherwise it might continue from a checkpoint of the first.
    again = tapped(world, SimpleNamespace(sending=lambda _: has_asked.set(), replied=lambda *_: None))
    second = threading.Thread(target=lambda: said.append(again.graph().invoke(told("pay bob 10"), CONFIG)))
    second.start()
    assert has_asked.wait(30)
    may_end.set()
    second.join(30)
    first.join(30)
    assert last_of(said[0]).text == "receipt 1 for bob"
    assert world.paid == ["bob"]


# -- costs and failures ------------------------------------------------------------------------------------------------


def tapped(world: World, tap: Any) -> World:
    """The same world, with a tap on the ledger's requests only."""
    other = World(world.saver, paid=world.paid)
    other.cache = ToolCache(with_tap(world.saver, tap))
    return other


def test_a_miss_takes_three_trips_and_a_hit_takes_one(world: World) -> None:
    trips = Trips()
    other = tapped(world, trips)
    pay = other.cache.tool(other.tools()[0])
    taken: list[int] = []

    def act(state: MessagesState) -> Any:
        trips.taken()
        pay.invoke({"to": state["messages"][-1].text})
        taken.append(trips.taken())
        world.end("act")

    graph = StateGraph(MessagesState).add_node("act", act).add_edge(START, "act").compile(checkpointer=world.saver)
    graph.invoke(told("ada"), CONFIG)  # makes the secret
    world.ends["act"] = Killed()
    with pytest.raises(Killed):
        graph.invoke(told("bob"), CONFIG, durability="sync")
    graph.invoke(None, CONFIG)
    assert taken[1:] == [3, 1]


@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
@pytest.mark.parametrize("state", ["done", "unknown"])
def test_a_store_failure_while_finding_a_lost_call_repeats_no_payment(
    world: World, state: str, lost_reply: bool
) -> None:
    """If any request fails, the payment is not repeated: it is answered or in doubt."""
    for trip in count():
        world.ends["after" if state == "done" else "pay"] = Killed()
        with pytest.raises(Killed):
            world.graph().invoke(told("pay bob 10"), CONFIG)
        world.cache.close()
        world.lose()
        fault = Fault(trip, lost_reply=lost_reply)
        other = tapped(world, fault)
        with suppress(Injected, ToolOutcomeUnknown):
            other.graph().invoke(told("pay bob 10"), CONFIG)
        other.cache.close()
        assert outcome(world) in (["receipt 1 for bob", "doubt"] if state == "done" else ["doubt"])
        assert world.paid == ["bob"]
        if not fault.fired:
            return
        world.saver.delete_thread("t")
        world.paid.clear()


def outcome(world: World) -> str:
    try:
        return last_of(world.graph().invoke(None, CONFIG)).text
    except ToolOutcomeUnknown:
        return "doubt"
