"""Channels that are never stored: graphs run as usual, and none is in the store."""

from __future__ import annotations

from asyncio import to_thread
from operator import add
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.retention.people import config, store
from support.savers import each_backend, each_face

from langgraph_keel import InvalidInput, MemorySaver
from langgraph_keel._langgraph import NO_WRITES
from langgraph_keel.engine.events import Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Session
from langgraph_keel.testing.faults import Counter, with_tap

__all__ = ["store"]
SECRET = "zq4111-1111-1111"


@pytest.fixture(autouse=True)
def _no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store values uncompressed, so that a search finds them."""
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.WORTHWHILE", 1 << 40)
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.SMALL", 0)


class State(TypedDict, total=False):
    scratch: Annotated[list[str], add]
    seen: Annotated[list[str], add]
    asks: bool


def see(name: str) -> Any:
    """A node that notes how much of the channel it sees, and writes to it."""

    def node(state: State) -> State:
        return {"seen": [f"{name} {len(state.get('scratch', []))}"], "scratch": [SECRET]}

    return node


def ask(state: State) -> State:
    if state.get("asks"):
        interrupt("well?")
    return {"seen": [f"ask {len(state.get('scratch', []))}"]}


def graph(saver: Any) -> Any:
    """Two steps, a subgraph, two tasks that `Send` starts, and a question."""
    inner = StateGraph(State).add_node("in", see("in")).add_edge(START, "in").compile()
    builder = StateGraph(State)
    builder.add_node("first", see("first"))
    builder.add_node("second", lambda state: {"seen": [f"second {len(state['scratch'])}"]})
    builder.add_node("inner", lambda state: {"seen": inner.invoke({"scratch": state["scratch"]})["seen"]})
    builder.add_node("sent", see("sent"))
    builder.add_node("ask", ask)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", "inner")
    builder.add_conditional_edges("inner", lambda state: [Send("sent", {**state, "seen": []})] * 2, ["sent"])
    builder.add_edge("sent", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


async def run(face: str, agent: Any, given: Any, thread: Any, **options: Any) -> Any:
    if face == "sync":
        return await to_thread(agent.invoke, given, thread, **options)
    return await agent.ainvoke(given, thread, **options)


SEEN = ["first 1", "second 2", "in 2", "sent 2", "sent 2", "ask 4"]


@each_backend
@each_face
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_an_ephemeral_channel_is_visible_in_a_run_but_not_stored(
    store: Any, backend: str, face: str, durability: Any
) -> None:
    with store.open(ephemeral=["scratch"]) as saver, store.open() as plain:
        agent, thread = graph(saver), config("t")
        given = {"scratch": [SECRET], "asks": False}
        ended = await run(face, agent, given, thread, durability=durability)
        assert (ended["seen"], ended["scratch"]) == (SEEN, [SECRET] * 4)
        assert SECRET.encode() not in await to_thread(store.raw)
        for found in await to_thread(lambda: list(plain.list({"configurable": {"thread_id": "t"}}))):
            kept = found.checkpoint
            assert "scratch" not in {*kept["channel_values"], *kept["channel_versions"]}
            assert "scratch" not in {name for seen in kept["versions_seen"].values() for name in seen}
            assert "scratch" not in (kept["updated_channels"] or ())
            assert all(channel != "scratch" for _, channel, _ in found.pending_writes)
        state = await to_thread(agent.get_state, thread)
        assert state.values == {"seen": SEEN, "asks": False, "scratch": []}
        again = await run(face, agent, {"asks": False}, thread, durability=durability)
        assert again["seen"] == [*SEEN, "first 0", "second 1", "in 1", "sent 1", "sent 1", "ask 3"]
        assert await to_thread(graph(plain).invoke, given, config("plain")) == ended
        assert SECRET.encode() in await to_thread(store.raw)  # the search works


@each_backend
@each_face
async def test_a_resume_starts_with_an_empty_ephemeral_channel(store: Any, backend: str, face: str) -> None:
    with store.open(ephemeral=["scratch"]) as saver:
        agent, thread = graph(saver), config("t")
        await run(face, agent, {"scratch": [SECRET], "asks": True}, thread)
        ended = await run(face, agent, Command(resume="yes", update={"scratch": [SECRET]}), thread)
        assert ended["seen"] == [*SEEN[:-1], "ask 1"]
        await to_thread(agent.update_state, thread, {"scratch": [SECRET], "seen": ["by hand"]}, "ask")
        assert (await to_thread(agent.get_state, thread)).values["seen"][-1] == "by hand"
        assert SECRET.encode() not in await to_thread(store.raw)


class Told(Hook):
    """Signals when the writes of a finished task are stored."""

    def __init__(self) -> None:
        self.stored = Event()

    def after_writes(self, session: Session, writes: Writes) -> None:
        """Set the event."""
        if any(channel == "seen" for channel, _ in writes.writes):
            self.stored.set()


@each_backend
def test_a_finished_task_is_not_repeated_after_a_crash(store: Any, backend: str) -> None:
    """The pitfall on the page: its writes to the channel are lost, the others are not."""
    ran, told = list[str](), Told()

    def good(state: State) -> State:
        ran.append("good")
        return {"scratch": [SECRET], "seen": ["good"]}

    def bad(state: State) -> State:
        ran.append("bad")
        if ran.count("bad") == 1:
            assert told.stored.wait(60)
            raise OSError("the line is cut")
        return {"seen": ["bad"]}

    builder = StateGraph(State).add_node("good", good).add_node("bad", bad)
    builder.add_node("last", lambda state: {"seen": [f"last {len(state.get('scratch', []))}"]})
    builder.add_edge(START, "good").add_edge(START, "bad").add_edge(["good", "bad"], "last")
    with store.open(ephemeral=["scratch"], extra_hooks=[told]) as saver:
        agent = builder.compile(checkpointer=saver)
        with pytest.raises(OSError, match="cut"):
            agent.invoke({"scratch": [SECRET]}, config("t"))
        assert SECRET.encode() not in store.raw()
        assert sorted(agent.invoke(None, config("t"))["seen"]) == ["bad", "good", "last 0"]
        assert ran.count("good") == 1


def test_a_task_that_wrote_only_ephemeral_channels_counts_as_done() -> None:
    with MemorySaver(ephemeral={"scratch"}) as saver:
        place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
        checkpoint: Any = {"v": 4, "id": "1", "ts": "2026", "channel_values": {"scratch": 1, "n": 2}}
        checkpoint |= {"channel_versions": {"scratch": 1, "n": 1}, "versions_seen": {}}
        counter = Counter()
        tapped = with_tap(saver, counter)
        tapped.put({"configurable": {"thread_id": "t"}}, checkpoint, {"source": "loop", "step": 1}, {"scratch": 1})
        tapped.put_writes(place, [("scratch", SECRET)], "task")
        assert counter.count == 2
        found = saver.get_tuple(place)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": 2}
        assert checkpoint["channel_values"] == {"scratch": 1, "n": 2}  # the run's own checkpoint is unchanged
        assert found.pending_writes == [("task", NO_WRITES, None)]


def test_ephemeral_channels_of_a_tenant_are_not_stored() -> None:
    with MemorySaver(ephemeral=["scratch"]) as saver:
        agent = graph(saver.for_tenant("acme"))
        agent.invoke({"scratch": [SECRET], "asks": False}, config("t"))
        assert agent.get_state(config("t")).values["scratch"] == []


@pytest.mark.parametrize("name", ["", "__start__", "__pregel_tasks", "__interrupt__", "branch:to:a", "join:a+b:c"])
def test_reserved_channel_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"ephemeral names '{name.replace('+', '.')}'"):
        MemorySaver(ephemeral=["scratch", name])


@pytest.mark.parametrize("names", ["scratch", [1], None, b"scratch", 7])
def test_ephemeral_must_be_a_list_of_names(names: Any) -> None:
    with pytest.raises(InvalidInput, match="ephemeral must be a list of names of channels"):
        MemorySaver(ephemeral=names)
