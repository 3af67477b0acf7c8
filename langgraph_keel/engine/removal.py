"""Removal of entries, and then of rows that no entry refers to any more.

Ancestors that other entries need stay as ghosts. Both steps are safe while other processes write. Rows are removed only
below the ends of the logs that were read with the graph: later entries use rows above, or build on an existing entry.
After a crash, the next removal deletes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from langgraph_keel.engine.cells import OBJECTS, OBJECTS_KEY
from langgraph_keel.engine.encoding.bodies import resolve, stored_size
from langgraph_keel.engine.entries import REWOUND_TO, Header, UnreadHeader, rebuilt_channels
from langgraph_keel.engine.events import Leaving
from langgraph_keel.engine.lineage import Ancestry, Memories, NodeAndHeader
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Graph, Node, Run, Stamp
from langgraph_keel.engine.session import Session, tell
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.thread import touches
from langgraph_keel.errors import BlobsMissing, StoreFull

T = TypeVar("T")
Choose: TypeAlias = Callable[[Sequence[NodeAndHeader]], set[Stamp]]

BATCH = 1024
"""Maximum number of entries removed per trip."""

PAGE = 16
"""Checkpoints whose values are read per trip."""


@dataclass(slots=True)
class Removal:
    """The entries of a thread to remove, and ghosts with the channels that they keep."""

    gone: set[Stamp] = field(default_factory=set)
    ghosts: dict[Stamp, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """A thread's graph and all its entries in the order of storage, with ghosts."""

    thread_id: str
    graph: Graph
    all: Sequence[NodeAndHeader]

    @property
    def seen(self) -> Sequence[NodeAndHeader]:
        """The visible entries."""
        return [moment for moment in self.all if not moment[0].is_ghost]


def in_room(plan: Callable[[], Plan[T]]) -> Plan[T]:
    """Run a removal; retry it if the disk was full and the store could make room."""
    try:
        return (yield from plan())
    except StoreFull as full:
        if full.room is None or not (yield full.room):
            raise
    return (yield from plan())


def check_objects(session: Session, why: str) -> Plan[None]:
    """Check that objects outside of the store can be removed or copied.

    One trip; none if they can.
    """
    if (yield from session.store.read_cells(OBJECTS, [OBJECTS_KEY])):
        raise BlobsMissing(
            f"values of this store are kept in objects outside of it, which {why}: open it with blobs='s3://...' "
            "(or 'file:...'), as it was written; for `keel`, set KEEL_BLOBS (or pass --source-blobs to `keel copy`)"
        )


def survey(session: Session, thread_id: str) -> Plan[Survey]:
    """Read a thread's entries. One trip."""
    graph = yield from session.store.read_graph(thread_id)
    read = [(node, UnreadHeader(node, session.codec)) for node in graph.nodes]
    return Survey(thread_id, graph, read)


def plan_removal(moments: Sequence[NodeAndHeader], keep: Collection[Stamp]) -> Removal:
    """Return the removal after which only the entries in `keep` are visible.

    A delta channel is rebuilt from the writes of its ancestors, so ancestors that a kept checkpoint needs stay as
    ghosts.
    """
    ancestry = Ancestry(node for node, _ in moments)
    result = Removal()
    for node, header in moments:
        missing = rebuilt_channels(header.metadata, node.refs) if node.stamp in keep else set()
        for ancestor in islice(ancestry.way(node), 1, None) if missing else ():
            if ancestor.stamp not in keep:
                result.ghosts.setdefault(ancestor.stamp, set()).update(missing)
            missing -= set(ancestor.refs)
            if not missing:
                break
    result.gone = {node.stamp for node, _ in moments} - set(keep) - set(result.ghosts)
    for node, _ in moments:
        # A ghost without other channels already stays as it is.
        if node.is_ghost and set(node.refs) <= result.ghosts.get(node.stamp, set()):
            result.ghosts.pop(node.stamp, None)
    return result


def live_runs(graph: Graph) -> dict[tuple[str, str], list[Run]]:
    """Return the merged runs of items in use, per (namespace, channel), in order."""
    shown: dict[tuple[str, str], set[Run]] = {}
    for node in graph.nodes:
        for channel, ref in node.refs.items():
            shown.setdefault((node.address.checkpoint_ns, channel), set()).update(ref.runs)
    return {key: merge_runs(runs) for key, runs in shown.items()}


def merge_runs(runs: Collection[Run]) -> list[Run]:
    """Return runs in order, merged where they overlap or are adjacent."""
    found: list[Run] = []
    for lo, hi in sorted(runs):
        if found and lo <= found[-1][1]:
            lo, hi = found[-1][0], max(hi, found.pop()[1])
        found.append((lo, hi))
    return list(resolve(found, 0))


def remove(session: Session, thread_id: str, choose: Choose, run_ids: Collection[str] = ()) -> Plan[None]:
    """Keep only the entries of a thread that `choose` returns. Four trips."""
    read = yield from survey(session, thread_id)
    kept = choose(read.seen)
    yield from carry_out(session, read, kept, plan_removal(read.all, kept), run_ids)


def carry_out(
    session: Session, read: Survey, kept: Collection[Stamp], removal: Removal, run_ids: Collection[str] = ()
) -> Plan[int]:
    """Carry out a removal; return the number of deleted rows.

    Three trips, and one for each further 1,024 entries. The oldest entries are removed first, so that an interrupted
    removal leaves complete paths to the latest entries and can be repeated. If there are no entries to remove, one trip
    deletes only the rows that an interrupted removal has left.
    """
    leaving = Leaving(read.thread_id, read.seen, kept, removal.gone, run_ids)
    return (yield from in_room(lambda: _carry_out(session, read, removal, leaving)))


def _carry_out(session: Session, read: Survey, removal: Removal, leaving: Leaving) -> Plan[int]:
    order = [node.stamp for node, _ in read.all if node.stamp in removal.gone or node.stamp in removal.ghosts]
    if order:
        yield from tell(session.hooks.before_remove, session, leaving)
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        ghosts = {stamp: removal.ghosts[stamp] for stamp in part if stamp in removal.ghosts}
        yield from session.store.remove_entries(read.thread_id, removal.gone.intersection(part), ghosts)
        session.memo.forget_thread(read.thread_id)
    yield from tell(session.hooks.after_remove, session, leaving)
    if order:
        return (yield from sweep_rows(session, read.thread_id))
    return (yield from _remove_rows(session, read.thread_id, read.graph))


def sweep_rows(session: Session, thread_id: str) -> Plan[int]:
    """Delete the rows of a thread that no entry uses; return their number. Two trips."""
    graph = yield from session.store.read_graph(thread_id)
    return (yield from _remove_rows(session, thread_id, graph))


def _remove_rows(session: Session, thread_id: str, graph: Graph) -> Plan[int]:
    removed: int = yield from session.store.remove_rows(thread_id, live_runs(graph), graph)
    return removed


def finish(session: Session, thread_id: str) -> Plan[int]:
    """As `sweep_rows`, but one trip if the thread was never pruned."""
    graph = yield from session.store.read_graph(thread_id)
    live = live_runs(graph)
    if all(live.get(log) == [(0, end)] for log, end in graph.ends.items() if end):
        graph = Graph([], {}, None)  # sweep only objects outside of the store
    return (yield from _remove_rows(session, thread_id, graph))


RowPlace: TypeAlias = tuple[str, str, int, int]
"""A row's namespace, channel, first item number, and number of items."""


def measure(session: Session, read: Survey, removal: Removal) -> Plan[tuple[int, int]]:
    """Return the numbers of rows and stored bytes that a removal would delete.

    The bytes are those of headers, writes and rows. One trip per 16 entries to remove. Leftovers of an earlier
    interrupted removal are not included.
    """
    rows, writes = yield from view_removed(session.store, read.graph, removal, stored_size)
    headers = sum(len(node.header) for node in read.graph.nodes if node.stamp in removal.gone)
    return len(rows), headers + sum(writes) + sum(rows.values())


def view_removed(
    store: Store[Any, Any], graph: Graph, removal: Removal, view: Callable[[bytes], T]
) -> Plan[tuple[dict[RowPlace, T], list[T]]]:
    """Apply `view` to the rows and writes to remove. One trip per 16 entries."""
    live = live_after(graph, removal)
    gone = [node for node in reversed(graph.nodes) if node.stamp in removal.gone or node.stamp in removal.ghosts]
    rows: dict[RowPlace, T] = {}
    writes: list[T] = []
    entries = list(_list_unread(gone, live))
    for start in range(0, len(entries), PAGE):
        found = yield from store.read_stored(entries[start : start + PAGE])
        for each in found:
            writes += [view(batch.body) for batch in each.batches] if each.entry.stamp in removal.gone else []
            namespace = each.entry.address.checkpoint_ns
            for channel, stored in each.rows.items():
                shown = live.get((namespace, channel), ())
                dead = [row for row in stored if not touches(row, shown)]
                rows.update(((namespace, channel, row.lo, row.count), view(row.body)) for row in dead)
    return rows, writes


def live_after(graph: Graph, removal: Removal) -> dict[tuple[str, str], list[Run]]:
    """Return the item numbers in use after a removal; see `live_runs`."""
    left = []
    for node in graph.nodes:
        if node.stamp in removal.ghosts:
            channels = removal.ghosts[node.stamp]
            left.append(replace(node, refs={name: ref for name, ref in node.refs.items() if name in channels}))
        elif node.stamp not in removal.gone:
            left.append(node)
    return live_runs(Graph(left, {}, None))


def _list_unread(gone: Sequence[Node], live: Mapping[tuple[str, str], Sequence[Run]]) -> Iterator[Entry]:
    """Yield the removed entries, only with channels that use items not seen before."""
    known = {key: list(runs) for key, runs in live.items()}
    for node in gone:
        refs = {}
        for channel, ref in node.refs.items():
            runs = known.setdefault((node.address.checkpoint_ns, channel), [])
            merged = merge_runs([*runs, *ref.runs])
            if merged != runs:
                refs[channel] = ref
                runs[:] = merged
        yield Entry(node.address, node.parent, node.stamp, node.header, refs, node.run_id)


def keep_memory_callers(read: Survey, kept: Collection[Stamp], removal: Removal) -> None:
    """Keep root checkpoints that called subgraphs as ghosts, if moments need them.

    From these, `engine.lineage` finds the memory of a subgraph that belongs to a moment. Without them, it might find a
    different memory. This is rare (branches, and subgraphs with a memory), and never affects the latest moment.
    """
    if not removal.gone:
        return
    others = [node for node, _ in read.seen if node.stamp in kept and not node.is_head]
    roots = [node for node in others if not node.address.checkpoint_ns]
    if not roots:
        return
    headers = {node.stamp: header for node, header in read.all}
    before = _find_memories(read.graph, roots, headers)
    if not any(before.values()):
        return
    callers = {(header.metadata.get("parents") or {}).get("") for node, header in read.seen if node.stamp in kept}
    for is_last in (False, True):
        after = _find_memories(_graph_without(read.graph, removal), roots, headers)
        wrong = [root for root in roots if after[root.stamp] != before[root.stamp]]
        if not wrong:
            return
        for node in Ancestry(read.graph.nodes).way(*wrong) if is_last else read.graph.nodes:
            is_caller = not node.address.checkpoint_ns and node.address.checkpoint_id in callers
            if node.stamp in removal.gone and (is_last or is_caller):
                removal.gone.discard(node.stamp)
                removal.ghosts[node.stamp] = set()


def _find_memories(
    graph: Graph, roots: Sequence[Node], headers: Mapping[Stamp, Header]
) -> Mapping[Stamp, Mapping[str, str | None]]:
    """Return the checkpoint that a subgraph would continue, by root and namespace."""
    memories = Memories(graph, lambda node: headers[node.stamp])
    latest = {node.address.checkpoint_ns: node for node in graph.nodes if node.is_head and memories.has(node)}
    # After a removal, a node may have another parent.
    same = {node.stamp: node for node in graph.nodes}
    found: dict[Stamp, dict[str, str | None]] = {root.stamp: {} for root in roots}
    for root, ids in found.items():
        for namespace, node in {**latest, **memories.find_moves_back(same[root])}.items():
            ids[namespace] = None
            if node is not None and headers[node.stamp].checkpoint.get("channel_versions"):
                ids[namespace] = str(headers[node.stamp].metadata.get(REWOUND_TO) or node.address.checkpoint_id)
    return found


def _graph_without(graph: Graph, removal: Removal) -> Graph:
    """Return the graph after a removal, as stores return it: without removed parents."""
    nodes = [node for node in graph.nodes if node.stamp not in removal.gone]
    ids = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in nodes}
    return Graph(
        [
            replace(
                node,
                is_ghost=node.is_ghost or node.stamp in removal.ghosts,
                parent=node.parent if (node.address.checkpoint_ns, node.parent) in ids else None,
            )
            for node in nodes
        ],
        {},
        None,
    )
