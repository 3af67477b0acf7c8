"""Regressions found in a review of rewind, fork and timelines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from support.log_graphs import CONFIG, State, graph, say
from support.places import Place

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, ToolCache

WAITS_AND_ASKED: Any = [{"waits": True}, {"asked": True}]


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver


@pytest.mark.parametrize("how", ["rewind", "rewind, then a step", "label on the way that was left", "update"])
def test_a_prune_keeps_the_calls_of_an_abandoned_branch(saver: KeelSaver, how: str) -> None:
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    call = AIMessage("", id="1", tool_calls=[{"name": "pay", "args": {"amount": 3}, "id": "c"}])
    node = ToolNode([pay], messages_key="log", wrap_tool_call=ToolCache(saver).wrap_tool_call)
    made = graph(saver, say("a"), ("b", lambda state: {"log": [call]}), ("pay", node))
    made.invoke({"log": []}, CONFIG, durability="sync")
    assert paid == [3]
    tl = saver.timeline("t")
    if how == "update":
        made.update_state(tl[2].config, {"log": ["again"]}, as_node="a")
    else:
        if how == "label on the way that was left":
            tl[-1].label("paid here")
        tl.rewind(3)
        if how == "rewind, then a step":
            made.invoke(None, CONFIG, durability="sync", interrupt_before=["pay"])
    saver.prune(["t"])
    saver.prune(["t"])
    made.invoke(None, CONFIG, durability="sync")
    assert paid == [3]


def test_a_prune_keeps_the_memory_of_subgraphs_at_a_label(saver: KeelSaver) -> None:
    inner = StateGraph(State).add_node("count", lambda state: {"log": ["once"]}).add_edge(START, "count")
    made = graph(saver, ("sub", inner.compile(checkpointer=True)))
    made.invoke({"log": [1]}, CONFIG, durability="sync")
    saver.labels.set(CONFIG, "one turn")
    remembered = memory(saver)
    made.invoke({"log": [2]}, CONFIG, durability="sync")
    assert memory(saver) != remembered
    saver.prune(["t"])
    saver.rewind(saver.timeline("t")["one turn"])
    assert memory(saver) == remembered


def memory(saver: KeelSaver) -> Any:
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}})
    return found and found.checkpoint["channel_values"]["log"]


def test_a_deleted_run_is_deleted_from_its_twins(saver: KeelSaver) -> None:
    made = graph(saver, say("a"))
    made.invoke({"log": []}, {**CONFIG, "metadata": {"run_id": "one"}}, durability="sync")
    made.invoke({"log": []}, {**CONFIG, "metadata": {"run_id": "two"}}, durability="sync")
    saver.timeline("t").rewind(-1)
    saver.delete_for_runs(["two"])
    assert {moment.metadata.get("run_id") for moment in saver.timeline("t")} == {"one"}
    assert saver.timeline("t").head.values["log"] == ["a"]


def test_a_replay_of_a_rewound_thread_compares_its_last_step() -> None:
    words = ["one", "two"]
    with MemorySaver() as saver:
        made = graph(saver, ("speak", lambda state: {"log": [words[0]]}), say("b"))
        for _ in range(2):
            made.invoke({"log": []}, CONFIG)
        saver.timeline("t").rewind(3)
        assert saver.provenance.replay(made, CONFIG).same
        words.reverse()
        assert not saver.provenance.replay(made, CONFIG).same


# -- forks with values ---------------------------------------------------------------------------------------------


def test_a_fork_with_values_resumes_from_its_config(saver: KeelSaver) -> None:
    made = graph(saver, say("a"), say("b"))
    made.invoke({"log": []}, CONFIG, durability="sync")
    tl = saver.timeline("t")
    for thread in ("new", None):
        config = tl.fork(2, thread, graph=made, values={"log": ["x"]}, as_node="a")
        made.invoke(None, config)
        made.invoke({"log": ["turn"]}, config)
        assert made.invoke({"log": ["turn"]}, config)["log"].count("turn") == 2


def test_a_failed_fork_with_values_leaves_no_thread(saver: KeelSaver) -> None:
    made = graph(saver, say("a"), say("b"))
    made.invoke({"log": []}, CONFIG, durability="sync")
    tl = saver.timeline("t")
    with MemorySaver() as other:
        for wrong in (graph(other, say("a")), None):
            with pytest.raises(InvalidInput):
                tl.fork(1, "new", graph=wrong, values={"log": ["x"]})
    with pytest.raises(Exception, match="nobody"):
        tl.fork(1, "new", graph=made, values={"log": ["x"]}, as_node="nobody")
    assert [info.thread_id for info in saver.threads()] == ["t"]
    tl.fork(1, "new", graph=made, values={"log": ["x"]}, as_node="a")


# -- what a timeline says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_an_answered_question_no_longer_waits(saver: KeelSaver, durability: Any) -> None:
    made = graph(saver, ("ask", lambda state: {"log": [interrupt("may I?")]}))
    made.invoke({"log": []}, CONFIG, durability=durability)
    assert [len(saver.timeline("t").find(**what)) for what in WAITS_AND_ASKED] == [1, 1]
    made.invoke(Command(resume="yes"), CONFIG, durability=durability)
    tl = saver.timeline("t")
    assert [len(tl.find(**what)) for what in WAITS_AND_ASKED] == [0, 1]
    assert "asked: may I?" in str(tl)


def test_a_branch_stored_last_is_not_the_head(saver: KeelSaver) -> None:
    graph(saver, say("a"), say("b")).invoke({"log": []}, CONFIG, durability="sync")
    tl = saver.timeline("t")
    tl.fork(1)
    assert (tl.head.position, tl[-1].position) == (3, 4)
    assert not tl.diff(3)
    assert [edit.after for edit in tl.diff(2) if edit.path[0] == "log"] == ["b"]


def test_equal_values_stored_again_are_not_changes() -> None:
    with MemorySaver() as saver:
        at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for step, log in enumerate([["a"], ["a", "b"], []]):
            checkpoint: Any = {"id": f"{step}", "v": 4, "ts": "", "channel_versions": {}, "versions_seen": {}}
            checkpoint["channel_values"] = {"log": log, "nan": float("nan"), "empty": []}
            at = saver.put(at, checkpoint, {"step": step, "source": "loop"}, {})
            saver.engine.session.memo.forget_thread("t")  # as another process
        told = [{change.channel: change.text for change in moment.changes} for moment in saver.timeline("t")]
    assert told == [{"log": "+1: a", "nan": "= nan", "empty": "= []"}, {"log": "+1: b"}, {"log": "-2"}]


def test_a_search_reads_all_added_values(saver: KeelSaver) -> None:
    graph(saver, ("a", lambda state: {"log": ["x" * 200 + "needle", *"bcdef"]})).invoke({"log": []}, CONFIG)
    tl = saver.timeline("t")
    assert [moment.nodes for moment in tl.find(text="needle")] == [("a",)]
    assert "branch" not in str(tl.find(where=lambda moment: moment.position != 1))
    assert "older" not in str(tl.find(node="a"))
    for when in ("yesterday", 3.5, "2026-13-45"):
        with pytest.raises(InvalidInput, match="neither a time"):
            tl.find(after=when)  # type: ignore[arg-type]


def test_negative_positions_compare_correctly_in_find() -> None:
    with MemorySaver() as saver:
        at: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for step in range(600):
            checkpoint: Any = {"id": f"{step:05}", "v": 4, "ts": "", "channel_versions": {}, "versions_seen": {}}
            checkpoint["channel_values"] = {}
            at = saver.put(at, checkpoint, {"step": step, "source": "loop"}, {})
        tl = saver.timeline("t")
        moment = tl[-3]
        assert moment.position == -3
        assert len(tl.find(after=moment)) == 2
        assert len(saver.timeline("t").find(before=moment)) == 597
