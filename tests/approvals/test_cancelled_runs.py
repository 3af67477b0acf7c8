"""A run that is cancelled while it stores something does not block its thread.

The next message is answered. A subgraph does not wait for the run around it.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from threading import Event, Thread, local
from time import monotonic
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from support.approvals.resuming import runs_of
from support.places import Place

from langgraph_keel import InvalidConfig, KeelSaver, MemorySaver
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.runs.hook import RunClaims, held_threads

# If a run is cancelled twice, LangGraph leaves tasks behind that are unfinished or never started.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object arun_with_retry:pytest.PytestUnraisableExceptionWarning"
)
CONFIG: Any = {"configurable": {"thread_id": "t"}}
PATIENCE = 20
"""Timeout of each wait in a test, in seconds."""


class State(TypedDict, total=False):
    a: Annotated[list[str], operator.add]


class Hold(Hook):
    """Hold one checkpoint back until a later run polls, or stores one itself.

    The held checkpoint is stored then, even if the caller no longer waits, as by a server that has received the
    request.
    """

    def __init__(self, saver: KeelSaver, step: int) -> None:
        self._step = step
        self._here = local()
        self.is_under_way, self.is_released, self.is_stored = Event(), Event(), Event()
        self.is_left = False
        engine = saver.engine
        self._driver, self._async_driver = engine.driver, engine.async_driver
        self._late: set[asyncio.Future[Any]] = set()

    def before_put(self, session: Session, put: Put) -> None:
        self._here.put = put

    def _take(self) -> Put | None:
        put, self._here.put = getattr(self._here, "put", None), None
        return put

    def _is_to_hold(self, put: Put | None) -> bool:
        if put is None or put.metadata.get("step") != self._step or self.is_under_way.is_set():
            return False
        self.is_under_way.set()
        return True

    def _is_later(self, put: Put | None) -> bool:
        return self.is_left and put is not None and put.metadata.get("source") in ("input", "update")

    def look(self) -> float:
        """Serve as the clock of the claims, which a waiting run polls."""
        if self.is_left:
            self.is_released.set()
        return monotonic()

    def send(self, request: Any) -> Any:
        put = self._take()
        if self._is_to_hold(put):
            assert self.is_released.wait(PATIENCE)
            reply = self._driver.send(request)
            self.is_stored.set()
            return reply
        if self._is_later(put):
            self.is_released.set()
            assert self.is_stored.wait(PATIENCE)
        return self._driver.send(request)

    async def asend(self, request: Any) -> Any:
        put = self._take()
        if self._is_to_hold(put):
            late = asyncio.ensure_future(self._store_late(request))
            self._late.add(late)
            return await asyncio.shield(late)
        if self._is_later(put):
            self.is_released.set()
            await until(self.is_stored)
        return await self._async_driver.send(request)

    async def _store_late(self, request: Any) -> Any:
        await until(self.is_released)
        reply = await self._async_driver.send(request)
        self.is_stored.set()
        return reply


class Sends:
    """A driver made of a function."""

    def __init__(self, send: Callable[[Any], Any]) -> None:
        self.send = send


async def until(event: Event) -> None:
    async with asyncio.timeout(PATIENCE):
        while not event.is_set():
            await asyncio.sleep(0)


class World:
    """A graph of two steps, whose first run is stopped in the second.

    A checkpoint is being stored at that moment.
    """

    def __init__(self, saver: KeelSaver, durability: str) -> None:
        self.durability: Any = durability
        self.hold = hold = Hold(saver, step=1)
        engine = saver.engine
        claims = engine.session.hooks.find(RunClaims)
        assert claims is not None
        claims.timer = hold.look
        session = replace(engine.session, hooks=Hooks([*engine.session.hooks.all, hold]), driver=Sends(hold.send))
        self.saver = with_engine(saver, replace(engine, session=session, async_driver=Sends(hold.asend)))
        self.is_in_second, self.may_end = Event(), Event()

        def second(state: State) -> State:
            if not hold.is_left:
                self.is_in_second.set()
                get_stream_writer()("in the second step")
                assert self.may_end.wait(PATIENCE)
            return {"a": ["2"]}

        async def asecond(state: State) -> State:
            if not hold.is_left:
                self.is_in_second.set()
                get_stream_writer()("in the second step")
                await asyncio.Event().wait()
            return {"a": ["2"]}

        self.graph, self.agraph = (
            StateGraph(State)
            .add_node("first", lambda state: {"a": ["1"]})
            .add_node("second", each)
            .add_edge(START, "first")
            .add_edge("first", "second")
            .compile(checkpointer=self.saver)
            for each in (second, asecond)
        )

    def stream(self) -> AsyncIterator[Any]:
        return self.agraph.astream({"a": ["u0"]}, CONFIG, durability=self.durability, stream_mode="custom")

    async def run(self) -> None:
        async for _ in self.stream():
            pass

    async def wait(self) -> None:
        """Wait until the checkpoint is being stored.

        With `durability="exit"`, wait until the second step runs.
        """
        await until(self.is_in_second if self.durability == "exit" else self.hold.is_under_way)


# -- ways to stop a run ------------------------------------------------------------------------------------------------


async def by_one_cancel(world: World) -> None:
    task = asyncio.create_task(world.run())
    await world.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def by_a_timeout(world: World) -> None:
    async def run() -> None:
        async with limit:
            await world.run()

    limit = asyncio.timeout(None)
    task = asyncio.create_task(run())
    await world.wait()
    limit.reschedule(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await task


async def by_two_cancels(world: World) -> None:
    """Cancel like a server whose patience with a run is limited."""
    task = asyncio.create_task(world.run())
    await world.wait()
    task.cancel()
    await until(world.hold.is_under_way)
    while not task.done():
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()


async def by_a_scope(world: World) -> None:
    """Cancel like Starlette after a disconnect: its scope cancels repeatedly."""
    async with anyio.create_task_group() as group:
        group.start_soon(world.run)
        await world.wait()
        group.cancel_scope.cancel()


async def by_break(world: World) -> None:
    async for _ in world.stream():
        await world.wait()
        break


Way = Callable[[World], Awaitable[None]]
WAYS = [
    *[(way, "sync") for way in (by_one_cancel, by_a_timeout, by_a_scope)],
    *[(way, "async") for way in (by_two_cancels, by_a_scope, by_break)],
    (by_two_cancels, "exit"),
]
each_way = pytest.mark.parametrize(("stop", "durability"), WAYS)


@pytest.fixture
def world(saver: KeelSaver, durability: str) -> World:
    return World(saver, durability)


@each_way
async def test_the_next_message_is_answered_after_a_cancellation(world: World, stop: Way) -> None:
    await stop(world)
    world.hold.is_left = True
    asked = await world.agraph.ainvoke({"a": ["u1"]}, CONFIG, durability=world.durability)
    assert asked == {"a": ["u0", "1", "u1", "1", "2"]}
    await until(world.hold.is_stored)
    assert (await world.agraph.aget_state(CONFIG)).values == asked


@each_way
async def test_the_state_can_be_updated_after_a_cancellation(world: World, stop: Way) -> None:
    await stop(world)
    world.hold.is_left = True
    await world.agraph.aupdate_state(CONFIG, {"a": ["stopped"]}, as_node="second")
    assert (await world.agraph.aget_state(CONFIG)).values == {"a": ["u0", "1", "stopped"]}


@pytest.mark.parametrize("durability", ["async", "exit"])
def test_a_closed_sync_stream_does_not_block_its_thread(world: World) -> None:
    stream: Any = world.graph.stream({"a": ["u0"]}, CONFIG, durability=world.durability, stream_mode="custom")
    assert next(stream) == "in the second step"
    closing = Thread(target=stream.close)
    world.may_end.set()
    closing.start()
    assert world.hold.is_under_way.wait(PATIENCE)
    world.hold.is_left = True
    assert world.graph.invoke({"a": ["u1"]}, CONFIG)["a"][-3:] == ["u1", "1", "2"]
    closing.join(PATIENCE)
    assert world.graph.get_state(CONFIG).values["a"][:2] == ["u0", "1"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_a_cancelled_run_ends_its_turn_when_all_writes_are_stored(place: Place, durability: str) -> None:
    """Otherwise a run that waits its turn elsewhere would start too early."""
    with place.open(on_busy="wait") as saver, place.open(on_busy="wait") as other:
        world = World(saver, durability)
        claims = other.engine.session.hooks.find(RunClaims)
        assert claims is not None
        claims.timer = world.hold.look
        await by_two_cancels(world)
        world.hold.is_left = True
        graph = world.agraph.copy({"checkpointer": other})
        assert await graph.ainvoke({"a": ["u1"]}, CONFIG) == {"a": ["u0", "1", "u1", "1", "2"]}
    assert held_threads == {}


@pytest.mark.parametrize("durability", ["async"])
@pytest.mark.parametrize("thread_id", [["a", "b"], ("a",), {"a": 1}, 1.5, True], ids=repr)
async def test_a_thread_id_must_be_text(world: World, thread_id: Any) -> None:
    """LangGraph converts any thread id to text."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    with pytest.raises(InvalidConfig, match="thread_id must be a str"):
        await world.agraph.ainvoke({"a": ["u"]}, config)
    with pytest.raises(InvalidConfig, match="thread_id must be a str"):
        world.graph.invoke({"a": ["u"]}, config)


def test_a_subgraph_does_not_wait_for_the_checkpoint_of_the_run_around_it() -> None:
    has_begun, seen = Event(), list[bool]()

    class Slow(Hook):
        def before_put(self, session: Session, put: Put) -> None:
            seen.append(bool(put.address.checkpoint_ns) or has_begun.wait(PATIENCE))

    def think(state: State) -> State:
        has_begun.set()
        return {"a": ["1"]}

    team = StateGraph(State).add_node("think", think).add_edge(START, "think").compile()
    with MemorySaver(extra_hooks=[Slow()]) as saver:
        runs_of(saver).patience = 2 * PATIENCE
        graph = StateGraph(State).add_node("team", team).add_edge(START, "team").compile(checkpointer=saver)
        assert graph.invoke({"a": ["u0"]}, CONFIG) == {"a": ["u0", "u0", "1"]}
    assert len(seen) > 3
    assert all(seen)
