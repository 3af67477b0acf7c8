"""Restores on rewound threads, and summaries that have a replaced message's id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.summaries.archives import CONFIG, Box, memory_box, turns
from support.summaries.conversations import Noting
from support.tiers import examples

from langgraph_keel import CheckpointConflict, InvalidInput, KeelSaver, MemorySaver, SlidingWindow, SummarizationNode
from langgraph_keel.summaries.archive.parts import part_of
from langgraph_keel.testing.faults import Meanwhile, with_tap

__all__ = ["memory_box"]  # a fixture


def shortened(saver: KeelSaver, *, with_model: bool = True, **options: Any) -> Any:
    """A graph that answers each message "x" with "a", and shortens earlier messages."""
    given: Any = {"trigger": ("messages", 6), "keep": ("messages", 2), **options}
    node = SummarizationNode(Noting(said=["in short"] * 99), **given) if with_model else SlidingWindow(**given)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("shorten", node)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("a", id=f"{state['messages'][-1].id}a")]})
    builder.add_edge(START, "shorten")
    builder.add_edge("shorten", "answer")
    return builder.compile(checkpointer=saver)


def ask(graph: Any, name: str, config: Any = CONFIG) -> None:
    graph.invoke({"messages": [HumanMessage("x", id=name)]}, config)


def names(graph: Any, config: Any = CONFIG) -> list[str | None]:
    found: list[BaseMessage] = graph.get_state(config).values["messages"]
    return [f"summary {part_of(each)}" if part_of(each) else each.id for each in found]


def said(*words: str) -> list[str]:
    return [name for word in words for name in (word, f"{word}a")]


@pytest.mark.parametrize("with_model", [True, False], ids=["summary", "window"])
def test_a_restore_excludes_messages_of_an_abandoned_branch(memory_box: Box, with_model: bool) -> None:
    box = memory_box
    graph = shortened(box.saver, with_model=with_model)
    for n in range(4):
        ask(graph, f"common{n}")
    at = graph.get_state(CONFIG).config
    for n in range(6):
        ask(graph, f"bad{n}")
    bad = graph.get_state(CONFIG).config
    common = said("common0", "common1", "common2", "common3")
    ask(graph, "good0", at)
    ask(graph, "good1")
    ask(graph, "good2")
    entries = box.call("entries")
    (other,) = [entry for entry in entries if "bad3" in entry.message_ids]
    for which in (other, "bad3", [common[0], "bad3a"]):
        with pytest.raises(InvalidInput, match=f"{other.id} was taken out on another branch"):
            box.call("restore", graph, which)
    box.call("restore", graph)
    assert names(graph) == [*common, *said("good0", "good1", "good2")]
    assert {"bad3", "good0"} < {message.id for message in box.call("messages")}, "it shows all of the archive"
    box.call("restore", graph, config=bad)
    assert names(graph) == [*common, *said(*(f"bad{n}" for n in range(6)))]


def test_messages_removed_on_both_branches_are_restored_on_both() -> None:
    with MemorySaver() as saver:
        graph = shortened(saver, keep=("messages", 5))
        for n in range(2):
            ask(graph, f"q{n}")
        at = graph.get_state(CONFIG).config
        every = {}
        for branch in ("b", "c"):
            ask(graph, f"{branch}0", at)
            ask(graph, f"{branch}1")
            every[branch] = (graph.get_state(CONFIG).config, said("q0", "q1", f"{branch}0", f"{branch}1"))
        for config, expected in every.values():
            saver.archive("t").restore(graph, config=config)
            assert names(graph) == expected


def test_a_window_removing_the_same_messages_on_two_branches() -> None:
    with MemorySaver() as saver:
        graph = shortened(saver, with_model=False, trigger=("messages", 5), keep=("messages", 1))
        ask(graph, "q0")
        ask(graph, "q1")
        at = graph.get_state(CONFIG).config
        ends = []
        for branch in ("b", "c"):
            ask(graph, branch, at)
            ends.append((graph.get_state(CONFIG).config, said("q0", "q1", branch)))
        (entry,) = saver.archive("t")
        assert len(entry.starts) == 2
        assert entry.starts[-1] == entry.checkpoint_id
        saver.fork(ends[0][0], "fork")
        assert len(saver.archive("fork")) == 1
        for config, expected in ends:
            saver.archive("t").restore(graph, config=config)
            assert names(graph) == expected


def test_a_restore_after_a_prune_includes_everything() -> None:
    with MemorySaver() as saver:
        graph = shortened(saver)
        for n in range(8):
            ask(graph, f"q{n}")
        saver.prune(["t"], strategy="keep_latest")
        saver.archive("t").restore(graph)
        assert names(graph) == said(*(f"q{n}" for n in range(8)))


def test_a_summary_may_have_the_id_of_a_replaced_message() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph, archive = shortened(saver), saver.archive("t")
        for n in range(7):
            ask(graph, f"q{n}")
        first, *_, last = archive
        assert {entry.summary_id for entry in archive} == {"q0"}
        assert first.message_ids[0] == "q0"
        assert {entry.by for entry in archive} == {"summary"}, "the rule finds nothing more"
        assert archive.message("q0").text == "x"
        assert archive.restore(graph, "q0").message_ids == ("q0",)
        state = graph.get_state(CONFIG).values["messages"]
        assert [message.id for message in state[:2]] == [f"summary-{last.id}", "q0"]
        assert state[1].text == "x"
        ask(graph, "q7")
        ask(graph, "q8")
        done = archive.restore(graph)
        assert names(graph) == said(*(f"q{n}" for n in range(9)))
        assert str(done).startswith(f"{len(done.message_ids)} messages restored, 1 summary removed")
        graph.update_state(CONFIG, {"messages": [HumanMessage("edited", id="q0")]})
        graph.update_state(CONFIG, {"messages": [RemoveMessage("q0")]})
        assert archive.message("q0").text == "edited"
        assert {entry.previous for entry in archive if entry.by == "rule"} == {None}


def test_the_rule_archives_messages_of_a_node_without_an_archive() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph = shortened(saver, archive=False)
        for n in range(7):
            ask(graph, f"q{n}")
        kept = [message.id for message in saver.archive("t").messages() if message.text != "in short"]
        assert set(said(*(f"q{n}" for n in range(5)))) <= {*kept, *names(graph)}


@pytest.mark.slow
def test_a_refused_and_repeated_removal_is_archived_once() -> None:
    with MemorySaver(archive_removed=True) as saver:
        builder: Any = StateGraph(MessagesState).add_node("n", lambda state: {})
        graph = builder.add_edge(START, "n").compile(checkpointer=saver)
        graph.invoke({"messages": turns(0, 4)}, CONFIG)
        rival = Meanwhile(3, lambda: graph.update_state(CONFIG, {"messages": turns(4, 5)}))
        late = graph.copy(update={"checkpointer": with_tap(saver, rival)})
        with pytest.raises(CheckpointConflict):
            late.update_state(CONFIG, {"messages": [RemoveMessage("m1")]})
        assert names(graph) == ["m0", "m1", "m2", "m3", "m4"]
        (before,) = saver.archive("t")
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m1")]})
        (after,) = saver.archive("t")
        assert (after.id, after.count, len(after.starts)) == (before.id, 1, 2)
        saver.archive("t").restore(graph)
        assert names(graph) == ["m1", "m0", "m2", "m3", "m4"]


# -- any steps in any order --------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.sampled_from("aaaaarrw"), st.integers(0, 99)), min_size=8, max_size=20)


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(STEPS, st.booleans(), st.booleans(), st.booleans(), st.integers(1, 3))
def test_random_conversations_are_restored_completely(
    steps: Any, rule: bool, model: bool, pins: bool, keep: int
) -> None:
    with MemorySaver(archive_removed=rule) as saver:
        pinned = (lambda message: str(message.id).endswith("5")) if pins else None
        graph = shortened(saver, with_model=model, pinned=pinned, keep=("messages", keep))
        archive, every, moments = saver.archive("t"), list[str](), list[Any]()

        def unpinned(found: Sequence[str | None]) -> list[str | None]:
            """Return all but summaries, and messages kept when earlier ones were removed."""
            return [
                name for name in found if not str(name).startswith("summary ") and not (pins and str(name)[-1] == "5")
            ]

        for number, (kind, chosen) in enumerate(steps):
            if kind == "a" or not every:
                ask(graph, f"q{number}")
                every = [*every, *said(f"q{number}")]
            elif kind == "w":
                config, every = moments[chosen % len(moments)]
                saver.rewind(config)
            else:
                ids = [name for name in every if name not in names(graph)]
                archive.restore(graph, ids[chosen % len(ids)] if ids else None)
            moments.append((graph.get_state(CONFIG).config, every))
            shown = unpinned(names(graph))
            assert shown == [name for name in unpinned(every) if name in shown]
        archive.restore(graph)
        assert sorted(map(str, names(graph))) == sorted(every)
        assert unpinned(names(graph)) == unpinned(every)
        assert {message.text for message in archive.messages()} <= {"x", "a"}
        assert all(entry.by != "rule" for entry in archive)
