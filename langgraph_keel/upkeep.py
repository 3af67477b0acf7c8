"""Upkeep: what of a thread's history stays, who prunes it, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from secrets import token_hex
from typing import Any, TypeAlias

from langgraph_keel.core.plan import Plan
from langgraph_keel.core.policies import Retention
from langgraph_keel.core.pruned import PruneReport, SweepReport, ThreadPruned
from langgraph_keel.core.queries import checked_limit
from langgraph_keel.core.retention import Pruning, prune, to_prune
from langgraph_keel.core.sweeping import Sweep, checked, store_policies, stored_policies
from langgraph_keel.travel import Travel

Progress: TypeAlias = Callable[[int, int | None], object]
"""Told how many threads are done, and of how many if that is known."""


class Upkeep(Travel):
    """The methods that keep a store small."""

    def prune(  # type: ignore[override]  # LangGraph asks for no report
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str | Retention = "keep_latest",
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> PruneReport:
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

        Returns:
            What went, thread by thread; bytes only of a dry run.

        Raises:
            InvalidInput: There is no such strategy, it is for `sweep`, it does not say what stays (`last=1` keeps the
                latest), or `thread_ids` is one string or a config.
            InvalidConfig: One of the ids is unusable.
            CorruptStore: A thread cannot be read; those before it are pruned.
            StoreError: The store fails (it is busy, cannot be reached, may only be read); those before it are pruned.
        """
        return self._run(self._pruned(thread_ids, strategy, dry_run, on_progress))

    async def aprune(  # type: ignore[override]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str | Retention = "keep_latest",
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> PruneReport:
        """As `prune`, asynchronously."""
        return await self._arun(self._pruned(thread_ids, strategy, dry_run, on_progress))

    def _pruned(
        self, thread_ids: Iterable[str], strategy: str | Retention, dry_run: bool, on_progress: Progress | None
    ) -> Plan[Any, Any, PruneReport]:
        names, policy = to_prune(thread_ids, strategy)
        task, done = _task(policy, dry_run), list[ThreadPruned]()
        for thread_id in names:
            done.append((yield from prune(self._core, self._codec, thread_id, task)))
            _tell(on_progress, len(done), len(names))
        return PruneReport(threads=tuple(done), dry_run=dry_run)

    def set_retention(self, *policies: Retention | Sequence[Retention]) -> None:
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
        self._run(self._stored(policies))

    async def aset_retention(self, *policies: Retention | Sequence[Retention]) -> None:
        """As `set_retention`, asynchronously."""
        await self._arun(self._stored(policies))

    def _stored(self, policies: Sequence[Any]) -> Plan[Any, Any, None]:
        found = checked(policies[0] if len(policies) == 1 else policies)
        yield from store_policies(self._core.store, self._codec, found, token_hex(16))

    def retention(self) -> tuple[Retention, ...]:
        """Return the policies that are stored. One trip.

        Raises:
            CorruptStore: They do not decode: `set_retention` replaces them.
            StoreError: The store fails.
        """
        return self._run(stored_policies(self._core.store, self._codec))

    async def aretention(self) -> tuple[Retention, ...]:
        """As `retention`, asynchronously."""
        return await self._arun(stored_policies(self._core.store, self._codec))

    def sweep(
        self,
        policies: Retention | Sequence[Retention] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        remind_after: float | None = None,
        on_progress: Progress | None = None,
    ) -> SweepReport:
        """Look after all threads: prune and delete as the policies say, and say of requests that they have expired.

        Any process may do it at any time, say every hour, several at once too; what is cut off is done by the next one.
        A thread in which something is put in the very moment in which its time is over is deleted with it. A copy or a
        fork is as old as what was put to it last, or as long as it is there: not as old as what it was made of.

        Args:
            policies: The policies; `None` is those that are stored (`set_retention`).
            dry_run: Change nothing; say what would go, and how much it is.
            limit: Most threads to prune or delete.
            remind_after: As for `saver.approvals.sweep`, which this does first.
            on_progress: Called after each thread with how many were looked at, and `None`: nobody knows how many
                there are.

        Returns:
            What went, by thread. A thread that cannot be read is in `failed`, and stays as it is.

        Raises:
            InvalidInput: Something else than policies is given, one of them does not say what stays or could never
                count, or `limit` is negative. Nothing was changed.
            CorruptStore: The stored policies do not decode; requests for approval were looked after.
            StoreError: The store fails (it is busy, cannot be reached, may only be read).
        """
        return self._run(self._swept(policies, dry_run, limit, remind_after, on_progress))

    async def asweep(
        self,
        policies: Retention | Sequence[Retention] | None = None,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        remind_after: float | None = None,
        on_progress: Progress | None = None,
    ) -> SweepReport:
        """As `sweep`, asynchronously."""
        return await self._arun(self._swept(policies, dry_run, limit, remind_after, on_progress))

    def _swept(
        self,
        policies: Retention | Sequence[Retention] | None,
        dry_run: bool,
        limit: int | None,
        remind_after: float | None,
        on_progress: Progress | None,
    ) -> Plan[Any, Any, SweepReport]:
        # All is checked before anything is written.
        given, limit = None if policies is None else checked(policies), checked_limit(limit)
        reminders = () if dry_run else (yield from self.approvals._swept(remind_after))
        found = given if given is not None else (yield from stored_policies(self._core.store, self._codec))
        sweep = Sweep(self._core, found, _task(None, dry_run), limit)
        while (yield from sweep.next(self._codec)):
            _tell(on_progress, sweep.looked, None)
        return sweep.report(reminders)


def _task(policy: Retention | None, dry_run: bool) -> Pruning:
    return Pruning(policy, time.time() * 1000, lambda: token_hex(16), dry_run)


def _tell(on_progress: Progress | None, done: int, total: int | None) -> None:
    if on_progress is not None:
        on_progress(done, total)
