"""What survives, and the plans of `prune`, `sweep` and `delete_for_runs`.

`core.policies` says what a policy chooses, and `core.removing` how the rest goes. A prune does one thing before: it
carries the records of models' calls (`core.carried`).

What a prune or a sweep has done, or would do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

from langgraph_keel.approvals.requests import SUPERSEDED, Approvals
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.checkpoints import Checkpoints, where_is
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.lineage import Memories
from langgraph_keel.engine.plan import Plan, Q, R
from langgraph_keel.engine.records import Address, Entry, Found, Node, Query, Stamp
from langgraph_keel.engine.removal import Moments, Survey, anchor, carry_out, doomed, remove, survey, weigh
from langgraph_keel.engine.serde.codec import Codec
from langgraph_keel.engine.session import iso_time
from langgraph_keel.engine.writes import pending_writes, waiting_tasks
from langgraph_keel.errors import CorruptStore, InvalidInput, ValueRefused
from langgraph_keel.history.labels import labels_of
from langgraph_keel.provenance.carryover import carry, drop
from langgraph_keel.retention.ongoing import called_from, latest_only
from langgraph_keel.retention.owners import note_owners
from langgraph_keel.retention.policy import KEEP_LATEST, Moment, Retention, chosen, leaves, made_at, meant
from langgraph_keel.tools.ledger import DONE, FAILED, TOOLS, CallRecord, Ledger, forget, speaks_for_one

NO_POLICIES = "no policies are stored: nothing was pruned (see set_retention)"


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
        return _sum([each.bytes for each in self.threads])

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SweepReport(PruneReport):
    """What a sweep has done, or would do. `threads` are those of which something goes.

    Attributes:
        looked: How many threads it has looked at.
        failed: The threads that could not be read, and why; they are as they were.
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


def _sum(sizes: Sequence[int | None]) -> int | None:
    counted = [size for size in sizes if size is not None]
    return sum(counted) if len(counted) == len(sizes) else None


def _total(report: PruneReport) -> str:
    what = [count_of(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [count_of(report.deleted, "whole thread")] if report.deleted else []
    what += [] if report.bytes is None else [count_of(report.bytes, "byte")]
    stay = f"{count_of(report.kept, 'checkpoint')} {'stays' if report.kept == 1 else 'stay'}"
    return f"{'would remove' if report.dry_run else 'removed'} {', '.join(what)}; {stay}"


PAGE = 500


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a prune is told.

    Attributes:
        policy: What stays; `None`: nothing, the thread is deleted.
        now: Milliseconds since 1970.
        tokens: Where tokens come from: 32 letters and digits, never the same again.
        is_dry: Only find out what would go.
    """

    policy: Retention | None
    now: float
    tokens: Callable[[], str]
    is_dry: bool = False


def to_prune(thread_ids: Iterable[str], strategy: str | Retention) -> tuple[list[str], Retention | None]:
    """Return the threads that `prune` is asked to prune, and what stays of them; `None` is nothing.

    Raises:
        InvalidInput: There is no such strategy, it is for `sweep` or says nothing, or the threads are no list of ids.
        InvalidConfig: One of the ids is unusable.
    """
    if thread_ids is None:
        raise InvalidInput("prune needs the ids of threads: for all threads of the store use sweep(Retention(...))")
    if isinstance(thread_ids, str):
        raise InvalidInput(f"pass a list of thread ids, not one string: [{thread_ids!r}]")
    if isinstance(thread_ids, Mapping):
        raise InvalidInput("pass a list of thread ids, not a config: [config['configurable']['thread_id']]")
    policy = _policy_of(strategy)
    return [thread_id_of(thread_id) for thread_id in thread_ids], policy


def _policy_of(strategy: object) -> Retention | None:
    known = {"keep_latest": KEEP_LATEST, "delete": None}
    if isinstance(strategy, str) and strategy in known:
        return known[strategy]
    if not isinstance(strategy, Retention):
        raise InvalidInput(f"unknown prune strategy {strategy!r}: use 'keep_latest', 'delete' or Retention(...)")
    if (strategy.threads, strategy.idle, strategy.ttl) != ("*", None, None):
        raise InvalidInput("threads, idle and ttl are for sweep and set_retention: prune is told its threads")
    return meant(strategy)


def prune(core: Checkpoints[Q, R], codec: Codec, thread_id: str, task: Pruning) -> Plan[Q, R, ThreadPruned]:
    """Prune one thread; see `KeelSaver.prune`. Six trips; two if it is deleted; a dry run reads what would go."""
    if task.policy is None and not task.is_dry:
        return (yield from _deleted(core, thread_id))
    named = yield from _named(core, codec, thread_id, task.policy)
    read = yield from survey(core, codec, thread_id)
    kept: set[Stamp] = set()
    if task.policy is not None:
        kept = yield from _kept(core, codec, read, task, task.policy, named)
    doom = doomed(read.all, kept)
    anchor(read, kept, doom)
    removed = len(read.seen) - len(kept)
    if task.is_dry:
        rows, size = yield from weigh(core, read, doom)
        is_deleted = task.policy is None and bool(read.seen)
        told = ThreadPruned(thread_id=thread_id, removed=removed, kept=len(kept), rows=rows, bytes=size)
        return replace(told, deleted=True, removed=None, rows=None) if is_deleted else told
    rows = yield from carry_out(core, read, kept, doom, partial(_before, core, codec, thread_id, task))
    yield from _forget_taken(core, codec, read, kept, task.now)
    return ThreadPruned(thread_id=thread_id, removed=removed, kept=len(kept), rows=rows)


def _deleted(core: Checkpoints[Q, R], thread_id: str) -> Plan[Q, R, ThreadPruned]:
    """Delete a thread; also what is left where no checkpoint is: writes that came late, notes beside it."""
    found = yield from core.store.scan(Query(thread_id, limit=1))
    yield from core.delete_thread(thread_id)
    if not found:
        return ThreadPruned(thread_id=thread_id)
    return ThreadPruned(thread_id=thread_id, removed=None, deleted=True, rows=None)


def _named(
    core: Checkpoints[Q, R], codec: Codec, thread_id: str, policy: Retention | None
) -> Plan[Q, R, Collection[Address]]:
    if policy is None or not policy.labelled:
        return ()
    labels = yield from labels_of(core.store, codec, thread_id)
    return {label.address for label in labels}


def _before(
    core: Checkpoints[Q, R], codec: Codec, thread_id: str, task: Pruning, moments: Moments, kept: Collection[Stamp]
) -> Plan[Q, R, None]:
    """Do what comes before a removal."""
    yield from carry(core, codec, thread_id, moments, kept)
    yield from note_owners(core.store, codec, thread_id, moments, kept)
    ends = [node for node, _ in _root(leaves(moments, kept))]
    if ends:
        yield from _close_requests(core, codec, thread_id, task, {node.address.checkpoint_id for node in ends})


def _close_requests(
    core: Checkpoints[Q, R], codec: Codec, thread_id: str, task: Pruning, ids: Collection[str | None]
) -> Plan[Q, R, None]:
    """Close what branches ask that go: nobody could take an answer. Two trips, and some for each request."""
    approvals = Approvals(core.store, codec, task.tokens)
    for held in (yield from approvals.of_thread(thread_id)):
        if held.request.checkpoint_id in ids:
            yield from approvals.end(held, SUPERSEDED, iso_time(int(task.now)), "its checkpoint was pruned")


# -- what stays ------------------------------------------------------------------------------------------------


def _kept(
    core: Checkpoints[Q, R],
    codec: Codec,
    read: Survey,
    task: Pruning,
    policy: Retention,
    named: Collection[Address],
) -> Plan[Q, R, set[Stamp]]:
    """Return what stays. One trip, if branches may wait for somebody; else none."""
    ruled = chosen(policy, read.seen, task.now, named)
    kept = latest_only(read.seen) | ruled
    ends = leaves(read.seen, kept) if policy.waiting else []
    if ends:
        ruled |= yield from _asking(core, codec, [node for node, _ in _root(ends)])
    # What a rule keeps, it keeps with all that subgraphs have put in its step; a head as such, with their latest only.
    kept |= ruled | called_from(
        read.seen, {node.address.checkpoint_id for node, _ in _root(read.seen) if node.stamp in ruled}
    )
    return kept | _belongings(read, kept)


def _root(moments: Sequence[Moment]) -> list[Moment]:
    return [each for each in moments if not each[0].address.checkpoint_ns]


def _asking(core: Checkpoints[Q, R], codec: Codec, nodes: Sequence[Node]) -> Plan[Q, R, set[Stamp]]:
    """Return which of these have a question that has no answer. A trip for each 500."""
    asking: set[Stamp] = set()
    entries = [Entry(node.address, node.parent, node.stamp, node.header, {}, node.run_id) for node in nodes]
    for start in range(0, len(entries), PAGE):
        found = yield from core.store.read_values(entries[start : start + PAGE])
        asking.update(each.entry.stamp for each in found if _asks(each, codec))
    return asking


def _asks(found: Found, codec: Codec) -> bool:
    try:
        return bool(waiting_tasks(pending_writes(found.batches, codec, where_is(found.entry.address))))
    except (ValueRefused, CorruptStore):
        return True  # nobody here can tell, so it stays


def _belongings(read: Survey, kept: Collection[Stamp]) -> set[Stamp]:
    """Return what checkpoints beside the heads need that stay: memories as of then, and calls that are under way."""
    headers = {node.stamp: header for node, header in read.all}
    others = [node for node, _ in _root(read.seen) if node.stamp in kept and not node.is_head]
    if not others:
        return set()
    memories = Memories(read.graph, lambda node: headers[node.stamp])
    remembered = {root.stamp: [each for each in memories.moved_back(root).values() if each] for root in others}
    ends = [node for node, _ in _root(leaves(read.seen)) if node.stamp in remembered]
    going = [other for end in ends for other in (end, *remembered[end.stamp])]
    calls = latest_only(read.seen, {node.address.checkpoint_id for node in going}) if going else set()
    return calls | {node.stamp for nodes in remembered.values() for node in nodes}


# -- calls of tools --------------------------------------------------------------------------------------------


def _forget_taken(
    core: Checkpoints[Q, R], codec: Codec, read: Survey, kept: Collection[Stamp], now: float
) -> Plan[Q, R, None]:
    """Forget the calls of tools that nobody can ask for any more. One trip, if nothing is forgotten.

    Those are calls whose results are part of all that stays, if no equal call is answered with them: failed ones, those
    that used a person's answer, and those past their `ttl`.
    """
    stays = [header for node, header in _root(read.seen) if node.stamp in kept]
    since = min((made_at(header) or 0 for header in stays), default=None)
    if since is not None:
        past = cache(lambda: set(_led_on(read.seen, kept)))  # not needed where no tool was called
        shelf = Shelf(read.thread_id, TOOLS)
        yield from _forget_calls(core, codec, shelf, lambda call, cell: _is_past(call, cell, since, now, past))


def _led_on(moments: Sequence[Moment], kept: Collection[Stamp]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to all that stays: what tools returned there is part of its state.

    What was called from any other may be called again: on a branch that was left, on the way that a rewind gave up.
    """
    root = {node.address.checkpoint_id: (node, header) for node, header in _root(moments)}
    ways = [set(_way(name, root)) for name, (node, _) in root.items() if node.stamp in kept]
    led = set.intersection(*ways) if ways else set()
    yield from led
    for node, header in moments:
        parents = header.metadata.get("parents")
        if node.address.checkpoint_ns and isinstance(parents, Mapping) and parents.get("") in led:
            yield node.address.checkpoint_id


def _way(at: str | None, root: Mapping[str | None, Moment]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to one. An update or a copy goes on without the step's results."""
    for _ in root:  # what is stored may lead in a circle
        if at not in root:
            return
        node, header = root[at]
        if header.metadata.get("source") == "loop":
            yield node.parent
        at = node.parent


def _is_past(
    call: CallRecord, cell: Cell, since: float, now: float, past: Callable[[], Collection[str | None]]
) -> bool:
    # Made on the way to what is left, and ended before the oldest of that was made: its result is part of the state
    # there. One whose end nobody knows, or that is under way, stays: without it the tool would run again.
    is_over = call.state in (DONE, FAILED) and (call.ended_at or call.started_at) < since
    return is_over and not _answers_others(call, cell, now) and call.checkpoint_id in past()


def _answers_others(call: CallRecord, cell: Cell, now: float) -> bool:
    """Return whether an equal call of a later turn is answered with this one's result: then that must stay."""
    is_result = call.state == DONE and not speaks_for_one(call)
    return is_result and (cell.expires_at is None or cell.expires_at > now)


def _forget_calls(
    core: Checkpoints[Q, R], codec: Codec, shelf: Shelf, is_over: Callable[[CallRecord, Cell], bool]
) -> Plan[Q, R, None]:
    # No claim is made here, so no token is either.
    ledger = Ledger(core.store, codec, partial(str, ""), lambda holder: False)
    yield from forget(ledger, core.store, shelf, is_over)


# -- runs ------------------------------------------------------------------------------------------------------


def delete_for_runs(core: Checkpoints[Q, R], codec: Codec, run_ids: Collection[str]) -> Plan[Q, R, None]:
    """Delete the checkpoints of these runs, in every thread; see `KeelSaver.delete_for_runs`."""
    threads = yield from core.store.find_runs(run_ids)
    for thread_id in threads:
        first = partial(_before_runs_go, core, codec, thread_id, run_ids)
        yield from remove(core, codec, thread_id, lambda moments: _of_other_runs(moments, run_ids), first)
    for shelf in [Shelf(None, TOOLS), *(Shelf(thread_id, TOOLS) for thread_id in threads)] if run_ids else []:
        yield from _forget_calls(core, codec, shelf, lambda call, _: call.run_id in run_ids)


def _before_runs_go(
    core: Checkpoints[Q, R],
    codec: Codec,
    thread_id: str,
    run_ids: Collection[str],
    moments: Moments,
    kept: Collection[Stamp],
) -> Plan[Q, R, None]:
    yield from drop(core, codec, thread_id, run_ids, moments, kept)
    yield from note_owners(core.store, codec, thread_id, moments, kept)


def _of_other_runs(moments: Moments, run_ids: Collection[str]) -> set[Stamp]:
    return {node.stamp for node, _ in moments if node.run_id not in run_ids}
