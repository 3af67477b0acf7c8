"""What travels to and from PostgreSQL: requests, and the lines of a reply as records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel.core.bodies import restored, shrunk
from langgraph_keel.core.records import NEW, Address, Batch, Entry, Found, Kind, NewEntry, Ref, Row, Stamp, resolve
from langgraph_keel.errors import CorruptStore
from langgraph_keel.postgres.keys import Names, by_key, escape, key, long_names, name_of, unescape


class Statement(NamedTuple):
    """One statement with its parameters in their order, bound and never pasted."""

    sql: bytes
    parameters: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Request:
    """Statements to send together: one is a transaction by itself, several are made one. The reply is their rows."""

    statements: tuple[Statement, ...]
    writes: bool = False


class Line(NamedTuple):
    """One line of a reading reply: an entry (`what` 0), a row of an item log (1), a batch (2) or the thread (3)."""

    what: int
    thread_id: str
    ns: str
    id: str
    seq: int
    n: int
    body: bytes
    parent: str | None
    run: str | None
    epoch: int
    channels: list[str]
    kinds: str
    owners: list[int]
    los: list[int]
    his: list[int]
    kept: list[str] | None
    names: list[str] | None
    name: str | None
    token: int


class Mark(NamedTuple):
    """What a stamp is made of: a number in one life of a thread, and the token of the request that stored the entry.

    The token is there for a server that forgets: after a failover to a replica that lagged, it uses numbers again.
    """

    epoch: int
    seq: int
    token: int

    @property
    def stamp(self) -> int:
        """The name of the entry among all that ever were."""
        return stamp_of(*self)


def stamp_of(epoch: int, seq: int, token: int) -> int:
    """Return a stamp; see `Mark`."""
    return epoch << 128 | seq << 64 | token


def mark_of(stamp: object) -> Mark:
    """Return what a stamp is made of."""
    assert isinstance(stamp, int), f"{stamp!r} is no stamp of this store"
    word = (1 << 64) - 1
    return Mark(stamp >> 128, stamp >> 64 & word, stamp & word)


# -- writing -----------------------------------------------------------------------------------------------------------


def place_of(address: Address) -> dict[str, Any]:
    """Return the parameters that name a namespace, and a checkpoint if the address does."""
    checkpoint_id = address.checkpoint_id
    return {
        "thread": key(address.thread_id),
        "ns": key(address.checkpoint_ns),
        "id": checkpoint_id if checkpoint_id is None else key(checkpoint_id),
    }


def entry_parameters(new: NewEntry) -> dict[str, Any]:
    """Return the parameters of a put, except what is random."""
    address = new.address
    base = None if new.base is None else mark_of(new.base)
    names = [address.checkpoint_ns, address.checkpoint_id, new.parent, new.run_id, *new.refs]
    return {
        **place_of(address),
        "name": next(iter(long_names([address.thread_id]) or ()), None),
        "names": long_names(names),
        "base_epoch": base and base.epoch,
        "base_seq": base and base.seq,
        "base_token": base and base.token,
        "checked": new.checked,
        "forks": new.on_conflict == "fork",
        "parent": new.parent and key(new.parent),
        "run": new.run_id if new.run_id is None else key(new.run_id),
        "put_at": escape(new.updated_at),
        "header": shrunk(new.header),
        "channels": [key(name) for name in new.refs],
        "kinds": "".join(str(int(ref.kind)) for ref in new.refs.values()),
        "growing": [key(name) for name in new.appends],
        **_run_parameters(new.refs),
        **_row_parameters("row", new.appends, NEW),
        **(_row_parameters("pack", new.repacks, 0) if new.repacks else {}),
    }


def _run_parameters(refs: Mapping[str, Ref]) -> dict[str, list[Any]]:
    """Return the runs of an entry; those of new items count from the number that their channel gets."""
    runs = [
        (owner, lo - NEW, hi - NEW, key(name)) if lo >= NEW else (owner, lo, hi, None)
        for owner, (name, ref) in enumerate(refs.items(), 1)
        for lo, hi in ref.runs
    ]
    owners, los, his, news = (list(column) for column in zip(*runs, strict=True)) if runs else ([], [], [], [])
    return {"owners": owners, "los": los, "his": his, "news": news}


def _row_parameters(kind: str, logs: Mapping[str, Sequence[Row]], origin: int) -> dict[str, list[Any]]:
    rows = [(key(name), row) for name, rows in logs.items() for row in rows]
    return {
        f"{kind}_channels": [channel for channel, _ in rows],
        f"{kind}_los": [row.lo - origin for _, row in rows],
        f"{kind}_counts": [row.count for _, row in rows],
        f"{kind}_bodies": [shrunk(row.body) for _, row in rows],
    }


def firsts_of(new: NewEntry, los: Sequence[int]) -> dict[str, int]:
    """Return the number that the first new item of each channel got, from the runs as they were stored."""
    given = [(name, lo) for name, ref in new.refs.items() for lo, _ in ref.runs]
    return {name: stored - (lo - NEW) for (name, lo), stored in zip(given, los, strict=True) if lo >= NEW}


# -- reading -----------------------------------------------------------------------------------------------------------


def entry_of(line: Line) -> Entry:
    """Return the entry of a line."""
    address, parent, stamp, header, run = parts_of(line)
    return Entry(address, parent, stamp, header, refs_of(line), run)


def parts_of(line: Line) -> tuple[Address, str | None, Stamp, bytes, str | None]:
    """Return all of an entry but its refs: address, parent, stamp, header and run."""
    names = by_key(line.names)
    address = Address(unescape(line.name or line.thread_id), name_of(line.ns, names), name_of(line.id, names))
    parent = line.parent and name_of(line.parent, names)
    run = line.run if line.run is None else name_of(line.run, names)
    return address, parent, stamp_of(line.epoch, line.seq, line.token), restored(line.body), run


def refs_of(line: Line) -> dict[str, Ref]:
    """Return the refs of an entry.

    Raises:
        CorruptStore: They do not add up.
    """
    names = by_key(line.names)
    try:
        return _refs_of(line, names)
    except (ValueError, IndexError) as error:
        where = f"thread {unescape(line.name or line.thread_id)!r}, checkpoint {name_of(line.id, names)}"
        raise CorruptStore(f"{where}: the runs of its channels do not add up: {error}") from error


def _refs_of(line: Line, names: Names) -> dict[str, Ref]:
    runs: dict[int, list[tuple[int, int]]] = {}
    for owner, lo, hi in zip(line.owners, line.los, line.his, strict=True):
        runs.setdefault(owner, []).append((lo, hi))
    return {
        name_of(channel, names): Ref(Kind(int(kind)), resolve(runs.get(owner, ()), 0))
        for owner, (channel, kind) in enumerate(zip(line.channels, line.kinds, strict=True), 1)
        if line.kept is None or channel in line.kept
    }


Scope: TypeAlias = tuple[str, str]
"""A thread and a namespace, as keys."""


@dataclass(slots=True)
class Content:
    """A reply of entries with their rows and batches, sorted apart."""

    entries: list[Line] = field(default_factory=list)
    rows: dict[Scope, dict[str, list[Row]]] = field(default_factory=dict)
    batches: dict[tuple[str, str, str], list[Line]] = field(default_factory=dict)

    def found(self, line: Line) -> Found:
        """Return an entry with its rows and batches; entries of one namespace share them."""
        entry = entry_of(line)
        logs = self.rows.get((line.thread_id, line.ns), {})
        rows = {name: logs.get(key(name), []) for name, ref in entry.refs.items() if ref.runs}
        # In the order of arrival; the token only makes the order the same every time.
        batches = sorted(self.batches.get((line.thread_id, line.ns, line.id), ()), key=lambda b: (b.n, b.seq))
        return Found(entry, rows, [_batch(line) for line in batches])


def _batch(line: Line) -> Batch:
    return Batch(unescape(line.run or ""), unescape(line.parent or ""), restored(line.body))


def content_of(reply: Iterable[Sequence[Any]]) -> Content:
    """Sort the lines of a reply apart; rows by their first item."""
    content = Content()
    for line in map(Line._make, reply):
        if line.what == 0:
            content.entries.append(line)
        elif line.what == 1:
            log = content.rows.setdefault((line.thread_id, line.ns), {}).setdefault(line.id, [])
            log.append(Row(line.seq, line.n, restored(line.body)))
        else:
            content.batches.setdefault((line.thread_id, line.ns, line.id), []).append(line)
    for logs in content.rows.values():
        for log in logs.values():
            log.sort(key=lambda row: row.lo)
    return content
