"""`prune` and `delete_for_runs`: rules, plans and reports."""

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
    """Removals from one thread, done or planned.

    Attributes:
        thread_id: The thread.
        removed: Number of removed checkpoints, over all namespaces; `None` (not counted) for a whole thread.
        kept: Number of kept checkpoints. If `removed` is 0 too, there is no such thread.
        deleted: Whether the whole thread is deleted, with all its records.
        rows: Number of removed rows of values; `None` for a whole thread.
        bytes: Stored size of the removed headers, writes and rows, for dry runs only; otherwise `None`. The freed space
            may be larger: it excludes the database's overhead, and in a store of files single values out of combined
            rows.
    """

    thread_id: str
    removed: int | None = 0
    kept: int = 0
    deleted: bool = False
    rows: int | None = 0
    bytes: int | None = None

    @property
    def is_changed(self) -> bool:
        """Whether anything is removed."""
        return self.deleted or bool(self.removed) or bool(self.rows)

    def __str__(self) -> str:
        """Describe it in one line."""
        name, is_dry = plain(self.thread_id), self.bytes is not None
        size = f", {count_of(self.bytes, 'byte')}" if self.bytes is not None else ""
        if self.deleted:
            return f"{name}: {'would be deleted' if is_dry else 'deleted'}{size}"
        count = (self.removed or 0) + self.kept
        if not count:
            return f"{name}: no such thread"
        rows = f", and {count_of(self.rows, 'unreferenced row')}" if self.rows and not self.removed else ""
        done = "would remove" if is_dry else "removed"
        return f"{name}: {done} {self.removed:,} of {count_of(count, 'checkpoint')}{rows}{size}"


@publish
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PruneReport:
    """Removals of a prune, done or planned.

    Attributes:
        threads: A report for each thread, in the given order.
        dry_run: Whether the removals are only planned.
    """

    threads: Sequence[ThreadPruned] = ()
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """Number of removed checkpoints, except those of deleted threads."""
        return sum(each.removed or 0 for each in self.threads)

    @property
    def kept(self) -> int:
        """Number of kept checkpoints."""
        return sum(each.kept for each in self.threads)

    @property
    def deleted(self) -> int:
        """Number of deleted threads."""
        return sum(each.deleted for each in self.threads)

    @property
    def bytes(self) -> int | None:
        """Number of removed bytes; `None` if not counted."""
        counted = [each.bytes for each in self.threads if each.bytes is not None]
        return sum(counted) if len(counted) == len(self.threads) else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        totals = {"removed": self.removed, "kept": self.kept, "deleted": self.deleted, "bytes": self.bytes}
        return {"dry_run": self.dry_run, **totals, "threads": [asdict(each) for each in self.threads]}

    def __str__(self) -> str:
        """List the removals by thread, and their total."""
        return "\n".join([*map(str, self.threads), _total(self)])

    def __repr__(self) -> str:
        """As `str`, for notebooks."""
        return str(self)


@publish
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepReport(PruneReport):
    """Removals of a sweep, done or planned. `threads` lists only changed threads.

    Attributes:
        looked: Number of checked threads.
        failed: Threads that could not be read or are on hold, and the reason. They are not changed.
        reminders: Requests for approval whose reminder is due.
        has_policies: Whether there was any policy.
    """

    looked: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    reminders: Sequence[Any] = ()
    has_policies: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, without the reminders."""
        return {**PruneReport.to_dict(self), "looked": self.looked, "failed": dict(self.failed)}

    def __str__(self) -> str:
        """List the removals by thread, and their total."""
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
    is_dry: bool = False  # whether to report without removing anything


def check_request(thread_ids: Iterable[str], strategy: str | Retention) -> tuple[list[str], Retention | None]:
    """Validate arguments of `prune`; return threads and policy (`None`: delete)."""
    if thread_ids is None:
        raise InvalidInput("prune needs thread ids: for all threads of the store use sweep(Retention(...))")
    if isinstance(thread_ids, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{thread_ids!r}]")
    if isinstance(thread_ids, Mapping):
        raise InvalidInput("pass a list of thread ids, not a config: [config['configurable']['thread_id']]")
    if strategy in ("keep_latest", "delete"):
        policy = KEEP_LATEST if strategy == "keep_latest" else None
    elif not isinstance(strategy, Retention):
        raise InvalidInput(f"unknown prune strategy {strategy!r}: use 'keep_latest', 'delete' or Retention(...)")
    elif (strategy.threads, strategy.idle, strategy.ttl) != ("*", None, None):
        raise InvalidInput("threads, idle and ttl are for sweep and set_policy: prune takes thread ids")
    else:
        policy = check_rules(strategy)
    return [thread_id_of(thread_id) for thread_id in thread_ids], policy


def prune(session: Session, thread_id: str, task: Pruning) -> Plan[ThreadPruned]:
    """Prune one thread; see `KeelSaver.prune`.

    Six trips; two for a deletion. A dry run also reads the entries to remove.
    """
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
    """Read a thread; return it with its kept and removed entries.

    Two trips, and one more to find branches that wait for a person.
    """
    named: set[Address] = set()
    for hear in session.hooks.keep if task.policy is not None else ():
        named |= set((yield from hear(session, thread_id, task.policy)))
    read = yield from survey(session, thread_id)
    kept = (yield from _choose_kept(session, read, task.policy, task.now, named)) if task.policy else set[Stamp]()
    removal = plan_removal(read.all, kept)
    keep_memory_callers(read, kept, removal)
    return read, kept, removal


def _delete(session: Session, thread_id: str) -> Plan[ThreadPruned]:
    """Delete a thread; if it has no checkpoint, delete its remaining writes and notes."""
    found = yield from session.store.scan(Query(thread_id, limit=1))
    yield from delete_thread(session, thread_id)
    if not found:
        return ThreadPruned(thread_id=thread_id)
    return ThreadPruned(thread_id=thread_id, removed=None, deleted=True, rows=None)


def record_prune(session: Session, pruned: ThreadPruned, by: str) -> Plan[None]:
    """Record the removals from a thread in the audit trail, if any."""
    if pruned.deleted:
        yield from append_deletion(session, pruned.thread_id, by)
    elif pruned.is_changed:
        yield from append_act(session, pruned.thread_id, "pruned", by, removed=pruned.removed, kept=pruned.kept)


# -- choosing -------------------------------------------------------------------------------------------------


def _choose_kept(
    session: Session, read: Survey, policy: Retention, now: float, named: Collection[Address]
) -> Plan[set[Stamp]]:
    """Return the kept checkpoints. One trip if branches may wait for a person."""
    ruled = choose(policy, read.seen, now, named)
    kept = find_open_heads(read.seen) | ruled
    ends = leaves(read.seen, kept) if policy.waiting else []
    if ends:
        ruled |= yield from _find_waiting(session, [node for node, _ in roots_in(ends)])
    # A rule keeps all checkpoints of subgraphs in a step; for a head, only their latest are kept.
    kept |= ruled | find_called_from(
        read.seen, {node.address.checkpoint_id for node, _ in roots_in(read.seen) if node.stamp in ruled}
    )
    return kept | _find_belongings(read, kept)


def _find_waiting(session: Session, nodes: Sequence[Node]) -> Plan[set[Stamp]]:
    """Return the nodes that wait for an answer. A trip for each 500."""
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
        return True  # not readable here, so it is kept


def _find_belongings(read: Survey, kept: Collection[Stamp]) -> set[Stamp]:
    """Return memories and running calls that kept checkpoints except heads need."""
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
    """Delete the checkpoints of runs, in all threads; see `delete_for_runs`."""

    def of_other_runs(moments: Sequence[NodeAndHeader]) -> set[Stamp]:
        return {node.stamp for node, _ in moments if node.run_id not in run_ids}

    threads = yield from session.store.find_runs(run_ids)
    yield from check_threads(session, threads)
    for thread_id in threads:
        yield from remove(session, thread_id, of_other_runs, run_ids)
    if run_ids:
        yield from tell(session.hooks.after_runs_removed, session, run_ids, threads)


# -- checkpoints of subgraphs that belong to running steps, or to kept checkpoints -------------------------------


def find_open_heads(moments: Sequence[NodeAndHeader], others: Collection[str | None] = ()) -> set[Stamp]:
    """Return every namespace's latest checkpoint, except of finished subgraph calls."""
    known = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node, _ in moments}
    latest = [(place, node, header) for place, (node, header) in enumerate(moments) if node.is_head]
    heads = {head[1].address.checkpoint_ns: head for head in latest}
    ids = {node.address.checkpoint_id for _, node, _ in heads.values()} | set(others)

    def is_over(namespace: str) -> bool:
        """Return whether a namespace is of a subgraph call in an earlier step."""
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
        """Return whether a graph continued from the checkpoint that called a subgraph."""
        if parent is None or parent in ids:
            return False
        if (outer, parent) in known:
            return True
        if outer not in heads:
            return False
        # The checkpoint is gone, or not stored yet: with `durability="async"` a subgraph's checkpoints overtake that of
        # their step. It is still to come if the subgraph wrote after the graph's latest, or if its id is later. Ids are
        # made of times, so different clocks keep too much rather than too little.
        put_at, node, _ = heads[outer]
        return put_at > place and str(parent) <= str(node.address.checkpoint_id)

    return {node.stamp for namespace, (_, node, _) in heads.items() if not is_over(namespace)}


def find_called_from(moments: Sequence[NodeAndHeader], ids: Collection[str | None]) -> set[Stamp]:
    """Return the checkpoints of all subgraphs in the steps of root checkpoints."""
    inner = [each for each in moments if each[0].address.checkpoint_ns] if ids else []
    return {node.stamp for node, header in inner if _parents(header).get("") in ids}


def _parents(header: Header) -> Mapping[str, Any]:
    parents = header.metadata.get("parents")
    return parents if isinstance(parents, Mapping) else {}
