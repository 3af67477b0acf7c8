"""Changes by an attacker without the keys raise a named error: no wrong values.

The store is in memory, so that each sealed record can be changed in place: a byte, its end, or all of it by plain
text, by another record, or by its own earlier version. Backends store these bytes unchanged;
`tests/backends/test_damage.py` changes bytes of their own files and tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import combinations, count, permutations
from typing import Any

import pytest
from support.stores import MemoryUnderTest
from support.tiers import sized

from langgraph_keel import KeelSaver, Keyring, LocalKey
from langgraph_keel.engine import cells, records
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import SEALED, Absent, absent_frame, frame
from langgraph_keel.engine.records import Batch, Row
from langgraph_keel.errors import CorruptStore, KeyMissing
from langgraph_keel.keys.datakeys import KIND, STORE
from langgraph_keel.testing.rig import Author, SyncFace, at, exact

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
BYTES = {
    ("Batch", "body"),
    ("Cell", "body"),
    ("Cell", "header"),
    ("Entry", "header"),
    ("NewEntry", "header"),
    ("Node", "header"),
    ("Row", "body"),
}
"""Fields of records that are bytes. Each is sealed, and changed below."""
REFUSED = (CorruptStore, KeyMissing)


def test_these_tests_cover_every_kind_of_record() -> None:
    found = {
        (kind.__name__, field.name)
        for module in (records, cells)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "__dataclass_fields__")
        for field in fields(kind)
        if field.type in ("bytes", "bytes | None")
    }
    assert found == BYTES


Slot = tuple[str, Callable[[], bytes], Callable[[bytes], None]]
"""A sealed record: its kind, a function that reads it, and one that writes it."""


class Store:
    """Two threads with subgraphs, writes and cells, all sealed, in accessible memory."""

    def __init__(self) -> None:
        self.backend = MemoryUnderTest()
        self.state: Any = self.backend._state  # private: the records that an attacker holds
        ids = (f"{number:08}" for number in count(1))
        for thread in ("t", "u"):
            for ns in ("", "sub"):
                author = Author(SyncFace(self.open), at(thread, ns), ids)
                for n in range(3):
                    long = [f"{thread} {ns} {k} " + "x" * 100 for k in range(n + 2)]
                    values = {"list": long, "other": long[::-1], "text": f"{thread} {ns} {n} " + "y" * 200, "small": n}
                    config = author.put(values)
                    author.face.put_writes(config, [("a", f"{thread} {ns} {n}")], f"task {n}")
        face = SyncFace(self.open)
        for shelf in (Shelf("t", "label"), Shelf("t", "tool"), Shelf("u", "label"), Shelf(None, "label")):
            for key in ("k", "l"):
                cell = Cell(f"token{key}", frame(f"{shelf} {key}".encode()), frame(f"body of {shelf} {key}".encode()))
                face.verb("swap_cell", shelf, key, None, cell)
        self.told = self.read()

    def open(self) -> KeelSaver:
        return self.backend.open(encryption=KEYRING)

    def read(self) -> Any:
        """Return all readable data, by a saver with empty caches."""
        face = SyncFace(self.open)
        told: list[Any] = []
        for thread in ("t", "u"):
            for ns in ("", "sub"):
                told += [exact(found) for found in face.list(at(thread, ns))]
                told.append(exact(face.get_tuple(at(thread, ns))))
            told.append([node.header for node in face.verb("read_graph", thread).nodes])
        for shelf in self.state.cells:
            if shelf.kind not in (KIND, STORE.kind):
                told += [face.verb("read_cells", shelf, ["k", "l"]), face.verb("list_cells", shelf, "", None, 9)]
        return told

    def slots(self) -> Iterator[Slot]:
        for thread in self.state.values():
            for record in thread.records.values():
                yield "header", *self._attribute(record, "entry", "header")
            for log in thread.logs.values():
                for lo in log.rows:
                    yield "row", *self._item(log.rows, lo, lambda row, body: Row(row.lo, row.count, body))
            for batches in thread.batches.values():
                yield "writes", *self._item(batches, 0, lambda batch, body: Batch(batch.task_id, batch.task_path, body))
        for shelf, kept in self.state.cells.items():
            if shelf.kind not in (KIND, STORE.kind):
                for key in kept:
                    yield "cell", *self._cell(kept, key, "header")
                    yield "cell body", *self._cell(kept, key, "body")

    def _attribute(self, holder: Any, name: str, part: str) -> tuple[Callable[[], bytes], Callable[[bytes], None]]:
        return (
            lambda: getattr(getattr(holder, name), part),
            lambda body: setattr(holder, name, replace(getattr(holder, name), **{part: body})),
        )

    def _item(self, holder: Any, key: Any, make: Callable[[Any, bytes], Any]) -> Any:
        return lambda: holder[key].body, lambda body: holder.__setitem__(key, make(holder[key], body))

    def _cell(self, holder: Any, key: str, part: str) -> Any:
        return (
            lambda: getattr(holder[key], part),
            lambda body: holder.__setitem__(key, replace(holder[key], **{part: body})),
        )


@pytest.fixture(scope="module")
def store() -> Store:
    return Store()


def refused(store: Store) -> bool:
    """Return whether reading everything raises a named error, and no other error."""
    try:
        told = store.read()
    except REFUSED:
        return True
    assert told == store.told, "a wrong value was read"
    return False


def test_every_record_is_sealed(store: Store) -> None:
    slots = list(store.slots())
    assert {kind for kind, *_ in slots} == {"header", "row", "writes", "cell", "cell body"}
    assert all(read().startswith(SEALED) for _, read, _ in slots)
    assert not refused(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body[:-16],
        lambda body: body[: len(body) // 2],
        lambda body: body[:5],
        lambda body: b"",
        lambda body: body + b"\0",
        lambda body: frame(b"\x91\xc0"),
        lambda body: b"\x92\x00\xc0",
    ],
    ids=["a byte less", "no tag", "half", "no ciphertext", "nothing", "a byte more", "plain text", "no frame"],
)
def test_truncated_or_replaced_records_are_refused(store: Store, change: Callable[[bytes], bytes]) -> None:
    for kind, read, write in store.slots():
        before = read()
        write(change(before))
        assert refused(store), kind
        write(before)


@pytest.mark.parametrize("reason", ["", "an object that was never there"])
def test_a_cell_cannot_be_replaced_by_a_reference_to_an_object(store: Store, reason: str) -> None:
    note = absent_frame(Absent(b"8 bytes.", b"8 bytes.", bytes(32), 7, 1, reason))
    for kind, read, write in store.slots():
        if kind in ("cell", "cell body"):
            before = read()
            write(note)
            assert refused(store), kind
            write(before)


@pytest.mark.slow
def test_every_changed_byte_is_refused(store: Store) -> None:
    seen = set()
    for kind, read, write in store.slots():
        if kind in seen:
            continue
        seen.add(kind)
        before = read()
        for place in range(len(before)):
            write(before[:place] + bytes([before[place] ^ 1 << place % 8]) + before[place + 1 :])
            assert refused(store), (kind, place)
        write(before)


@pytest.mark.slow
def test_moved_records_are_refused(store: Store) -> None:
    """Records of other threads, namespaces, channels, checkpoints and kinds."""
    slots = list(store.slots())
    for (_, read, write), (_, read_other, write_other) in combinations(slots[:: sized(5, 5, 3)], 2):
        before, other = read(), read_other()
        write(other)
        assert refused(store)
        write_other(before)  # exchanged
        assert refused(store)
        write(before)
        assert refused(store)
        write_other(other)


def test_exchanged_rows_of_a_channel_are_refused(store: Store) -> None:
    for thread in store.state.values():
        for log in thread.logs.values():
            for one, other in permutations(log.rows, 2):
                before = dict(log.rows)
                if before[one].count != before[other].count:
                    continue
                log.rows[one] = replace(before[other], lo=one)
                log.rows[other] = replace(before[one], lo=other)
                assert refused(store)
                log.rows.update(before)


def test_a_checkpoint_with_references_of_another_is_refused(store: Store) -> None:
    for thread in store.state.values():
        records_of = list(thread.records.values())
        for one, other in permutations(records_of, 2):
            before = one.entry
            if before.refs == other.entry.refs:
                continue
            one.entry = replace(before, refs=other.entry.refs)
            assert refused(store)
            one.entry = before


def test_a_checkpoint_with_a_changed_parent_or_run_is_refused(store: Store) -> None:
    for thread in store.state.values():
        for record in thread.records.values():
            before = record.entry
            places = [other.entry.address for other in thread.records.values()]
            others = {place.checkpoint_id for place in places if place.checkpoint_ns == before.address.checkpoint_ns}
            for other in others - {before.parent}:
                record.entry = replace(before, parent=other)
                assert refused(store), other
            record.entry = replace(before, run_id="another")
            assert refused(store)
            record.entry = before


def test_changed_or_moved_keys_are_refused(store: Store) -> None:
    kept = store.state.cells
    for shelf in (Shelf("t", KIND), STORE):
        (key,) = kept[shelf]
        before = kept[shelf][key]
        for place in range(len(before.header)):
            changed = before.header[:place] + bytes([before.header[place] ^ 1]) + before.header[place + 1 :]
            kept[shelf][key] = replace(before, header=changed)
            assert refused(store), place
        kept[shelf][key] = before
    mine, other = Shelf("t", KIND), Shelf("u", KIND)
    kept[mine], kept[other] = kept[other], kept[mine]
    assert refused(store)
    kept[mine], kept[other] = kept[other], kept[mine]
    assert not refused(store)


def test_a_thread_with_a_destroyed_key_cannot_be_read() -> None:
    store = Store()
    del store.state.cells[Shelf("t", KIND)]
    with pytest.raises(KeyMissing, match="destroyed"):
        SyncFace(store.open).get_tuple(at("t"))
    assert SyncFace(store.open).get_tuple(at("u")) is not None


def test_an_unreadable_thread_does_not_stop_a_listing(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    del store.state.cells[Shelf("t", KIND)]
    with store.open() as saver:
        found = {info.thread_id: info.step for info in saver.threads()}
    assert found == {"t": None, "u": 1}
    assert "its key was destroyed" in caplog.text
