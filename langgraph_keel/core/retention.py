"""What survives, and the plans of `prune`, `sweep` and `delete_for_runs`.

`core.policies` says what a policy chooses, and `core.removing` how the rest goes. A prune does one thing before: it
carries the records of models' calls (`core.carried`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from langgraph_keel.core.address import thread_id_of
from langgraph_keel.core.anchoring import anchor
from langgraph_keel.core.approvals import Approvals
from langgraph_keel.core.calls import moment
from langgraph_keel.core.carried import carry, drop
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.checkpoints import Checkpoints, where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.decisions import SUPERSEDED
from langgraph_keel.core.labels import labels_of
from langgraph_keel.core.ledger import DONE, FAILED, TOOLS, CallRecord, Ledger, forget, speaks_for_one
from langgraph_keel.core.memories import Memories
from langgraph_keel.core.noted import note_owners
from langgraph_keel.core.ongoing import called_from, latest_only
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.policies import KEEP_LATEST, Moment, Retention, chosen, leaves, made_at, meant
from langgraph_keel.core.pruned import ThreadPruned
from langgraph_keel.core.records import Address, Entry, Found, Node, Query, Stamp
from langgraph_keel.core.removing import Moments, Survey, carry_out, doomed, remove, survey
from langgraph_keel.core.weighing import weigh
from langgraph_keel.core.writes import pending_writes, waiting_tasks
from langgraph_keel.errors import CorruptStore, InvalidInput, ValueRefused

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
            yield from approvals.end(held, SUPERSEDED, moment(int(task.now)), "its checkpoint was pruned")


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
