"""Hints of the last write do not affect stored data: the INSERT verifies them."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.process_children import exit_code, forked

from langgraph_keel import SqliteSaver, StoreError
from langgraph_keel.backends.sqlite import entries as sqlite_entries
from langgraph_keel.backends.sqlite.entries import MOST_HINTS
from langgraph_keel.backends.sqlite.store import SqliteStore
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import raw_frame, resolve
from langgraph_keel.engine.records import NEW, BaseGone, Batch, Kind, Moved, NewEntry, Ref, Row, Stored
from langgraph_keel.engine.removal import live_runs
from langgraph_keel.testing.rig import at, checkpoint_of

TABLES = ("threads", "namespaces", "channels", "entries", "thread_index", "items", "batches")
BODY = raw_frame(b"body")


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """The number of right and of wrong hints."""
    counted: Counter[bool] = Counter()
    insert_next = sqlite_entries._insert_next  # private: the only place that shows whether a hint was right

    def count(*args: Any) -> Any:
        stored = insert_next(*args)
        counted[stored is not None] += 1
        return stored

    monkeypatch.setattr(sqlite_entries, "_insert_next", count)
    return counted


def entry(thread: str, checkpoint_id: str, parent: str | None = None, **fields: Any) -> NewEntry:
    refs, appends = {"a": Ref(Kind.LIST, ((NEW, NEW + 1),))}, {"a": (Row(NEW, 1, BODY),)}
    address = Address(thread, "", checkpoint_id)
    return NewEntry(address, parent, BODY, refs, appends, updated_at="2026-01-01T00:00:00", **fields)


def tables(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() for table in TABLES}


class Twins:
    """Two databases with the same history, by processes with and without a memory."""

    def __init__(self, directory: Path) -> None:
        self.savers = [SqliteSaver(directory / name) for name in ("hints.db", "none.db")]
        self.stores = [SqliteStore(), SqliteStore()]
        self.known: list[tuple[NewEntry, Any]] = []

    def call(self, who: int, verb: str, *args: Any) -> Any:
        remembers, forgets = self.savers
        outcome = remembers.engine.run(getattr(self.stores[who], verb)(*args))
        assert forgets.engine.run(getattr(SqliteStore(), verb)(*args)) == outcome
        return outcome

    def put(self, chance: random.Random, number: int) -> None:
        thread, namespace = chance.choice("tttu"), chance.choice(["", "", "", "", "s"])
        own = [each for each in self.known if each[0].address.thread_id == thread]
        own = [each for each in own if each[0].address.checkpoint_ns == namespace]
        continued = chance.choice([*own[-1:] * 9, *own[-3:], None])
        base = continued if chance.random() < 0.8 else None
        refs: dict[str, Ref] = dict(base[0].refs) if base else {}
        appends = {}
        for channel in chance.sample("abc", chance.choice([0, 1, 1, 2])):
            count = chance.choice([1, 1, 3])
            appends[channel] = (Row(NEW, count, BODY),)
            before = refs[channel].runs if channel in refs else ()
            refs[channel] = Ref(Kind.LIST, (*before, (NEW, NEW + count)))
        packed = {
            name: ref.runs[0] for name, ref in refs.items() if base and chance.random() < 0.1 and ref.runs[0][0] < NEW
        }
        new = NewEntry(
            Address(
                thread,
                namespace,
                chance.choice(own)[0].address.checkpoint_id if own and chance.random() < 0.05 else f"{number:04}",
            ),
            continued[0].address.checkpoint_id if continued else None,
            raw_frame(b"header"),
            refs,
            appends,
            repacks={name: (Row(lo, hi - lo, raw_frame(b"packed")),) for name, (lo, hi) in packed.items()},
            base=base[1].stamp if base else None,
            checked=chance.random() < 0.5,
            on_conflict=chance.choice(["raise"] * 6 + ["fork", "beside"]),
            updated_at=f"2026-01-01T00:00:{chance.randrange(number, number + 8) // 3:02}",
            terms=chance.choice([("x",), ("x",), ("y",)]),
        )
        outcome = self.call(chance.choice([0, 0, 0, 1]), "write_entry", new)
        if isinstance(outcome, Stored):
            numbered = {name: resolve(ref.runs, outcome.first.get(name, 0)) for name, ref in refs.items()}
            stored = {name: Ref(Kind.LIST, runs) for name, runs in numbered.items()}
            self.known.append((NewEntry(new.address, new.parent, b"", stored), outcome))

    def write(self, chance: random.Random) -> None:
        if self.known:
            terms = chance.choice([(), (), ("z",)])
            self.call(0, "write_batch", chance.choice(self.known[-4:])[0].address, Batch("task", "", BODY, terms))

    def remove(self, chance: random.Random) -> None:
        thread = chance.choice("tu")
        gone = {each[1].stamp for each in self.known if each[0].address.thread_id == thread and chance.random() < 0.3}
        self.call(0, "remove_entries", thread, gone, {})
        graph = self.call(0, "read_graph", thread)
        self.call(0, "remove_rows", thread, live_runs(graph), graph)

    def delete(self, chance: random.Random) -> None:
        thread = chance.choice("tu")
        self.call(0, "delete_thread", thread)
        self.call(0, "copy_thread", "u" if thread == "t" else "t", thread)


@pytest.mark.parametrize("seed", range(12))
def test_hints_do_not_change_the_stored_data(tmp_path: Path, tries: Counter[bool], seed: int) -> None:
    chance, twins = random.Random(seed), Twins(tmp_path)
    for number in range(120):
        act = chance.choice(["put"] * 20 + ["write"] * 3 + ["remove", "delete"])
        twins.put(chance, number) if act == "put" else getattr(twins, act)(chance)
    for saver in twins.savers:
        saver.close()
    assert tables(tmp_path / "hints.db") == tables(tmp_path / "none.db")
    assert tries[True] > 5
    assert tries[False] > 5


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        yield saver


def test_a_hint_is_rejected_after_a_checkpoint_was_stored_twice(saver: SqliteSaver, tries: Counter[bool]) -> None:
    """Another process stores the next checkpoint twice, so its number is later."""
    ours, theirs = SqliteStore(), SqliteStore()
    saver.engine.run(ours.write_entry(entry("t", "1")))
    for _ in range(2):
        saver.engine.run(theirs.write_entry(entry("t", "2", "1")))
    assert saver.engine.run(ours.write_entry(entry("t", "3", "1", checked=True))) == Moved("2")
    assert tries == {False: 2}


def test_the_number_of_a_removed_checkpoint_is_not_used_again(saver: SqliteSaver, tries: Counter[bool]) -> None:
    ours, theirs = SqliteStore(), SqliteStore()
    saver.engine.run(ours.write_entry(entry("t", "1")))
    removed = saver.engine.run(theirs.write_entry(entry("t", "2", "1")))
    assert isinstance(removed, Stored)
    saver.engine.run(theirs.remove_entries("t", {removed.stamp}, {}))
    stored = saver.engine.run(ours.write_entry(entry("t", "3", "1", terms=("found by something else",))))
    assert isinstance(stored, Stored)
    assert stored.stamp == int(removed.stamp) + 1
    assert tries == {False: 1}


@pytest.mark.parametrize("way", ["head", "base"])
def test_a_removed_checkpoint_is_never_continued(saver: SqliteSaver, tries: Counter[bool], way: str) -> None:
    ours, theirs = SqliteStore(), SqliteStore()
    first = saver.engine.run(ours.write_entry(entry("t", "1")))
    head = saver.engine.run(ours.write_entry(entry("t", "2", "1")))
    assert isinstance(first, Stored)
    assert isinstance(head, Stored)
    if way == "base":
        saver.engine.run(theirs.remove_entries("t", {first.stamp}, {}))
        assert saver.engine.run(ours.write_entry(entry("t", "3", "2", base=first.stamp))) == BaseGone()
    else:
        saver.engine.run(theirs.remove_entries("t", (), {head.stamp: ()}))  # a ghost
        new = entry("t", "3", "2", checked=True, terms=("found by something else",))
        assert saver.engine.run(ours.write_entry(new)) == Moved("1")
    assert tries[True] == 1


def test_a_rolled_back_put_leaves_no_hint(tmp_path: Path, saver: SqliteSaver, tries: Counter[bool]) -> None:
    store = SqliteStore()
    saver.engine.run(store.write_entry(entry("t", "1")))
    with closing(sqlite3.connect(tmp_path / "keel.db", isolation_level=None)) as other:
        other.execute("CREATE TRIGGER no BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'no'); END")
        with pytest.raises(StoreError, match="no"):
            saver.engine.run(store.write_entry(entry("t", "2", "1")))
        other.execute("DROP TRIGGER no")
    stored = saver.engine.run(store.write_entry(entry("t", "3", "1")))
    assert isinstance(stored, Stored)
    assert (int(stored.stamp) & 0xFF, stored.first) == (2, {"a": 1})
    assert tries == {True: 1}  # the first try raised


def test_hints_are_rejected_after_a_backup_was_restored(tmp_path: Path, saver: SqliteSaver) -> None:
    """The ids that this process remembers then belong to other threads, or to none."""
    path, ours, theirs = tmp_path / "keel.db", SqliteStore(), SqliteStore()
    saver.engine.run(ours.write_entry(entry("t", "1")))
    with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
        live.backup(backup)
        saver.engine.run(ours.write_entry(entry("t", "2", "1")))
        saver.engine.run(ours.write_entry(entry("u", "1")))
        backup.backup(live)
    saver.engine.run(theirs.write_entry(entry("other", "1")))
    assert saver.engine.run(ours.write_entry(entry("u", "2", "1", checked=True))) == Moved(None)
    saver.engine.run(theirs.write_entry(entry("t", "2b", "1")))
    assert saver.engine.run(ours.write_entry(entry("t", "3", "2", checked=True))) == Moved("2b")
    saver.engine.run(ours.write_entry(entry("u", "3")))
    for thread, ids in {"t": ["1", "2b"], "u": ["3"], "other": ["1"]}.items():
        graph = saver.engine.run(theirs.read_graph(thread))
        assert [node.address.checkpoint_id for node in graph.nodes] == ids


def put(saver: SqliteSaver, number: int, parent: Any = None) -> Any:
    checkpoint: Any = checkpoint_of(f"{number:08}", {"a": list(range(number))})
    return saver.put(parent or at("t"), checkpoint, {"source": "loop", "step": number, "parents": {}}, {"a": 1})


def test_a_forked_child_and_its_parent_continue_one_thread(saver: SqliteSaver) -> None:
    config = put(saver, 2, put(saver, 1))
    assert exit_code(forked(put, saver, 3, config)) == 0
    put(saver, 4, at("t", "", "00000003"))
    assert [each.checkpoint["channel_values"]["a"] for each in saver.list(at("t"))] == [
        [*range(n)] for n in (4, 3, 2, 1)
    ]


def test_the_number_of_hints_is_limited(saver: SqliteSaver) -> None:
    store = SqliteStore()
    hints: dict[Any, Any] = store._hints  # private: the only place that shows how much is remembered
    hints.update(dict.fromkeys(((f"{n}", "") for n in range(MOST_HINTS)), None))
    saver.engine.run(store.write_entry(entry("t", "1")))
    assert [*hints] == [("t", "")]
