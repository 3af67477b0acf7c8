"""`saver.threads` on threads run by graphs, and the filters that it refuses."""

from __future__ import annotations

import logging
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support.places import Place
from support.process_children import exit_code, forked

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SqliteSaver, ThreadInfo, count_threads


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def only(saver: KeelSaver, thread: str) -> ThreadInfo:
    (info,) = saver.threads(match=thread)
    return info


def test_listed_status_during_the_life_of_a_thread(place: Place) -> None:
    broken = {"is broken": True}

    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("go on?"))]}

    def act(state: MessagesState) -> Any:
        if broken["is broken"]:
            raise TimeoutError("no answer")
        return {"messages": [AIMessage("done")]}

    builder = StateGraph(MessagesState).add_sequence([ask, act]).add_edge(START, "ask")
    with place.open() as saver:
        graph: Any = builder.compile(checkpointer=saver)
        graph.invoke({"messages": [("user", "hi")]}, config("t", user_id="ada"))
        info = only(saver, "t")
        assert (info.status, info.next, info.error, info.owner) == ("waiting", ("ask",), "", "ada")
        with pytest.raises(TimeoutError):
            graph.invoke(Command(resume="yes"), config("t"))
        info = only(saver, "t")
        assert (info.status, info.next, info.error) == ("failed", ("act",), "TimeoutError")
        assert [each.thread_id for each in saver.threads(error=TimeoutError)] == ["t"]
        assert list(saver.threads(status="waiting")) == []
        broken["is broken"] = False
        graph.invoke(None, config("t"))
        info = only(saver, "t")
        assert (info.status, info.next, info.error) == ("done", (), "")
        graph.update_state(config("t"), {"messages": [("user", "more")]}, as_node="act")
        assert only(saver, "t").status == "idle"
        before = StateGraph(MessagesState).add_node(act).add_edge(START, "act")
        graph = before.compile(checkpointer=saver, interrupt_before=["act"])
        graph.invoke({"messages": [("user", "hi")]}, config("stopped"))
        assert [each.thread_id for each in saver.threads(status="incomplete", node="act")] == ["stopped"]


def cut_off(place: Place, seen: int) -> None:
    """Report the list's status from the second node, then be killed."""

    def look(state: MessagesState) -> None:
        os.write(seen, only(saver, "t").status.encode())
        os._exit(9)

    builder = StateGraph(MessagesState).add_node("say", lambda state: None).add_node(look).add_edge(START, "say")
    with place.open(on_busy="wait") as saver:
        graph: Any = builder.add_edge("say", "look").compile(checkpointer=saver)
        graph.invoke({"messages": [("user", "hi")]}, config("t"), durability="sync")


def test_a_killed_run_is_listed_as_incomplete(place: Place) -> None:
    """The death of a process is not reported; only `status` looks for the run."""
    seen, seeing = os.pipe()
    child = forked(cut_off, place, seeing)
    assert os.read(seen, 20) == b"incomplete"
    assert exit_code(child) == 9
    os.close(seen)
    os.close(seeing)
    with place.open() as saver:
        info = only(saver, "t")
        assert (info.status, info.next, saver.status("t").state) == ("incomplete", ("look",), "cut off")
        assert [each.thread_id for each in saver.threads(status="incomplete")] == ["t"]


def test_threads_are_filtered_by_label_and_metadata() -> None:
    with MemorySaver() as saver:
        graph: Any = StateGraph(MessagesState).add_node("say", lambda state: {}).add_edge(START, "say").compile(saver)
        for thread, plan in (("a", "gold"), ("b", "free")):
            graph.invoke({"messages": []}, {**config(thread), "metadata": {"plan": plan}})
        assert [info.thread_id for info in saver.threads(where={"plan": "gold", "step": 1})] == ["a"]
        saver.timeline("b")[-1].label("kept")
        assert [info.thread_id for info in saver.threads(label="kept")] == ["b"]
        assert list(saver.threads(label="kept", where={"plan": "gold"})) == []


def test_threads_are_paged_by_cursor(place: Place) -> None:
    with place.open() as saver:
        graph = StateGraph(MessagesState).add_node("say", lambda state: {}).add_edge(START, "say").compile(saver)
        for number in range(7):
            graph.invoke({"messages": []}, config(f"t{number}", user_id="ada" if number % 2 else "bob"))
        seen: list[str] = []
        after = None
        while page := list(saver.threads(2, owner="bob", after=after)):
            seen += [info.thread_id for info in page]
            after = page[-1].cursor
        assert seen == ["t6", "t4", "t2", "t0"]
        times: Any = {"since": datetime.now(UTC) - timedelta(days=1), "until": datetime.now(UTC) + timedelta(days=1)}
        assert [info.thread_id for info in saver.threads(owner="bob", after=after, **times)] == []  # they may change
        with pytest.raises(InvalidInput, match="with other filters"):
            list(saver.threads(owner="ada", after=after))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"status": "busy"}, "status must be one of incomplete, waiting, failed, done, idle"),
        ({"status": ["done"]}, "status must be one of"),
        ({"owner": 5}, "owner must be a text"),
        ({"node": b"x"}, "node must be a text"),
        ({"error": 5}, "error must be a class, or its name"),
        ({"where": ["plan"]}, "where must map keys"),
        ({"where": {1: 2}}, "where must map keys"),
        ({"until": "now"}, "until must be a datetime"),
        (
            {"order": "created_at"},
            "order must be 'newest' or 'oldest', by last activity, not 'created_at': the index",
        ),
        ({"order": None}, "order must be"),
        ({"after": "x"}, "after must be the cursor"),
        ({"after": "WzEsMiwzXQ" * 1000}, "after must be the cursor"),
        ({"after": 5}, "after must be the cursor"),
        ({"after": "é"}, "after must be the cursor"),
        ({"after": "WyJhIiwgImIiLCAiYyJd"}, "with other filters"),
    ],
    ids=str,
)
def test_invalid_filters_are_refused(asked: dict[str, Any], said: str) -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match=said):
        list(saver.threads(**asked))


def test_threads_are_counted() -> None:
    infos = [
        ThreadInfo("a", 3, "2026-11-23T10:00:00+00:00", "1", 1, (), "ada", (), "done", (), "", (10, 5), 0.25),
        ThreadInfo("b", 2, "2026-11-24T10:00:00+00:00", "1", 1, (), "ada", (), "failed", ("x",), "E", (1, 2), None),
        ThreadInfo("c", 1, "2026-11-24T00:30:00+02:00", "1", 1, (), "<b>\x1b", (), "", ()),
    ]
    counts = count_threads(infos)
    assert (counts.all.threads, counts.all.checkpoints, counts.all.tokens, counts.all.cost) == (3, 6, (11, 7), 0.25)
    assert counts.statuses == {"done": 1, "failed": 1, "": 1}
    assert counts.days == {"2026-11-23": 2, "2026-11-24": 1}  # counted by UTC days
    assert (counts.owners["ada"].threads, counts.owners["<b>\x1b"].cost) == (2, None)
    assert str(counts).splitlines()[0] == "3 threads: 1 failed · 1 done"
    assert "\x1b" not in str(counts)
    assert "<b>" not in counts._repr_html_()  # private: as notebooks call it
    assert str(count_threads([])) == "0 threads"


def test_a_thread_whose_writes_are_damaged_is_listed_without_a_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage(interrupt("go on?"))]}

    with SqliteSaver(tmp_path / "agent.db") as saver:
        graph = StateGraph(MessagesState).add_node(ask).add_edge(START, "ask").compile(checkpointer=saver)
        for thread in "ab":
            graph.invoke({"messages": []}, config(thread))
        latest = graph.get_state(config("b")).config["configurable"]["checkpoint_id"]
    with sqlite3.connect(tmp_path / "agent.db") as damaged:
        # Not the rows with the greatest key: LangGraph stores writes from its own threads, in any order.
        assert damaged.execute("UPDATE batches SET body = x'00' WHERE checkpoint = ?", (latest,)).rowcount == 1
    damaged.close()
    with SqliteSaver(tmp_path / "agent.db") as saver, caplog.at_level(logging.WARNING):
        found = {info.thread_id: info.status for info in saver.threads()}
    assert sorted(found) == ["a", "b"]
    assert sorted(found.values()) == ["", "waiting"]
    assert "listed without its status" in caplog.text
