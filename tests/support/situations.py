"""Every situation of a thread, created by its real cause, and its reported status."""

from __future__ import annotations

import asyncio
import os
import re
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, GraphRecursionError
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

import langgraph_keel
from langgraph_keel import KeelSaver, MemorySaver, ThreadStatus, ToolCache, ToolOutcomeUnknown
from langgraph_keel.recovery.recover import Look, Recovery
from langgraph_keel.runs.hook import RunClaims
from langgraph_keel.runs.worker import RetryList
from support.log_graphs import State
from support.places import Place
from support.races import context
from support.tool_graphs import Killed

PATIENCE = 600
"""Maximum wait for another process, in seconds."""
Face = Literal["sync", "async"]
INPUT: Mapping[str, Any] = {"log": []}
CALL = AIMessage("", id="1", tool_calls=[{"name": "wire", "args": {"amount": 3}, "id": "c"}])


class Broken(Exception):
    """The error of a failing node."""


def fail(state: State) -> Any:
    raise Broken("no such order")


def pay(state: State) -> State:
    return {"log": ["paid"]}


def ask(state: State) -> State:
    return {"log": [interrupt("pay?")]}


def graph_of(saver: Any, node: Any = pay, route: Any = None, **options: Any) -> Any:
    """Return a graph that looks, and pays by this node, after an optional router."""
    builder = StateGraph(State).add_node("look", lambda state: {"log": [CALL]}).add_node("pay", node)
    builder.add_edge(START, "look")
    if route is None:
        builder.add_edge("look", "pay")
    else:
        builder.add_conditional_edges("look", route, ["pay"])
    return builder.compile(checkpointer=saver, **options)


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id, "user_id": thread_id}}


def live(
    place: Place, options: Mapping[str, Any], thread_id: str, given: Any, ends: str, durability: Any, told: Connection
) -> None:
    """Run a graph in another process, which is held in the paying node, or dies there."""

    def held(state: State) -> State:
        if ends == "dies":
            os._exit(9)
        told.send("paying")
        told.recv()
        return {"log": ["paid"]}

    with place.open(**options) as saver:
        graph_of(saver, held).invoke(given, config_of(thread_id), durability=durability)


class Stage:
    """Creates situations in a store, by one face.

    Args:
        place: The store.
        saver: A saver on it.
        face: The face that runs graphs.
        stack: Closing it ends all running graphs.
    """

    def __init__(self, place: Place, saver: KeelSaver, face: Face, stack: AsyncExitStack) -> None:
        self.place, self.saver, self.face, self.stack = place, saver, face, stack

    async def run(self, graph: Any, thread_id: str) -> None:
        """Run a graph with new input, to its end or until it stops."""
        given: Any = INPUT
        config, options = config_of(thread_id), {"durability": "sync"}
        if self.face == "sync":
            await to_thread(graph.invoke, given, config, **options)
        else:
            await graph.ainvoke(given, config, **options)

    async def stop(self, thread_id: str, saver: Any = None) -> Any:
        """Run a graph to a breakpoint before it pays; return that checkpoint's config."""
        graph = graph_of(saver or self.saver, interrupt_before=["pay"])
        await self.run(graph, thread_id)
        return (await to_thread(graph.get_state, {"configurable": {"thread_id": thread_id}})).config

    async def elsewhere(
        self, thread_id: str, *, dies: bool = False, given: Any = INPUT, durability: str = "sync", **options: Any
    ) -> None:
        """Run a graph in another process, until it pays, or dies instead."""
        ours, theirs = Pipe()
        args = (self.place, options, thread_id, given, "dies" if dies else "is held", durability, theirs)
        child = context().Process(target=live, args=args)
        await to_thread(child.start)
        theirs.close()
        if dies:
            await to_thread(child.join, PATIENCE)
            assert child.exitcode == 9
            return

        async def end() -> None:
            ours.send("go")
            await to_thread(child.join, PATIENCE)
            assert child.exitcode == 0

        assert await to_thread(ours.poll, PATIENCE)
        ours.recv()
        self.stack.push_async_callback(end)


# -- the situations ----------------------------------------------------------------------------------------------------


async def never_run(stage: Stage, name: str) -> None:
    return None


async def ended(stage: Stage, name: str) -> None:
    await stage.run(graph_of(stage.saver), name)


async def runs_here(stage: Stage, name: str) -> None:
    is_in, may_end = Event(), Event()

    def held(state: State) -> State:
        is_in.set()
        assert may_end.wait(PATIENCE)
        return {"log": ["paid"]}

    running = asyncio.create_task(stage.run(graph_of(stage.saver, held), name))

    async def end() -> None:
        may_end.set()
        await running

    assert await to_thread(is_in.wait, PATIENCE)
    stage.stack.push_async_callback(end)


async def runs_elsewhere(stage: Stage, name: str) -> None:
    await stage.elsewhere(name)


async def runs_elsewhere_claimed(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, on_busy="wait")


async def stopped(stage: Stage, name: str) -> None:
    await stage.stop(name)


async def cancelled(stage: Stage, name: str) -> None:
    """An `asyncio` task is cancelled, or a partly read stream is closed."""
    if stage.face == "sync":
        stream = graph_of(stage.saver).stream({"log": []}, config_of(name), durability="sync")
        await to_thread(next, stream)
        await to_thread(stream.close)
        return
    is_in = asyncio.Event()

    async def held(state: State) -> State:
        is_in.set()
        await asyncio.Event().wait()
        return {}

    running = asyncio.create_task(stage.run(graph_of(stage.saver, held), name))
    await asyncio.wait_for(is_in.wait(), PATIENCE)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def asks(stage: Stage, name: str) -> None:
    await stage.run(graph_of(stage.saver, ask), name)


async def decided(stage: Stage, name: str) -> None:
    await asks(stage, name)
    (request,) = await to_thread(stage.saver.approvals.pending, name)
    await to_thread(stage.saver.approvals.answer, request.id, value="yes", by="ann")


async def failed(stage: Stage, name: str) -> None:
    with suppress(Broken):
        await stage.run(graph_of(stage.saver, fail), name)


async def router_failed(stage: Stage, name: str) -> None:
    with suppress(Broken):
        await stage.run(graph_of(stage.saver, pay, fail), name)


async def in_doubt(stage: Stage, name: str) -> str:
    """A call was cut off, and the next run has found it so; return its key."""

    @tool
    def wire(amount: int) -> str:
        """Wire money."""
        raise Killed

    cache = ToolCache(stage.saver)
    node = ToolNode(
        [wire], messages_key="log", wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call
    )
    graph = graph_of(stage.saver, node)
    with suppress(Killed):
        await to_thread(graph.invoke, {"log": []}, config_of(name), durability="sync")
    try:
        await to_thread(graph.invoke, None, config_of(name), durability="sync")
    except ToolOutcomeUnknown as doubt:
        return doubt.key
    raise AssertionError("the call is in doubt")


async def settled(stage: Stage, name: str) -> None:
    key = await in_doubt(stage, name)
    await to_thread(ToolCache(stage.saver).settle, name, key, "done")


async def killed(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, dies=True)


async def killed_claimed(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, dies=True, on_busy="wait")


async def killed_again(stage: Stage, name: str) -> None:
    await killed_claimed(stage, name)
    await stage.elsewhere(name, dies=True, given=None)


async def killed_deciding(stage: Stage, name: str) -> None:
    await decided(stage, name)
    answer = await to_thread(stage.saver.approvals.resume, name)
    await stage.elsewhere(name, dies=True, given=answer)


async def forked(stage: Stage, name: str) -> None:
    at = await stage.stop(f"{name}, before")
    await to_thread(stage.saver.fork, at, name)


async def forked_decided(stage: Stage, name: str) -> None:
    await decided(stage, f"{name}, before")
    await to_thread(stage.saver.fork, {"configurable": {"thread_id": f"{name}, before"}}, name)


async def copied_decided(stage: Stage, name: str) -> None:
    await decided(stage, f"{name}, before")
    await to_thread(stage.saver.copy_thread, f"{name}, before", name)


async def branched(stage: Stage, name: str) -> None:
    await ended(stage, name)
    moments = await to_thread(lambda: list(stage.saver.timeline(name)))
    await to_thread(stage.saver.fork, next(each for each in moments if each.next == ("pay",)))


async def rewound(stage: Stage, name: str) -> None:
    await ended(stage, name)
    moments = await to_thread(lambda: list(stage.saver.timeline(name)))
    await to_thread(stage.saver.rewind, next(each for each in moments if each.next == ("pay",)))


async def copied(stage: Stage, name: str) -> None:
    await stage.stop(f"{name}, before")
    await to_thread(stage.saver.copy_thread, f"{name}, before", name)


async def copied_from_elsewhere(stage: Stage, name: str) -> None:
    with MemorySaver() as other:
        await stage.stop(name, other)
        await to_thread(other.moving.copy_to, stage.saver, [name])


async def imported(stage: Stage, name: str) -> None:
    other = InMemorySaver()
    await stage.stop(name, other)
    await to_thread(stage.saver.moving.import_from, other, [name])


async def erased(stage: Stage, name: str) -> None:
    await stage.stop(name)
    await to_thread(stage.saver.retention.erase, name)


# -- with marks --------------------------------------------------------------------------------------------------------


async def marked(stage: Stage) -> Stage:
    """Return a stage whose saver marks its checkpoints; the observing saver does not."""
    saver = await to_thread(stage.place.open, recoverable=True)
    stage.stack.push_async_callback(saver.aclose)
    return Stage(stage.place, saver, stage.face, stage.stack)


async def flush(saver: KeelSaver) -> None:
    """Wait for the writes that follow the end of an asynchronous run."""
    claims = saver.engine.session.hooks.find(RunClaims)
    assert claims is not None
    assert await to_thread(claims.keeper.flush, PATIENCE)


async def runs_elsewhere_marked(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, recoverable=True)


async def runs_beside_marked(stage: Stage, name: str) -> None:
    """Run with another saver of this process."""
    await runs_here(await marked(stage), name)


async def stopped_marked(stage: Stage, name: str) -> None:
    other = await marked(stage)
    await other.stop(name)
    await flush(other.saver)


async def cancelled_marked(stage: Stage, name: str) -> None:
    other = await marked(stage)
    await cancelled(other, name)
    await flush(other.saver)


async def drained(stage: Stage, name: str) -> None:
    other = await marked(stage)

    def route(state: State) -> str:
        assert other.saver.drain(grace=0) == (name,)
        return "pay"

    with suppress(GraphDrained):
        await other.run(graph_of(other.saver, route=route), name)
    await flush(other.saver)


async def cancelled_in_drain(stage: Stage, name: str) -> None:
    """The grace time has passed, and the process ends."""
    other = await marked(stage)
    is_in = Event()

    async def held(state: State) -> State:
        is_in.set()
        await asyncio.Event().wait()
        return {}

    running = asyncio.create_task(
        Stage(other.place, other.saver, "async", other.stack).run(graph_of(other.saver, held), name)
    )
    assert await to_thread(is_in.wait, PATIENCE)
    assert await other.saver.adrain(grace=0) == (name,)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await flush(other.saver)


async def asks_marked(stage: Stage, name: str) -> None:
    await asks(await marked(stage), name)


async def failed_marked(stage: Stage, name: str) -> None:
    await failed(await marked(stage), name)


async def failed_under_worker(stage: Stage, name: str) -> None:
    await killed_marked(stage, name)
    other = await marked(stage)
    (resumed,) = [each async for each in other.saver.arecover(graph_of(other.saver, fail), match=name, timeout=0)]
    assert isinstance(resumed.error, Broken)


async def killed_late(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, dies=True, durability="exit", recoverable=True)


async def out_of_steps(stage: Stage, name: str) -> None:
    other = await marked(stage)
    with suppress(GraphRecursionError):
        await other.run(graph_of(other.saver).with_config(recursion_limit=1), name)
    await flush(other.saver)


async def updated_marked(stage: Stage, name: str) -> None:
    other = await marked(stage)
    await to_thread(graph_of(other.saver).update_state, config_of(name), {"log": ["said"]}, as_node="look")


async def accepted(stage: Stage, name: str) -> None:
    other = await marked(stage)
    if stage.face == "sync":
        await to_thread(other.saver.accept, graph_of(other.saver), INPUT, config_of(name))
    else:
        await other.saver.aaccept(graph_of(other.saver), INPUT, config_of(name))


async def killed_marked(stage: Stage, name: str) -> None:
    await stage.elsewhere(name, dies=True, recoverable=True)


async def killed_marked_again(stage: Stage, name: str) -> None:
    await killed_marked(stage, name)
    await stage.elsewhere(name, dies=True, given=None, recoverable=True)


async def killed_after_breakpoint(stage: Stage, name: str) -> None:
    await stopped_marked(stage, name)
    await stage.elsewhere(name, dies=True, given=None, recoverable=True)


async def killed_before_breakpoint(stage: Stage, name: str) -> None:
    """A dead run left its claim; a later run without one has stopped at a breakpoint."""
    await killed_claimed(stage, name)
    await stopped_marked(stage, name)


SITUATIONS: Mapping[str, Callable[[Stage, str], Awaitable[Any]]] = {
    "never run": never_run,
    "its last run has ended": ended,
    "running in this process": runs_here,
    "running elsewhere, with a claim": runs_elsewhere_claimed,
    "running elsewhere, without one": runs_elsewhere,
    "at a breakpoint": stopped,
    "cancelled": cancelled,
    "asking": asks,
    "decided": decided,
    "failed": failed,
    "its router failed": router_failed,
    "a call is in doubt": in_doubt,
    "that call is settled": settled,
    "killed, with a claim": killed_claimed,
    "killed, without one": killed,
    "resumed, and killed again": killed_again,
    "its decision taken, and killed": killed_deciding,
    "forked to a thread of its own": forked,
    "forked when its question was decided": forked_decided,
    "has a branch beside it": branched,
    "rewound": rewound,
    "copied in its store": copied,
    "copied when its question was decided": copied_decided,
    "copied from another store": copied_from_elsewhere,
    "imported": imported,
    "erased": erased,
    "marked, running elsewhere": runs_elsewhere_marked,
    "marked, running in this process": runs_beside_marked,
    "marked, asking": asks_marked,
    "marked, failed": failed_marked,
    "marked, failed under a worker": failed_under_worker,
    "marked, at a breakpoint": stopped_marked,
    "marked, cancelled": cancelled_marked,
    "marked, drained": drained,
    "marked, cancelled after the grace time of a drain": cancelled_in_drain,
    "marked, out of steps": out_of_steps,
    "marked, updated": updated_marked,
    "marked, its input accepted": accepted,
    "marked, killed": killed_marked,
    'marked, killed before it stored anything (`durability="exit"`)': killed_late,
    "marked, resumed, and killed again": killed_marked_again,
    "marked, killed after a breakpoint": killed_after_breakpoint,
    "marked, at a breakpoint after a kill": killed_before_breakpoint,
}
"""Functions that create the situations, by thread id."""


# -- their reported status ---------------------------------------------------------------------------------------------


Row: TypeAlias = tuple[str, str, str, str]
CONTINUES = "yes"
"""The table's word for threads that a worker takes over."""


def row_of(found: ThreadStatus, worker: str) -> Row:
    """Return a row of the table.

    Its columns are the state, the input to continue with, a worker's action, and the sentence.
    """
    given = "no" if not found.can_go_on else "with `None`" if found.given is None else "with the decision"
    says = str(found).removeprefix(f"thread {found.thread_id!r} ").replace(repr(found.thread_id), "thread_id")
    says = says.replace(found.source, "SOURCE") if found.source else says
    host = found.holder.partition("/")[0]
    says = says.replace(f"process on {host}", "process on HOST") if host else says
    says = says.replace(found.since, "TIME") if found.since else says
    says = re.sub(r"`keel approval \w+`", "`keel approval ID`", says)
    says = re.sub(
        r"\(wire [0-9a-f.]+\)", "(wire KEY)", re.sub(r"\(ToolOutcomeUnknown.*?\)\)", "(ToolOutcomeUnknown(...))", says)
    )
    return f"`{found.state}`", given, worker, says


async def rows_of(place: Place, face: Face) -> Mapping[str, Row]:
    """Create every situation, all in one store, and return its reported status.

    `unfinished` must yield the same, for threads that are neither new nor idle.
    """
    rows = {}
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(place.open())
        stage = Stage(place, saver, face, await stack.enter_async_context(AsyncExitStack()))
        for name, make in SITUATIONS.items():
            await make(stage, name)
        worker = Recovery(saver.engine.session, graph_of(saver), {}, 3, None, RetryList(1.0))
        taken = {look.status.thread_id for look in await looks_of(saver, worker, face) if look.due}
        does = {name: CONTINUES if name in taken else "no" for name in SITUATIONS}
        for name in SITUATIONS:
            status = await (to_thread(saver.status, name) if face == "sync" else saver.astatus(name))
            rows[name] = row_of(status, does[name])
        if face == "sync":
            found = await to_thread(lambda: list(saver.unfinished()))
        else:
            found = [each async for each in saver.aunfinished()]
        listed = {name: row_of(each, does[name]) for each in found if (name := each.thread_id) in SITUATIONS}
        assert listed == {name: row for name, row in rows.items() if row[0] not in ("`new`", "`idle`")}
    return rows


async def looks_of(saver: KeelSaver, worker: Recovery, face: Face) -> Sequence[Look]:
    """Return all looks of a worker, until it has seen every thread."""
    engine, found = saver.engine, list[Look]()
    while True:
        page = await (to_thread(engine.run, worker.look()) if face == "sync" else engine.arun(worker.look()))
        if page is None:
            return found
        found += page


PAGE = Path(langgraph_keel.__file__).parent / "README.md"
BEGIN = "<!-- the situations: written by `python tests/write.py situations` -->"
END = "<!-- the end of the situations -->"


def with_table(text: str, rows: Mapping[str, Row]) -> str:
    """Return the page with a table of these rows."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{_table_of(rows)}\n\n{END}{rest.split(END)[1]}"


def _table_of(rows: Mapping[str, Row]) -> str:
    lines = [
        "| situation | `state` | `can_go_on` | a worker continues it | what `str(status)` says |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])
