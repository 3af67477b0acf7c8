"""Records of calls whose checkpoints were pruned: they stand in cells of their thread, and are deleted with it.

A prune puts what led to the checkpoint that stays into one cell, before it removes anything: if it is cut off, records
stand twice, which reading does not mind (each is known by its call's id). A cell is named by what it holds, so a prune
that is made again writes the same cell. Branches that were left go with their calls.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, TypeAlias

from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.checkpoints import where_is
from langgraph_keel.engine.headers import Header
from langgraph_keel.engine.lineage import origin_of
from langgraph_keel.engine.plan import Plan, Q, R
from langgraph_keel.engine.records import Address, Entry, Node, Stamp
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.writes import unpack_batches
from langgraph_keel.errors import CorruptStore, ValueRefused
from langgraph_keel.provenance.records import ModelCall, strays_of, unpacked

CARRIED = "model"
"""The kind of the cells."""
PAGE = 500

Item: TypeAlias = Sequence[Any]
"""The namespace and the id of the checkpoint that a call led to, the id of the run that made that, and the record."""
Moments: TypeAlias = Sequence[tuple[Node, Header]]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a prune has carried.

    Attributes:
        first: The id of the first root checkpoint that it took; empty if something of it was deleted since.
        until: The id of the root checkpoint after the last.
        is_first: Whether no model was called before.
        items: The records.
    """

    first: str
    until: str
    is_first: bool
    items: Sequence[Item]

    def calls(self, thread_id: str) -> list[ModelCall]:
        """Return the records, each at the checkpoint it led to, which is gone."""
        found = [(unpacked(record), namespace, name) for namespace, name, _, record in self.items]
        return [
            replace(call, thread_id=thread_id, checkpoint_ns=namespace, checkpoint_id=name)
            for call, namespace, name in found
            if call is not None
        ]

    def without(self, run_ids: Collection[str]) -> Carried:
        """Return it without the records of these runs."""
        left = [item for item in self.items if item[2] not in run_ids]
        return self if len(left) == len(self.items) else Carried("", self.until, False, left)

    def cell(self, codec: Codec) -> Cell:
        """Return it as it is stored."""
        said = [self.first, self.until, self.is_first, list(self.items)]
        return Cell(_digest(_ids(self.items)), codec.encode([said]))

    @property
    def key(self) -> str:
        """The key of its cell."""
        return _digest([self.first, self.until, *_ids(self.items)])


def _ids(items: Iterable[Item]) -> list[str]:
    return sorted(str(record["id"]) for *_, record in items)


def _digest(names: Iterable[str]) -> str:
    return blake2b("\n".join(names).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def _unpacked(cell: Cell, codec: Codec, thread_id: str) -> Carried:
    try:
        ((first, until, is_first, items),) = codec.decode(cell.header)
        return Carried(str(first), str(until), is_first is True, [_item(*item) for item in items])
    except (CorruptStore, TypeError, ValueError, KeyError) as error:
        raise CorruptStore(f"thread {thread_id!r}: records of pruned checkpoints do not decode: {error}") from error


def _item(namespace: Any, name: Any, run_id: Any, record: Any) -> Item:
    return str(namespace), str(name), run_id, {**record, "id": str(record["id"])}


# -- where a thread begins -------------------------------------------------------------------------------------


def is_first(header: Header) -> bool:
    """Tell whether no model was called before those that led to a checkpoint of the root graph.

    Steps count from -1, and no model is called before step 1; but the first checkpoint of a run with
    `durability="exit"` is of any step, and the calls of all its steps led there.
    """
    step = header.metadata.get("step")
    return bool(header.about.get("first")) or (isinstance(step, int) and step <= 1)


def may_be_pruned(entry: Entry, header: Header) -> bool:
    """Tell whether something may have come before a checkpoint that is not there any more: threads begin with step -1.

    With `durability="exit"` they do not, and it may be so of each.
    """
    return entry.parent is None and header.metadata.get("step") != -1


def root_of(address: Address, metadata: Mapping[str, Any]) -> Any:
    """Return the id of the root graph's checkpoint: of itself, or of the one that a subgraph's step began from."""
    parents = metadata.get("parents")
    outer = parents.get("") if isinstance(parents, Mapping) else None
    return outer if address.checkpoint_ns else address.checkpoint_id


def behind(carried: Sequence[Carried], line: Sequence[str | None]) -> tuple[list[Carried], bool]:
    """Return what was carried from before root checkpoints, and whether that goes back to the first call."""
    found: list[Carried] = []
    places = list(line)
    for place in places:  # which grows
        here = [each for each in carried if each.until == place]
        found += here
        places += [each.first for each in here if each.first not in places]
    return found, any(each.is_first for each in found)


# -- carrying --------------------------------------------------------------------------------------------------


def carry(session: Session, thread_id: str, moments: Moments, kept: Collection[Stamp]) -> Plan[Any, Any, None]:
    """Put the records that led to what stays into cells. None where no model answered.

    One trip for each checkpoint of the root graph that stays, and one more if tasks have failed or asked.

    Args:
        session: What it runs on.
        thread_id: The thread.
        moments: All its checkpoints, but ghosts, in the order they were put.
        kept: Those that stay.
    """
    if not any(header.about for _, header in moments):
        return
    for line in _lines(moments, kept):
        gone = [each for each in _within(line, moments) if each[0].stamp not in kept or each is line[-1]]
        items = {item[3]["id"]: item for moment in gone for item in _headed(*moment)}
        for item in (yield from _unled(session, moments, gone)):
            items.setdefault(item[3]["id"], item)
        if items or (len(line) > 1 and line[-1][1].metadata.get("step") != -1):  # a link to what was carried before
            ends = [str(node.address.checkpoint_id) for node, _ in (line[-1], line[0])]
            carried = Carried(ends[0], ends[1], is_first(line[-1][1]), list(items.values()))
            # If a cell of this name is there, so are the records.
            yield from session.store.swap_cell(
                Shelf(thread_id, CARRIED), carried.key, None, carried.cell(session.codec)
            )


def _within(line: Moments, moments: Moments) -> Moments:
    """Return the checkpoints of a line but its latest, and those of subgraphs that were made from any on it."""
    names = {node.address.checkpoint_id for node, _ in line}
    return [each for each in moments if each is not line[0] and root_of(each[0].address, each[1].metadata) in names]


def _lines(moments: Moments, kept: Collection[Stamp]) -> list[list[tuple[Node, Header]]]:
    """Return each root checkpoint that stays with those it came from, the nearest first, to the next one that stays."""
    root = {each[0].address.checkpoint_id: each for each in moments if not each[0].address.checkpoint_ns}
    lines = [[each] for each in root.values() if each[0].stamp in kept]
    for line in lines:
        at = _origin(line[0], root)
        if at in root and root[at][0].stamp in kept:
            continue  # what it came from stays in sight
        while at in root and (len(line) == 1 or line[-1][0].stamp not in kept) and root[at] not in line:
            line.append(root[at])
            at = _origin(line[-1], root)
    return lines


def _origin(moment: tuple[Node, Header], known: Container[object]) -> str | None:
    return origin_of(moment[0].parent, moment[1].metadata, known)


def _headed(node: Node, header: Header) -> list[Item]:
    place = (node.address.checkpoint_ns, node.address.checkpoint_id, node.run_id)
    calls = header.about.get("calls")
    records = calls if isinstance(calls, list) else []
    strays = [((*_innermost(lineage, place), node.run_id), record) for lineage, record in strays_of(header.about)]
    found = [*((place, record) for record in records), *strays]
    return [(*at, record) for at, record in found if _is_record(record)]


def _is_record(stored: Any) -> bool:
    return isinstance(stored, dict) and isinstance(stored.get("id"), str)


def _innermost(lineage: Mapping[str, str], place: tuple[Any, ...]) -> tuple[Any, Any]:
    namespace = max(lineage, default=None)
    return place[:2] if namespace is None else (namespace, lineage[namespace])


def _unled(session: Session, moments: Moments, gone: Moments) -> Plan[Any, Any, list[Item]]:
    """Return the records that stand with writes alone: of tasks that failed or asked where no step went on."""
    led = {(n.address.checkpoint_ns, n.parent) for n, header in moments if header.metadata.get("source") == "loop"}
    ends = [node for node, _ in gone if (node.address.checkpoint_ns, node.address.checkpoint_id) not in led]
    entries = [Entry(node.address, node.parent, node.stamp, node.header, {}, node.run_id) for node in ends]
    found = (yield from session.store.read_values(entries)) if entries else ()
    items: list[Item] = []
    for each in found:
        address = each.entry.address
        calls: list[Any] = []
        with suppress(ValueRefused, CorruptStore):  # what cannot be read can be removed all the same
            calls = unpack_batches(each.batches, session.codec, where_is(address))[1]
        records = [record for stored in calls if isinstance(stored, list) for record in stored]
        place = (address.checkpoint_ns, address.checkpoint_id, each.entry.run_id)
        items += [(*place, record) for record in records if _is_record(record)]
    return items


# -- afterwards ------------------------------------------------------------------------------------------------


def _pages(store: Store[Q, R], thread_id: str) -> Plan[Any, Any, list[tuple[str, Cell]]]:
    cells: list[tuple[str, Cell]] = []
    while True:
        after = cells[-1][0] if cells else None
        page = yield from store.list_cells(Shelf(thread_id, CARRIED), "", after, PAGE)
        cells += page
        if len(page) < PAGE:
            return cells


def read_carried(session: Session, thread_id: str) -> Plan[Any, Any, list[Carried]]:
    """Read what the prunes of a thread have carried. One trip a page.

    Raises:
        CorruptStore: A cell does not decode.
    """
    cells = yield from _pages(session.store, thread_id)
    return [_unpacked(cell, session.codec, thread_id) for _, cell in cells]


def drop(
    session: Session,
    thread_id: str,
    run_ids: Collection[str],
    moments: Moments,
    kept: Collection[Stamp],
) -> Plan[Any, Any, None]:
    """Remove the records of these runs; all, if no checkpoint of the root graph stays. A trip, and one more a cell."""
    is_over = not any(node.stamp in kept for node, _ in moments if not node.address.checkpoint_ns)
    for key, cell in (yield from _pages(session.store, thread_id)):
        yield from _rewrite(session, thread_id, key, cell, None if is_over else run_ids)


def _rewrite(
    session: Session, thread_id: str, key: str, cell: Cell | None, run_ids: Collection[str] | None
) -> Plan[Any, Any, None]:
    while cell is not None:
        was = _unpacked(cell, session.codec, thread_id)
        left = replace(was, items=()) if run_ids is None else was.without(run_ids)
        if left is was:
            return
        new = left.cell(session.codec) if left.items else None
        swapped = yield from session.store.swap_cell(Shelf(thread_id, CARRIED), key, cell.token, new)
        cell = None if swapped.done else swapped.cell  # somebody else removes from it, too


def copy_carried(session: Session, source: str, target: str) -> Plan[Any, Any, None]:
    """Copy to a copy of a thread what its prunes have carried. A trip a page, and one for each of them."""
    for key, cell in (yield from _pages(session.store, source)):
        yield from session.store.swap_cell(Shelf(target, CARRIED), key, None, cell)


def hand_on(session: Session, source: str, target: str, names: Sequence[str | None]) -> Plan[Any, Any, None]:
    """Copy to a fork what prunes have carried of its way. A trip, and one for each of them.

    Args:
        session: What it runs on.
        source: The thread it was forked from.
        target: The fork.
        names: The ids of its root checkpoints.
    """
    found, _ = behind((yield from read_carried(session, source)), names)
    for each in found:
        yield from session.store.swap_cell(Shelf(target, CARRIED), each.key, None, each.cell(session.codec))
