"""What survives: a pure function over a thread's graph, and the plans that carry it out.

Removal is two steps, each safe at any moment and while other processes write. First entries go. Then the graph is read
again and rows go that no remaining entry shows, below the ends that the logs had at that reading: whatever was put
meanwhile either stands above those ends or builds on an entry that still exists (`Store.write_entry` checks its base),
whose rows were counted. A crash in between leaves rows that the next removal takes. A prune does one thing before: it
carries the records of models' calls (`core.carried`).

*Ghosts*: a delta channel is rebuilt from the writes of its ancestors, so ancestors that a kept checkpoint needs
stay, stripped to those channels, unseen by everything but that walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from langgraph_keel.core.address import is_task, thread_id_of
from langgraph_keel.core.carried import Moments, carry, drop
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.checkpoints import Checkpoints, where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.headers import unpack_header
from langgraph_keel.core.labels import labels_of
from langgraph_keel.core.ledger import DONE, FAILED, TOOLS, CallRecord, Ledger, forget
from langgraph_keel.core.memories import moved_back
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Address, Graph, Node, Run, Stamp, resolve
from langgraph_keel.errors import InvalidInput

Metadata: TypeAlias = Mapping[str, Any]
Moment: TypeAlias = tuple[Node, Metadata]
Keep: TypeAlias = Callable[[Sequence[Moment]], set[Stamp]]
First: TypeAlias = Callable[[Moments, Collection[Stamp]], Plan[Any, Any, None]]


@dataclass(slots=True)
class Doomed:
    """The entries to remove, and those to keep as ghosts with the channels they are needed for."""

    gone: set[Stamp] = field(default_factory=set)
    ghosts: dict[Stamp, set[str]] = field(default_factory=dict)


def doomed(moments: Sequence[Moment], keep: Collection[Stamp]) -> Doomed:
    """Return what must go if only the entries in `keep` are to be seen."""
    by_id = {(node.address.checkpoint_ns, node.address.checkpoint_id): node for node, _ in moments}
    result = Doomed()
    kept = [moment for moment in moments if moment[0].stamp in keep]
    for ancestor, channels in [need for moment in kept for need in _needed(*moment, by_id)]:
        if ancestor.stamp not in keep:
            result.ghosts.setdefault(ancestor.stamp, set()).update(channels)
    result.gone = {node.stamp for node, _ in moments} - set(keep) - set(result.ghosts)
    return result


def _needed(
    node: Node, metadata: Metadata, by_id: Mapping[tuple[str, str | None], Node]
) -> list[tuple[Node, set[str]]]:
    """Walk back to the ancestors whose writes or snapshots rebuild the delta channels of `node`."""
    missing = {channel for channel in metadata.get("counters_since_delta_snapshot") or () if channel not in node.refs}
    walk = []
    while missing and node.parent is not None:
        ancestor = by_id.get((node.address.checkpoint_ns, node.parent))
        if ancestor is None:
            break
        node = ancestor
        walk.append((node, set(missing)))
        missing -= set(node.refs)
    return walk


def latest_only(moments: Sequence[Moment]) -> set[Stamp]:
    """Return the heads to keep: the latest of every namespace, but not of subgraph calls that are over."""
    heads = {node.address.checkpoint_ns: (node, metadata) for node, metadata in moments if node.is_head}
    ids = {node.address.checkpoint_id for node, _ in heads.values()}
    return {node.stamp for node, metadata in heads.values() if not _is_over(node, metadata, heads, ids)}


def _is_over(node: Node, metadata: Metadata, heads: Mapping[str, Moment], ids: Collection[str | None]) -> bool:
    """Return whether a namespace belongs to a subgraph call whose parent step is no longer the latest."""
    outer, _, call = node.address.checkpoint_ns.rpartition("|")
    if not is_task(call.partition(":")[2]):
        return False
    parent = (metadata.get("parents") or {}).get(outer)
    if parent is None:
        return False
    if parent not in ids:
        return True
    return outer in heads and bool(outer) and _is_over(*heads[outer], heads, ids)


def live_runs(graph: Graph) -> dict[tuple[str, str], list[Run]]:
    """Return the item numbers that any entry shows, per (namespace, channel), merged and in order."""
    shown: dict[tuple[str, str], set[Run]] = {}
    for node in graph.nodes:
        for channel, ref in node.refs.items():
            shown.setdefault((node.address.checkpoint_ns, channel), set()).update(ref.runs)
    return {key: _merged(runs) for key, runs in shown.items()}


def _merged(runs: Collection[Run]) -> list[Run]:
    merged: list[Run] = []
    for lo, hi in sorted(runs):
        if merged and lo <= merged[-1][1]:
            lo, hi = merged[-1][0], max(hi, merged.pop()[1])
        merged.append((lo, hi))
    return list(resolve(merged, 0))


def remove(
    core: Checkpoints[Q, R], codec: Codec, thread_id: str, choose: Keep, first: First | None = None
) -> Plan[Q, R, Sequence[Node]]:
    """Keep only what `choose` says of a thread's entries, given in the order they were put; return it. Four trips.

    `first` is carried out before anything is removed, if anything is.
    """
    graph = yield from core.store.read_graph(thread_id)
    headers = [(node, unpack_header(node.header, codec, where_is(node.address))) for node in graph.nodes]
    moments = [(node, header.metadata) for node, header in headers]
    seen = [moment for moment in moments if not moment[0].is_ghost]
    kept = choose(seen)
    doom = doomed(moments, kept)
    # Ghosts that are still needed as they are need no change.
    if doom.gone or doom.ghosts:
        if first is not None:
            yield from first([each for each in headers if not each[0].is_ghost], kept)
        yield from core.store.remove_entries(thread_id, doom.gone, doom.ghosts)
        core.memo.forget_thread(thread_id)
        if core.recorder and doom.gone:
            ids = {node.address.checkpoint_id for node, _ in seen if node.stamp in doom.gone}
            core.recorder.forget_thread(thread_id, ids)
        yield from sweep(core, thread_id)
    return [node for node, _ in seen if node.stamp in kept]


def sweep(core: Checkpoints[Q, R], thread_id: str) -> Plan[Q, R, int]:
    """Delete the rows of a thread that no entry shows; return how many. Two trips."""
    graph = yield from core.store.read_graph(thread_id)
    removed = yield from core.store.remove_rows(thread_id, live_runs(graph), graph)
    return removed


def prune(core: Checkpoints[Q, R], codec: Codec, thread_id: str, strategy: str) -> Plan[Q, R, None]:
    """Prune one thread; see `KeelSaver.prune`."""
    if strategy == "delete":
        yield from core.delete_thread(thread_id)
    else:
        labels = yield from labels_of(core.store, codec, thread_id)
        named = {label.address for label in labels}
        past: set[str | None] = set()

        def choose(moments: Sequence[Moment]) -> set[Stamp]:
            kept = latest_only(moments) | _labelled(moments, named, codec)
            past.update(_led_on(moments, kept))
            return kept

        kept = yield from remove(core, codec, thread_id, choose, partial(carry, core, codec, thread_id))
        since = min((_put_at(node, codec) for node in kept if not node.address.checkpoint_ns), default=None)
        if since is not None:
            yield from _forget_calls(core, codec, Shelf(thread_id, TOOLS), lambda call, _: _is_past(call, since, past))


def _labelled(moments: Sequence[Moment], places: Collection[Address], codec: Codec) -> set[Stamp]:
    """Return the checkpoints that have a label, and what subgraphs with a memory remembered there."""
    graph = Graph([node for node, _ in moments], {}, None)
    named = [node for node in graph.nodes if node.address in places]
    roots = [node for node in named if not node.address.checkpoint_ns]
    memories = [memory for node in roots for memory in moved_back(graph, node, codec).values() if memory]
    return {node.stamp for node in [*named, *memories]}


def _led_on(moments: Sequence[Moment], kept: Collection[Stamp]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to all that stays: what tools returned there is part of its state.

    What was called from any other may be called again: on a branch that was left, on the way that a rewind gave up.
    """
    root = {node.address.checkpoint_id: (node, about) for node, about in moments if not node.address.checkpoint_ns}
    ways = [set(_way(name, root)) for name, (node, _) in root.items() if node.stamp in kept]
    led = set.intersection(*ways) if ways else set()
    yield from led
    for node, about in moments:
        parents = about.get("parents")
        if node.address.checkpoint_ns and isinstance(parents, Mapping) and parents.get("") in led:
            yield node.address.checkpoint_id


def _way(at: str | None, root: Mapping[str | None, Moment]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to one. An update or a copy goes on without the step's results."""
    while at in root:
        node, about = root[at]
        if about.get("source") == "loop":
            yield node.parent
        at = node.parent


def _put_at(node: Node, codec: Codec) -> float:
    """Return when a checkpoint was made, in milliseconds since 1970; 0 where it does not say so."""
    try:
        ts = datetime.fromisoformat(str(unpack_header(node.header, codec, where_is(node.address)).checkpoint.get("ts")))
    except ValueError:
        return 0
    return ts.timestamp() * 1000


def _is_past(call: CallRecord, since: float, past: Collection[str | None]) -> bool:
    # Made on the way to what is left, and ended before the oldest of that was made: its result is part of the state
    # there. One whose end nobody knows, or that is under way, stays: without it the tool would run again.
    is_over = call.state in (DONE, FAILED) and (call.ended_at or call.started_at) < since
    return is_over and call.checkpoint_id in past


def _forget_calls(
    core: Checkpoints[Q, R], codec: Codec, shelf: Shelf, is_over: Callable[[CallRecord, Cell], bool]
) -> Plan[Q, R, None]:
    # No claim is made here, so no token is either.
    ledger = Ledger(core.store, codec, partial(str, ""), lambda holder: False)
    yield from forget(ledger, core.store, shelf, is_over)


def to_prune(thread_ids: Sequence[str], strategy: str) -> list[str]:
    """Return the threads that `prune` is asked to prune.

    Raises:
        InvalidInput: There is no such strategy, or the threads are given as one string.
        InvalidConfig: One of the ids is unusable.
    """
    if strategy not in ("keep_latest", "delete"):
        raise InvalidInput(f"unknown prune strategy {strategy!r}: use 'keep_latest' or 'delete'")
    if isinstance(thread_ids, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{thread_ids!r}]")
    return [thread_id_of(thread_id) for thread_id in thread_ids]


def delete_for_runs(core: Checkpoints[Q, R], codec: Codec, run_ids: Collection[str]) -> Plan[Q, R, None]:
    """Delete the checkpoints of these runs, in every thread; see `KeelSaver.delete_for_runs`."""
    threads = yield from core.store.find_runs(run_ids)
    for thread_id in threads:
        first = partial(drop, core, codec, thread_id, run_ids)
        yield from remove(core, codec, thread_id, lambda moments: _of_other_runs(moments, run_ids), first)
    for shelf in [Shelf(None, TOOLS), *(Shelf(thread_id, TOOLS) for thread_id in threads)] if run_ids else []:
        yield from _forget_calls(core, codec, shelf, lambda call, _: call.run_id in run_ids)


def _of_other_runs(moments: Sequence[Moment], run_ids: Collection[str]) -> set[Stamp]:
    return {node.stamp for node, _ in moments if node.run_id not in run_ids}
