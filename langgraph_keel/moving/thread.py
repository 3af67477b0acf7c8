"""Copies one thread to another store and compares both, without reviving values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from langgraph_keel.display.text import count_of
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.encoding.bodies import (
    array_header,
    check_present,
    content_of,
    contents_of,
    open_frame,
    raw_frame,
)
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import NEW, Entry, Found, NewEntry, Node, Ref, Row, Run, Stamp, Stored, Writes
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, StoreBusy
from langgraph_keel.moving.cells import CellCopy, Moved
from langgraph_keel.moving.damage import add_inflated
from langgraph_keel.moving.items import Compared, Numbers, pairs_of
from langgraph_keel.moving.outline import WRITES, Outline, place_of
from langgraph_keel.moving.pair import SOURCE, TARGET, Side, on
from langgraph_keel.retention.owners import COPY_TIMES

_MOST = 64
"""Maximum entries whose rows are read per request."""
_BYTES = 2 << 20
"""Bytes of rows per request above which fewer entries are read next time."""

Logs = defaultdict[tuple[str, str], Numbers]
Rows = Mapping[tuple[str, str], Sequence[Row]]


class ThreadChanged(StoreBusy):
    """The thread changed during the copy, which has to start over."""


@dataclass(slots=True)
class ThreadCopy:
    """Copies and compares threads."""

    source: Store[Any, Any]
    target: Store[Any, Any]
    takes: Callable[[str], bool]  # whether a kind of cells is copied
    most: int  # maximum bytes of a thread's values that are stored much smaller
    told: Callable[[int], None]  # called with the bytes of copied records
    size: int = 4  # entries read per request
    inflated: int = 0  # bytes of such values of the current thread so far

    def add(self, thread_id: str, want: Outline, have: Outline) -> Plan[None]:
        """Copy the missing records of a thread to the target."""
        yield from self._add_entries(want, have)
        yield from self._add_writes(thread_id, have)
        moved = Moved()
        cells = CellCopy(self.source, self.target, moved)
        for kind in (yield from self._kinds(thread_id)):
            yield from cells.join(Shelf(thread_id, kind), lambda *_: True, lambda _: True)
        for why in moved.damaged.values():
            raise CorruptStore(f"thread {thread_id!r}: {why}")
        self.told(moved.nbytes)

    def _kinds(self, thread_id: str) -> Plan[Sequence[str]]:
        theirs: Sequence[str] = yield from on(SOURCE, self.source.list_kinds(thread_id))
        ours: Sequence[str] = yield from on(TARGET, self.target.list_kinds(thread_id))
        return sorted(kind for kind in {*theirs, *ours} if self.takes(kind))

    # -- entries -----------------------------------------------------------------------------------------------

    def _add_entries(self, want: Outline, have: Outline) -> Plan[None]:
        logs = Logs(Numbers)
        known = have.graph.nodes
        for theirs, ours in zip(want.graph.nodes, known, strict=False):
            for name, ref in theirs.refs.items():
                for lo, to, count in pairs_of(ref.runs, ours.refs[name].runs):
                    logs[theirs.address.checkpoint_ns, name].add(lo, lo + count, to)
        bases = {node.address.checkpoint_ns: node.stamp for node in known if not node.is_ghost}
        at, nodes, self.inflated = len(known), want.graph.nodes, 0
        while at < len(nodes):
            page = nodes[at : at + self.size]
            asked = [narrowed for node in page if (narrowed := _narrow(node, logs)).refs]
            found: Sequence[Found] = (yield from on(SOURCE, self.source.read_values(asked))) if asked else ()
            if len(found) < len(asked):
                raise ThreadChanged(f"{asked[0].address} was removed or stored again during the copy")
            rows = _rows_in(found)
            new = list(chain.from_iterable(rows.values()))
            check_present(row.body for row in new)
            self.inflated = add_inflated(self.inflated, (row.body for row in new), self.most)
            for row in new:
                if row.count > 1 and len(content_of(row)) < row.count:
                    raise CorruptStore(f"a row of {row.count:,} items contains fewer")
            self.size = _next_size(len(page), rows)
            for node in page:
                yield from self._add_entry(node, rows, logs, bases)
            at += len(page)

    def _add_entry(self, node: Node, rows: Rows, logs: Logs, bases: dict[str, Stamp]) -> Plan[None]:
        namespace = node.address.checkpoint_ns
        refs: dict[str, Ref] = {}
        appends: dict[str, tuple[Row, ...]] = {}
        for name, ref in node.refs.items():
            log = logs[namespace, name]
            if taken := log.take(ref.runs, rows.get((namespace, name), ())):
                appends[name] = taken
            refs[name] = Ref(ref.kind, log.runs_of(ref.runs))
        new = NewEntry(
            node.address,
            node.parent,
            node.header,
            refs,
            appends,
            base=bases.get(namespace),
            checked=node.is_beside,
            on_conflict="beside",
            run_id=node.run_id,
            updated_at=node.updated_at,
            read_known=partial(self._read_known, node, refs),
        )
        outcome = yield from on(TARGET, self.target.write_entry(new))
        if not isinstance(outcome, Stored):
            raise ThreadChanged(f"{node.address}: its base was removed from the target during the copy")
        for name, first in outcome.first.items():
            logs[namespace, name].settle(first)
        if node.is_ghost:
            ghosts = {outcome.stamp: list(node.refs)}
            yield from on(TARGET, self.target.remove_entries(node.address.thread_id, (), ghosts))
        else:
            bases[namespace] = outcome.stamp
        self.told(len(node.header) + sum(len(row.body) for taken in appends.values() for row in taken))

    def _read_known(self, node: Node, refs: Mapping[str, Ref], names: Collection[str]) -> Plan[Mapping[str, Any]]:
        """Read values that the target already has, for a target that authenticates them."""
        asked = _entry(node, {name: node.refs[name] for name in names})
        found: Sequence[Found] = yield from on(SOURCE, self.source.read_values([asked]))
        if not found:
            raise ThreadChanged(f"{node.address} was removed or stored again during the copy")
        known = {}
        for name in names:
            rows = _known_rows(node.refs[name], refs[name], found[0].rows[name])
            known[name] = _Known(sorted(rows, key=lambda row: row.lo))
        return known

    # -- writes ------------------------------------------------------------------------------------------------

    def _add_writes(self, thread_id: str, have: Outline) -> Plan[None]:
        seen = Counter[tuple[str, str]]()
        after: Writes | None = None
        while True:
            page: Sequence[Writes] = yield from on(SOURCE, self.source.list_writes(thread_id, after, WRITES))
            for each in page:
                place = place_of(each)
                seen[place] += 1
                if seen[place] > len(have.writes.get(place, ())):
                    yield from on(TARGET, self.target.write_batch(each.address, each.batch))
                    self.told(len(each.batch.body))
            if len(page) < WRITES:
                return
            after = page[-1]

    # -- comparing ---------------------------------------------------------------------------------------------

    def find_difference(self, thread_id: str, want: Outline, have: Outline) -> Plan[str | None]:
        """Return the first difference of two threads, comparing each item once, or `None`."""
        if (differs := _difference_of(want, have)) is not None:
            return differs
        done: defaultdict[tuple[str, str], Compared] = defaultdict(Compared)
        pairs = list(zip(want.graph.nodes, have.graph.nodes, strict=True))
        at = 0
        while at < len(pairs):
            page = pairs[at : at + self.size]
            if (differs := (yield from self._compare_values(page, done))) is not None:
                return differs
            at += len(page)
        cells = CellCopy(self.source, self.target, Moved())
        for kind in (yield from self._kinds(thread_id)):
            if kind == COPY_TIMES.kind:
                continue  # the time of the copy, which differs
            differs = yield from cells.find_difference(Shelf(thread_id, kind), lambda *_: True, is_whole=True)
            if differs is not None:
                return f"a record next to its checkpoints: {differs}"
        return None

    def _compare_values(
        self, page: Sequence[tuple[Node, Node]], done: defaultdict[tuple[str, str], Compared]
    ) -> Plan[str | None]:
        parts = [
            (theirs, name, lo, to, count)
            for theirs, ours in page
            for name, ref in theirs.refs.items()
            for first, number, length in pairs_of(ref.runs, ours.refs[name].runs)
            for lo, to, count in done[theirs.address.checkpoint_ns, name].take(first, number, length)
        ]
        if not parts:
            return None
        theirs = _rows_in((yield from self._read_parts(SOURCE, page, [(n, c, lo, k) for n, c, lo, _, k in parts])))
        ours = _rows_in((yield from self._read_parts(TARGET, page, [(n, c, to, k) for n, c, _, to, k in parts])))
        self.size = _next_size(len(page), theirs)
        for node, name, lo, to, count in parts:
            place = node.address.checkpoint_ns, name
            there = contents_of([(lo, lo + count)], theirs.get(place, ()))
            here = contents_of([(to, to + count)], ours.get(place, ()))
            if b"".join(there) != b"".join(here):
                return f"{_moment(node)}: the value of {name!r}"
        return None

    def _read_parts(
        self, side: Side, page: Sequence[tuple[Node, Node]], parts: Sequence[tuple[Node, str, int, int]]
    ) -> Plan[Sequence[Found]]:
        """Read items; each part has the source's node, a channel, a first number, a count."""
        shown: defaultdict[Stamp, defaultdict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
        for node, name, lo, count in parts:
            shown[node.stamp][name].append((lo, lo + count))
        asked = []
        for pair in page:
            if runs := shown.get(pair[SOURCE].stamp):
                node = pair[side]
                asked.append(_entry(node, {name: Ref(node.refs[name].kind, tuple(runs[name])) for name in runs}))
        found: Sequence[Found] = yield from on(side, (self.source, self.target)[side].read_values(asked))
        if len(found) < len(asked):
            raise ThreadChanged(f"{asked[0].address} was removed or stored again during the comparison")
        return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The rows of a channel that the target already has."""

    rows: Sequence[Row]


def _known_rows(theirs: Ref, ours: Ref, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield rows with the items that the target has, in its numbering, each item once."""
    given = Numbers()
    for lo, to, count in pairs_of(theirs.runs, ours.runs):
        for first, last in list(given.missing([(to, to + count)])) if to < NEW else ():
            begin = lo + first - to
            items = b"".join(contents_of([(begin, begin + last - first)], rows))
            yield Row(first, last - first, raw_frame(array_header(last - first) + items))
            given.add(first, last, first)


def _entry(node: Node, refs: Mapping[str, Ref]) -> Entry:
    return Entry(node.address, node.parent, node.stamp, node.header, refs, node.run_id)


def _narrow(node: Node, logs: Logs) -> Entry:
    """Return an entry that refers only to items without a number yet."""
    refs = {}
    for name, ref in node.refs.items():
        if missing := tuple(logs[node.address.checkpoint_ns, name].missing(ref.runs)):
            refs[name] = Ref(ref.kind, missing)
    return _entry(node, refs)


def _rows_in(found: Sequence[Found]) -> Rows:
    rows: dict[tuple[str, str], dict[int, Row]] = {}
    for each in found:
        for name, of_channel in each.rows.items():
            rows.setdefault((each.entry.address.checkpoint_ns, name), {}).update({row.lo: row for row in of_channel})
    return {place: [each[lo] for lo in sorted(each)] for place, each in rows.items()}


def _next_size(size: int, rows: Rows) -> int:
    """Return how many entries to read next, depending on the bytes of the last ones."""
    nbytes = sum(len(row.body) for each in rows.values() for row in each)
    return max(1, size // 2) if nbytes > _BYTES else min(_MOST, 2 * size) if nbytes < _BYTES // 2 else size


def _difference_of(want: Outline, have: Outline) -> str | None:
    """Return the first difference in checkpoints or writes of two outlines, or `None`."""
    for theirs, ours, a, b in zip(want.graph.nodes, have.graph.nodes, want.nodes, have.nodes, strict=False):
        if a != b:
            return f"{_moment(theirs)}: {_part_of(theirs, ours)}"
    if len(want.nodes) != len(have.nodes):
        return f"the source has {count_of(len(want.nodes), 'checkpoint')}, the target {len(have.nodes):,}"
    for theirs, ours in zip(want.graph.nodes, have.graph.nodes, strict=True):
        if theirs.is_head != ours.is_head:
            return f"{_moment(theirs)}: whether it is the latest"
    for ns, id in dict.fromkeys([*want.writes, *have.writes]):
        if want.writes.get((ns, id)) != have.writes.get((ns, id)):
            return f"{_name(ns, id)}: the pending writes of its tasks"
    return None


def _part_of(theirs: Node, ours: Node) -> str:
    """Return the part in which two entries differ."""
    if theirs.address != ours.address:
        return f"the target has {_moment(ours)} in its place"
    if open_frame(theirs.header) != open_frame(ours.header):
        return "its metadata, or the versions of its channels"
    if [*theirs.refs] != [*ours.refs]:
        return f"its channels ({', '.join(sorted({*theirs.refs} ^ {*ours.refs})) or 'their order'})"
    for name, ref in theirs.refs.items():
        if ref.kind is not ours.refs[name].kind or _length(ref) != _length(ours.refs[name]):
            return f"the value of {name!r}"
    return "its parent" if theirs.parent != ours.parent else "its time, its run, or whether it is deleted"


def _length(ref: Ref) -> int:
    return sum(hi - lo for lo, hi in ref.runs)


def _moment(node: Node) -> str:
    return _name(node.address.checkpoint_ns, str(node.address.checkpoint_id))


def _name(ns: str, id: str) -> str:
    return f"checkpoint {id}" + (f", namespace {ns!r}" if ns else "")
