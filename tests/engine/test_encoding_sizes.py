"""The stored size, in runs, rows and bytes, after typical edits."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from support.checkpoints import checkpoint_of, config_for, twin

from langgraph_keel import MemorySaver, SqliteSaver
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.records import Entry, NewEntry, Outcome
from langgraph_keel.engine.session import Session

LIMIT_OF_ROWS = 45
"""For 1000 small messages: the study measured 40, with 32 in a row."""


class Writing:
    """One thread, and the data that each write sent to the store."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.config = config_for("t")
        self.sent: list[NewEntry] = []
        self.number = 0
        self._watch(saver.engine.session)

    def _watch(self, session: Session) -> None:
        write_entry = session.store.write_entry

        def watched(new: NewEntry) -> Any:
            self.sent.append(new)
            outcome: Outcome = yield from write_entry(new)
            return outcome

        session.store.write_entry = watched  # type: ignore[method-assign]

    def put(self, **values: Any) -> NewEntry:
        self.number += 1
        checkpoint = checkpoint_of(f"{self.number:08}", values)
        self.config = self.saver.put(
            self.config, checkpoint, {"source": "loop", "step": self.number, "parents": {}}, {}
        )
        assert self.saver.get_tuple(self.config).checkpoint["channel_values"] == values
        return self.sent[-1]

    def runs(self, channel: str) -> tuple[tuple[int, int], ...]:
        return self.entry().refs[channel].runs

    def entry(self) -> Entry:
        engine = self.saver.engine
        found = engine.run(engine.session.store.read_entry(Address("t", "", f"{self.number:08}")))
        entry: Entry = found.entry
        return entry


def appended(new: NewEntry, channel: str) -> int:
    """Return the number of items that a write added to a channel's log."""
    return sum(row.count for row in new.appends.get(channel, ()))


def nbytes(new: NewEntry) -> int:
    """Return the bytes of items that a write stores."""
    return sum(len(row.body) for rows in (*new.appends.values(), *new.repacks.values()) for row in rows)


@pytest.fixture(params=["memory", "sqlite"])
def writing(request: pytest.FixtureRequest) -> Iterator[Writing]:
    made: dict[str, Callable[[], MemorySaver | SqliteSaver]] = {
        "memory": MemorySaver,
        "sqlite": lambda: SqliteSaver(":memory:"),
    }
    with made[request.param]() as saver:
        yield Writing(saver)


def text(seed: int, length: int = 300) -> str:
    """Return text that does not compress."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def message(number: int) -> HumanMessage | AIMessage:
    kind = AIMessage if number % 2 else HumanMessage
    return kind(content=text(number), id=f"id-{number}")


def messages(count: int) -> list[Any]:
    return [message(number) for number in range(count)]


# -- lists -------------------------------------------------------------------------------------------------------------


def test_an_append_stores_one_item_and_one_run(writing: Writing) -> None:
    chat = messages(20)
    writing.put(m=chat)
    for number in range(20, 30):
        chat.append(message(number))
        assert appended(writing.put(m=chat), "m") == 1
    assert writing.runs("m") == ((0, 30),)


@pytest.mark.slow
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("memo_bytes", [0, 100_000], ids=["no memo", "a memo for what is known of it"])
def test_a_thread_too_large_for_the_memo_stores_only_changes(memo_bytes: int, reads: bool) -> None:
    """Previously, it was written whole at each checkpoint, here 400 KB."""
    with SqliteSaver(":memory:", memo_bytes=memo_bytes) as saver:
        writing, chat, note = Writing(saver), messages(1000), {"pages": [text(nth) for nth in range(500)], "seen": 0}
        values, config = {"m": chat, **({"note": note} if memo_bytes else {})}, config_for("t")
        for number in range(80):
            if number:
                chat.append(message(1000 + number))
                note["seen"] = number
            config = saver.put(config, checkpoint_of(f"{number:08}", values), {"step": number}, {})
            if reads:
                saver.get_tuple(config)
        first, *others = map(nbytes, writing.sent)
        assert first > 200_000
        assert sorted(others)[-4] < 30_000  # a snapshot is written again when it has many deltas
        assert sum(bool(new.repacks) for new in writing.sent) >= 2
        found = saver.get_tuple(config)
        assert found
        assert found.checkpoint["channel_values"] == values


def test_an_unchanged_state_stores_nothing(writing: Writing) -> None:
    state = {"m": messages(5), "d": {str(n): text(n) for n in range(5)}, "whole": (1, 2, text(1)), "n": 1}
    writing.put(**state)
    again = writing.put(**state)
    assert (nbytes(again), dict(again.appends)) == (0, {})


EDITS: dict[str, tuple[Callable[[list[Any]], object], int, int]] = {
    # name: the edit of 100 messages, new items, runs
    "in place": (lambda m: setattr(m[50], "content", "changed"), 1, 3),
    "equal but not the same": (lambda m: m[50].additional_kwargs.update(n=1.0), 1, 3),
    "replaced": (lambda m: m.__setitem__(50, message(1000)), 1, 3),
    "removed": (lambda m: m.pop(50), 0, 2),
    "inserted": (lambda m: m.insert(50, message(1000)), 1, 3),
    "window": (lambda m: m.__delitem__(slice(0, 60)), 0, 1),
    "window and append": (lambda m: m.__setitem__(slice(None), [*m[60:], message(1000)]), 1, 1),
    "cut": (lambda m: m.__delitem__(slice(60, None)), 0, 1),
    "rotated": (lambda m: m.__setitem__(slice(None), m[40:] + m[:40]), 0, 2),
    "summarised": (lambda m: m.__setitem__(slice(0, 90), [message(1000)]), 1, 2),
    "moved": (lambda m: m.insert(20, m.pop(50)), 0, 4),
    "cleared": (lambda m: m.clear(), 0, 0),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_stores_only_new_items_and_a_few_runs(writing: Writing, name: str) -> None:
    edit, items, runs = EDITS[name]
    chat = messages(100)
    writing.put(m=chat)
    edit(chat)
    assert appended(writing.put(m=chat), "m") == items
    assert len(writing.runs("m")) == runs


def test_an_edit_by_another_process_stores_one_item(writing: Writing) -> None:
    writing.put(m=messages(100))
    writing.saver = twin(writing.saver, 100, 1 << 20)
    chat = writing.saver.get_tuple(config_for("t")).checkpoint["channel_values"]["m"]
    chat[50].content = "changed"
    assert appended(writing.put(m=chat), "m") == 1


def test_a_fork_stores_only_its_difference(writing: Writing) -> None:
    chat = messages(200)
    first = None
    for end in (100, 200):
        writing.put(m=chat[:end])
        first = first or writing.config
    fork = [*chat[:100], message(1000)]
    writing.config = writing.saver.get_tuple(config_for("t", "00000001")).config
    assert appended(writing.put(m=fork), "m") == 1
    assert writing.runs("m") == ((0, 100), (200, 201))


def test_a_fragmented_list_is_occasionally_rewritten_whole(writing: Writing) -> None:
    """The debt rule: references to the pieces must not cost more than the list itself."""
    numbers = list(range(400))
    writing.put(n=numbers)
    shuffled = random.Random(1)
    refs = 0
    whole = []
    for step in range(40):
        shuffled.shuffle(numbers)
        new = writing.put(n=numbers)
        refs += 6 * len(new.refs["n"].runs)
        whole += [step] if appended(new, "n") == len(numbers) else []
    assert 2 <= len(whole) <= 20
    assert refs < 6 * 400 * 40


def rows_in(path: Path) -> list[tuple[int, int]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count, length(body) FROM items ORDER BY key").fetchall()
    finally:
        connection.close()


@pytest.mark.slow
def test_a_thousand_small_messages_are_packed_into_few_rows(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path) as saver:
        writing = Writing(saver)
        chat: list[Any] = []
        for number in range(1000):
            chat.append(message(number))
            writing.put(m=chat) if number % 50 == 0 else put_only(writing, chat)
        stored = [nbytes(new) for new in writing.sent]
        assert saver.get_tuple(writing.config).checkpoint["channel_values"]["m"] == chat  # type: ignore[union-attr]
        rows = rows_in(path)
    assert sum(count for count, _ in rows) == 1000
    assert len(rows) <= LIMIT_OF_ROWS
    # Linear: a write does not grow with the list, except when it packs 32 items (one write in 32).
    content = 1000 * 300
    assert sum(stored) < 4 * content
    assert sum(stored[500:]) < 1.2 * sum(stored[:500])
    assert sorted(stored)[900] < 1000


def put_only(writing: Writing, chat: list[Any]) -> None:
    writing.number += 1
    checkpoint = checkpoint_of(f"{writing.number:08}", {"m": chat})
    writing.config = writing.saver.put(writing.config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})


def test_packing_does_not_restore_removed_items(writing: Writing) -> None:
    """A window slides while rows are packed."""
    window: list[Any] = []
    for number in range(150):
        window = [*window[-19:], message(number)]
        assert appended(writing.put(m=window), "m") == 1
    assert writing.runs("m") == ((130, 150),)


# -- dicts -------------------------------------------------------------------------------------------------------------


def large_dict() -> dict[str, Any]:
    """Return about 100 KB, in 10 sections of 20 texts."""
    return {f"section{s}": {f"key{k}": text(s * 100 + k, 500) for k in range(20)} for s in range(10)}


DICT_EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a leaf": lambda d: d["section5"].update(key5="changed"),
    "equal but not the same": lambda d: d["section5"].update(key5=1.0),
    "a new leaf": lambda d: d["section5"].update(new="value"),
    "a leaf less": lambda d: d["section5"].pop("key5"),
    "a new section": lambda d: d.update(new={"a": 1}),
    "a section less": lambda d: d.pop("section5"),
}


@pytest.mark.parametrize("name", DICT_EDITS)
def test_an_edit_of_a_large_dict_stores_less_than_a_kilobyte(writing: Writing, name: str) -> None:
    value = large_dict()
    writing.put(d={**value, "section5": {**value["section5"], "key5": 1}})
    value["section5"]["key5"] = 1
    DICT_EDITS[name](value)
    new = writing.put(d=value)
    assert appended(new, "d") == 1
    assert 0 < nbytes(new) < 1000


def test_an_edit_of_a_large_dict_by_another_process_stores_little(writing: Writing) -> None:
    writing.put(d=large_dict())
    writing.saver = twin(writing.saver, 100, 1 << 20)
    value = writing.saver.get_tuple(config_for("t")).checkpoint["channel_values"]["d"]
    value["section3"]["key3"] = "changed"
    assert nbytes(writing.put(d=value)) < 1000


def test_edits_are_replaced_by_a_snapshot_at_half_its_size(writing: Writing) -> None:
    value = large_dict()
    first = nbytes(writing.put(d=value))
    stored = []
    for step in range(150):
        value[f"section{step % 10}"]["key5"] = text(step, 1000)
        stored.append(nbytes(writing.put(d=value)))
    snapshots = [size for size in stored if size > first / 2]
    assert 1 <= len(snapshots) <= 5
    # Reading never needs more than 1.5 times a snapshot.
    assert len(writing.runs("d")) <= 100


def test_moved_keys_are_stored_in_their_new_order(writing: Writing) -> None:
    value = large_dict()
    writing.put(d=value)
    value["section5"]["key0"] = value["section5"].pop("key0")
    new = writing.put(d=value)
    assert nbytes(new) < 20_000
    got = writing.saver.get_tuple(writing.config).checkpoint["channel_values"]["d"]
    assert list(got["section5"]) == list(value["section5"])


# -- two processes that pack one log -----------------------------------------------------------------------------------


def items_of(number: int) -> dict[str, Any]:
    return {"n": number, "text": text(number)}


def grown(saver: Any, config: RunnableConfig, items: list[Any], more: range) -> RunnableConfig:
    for number in more:
        items.append(items_of(number))
        checkpoint = checkpoint_of(f"{number:08}", {"m": list(items)})
        config = saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})
    return config


def read(saver: Any, config: RunnableConfig) -> Any:
    found = twin(saver, 100, 1 << 20).get_tuple(config)
    return found and found.checkpoint["channel_values"]["m"]


@pytest.mark.parametrize("first", [0, 1, 5, 20])
@pytest.mark.parametrize("rival", [32, 33, 36, 40, 60])
def test_packing_by_two_processes_loses_nothing(writing: Writing, first: int, rival: int) -> None:
    """One process packs its known rows; another has packed an overlapping range."""
    one = writing.saver
    items: list[Any] = []
    old = grown(one, config_for("t"), items, range(32))
    window, before = items[first:], list(items)
    other: Any = twin(one, 100, 1 << 20)
    # Trimmed again by the rival, so that the window's start is read from the store.
    third: Any = twin(one, 100, 1 << 20)
    trimmed = grown(third, third.get_tuple(old).config, items[first:], range(100, 101))
    window = [*window, items_of(100)]
    assert read(other, trimmed) == other.get_tuple(trimmed).checkpoint["channel_values"]["m"] == window
    theirs = grown(other, trimmed, window, range(101, 101 + rival - 32 + 8))
    mine = grown(one, config_for("t", "00000031"), items, range(300, 340))
    assert read(one, theirs) == window
    assert read(one, mine) == items
    assert read(one, config_for("t", "00000031")) == before
