"""Records of calls whose checkpoints were pruned, stored in cells of their thread.

Before a prune removes anything, it stores one cell for each remaining checkpoint, the carryover. It contains the
records of removed checkpoints that led there. The key is derived from the content, so a repeated prune writes the same
cell. Deleting the thread deletes its carryovers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeAlias

from langgraph_keel.engine.entries import Header, unpack_batches
from langgraph_keel.engine.lineage import NodeAndHeader, origin_of, root_of, walk_back
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Node, Stamp
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, Kept
from langgraph_keel.errors import CorruptStore, ValueRefused
from langgraph_keel.provenance.records import ModelCall, refused_in, strays_of, unpack_call

Item: TypeAlias = Sequence[Any]
"""Namespace and id of the checkpoint a call led to, its run's id, and the record."""


@dataclass(frozen=True, slots=True)
class Carryover:
    """The records that a prune has carried to one remaining checkpoint."""

    first: str  # the id of the first root checkpoint with these records; empty if some were deleted since
    until: str  # the id of the remaining root checkpoint
    is_first: bool  # whether there are no earlier model calls
    items: Sequence[Item]

    def calls(self, thread_id: str) -> list[ModelCall]:
        """Return the calls, each with the removed checkpoint that it led to."""
        found = [(unpack_call(record), namespace, name) for namespace, name, _, record in self.items]
        return [
            replace(call, thread_id=thread_id, checkpoint_ns=namespace, checkpoint_id=name)
            for call, namespace, name in found
            if call is not None
        ]

    def without(self, run_ids: Collection[str]) -> Carryover | None:
        """Return it without the records of these runs; `None` if no record remains."""
        left = [item for item in self.items if item[2] not in run_ids]
        if len(left) == len(self.items):
            return self
        return Carryover("", self.until, False, left) if left else None

    @property
    def key(self) -> str:
        """The key of its cell."""
        return _digest([self.first, self.until, *self._ids])

    @property
    def token(self) -> str:
        """The token of its cell, which is the same for the same records."""
        return _digest(self._ids)

    @property
    def _ids(self) -> list[str]:
        return sorted(str(record["id"]) for *_, record in self.items)


def _digest(names: Iterable[str]) -> str:
    return blake2b("\n".join(names).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _pack(carryover: Carryover) -> Sequence[Any]:
    return [[carryover.first, carryover.until, carryover.is_first, list(carryover.items)]]


def _unpack(parts: Sequence[Any]) -> Carryover:
    ((first, until, is_first, items),) = parts
    read = [(str(ns), str(name), run_id, {**record, "id": str(record["id"])}) for ns, name, run_id, record in items]
    return Carryover(str(first), str(until), is_first is True, read)


CARRYOVERS = CellTable("model", "a record of pruned checkpoints", _pack, _unpack)


# -- the start of a thread -------------------------------------------------------------------------------------


def is_first(header: Header) -> bool:
    """Return whether the calls of a root checkpoint are the thread's first ones."""
    # Steps count from -1, and no model is called before step 1. But with `durability="exit"`, the first checkpoint can
    # have any step, and the calls of all its steps led there.
    step = header.metadata.get("step")
    return bool(header.about.get("first")) or (isinstance(step, int) and step <= 1)


def may_be_pruned(entry: Entry, header: Header) -> bool:
    """Return whether a checkpoint may have had a parent that was pruned."""
    # Threads start with step -1, except with `durability="exit"`: then any first checkpoint may have had a parent.
    return entry.parent is None and header.metadata.get("step") != -1


def find_behind(carryovers: Sequence[Carryover], line: Iterable[str | None]) -> tuple[list[Carryover], bool]:
    """Return the carryovers of root checkpoints, and whether they have the first call."""
    found: list[Carryover] = []
    places = list(line)
    # An earlier prune may have carried records to the first checkpoint of a carryover, so follow these too.
    for place in places:  # grows during the loop
        here = [each for each in carryovers if each.until == place]
        found += here
        places += [each.first for each in here if each.first not in places]
    return found, any(each.is_first for each in found)


# -- carrying --------------------------------------------------------------------------------------------------


def carry(session: Session, thread_id: str, moments: Sequence[NodeAndHeader], kept: Collection[Stamp]) -> Plan[None]:
    """Store the carryovers of a prune. Up to two trips per remaining root checkpoint."""
    cells = Cells(session, CARRYOVERS, thread_id)
    for line in _find_lines(moments, kept):
        latest, first = line[0], line[-1]
        names = {node.address.checkpoint_id for node, _ in line}
        within = [each for each in moments if root_of(each[0].address, each[1].metadata) in names]
        gone = [each for each in within if each is not latest and (each[0].stamp not in kept or each is first)]
        items = {item[3]["id"]: item for node, header in gone for item in _items_of(node, header)}
        for item in (yield from _read_unled_items(session, moments, gone)):
            items.setdefault(item[3]["id"], item)
        is_link = len(line) > 1 and first[1].metadata.get("step") != -1  # to earlier carryovers
        if items or is_link:
            ends = [str(node.address.checkpoint_id) for node, _ in (first, latest)]
            carryover = Carryover(ends[0], ends[1], is_first(first[1]), list(items.values()))
            # If a cell with this key exists, it has the same records.
            yield from cells.swap(carryover.key, None, carryover, token=carryover.token)


def _find_lines(moments: Sequence[NodeAndHeader], kept: Collection[Stamp]) -> list[list[NodeAndHeader]]:
    """Return each remaining root checkpoint, with ancestors up to the next such one."""
    # Each line has the nearest ancestor first.
    root = {each[0].address.checkpoint_id: each for each in moments if not each[0].address.checkpoint_ns}
    origins = {name: origin_of(node.parent, header.metadata, root) for name, (node, header) in root.items()}
    lines = []
    for name, (node, _) in root.items():
        if node.stamp not in kept:
            continue
        line: list[NodeAndHeader] = []
        for each in walk_back(name, origins):
            line.append(root[each])
            if len(line) > 1 and line[-1][0].stamp in kept:
                break
        # If its parent stays, the line has only this checkpoint.
        is_next = len(line) == 2 and line[-1][0].stamp in kept
        lines.append(line[:1] if is_next else line)
    return lines


def _items_of(node: Node, header: Header) -> list[Item]:
    """Return the records in a header; strays belong to the checkpoint they started at."""
    place = (node.address.checkpoint_ns, node.address.checkpoint_id)
    calls = header.about.get("calls")
    found = [(*place, node.run_id, record) for record in (calls if isinstance(calls, list) else ())]
    for lineage, record in strays_of(header.about):
        innermost = max(lineage, default=None)
        began = place if innermost is None else (innermost, lineage[innermost])
        found.append((*began, node.run_id, record))
    return [item for item in found if _is_record(item[3])]


def _is_record(stored: Any) -> bool:
    return isinstance(stored, dict) and isinstance(stored.get("id"), str)


def _read_unled_items(
    session: Session, moments: Sequence[NodeAndHeader], gone: Sequence[NodeAndHeader]
) -> Plan[list[Item]]:
    """Read the records of failed or waiting tasks that exist only among writes."""
    led = {(n.address.checkpoint_ns, n.parent) for n, header in moments if header.metadata.get("source") == "loop"}
    ends = [node for node, _ in gone if (node.address.checkpoint_ns, node.address.checkpoint_id) not in led]
    entries = [Entry(node.address, node.parent, node.stamp, node.header, {}, node.run_id) for node in ends]
    found = (yield from session.store.read_values(entries)) if entries else ()
    items: list[Item] = []
    refused: set[str] = set()
    for each in found:
        address = each.entry.address
        calls: list[Any] = []
        with suppress(ValueRefused, CorruptStore):  # unreadable writes do not prevent the prune
            calls = unpack_batches(each.batches, session.codec, address)[1]
        refused |= refused_in(calls)
        records = [record for stored in calls if isinstance(stored, list) for record in stored]
        place = (address.checkpoint_ns, address.checkpoint_id, each.entry.run_id)
        items += [(*place, record) for record in records if _is_record(record)]
    return [item for item in items if item[3]["id"] not in refused]


# -- reading, removing and copying -----------------------------------------------------------------------------


def read_carryovers(session: Session, thread_id: str) -> Plan[list[Carryover]]:
    """Read the carryovers of a thread. One trip a page."""
    return [kept.record for _, kept in (yield from Cells(session, CARRYOVERS, thread_id).every())]


def drop_runs(
    session: Session,
    thread_id: str,
    run_ids: Collection[str],
    moments: Sequence[NodeAndHeader],
    kept: Collection[Stamp],
) -> Plan[None]:
    """Remove the records of runs, or all if no root checkpoint remains."""
    # One trip, and one more per cell.
    is_over = not any(node.stamp in kept for node, _ in moments if not node.address.checkpoint_ns)
    cells = Cells(session, CARRYOVERS, thread_id)
    for key, found in (yield from cells.every()):
        now: Kept[Carryover] | None = found
        while now is not None:  # another process may change it concurrently
            left = None if is_over else now.record.without(run_ids)
            if left is now.record:
                break
            done, now = yield from cells.swap(key, now.token, left, token=left.token if left else None)
            if done:
                break


def copy_carryovers(session: Session, source: str, target: str, names: Sequence[str | None] | None) -> Plan[None]:
    """Copy the carryovers of a thread. A trip a page, and one for each copied cell."""
    if names is None:
        yield from Cells(session, CARRYOVERS, source).copy_raw(target)
        return
    found = yield from Cells(session, CARRYOVERS, source).every()
    wanted, _ = find_behind([kept.record for _, kept in found], names)
    cells = Cells(session, CARRYOVERS, target)
    for key, kept in found:
        if kept.record in wanted:
            yield from cells.swap(key, None, kept.record, token=kept.token)
