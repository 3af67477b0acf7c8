"""`saver.retention`, and the methods of savers that prune and check a store."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID

from langgraph_keel.engine.audit import check_by
from langgraph_keel.engine.engine import EngineSaver, shared_engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import checked_limit
from langgraph_keel.engine.removal import check_objects
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import InvalidInput, KeelError

if TYPE_CHECKING:
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.erase import Order, What
    from langgraph_keel.retention.holds import Hold
    from langgraph_keel.retention.info import StoreFacts
    from langgraph_keel.retention.policy import Retention
    from langgraph_keel.retention.prune import PruneReport, SweepReport, ThreadPruned
    from langgraph_keel.retention.receipt import Receipt
    from langgraph_keel.retention.reclaim import Reclaimed

Progress: TypeAlias = Callable[[int, int | None], object]
"""Is called with the number of finished threads, and the total if it is known."""


class RetentionSaver(EngineSaver):
    """A saver that can be pruned and checked."""

    def _prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str | Retention = "keep_latest",
        dry_run: bool = False,
        on_progress: Progress | None = None,
        by: str | None = None,
    ) -> Plan[PruneReport]:
        """Remove old checkpoints; safe while runs write.

        It may be interrupted at any time: every thread stays valid, and the next prune finishes the work. In long
        threads, it removes 1,000 entries at a time.

        Args:
            thread_ids: The threads. The report marks unknown ones ("no such thread").
            strategy: `"keep_latest"` keeps the latest checkpoint of every namespace (except of finished subgraph
                calls), checkpoints with a label, tool calls that may be needed again, and the records of the model
                calls that led there; it removes branches. `"delete"` removes the threads. A `Retention` keeps more;
                its `threads`, `idle` and `ttl` are for `sweep`.
            dry_run: Whether to remove nothing, and only report the planned removals, with their size.
            on_progress: Called after each thread, with the number of finished threads and the total.
            by: The user who prunes, as authenticated by your program. The audit trail then records each changed thread,
                which takes four more trips.

        Returns:
            The removed checkpoints, by thread; bytes only for a dry run.

        Raises:
            InvalidInput: If the strategy does not exist, is for `sweep`, or has no rule (`last=1` keeps the latest), or
                `thread_ids` is one string or a config.
            InvalidConfig: If an id is unusable.
            OnHold: If a thread belongs to a person on hold. Nothing was removed.
            CorruptStore: If a thread cannot be read. The threads before it are pruned.
            StoreError: If the store fails (busy, unreachable, read-only). The threads before it are pruned.
        """
        from langgraph_keel.retention.owners import check_threads
        from langgraph_keel.retention.prune import PruneReport, Pruning, check_request, prune, record_prune

        names, policy = check_request(thread_ids, strategy)
        check_by(by)
        task = Pruning(policy, self.engine.session.milliseconds, dry_run)
        tell = on_progress or ignore_progress
        yield from check_threads(self.engine.session, names)
        done: list[ThreadPruned] = []
        for thread_id in names:
            done.append((yield from prune(self.engine.session, thread_id, task)))
            if by is not None and not dry_run:
                yield from record_prune(self.engine.session, done[-1], by)
            tell(len(done), len(names))
        return PruneReport(threads=tuple(done), dry_run=dry_run)

    prune, aprune = faces(_prune)  # type: ignore[assignment]  # LangGraph's method returns no report

    def _check_all(self, on_progress: Progress | None = None) -> Pages[Finding]:
        """Read the whole store and yield damage.

        This changes nothing, and other processes may write concurrently.

        Reads and decodes every header, row, write and record, and verifies its checksum. Each checkpoint must find all
        its values, the list of threads must agree with the checkpoints, and the audit trail is verified. The backend
        adds checks: SQLite `PRAGMA integrity_check`, files every line of each log, leftovers and git conflicts,
        PostgreSQL and Redis threads that no list names. For values of classes that this process cannot import, only
        checksums are verified. Some twenty round trips for each thread, and more for long ones.

        Args:
            on_progress: Called with the number of checked threads, and `None`, because the total is unknown.

        Raises:
            NotFound: If there is no store.
            NewerFormat: If a newer Keel wrote the store.
            StoreError: If the store fails.
        """
        from langgraph_keel.retention.check import StoreCheck

        return StoreCheck(self.engine.session, self._check, self._index_advice, on_progress or ignore_progress)

    check, acheck = iterator_faces(_check_all, "check")

    def _facts(self) -> StoreFacts:
        """Return the properties of the store. Backends override it."""
        from langgraph_keel.retention.info import StoreFacts

        return StoreFacts(type(self).__name__, "", None, "unknown")

    def _index_advice(self, thread_id: str) -> str:
        """Return how to repair a thread's entry in an index; backends override it."""
        return "the next checkpoint stored in this thread corrects the index"

    def _check(self) -> Iterable[Finding]:
        """Return findings that only this backend can detect. Backends override it."""
        return ()

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        """Return the space of deleted data; backends override this and the next three."""
        from langgraph_keel.retention.reclaim import Reclaimed

        return Reclaimed(None, None, "this store returns space immediately")

    async def _areclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        """As `_reclaim`, asynchronously."""
        return await to_thread(self._reclaim, full=full, scrub=scrub)

    def _weight(self) -> int | None:
        """Return the size of the store, if deleting returns space before `_reclaim` runs."""
        return None

    def _elsewhere(self) -> Sequence[str]:
        """Return a sentence for each place of data that an erasure cannot reach."""
        return ()


class RetentionMethods(Component):
    """`saver.retention`: policies for all threads, and erasure of a person's data."""

    _saver: RetentionSaver

    def __init__(
        self, saver: RetentionSaver, describe_backups: Callable[[Session], Plan[Sequence[str]]], kept: Sequence[str]
    ) -> None:
        super().__init__(saver)
        self._describe_backups = describe_backups  # returns a sentence for each backup that still has erased data
        self._kept = kept  # a sentence for each place that no erasure reaches

    def _set_policy(self, *policies: Retention | Sequence[Retention]) -> Plan[None]:
        """Replace the stored policies of `sweep`. Without arguments, no policy is stored.

        The policies apply to all processes, and are as durable as a checkpoint; the last call wins. Two trips. This
        removes no data: the next `sweep` does, or a saver with `keep_last` in the threads that it writes to.

        Args:
            *policies: The policies, or one list of them. Each thread follows the first policy whose `threads` matches
                its id; threads without one are not changed.

        Raises:
            InvalidInput: If a policy is not a `Retention`, has no rule, or can never apply, because an earlier one
                matches all its threads.
            StoreError: If the store fails (busy, unreachable, read-only).
        """
        from langgraph_keel.retention.sweep import check_policies, store_policies

        given: Sequence[Any] = policies
        yield from store_policies(self.engine.session, check_policies(given[0] if len(given) == 1 else given))

    set_policy, aset_policy = faces(_set_policy)

    def _policies(self) -> Plan[tuple[Retention, ...]]:
        """Return the stored policies. One trip.

        Raises:
            CorruptStore: If they do not decode. `set_policy` replaces them.
            StoreError: If the store fails.
        """
        from langgraph_keel.retention.sweep import read_policies

        return read_policies(self.engine.session)

    policies, apolicies = faces(_policies)

    def _sweep(
        self,
        policies: Retention | Sequence[Retention] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        remind_after: float | None = None,
        on_progress: Progress | None = None,
    ) -> Plan[SweepReport]:
        """Apply the policies to all threads: prune, delete, and close expired requests.

        Any process may sweep at any time, for example every hour, and several may sweep concurrently. The next sweep
        finishes an interrupted one. A write at the very moment of a thread's expiry is deleted with the thread. The age
        of a copy or fork counts from its last write or from its creation, not from its source's writes.

        Args:
            policies: The policies; default: the stored ones (`set_policy`).
            dry_run: Whether to change nothing, and only report the planned removals, with their size.
            limit: Maximum number of threads to prune or delete.
            remind_after: As for `saver.approvals.sweep`, which is called first.
            on_progress: Called after each thread with the number of checked threads, and `None`, because the total is
                unknown.

        Returns:
            The removed data, by thread. Threads that are unreadable or belong to a person on hold are in `failed`, and
            are not changed.

        Raises:
            InvalidInput: If `policies` are not policies, one has no rule or can never apply, or `limit` is negative.
                Nothing was changed.
            CorruptStore: If the stored policies do not decode. Expired requests were closed.
            StoreError: If the store fails (busy, unreachable, read-only).
        """
        from langgraph_keel.retention.prune import Pruning
        from langgraph_keel.retention.sweep import Sweep, check_policies

        # Validate everything before the first write.
        given, limit = None if policies is None else check_policies(policies), checked_limit(limit)
        tell = on_progress or ignore_progress
        reminders: list[Any] = []
        for hear in () if dry_run else self.engine.session.hooks.before_sweep:
            reminders += yield from hear(self.engine.session, remind_after)
        found = given if given is not None else (yield from self._policies())
        task = Pruning(None, self.engine.session.milliseconds, dry_run)
        sweep = Sweep(self.engine.session, found, task, limit)
        while (yield from sweep.next()):
            tell(sweep.looked, None)
        return sweep.report(reminders)

    sweep, asweep = faces(_sweep)

    def _erase(
        self,
        user_id: str | int | UUID,
        *,
        what: What = "threads",
        dry_run: bool = False,
        shared: Literal["report", "delete"] = "report",
        node_cache: Literal["clear", "report"] = "clear",
        reclaim: bool | Literal["full"] = True,
        on_progress: Progress | None = None,
        by: str | None = None,
    ) -> Plan[Receipt]:
        """Erase a person's data: every thread whose checkpoints name only this person.

        This deletes the threads' checkpoints, writes, archive, tool calls and their shared records, requests for
        approval, labels, records of model calls and claims. Copies and forks name the same person, so they are deleted
        too. The audit trail keeps its chain without the contents, and records the erasure with counts and a hash.

        The owners of a thread are named in its checkpoints, and in a note for pruned ones. All threads are read, twice.
        Stop the person's runs first: a run that continues writes its thread again, which is found and deleted again, up
        to five times. To finish an interrupted erasure, erase again. If a step ends even later, its writes have no
        checkpoint and no owner: the next receipt counts them (`receipt.strays`), and `reclaim_space(strays=True)`
        removes them.

        Args:
            user_id: The person, as in `configurable["user_id"]`: a string, a number or a UUID; or as returned by
                `owner=`, which is called only without such an entry.
            what: `"threads"`; `"data"` for the person's items in `saver.store()` (see `KeelStore.put`), which changes
                no checkpoint; `"all"` for both.
            dry_run: Whether to write nothing, and only report the planned erasure.
            shared: Whether threads that also name other people are left alone and reported, or deleted.
            node_cache: The results in `KeelCache` have no owner: it is emptied if the person has any thread, or left
                alone and reported.
            reclaim: Whether to remove the bytes from the store's free space. On SQLite this is a `VACUUM`, which blocks
                writers. PostgreSQL keeps dead rows until a `VACUUM FULL`, which locks its tables and runs only with
                `"full"`.
            on_progress: Called with the number of read threads (and `None`), then of deleted threads and their total.
            by: The user who erases, for the audit trail, as authenticated by your program. If it is the person, the
                trail contains the hash of their id.

        Returns:
            The erased and the remaining data. `receipt.complete` is false if Keel knows that data of the person is or
            may be left in this store; with `dry_run`, that it would be. A failure for one thread does not stop the
            others.

        Raises:
            InvalidInput: If an argument is invalid.
            OnHold: If the person is on hold (`hold`). Nothing was deleted.
            ReadOnlyStore: If this saver is read-only, without `dry_run`.
            StoreError: If the store fails. Earlier deletions remain, and the next erasure continues.
        """
        from langgraph_keel.retention.erase import check_order

        order = check_order(user_id, dry_run, shared, node_cache, reclaim, by, what)
        erase = partial(self._erase_all, order, on_progress or ignore_progress)
        receipt: Receipt = yield from delete_and_scrub(self._saver, erase, dry_run=dry_run, reclaim=reclaim)
        return receipt

    erase, aerase = faces(_erase)

    def _erase_all(self, order: Order, tell: Progress, elsewhere: Sequence[str]) -> Plan[Receipt]:
        from langgraph_keel.retention.erase import erase
        from langgraph_keel.retention.receipt import receipt_of, record_receipt

        session = self.engine.session
        yield from check_objects(session, "would stay")
        erased = yield from erase(session, order, tell)
        elsewhere = (*elsewhere, *(yield from self._describe_backups(session)))
        receipt = receipt_of(erased, session.clock().isoformat(), elsewhere)
        receipt = replace(receipt, exempt=(*receipt.exempt, *self._kept))
        if not (receipt.threads or receipt.items) or order.dry_run:
            return receipt
        try:
            yield from record_receipt(session, receipt, order.actor)
        except KeelError as error:
            return replace(receipt, problems=(*receipt.problems, f"the erasure is not in the audit trail: {error}"))
        return receipt

    def _hold(self, user_id: str | int | UUID, *, reason: str, by: str) -> Plan[Hold]:
        """Protect a person's data from removal until `release` (GDPR, article 17).

        `erase`, `prune`, `delete_thread`, `delete_for_runs` and `tenants.delete` then raise `OnHold`. Sweeps skip the
        person's threads and items. A hold does not stop a removal that already started, the `ttl` of a `RedisSaver`, or
        programs that replace or delete items. Placing the same hold again is harmless. Five trips.

        Args:
            user_id: The person, as for `erase`.
            reason: The reason. A person may have several holds, each with a reason. The audit trail keeps it forever,
                so name a case, not the person.
            by: The user who places the hold, as authenticated by your program.

        Raises:
            InvalidInput: If an argument is empty or unusable.
            StoreError: If the store fails (busy, unreachable, read-only).
        """
        from langgraph_keel.retention.erase import check_user
        from langgraph_keel.retention.holds import Hold, place_hold

        check_by(by or "")
        session = self.engine.session
        return (yield from place_hold(session, Hold(check_user(user_id), reason, by, session.now)))

    hold, ahold = faces(_hold)

    def _release(self, user_id: str | int | UUID, *, by: str, reason: str | None = None) -> Plan[Sequence[Hold]]:
        """End and return the holds on a person, or the one with a reason. Six trips each.

        Raises:
            InvalidInput: If an argument is empty or unusable.
            NotFound: If there is no such hold.
            StoreError: If the store fails (busy, unreachable, read-only).
        """
        from langgraph_keel.retention.erase import check_user
        from langgraph_keel.retention.holds import release_holds

        check_by(by or "")
        return (yield from release_holds(self.engine.session, check_user(user_id), by, reason))

    release, arelease = faces(_release)

    def _holds(self) -> Plan[Sequence[Hold]]:
        """Return all holds, oldest first. One trip for each 500."""
        from langgraph_keel.retention.holds import list_holds

        return list_holds(self.engine.session)

    holds, aholds = faces(_holds)

    def _reclaim_space(
        self, *, full: bool = False, strays: bool = False, on_progress: Progress | None = None
    ) -> Plan[Reclaimed]:
        """Return the space of deleted data.

        * SQLite: truncates the write-ahead log. If at least half of the file is free, or with `full`, rewrites the file
          (`VACUUM`), which blocks writers and temporarily doubles the space.
        * Files: removes leftovers of interrupted writes. Every prune compacts logs; `full` compacts all of them.
        * PostgreSQL: `VACUUM (ANALYZE)` of Keel's tables, which makes their space reusable. With `full`, `VACUUM FULL`,
          which returns it to the system and blocks readers and writers.
        * Redis and memory return space immediately.

        With `full`, it first deletes rows that no checkpoint references, as left by an interrupted prune.

        With `strays`, it also deletes threads that have records (an archive, tool calls, writes) but no checkpoint, as
        left by a step that ended after its thread was deleted. Do not use `strays` while the first run of a thread is
        running with `durability="exit"`, which stores its checkpoint at its end; nor if the store contains only the
        tool calls or the archive of threads whose checkpoints are elsewhere.

        Args:
            full: Whether to return all space, as above.
            strays: Whether to delete threads without a checkpoint, as above.
            on_progress: With `full`, called with the number of checked threads.

        Returns:
            The bytes before and after, if known, and a note on the work done.

        Raises:
            InvalidInput: If `full` or `strays` is not a bool.
            StoreBusy: If other processes used the store for longer than the timeout.
            AccessDenied: If the user has no permission, or the given connection does not allow it.
        """
        from langgraph_keel.retention.reclaim import sweep_all

        check_flags(full=full, strays=strays)
        before = (yield Call(self._saver._weight)) if full or strays else None
        tell = on_progress or ignore_progress
        leftovers = yield from sweep_all(self.engine.session, tell, rows=full, strays=strays)
        return _compare_with(before, (yield from _reclaiming(self._saver, full=full, scrub=strays)), str(leftovers))

    reclaim_space, areclaim_space = faces(_reclaim_space)


def delete_and_scrub(
    saver: RetentionSaver,
    delete: Callable[[Sequence[str]], Plan[Any]],
    *,
    dry_run: bool,
    reclaim: bool | Literal["full"],
) -> Plan[Any]:
    """Delete, and clean the freed space if requested.

    Errors of the cleaning become problems of the receipt.
    """
    before = (yield Call(saver._weight)) if reclaim and not dry_run else None
    objects = saver.stack.objects
    receipt: Any = yield from delete([*(yield Call(saver._elsewhere)), *(objects.exempt if objects else ())])
    if dry_run or not reclaim:
        return receipt
    try:
        reclaimed = yield from _reclaiming(saver, full=reclaim == "full", scrub=True)
        return replace(receipt, reclaimed=_compare_with(before, reclaimed))
    except KeelError as error:
        # The threads are already deleted, and the receipt must show that.
        problem = (
            "the space of deleted data is not cleaned yet. Run `keel reclaim --full`, or call "
            "saver.retention.reclaim_space(full=True). Reason: "
            f"{error}"
        )
        return replace(receipt, problems=(*receipt.problems, problem))


def _reclaiming(saver: RetentionSaver, *, full: bool, scrub: bool) -> Plan[Reclaimed]:
    asked = {"full": full, "scrub": scrub}
    done: Reclaimed = yield Call(partial(saver._reclaim, **asked), partial(saver._areclaim, **asked))
    session = shared_engine(saver).session
    for hear in session.hooks.reclaim:
        if note := (yield from hear(session, full or scrub)):
            done = replace(done, note=f"{done.note}; {note}")
    return done


def _compare_with(before: int | None, reclaimed: Reclaimed, also: str = "") -> Reclaimed:
    """Return a result with the earlier size of the store, and `also` before its note."""
    note = f"{also}; {reclaimed.note}" if also else reclaimed.note
    return replace(reclaimed, before=reclaimed.before if before is None else before, note=note)


def check_flags(**options: object) -> None:
    """Check that options are `True` or `False`."""
    for name, value in options.items():
        if type(value) is not bool:
            raise InvalidInput(f"{name} must be True or False, not {value!r:.100}")


def ignore_progress(done: int, total: int | None) -> None:
    """Ignore progress."""
