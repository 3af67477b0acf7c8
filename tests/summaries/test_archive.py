"""The archive, on every backend, sync and async: parts are read back byte by byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import MessagesState, StateGraph
from support.summaries.archives import CONFIG, Box, box, of_every_kind, taking, turns

from langgraph_keel import Archive, CorruptStore, InvalidConfig, InvalidInput, KeelSaver, MemorySaver, NotFound
from langgraph_keel.engine.cells import Cell
from langgraph_keel.summaries.archive.parts import archive_of
from langgraph_keel.summaries.archive.storage import PIECE, archive_messages
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap

__all__ = ["box"]  # a fixture


@pytest.fixture
def memory() -> Any:
    with MemorySaver(archive_removed=True) as saver:
        yield Box(saver)


# -- round trips -------------------------------------------------------------------------------------------------------


def test_archived_messages_are_read_back_byte_by_byte(box: Box) -> None:
    messages = of_every_kind()
    taken = taking(messages, by="summary", model="m-1", summary="in short", summary_id="sum", previous="0" * 24)
    entry = box.put(taken)
    assert entry.id == taken.id
    assert (entry.thread_id, entry.checkpoint_ns, entry.checkpoint_id) == ("t", "", "1f0")
    assert (entry.step, entry.node, entry.channel, entry.by) == (3, "n", "messages", "summary")
    assert (entry.model, entry.summary, entry.summary_id, entry.previous) == ("m-1", "in short", "sum", "0" * 24)
    assert entry.message_ids == tuple(message.id or "" for message in messages)
    assert (entry.count, entry.bytes) == (len(messages), sum(map(len, box.bytes_of(messages))))
    assert entry.at.utcoffset() is not None
    assert not entry.pinned
    assert box.call("entries") == [entry]
    found = box.call("messages", entry)
    assert found == messages
    assert box.bytes_of(found) == box.bytes_of(messages)
    assert [type(message) for message in found] == [type(message) for message in messages]


def test_parts_are_listed_searched_pinned_and_removed(box: Box) -> None:
    assert box.call("entries") == []
    assert box.call("messages") == []
    old = box.keep(turns(0, 3), summary="first", summary_id="s1")
    new = box.keep([*turns(3, 5), AIMessage("SAID IT: Straße", id="x")], previous=old.id)
    assert [entry.id for entry in box.call("entries")] == [old.id, new.id]
    assert [message.id for message in box.call("messages")] == ["m0", "m1", "m2", "m3", "m4", "x"]
    assert box.call("messages", new.id) == [*turns(3, 5), AIMessage("SAID IT: Straße", id="x")]
    assert box.call("messages", step=3) == box.call("messages")
    assert box.call("messages", step=4) == []
    hits = box.call("search", "said 1")
    assert [(hit.entry.id, hit.index, hit.message.id) for hit in hits] == [(old.id, 1, "m1")]
    assert [hit.message.id for hit in box.call("search", "STRASSE")] == ["x"]
    assert len(box.call("search", "said")) == 6
    assert [hit.message.id for hit in box.call("search", "said", limit=2)] == ["m0", "m1"]
    assert box.call("message", "m4") == turns(4, 5)[0]
    pinned = box.call("pin", old.id)
    assert pinned == replace(old, pinned=True)
    assert box.call("pin", old) == pinned
    assert box.call("messages", old) == turns(0, 3)
    assert box.call("unpin", old) == old
    box.call("remove", old)
    assert box.call("entries") == [new]
    assert list(box.cells()) == [new.id]
    for name in ("messages", "pin", "remove", "message"):
        with pytest.raises(NotFound):
            box.call(name, old.id)


def test_archiving_the_same_messages_again_updates_the_part(box: Box) -> None:
    entry = box.call("pin", box.keep(turns(0, 3), summary="first try", summary_id="s"))
    again = box.keep(turns(0, 3), summary="second try", summary_id="s")
    assert again == replace(entry, summary="second try", at=again.at)
    assert box.call("entries") == [again]
    assert box.call("messages", again) == turns(0, 3)
    edited = box.keep([*turns(0, 2), HumanMessage("edited", id="m2")])
    assert edited.id != entry.id
    assert [message.text for message in box.call("messages")] == ["said 0", "said 1", "edited"]
    assert box.call("message", "m2").text == "edited"


def test_a_large_part_is_stored_in_pieces(box: Box) -> None:
    messages = [HumanMessage("x" * PIECE, id=str(n)) for n in range(3)]
    box.begin()
    small = box.keep(turns(0, 2))
    entry = box.keep(messages)
    assert sorted(box.cells()) == sorted([small.id, entry.id, f"{entry.id}.00000", f"{entry.id}.00001"])
    assert box.call("entries") == [small, entry]
    assert box.call("messages", entry) == messages
    assert len(box.call("messages")) == 5
    assert list(box.saver.check()) == []
    box.saver.copy_thread("t", "copy")
    assert box.call("messages", entry.id, thread="copy") == messages
    box.keep(messages)
    box.call("remove", entry)
    assert list(box.cells()) == [small.id]


def test_a_crash_leaves_a_complete_part_or_none(memory: Box) -> None:
    messages = [HumanMessage("x" * PIECE, id=str(n)) for n in range(3)]
    for lost_reply in (False, True):
        for at in range(3):
            tapped = with_tap(memory.saver, Fault(at, lost_reply=lost_reply))
            with pytest.raises(Injected):
                tapped.engine.run(archive_messages(tapped.engine.session, taking(messages)))
            entries = memory.call("entries")
            assert len(entries) == (at == 2 and lost_reply)
            assert all(memory.call("messages", entry) == messages for entry in entries)
            entry = memory.keep(messages)
            assert memory.call("messages", entry) == messages
            memory.call("remove", entry)
            assert memory.cells() == {}


def test_a_part_archived_again_survives_a_concurrent_removal(memory: Box) -> None:
    messages = [HumanMessage("x" * PIECE, id=str(n)) for n in range(2)]
    entry = memory.keep(messages)
    late = with_tap(memory.saver, Meanwhile(2, lambda: memory.keep(messages)))
    late.archive("t").remove(entry)
    assert memory.call("messages", entry.id) == messages


def test_round_trips_of_archive_operations(memory: Box) -> None:
    counter = Counter()
    saver = with_tap(memory.saver, counter)
    taken = taking(turns(0, 50))
    for expected, call in (
        (1, lambda: saver.engine.run(archive_messages(saver.engine.session, taken))),
        (2, lambda: saver.engine.run(archive_messages(saver.engine.session, taken))),
        (1, lambda: saver.archive("t").entries()),
        (1, lambda: saver.archive("t").messages(taken.id)),
        (2, lambda: saver.archive("t").messages()),
        (2, lambda: saver.archive("t").search("said")),
        (2, lambda: saver.archive("t").pin(taken.id)),
        (2, lambda: saver.archive("t").remove(taken.id)),
        (0, lambda: saver.archive("t")),
    ):
        call()
        assert counter.taken() == expected


# -- the archive's thread ----------------------------------------------------------------------------------------------


def talk(saver: KeelSaver) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("n", lambda state: {"messages": [AIMessage("ok")]})
    builder.set_entry_point("n")
    graph = builder.compile(checkpointer=saver)
    for n in range(3):
        graph.invoke({"messages": [HumanMessage(f"q{n}")]}, CONFIG)
    return graph


def test_an_archive_follows_its_thread(box: Box) -> None:
    graph, saver = talk(box.saver), box.saver
    states = list(graph.get_state_history(CONFIG))
    ids = [state.config["configurable"]["checkpoint_id"] for state in states]
    early, late, unknown = (
        box.put(replace(taking(turns(n, n + 2)), checkpoint_id=at))
        for n, at in ((0, ids[6]), (2, ids[1]), (4, "1f0-pruned"))
    )
    saver.labels.set(states[4].config, "here")
    saver.fork(states[4].config, "fork")
    saver.fork(states[1].config, "at")
    assert [entry.id for entry in box.call("entries", thread="fork")] == [early.id, unknown.id]
    assert [entry.id for entry in box.call("entries", thread="at")] == [early.id, unknown.id]
    assert box.call("messages", unknown.id, thread="fork") == turns(4, 6)
    saver.copy_thread("t", "copy")
    saver.rewind(states[4].config)
    saver.prune(["t", "copy"])
    for thread in ("t", "copy"):
        assert [replace(entry, thread_id="t") for entry in box.call("entries", thread=thread)] == [early, late, unknown]
        assert box.call("messages", late.id, thread=thread) == turns(2, 4)
    saver.delete_thread("t")
    saver.prune(["copy"], strategy="delete")
    assert box.call("entries") == box.call("entries", thread="copy") == []
    assert box.cells() == {}
    assert len(box.call("entries", thread="fork")) == 2


# -- bad input and damage ----------------------------------------------------------------------------------------------


def test_invalid_arguments_are_refused(memory: Box) -> None:
    with pytest.raises(InvalidConfig):
        memory.saver.archive("")
    with pytest.raises(InvalidInput, match="nothing"):
        taking([])
    with pytest.raises(InvalidInput, match="limit"):
        memory.call("search", "x", limit=-1)
    for name in ("x", "../t", "0" * 24, "0" * 24 + ".00000", ""):
        with pytest.raises(NotFound):
            memory.call("messages", name)
        with pytest.raises(NotFound):
            memory.call("message", name)
    entry = memory.keep(turns(0, 2))
    archive = memory.saver.archive("t")
    assert isinstance(archive, Archive)
    assert (archive[0], archive[-1], archive[entry.id], archive[:], len(archive)) == (entry, entry, entry, [entry], 1)
    assert list(archive) == [entry]
    with pytest.raises(IndexError):
        archive[1]
    with pytest.raises(NotFound):
        archive["x"]
    for odd in ("messages", [3], b"x", 7):
        with pytest.raises(InvalidInput, match="archive_removed"):
            MemorySaver(archive_removed=odd)  # type: ignore[arg-type]


def test_damaged_parts_are_reported(memory: Box) -> None:
    messages = [HumanMessage("x" * PIECE, id=str(n)) for n in range(2)]
    entry = memory.keep(messages)
    cells, codec = memory.cells(), memory.saver.engine.session.codec
    head, piece = cells[entry.id], cells[f"{entry.id}.00000"]
    (said,) = codec.decode(head.header)
    bodies = [b"", b"nonsense", piece.body[:-1], codec.encode([1]), codec.encode(turns(0, 1)), codec.encode([])]
    for key, cell in ((entry.id, head), (f"{entry.id}.00000", piece)):
        for body in bodies:
            memory.set_cell(key, replace(cell, token="bad", body=body))
            with pytest.raises(CorruptStore, match=f"thread 't', archived part {entry.id}"):
                memory.call("messages", entry.id)
            with pytest.raises(CorruptStore, match=entry.id):
                memory.call("search", "x")
        memory.set_cell(key, cell)
    memory.set_cell(f"{entry.id}.00000", None)
    with pytest.raises(CorruptStore, match="missing"):
        memory.call("messages", entry.id)
    for change in CHANGES:
        bad = {name: value for name, value in {**said, **change}.items() if value != "left out"}
        memory.set_cell(entry.id, Cell("bad", codec.encode([bad]), head.body))
        with pytest.raises(CorruptStore, match=f"archived part {entry.id}"):
            memory.call("entries")
    for header in (b"", b"nonsense", codec.encode([]), codec.encode([1]), codec.encode([[]])):
        memory.set_cell(entry.id, Cell("bad", header, head.body))
        with pytest.raises(CorruptStore, match=f"archived part {entry.id}"):
            memory.call("entries")


CHANGES: list[dict[str, Any]] = [
    {"channel": 3},
    {"channel": "left out"},
    {"summary": ["x"]},
    {"step": "1"},
    {"bytes": True},
    {"pieces": 10**9},
    {"pieces": "left out"},
    {"at": "yesterday"},
    {"at": 3},
    {"messages": []},
    {"messages": ["0"]},
    {"messages": [1, 2]},
    {"messages": "left out"},
    {"digests": "text"},
]


def test_an_archive_with_another_serializer() -> None:
    with MemorySaver(serde=JsonPlusSerializer()) as saver:
        box = Box(saver)
        entry = box.keep(turns(0, 3), summary="s")
        assert box.call("entries") == [entry]
        assert box.call("messages") == turns(0, 3)
        assert [key for key, _ in saver.engine.run(archive_of(saver.engine.session, "t").every_raw())] == [entry.id]
