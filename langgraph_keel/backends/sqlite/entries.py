"""Store and read entries in the tables of `schema.sql`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, wraps
from itertools import chain
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import frame, open_frame, read_row, resolve
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.engine.records import (
    BaseGone,
    Batch,
    Entry,
    Found,
    Kind,
    Moved,
    NewEntry,
    Outcome,
    Ref,
    Row,
    Run,
    Stamp,
    Stored,
    Unchanged,
    record,
)
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, StoreError

P = ParamSpec("P")
T = TypeVar("T")
LAST = (1 << 32) - 1
# SQLite allows 999 parameters before 3.32, and 32766 since.
MOST_KEYS = 500
"""Maximum keys per statement."""
MOST_HINTS = 1000
"""Maximum namespaces for which a store keeps a hint."""
PLAIN = KeelSerializer(types=())
_KINDS = {int(kind): kind for kind in Kind}  # ten times as fast as a call of the enum

OF_THREAD = f"key BETWEEN t.id << 32 AND t.id << 32 | {LAST}"
SITUATION = (
    "SELECT t.id, n.id, "
    f"max(t.floor, coalesce((SELECT max(key) FROM entries WHERE {OF_THREAD}) & {LAST}, 0)), "
    "coalesce((SELECT id FROM entries WHERE {where} AND namespace = n.id AND state = 0 ORDER BY key DESC LIMIT 1), "
    "(SELECT id FROM entries WHERE {where} AND namespace = n.id AND state = 1 ORDER BY key DESC LIMIT 1)), "
    "(SELECT key FROM entries WHERE mark = ? AND id = ? AND namespace = n.id), "
    "(SELECT key FROM entries WHERE mark = ? AND id = ? AND namespace = n.id), "
    "EXISTS (SELECT 1 FROM entries WHERE key = ? AND state < 2), i.put_at, i.marks, i.late IS NOT NULL "
    "FROM threads t JOIN namespaces n ON n.thread = t.id LEFT JOIN thread_index i ON i.thread = t.id "
    "WHERE t.name = ? AND n.name = ?"
)
IN_ROOT = SITUATION.replace("{where}", OF_THREAD)
IN_SUBGRAPH = SITUATION.replace("{where}", "nested")

_MOST_REFS, _SHRINKS = 1 << 16, 32
"""Maximum unpacked bytes of refs: a constant, plus a factor per stored byte.

The growing numbers in refs compress to a tenth at best.
"""

# Parameters have no numbers: Python 3.12.0 to 3.12.3 treat `?1` as a name, with a deprecation warning.
FIND_HEAD = (
    "INSERT INTO thread_index (thread, name, put_at, marks) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (thread) DO UPDATE SET put_at = excluded.put_at, marks = excluded.marks, "
    "late_of = iif(late_of >= ?, late_of, NULL), late = iif(late_of >= ?, late, NULL)"
)
"""Keeps marks of writes to this or a later checkpoint, which may be stored first."""
FIND_TIME = (
    "INSERT INTO thread_index (thread, name, put_at) VALUES (?, ?, ?) "
    "ON CONFLICT (thread) DO UPDATE SET put_at = excluded.put_at"
)
FIND_LATE = (
    "INSERT INTO thread_index (thread, name, late_of, late) SELECT id, name, ?, ? FROM threads WHERE name = ? "
    "ON CONFLICT (thread) DO UPDATE SET "
    "late_of = max(coalesce(late_of, ''), excluded.late_of), "
    "late = iif(instr(late, excluded.late), late, coalesce(late || ' ', '') || excluded.late)"
)
PUT_AT = (
    f"SELECT e.put_at FROM entries e WHERE e.key BETWEEN {{thread}} << 32 AND ({{thread}} << 32 | {LAST}) "
    "AND e.state < 2 ORDER BY e.key DESC LIMIT 1"
)
"""Selects the time of a thread's last write: that of its newest entry."""
FILL_INDEX = (
    "INSERT OR IGNORE INTO thread_index (thread, name, put_at) "
    f"SELECT t.id, t.name, ({PUT_AT.replace('{thread}', 't.id')}) FROM threads t"
)
_ENTRY = "entries (key, namespace, nested, state, id, mark, parent, run, put_at, refs, header)"
_PROOF = (
    "EXISTS (SELECT 1 FROM threads t CROSS JOIN namespaces n CROSS JOIN entries e "
    "WHERE t.id = ? AND t.name = ? AND t.floor <= ? AND n.id = ? AND n.thread = t.id AND n.name = ? "
    "AND e.key = ? AND e.id = ? AND e.namespace = n.id AND e.state = 0) "
    "AND NOT EXISTS (SELECT 1 FROM entries WHERE key > ? AND key <= ?) "
    "AND NOT EXISTS (SELECT 1 FROM entries WHERE mark = ? AND id = ? AND namespace = ?) "
    "AND (? OR EXISTS (SELECT 1 FROM thread_index "
    "WHERE thread = ? AND put_at = ? AND (? OR (marks = ? AND late IS NULL))))"
)
INSERT_ENTRY = f"INSERT INTO {_ENTRY} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
# If the proof fails, the namespace is NULL and the row is ignored. INSERT ... SELECT took 1.5 times as long.
INSERT_NEXT = f"INSERT OR IGNORE INTO {_ENTRY} VALUES (?, CASE WHEN {_PROOF} THEN ? END, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
TENS = 18
"""Length of an ISO time to the tens of seconds, which is exact in `thread_index`."""

INSERT_BATCH = (
    "INSERT INTO batches (namespace, checkpoint, mark, task, path, body) "
    "SELECT n.id, ?, ?, ?, ?, ? FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? AND n.name = ?"
)

# For read_history and read_graph: the parent, even if it is a ghost.
PARENT = (
    "CASE typeof(e.parent) WHEN 'integer' "
    "THEN (SELECT p.id FROM entries p WHERE p.key = (e.key >> 32 << 32 | e.parent)) ELSE e.parent END"
)
COLUMNS = f"e.key, e.id, {PARENT}, e.state, e.run, e.refs, e.header"
# For users: the parent, unless it was removed or is a ghost.
SHOWN_PARENT = (
    "CASE typeof(e.parent) WHEN 'integer' "
    "THEN (SELECT p.id FROM entries p WHERE p.key = (e.key >> 32 << 32 | e.parent) AND p.state < 2) "
    "WHEN 'text' THEN (SELECT p.id FROM entries p WHERE p.id = e.parent AND p.namespace = e.namespace AND p.state < 2 "
    "AND p.key BETWEEN (e.key >> 32 << 32) AND (e.key >> 32 << 32 | 4294967295)) END"
)
SHOWN = f"e.key, e.id, {SHOWN_PARENT}, e.state, e.run, e.refs, e.header"

# Only a head on the trunk. For any other head, the whole entry is read.
_NEWER = "n.namespace = e.namespace AND n.state = 0 AND n.key > e.key"
_IS_HEAD = f"e.state = 0 AND NOT EXISTS (SELECT 1 FROM entries n WHERE {_NEWER} AND {{where}})"
_KNOWN = (
    f"SELECT e.id, {SHOWN_PARENT}, b.task, b.path, b.body FROM entries e LEFT JOIN batches b "
    "ON b.namespace = e.namespace AND b.mark = e.mark AND b.checkpoint = e.id "
    "WHERE e.key = ? AND {is_it} ORDER BY b.key"
)
KNOWN_NAMED = _KNOWN.replace("{is_it}", "e.state < 2")
KNOWN_HEAD = _KNOWN.replace("{is_it}", _IS_HEAD.replace("{where}", f"n.key <= e.key | {LAST}"))
KNOWN_NESTED_HEAD = _KNOWN.replace("{is_it}", _IS_HEAD.replace("{where}", "n.nested"))


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...
    @property
    def lastrowid(self) -> int | None: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


Execute: TypeAlias = Callable[..., Rows]  # executes one statement with bound parameters inside the transaction


@record
class Work:
    """One request: a function that the driver calls in one transaction."""

    run: Callable[[Execute], Any]
    writes: bool = False
    unless: Callable[[Execute], Any] | None = None  # one statement tried first; used unless it replies `None`
    alone: Callable[[Execute], Any] | None = None  # one statement that writes all, unless it replies `None`
    takes_bytes: bool = False  # whether text that is not UTF-8 is read as bytes
    removes: bool = False  # whether it ends a removal: deleted rows must also leave the write-ahead log
    makes_room: bool = False  # not a transaction: frees space on a full disk; replies whether there was a reserve


MAKE_ROOM = Work(lambda _: False, writes=True, makes_room=True)


class Channel(NamedTuple):
    """A channel; refs use its slot, and `end` is that of its item log (-1 if unread)."""

    id: int
    slot: int
    end: int = 0


Slots: TypeAlias = Mapping[str, Channel]


def span(owner: int) -> tuple[int, int]:
    """Return the first and last key of an owner."""
    return owner << 32, owner << 32 | LAST


class Place(NamedTuple):
    """A namespace: the ids of its thread and of itself."""

    thread: int
    namespace: int
    nested: bool


def mark_of(checkpoint_id: str) -> int:
    """Return the start of an id as a number that sorts like the id.

    Ids that are not uuids sort first. An index of these numbers is a third as large as an index of ids. LangGraph's
    uuids start with the time, so new ones are appended to the index.
    """
    digits = checkpoint_id.replace("-", "")[:15]
    if len(digits) == 15 and not digits.strip("0123456789abcdef"):
        return 1 << 60 | int(digits, 16)
    return int.from_bytes(checkpoint_id.encode()[:7].ljust(7, b"\0"), "big")


def find_place(execute: Execute, address: Address) -> Place | None:
    """Return the place of a namespace, or `None` if nothing was ever stored in it."""
    row = execute(
        "SELECT t.id, n.id FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? AND n.name = ?",
        (address.thread_id, address.checkpoint_ns),
    ).fetchone()
    return Place(row[0], row[1], bool(address.checkpoint_ns)) if row else None


def create_place(execute: Execute, address: Address) -> Place:
    """Create the namespace, and its thread if it is missing."""
    execute("INSERT OR IGNORE INTO threads (name) VALUES (?)", (address.thread_id,))
    (thread,) = execute("SELECT id FROM threads WHERE name = ?", (address.thread_id,)).fetchone()
    namespace = insert_namespace(execute, thread, address.checkpoint_ns)
    return Place(thread, namespace, bool(address.checkpoint_ns))


def insert_namespace(execute: Execute, thread: int, name: str) -> int:
    """Create a namespace; return its id."""
    return new_id(execute("INSERT INTO namespaces (thread, name) VALUES (?, ?)", (thread, name)))


def new_id(inserted: Rows) -> int:
    """Return the id of the inserted row."""
    assert inserted.lastrowid is not None
    return inserted.lastrowid


class Situation(NamedTuple):
    """The state that storing a checkpoint depends on.

    One statement reads it: between two statements, another thread may hold the GIL for 5 ms.
    """

    place: Place
    seq: int  # highest sequence number that the thread ever used
    head: str | None
    same: int | None  # key of an existing entry with the new id
    parent: int | None  # key of the parent
    has_base: bool
    listed: str | None = None  # time of the last write, in the index of threads
    marks: str | None = None  # terms in that index; `None` if the thread is not listed
    has_late: bool = False  # whether tasks have added terms


class Hint(NamedTuple):
    """The situation after this process's last write; INSERT_NEXT verifies it."""

    before: Situation
    slots: Slots  # including the ends of the item logs that the head refers to


def read_situation(execute: Execute, new: NewEntry) -> Situation | None:
    """Read the situation for a new entry; `None` if its namespace does not exist."""
    address, parent, checkpoint_id = new.address, new.parent or "", str(new.address.checkpoint_id)
    entries = (mark_of(checkpoint_id), checkpoint_id, mark_of(parent), parent, new.base)
    row = execute(
        IN_SUBGRAPH if address.checkpoint_ns else IN_ROOT, (*entries, address.thread_id, address.checkpoint_ns)
    ).fetchone()
    return Situation(Place(row[0], row[1], bool(address.checkpoint_ns)), *row[2:]) if row else None


def create_situation(execute: Execute, address: Address) -> Situation:
    """Create a namespace; return the situation for its first entry."""
    place = create_place(execute, address)
    (listed,) = execute("SELECT max(put_at) FROM thread_index WHERE thread = ?", (place.thread,)).fetchone()
    return Situation(place, last_seq(execute, place.thread), None, None, None, False, listed)


def create_thread(execute: Execute, address: Address) -> Situation | None:
    """Create a thread; return its situation, or `None` if the thread exists."""
    if execute("SELECT 1 FROM threads WHERE name = ?", (address.thread_id,)).fetchone():
        return None
    thread = new_id(execute("INSERT INTO threads (name) VALUES (?)", (address.thread_id,)))
    namespace = insert_namespace(execute, thread, address.checkpoint_ns)
    return Situation(Place(thread, namespace, bool(address.checkpoint_ns)), 0, None, None, None, False)


def read_slots(execute: Execute, namespace: int, growing: Collection[str] = ()) -> dict[str, Channel]:
    """Return the channels of a namespace, with the item log ends of `growing` ones."""
    end = (
        f"max(floor, coalesce((SELECT (i.key & {LAST}) + i.count FROM items i WHERE i.key BETWEEN id << 32 "
        f"AND id << 32 | {LAST} ORDER BY i.key DESC LIMIT 1), 0))"
    )
    marks = ", ".join("?" * len(growing))
    rows = execute(
        f"SELECT name, id, slot, CASE WHEN name IN ({marks}) THEN {end} ELSE -1 END FROM channels WHERE namespace = ?",
        (*growing, namespace),
    ).fetchall()
    slots = {name: Channel(channel, slot, end) for name, channel, slot, end in rows}
    if not all(isinstance(name, str) for name in slots):
        raise CorruptStore(f"the name of a channel is not text: {[*slots]!r:.200}")
    return slots


def add_slots(execute: Execute, namespace: int, slots: Slots, names: Iterable[str]) -> Slots:
    """Add missing channels to a namespace; return all its channels."""
    added = {**slots}
    for name in names:
        if name not in added:
            slot = 1 + max((channel.slot for channel in added.values()), default=-1)
            sql = "INSERT INTO channels (namespace, slot, name) VALUES (?, ?, ?)"
            added[name] = Channel(new_id(execute(sql, (namespace, slot, name))), slot)
    return added


def head_of(execute: Execute, place: Place) -> int | None:
    """Return the highest key on the trunk, or of all entries if there is no trunk."""
    where = "nested" if place.nested else "key BETWEEN ? AND ?"
    of = (place.namespace,) if place.nested else (*span(place.thread), place.namespace)
    sql = f"SELECT key FROM entries WHERE {where} AND namespace = ? AND state = ? ORDER BY key DESC LIMIT 1"
    row = execute(sql, (*of, 0)).fetchone() or execute(sql, (*of, 1)).fetchone()
    return int(row[0]) if row else None


def key_of(execute: Execute, namespace: int, checkpoint_id: str) -> int | None:
    """Return the key of an entry (also of a ghost), or `None`."""
    row = execute(
        "SELECT key FROM entries WHERE mark = ? AND id = ? AND namespace = ?",
        (mark_of(checkpoint_id), checkpoint_id, namespace),
    ).fetchone()
    return int(row[0]) if row else None


def last_seq(execute: Execute, thread: int) -> int:
    """Return the highest sequence number that a thread ever used."""
    (floor,) = execute("SELECT floor FROM threads WHERE id = ?", (thread,)).fetchone()
    (last,) = execute("SELECT max(key) FROM entries WHERE key BETWEEN ? AND ?", span(thread)).fetchone()
    return max(int(floor), (last or 0) & LAST)


def pack_refs(refs: Mapping[str, Ref], slots: Slots, first: Mapping[str, int]) -> bytes:
    """Return refs in their stored form; `first` gives the first number of new items."""
    table = []
    for name, ref in refs.items():
        runs = resolve(ref.runs, first[name]) if name in first else ref.runs
        table.append([slots[name].slot, ref.kind.value, *chain.from_iterable(runs)])
    return frame(PLAIN.pack(table))


class RefTable:
    """Reads the refs of a namespace's entries; equal refs are one object."""

    def __init__(self, slots: Slots) -> None:
        self._names = {channel.slot: name for name, channel in slots.items()}
        self._known: dict[tuple[int, ...], tuple[str, Ref]] = {}

    def unpack(self, body: bytes) -> dict[str, Ref]:
        """Return refs from their stored form."""
        known = self._known
        try:
            packed = open_frame(body, _MOST_REFS + _SHRINKS * len(body))
            return dict([known.get(each) or self._read(each) for each in map(tuple, PLAIN.unpack(packed))])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStore(f"the refs of an entry cannot be decoded: {error!r}") from error

    def _read(self, parts: tuple[int, ...]) -> tuple[str, Ref]:
        slot, kind, *flat = parts
        if not ({int}.issuperset(map(type, flat)) and all(0 <= lo < hi for lo, hi in _pairs(flat))):
            raise ValueError(f"{parts!r:.100} has no runs of items")
        found = self._names[slot], Ref(_KINDS[kind], ((flat[0], flat[1]),) if len(flat) == 2 else _pairs(flat))
        self._known[parts] = found
        return found


def _pairs(flat: Sequence[int]) -> tuple[Run, ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def append_rows(execute: Execute, channel: Channel, rows: Sequence[Row]) -> Channel:
    """Append rows at the end of an item log; return the channel with the new end."""
    lo = channel.end
    for row in rows:
        if lo + row.count > LAST:
            raise StoreError("an item log contains 2^32 items: copy the thread to continue")
        execute(
            "INSERT INTO items (key, count, body) VALUES (?, ?, ?)", (span(channel.id)[0] + lo, row.count, row.body)
        )
        lo += row.count
    return channel._replace(end=lo)


def replace_rows(execute: Execute, channel: int, rows: Sequence[Row]) -> None:
    """Replace the rows that each of `rows` was packed from, if they still exist."""
    base = span(channel)[0]
    for row in rows:
        inside = rows_for(execute, channel, [(row.lo, row.lo + row.count)])
        if not row.is_tiled_by(inside):
            continue
        key = base + row.lo
        execute("DELETE FROM items WHERE key BETWEEN ? AND ?", (key, key + row.count - 1))
        execute("INSERT INTO items (key, count, body) VALUES (?, ?, ?)", (key, row.count, row.body))


def single_rows(execute: Execute, runs: Mapping[int, Collection[Run]]) -> dict[int, list[Row]]:
    """Return the rows of channels that need only single items, many per statement."""
    # For a state of 50 channels this took 150 µs; one statement per channel took 460.
    keys = {channel: [span(channel)[0] + lo for lo, hi in wanted if hi == lo + 1] for channel, wanted in runs.items()}
    wanted = sorted(chain.from_iterable(keys.values()))
    if len(wanted) < 3:
        return {}
    rows: dict[int, Row] = {}
    for at in range(0, len(wanted), MOST_KEYS):
        page = wanted[at : at + MOST_KEYS]
        marks = ", ".join("?" * len(page))
        for key, count, body in execute(f"SELECT key, count, body FROM items WHERE key IN ({marks})", page).fetchall():
            rows[key] = read_row(key & LAST, count, body)
    return {
        channel: [rows[key] for key in sorted(each)]
        for channel, each in keys.items()
        if len(each) == len(runs[channel]) and all(key in rows for key in each)
    }


def rows_for(execute: Execute, channel: int, runs: Iterable[Run]) -> list[Row]:
    """Return the rows that contain items of `runs`, in order."""
    base = span(channel)[0]
    rows: dict[int, Row] = {}
    for lo, hi in sorted(runs):
        for key, count, body in execute(
            "SELECT key, count, body FROM items WHERE key < ? AND key >= "
            "coalesce((SELECT max(key) FROM items WHERE key BETWEEN ? AND ?), ?)",
            (base + hi, base, base + lo, base + lo),
        ).fetchall():
            rows.setdefault(key, read_row(key - base, count, body))
    return [rows[key] for key in sorted(rows)]


# -- the verbs of entries ----------------------------------------------------------------------------------------------


def in_transaction(
    *, writes: bool = False, removes: bool = False
) -> Callable[[Callable[Concatenate[Any, Execute, P], T]], Callable[Concatenate[Any, P], StorePlan[Work, Any, T]]]:
    """Return a decorator that turns a method into a plan of one request."""

    def decorate(method: Callable[Concatenate[Any, Execute, P], T]) -> Callable[..., StorePlan[Work, Any, T]]:
        @wraps(method)
        def verb(self: object, *args: P.args, **kwargs: P.kwargs) -> StorePlan[Work, Any, T]:
            reply: T = yield Work(
                lambda execute: method(self, execute, *args, **kwargs), writes or removes, removes=removes
            )
            return reply

        return verb

    return decorate


class SqliteEntries(Store[Work, Any]):
    """Operations on entries; each transaction verifies names and hints itself."""

    def __init__(self, hints: dict[tuple[str, str], Hint] | None = None) -> None:
        self._hints = {} if hints is None else hints

    def write_entry(self, new: NewEntry) -> StorePlan[Work, Any, Outcome]:
        where = new.address.thread_id, new.address.checkpoint_ns
        outcome: Outcome
        outcome, hint = yield Work(partial(_write_entry, new, self._hints.get(where)), writes=True)
        if hint is not None:  # the entry is committed now
            if len(self._hints) >= MOST_HINTS:
                self._hints.clear()
            self._hints[where] = hint
        return outcome

    def write_batch(self, address: Address, batch: Batch) -> StorePlan[Work, Any, None]:
        insert = partial(_insert_batch, address, batch)
        yield Work(partial(_write_batch, address, batch), writes=True, alone=None if batch.terms else insert)

    def read_entry(self, address: Address, known: Stamp | None = None) -> StorePlan[Work, Any, Any]:
        look = None if known is None else partial(_look_known, address, known)
        found = yield Work(lambda execute: (look and look(execute)) or _read_entry(address, execute), unless=look)
        return found

    @in_transaction()
    def read_values(self, execute: Execute, entries: Sequence[Entry]) -> list[Found]:
        # Entries of a namespace share one set of rows.
        namespaces: dict[Stamp, int] = {}
        for at in range(0, len(entries), MOST_KEYS):
            page = [entry.stamp for entry in entries[at : at + MOST_KEYS]]
            marks = ", ".join("?" * len(page))
            namespaces |= execute(f"SELECT key, namespace FROM entries WHERE key IN ({marks})", page).fetchall()
        groups: dict[int, list[Entry]] = {}
        for entry in entries:
            if entry.stamp in namespaces:
                groups.setdefault(namespaces[entry.stamp], []).append(entry)
        found = {}
        for namespace, group in groups.items():
            rows = _rows(execute, read_slots(execute, namespace), [entry.refs for entry in group])
            found.update({entry.stamp: _entry_with_rows(execute, entry, namespace, rows) for entry in group})
        return [found[entry.stamp] for entry in entries if entry.stamp in found]

    @in_transaction()
    def read_history(self, execute: Execute, address: Address, channels: Collection[str]) -> list[Found]:
        found = find_entry(execute, address)
        if found is None:
            return []
        place, row = found
        slots = read_slots(execute, place.namespace)
        refs, missing = RefTable(slots), set(channels)
        ancestors: list[Entry] = []
        key: int | None = row[0]
        seen = {key}  # stored parents may form a cycle
        while missing and (key := _parent_key(execute, place, key)) and key not in seen:
            seen.add(key)
            row = execute(f"SELECT {COLUMNS} FROM entries e WHERE e.key = ?", (key,)).fetchone()
            if row is None:
                break
            ancestors.append(entry_of(row, address.thread_id, address.checkpoint_ns, refs))
            missing -= set(ancestors[-1].refs)
        wanted = [{name: ref for name, ref in e.refs.items() if name in channels} for e in ancestors]
        rows = _rows(execute, slots, wanted)
        return [_entry_with_rows(execute, entry, place.namespace, rows) for entry in ancestors]


# -- writing -----------------------------------------------------------------------------------------------------------


def _write_entry(new: NewEntry, hint: Hint | None, execute: Execute) -> tuple[Outcome, Hint | None]:
    is_beside = new.checked and new.on_conflict == "beside"
    if hint is not None and not is_beside and (stored := _insert_next(execute, new, *hint)):
        return stored
    is_first = not (hint or new.parent or new.base or new.address.checkpoint_ns)
    if is_first and (created := create_thread(execute, new.address)):
        return _insert(execute, new, created, {}, int(is_beside))
    before = read_situation(execute, new)
    if new.base is not None and not (before and before.has_base):
        return BaseGone(), None
    head = before.head if before else None
    follows = not new.checked or head in (new.parent, new.address.checkpoint_id)
    if not follows and new.on_conflict == "raise":
        return Moved(head), None
    state = int(is_beside or not (follows or head is None))
    before = before or create_situation(execute, new.address)
    growing = [name for name, ref in new.refs.items() if ref.runs]
    return _insert(execute, new, before, read_slots(execute, before.place.namespace, growing), state)


def _insert_next(execute: Execute, new: NewEntry, before: Situation, slots: Slots) -> tuple[Stored, Hint | None] | None:
    """Store an entry by a hint; `None` if the hint is wrong or incomplete."""
    place, head, parent, address = before.place, before.head, before.parent, new.address
    if not (head == new.parent and new.base in (None, parent) and new.refs.keys() <= slots.keys()):
        return None
    if any(slots[channel].end < 0 for channel in new.appends):
        return None
    key, *row = _row_of(new, before, slots, 0)
    _, _, _, checkpoint_id, mark, *_ = row
    names = (place.thread, address.thread_id, before.seq, place.namespace, address.checkpoint_ns)
    is_head, is_new = (parent, head, parent, span(place.thread)[1]), (mark, checkpoint_id, place.namespace)
    writes_index = not _is_listed(new, before, is_head=not place.nested)
    index = (writes_index, place.thread, before.listed, place.nested, before.marks)
    if not execute(INSERT_NEXT, (key, *names, *is_head, *is_new, *index, *row)).rowcount:
        return None
    return _store_rest(execute, new, before, slots, 0)


def _insert(execute: Execute, new: NewEntry, before: Situation, slots: Slots, state: int) -> tuple[Stored, Hint | None]:
    slots = add_slots(execute, before.place.namespace, slots, new.refs)
    if before.same is not None:  # the id is stored again: its children become children of the new entry
        execute(
            "UPDATE entries SET parent = ? WHERE parent = ? AND key BETWEEN ? AND ?",
            (before.seq + 1, before.same & LAST, *span(before.place.thread)),
        )
        execute("DELETE FROM entries WHERE key = ?", (before.same,))
    execute(INSERT_ENTRY, _row_of(new, before, slots, state))
    return _store_rest(execute, new, before, slots, state)


def _row_of(new: NewEntry, before: Situation, slots: Slots, state: int) -> tuple[Any, ...]:
    """Return the columns of an entry."""
    place, checkpoint_id = before.place, str(new.address.checkpoint_id)
    names = (span(place.thread)[0] + before.seq + 1, place.namespace, int(place.nested), state)
    parent = before.parent & LAST if before.parent else new.parent
    at = max(new.updated_at, before.listed or "")  # a host with a slow clock does not move the thread back
    refs = pack_refs(new.refs, slots, {channel: slots[channel].end for channel in new.appends})
    return (*names, checkpoint_id, mark_of(checkpoint_id), parent, new.run_id, at, refs, new.header)


def _store_rest(
    execute: Execute, new: NewEntry, before: Situation, slots: Slots, state: int
) -> tuple[Stored, Hint | None]:
    """Store the rows of an entry, and its thread's time and marks in the index."""
    first = {channel: slots[channel].end for channel in new.appends}
    grown = {channel: append_rows(execute, slots[channel], rows) for channel, rows in new.appends.items()}
    for channel, rows in new.repacks.items():
        replace_rows(execute, slots[channel].id, rows)
    place, listed, checkpoint_id = before.place, before.listed, str(new.address.checkpoint_id)
    is_head, marks = state == 0 and not place.nested, " ".join(new.terms)
    if not _is_listed(new, before, is_head=is_head):
        listed = max(new.updated_at, listed or "")
        thread = (place.thread, new.address.thread_id, listed)
        if is_head:
            execute(FIND_HEAD, (*thread, marks, checkpoint_id, checkpoint_id))
        else:
            execute(FIND_TIME, thread)
    seq = before.seq + 1
    key = span(place.thread)[0] + seq
    after = Situation(place, seq, checkpoint_id, None, key, True, listed, marks)
    return Stored(key, first), Hint(after, {**slots, **grown}) if state == 0 else None


def _is_listed(new: NewEntry, before: Situation, *, is_head: bool) -> bool:
    """Return whether the index already has the time and marks of an entry."""
    is_timed = before.listed is not None and before.listed[:TENS] >= new.updated_at[:TENS]
    return is_timed and not (is_head and (before.has_late or before.marks != " ".join(new.terms)))


def _insert_batch(address: Address, batch: Batch, execute: Execute) -> bool | None:
    checkpoint_id = str(address.checkpoint_id)
    parts = (checkpoint_id, mark_of(checkpoint_id), batch.task_id, batch.task_path, batch.body)
    return execute(INSERT_BATCH, (*parts, address.thread_id, address.checkpoint_ns)).rowcount == 1 or None


def _write_batch(address: Address, batch: Batch, execute: Execute) -> None:
    if not _insert_batch(address, batch, execute):
        create_place(execute, address)
        _insert_batch(address, batch, execute)
    if batch.terms:
        execute(FIND_LATE, (str(address.checkpoint_id), " ".join(batch.terms), address.thread_id))


# -- reading -----------------------------------------------------------------------------------------------------------


def entry_of(row: Any, thread_id: str, namespace: str, refs: RefTable) -> Entry:
    """Return the entry in a row of `COLUMNS` or `SHOWN`."""
    key, checkpoint_id, parent, _, run, body, header = row
    address = Address(thread_id, namespace, checkpoint_id)
    try:
        return Entry(address, parent, key, header, refs.unpack(body), run)
    except CorruptStore as error:
        raise CorruptStore(f"thread {thread_id!r}, checkpoint {checkpoint_id}: {error}") from error


def find_entry(execute: Execute, address: Address) -> tuple[Place, Any] | None:
    """Return the namespace and the row (`SHOWN`) of a checkpoint, or of the head."""
    place = find_place(execute, address)
    if place is None:
        return None
    named = address.checkpoint_id
    key = head_of(execute, place) if named is None else key_of(execute, place.namespace, named)
    row = execute(f"SELECT {SHOWN} FROM entries e WHERE e.key = ? AND e.state < 2", (key,)).fetchone()
    return (place, row) if row else None


def _read_entry(address: Address, execute: Execute) -> Found | None:
    found = find_entry(execute, address)
    if found is None:
        return None
    place, row = found
    slots = read_slots(execute, place.namespace)
    entry = entry_of(row, address.thread_id, address.checkpoint_ns, RefTable(slots))
    return _entry_with_rows(execute, entry, place.namespace, _rows(execute, slots, [entry.refs]))


def _look_known(address: Address, known: Stamp, execute: Execute) -> Unchanged | None:
    """Return parent and batches of a known entry, which its unique key identifies."""
    head = KNOWN_NESTED_HEAD if address.checkpoint_ns else KNOWN_HEAD
    rows = execute(KNOWN_NAMED if address.checkpoint_id else head, (known,)).fetchall()
    if not rows or address.checkpoint_id not in (None, rows[0][0]):
        return None
    batches = [batch_of(task, path, body) for _, _, task, path, body in rows if task is not None]
    return Unchanged(rows[0][1], batches, rows[0][0])


def _rows(execute: Execute, slots: Slots, versions: Sequence[Mapping[str, Ref]]) -> dict[str, list[Row]]:
    """Return the rows that these versions need, by channel."""
    runs: dict[str, set[Run]] = {}
    seen: Mapping[str, Ref] = {}
    for refs in versions:
        for name, ref in refs.items():
            if ref.runs and seen.get(name) is not ref:
                runs.setdefault(name, set()).update(ref.runs)
        seen = refs
    single = single_rows(execute, {slots[name].id: wanted for name, wanted in runs.items()})
    return {
        name: single[slots[name].id] if slots[name].id in single else rows_for(execute, slots[name].id, wanted)
        for name, wanted in runs.items()
    }


def _entry_with_rows(execute: Execute, entry: Entry, namespace: int, rows: Mapping[str, list[Row]]) -> Found:
    checkpoint_id = str(entry.address.checkpoint_id)
    batches = execute(
        "SELECT task, path, body FROM batches WHERE mark = ? AND checkpoint = ? AND namespace = ? ORDER BY key",
        (mark_of(checkpoint_id), checkpoint_id, namespace),
    ).fetchall()
    return Found(entry, rows, [batch_of(*batch) for batch in batches])


def batch_of(task: Any, path: Any, body: Any) -> Batch:
    """Return a batch from its columns."""
    return Batch(text_of(task), text_of(path), body)


def text_of(stored: Any) -> str:
    """Return a stored name."""
    if not isinstance(stored, str):
        raise CorruptStore(f"a stored name is not text: {stored!r:.100}")
    return stored


def _parent_key(execute: Execute, place: Place, key: int | None) -> int | None:
    (parent,) = execute("SELECT parent FROM entries WHERE key = ?", (key,)).fetchone()
    if isinstance(parent, str):
        return key_of(execute, place.namespace, parent)
    return span(place.thread)[0] + int(parent) if parent else None
