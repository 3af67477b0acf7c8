"""Calls survive releases, delays, cancellation, lost replies and many threads."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Thread
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from support.process_children import exit_code, forked
from support.tool_graphs import (
    ASKED,
    FACES,
    Killed,
    answers,
    calls,
    hello,
    late_at_first,
    loop_of,
    question,
    resume,
    run,
    strictly,
    thread,
    tool_graph,
)
from support.tools.caches import THREAD, Counting, call, keeping

from langgraph_keel import CorruptStore, MemorySaver, SqliteSaver, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.testing.faults import Fault, Injected, Tap, with_tap


def paying(runs: list[Any]) -> BaseTool:
    @tool
    def pay(x: int, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Pay."""
        runs.append(key or x)
        return f"paid {x}"

    return pay


ONE = [calls(("pay", {"x": 1}, "call-1"))]


def asking_beside(answered: list[str]) -> BaseTool:
    @tool
    def approve(what: str) -> str:
        """Ask a person; so the step of its siblings runs again."""
        answered.append(interrupt(what))
        return answered[-1]

    return approve


BESIDE = [calls(("pay", {"x": 1}, "call-1"), ("approve", {"what": "it"}, "call-2"))]


@pytest.mark.parametrize("face", FACES)
async def test_a_new_release_does_not_repeat_a_call_of_the_resumed_step(face: str) -> None:
    """A crash, a fixed tool, a resumed agent: the call was already paid."""
    saver, runs = MemorySaver(), list[Any]()
    tools = [paying(runs), asking_beside([])]
    with ToolCache(saver, {"pay": ToolPolicy(version="1")}) as old:
        await run(tool_graph(old, tools, BESIDE), face, hello(), thread("1"))
    with ToolCache(saver, {"pay": ToolPolicy(version="2")}) as new:
        said = answers(await resume(tool_graph(new, tools, BESIDE), face, "yes", thread("1")))
    assert said["call-1"].content == "paid 1"
    assert runs == [1]


@pytest.mark.parametrize("face", FACES)
async def test_an_expired_result_still_answers_its_own_call(face: str) -> None:
    runs: list[Any] = []
    with ToolCache(MemorySaver(), {"pay": ToolPolicy(ttl=0.2)}) as cache:
        graph = tool_graph(cache, [paying(runs), asking_beside([])], BESIDE)
        await run(graph, face, hello(), thread("1"))
        time.sleep(0.3)  # the person takes longer
        said = answers(await resume(graph, face, "yes", thread("1")))
    assert said["call-1"].content == "paid 1"
    assert runs == [1]


def two_askers() -> list[BaseTool]:
    @tool
    def slow(what: str) -> str:
        """Ask a person."""
        return str(interrupt("slow"))

    @tool
    def quick(what: str) -> str:
        """Ask a person."""
        return str(interrupt("quick"))

    return [slow, quick]


def late(config: Any) -> str:
    time.sleep(0.2)
    return "late"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("turn", [("slow", "quick"), ("quick", "slow")], ids=lambda turn: f"{turn[0]} first")
@pytest.mark.parametrize("is_store_late", [False, True], ids=["", "late store"])
async def test_approvals_of_two_tools_are_not_swapped(
    monkeypatch: pytest.MonkeyPatch, face: str, turn: tuple[str, str], is_store_late: bool
) -> None:
    """The ledger must keep the order in which tools ask: LangGraph counts on it."""
    if is_store_late:
        late_at_first(monkeypatch, "settle")
    with ToolCache(MemorySaver(), {"slow": ToolPolicy(scope=late)}) as cache:
        graph = tool_graph(cache, two_askers(), [calls(*((name, {"what": "it"}, f"call-{name}") for name in turn))])
        result = await run(graph, face, hello(), thread("1"))
        for _ in turn:
            result = await resume(graph, face, f"for {question(result)}", thread("1"))
        assert ASKED not in result
        said = answers(result)
        assert {name: said[f"call-{name}"].content for name in turn} == {name: f"for {name}" for name in turn}


def nested(face: str) -> BaseTool:
    """A tool that runs a graph of its own, in which a person is asked."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", interrupt("inside"))]}

    inner = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()

    @tool
    def delegate(what: str) -> str:
        """Have another agent do it."""
        return str(inner.invoke({"messages": []})["messages"][-1].content)

    @tool("delegate")
    async def adelegate(what: str) -> str:
        """Have another agent do it."""
        return str((await inner.ainvoke({"messages": []}))["messages"][-1].content)

    return delegate if face == "sync" else adelegate


@pytest.mark.parametrize("face", FACES)
async def test_an_approval_in_a_graph_inside_a_tool_is_requested_again(face: str) -> None:
    """The inner graph has its own counter of interrupts; the outer one is no help."""
    script = [calls(("delegate", {"what": "it"}, f"call-{turn}")) for turn in (1, 2)]
    with ToolCache(MemorySaver(), default=ToolPolicy(scope="shared")) as cache:
        graph = tool_graph(cache, [nested(face)], script)
        assert question(await run(graph, face, hello(), thread("1"))) == "inside"
        assert question(await resume(graph, face, "ada", thread("1"))) == "inside"  # the second turn
        said = answers(await resume(graph, face, "bob", thread("1")))
        assert [said[f"call-{turn}"].content for turn in (1, 2)] == ["ada", "bob"]
        assert question(await run(graph, face, hello(), thread("2"))) == "inside"


# -- idempotency keys --------------------------------------------------------------------------------------------------


KEYED = ToolPolicy(unknown="retry", idempotency_argument="key")


@pytest.mark.parametrize("face", FACES)
async def test_the_idempotency_key_survives_a_claim_whose_reply_was_lost(face: str) -> None:
    """Killed, claimed with a lost reply, run again: one payment under one key."""
    keys: list[str] = []
    fault = Fault(lost_reply=True)

    @tool
    def pay(x: int, key: Annotated[str, InjectedToolArg] = "") -> str:
        """Pay."""
        keys.append(key)
        if len(keys) == 1:
            raise Killed
        return f"paid {x}"

    saver = MemorySaver()
    with ToolCache(with_tap(saver, fault), {"pay": KEYED}) as cache:
        graph = loop_of(
            ToolNode([pay], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call),
            ONE,
            saver,  # so that only the ledger's requests pass the tap
        )
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("1"))
        cache.close()
        fault.arm(1)  # the first request finds the doubt, the second takes it over
        with pytest.raises(Injected):
            await run(graph, face, None, thread("1"))
        assert fault.fired
        cache.close()
        await run(graph, face, None, thread("1"))
    assert len(keys) == 2
    assert keys[0] == keys[1] != ""


# -- cancellation ------------------------------------------------------------------------------------------------------


class Stuck(Tap):
    """Holds back the reply to one request, so that a task can be cancelled then."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.reached = asyncio.Event()

    async def passing(self) -> None:
        if self.at is None:
            return
        self.at -= 1
        if self.at < 0:
            self.at = None
            self.reached.set()
            await asyncio.sleep(60)


class StuckDriver:
    """Sends requests immediately; the tap decides when their replies arrive."""

    def __init__(self, driver: Any, stuck: Stuck) -> None:
        self._driver, self._stuck = driver, stuck

    async def send(self, request: Any) -> Any:
        await self._stuck.passing()
        return await self._driver.send(request)


def with_stuck(saver: MemorySaver, stuck: Stuck) -> Any:
    return with_engine(saver, saver.engine.with_drivers(async_driver=StuckDriver(saver.engine.async_driver, stuck)))


async def cancelled_at(graph: Any, stuck: Stuck, request: int) -> None:
    stuck.at = request
    task = asyncio.create_task(graph.ainvoke(hello(), thread("1")))
    await asyncio.wait_for(stuck.reached.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_known_result_survives_a_cancellation_while_it_is_stored() -> None:
    """The client disconnects after the tool has ended: no doubt, and no wait."""
    stuck, runs = Stuck(), list[Any]()
    saver = MemorySaver()
    with ToolCache(with_stuck(saver, stuck), secret=bytes(32)) as cache:
        node = ToolNode([paying(runs)], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
        graph = loop_of(node, ONE, saver)
        await cancelled_at(graph, stuck, 1)  # request 0 claims, 1 settles
        cache.close()
        said = answers(await asyncio.wait_for(graph.ainvoke(None, thread("1")), 5))
    assert (runs, said["call-1"].content) == ([1], "paid 1")


async def test_a_cancelled_claim_does_not_block_the_call() -> None:
    stuck, runs = Stuck(), list[Any]()
    saver = MemorySaver()
    with ToolCache(with_stuck(saver, stuck), secret=bytes(32)) as cache:
        node = ToolNode([paying(runs)], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
        graph = loop_of(node, ONE, saver)
        await cancelled_at(graph, stuck, 0)
        cache.close()
        said = answers(await asyncio.wait_for(graph.ainvoke(None, thread("1")), 5))
    assert (runs, said["call-1"].content) == ([1], "paid 1")


async def test_a_cancelled_tool_is_in_doubt_immediately() -> None:
    runs: list[Any] = []
    began = asyncio.Event()

    @tool
    async def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        began.set()
        await asyncio.sleep(60)
        return f"paid {x}"

    with ToolCache(MemorySaver()) as cache:
        graph = tool_graph(cache, [pay], ONE)
        task = asyncio.create_task(graph.ainvoke(hello(), thread("1")))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ToolOutcomeUnknown, match="pay"):
            await asyncio.wait_for(graph.ainvoke(None, thread("1")), 5)
    assert runs == [1]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", [Exception, (OSError, TimeoutError)], ids=["all", "some"])
async def test_a_call_whose_error_leaves_its_outcome_unknown_is_not_repeated(face: str, kind: Any) -> None:
    """A payment whose reply is late may have been made."""
    runs: list[Any] = []

    @tool
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        raise TimeoutError("no reply")

    saver = MemorySaver()
    with ToolCache(saver, {"pay": ToolPolicy(unknown_errors=kind)}) as cache:
        graph = tool_graph(cache, [pay], ONE)
        with pytest.raises(TimeoutError):
            await run(graph, face, hello(), thread("1"))
        (doubt,) = saver.status("1").doubts
        assert (doubt.state, doubt.error) == ("unknown", "TimeoutError: no reply")
        with pytest.raises(ToolOutcomeUnknown, match="pay"):
            await run(graph, face, None, thread("1"))
        cache.settle("1", doubt.key, "done", "paid 1")
        said = answers(await run(graph, face, None, thread("1")))
    assert (runs, said["call-1"].content) == ([1], "paid 1")


@pytest.mark.parametrize("face", FACES)
async def test_other_errors_of_a_tool_mean_that_it_may_run_again(face: str) -> None:
    runs: list[Any] = []

    @tool
    def pay(x: int) -> str:
        """Pay."""
        runs.append(x)
        if len(runs) == 1:
            raise ValueError("no such account")
        return f"paid {x}"

    with ToolCache(MemorySaver(), {"pay": ToolPolicy(unknown_errors=TimeoutError)}) as cache:
        graph = tool_graph(cache, [pay], ONE)
        with pytest.raises(ValueError, match="no such account"):
            await run(graph, face, hello(), thread("1"))
        said = answers(await run(graph, face, None, thread("1")))
    assert (runs, said["call-1"].content) == ([1, 1], "paid 1")


# -- threads and processes ---------------------------------------------------------------------------------------------


def test_concurrent_threads_start_one_renewal_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Thread] = []

    def slowly(*args: Any, **options: Any) -> Thread:
        time.sleep(0.05)  # simulates a switch of threads at the worst moment
        started.append(Thread(*args, **options))
        return started[-1]

    monkeypatch.setattr("langgraph_keel.engine.leases.Thread", slowly)
    cache, gate, done = ToolCache(MemorySaver()), Barrier(4), list[int]()

    def begin(number: int) -> None:
        gate.wait()
        cache._keeper.defer(lambda: done.append(number))  # private: a job that still waits when the program ends

    threads = [Thread(target=begin, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    cache.close()
    assert sorted(done) == [0, 1, 2, 3]
    assert len(started) == 1


def test_a_cache_can_be_used_and_closed_after_a_fork() -> None:
    cache = ToolCache(MemorySaver())
    graph = tool_graph(cache, [paying([])], ONE)
    graph.invoke(hello(), thread("1"))

    def child() -> None:
        began = time.monotonic()
        cache.close()
        assert answers(graph.invoke(hello(), thread("2")))["call-1"].content == "paid 1"
        cache.close()
        assert time.monotonic() - began < 4

    assert exit_code(forked(child)) == 0
    cache.close()


# -- strict serializers ------------------------------------------------------------------------------------------------


@dataclass
class Order:
    number: int


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    strictly(monkeypatch)


class Ordering(MessagesState):
    order: Order


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("face", FACES)
async def test_a_strict_saver_replays_the_types_of_the_graph(face: str) -> None:
    """LangGraph allows the types to its copy of the saver; the graph must continue."""
    runs: list[int] = []

    @tool
    def order(number: int, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Order."""
        runs.append(number)
        return Command(update={"order": Order(number), "messages": [ToolMessage("ordered", tool_call_id=call_id)]})

    with ToolCache(MemorySaver(), default=THREAD) as cache:
        node = ToolNode([order], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
        builder = StateGraph(Ordering).add_node("tools", node).add_edge(START, "tools")
        graph = builder.compile(checkpointer=cache.saver)
        for call_id in ("call-1", "call-2"):
            given = {"messages": [calls(("order", {"number": 7}, call_id))]}
            assert (await run(graph, face, given, thread("1")))["order"] == Order(7)
    assert runs == [7]


def test_a_result_with_a_damaged_expiry_time_is_reported(tmp_path: Path) -> None:
    counting = Counting()
    with SqliteSaver(tmp_path / "keel.db") as saver:
        call(keeping(saver, ttl=60), counting.tool)
    with closing(sqlite3.connect(tmp_path / "keel.db")) as database, database:
        assert database.execute("UPDATE cells SET expires_at = 'x' WHERE expires_at NOT NULL").rowcount == 1
    with SqliteSaver(tmp_path / "keel.db") as saver:
        with pytest.raises(CorruptStore, match="expires at 'x'"):
            list(saver.tools.calls("t"))
        with pytest.raises(CorruptStore, match="expires at 'x'"):
            call(keeping(saver, ttl=60), counting.tool, "call-2")
        with pytest.raises(CorruptStore, match="expires at 'x'"):
            ToolCache(saver).clear("t", expired_only=True)
    assert counting.runs == 1
