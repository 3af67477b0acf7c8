"""A model that fails or returns nothing: no message is removed, the run continues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.summaries.conversations import Noting, ids, talk
from support.tool_graphs import FACES, run, thread

from langgraph_keel import InvalidInput, MemorySaver, SummarizationNode, SummaryFailed, SummaryWarning
from langgraph_keel.summaries.archive.storage import read_archived
from langgraph_keel.testing.faults import Fault, Injected, with_tap

SAYS_NOTHING: dict[str, Any] = {
    "empty": "",
    "blank": " \n\t ",
    "thoughts": AIMessage([{"type": "thinking", "thinking": "what do they want?"}]),
    "a call": AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}]),
}
FAILS: dict[str, Any] = {
    "error": RuntimeError("rate limit"),
    "timeout": TimeoutError("too slow"),
    "end": StopIteration("nothing left"),
}


def graph_of(saver: Any, model: Any, **options: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node(SummarizationNode(model, trigger=("messages", 10), keep=("messages", 4), **options))
    builder.add_node("answer", lambda state: {"messages": [AIMessage("said", id=f"to {state['messages'][-1].id}")]})
    builder.add_edge(START, "summarize")
    builder.add_edge("summarize", "answer")
    return builder.compile(checkpointer=saver)


def parts(saver: Any) -> list[Any]:
    return list(saver.engine.run(read_archived(saver.engine.session, "1")))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("why", [*SAYS_NOTHING, *FAILS])
async def test_a_failed_summary_removes_nothing(face: str, why: str) -> None:
    model = Noting(said=[(SAYS_NOTHING | FAILS)[why], "a summary"])
    graph, messages = graph_of(saver := MemorySaver(), model), talk(4)
    with pytest.warns(SummaryWarning, match="thread '1': .* nothing was removed") as told:
        result = await run(graph, face, {"messages": messages}, thread("1"))
    (warning,) = told
    assert isinstance(warning.message, SummaryWarning)
    assert ("model failed" in str(warning.message)) is (why in FAILS)
    assert warning.message.__cause__ is not None
    assert ids(result["messages"]) == [*ids(messages), "to answer-3"]
    assert parts(saver) == []
    result = await run(graph, face, {"messages": []}, thread("1"))  # the next attempt succeeds
    assert len(result["messages"]) == 7
    assert [part.count for part in parts(saver)] == [16]


def test_the_warning_points_to_the_line_that_runs_the_graph() -> None:
    with pytest.warns(SummaryWarning) as told:
        graph_of(MemorySaver(), Noting(said=[""])).invoke({"messages": talk(4)}, thread("1"))
    assert told[0].filename == __file__


async def test_a_failed_part_fails_the_whole_summary() -> None:
    model = Noting(said=["one", "two", ""])
    graph, messages = graph_of(saver := MemorySaver(), model, max_input_tokens=600), talk(30)
    with pytest.warns(SummaryWarning, match="returned an empty answer"):
        result = await graph.ainvoke({"messages": messages}, thread("1"))
    assert len(result["messages"]) == len(messages) + 1
    assert parts(saver) == []


@pytest.mark.parametrize("why", [*SAYS_NOTHING, "error"])
def test_on_error_raise_ends_the_run(why: str) -> None:
    error = RuntimeError if why == "error" else SummaryFailed
    graph = graph_of(saver := MemorySaver(), Noting(said=[(SAYS_NOTHING | FAILS)[why], "better"]), on_error="raise")
    with pytest.raises(error):
        graph.invoke({"messages": talk(4)}, thread("1"))
    assert parts(saver) == []
    assert len(graph.invoke(None, thread("1"))["messages"]) == 6


async def test_a_cancelled_run_removes_nothing() -> None:
    class Slow(Noting):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            await asyncio.sleep(60)

    graph, messages = graph_of(saver := MemorySaver(), Slow()), talk(4)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(graph.ainvoke({"messages": messages}, thread("1")), 0.1)
    assert ids((await graph.aget_state(thread("1"))).values["messages"]) == ids(messages)
    assert parts(saver) == []


def test_an_interrupt_in_the_model_is_not_a_failure() -> None:
    class Asking(Noting):
        def _generate(self, *args: Any, **options: Any) -> Any:
            self.said = [interrupt("may I?")]
            return super()._generate(*args, **options)

    graph = graph_of(saver := MemorySaver(), Asking())
    assert graph.invoke({"messages": talk(4)}, thread("1"))["__interrupt__"][0].value == "may I?"
    assert parts(saver) == []
    result = graph.invoke(Command(resume="yes, briefly"), thread("1"))
    assert "yes, briefly" in result["messages"][0].text


def test_a_failed_archive_ends_the_run_before_any_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = MemorySaver()
    graph = graph_of(saver, Noting())

    def broken(*args: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr("langgraph_keel.summaries.summarizer.archive_messages", broken)
    with pytest.raises(OSError, match="disk full"):
        graph.invoke({"messages": talk(4)}, thread("1"))
    assert len(graph.get_state(thread("1")).values["messages"]) == 20


def test_a_node_without_an_archive() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    for saver in (None, InMemorySaver()):
        with pytest.raises(InvalidInput, match="archive=False"):
            graph_of(saver, Noting()).invoke({"messages": talk(1)}, thread("1"))  # at each run, not only when due
        graph = graph_of(saver, Noting(), archive=False)
        result = graph.invoke({"messages": talk(4)}, thread("1"))
        assert result["messages"][0].additional_kwargs["keel_summary"]["archive"] is None
    with pytest.raises(InvalidInput, match="InMemorySaver"):
        SummarizationNode(Noting(), InMemorySaver())


# -- a store that fails ----------------------------------------------------------------------------------------


def kept(saver: Any, graph: Any) -> list[str]:
    """The ids of all messages that are in the state or in the archive."""
    archive = saver.archive("1")
    return [*ids(archive.messages()), *ids(graph.get_state(thread("1")).values.get("messages", []))]


def chatted(graph: Any, turns: range, durability: Any) -> list[str]:
    """Say something in each turn; return the messages of the turns that ended."""
    said: list[str] = []
    with suppress(Injected):
        for n in turns:
            asked = HumanMessage(f"turn {n}", id=f"h{n}")
            said += ids(graph.invoke({"messages": [asked]}, thread("1"), durability=durability)["messages"][-2:])
    return said


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("lost_reply", [False, True])
def test_a_store_failure_at_any_request_loses_no_messages(durability: str, lost_reply: bool) -> None:
    for at in count():
        graph, fault = graph_of(saver := MemorySaver(), Noting()), Fault(at, lost_reply=lost_reply)
        said = chatted(graph, range(4), durability)
        said += chatted(graph_of(with_tap(saver, fault), Noting()), range(4, 9), durability)
        assert set(said) <= set(kept(saver, graph))
        graph.invoke(None, thread("1"), durability=durability)
        chatted(graph, range(10, 12), durability)
        assert set(said) <= set(kept(saver, graph))
        saver.archive("1").restore(graph)
        found = ids(graph.get_state(thread("1")).values["messages"])
        assert [each for each in found if each in said] == said
        assert len(found) == len(set(found))
        if not fault.fired:
            break
    assert at > 10
