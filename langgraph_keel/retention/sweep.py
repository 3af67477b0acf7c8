"""Stored policies, and the plan that applies policies to all threads of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from langgraph_keel.engine.checkpoints import delete_thread
from langgraph_keel.engine.entries import unpack_header
from langgraph_keel.engine.lineage import instant, made_at
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import checked_limit
from langgraph_keel.engine.records import Entry, Page, Query, ThreadInfo
from langgraph_keel.engine.removal import finish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.errors import CorruptStore, InvalidInput, OnHold, ValueRefused
from langgraph_keel.retention.holds import Hold, read_holds
from langgraph_keel.retention.owners import COPY_TIMES, SEEN, check_threads, read_copy_time
from langgraph_keel.retention.policy import Retention, check_rules, in_seconds, pack_policies, unpack_policies
from langgraph_keel.retention.prune import Pruning, SweepReport, ThreadPruned, prune

POLICIES: CellTable[tuple[Retention, ...]] = CellTable(
    "retention",
    "the list of retention policies",
    lambda policies: [pack_policies(policies)],
    lambda parts: unpack_policies(*parts),
)
_KEY = "policies"
PAGE = 200
_Wait: TypeAlias = float | timedelta | None


def check_policies(policies: object) -> tuple[Retention, ...]:
    """Validate policies; return them as a tuple."""
    found = (policies,) if isinstance(policies, Retention) else policies
    if not isinstance(found, Sequence) or not all(isinstance(each, Retention) for each in found):
        raise InvalidInput(f"policies must be Retention(...), one or several, not {policies!r:.200}")
    for place, policy in enumerate(check_rules(each) for each in found):
        first = next((each for each in found[:place] if each.covers(policy)), None)
        if first is not None:
            raise InvalidInput(
                f"the policy for {policy.threads!r} would never count: the one for {first.threads!r} comes first, "
                "matches all its threads, and so applies instead. Put it before that one, or omit one of them"
            )
    return tuple(found)


def read_policies(session: Session) -> Plan[tuple[Retention, ...]]:
    """Return the policies of the store. One trip."""
    held = yield from Cells(session, POLICIES, None).find(_KEY)
    return held.record if held else ()


def store_policies(session: Session, policies: Sequence[Retention]) -> Plan[None]:
    """Replace the stored policies, even damaged ones. Two trips."""
    cells = Cells(session, POLICIES, None)
    if policies:
        yield from cells.overwrite_raw(_KEY, cells.cell(tuple(policies)))
    else:
        yield from cells.clear(_KEY)


class Sweep:
    """Applies policies to all threads, last active first.

    It may be interrupted, and run concurrently.
    """

    def __init__(
        self, session: Session, policies: Sequence[Retention], task: Pruning, limit: int | None = None
    ) -> None:
        self._session = session
        self._policies = policies
        self._task = task  # its policy is ignored
        self._limit = checked_limit(limit)
        self._beginning = self._find_beginning()
        self._after: tuple[str, str] | None = None
        self._page: list[ThreadInfo] = []
        self._holds: Mapping[str, Hold] = {}
        self._is_last = not policies
        self.looked = 0
        self._done: list[ThreadPruned] = []
        self._failed: dict[str, str] = {}

    def _find_beginning(self) -> tuple[str, str] | None:
        """Return the page position of the first thread idle long enough for a policy."""
        waits = [in_seconds(policy.ttl) for policy in self._policies if policy.ttl is not None]
        waits += [in_seconds(policy.idle) for policy in self._policies if not policy.keeps_all]
        if not waits or min(waits) == 0:
            return None
        return _iso(self._task.now - 1000 * min(waits)), ""

    def report(self, reminders: Sequence[object] = ()) -> SweepReport:
        """Return the report."""
        return SweepReport(
            threads=tuple(self._done),
            dry_run=self._task.is_dry,
            looked=self.looked,
            failed=dict(self._failed),
            has_policies=bool(self._policies),
            reminders=reminders,
        )

    def next(self) -> Plan[bool]:
        """Process the next thread, unless unreadable or on hold; `False` at the end."""
        if self._limit is not None and len(self._done) >= self._limit:
            return False
        while not self._page and not self._is_last:
            yield from self._read()
        if not self._page:
            return False
        info = self._page.pop(0)
        self.looked += 1
        try:
            done = yield from self._look_after(info)
        except (CorruptStore, ValueRefused, OnHold) as error:
            self._failed[info.thread_id] = str(error)
        else:
            self._done += [done] if done is not None and done.is_changed else []
        return True

    def _read(self) -> Plan[None]:
        """Read a page: threads with times in the future, then those idle long enough."""
        self._holds = yield from read_holds(self._session)
        found = yield from self._session.store.read_threads(Page(self._after, PAGE))
        self._is_last = len(found) < PAGE
        first = self._beginning
        for info, _ in found:
            self._after = info.updated_at, info.thread_id
            if first is None or self._after < first or not self._tells_time(info.updated_at):
                self._page.append(info)
        if first and self._after and self._after > first and self._tells_time(self._after[0]):
            self._after = first

    def _tells_time(self, at: str) -> bool:
        """Return whether a time is valid and not in the future (clocks may be ahead)."""
        then = instant(at)
        return then is not None and then <= self._task.now

    def _look_after(self, info: ThreadInfo) -> Plan[ThreadPruned | None]:
        policy = policy_for(info.thread_id, self._policies)
        if policy is None:
            return None
        at = instant(info.updated_at)
        if not self._tells_time(info.updated_at) and (policy.ttl is not None or policy.idle is not None):
            latest = yield from self._session.store.scan(Query(info.thread_id, limit=1))
            at = (yield from self._read_put_time(latest[0])) if latest else None
        if _is_over(at, policy.ttl, self._task.now):
            return (yield from self._delete(info.thread_id, policy))
        is_due = policy.idle is None or _is_over(at, policy.idle, self._task.now)
        if policy.keeps_all or not is_due:
            return None
        if info.checkpoints <= (policy.last or 1):
            return (yield from self._finish(info))
        if policy.idle is not None and (yield from self._is_new(info.thread_id, policy.idle)):
            return None
        yield from check_threads(self._session, [info.thread_id], self._holds)
        return (yield from prune(self._session, info.thread_id, self._task_of(policy)))

    def _read_put_time(self, latest: Entry) -> Plan[float]:
        """Return the time of a thread's last write, in milliseconds since 1970."""
        # Without a valid time (see `_tells_time`), use the noted time when a sweep first saw the entry: two trips. So a
        # thread from a host whose clock is a year ahead neither lives a year longer nor is deleted immediately.
        at = made_at(unpack_header(latest.header, self._session.codec, latest.address))
        if at is not None and at <= self._task.now:
            return at
        cells = Cells(self._session, COPY_TIMES, latest.address.thread_id)
        held, token = (yield from cells.find(SEEN)), str(latest.stamp)
        if held is not None and held.token == token and self._tells_time(held.record):
            return instant(held.record) or self._task.now
        if not self._task.is_dry:
            yield from cells.swap(SEEN, held.token if held else None, _iso(self._task.now), token=token)
        return self._task.now

    def _finish(self, info: ThreadInfo) -> Plan[ThreadPruned | None]:
        """Remove rows left by a prune that was interrupted at its end. Two trips."""
        if self._task.is_dry:
            return None
        rows = yield from finish(self._session, info.thread_id)
        return ThreadPruned(thread_id=info.thread_id, kept=info.checkpoints, rows=rows)

    def _delete(self, thread_id: str, policy: Retention) -> Plan[ThreadPruned | None]:
        """Delete a thread unless it was written to since it was listed or, here, read."""
        latest = yield from self._session.store.scan(Query(thread_id, limit=1))
        if not latest:
            return None
        if not _is_over((yield from self._read_put_time(latest[0])), policy.ttl, self._task.now):
            return None
        if (yield from self._is_new(thread_id, policy.ttl)):
            return None
        yield from check_threads(self._session, [thread_id], self._holds)
        if self._task.is_dry:
            return (yield from prune(self._session, thread_id, self._task_of(None)))
        is_gone = yield from delete_thread(self._session, thread_id, latest[0].stamp)
        return ThreadPruned(thread_id=thread_id, removed=None, deleted=True, rows=None) if is_gone else None

    def _is_new(self, thread_id: str, wait: _Wait) -> Plan[bool]:
        """Return whether a thread is a recent copy or fork of older checkpoints."""
        at = yield from read_copy_time(self._session, thread_id)
        return at is not None and not _is_over(at, wait, self._task.now)

    def _task_of(self, policy: Retention | None) -> Pruning:
        return Pruning(policy, self._task.now, self._task.is_dry)


def policy_for(thread_id: str, policies: Sequence[Retention]) -> Retention | None:
    """Return the first policy that matches a thread."""
    return next((each for each in policies if each.fits(thread_id)), None)


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat()


def _is_over(at: float | None, wait: _Wait, now: float) -> bool:
    # Without a wait, nothing ever expires.
    return at is not None and wait is not None and at < now - 1000 * in_seconds(wait)
