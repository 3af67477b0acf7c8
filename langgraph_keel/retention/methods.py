"""`saver.retention`, and the upkeep methods of savers themselves: prune, and check what is stored."""

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
"""Is called with how many threads are done, and of how many if that is known."""


class RetentionSaver(EngineSaver):
    """A saver that can be pruned and checked. Backends override what they know better of their stores."""

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

        It may be cut off anywhere: every thread is valid at each moment, and the next prune does what is left. Of long
        threads, entries go 1,000 at a time.

        Args:
            thread_ids: The threads; of unknown ones the report says that there is no such thread.
            strategy: `"keep_latest"` keeps the latest checkpoint of every namespace (but not of subgraph calls that
                are over), those with a label, tool calls that may still be asked for, and the records of the calls of
                models that led there; branches go too. `"delete"` removes the threads. A `Retention` says what else
                stays; `threads`, `idle` and `ttl` are for `sweep`.
            dry_run: Remove nothing; read what would go, and say how much it is.
            on_progress: Called after each thread, with how many are done, and of how many.
            by: Who does it, as your program has authenticated them: then the audit trail records each thread that was
                changed, which takes four trips more.

        Returns:
            What went, thread by thread; bytes only of a dry run.

        Raises:
            InvalidInput: There is no such strategy, it is for `sweep`, it does not say what stays (`last=1` keeps the
                latest), or `thread_ids` is one string or a config.
            InvalidConfig: One of the ids is unusable.
            OnHold: One of the threads belongs to a person on hold. Nothing was removed.
            CorruptStore: A thread cannot be read; those before it are pruned.
            StoreError: The store fails (it is busy, cannot be reached, may only be read); those before it are pruned.
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

    prune, aprune = faces(_prune)  # type: ignore[assignment]  # LangGraph asks for no report

    def _check_all(self, on_progress: Progress | None = None) -> Pages[Finding]:
        """Read all that is stored, and yield what is not as Keel wrote it. Changes nothing; others may go on writing.

        Every header, row, write and record is read and decoded, with its checksum; each checkpoint must find all that
        it shows, the list of threads must agree with the checkpoints, and the audit trail with itself. And what the
        backend can say: of SQLite `PRAGMA integrity_check`, of files every line of each log, leftovers and conflicts of
        git, of PostgreSQL and Redis threads that no list names. Values of classes that this process does not know are
        checked by their checksums alone. Some twenty round trips for each thread, and more for long ones.

        Args:
            on_progress: Called with how many threads were looked at, and `None`: nobody knows how many there are.

        Raises:
            NotFound: There is no store.
            NewerFormat: A newer Keel wrote here.
            StoreError: The store fails.
        """
        from langgraph_keel.retention.check import StoreCheck

        return StoreCheck(self.engine.session, self._check, self._index_advice, on_progress or ignore_progress)

    check, acheck = iterator_faces(_check_all, "check")

    def _facts(self) -> StoreFacts:
        """Return what the store is; backends override it."""
        from langgraph_keel.retention.info import StoreFacts

        return StoreFacts(type(self).__name__, "", None, "unknown")

    def _index_advice(self, thread_id: str) -> str:
        """Return how the index of threads is repaired for a thread; backends override it."""
        return "put a checkpoint to it, and it is listed right again"

    def _check(self) -> Iterable[Finding]:
        """Return what is wrong that only this backend can see; backends override it."""
        return ()

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        """Give back the space of what was deleted; backends override it, and the next three."""
        from langgraph_keel.retention.reclaim import Reclaimed

        return Reclaimed(None, None, "this store has given the space back already")

    async def _areclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        """As `_reclaim`, asynchronously."""
        return await to_thread(self._reclaim, full=full, scrub=scrub)

    def _weight(self) -> int | None:
        """Return how many bytes the store takes, where deleting gives space back at once, before `_reclaim`."""
        return None

    def _elsewhere(self) -> Sequence[str]:
        """Return where else this store's data may be, out of reach of an erasure: a sentence each."""
        return ()


class RetentionMethods(Component):
    """`saver.retention`: policies for all threads, and erasure of the data of a person."""

    _saver: RetentionSaver

    def __init__(
        self, saver: RetentionSaver, describe_backups: Callable[[Session], Plan[Sequence[str]]], kept: Sequence[str]
    ) -> None:
        super().__init__(saver)
        self._describe_backups = describe_backups  # returns a sentence for each backup that still has erased data
        self._kept = kept  # a sentence for each place that no erasure reaches

    def _set_policy(self, *policies: Retention | Sequence[Retention]) -> Plan[None]:
        """Store what `sweep` is to keep of the threads, instead of what was stored; without policies, of nothing.

        It is there for all processes, as durable as a put, when this returns; whoever does so last, wins. Two trips.
        Nothing is removed by it: the next `sweep` does that, or a saver with `keep_last` in what it puts.

        Args:
            *policies: For each thread the first one whose `threads` fits its id counts; where none does, all stays.
                One list of them does as well.

        Raises:
            InvalidInput: One of them is no `Retention`, does not say what stays, or could never count, for an earlier
                one fits all that it fits.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        from langgraph_keel.retention.sweep import check_policies, store_policies

        given: Sequence[Any] = policies
        yield from store_policies(self.engine.session, check_policies(given[0] if len(given) == 1 else given))

    set_policy, aset_policy = faces(_set_policy)

    def _policies(self) -> Plan[tuple[Retention, ...]]:
        """Return the policies that are stored. One trip.

        Raises:
            CorruptStore: They do not decode: `set_policy` replaces them.
            StoreError: The store fails.
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
        """Look after all threads: prune and delete as the policies say, and say of requests that they have expired.

        Any process may do it at any time, say every hour, several at once too; what is cut off is done by the next one.
        A thread in which something is put in the very moment in which its time is over is deleted with it. A copy or a
        fork is as old as what was put to it last, or as long as it is there: not as old as what it was made of.

        Args:
            policies: The policies; `None` is those that are stored (`set_policy`).
            dry_run: Change nothing; say what would go, and how much it is.
            limit: Most threads to prune or delete.
            remind_after: As for `saver.approvals.sweep`, which this does first.
            on_progress: Called after each thread with how many were looked at, and `None`: nobody knows how many
                there are.

        Returns:
            What went, by thread. A thread that cannot be read, or that belongs to a person on hold, is in `failed`, and
            stays as it is.

        Raises:
            InvalidInput: Something else than policies is given, one of them does not say what stays or could never
                count, or `limit` is negative. Nothing was changed.
            CorruptStore: The stored policies do not decode; requests for approval were looked after.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        from langgraph_keel.retention.prune import Pruning
        from langgraph_keel.retention.sweep import Sweep, check_policies

        # All is checked before anything is written.
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
        """Delete all that is stored of a person: every thread whose checkpoints name nobody else, and all it holds.

        With a thread go its checkpoints, writes, archive, tool calls and what it shared of them, requests for approval,
        labels, records of model calls and claims; copies and forks name the same person, and go, too. The audit trail
        keeps its chain without their contents, and says that somebody was erased, by counts and a hash.

        Whose a thread is, its checkpoints say; of those that a prune has removed, a note beside it. All threads are
        looked at, twice. Stop the person's runs first: one that goes on meanwhile puts its thread back, which is found
        and deleted again, up to five times. If it breaks off, erase again: that finishes it. What a step stores that
        ends later yet has no checkpoint, so nothing says whose it is: the next receipt counts it (`receipt.strays`),
        and `reclaim_space(strays=True)` removes it.

        Args:
            user_id: Who, as `configurable["user_id"]` has named them: text, a number or a UUID; or `owner=`, which is
                asked only where that says nothing.
            what: `"threads"`; `"data"` for the person's items in `saver.store()` (see `KeelStore.put`), which leaves
                each checkpoint as it is; `"all"` for both.
            dry_run: Only say what would go; nothing is written.
            shared: What becomes of threads that name others as well: they are left alone and reported, or deleted.
            node_cache: `KeelCache` does not know whose its results are: it is emptied, if the person has any thread,
                or left alone and reported.
            reclaim: Whether to see to it that no byte of it is left in what the store has freed, which for SQLite is
                a `VACUUM`: nobody writes meanwhile. PostgreSQL keeps dead rows up to a `VACUUM FULL`, which locks its
                tables and is done for `"full"` only.
            on_progress: Called with how many threads were looked at (`None` in all), then how many of how many deleted.
            by: Who does it, for the audit trail, as your program has authenticated them. If it is the person
                themselves, the trail has the hash of their id.

        Returns:
            What went, and what did not: `receipt.complete` says whether Keel knows of anything in this store that is
            left of the person, or may be; with `dry_run`, whether it would. What failed for one thread does not stop
            the others.

        Raises:
            InvalidInput: An argument cannot be meant.
            OnHold: The person is on hold (`hold`). Nothing was deleted.
            ReadOnlyStore: This saver only reads, and it is no `dry_run`.
            StoreError: The store cannot be asked; what was deleted by then is, and the next erasure goes on.
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
            return replace(receipt, problems=(*receipt.problems, f"the audit trail does not say it: {error}"))
        return receipt

    def _hold(self, user_id: str | int | UUID, *, reason: str, by: str) -> Plan[Hold]:
        """Put a person on hold: nothing of theirs is removed until `release` (GDPR, article 17).

        `erase`, `prune`, `delete_thread`, `delete_for_runs` and `tenants.delete` then raise `OnHold`. Sweeps leave the
        person's threads and items. It stops neither a removal that has begun, nor the `ttl` of a `RedisSaver`, nor
        programs that replace or delete items. A hold may be repeated. Five trips.

        Args:
            user_id: The person, as for `erase`.
            reason: Why. A person may have several holds, with a reason each. The audit trail keeps it for ever, so name
                a case and not the person.
            by: Who places the hold, as your program has authenticated them.

        Raises:
            InvalidInput: An argument is empty, or cannot be used.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        from langgraph_keel.retention.erase import check_user
        from langgraph_keel.retention.holds import Hold, place_hold

        check_by(by or "")
        session = self.engine.session
        return (yield from place_hold(session, Hold(check_user(user_id), reason, by, session.now)))

    hold, ahold = faces(_hold)

    def _release(self, user_id: str | int | UUID, *, by: str, reason: str | None = None) -> Plan[Sequence[Hold]]:
        """End the holds on a person, or only the one with this reason; return them. Six trips for each.

        Raises:
            InvalidInput: An argument is empty, or cannot be used.
            NotFound: There is no such hold.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        from langgraph_keel.retention.erase import check_user
        from langgraph_keel.retention.holds import release_holds

        check_by(by or "")
        return (yield from release_holds(self.engine.session, check_user(user_id), by, reason))

    release, arelease = faces(_release)

    def _holds(self) -> Plan[Sequence[Hold]]:
        """Return all holds, the oldest first. One trip for each 500."""
        from langgraph_keel.retention.holds import list_holds

        return list_holds(self.engine.session)

    holds, aholds = faces(_holds)

    def _reclaim_space(
        self, *, full: bool = False, strays: bool = False, on_progress: Progress | None = None
    ) -> Plan[Reclaimed]:
        """Give back the space of what was deleted.

        * SQLite: the write-ahead log is cut. If at least half of the file is free, or with `full`, the file is written
          anew (`VACUUM`): nobody writes meanwhile, and it takes as much space again for that time.
        * Files: what interrupted writes have left goes. Logs are compacted by each prune, and with `full` all are.
        * PostgreSQL: `VACUUM (ANALYZE)` of Keel's tables: their space is used again. With `full`, `VACUUM FULL`: the
          system gets it back, and nobody reads or writes them meanwhile.
        * Redis and memory have given it back already.

        With `full`, rows that no checkpoint shows are deleted first, which a prune that broke off leaves.

        With `strays`, so are whole threads that hold something (an archive, calls of tools, writes) but have no
        checkpoint, as a step leaves them that ended after its thread was deleted. Not while the first run of a thread
        goes on with `durability="exit"`, which stores its checkpoint at its end, and not where only the calls of tools,
        or the archive, are stored of threads whose checkpoints are elsewhere.

        Args:
            full: Whether to do all that can be done, as above.
            strays: Whether threads without a checkpoint go, as above.
            on_progress: Called with how many threads were looked at, with `full`.

        Returns:
            The bytes before and after, where they are known, and what was done.

        Raises:
            InvalidInput: `full` or `strays` is neither `True` nor `False`.
            StoreBusy: Others used the store for longer than the timeout.
            AccessDenied: This user may not do it, or the connection given does not allow it.
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
    """Delete, and clean the space that the store has freed, if asked for. Errors are problems of the receipt."""
    before = (yield Call(saver._weight)) if reclaim and not dry_run else None
    objects = saver.stack.objects
    receipt: Any = yield from delete([*(yield Call(saver._elsewhere)), *(objects.exempt if objects else ())])
    if dry_run or not reclaim:
        return receipt
    try:
        reclaimed = yield from _reclaiming(saver, full=reclaim == "full", scrub=True)
        return replace(receipt, reclaimed=_compare_with(before, reclaimed))
    except KeelError as error:
        # The threads are gone by now, and the receipt must say so.
        problem = (
            "the space of what was deleted is not cleaned yet: saver.retention.reclaim_space(full=True) does that. "
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
    """Return what was given back since the store took so many bytes; `also` says what else was done."""
    note = f"{also}; {reclaimed.note}" if also else reclaimed.note
    return replace(reclaimed, before=reclaimed.before if before is None else before, note=note)


def check_flags(**options: object) -> None:
    """See that options are `True` or `False`."""
    for name, value in options.items():
        if type(value) is not bool:
            raise InvalidInput(f"{name} must be True or False, not {value!r:.100}")


def ignore_progress(done: int, total: int | None) -> None:
    """Tell nobody how far it is."""
