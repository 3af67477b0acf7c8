"""References to parts and messages, ambiguous ones, and their one-line display."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.summaries.archives import CONFIG, Box, memory_box, turns

from langgraph_keel import InvalidConfig, InvalidInput, KeelSaver, MemorySaver, NotFound, SummarizationNode
from langgraph_keel.summaries.archive.parts import Archived
from langgraph_keel.summaries.archive.references import part_in
from langgraph_keel.summaries.channels import removal

__all__ = ["memory_box"]  # a fixture


def trimmed(saver: KeelSaver) -> Any:
    """A graph that has removed the first four of six messages, two at a time."""
    builder: Any = StateGraph(MessagesState).add_node("n", lambda state: {})
    graph = builder.add_edge(START, "n").compile(checkpointer=saver)
    graph.invoke({"messages": turns(0, 6)}, CONFIG)
    for n in (0, 2):
        graph.update_state(CONFIG, {"messages": [RemoveMessage(f"m{n}"), RemoveMessage(f"m{n + 1}")]})
    return graph


def shown(graph: Any) -> list[str]:
    return [message.id for message in graph.get_state(CONFIG).values["messages"]]


def test_parts_and_messages_are_found_by_every_kind_of_reference(memory_box: Box) -> None:
    box = memory_box
    trimmed(box.saver)
    first, second = box.call("entries")
    hit = box.call("search", "said 3")[0]
    for which in (second, second.id, second.id[:6], second.id[:12], hit, 1, -1):
        assert box.call("messages", which) == turns(2, 4)
        assert box.call("messages", which, step=second.step) == turns(2, 4)
        assert box.call("pin", which).pinned
        assert box.saver.archive("t")[which].id == second.id
        assert not box.call("unpin", which).pinned
    for which, expected in (
        (second.id[:6], "m2 m3 m4 m5"),
        (hit, "m3 m4 m5"),
        (1, "m2 m3 m4 m5"),
        ([0, hit], "m0 m1 m3 m4 m5"),
        (turns(2, 3)[0], "m2 m4 m5"),
        ([hit, "m2"], "m2 m3 m4 m5"),
        ((name for name in ("m0", second)), "m0 m2 m3 m4 m5"),
        (turns(1, 3), "m1 m2 m4 m5"),
        ([], "m4 m5"),
    ):
        with MemorySaver(archive_removed=True) as saver:
            graph = trimmed(saver)
            Box(saver, box.face).call("restore", graph, which)
            assert " ".join(shown(graph)) == expected
    box.call("remove", first.id[:8])
    assert box.call("entries") == [second]


def test_invalid_and_unknown_references_are_refused(memory_box: Box) -> None:
    box = memory_box
    graph = trimmed(box.saver)
    (first, _), archive = box.call("entries"), box.saver.archive("t")
    for odd in (None, True, b"m0", object(), HumanMessage("no id")):
        for name in ("pin", "remove", "__getitem__")[: 2 if odd is True else 3]:
            with pytest.raises(InvalidInput, match="a part is named by"):
                getattr(archive, name)(odd)
        with pytest.raises(InvalidInput, match="what to restore is named by"):
            box.call("restore", graph, [odd])
        with pytest.raises(InvalidInput, match="must be a str"):
            box.call("message", odd)
        with pytest.raises(InvalidInput, match="must be a str"):
            box.call("search", odd)
    with pytest.raises(InvalidInput, match="graph must be"):
        box.call("restore", None)
    for position in (2, -3):
        for call, argument in (("messages", ()), ("pin", ()), ("restore", (graph,))):
            with pytest.raises(NotFound, match=f"no part {position}: it has 2"):
                box.call(call, *argument, position)
    with pytest.raises(InvalidInput, match="step"):
        box.call("messages", step="3")
    for unknown in ("0" * 24, "zzzzzz", first.id[:5]):
        with pytest.raises(NotFound, match="has no part"):
            box.call("messages", unknown)
    with pytest.raises(NotFound, match="6 digits"):
        box.call("pin", first.id[:5])
    assert shown(graph) == ["m4", "m5"]


def test_an_ambiguous_prefix_is_refused(memory_box: Box) -> None:
    entry = memory_box.keep(turns(0, 1))
    others: list[Archived] = [entry, memory_box.keep(turns(1, 2))]
    assert part_in(others, entry.id[:6]) == entry
    with pytest.raises(InvalidInput, match=f"fits 2 parts .{entry.id}"):
        part_in([entry, entry], entry.id[:6])


def test_archiving_for_a_missing_thread_is_refused() -> None:
    with MemorySaver() as saver:
        node = SummarizationNode(None, saver, trigger=None, keep=("messages", 1))
        loose: Any = {"configurable": {"thread_id": "loose", "user_id": "ada"}}
        with pytest.raises(InvalidInput, match=r"'loose' cannot be archived.*archive=False"):
            node.invoke(turns(0, 4), loose)
        builder: Any = StateGraph(MessagesState).add_node("shorten", node)
        graph = builder.add_edge(START, "shorten").compile()
        with pytest.raises(InvalidInput, match="checkpointer=saver"):
            graph.invoke({"messages": turns(0, 4)}, loose)
        with pytest.raises(InvalidConfig):
            removal({}, turns(0, 1), channel="messages", by="window")
        assert len(saver.archive("loose")) == 0


def test_parts_of_stateless_subgraphs_cannot_be_restored() -> None:
    """A subgraph without a memory starts empty, so there is no state to restore."""
    with MemorySaver() as saver:
        node = SummarizationNode(None, trigger=("messages", 3), keep=("messages", 1))
        inner: Any = StateGraph(MessagesState).add_node("shorten", node)
        outer: Any = StateGraph(MessagesState).add_node("sub", inner.add_edge(START, "shorten").compile())
        graph = outer.add_edge(START, "sub").compile(checkpointer=saver)
        graph.invoke({"messages": turns(0, 4)}, CONFIG)
        with pytest.raises(NotFound, match=r"only of the subgraphs 'sub:.*the graph that keeps the messages"):
            saver.archive("t").restore(graph)
        assert saver.archive("t").messages() == turns(0, 3)


def test_parts_hits_and_results_are_shown_on_one_line(memory_box: Box) -> None:
    graph = trimmed(memory_box.saver)
    entry = memory_box.call("pin", memory_box.call("entries")[0])
    assert (
        str(entry) == f"{entry.id[:12]}: 2 messages removed by rule, step 2, {entry.at:%Y-%m-%d %H:%M:%S} UTC, pinned"
    )
    (hit,) = memory_box.call("search", "said 1")
    assert str(hit) == f"{entry.id[:12]} #1  m1  ai: said 1"
    done = memory_box.call("restore", graph, [entry, "m0"])
    assert str(done) == "2 messages restored"
    assert str(memory_box.call("restore", graph)) == "2 messages restored, 2 already in the state"
    for one in (entry, hit, done):
        assert str(one) in repr(one)
        assert len(repr(one)) < 130
