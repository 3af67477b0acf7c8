"""`prune` and `delete_for_runs`: what of a thread survives, the plans that remove the rest, and their reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.audit import append_act, append_deletion
from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.config import Address, is_task, thread_id_of
from langgraph_keel.engine.entries import Header, pending_writes, waiting_tasks
from langgraph_keel.engine.lineage import Memories, NodeAndHeader, leaves, roots_in
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Node, Query, Stamp
from langgraph_keel.engine.removal import (
    Removal,
    Survey,
    carry_out,
    keep_memory_callers,
    measure,
    plan_removal,
    remove,
    survey,
)
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session, tell
from langgraph_keel.errors import CorruptStore, InvalidInput, ValueRefused
from langgraph_keel.retention.owners import check_threads
from langgraph_keel.retention.policy import KEEP_LATEST, Retention, check_rules, choose

NO_POLICIES = "no policies are stored: nothing was pruned (see retention.set_policy)"

PAGE = 500


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPruned:
    """What went of one thread, or would go.

    Attributes:
        thread_id: The thread.
        removed: How many of its checkpoints, over all namespaces; `None` if the whole thread goes: nobody counts then.
        kept: How many stay; if none was there, there is no such thread.
        deleted: Whether the whole thread goes, with all that belongs to it.
        rows: How many rows of values; `None` if the whole thread goes.
        bytes: How many bytes come back, of headers, writes and rows as they are stored; `None` unless it was a dry run,
            which looks. It may be more: what the database needs besides, and in a store of files single values out of
            what is read as one row, are not counted.
    """

    thread_id: str
    removed: int | None = 0
    kept: int = 0
    deleted: bool = False
    rows: int | None = 0
    bytes: int | None = None

    @property
    def is_changed(self) -> bool:
        """Whether anything goes."""
        return self.deleted or bool(self.removed) or bool(self.rows)

    def __str__(self) -> str:
        """Say it in one line."""
        name, is_dry = plain(self.thread_id), self.bytes is not None
        size = f", {count_of(self.bytes, 'byte')}" if self.bytes is not None else ""
        if self.deleted:
            return f"{name}: {'would be deleted' if is_dry else 'deleted'}{size}"
        count = (self.removed or 0) + self.kept
        if not count:
            return f"{name}: no such thread"
        rows = f", and {count_of(self.rows, 'row')} that none of them shows" if self.rows and not self.removed else ""
        done = "would remove" if is_dry else "removed"
        return f"{name}: {done} {self.removed:,} of {count_of(count, 'checkpoint')}{rows}{size}"


@publish
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PruneReport:
    """What a prune has removed, or would remove.

    Attributes:
        threads: Thread by thread, in the order they were given.
        dry_run: Whether nothing was removed: this is what would go.
    """

    threads: Sequence[ThreadPruned] = ()
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """Checkpoints, without those of threads that go as a whole."""
        return sum(each.removed or 0 for each in self.threads)

    @property
    def kept(self) -> int:
        """Checkpoints that stay."""
        return sum(each.kept for each in self.threads)

    @property
    def deleted(self) -> int:
        """Whole threads."""
        return sum(each.deleted for each in self.threads)

    @property
    def bytes(self) -> int | None:
        """Bytes; `None` if they were not counted."""
        counted = [each.bytes for each in self.threads if each.bytes is not None]
        return sum(counted) if len(counted) == len(self.threads) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        totals = {"removed": self.removed, "kept": self.kept, "deleted": self.deleted, "bytes": self.bytes}
        return {"dry_run": self.dry_run, **totals, "threads": [asdict(each) for each in self.threads]}

    def __str__(self) -> str:
        """Say what went, thread by thread, and in all."""
        return "\n".join([*map(str, self.threads), _total(self)])

    def __repr__(self) -> str:
        """As `str`: what a notebook shows of it."""
        return str(self)


@publish
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepReport(PruneReport):
    """What a sweep has done, or would do. `threads` are those of which something goes.

    Attributes:
        looked: How many threads it has looked at.
        failed: The threads that could not be read, or are on hold, and why; they are as they were.
        reminders: The requests for approval that a reminder is due for.
        has_policies: Whether there was any policy to sweep by.
    """

    looked: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    reminders: Sequence[Any] = ()
    has_policies: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the reminders."""
        return {**PruneReport.to_dict(self), "looked": self.looked, "failed": dict(self.failed)}

    def __str__(self) -> str:
        """Say what went, thread by thread, and in all."""
        if not self.has_policies:
            return NO_POLICIES
        failed = [plain(f"{name}: failed: {why}") for name, why in self.failed.items()]
        return "\n".join(
            [*map(str, self.threads), *failed, f"{_total(self)} ({count_of(self.looked, 'thread')} looked at)"]
        )


def _total(report: PruneReport) -> str:
    what = [count_of(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [count_of(report.deleted, "whole thread")] if report.deleted else []
    what += [] if report.bytes is None else [count_of(report.bytes, "byte")]
    stay = f"{count_of(report.kept, 'checkpoint')} {'stays' if report.kept == 1 else 'stay'}"
    return f"{'would remove' if report.dry_run else 'removed'} {', '.join(what)}; {stay}"


@dataclass(frozen=True, slots=True)
class Pruning:
    """The work of a prune."""

    policy: Retention | None  # `None` deletes the thread
    now: float  # milliseconds since 1970
    is_dry: bool = False  # whether only to find out what would go


def check_request(thread_ids: Iterable[str], strategy: str | Retention) -> tuple[list[str], Retention | None]:
    """Check the arguments of `prune`; return the threads, and what stays of them (`None` is nothing)."""
    if thread_ids is None:
        raise InvalidInput("prune needs the ids of threads: for all threads of the store use sweep(Retention(...))")
    if isinstance(thread_ids, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{thread_ids!r}]")
    if isinstance(thread_ids, Mapping):
        raise InvalidInput("pass a list of thread ids, not a config: [config['configurable']['thread_id']]")
    if strategy in ("keep_latest", "delete"):
        policy = KEEP_LATEST if strategy == "keep_latest" else None
    elif not isinstance(strategy, Retention):
        raise InvalidInput(f"unknown prune strategy {strategy!r}: use 'keep_latest', 'delete' or Retention(...)")
    elif (strategy.threads, strategy.idle, strategy.ttl) != ("*", None, None):
        raise InvalidInput("threads, idle and ttl are for sweep and set_policy: prune is told its threads")
    else:
        policy = check_rules(strategy)
    return [thread_id_of(thread_id) for thread_id in thread_ids], policy


def prune(session: Session, thread_id: str, task: Pruning) -> Plan[ThreadPruned]:
    """Prune one thread; see `KeelSaver.prune`. Six trips; two if it is deleted; a dry run reads what would go."""
    if task.policy is None and not task.is_dry:
        return (yield from _delete(session, thread_id))
    read, kept, removal = yield from plan_prune(session, thread_id, task)
    removed = len(read.seen) - len(kept)
    if task.is_dry:
        rows, size = yield from measure(session, read, removal)
        is_deleted = task.policy is None and bool(read.seen)
        report = ThreadPruned(thread_id=thread_id, removed=removed, kept=len(kept), rows=rows, bytes=size)
        return replace(report, deleted=True, removed=None, rows=None) if is_deleted else report
    rows = yield from carry_out(session, read, kept, removal)
    return ThreadPruned(thread_id=thread_id, removed=removed, kept=len(kept), rows=rows)


def plan_prune(session: Session, thread_id: str, task: Pruning) -> Plan[tuple[Survey, set[Stamp], Removal]]:
    """Read a thread, and return it with what of it stays and what goes. Two trips; one more if branches may wait."""
    named: set[Address] = set()
    for hear in session.hooks.keep if task.policy is not None else ():
        named |= set((yield from hear(session, thread_id, task.policy)))
    read = yield from survey(session, thread_id)
    kept = (yield from _choose_kept(session, read, task.policy, task.now, named)) if task.policy else set[Stamp]()
    removal = plan_removal(read.all, kept)
    keep_memory_callers(read, kept, removal)
    return read, kept, removal


def _delete(session: Session, thread_id: str) -> Plan[ThreadPruned]:
    """Delete a thread. Where it has no checkpoint, what else is left of it goes: late writes, notes beside it."""
    found = yield from session.store.scan(Query(thread_id, limit=1))
    yield from delete_thread(session, thread_id)
    if not found:
        return ThreadPruned(thread_id=thread_id)
    return ThreadPruned(thread_id=thread_id, removed=None, deleted=True, rows=None)


def record_prune(session: Session, pruned: ThreadPruned, by: str) -> Plan[None]:
    """Append to the audit trail what was removed of a thread, if anything was."""
    if pruned.deleted:
        yield from append_deletion(session, pruned.thread_id, by)
    elif pruned.is_changed:
        yield from append_act(session, pruned.thread_id, "pruned", by, removed=pruned.removed, kept=pruned.kept)


# -- what stays ------------------------------------------------------------------------------------------------


def _choose_kept(
    session: Session, read: Survey, policy: Retention, now: float, named: Collection[Address]
) -> Plan[set[Stamp]]:
    """Return what stays. One trip, if branches may wait for somebody; else none."""
    ruled = choose(policy, read.seen, now, named)
    kept = find_open_heads(read.seen) | ruled
    ends = leaves(read.seen, kept) if policy.waiting else []
    if ends:
        ruled |= yield from _find_waiting(session, [node for node, _ in roots_in(ends)])
    # What a rule keeps, it keeps with all that subgraphs have put in its step; a head as such, with their latest only.
    kept |= ruled | find_called_from(
        read.seen, {node.address.checkpoint_id for node, _ in roots_in(read.seen) if node.stamp in ruled}
    )
    return kept | _find_belongings(read, kept)


def _find_waiting(session: Session, nodes: Sequence[Node]) -> Plan[set[Stamp]]:
    """Return which of these wait for an answer. A trip for each 500."""
    asking: set[Stamp] = set()
    entries = [Entry(node.address, node.parent, node.stamp, node.header, {}, node.run_id) for node in nodes]
    for start in range(0, len(entries), PAGE):
        found = yield from session.store.read_values(entries[start : start + PAGE])
        asking.update(each.entry.stamp for each in found if _is_waiting(each, session.codec))
    return asking


def _is_waiting(found: Found, codec: Codec) -> bool:
    try:
        return bool(waiting_tasks(pending_writes(found.batches, codec, found.entry.address)))
    except (ValueRefused, CorruptStore):
        return True  # nobody here can tell, so it stays


def _find_belongings(read: Survey, kept: Collection[Stamp]) -> set[Stamp]:
    """Return what checkpoints beside the heads need that stay: memories as of then, and calls that are under way."""
    headers = {node.stamp: header for node, header in read.all}
    others = [node for node, _ in roots_in(read.seen) if node.stamp in kept and not node.is_head]
    if not others:
        return set()
    memories = Memories(read.graph, lambda node: headers[node.stamp])
    remembered = {root.stamp: [each for each in memories.find_moves_back(root).values() if each] for root in others}
    ends = [node for node, _ in roots_in(leaves(read.seen)) if node.stamp in remembered]
    going = [other for end in ends for other in (end, *remembered[end.stamp])]
    calls = find_open_heads(read.seen, {node.address.checkpoint_id for node in going}) if going else set()
    return calls | {node.stamp for nodes in remembered.values() for node in nodes}


# -- runs ------------------------------------------------------------------------------------------------------


def delete_for_runs(session: Session, run_ids: Collection[str]) -> Plan[None]:
    """Delete the checkpoints of these runs, in every thread; see `KeelSaver.delete_for_runs`."""

    def of_other_runs(moments: Sequence[NodeAndHeader]) -> set[Stamp]:
        return {node.stamp for node, _ in moments if node.run_id not in run_ids}

    threads = yield from session.store.find_runs(run_ids)
    yield from check_threads(session, threads)
    for thread_id in threads:
        yield from remove(session, thread_id, of_other_runs, run_ids)
    if run_ids:
        yield from tell(session.hooks.after_runs_removed, session, run_ids, threads)


# -- which checkpoints of subgraphs belong to steps that go on, or that a kept one must be read with -------------


def find_open_heads(moments: Sequence[NodeAndHeader], others: Collection[str | None] = ()) -> set[Stamp]:
    """Return the latest checkpoint of every namespace, except those of subgraph calls that are over."""
    known = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node, _ in moments}
    latest = [(place, node, header) for place, (node, header) in enumerate(moments) if node.is_head]
    heads = {head[1].address.checkpoint_ns: head for head in latest}
    ids = {node.address.checkpoint_id for _, node, _ in heads.values()} | set(others)

    def is_over(namespace: str) -> bool:
        """Return whether a namespace belongs to a subgraph call whose parent step is no longer the latest."""
        outer, _, call = namespace.rpartition(NS_SEP)
        if not is_task(call.partition(NS_END)[2]):
            return False
        place, _, header = heads[namespace]
        parents = _parents(header)
        if is_left(outer, parents.get(outer), place):
            return True
        if outer in heads:
            return bool(outer) and is_over(outer)
        return is_left("", parents.get(""), place)

    def is_left(outer: str, parent: Any, place: int) -> bool:
        """Return whether a graph continued from the checkpoint that a subgraph was called from."""
        if parent is None or parent in ids:
            return False
        if (outer, parent) in known:
            return True
        if outer not in heads:
            return False
        # It is gone, or not stored yet: with `durability="async"` a subgraph's checkpoints overtake that of the step
        # they belong to. It is yet to come if the subgraph has put since the graph's latest, or if its id is a later
        # one: ids are made of times, so clocks that differ keep too much rather than too little.
        put_at, node, _ = heads[outer]
        return put_at > place and str(parent) <= str(node.address.checkpoint_id)

    return {node.stamp for namespace, (_, node, _) in heads.items() if not is_over(namespace)}


def find_called_from(moments: Sequence[NodeAndHeader], ids: Collection[str | None]) -> set[Stamp]:
    """Return what subgraphs have put in the steps of these root checkpoints, however deep they are nested."""
    inner = [each for each in moments if each[0].address.checkpoint_ns] if ids else []
    return {node.stamp for node, header in inner if _parents(header).get("") in ids}


def _parents(header: Header) -> Mapping[str, Any]:
    parents = header.metadata.get("parents")
    return parents if isinstance(parents, Mapping) else {}
