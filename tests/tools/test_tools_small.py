"""More hazards for a ledger: outages, deletions, process forks, other ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from support.process_children import exit_code, forked
from support.tool_graphs import (
    FACES,
    TWO_TURNS,
    Killed,
    answers,
    calls,
    hello,
    is_replay,
    look,
    loop_of,
    question,
    run,
    thread,
    tool_graph,
)
from support.tools.caches import THREAD

from langgraph_keel import MemorySaver, SqliteSaver, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.leases import Keeper, is_dead, this_holder
from langgraph_keel.testing.faults import Meanwhile, with_tap
from langgraph_keel.tools.ledger import HITS, CallRecord, Claim

pytestmark = pytest.mark.timeout(30)


# -- the keeper --------------------------------------------------------------------------------------------------------


def test_failed_renewals_are_retried_with_a_pause() -> None:
    asked, began = list[float](), time.monotonic()

    def renew(claim: Claim) -> bool:
        asked.append(time.monotonic())
        if time.monotonic() - began < 0.7:
            raise OSError("refused")
        return True

    keeper = Keeper(0.2, renew)
    claim = Claim(Shelf("t", "tool"), "key", "token", CallRecord("pay", "", "claimed", 0, 0, "holder", "lineage"))
    keeper.hold(claim)
    while sum(at - began >= 0.7 for at in asked) < 2:  # it continues when the store is back
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    keeper.drop(claim)
    assert 1 <= sum(at - began < 0.7 for at in asked) <= 4
    assert all(later - at > 0.03 for at, later in pairwise(asked))


# -- deletion ----------------------------------------------------------------------------------------------------------


def hits_in(saver: EngineSaver, name: str) -> list[Any]:
    engine = saver.engine
    return list(engine.run(engine.session.store.list_cells(Shelf(name, HITS), "", None, 10)))


FORGET: dict[str, Callable[[ToolCache], object]] = {
    "delete_thread": lambda cache: cache.saver.delete_thread("t"),
    "prune": lambda cache: cache.saver.prune(["t"], strategy="delete"),
    "clear": lambda cache: cache.clear("t"),
}


@pytest.mark.parametrize("how", FORGET)
def test_hits_are_not_restored_after_a_deletion(how: str) -> None:
    """Hits are counted first and written later."""
    with ToolCache(MemorySaver(), default=THREAD) as cache:
        tool_graph(cache, [look], TWO_TURNS).invoke(hello(), thread("t"))
        assert cache.stats.hits == 1
        FORGET[how](cache)
        cache.close()
        assert hits_in(cache.saver, "t") == []


def test_hits_are_written_on_close() -> None:
    with ToolCache(MemorySaver(), default=THREAD) as cache:
        tool_graph(cache, [look], TWO_TURNS).invoke(hello(), thread("t"))
        cache.close()
        assert len(hits_in(cache.saver, "t")) == 1


# -- processes ---------------------------------------------------------------------------------------------------------


def test_hits_are_counted_once_after_a_fork(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver, ToolCache(saver, default=THREAD) as cache:
        tool_graph(cache, [look], TWO_TURNS).invoke(hello(), thread("t"))
        assert exit_code(forked(cache.close)) == 0
        cache.close()
        assert [call.hits for call in saver.tools.calls("t")] == [1]


def test_a_doubt_in_a_forked_child_does_not_wait_for_a_call_of_the_parent() -> None:
    """The parent's other thread does not exist in the child."""
    over, began = Event(), Event()

    @tool
    def slow(q: str) -> str:
        """Take long."""
        began.set()
        over.wait(20)
        return "slow"

    @tool
    def deadly(q: str) -> str:
        """Be cut off."""
        began.wait(5)
        raise Killed

    cache = ToolCache(MemorySaver(), default=THREAD)
    graph = tool_graph(cache, [slow, deadly], [calls(("slow", {"q": "x"}, "call-1"), ("deadly", {"q": "y"}, "call-2"))])

    def parent() -> None:
        with pytest.raises(Killed):
            graph.invoke(hello(), thread("t"))

    def child() -> None:
        with pytest.raises(ToolOutcomeUnknown, match="deadly"):
            asyncio.run(asyncio.wait_for(graph.ainvoke(None, thread("t")), 8))

    other = Thread(target=parent)
    other.start()
    try:
        while not any(call.state == "unknown" for call in cache.saver.tools.calls("t")):
            time.sleep(0.01)
        time.sleep(0.1)  # the keeper has written it, and is idle
        assert exit_code(forked(child)) == 0
    finally:
        over.set()
        other.join()
        cache.close()


ENDS = """
import sys
from support.tool_graphs import TWO_TURNS, hello, look, thread, tool_graph
from langgraph_keel import SqliteSaver
from langgraph_keel import ToolCache, ToolPolicy
cache = ToolCache(SqliteSaver(sys.argv[1]), default=ToolPolicy(scope="thread"))
tool_graph(cache, [look], TWO_TURNS).invoke(hello(), thread("t"))
"""


@pytest.mark.slow
def test_a_program_that_ends_without_closing_writes_its_hits(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "keel.db")],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    with SqliteSaver(tmp_path / "keel.db") as saver:
        assert [(call.state, call.hits) for call in saver.tools.calls("t")] == [("done", 1)]


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_hidden_live_process_is_not_dead(error: type[OSError], monkeypatch: pytest.MonkeyPatch) -> None:
    """`hidepid` or `ProtectProc` hides the files of other processes in `/proc`."""
    name, read = this_holder(), Path.read_text

    def hidden(path: Path, *args: Any, **options: Any) -> str:
        if path == Path(f"/proc/{os.getpid()}/stat"):
            raise error(path)
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert not is_dead(name)


# -- how calls end -----------------------------------------------------------------------------------------------------


def handing_over(acted: list[str]) -> BaseTool:
    """A tool that runs a graph of its own, which hands over to the graph above."""

    def leave(state: MessagesState) -> Command[Any]:
        acted.append("left")
        return Command(graph=Command.PARENT, goto="model")

    inner = StateGraph(MessagesState).add_node("leave", leave).add_edge(START, "leave").compile()

    @tool
    def hand_over(q: str) -> str:
        """Hand over."""
        return str(inner.invoke({"messages": []}))

    return hand_over


HAND_OVER = ("hand_over", {"q": "x"}, "call-1")


@pytest.mark.parametrize("face", FACES)
async def test_a_handover_to_the_parent_graph_finishes(face: str) -> None:
    acted: list[str] = []
    with ToolCache(MemorySaver()) as cache:
        graph = tool_graph(cache, [handing_over(acted)], [calls(HAND_OVER)])
        result = await run(graph, face, hello(), thread("t"))
        assert result["messages"][-1].content == "done"
        assert [(call.state, call.is_kept) for call in cache.saver.tools.calls("t")] == [("done", False)]
    assert acted == ["left"]


def test_a_handover_to_the_parent_graph_is_not_repeated_silently() -> None:
    acted, deaths = list[str](), [Killed]

    @tool
    def last(q: str) -> str:
        """Be cut off, once."""
        time.sleep(0.3)  # the other call has ended
        if deaths:
            raise deaths.pop()
        return "ok"

    with ToolCache(MemorySaver(), {"last": None}) as cache:
        graph = tool_graph(cache, [last, handing_over(acted)], [calls(("last", {"q": "y"}, "call-0"), HAND_OVER)])
        with pytest.raises(Killed):
            graph.invoke(hello(), thread("t"))
        with pytest.raises(ToolOutcomeUnknown, match="hand_over"):
            graph.invoke(None, thread("t"))
    assert acted == ["left"]


@pytest.mark.parametrize("face", FACES)
async def test_an_answer_to_an_already_settled_doubt_is_ignored(face: str) -> None:
    """Another person was faster, so the conversation shows the ledger's result."""
    acted: list[str] = []

    @tool
    def pay(to: str) -> str:
        """Pay."""
        acted.append(to)
        raise Killed

    saver, script = MemorySaver(), [calls(("pay", {"to": "x"}, "call-1"))]
    asking = ToolPolicy(unknown="ask")

    def settle() -> None:
        (call,) = saver.tools.calls("t")
        other.settle("t", call.key, "done", "paid, says the bank")

    meanwhile = Meanwhile(1, settle)  # after the claim that finds the doubt, before the answer is stored
    graphs = saver
    with ToolCache(saver, {"pay": asking}, secret=bytes(32)) as other:
        graph = loop_of(node_of(other, pay), script, graphs)
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        other.close()
        asked = question(await run(graph, face, None, thread("t")))
        with ToolCache(with_tap(saver, meanwhile), {"pay": asking}, secret=bytes(32)) as cache:
            graph = loop_of(node_of(cache, pay), script, graphs)
            answer = {"decision": "done", "result": "paid, says ada", "attempt": asked["attempt"]}
            said = answers(await run(graph, face, Command(resume=answer), thread("t")))
    assert meanwhile.happened
    assert said["call-1"].content == "paid, says the bank"
    assert is_replay(said["call-1"])
    assert acted == ["x"]


def node_of(cache: ToolCache, tool: BaseTool) -> ToolNode:
    return ToolNode([tool], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
