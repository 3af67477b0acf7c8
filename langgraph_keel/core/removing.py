"""Removal: which entries go with a choice of those that stay, and the plans that carry it out.

Removal is two steps, each safe at any moment and while other processes write. First entries go. Then the graph is read
again and rows go that no remaining entry shows, below the ends that the logs had at that reading: whatever was put
meanwhile either stands above those ends or builds on an entry that still exists (`Store.write_entry` checks its base),
whose rows were counted. A crash in between leaves rows that the next removal takes.

*Ghosts*: a delta channel is rebuilt from the writes of its ancestors, so ancestors that a kept checkpoint needs
stay, stripped to those channels, unseen by everything but that walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langgraph_keel.core.checkpoints import Checkpoints, where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.headers import Header, UnreadHeader
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Graph, Node, Run, Stamp, resolve

Moments: TypeAlias = Sequence[tuple[Node, Header]]
Choose: TypeAlias = Callable[[Moments], set[Stamp]]
First: TypeAlias = Callable[[Moments, Collection[Stamp]], Plan[Any, Any, None]]

BATCH = 1024
"""Most entries that go in one trip."""


@dataclass(slots=True)
class Doomed:
    """The entries to remove, and those to keep as ghosts with the channels they are needed for."""

    gone: set[Stamp] = field(default_factory=set)
    ghosts: dict[Stamp, set[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Survey:
    """A thread as it was read.

    Attributes:
        thread_id: The thread.
        graph: Its entries.
        all: The entries with their headers, ghosts included, in the order they were put.
    """

    thread_id: str
    graph: Graph
    all: Moments

    @property
    def seen(self) -> Moments:
        """Those that a reader sees."""
        return [moment for moment in self.all if not moment[0].is_ghost]


def survey(core: Checkpoints[Q, R], codec: Codec, thread_id: str) -> Plan[Q, R, Survey]:
    """Read a thread's entries. One trip."""
    graph = yield from core.store.read_graph(thread_id)
    read = [(node, UnreadHeader(node, codec, where_is)) for node in graph.nodes]
    return Survey(thread_id, graph, read)


def doomed(moments: Moments, keep: Collection[Stamp]) -> Doomed:
    """Return what must go if only the entries in `keep` are to be seen."""
    by_id = {(node.address.checkpoint_ns, node.address.checkpoint_id): node for node, _ in moments}
    result = Doomed()
    kept = [moment for moment in moments if moment[0].stamp in keep]
    for ancestor, channels in [need for moment in kept for need in _needed(*moment, by_id)]:
        if ancestor.stamp not in keep:
            result.ghosts.setdefault(ancestor.stamp, set()).update(channels)
    result.gone = {node.stamp for node, _ in moments} - set(keep) - set(result.ghosts)
    for node, _ in moments:
        # A ghost that holds nothing else already stays as it is.
        if node.is_ghost and set(node.refs) <= result.ghosts.get(node.stamp, set()):
            result.ghosts.pop(node.stamp, None)
    return result


def _needed(node: Node, header: Header, by_id: Mapping[tuple[str, str | None], Node]) -> list[tuple[Node, set[str]]]:
    """Walk back to the ancestors whose writes or snapshots rebuild the delta channels of `node`."""
    counters = header.metadata.get("counters_since_delta_snapshot")
    missing = {channel for channel in counters or () if channel not in node.refs}
    walk: list[tuple[Node, set[str]]] = []
    # What is stored may lead in a circle.
    while missing and node.parent is not None and len(walk) < len(by_id):
        ancestor = by_id.get((node.address.checkpoint_ns, node.parent))
        if ancestor is None:
            break
        node = ancestor
        walk.append((node, set(missing)))
        missing -= set(node.refs)
    return walk


def live_runs(graph: Graph) -> dict[tuple[str, str], list[Run]]:
    """Return the item numbers that any entry shows, per (namespace, channel), merged and in order."""
    shown: dict[tuple[str, str], set[Run]] = {}
    for node in graph.nodes:
        for channel, ref in node.refs.items():
            shown.setdefault((node.address.checkpoint_ns, channel), set()).update(ref.runs)
    return {key: merged(runs) for key, runs in shown.items()}


def merged(runs: Collection[Run]) -> list[Run]:
    """Return runs joined where they overlap or touch, in order."""
    found: list[Run] = []
    for lo, hi in sorted(runs):
        if found and lo <= found[-1][1]:
            lo, hi = found[-1][0], max(hi, found.pop()[1])
        found.append((lo, hi))
    return list(resolve(found, 0))


def remove(
    core: Checkpoints[Q, R], codec: Codec, thread_id: str, choose: Choose, first: First | None = None
) -> Plan[Q, R, None]:
    """Keep only what `choose` says of a thread's entries, given in the order they were put. Four trips.

    `first` is carried out before anything is removed, if anything is.
    """
    read = yield from survey(core, codec, thread_id)
    kept = choose(read.seen)
    yield from carry_out(core, read, kept, doomed(read.all, kept), first)


def carry_out(
    core: Checkpoints[Q, R], read: Survey, kept: Collection[Stamp], doom: Doomed, first: First | None = None
) -> Plan[Q, R, int]:
    """Remove what is doomed; return how many rows went. Three trips; one more for each 1,024 entries after the first.

    The oldest go first: a removal that is cut off leaves ways that can still be followed, and is made again. One trip
    if nothing is doomed: the rows that such a removal has left.
    """
    if not doom.gone and not doom.ghosts:
        return (yield from core.store.remove_rows(read.thread_id, live_runs(read.graph), read.graph))
    if first is not None:
        yield from first(read.seen, kept)
    order = [node.stamp for node, _ in read.all if node.stamp in doom.gone or node.stamp in doom.ghosts]
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        ghosts = {stamp: doom.ghosts[stamp] for stamp in part if stamp in doom.ghosts}
        yield from core.store.remove_entries(read.thread_id, doom.gone.intersection(part), ghosts)
        core.memo.forget_thread(read.thread_id)
    if core.recorder and doom.gone:
        ids = {node.address.checkpoint_id for node, _ in read.seen if node.stamp in doom.gone}
        core.recorder.forget_thread(read.thread_id, ids)
    return (yield from sweep_rows(core, read.thread_id))


def sweep_rows(core: Checkpoints[Q, R], thread_id: str) -> Plan[Q, R, int]:
    """Delete the rows of a thread that no entry shows; return how many. Two trips."""
    graph = yield from core.store.read_graph(thread_id)
    removed = yield from core.store.remove_rows(thread_id, live_runs(graph), graph)
    return removed


def finish(core: Checkpoints[Q, R], thread_id: str) -> Plan[Q, R, int]:
    """As `sweep_rows`, but one trip for a thread that was never pruned: entries show all that was ever put there."""
    graph = yield from core.store.read_graph(thread_id)
    live = live_runs(graph)
    if all(live.get(log) == [(0, end)] for log, end in graph.ends.items() if end):
        return 0
    return (yield from core.store.remove_rows(thread_id, live, graph))
