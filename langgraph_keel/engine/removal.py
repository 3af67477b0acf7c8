"""Removal of entries, and then of the rows that no remaining entry shows; ancestors that others need stay as ghosts.

Both steps are safe while other processes write. Rows are removed below the ends of the logs as they were read with the
graph: later entries are above, or build on an entry that still exists. After a crash, the next removal takes the rest.
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
"""Most entries that go in one trip."""

PAGE = 16
"""Checkpoints whose values are read at once."""


@dataclass(slots=True)
class Removal:
    """The entries of a thread to remove, and those that stay as ghosts for the channels named."""

    gone: set[Stamp] = field(default_factory=set)
    ghosts: dict[Stamp, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """A thread as it was read, with all entries in the order they were put, ghosts included."""

    thread_id: str
    graph: Graph
    all: Sequence[NodeAndHeader]

    @property
    def seen(self) -> Sequence[NodeAndHeader]:
        """The entries that a reader sees."""
        return [moment for moment in self.all if not moment[0].is_ghost]


def in_room(plan: Callable[[], Plan[T]]) -> Plan[T]:
    """Carry out a plan that removes something, and again if the disk was full and the store could make room."""
    try:
        return (yield from plan())
    except StoreFull as full:
        if full.room is None or not (yield full.room):
            raise
    return (yield from plan())


def check_objects(session: Session, why: str) -> Plan[None]:
    """Check that values kept outside of the store can be removed, or copied. One trip; none where they can."""
    if (yield from session.store.read_cells(OBJECTS, [OBJECTS_KEY])):
        raise BlobsMissing(
            f"values of this store are kept in objects outside of it, which {why}: open it with blobs='s3://...' "
            "(or 'file:...'), as it was written; for `keel`, set KEEL_BLOBS (or say --source-blobs to "
            "`keel copy`)"
        )


def survey(session: Session, thread_id: str) -> Plan[Survey]:
    """Read a thread's entries. One trip."""
    graph = yield from session.store.read_graph(thread_id)
    read = [(node, UnreadHeader(node, session.codec)) for node in graph.nodes]
    return Survey(thread_id, graph, read)


def plan_removal(moments: Sequence[NodeAndHeader], keep: Collection[Stamp]) -> Removal:
    """Return the removal after which only the entries in `keep` are seen.

    A delta channel is rebuilt from the writes of its ancestors, so ancestors that a kept checkpoint needs stay.
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
        # A ghost that holds nothing else already stays as it is.
        if node.is_ghost and set(node.refs) <= result.ghosts.get(node.stamp, set()):
            result.ghosts.pop(node.stamp, None)
    return result


def live_runs(graph: Graph) -> dict[tuple[str, str], list[Run]]:
    """Return the item numbers that any entry shows, per (namespace, channel), merged and in order."""
    shown: dict[tuple[str, str], set[Run]] = {}
    for node in graph.nodes:
        for channel, ref in node.refs.items():
            shown.setdefault((node.address.checkpoint_ns, channel), set()).update(ref.runs)
    return {key: merge_runs(runs) for key, runs in shown.items()}


def merge_runs(runs: Collection[Run]) -> list[Run]:
    """Return runs joined where they overlap or touch, in order."""
    found: list[Run] = []
    for lo, hi in sorted(runs):
        if found and lo <= found[-1][1]:
            lo, hi = found[-1][0], max(hi, found.pop()[1])
        found.append((lo, hi))
    return list(resolve(found, 0))


def remove(session: Session, thread_id: str, choose: Choose, run_ids: Collection[str] = ()) -> Plan[None]:
    """Keep only what `choose` says of a thread's entries, given in the order they were put. Four trips."""
    read = yield from survey(session, thread_id)
    kept = choose(read.seen)
    yield from carry_out(session, read, kept, plan_removal(read.all, kept), run_ids)


def carry_out(
    session: Session, read: Survey, kept: Collection[Stamp], removal: Removal, run_ids: Collection[str] = ()
) -> Plan[int]:
    """Carry out a removal; return how many rows went. Three trips; one more for each 1,024 entries after the first.

    The oldest entries go first: a removal that is cut off leaves ways that can still be followed, and is made again.
    One trip if no entry is to go: then only the rows do that a removal which was cut off has left.
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
    """Delete the rows of a thread that no entry shows; return how many. Two trips."""
    graph = yield from session.store.read_graph(thread_id)
    return (yield from _remove_rows(session, thread_id, graph))


def _remove_rows(session: Session, thread_id: str, graph: Graph) -> Plan[int]:
    removed: int = yield from session.store.remove_rows(thread_id, live_runs(graph), graph)
    return removed


def finish(session: Session, thread_id: str) -> Plan[int]:
    """As `sweep_rows`, but one trip for a thread that was never pruned: entries show all that was ever put there."""
    graph = yield from session.store.read_graph(thread_id)
    live = live_runs(graph)
    if all(live.get(log) == [(0, end)] for log, end in graph.ends.items() if end):
        graph = Graph([], {}, None)  # only what is kept outside of the rows is swept
    return (yield from _remove_rows(session, thread_id, graph))


RowPlace: TypeAlias = tuple[str, str, int, int]
"""A row's namespace, channel, first item, and number of items."""


def measure(session: Session, read: Survey, removal: Removal) -> Plan[tuple[int, int]]:
    """Return how many rows would go, and how many bytes: of headers, writes and rows, as they are stored.

    A trip for each 16 entries that would go. What an earlier removal that was cut off has left is not among it.
    """
    rows, writes = yield from view_removed(session.store, read.graph, removal, stored_size)
    headers = sum(len(node.header) for node in read.graph.nodes if node.stamp in removal.gone)
    return len(rows), headers + sum(writes) + sum(rows.values())


def view_removed(
    store: Store[Any, Any], graph: Graph, removal: Removal, view: Callable[[bytes], T]
) -> Plan[tuple[dict[RowPlace, T], list[T]]]:
    """Look at the rows and writes that would go. A trip for each 16 entries that would."""
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
    """Return the item numbers that are shown once entries have gone; see `live_runs`."""
    left = []
    for node in graph.nodes:
        if node.stamp in removal.ghosts:
            channels = removal.ghosts[node.stamp]
            left.append(replace(node, refs={name: ref for name, ref in node.refs.items() if name in channels}))
        elif node.stamp not in removal.gone:
            left.append(node)
    return live_runs(Graph(left, {}, None))


def _list_unread(gone: Sequence[Node], live: Mapping[tuple[str, str], Sequence[Run]]) -> Iterator[Entry]:
    """Yield the entries that go, each only with the channels of which it shows what those before it did not."""
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
    """Change a removal so that each moment keeps its memories: root checkpoints that called subgraphs stay as ghosts.

    By these, `engine.lineage` finds which memory of a subgraph belongs to a moment; without them, it may find another
    one. This is rare (branches, and subgraphs with a memory), and not so of the latest moment.
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
    """Return, by root and namespace, the checkpoint that a subgraph would go on from; `None` if from nothing."""
    memories = Memories(graph, lambda node: headers[node.stamp])
    latest = {node.address.checkpoint_ns: node for node in graph.nodes if node.is_head and memories.has(node)}
    # In what a removal leaves, its parent may be another one.
    same = {node.stamp: node for node in graph.nodes}
    found: dict[Stamp, dict[str, str | None]] = {root.stamp: {} for root in roots}
    for root, ids in found.items():
        for namespace, node in {**latest, **memories.find_moves_back(same[root])}.items():
            ids[namespace] = None
            if node is not None and headers[node.stamp].checkpoint.get("channel_versions"):
                ids[namespace] = str(headers[node.stamp].metadata.get(REWOUND_TO) or node.address.checkpoint_id)
    return found


def _graph_without(graph: Graph, removal: Removal) -> Graph:
    """Return the graph that a removal leaves, as stores return it: a parent that is gone is no parent."""
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
