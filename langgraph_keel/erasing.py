"""Erasure: a person's data goes, everywhere, and a receipt says what went. And space that is given back."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, Literal
from uuid import UUID

from langgraph_keel.core import erasure
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.receipt import Receipt, noted, receipt_of
from langgraph_keel.core.reclaiming import Reclaimed, sweep_all
from langgraph_keel.errors import InvalidInput, KeelError
from langgraph_keel.upkeep import Progress, Upkeep


class Erasing(Upkeep):
    """The methods that erase."""

    def erase(
        self,
        user_id: str | int | UUID,
        *,
        dry_run: bool = False,
        shared: Literal["report", "delete"] = "report",
        node_cache: Literal["clear", "report"] = "clear",
        reclaim: bool | Literal["full"] = True,
        on_progress: Progress | None = None,
    ) -> Receipt:
        """Delete all that is stored of a person: every thread whose checkpoints name nobody else, and all it holds.

        With a thread go its checkpoints, writes, archive, tool calls and what it shared of them, requests for approval,
        labels, records of model calls and claims; copies and forks name the same person, and go, too. The audit trail
        keeps its chain without their contents, and says that somebody was erased, by counts and a hash.

        Whose a thread is, its checkpoints say; of those that a prune has removed, a note beside it. All threads are
        looked at, twice. Stop the person's runs first: one that goes on meanwhile puts its thread back, which is found
        and deleted again, up to five times. If it breaks off, erase again: that finishes it. What a step stores that
        ends later yet has no checkpoint, so nothing says whose it is: the next receipt counts it (`receipt.strays`),
        and `reclaim(strays=True)` removes it.

        Args:
            user_id: Who, as `configurable["user_id"]` has named them: text, a number or a UUID; or `owner=`, which is
                asked only where that says nothing.
            dry_run: Only say what would go; nothing is written.
            shared: What becomes of threads that name others as well: they are left alone and reported, or deleted.
            node_cache: `KeelCache` does not know whose its results are: it is emptied, if the person has any thread,
                or left alone and reported.
            reclaim: Whether to see to it that no byte of it is left in what the store has freed, which for SQLite is
                a `VACUUM`: nobody writes meanwhile. PostgreSQL keeps dead rows up to a `VACUUM FULL`, which locks its
                tables and is done for `"full"` only.
            on_progress: Called with how many threads were looked at (`None` in all), then how many of how many deleted.

        Returns:
            What went, and what did not: `receipt.complete` says whether Keel knows of anything in this store that is
            left of the person, or may be. What failed for one thread does not stop the others.

        Raises:
            InvalidInput: An argument cannot be meant.
            ReadOnlyStore: This saver only reads, and it is no `dry_run`.
            StoreError: The store cannot be asked; what was deleted by then is, and the next erasure goes on.
        """
        order = erasure.ordered(user_id, dry_run, shared, node_cache, reclaim)
        before = self._weight() if reclaim and not dry_run else None
        receipt = self._run(self._erasing(order, on_progress or _untold, self._elsewhere()))
        return receipt if dry_run or not reclaim else _with(receipt, self._scrubbed(full=reclaim == "full"), before)

    async def aerase(
        self,
        user_id: str | int | UUID,
        *,
        dry_run: bool = False,
        shared: Literal["report", "delete"] = "report",
        node_cache: Literal["clear", "report"] = "clear",
        reclaim: bool | Literal["full"] = True,
        on_progress: Progress | None = None,
    ) -> Receipt:
        """As `erase`, asynchronously."""
        order = erasure.ordered(user_id, dry_run, shared, node_cache, reclaim)
        before = await to_thread(self._weight) if reclaim and not dry_run else None
        elsewhere = await to_thread(self._elsewhere)
        receipt = await self._arun(self._erasing(order, on_progress or _untold, elsewhere))
        if dry_run or not reclaim:
            return receipt
        return _with(receipt, await self._ascrubbed(full=reclaim == "full"), before)

    def reclaim(self, *, full: bool = False, strays: bool = False, on_progress: Progress | None = None) -> Reclaimed:
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
        _check(full=full, strays=strays)
        before = self._weight() if full or strays else None
        swept = self._run(sweep_all(self._core, on_progress or _untold, rows=full, strays=strays))
        return _since(before, self._reclaim(full=full, scrub=strays), str(swept))

    async def areclaim(
        self, *, full: bool = False, strays: bool = False, on_progress: Progress | None = None
    ) -> Reclaimed:
        """As `reclaim`, asynchronously."""
        _check(full=full, strays=strays)
        before = await to_thread(self._weight) if full or strays else None
        swept = await self._arun(sweep_all(self._core, on_progress or _untold, rows=full, strays=strays))
        return _since(before, await self._areclaim(full=full, scrub=strays), str(swept))

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        """Give back space; backends override it, and the next three.

        Args:
            full: Whether to do all that can be done, whatever waits for it.
            scrub: Whether nothing of what was deleted may be left in what is free.
        """
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

    def _erasing(self, order: erasure.Order, tell: Progress, elsewhere: Sequence[str]) -> Plan[Any, Any, Receipt]:
        erased = yield from erasure.erase(self._core, self._codec, order, tell)
        receipt = receipt_of(erased, datetime.now(UTC).isoformat(), elsewhere)
        if not receipt.threads or order.dry_run:
            return receipt
        try:
            yield from noted(self._core.store, self._codec, receipt, lambda: token_hex(16))
        except KeelError as error:
            return replace(receipt, problems=(f"the audit trail does not say it: {error}",))
        return receipt

    def _scrubbed(self, *, full: bool) -> Reclaimed | str:
        try:
            return self._reclaim(full=full, scrub=True)
        except KeelError as error:
            return _unscrubbed(error)

    async def _ascrubbed(self, *, full: bool) -> Reclaimed | str:
        try:
            return await self._areclaim(full=full, scrub=True)
        except KeelError as error:
            return _unscrubbed(error)


def _unscrubbed(error: KeelError) -> str:
    # The threads are gone by now, and the receipt must say so.
    return f"the space of what was deleted is not cleaned yet: saver.reclaim(full=True) does that. {error}"


def _with(receipt: Receipt, reclaimed: Reclaimed | str, before: int | None) -> Receipt:
    if isinstance(reclaimed, str):
        return replace(receipt, problems=(*receipt.problems, reclaimed))
    return replace(receipt, reclaimed=_since(before, reclaimed))


def _since(before: int | None, reclaimed: Reclaimed, also: str = "") -> Reclaimed:
    """Return what was given back since the store took so many bytes; `also` says what else was done."""
    note = f"{also}; {reclaimed.note}" if also else reclaimed.note
    return replace(reclaimed, before=reclaimed.before if before is None else before, note=note)


def _check(**options: object) -> None:
    for name, value in options.items():
        if type(value) is not bool:
            raise InvalidInput(f"{name} must be True or False, not {value!r:.100}")


def _untold(done: int, total: int | None) -> None:
    """Tell nobody how far it is."""
