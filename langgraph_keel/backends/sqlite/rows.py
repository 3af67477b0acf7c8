"""Rows of the SQLite layout: names to ids, keys, refs, and the item logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import frame, read_row, resolve, unframe
from langgraph_keel.engine.records import Kind, NewEntry, Ref, Row, Run, record
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.errors import CorruptStore, StoreError

LAST = (1 << 32) - 1
MOST_KEYS = 500
"""Keys that one statement asks for; SQLite before 3.32 takes 999 parameters, and later ones 32766."""
_PLAIN = KeelSerializer(types=())
_KINDS = {int(kind): kind for kind in Kind}  # a call of an enum takes ten times as long


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """How many rows it has inserted, changed or deleted."""
        ...

    def fetchone(self) -> Any:
        """Return one row, or `None`."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...


Execute: TypeAlias = Callable[..., Rows]
"""Executes one statement with bound parameters inside the transaction."""


@record
class Work:
    """One request: what to do inside one transaction.

    Attributes:
        run: Does it.
        writes: Whether it writes, and waits for its turn to do so.
        unless: Reads, before a write: returns the reply if there is nothing to write, else `None`.
    """

    run: Callable[[Execute], Any]
    writes: bool = False
    unless: Callable[[Execute], Any] | None = None


class Channel(NamedTuple):
    """A channel of a namespace: its id, its slot (refs name it by that), and the end of its item log if asked for."""

    id: int
    slot: int
    end: int = 0


Slots: TypeAlias = Mapping[str, Channel]


def span(owner: int) -> tuple[int, int]:
    """Return the first and last key that belong to an owner."""
    return owner << 32, owner << 32 | LAST


class Place(NamedTuple):
    """A namespace: the ids of its thread and of itself."""

    thread: int
    namespace: int
    nested: bool


def mark_of(checkpoint_id: str) -> int:
    """Return the beginning of an id as a number, in the same order as the ids.

    An index of these numbers takes a third of one of the ids themselves. LangGraph's ids are uuids that begin with the
    time, so new ones go to its end. Ids of any other form sort before them.
    """
    digits = checkpoint_id.replace("-", "")[:15]
    if len(digits) == 15 and not digits.strip("0123456789abcdef"):
        return 1 << 60 | int(digits, 16)
    return int.from_bytes(checkpoint_id.encode()[:7].ljust(7, b"\0"), "big")


def find_place(execute: Execute, address: Address) -> Place | None:
    """Return the place of a namespace, or `None` if nothing was ever stored there."""
    row = execute(
        "SELECT t.id, n.id FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? AND n.name = ?",
        (address.thread_id, address.checkpoint_ns),
    ).fetchone()
    return Place(row[0], row[1], bool(address.checkpoint_ns)) if row else None


def create_place(execute: Execute, address: Address) -> Place:
    """Create the namespace, and the thread if need be."""
    execute("INSERT OR IGNORE INTO threads (name) VALUES (?)", (address.thread_id,))
    (thread,) = execute("SELECT id FROM threads WHERE name = ?", (address.thread_id,)).fetchone()
    namespace = insert_namespace(execute, thread, address.checkpoint_ns)
    return Place(thread, namespace, bool(address.checkpoint_ns))


def insert_namespace(execute: Execute, thread: int, name: str) -> int:
    """Create a namespace; return its id."""
    ((namespace,),) = execute(
        "INSERT INTO namespaces (thread, name) VALUES (?, ?) RETURNING id", (thread, name)
    ).fetchall()
    return int(namespace)


class Situation(NamedTuple):
    """What a put has to know before it writes.

    It is read by one statement: between two, another thread may take Python's lock (the GIL) for 5 ms.

    Attributes:
        place: The namespace.
        seq: The highest sequence number that the thread ever used.
        head: Id of the newest entry on the trunk.
        same: Key of the entry that already has the new id.
        parent: Key of the parent.
        has_base: Whether the base is still there.
    """

    place: Place
    seq: int
    head: str | None
    same: int | None
    parent: int | None
    has_base: bool


OF_THREAD = f"key BETWEEN t.id << 32 AND t.id << 32 | {LAST}"
SITUATION = (
    "SELECT t.id, n.id, "
    f"max(t.floor, coalesce((SELECT max(key) FROM entries WHERE {OF_THREAD}) & {LAST}, 0)), "
    "coalesce((SELECT id FROM entries WHERE {where} AND namespace = n.id AND state = 0 ORDER BY key DESC LIMIT 1), "
    "(SELECT id FROM entries WHERE {where} AND namespace = n.id AND state = 1 ORDER BY key DESC LIMIT 1)), "
    "(SELECT key FROM entries WHERE mark = ? AND id = ? AND namespace = n.id), "
    "(SELECT key FROM entries WHERE mark = ? AND id = ? AND namespace = n.id), "
    "EXISTS (SELECT 1 FROM entries WHERE key = ? AND state < 2) "
    "FROM threads t JOIN namespaces n ON n.thread = t.id WHERE t.name = ? AND n.name = ?"
)
IN_ROOT = SITUATION.replace("{where}", OF_THREAD)
IN_SUBGRAPH = SITUATION.replace("{where}", "nested")


def read_situation(execute: Execute, new: NewEntry) -> Situation | None:
    """Read the situation of a put; `None` if nothing was ever stored in its namespace."""
    address, parent = new.address, new.parent or ""
    checkpoint_id = str(address.checkpoint_id)
    row = execute(
        IN_SUBGRAPH if address.checkpoint_ns else IN_ROOT,
        (
            mark_of(checkpoint_id),
            checkpoint_id,
            mark_of(parent),
            parent,
            new.base,
            address.thread_id,
            address.checkpoint_ns,
        ),
    ).fetchone()
    return Situation(Place(row[0], row[1], bool(address.checkpoint_ns)), *row[2:]) if row else None


def create_situation(execute: Execute, address: Address) -> Situation:
    """Create a namespace; return the situation of the first put in it."""
    place = create_place(execute, address)
    return Situation(place, last_seq(execute, place.thread), None, None, None, False)


def read_slots(execute: Execute, namespace: int, growing: Collection[str] = ()) -> dict[str, Channel]:
    """Return the channels of a namespace, with the ends of the item logs of those that are growing."""
    end = (
        f"max(floor, coalesce((SELECT (i.key & {LAST}) + i.count FROM items i WHERE i.key BETWEEN id << 32 "
        f"AND id << 32 | {LAST} ORDER BY i.key DESC LIMIT 1), 0))"
    )
    marks = ", ".join("?" * len(growing))
    rows = execute(
        f"SELECT name, id, slot, CASE WHEN name IN ({marks}) THEN {end} ELSE 0 END FROM channels WHERE namespace = ?",
        (*growing, namespace),
    ).fetchall()
    return {name: Channel(channel, slot, end) for name, channel, slot, end in rows}


def ensure_slots(
    execute: Execute, namespace: int, names: Iterable[str], growing: Collection[str]
) -> dict[str, Channel]:
    """Return the channels of a namespace as `read_slots` does, after adding those of `names` that are new."""
    slots = read_slots(execute, namespace, growing)
    for name in names:
        if name not in slots:
            slot = 1 + max((channel.slot for channel in slots.values()), default=-1)
            ((channel,),) = execute(
                "INSERT INTO channels (namespace, slot, name) VALUES (?, ?, ?) RETURNING id",
                (namespace, slot, name),
            ).fetchall()
            slots[name] = Channel(channel, slot)
    return slots


def head_of(execute: Execute, place: Place) -> Any:
    """Return (key, id) of the newest entry on the trunk, of all entries if no trunk is left, or `None`."""
    where = "nested" if place.nested else "key BETWEEN ? AND ?"
    of = (place.namespace,) if place.nested else (*span(place.thread), place.namespace)
    sql = f"SELECT key, id FROM entries WHERE {where} AND namespace = ? AND state = ? ORDER BY key DESC LIMIT 1"
    return execute(sql, (*of, 0)).fetchone() or execute(sql, (*of, 1)).fetchone()


def key_of(execute: Execute, namespace: int, checkpoint_id: str) -> int | None:
    """Return the key of an entry, ghosts included, or `None`."""
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
    """Return refs in their stored form, new items by the numbers that they got."""
    table = [
        [slots[name].slot, int(ref.kind), *(n for run in resolve(ref.runs, first.get(name, 0)) for n in run)]
        for name, ref in refs.items()
    ]
    return frame(_PLAIN.pack(table))


def unpack_refs(body: bytes, slots: Slots) -> dict[str, Ref]:
    """Return refs from their stored form.

    Raises:
        CorruptStore: They do not decode, or name a channel that is not there.
    """
    names = {channel.slot: name for name, channel in slots.items()}
    try:
        return {
            names[slot]: Ref(_KINDS[kind], tuple(zip(flat[::2], flat[1::2], strict=True)))
            for slot, kind, *flat in _PLAIN.unpack(unframe(body))
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptStore(f"the refs of an entry do not decode: {error!r}") from error


def append_rows(execute: Execute, channel: Channel, rows: Sequence[Row]) -> int:
    """Append rows at the end of an item log; return the number of their first item."""
    lo = channel.end
    for row in rows:
        if lo + row.count > LAST:
            raise StoreError("an item log holds 2^32 items: copy the thread to go on")
        execute(
            "INSERT INTO items (key, count, body) VALUES (?, ?, ?)",
            (span(channel.id)[0] + lo, row.count, row.body),
        )
        lo += row.count
    return channel.end


def replace_rows(execute: Execute, channel: int, rows: Sequence[Row]) -> None:
    """Put each of `rows` in the place of the rows that it was packed from, if those are still there."""
    base = span(channel)[0]
    for row in rows:
        inside = rows_for(execute, channel, [(row.lo, row.lo + row.count)])
        if not row.is_tiled_by(inside):
            continue
        key = base + row.lo
        execute("DELETE FROM items WHERE key BETWEEN ? AND ?", (key, key + row.count - 1))
        execute("INSERT INTO items (key, count, body) VALUES (?, ?, ?)", (key, row.count, row.body))


def single_rows(execute: Execute, runs: Mapping[int, Iterable[Run]]) -> dict[int, list[Row]]:
    """Return rows that hold one item, and all that is wanted of their channels: many of them by one statement.

    Of a state of 50 channels that took 150 µs, where a statement for each took 460.
    """
    wanted = {span(channel)[0] + lo: channel for channel, ((lo, hi),) in runs.items() if hi == lo + 1}
    if len(wanted) < 3:
        return {}
    keys, found = sorted(wanted), {}
    for at in range(0, len(keys), MOST_KEYS):
        page = keys[at : at + MOST_KEYS]
        marks = ", ".join("?" * len(page))
        for key, count, body in execute(f"SELECT key, count, body FROM items WHERE key IN ({marks})", page).fetchall():
            found[wanted[key]] = [read_row(key & LAST, count, body)]
    return found


def rows_for(execute: Execute, channel: int, runs: Iterable[Run]) -> list[Row]:
    """Return the rows that hold items of `runs`, in order."""
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
