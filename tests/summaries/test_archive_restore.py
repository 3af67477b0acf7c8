"""Restores: messages return in order before their summary, which is then removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from support.summaries.archives import CONFIG, Box, box, turns

from langgraph_keel import InvalidInput, MemorySaver, NotFound
from langgraph_keel.summaries.archive.parts import Archived, in_order
from langgraph_keel.summaries.archive.restore import Choice, fill, with_results
from langgraph_keel.summaries.channels import removal
from langgraph_keel.testing.faults import Counter, with_tap

__all__ = ["box"]  # a fixture

ALL = RemoveMessage(id=REMOVE_ALL_MESSAGES)


def summing(box: Box, schema: Any = MessagesState, *, pinned: Sequence[str] = ()) -> Any:
    """A graph whose node keeps the last two messages and a summary, as Keel's does."""

    def shorten(state: Any, config: RunnableConfig) -> Any:
        every = state["messages"] if isinstance(state, dict) else state.messages
        kept = [
            each for n, each in enumerate(every) if n >= len(every) - 2 or each.id in pinned or each.type == "system"
        ]
        going = [each for each in every if each not in kept]
        earlier = next((each.additional_kwargs["part"] for each in going if "part" in each.additional_kwargs), None)
        going = [each for each in going if "part" not in each.additional_kwargs]
        if not going:
            return {}
        taken = removal(config, going, channel="messages", by="summary", previous=earlier)
        taken = replace(taken, summary=f"about {going[-1].id}", summary_id=f"sum {taken.id}")
        box.put(taken)
        summary = HumanMessage(taken.summary or "", id=taken.summary_id, additional_kwargs={"part": taken.id})
        head = [each for each in kept if each.type == "system"]
        return {"messages": [ALL, *head, summary, *(each for each in kept if each not in head)]}

    builder = StateGraph(schema)
    builder.add_node("n", shorten)
    builder.add_edge(START, "n")
    return builder.compile(checkpointer=box.saver)


def state_of(graph: Any) -> list[BaseMessage]:
    found: list[BaseMessage] = graph.get_state(CONFIG).values["messages"]
    return found


def said(graph: Any) -> list[str]:
    return [message.text.replace("said ", "") for message in state_of(graph)]


def grown(graph: Any, count: int = 10) -> list[BaseMessage]:
    for n in range(0, count, 2):
        graph.invoke({"messages": turns(n, n + 2)}, CONFIG)
    return turns(0, count)


def test_a_complete_restore_gives_the_whole_conversation(box: Box) -> None:
    graph = summing(box)
    every = grown(graph)
    assert said(graph) == ["about m7", "8", "9"]
    box.saver.prune(["t"])
    done = box.call("restore", graph)
    assert box.bytes_of(state_of(graph)) == box.bytes_of(every)
    assert list(done.message_ids) == [f"m{n}" for n in range(8)]
    assert len(done.summary_ids) == 1
    assert done.config == CONFIG
    assert done.present == 0
    again = box.call("restore", graph)
    assert (again.message_ids, again.summary_ids, again.present) == ((), (), 8)
    assert len(box.call("entries")) == 4, "the archive keeps what it has, and the rule adds nothing"
    graph.invoke({"messages": turns(10, 12)}, CONFIG)
    assert said(graph) == ["about m9", "10", "11"]
    box.call("restore", graph)
    assert state_of(graph) == turns(0, 12)


def test_a_partial_restore_follows_its_summary_in_order() -> None:
    with MemorySaver() as saver:
        box = Box(saver)
        graph = summing(box)
        grown(graph)
        parts = box.call("entries")
        assert [part.message_ids for part in parts] == [(f"m{n}", f"m{n + 1}") for n in (0, 2, 4, 6)]
        for which, expected in (
            (parts[2], "about m7|4|5|8|9"),
            (parts[0].id, "about m7|0|1|4|5|8|9"),
            (["m7", "m2"], "about m7|0|1|2|4|5|7|8|9"),
            ([parts[1], "m6"], "0|1|2|3|4|5|6|7|8|9"),
        ):
            box.call("restore", graph, which)
            assert "|".join(said(graph)) == expected


def test_kept_messages_follow_the_restored_ones(box: Box) -> None:
    graph = summing(box, pinned=["m1", "m4"])
    graph.invoke({"messages": [SystemMessage("be brief", id="sys"), *turns(0, 2)]}, CONFIG)
    grown(graph)
    assert said(graph) == ["be brief", "about m7", "1", "4", "8", "9"]
    box.call("restore", graph)
    assert said(graph) == ["be brief", *"0235671489"]


def test_without_a_summary_restored_messages_come_first() -> None:
    with MemorySaver(archive_removed=True) as saver:
        builder: Any = StateGraph(MessagesState).add_node("n", lambda state: {})
        graph = builder.add_edge(START, "n").compile(checkpointer=saver)
        graph.invoke({"messages": [SystemMessage("be brief", id="sys"), *turns(0, 5)]}, CONFIG)
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m2")]})
        saver.archive("t").restore(graph)
        assert said(graph) == ["be brief", *"20134"]


def test_a_restored_message_is_not_mistaken_for_a_summary() -> None:
    with MemorySaver(archive_removed=True) as saver:
        builder: Any = StateGraph(MessagesState).add_node("n", lambda state: {})
        graph, archive = builder.add_edge(START, "n").compile(checkpointer=saver), saver.archive("t")
        graph.invoke({"messages": turns(0, 2)}, CONFIG)
        summary = AIMessage("in short", id="s", additional_kwargs={"lc_source": "summarization"})
        graph.update_state(CONFIG, {"messages": [ALL, summary, *turns(1, 2)]})
        archive.restore(graph)
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m0")]})
        archive.restore(graph)
        assert said(graph) == ["0", "1"]
        assert archive.messages() == turns(0, 1)


CALLS: Any = [{"name": "look", "args": {}, "id": name} for name in ("a", "b")]
TOOLED = [
    HumanMessage("0", id="m0"),
    AIMessage("", id="called", tool_calls=CALLS),
    ToolMessage("1", tool_call_id="a", id="a"),
    ToolMessage("2", tool_call_id="b", id="b"),
    AIMessage("3", id="m3"),
]


@pytest.mark.parametrize("gone", [["a"], ["b"], ["a", "b"], ["called"], ["called", "a"], ["m0", "called"], ["m0", "b"]])
def test_restored_tool_results_follow_their_calls(gone: list[str]) -> None:
    with MemorySaver(archive_removed=True) as saver:
        builder: Any = StateGraph(MessagesState).add_node("n", lambda state: {})
        graph = builder.add_edge(START, "n").compile(checkpointer=saver)
        graph.invoke({"messages": [SystemMessage("be brief", id="sys"), *TOOLED]}, CONFIG)
        graph.update_state(CONFIG, {"messages": list(map(RemoveMessage, gone))})
        saver.archive("t").restore(graph)
        back = state_of(graph)
        assert sorted(str(each.id) for each in back) == sorted(["sys", *(str(each.id) for each in TOOLED)])
        at = next(place for place, each in enumerate(back) if each.id == "called")
        assert {each.id for each in back[at + 1 : at + 3]} == {"a", "b"}


def test_a_result_follows_the_call_it_answers() -> None:
    def called(number: int) -> AIMessage:
        return AIMessage("", id=f"ai{number}", tool_calls=[{"name": "look", "args": {}, "id": "call_0"}])

    def result(number: int) -> ToolMessage:
        return ToolMessage("", tool_call_id="call_0", id=f"result{number}")

    whole = [called(0), result(0), HumanMessage("", id="h"), called(1), result(1)]
    assert with_results(whole) == whole, "providers number calls again in each answer"
    alone = [result(9), *whole]
    assert with_results(alone) == alone, "nobody has called it"
    assert [each.id for each in with_results([result(0), HumanMessage("", id="h"), called(0)])] == [
        "h",
        "ai0",
        "result0",
    ]


def test_restore_of_a_window_without_a_summary() -> None:
    with MemorySaver(archive_removed=True) as saver:
        builder = StateGraph(MessagesState)
        builder.add_node("n", lambda state: {"messages": [RemoveMessage(each.id) for each in state["messages"][1:-2]]})
        builder.add_edge(START, "n")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [SystemMessage("be brief", id="sys")]}, CONFIG)
        grown(graph)
        assert said(graph) == ["be brief", "8", "9"]
        saver.archive("t").restore(graph, saver.archive("t")[1])
        assert said(graph) == ["be brief", "2", "3", "8", "9"]
        saver.archive("t").restore(graph)
        assert said(graph) == ["be brief", *map(str, range(10))]


class Model(BaseModel):
    """A state that is not a dict."""

    messages: Annotated[list[AnyMessage], add_messages] = []


def test_restore_into_a_pydantic_state() -> None:
    with MemorySaver() as saver:
        graph = summing(Box(saver), Model)
        grown(graph)
        saver.archive("t").restore(graph)
        assert state_of(graph) == turns(0, 10)


def test_a_restore_without_a_removed_part_keeps_its_summary() -> None:
    with MemorySaver() as saver:
        graph, archive = summing(Box(saver)), saver.archive("t")
        grown(graph)
        archive.remove(archive[1])
        archive.restore(graph)
        assert said(graph) == ["0", "1", "about m7", "4", "5", "6", "7", "8", "9"]


def test_impossible_restores_are_refused() -> None:
    with MemorySaver() as saver:
        graph, archive = summing(Box(saver)), saver.archive("t")
        with pytest.raises(NotFound, match=r"archive of thread 't' is empty.*is the id right"):
            archive.restore(graph)
        box_of_none = summing(Box(saver), TypedState)
        box_of_none.update_state(CONFIG, {"n": 1})
        assert str(archive.restore(box_of_none)) == "0 messages restored, the archive has none for this state"
        grown(graph)
        before = state_of(graph)
        for unknown in ("m99", "", "0" * 24, ["m0", "nothing"]):
            with pytest.raises(NotFound, match="no part or message"):
                archive.restore(graph, unknown)
        other = StateGraph(TypedState)
        other.add_node("n", lambda state: {})
        other.add_edge(START, "n")
        with pytest.raises(InvalidInput, match="no list of messages 'messages'"):
            archive.restore(other.compile(checkpointer=saver))
        with pytest.raises(InvalidInput, match="different graphs"):
            archive.restore(graph, archive[0], config={"configurable": {"checkpoint_ns": "sub"}})
        assert state_of(graph) == before


class TypedState(BaseModel):
    """A state without messages."""

    n: int = 0


def test_a_restore_is_refused_while_a_question_is_open() -> None:
    with MemorySaver() as saver:
        box = Box(saver)
        box.keep(turns(0, 2))
        builder: Any = StateGraph(MessagesState)
        builder.add_node("ask", lambda state: {"messages": [AIMessage(str(interrupt("really?")), id="answer")]})
        builder.add_edge(START, "ask")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"messages": turns(2, 3)}, CONFIG)
        for face in ("sync", "async"):
            with pytest.raises(InvalidInput, match="answer first"):
                Box(saver, face).call("restore", graph)
        graph.invoke(Command(resume="yes"), CONFIG)
        saver.archive("t").restore(graph)
        assert said(graph) == ["0", "1", "2", "yes"]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_messages_added_during_a_restore_are_kept(face: str) -> None:
    with MemorySaver() as saver:
        graph = summing(Box(saver))
        grown(graph)

        class Rival(Counter):
            def sending(self, request: Any) -> None:
                super().sending(request)
                if self.count in (2, 5):  # the restore has read the state, and writes next
                    graph.update_state(CONFIG, {"messages": turns(8 + self.count, 9 + self.count)})

        tapped = graph.copy(update={"checkpointer": with_tap(saver, Rival())})
        done = Box(saver, face).call("restore", tapped)
        assert state_of(graph) == [*turns(0, 11), *turns(13, 14)]
        assert len(done.message_ids) == 8


def test_restore_of_a_stateful_subgraph() -> None:
    with MemorySaver(archive_removed=True) as saver:
        inner = StateGraph(MessagesState)
        inner.add_node("n", lambda state: {"messages": [RemoveMessage(each.id) for each in state["messages"][:-2]]})
        inner.add_edge(START, "n")
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}}
        outer: Any = StateGraph(TypedState)
        outer.add_node("sub", inner.compile(checkpointer=True))
        outer.add_edge(START, "sub")
        graph = outer.compile(checkpointer=saver)
        graph.invoke({"n": 1}, CONFIG)
        graph.update_state(config, {"messages": turns(0, 4)}, as_node="n")
        graph.update_state(config, {"messages": [RemoveMessage("m1")]}, as_node="n")
        (entry,) = saver.archive("t")
        assert entry.checkpoint_ns == "sub"
        with pytest.raises(NotFound, match=r"only of the subgraphs 'sub': config=.*'checkpoint_ns': 'sub'"):
            saver.archive("t").restore(graph)
        done = saver.archive("t").restore(graph, entry, as_node="n")
        assert done.config == config
        assert graph.get_state(config).values["messages"] == [*turns(1, 2), *turns(0, 1), *turns(2, 4)]


# -- chains of parts ---------------------------------------------------------------------------------------------------


EMPTY = Archived(
    "",
    "t",
    "",
    None,
    None,
    None,
    "messages",
    "rule",
    None,
    datetime(2026, 1, 1, tzinfo=UTC),
    None,
    None,
    None,
    (),
    0,
    0,
)


def test_clock_skew_does_not_reorder_parts() -> None:
    late, early = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    first = replace(EMPTY, id="a" * 24, at=late)
    second = replace(EMPTY, id="b" * 24, at=early, previous=first.id)
    circle = replace(EMPTY, id="c" * 24, at=early, previous="d" * 24), replace(EMPTY, id="d" * 24, previous="c" * 24)
    assert in_order([second, first]) == [first, second]
    assert set(in_order([*circle, first])) == {*circle, first}


def test_restore_of_long_chains_and_many_messages() -> None:
    parts: list[Archived] = []
    for n in range(1200):
        ids = tuple(f"{n}.{m}" for m in range(5))
        before = parts[-1].id if parts else None
        parts.append(replace(EMPTY, id=f"{n:024x}", message_ids=ids, count=5, summary_id=f"s{n}", previous=before))
    assert in_order(parts[::-1]) == parts
    wanted = [HumanMessage("", id=name) for part in parts for name in part.message_ids]
    read = {part.id: wanted[5 * n : 5 * n + 5] for n, part in enumerate(parts)}
    state = {"messages": [HumanMessage("", id="s1199"), HumanMessage("", id="now")]}
    done = fill(Choice("messages", parts, {str(each.id) for each in wanted}), {}, state, read)
    assert done.messages == [*wanted, HumanMessage("", id="now")]
    assert done.gone == ["s1199"]
