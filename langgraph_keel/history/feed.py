"""A feed of checkpoints and status changes, derived from stored data.

It adds no work to writes. Each thread has a sequence of checkpoints, and the index of threads shows which have changed.
A feed compares both with the events that it has yielded, so it is complete after each poll: an event may be repeated,
but is never lost.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar
from zlib import crc32

from langgraph_keel.approvals.notices import AsyncNotices, Bell, Notices
from langgraph_keel.engine.checkpoints import describe_thread
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.entries import error_class, status_of, unpack_header
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.lineage import instant, made_at
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Listed, Page, Query, Stamp, ThreadInfo, Unchanged
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.thread import sequence_of
from langgraph_keel.errors import CorruptStore, InvalidInput, StoreBusy, StoreUnavailable
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.reading import STRETCH, Doing, moments_of
from langgraph_keel.history.records import Change
from langgraph_keel.history.threads import read_all_doing
from langgraph_keel.runs.worker import PollTimer

_log = logging.getLogger(__name__)
T = TypeVar("T")
E = TypeVar("E")
_MINUTE, _HOUR = 60_000.0, 3_600_000.0
"""Time that a poll, and a deep one, covers before the last activity, in ms."""
# SQLite updates a thread in its index every ten seconds, and clocks of hosts differ by seconds, sometimes by more.
_DEEP, _SLOWEST = 10, 5
"""One in this many polls is deep; longest interval of an idle feed, in `poll`s."""
_PAGE, _FEW = 500, 20
"""Threads or checkpoints in a page; checkpoints in the first page of a thread."""
_OPEN = ("incomplete", "waiting")
"""Statuses that a task can change without a new checkpoint: always polled."""


@publish
@dataclass(frozen=True, slots=True)
class StatusChange:
    """A thread whose status has changed since it was last reported.

    Attributes:
        status: `"waiting"`, `"failed"`, `"incomplete"`, `"done"` or `"idle"`, as in `ThreadInfo`.
        checkpoint_id: The thread's latest checkpoint.
        next: The nodes that run next.
        error: The class of the task's error, if the status is `"failed"`.
        owner: The owner of the thread; empty if it has none.
    """

    thread_id: str
    status: str
    checkpoint_id: str
    next: tuple[str, ...] = ()
    error: str = ""
    owner: str = ""


Event: TypeAlias = Moment | StatusChange


class _Seen(NamedTuple):
    """The reported state of a thread."""

    stamp: Stamp  # of its last reported checkpoint
    at: float  # its last activity, in milliseconds
    sum: int  # checksum of its index record; 0 if there may be more to report
    status: str


class _Now(NamedTuple):
    """A thread that may have changed."""

    thread_id: str
    head: Entry | None
    at: float
    sum: int
    status: str = ""
    doing: Doing | None = None


Step: TypeAlias = tuple[Event | None, str, _Seen]
"""An event, and the reported state of its thread once it was yielded."""
_Job: TypeAlias = Callable[[], Plan[Sequence[Step] | None]]
"""A part of a poll."""


class Follower(Generic[T, E]):
    """Polls for changes and yields them: the loop of a feed, sync and async."""

    def __init__(self, engine: Engine, bell: Bell, timer: PollTimer) -> None:
        self._engine, self._bell, self._timer = engine, bell, timer
        self._poll = timer.poll  # initial polling interval, in seconds
        self._todo: deque[Callable[[], Plan[Sequence[T] | None]]] = deque()  # the rest of this poll
        self._looks = 0
        self._is_news = False

    def _begin(self) -> None:
        """Start a poll: fill `_todo`. Its last part yields nothing, and counts the poll."""
        raise NotImplementedError

    def _take(self, steps: Sequence[T]) -> Iterator[E]:
        """Yield the events of some steps, and record each before."""
        raise NotImplementedError

    def __iter__(self) -> Generator[E]:
        """Yield events; wait for them."""
        with self._bell.notices() as notices:
            while (steps := self._engine.run_patiently(self._next(notices))) is not None:
                yield from self._take(steps)

    async def __aiter__(self) -> AsyncGenerator[E]:
        """Yield events; wait for them without blocking the running loop."""
        async with self._bell.anotices() as notices:
            while (steps := await self._engine.arun_patiently(self._next(notices))) is not None:
                for event in self._take(steps):
                    yield event

    def _next(self, notices: Notices | AsyncNotices) -> Plan[Sequence[T] | None]:
        """Return the next events, in their order; `None` at the end of the feed."""
        lost: Exception | None = None
        while True:
            error = None
            try:
                if not self._todo:
                    self._begin()
                while self._todo:
                    if steps := (yield from self._todo.popleft()()):
                        return steps
            except (StoreUnavailable, StoreBusy) as failed:
                if not self._looks:
                    raise
                if lost is None:
                    _log.warning("the feed retries until the store answers; no event is lost: %s", failed)
                error = failed
                self._todo.clear()
            lost = error
            if self._is_news:
                self._timer.poll, self._is_news = self._poll, False
                self._timer.restart()
            if not (seconds := self._timer.left):
                if lost:
                    raise lost
                return None
            self._timer.poll = min(2 * self._timer.poll, _SLOWEST * self._poll)
            wait = partial(notices.wait, seconds)
            yield Call(wait, wait)  # type: ignore[arg-type]  # only the one of the current mode is called


@publish
class Feed(Follower[Step, Event]):
    """The events of threads (`saver.history.follow`), for `for` or `async for`."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        bell: Bell,
        timer: PollTimer,
        timeline: Callable[[str], Any],
        thread_id: str | None,
        payload: bool,
    ) -> None:
        super().__init__(engine, bell, timer)
        self._session = session
        self._timeline, self._thread_id, self._payload = timeline, thread_id, payload
        self._upto = 0.0  # threads with activity up to this time were reported, in milliseconds
        self._before = 0.0  # older checkpoints of unknown threads count as reported
        self._known: dict[str, _Seen] = {}
        self._heads: dict[str, Entry] = {}  # the latest checkpoints of threads that are open
        self._listed: set[str] = set()  # in this poll
        self._reached = 0.0  # like `_upto`, of the threads that were listed in this poll

    @property
    def cursor(self) -> str:
        """The position after the last event, for `after`.

        JSON, about 80 bytes for each active thread.
        """
        return json.dumps([1, self._thread_id, self._upto, self._before, self._known], separators=(",", ":"))

    def begin_at(self, after: str | datetime | None) -> Self:
        """Start at a cursor or a time, and return the feed; see `saver.history.follow`."""
        if isinstance(after, datetime):
            self._upto = self._before = after.timestamp() * 1000
        elif after is not None:
            try:
                version, thread_id, upto, before, known = json.loads(after)
                self._upto, self._before = float(upto), float(before)
                self._known = {name: _Seen(at, float(t), int(n), status) for name, (at, t, n, status) in known.items()}
            except (TypeError, ValueError, AttributeError, IndexError):
                raise InvalidInput(f"after must be the cursor of a feed, or a datetime, not {after!r:.100}") from None
            if (version, thread_id) != (1, self._thread_id):
                raise InvalidInput("after is the cursor of another feed, of other threads or of a newer Keel")
        return self

    def _take(self, steps: Sequence[Step]) -> Iterator[Event]:
        for event, name, seen in steps:
            self._known[name] = seen
            if event is not None:
                self._is_news = True
                yield event

    # -- which threads have changed ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._listed.clear()
        self._reached = self._upto
        if self._thread_id is None:
            # A host whose clock is fast must not hide the events of the others.
            start = min(self._upto, self._now()) - (_MINUTE if self._looks % _DEEP else _HOUR)
            place = None if start <= 0 else (datetime.fromtimestamp(start / 1000, UTC).isoformat(), "")
            self._todo.append(partial(self._list, place))
        self._todo += [self._look_again, self._end]

    def _now(self) -> float:
        return self._session.clock().timestamp() * 1000

    def _list(self, after: tuple[str, str] | None) -> Plan[None]:
        """Read the next page of threads, and plan which of them to read. Two trips."""
        self._upto = self._reached
        asked = Page(after, _PAGE, oldest_first=True, tolerant=True)
        page: Sequence[Listed] = yield from self._session.store.read_threads(asked)
        found: list[_Now] = []
        for info, head in page:
            about = info.updated_at, info.checkpoints, head.stamp if head else None
            now = _Now(info.thread_id, head, instant(info.updated_at) or 0.0, crc32(repr(about).encode()) or 1)
            seen = self._known.get(info.thread_id)
            self._listed.add(info.thread_id)
            if seen is None or seen.sum != now.sum or seen.status in _OPEN:
                found.append(now)
        jobs = [*(yield from self._compare(found))]
        if page:
            self._reached = max(self._reached, min(instant(page[-1][0].updated_at) or 0.0, self._now()))
        if len(page) == _PAGE:
            jobs.append(partial(self._list, (page[-1][0].updated_at, page[-1][0].thread_id)))
        self._todo.extendleft(reversed(jobs))

    def _look_again(self) -> Plan[None]:
        """Compare the feed's thread, or the open threads that were not listed.

        A trip, and two for each unknown head.
        """
        if self._thread_id is not None:
            yield from self._find_head(self._thread_id)
            found = [_Now(self._thread_id, self._heads.get(self._thread_id), 0.0, 1)]
        else:
            is_left = {name for name, seen in self._known.items() if seen.status in _OPEN} - self._listed
            for name in is_left - {*self._heads}:  # after a restart
                yield from self._find_head(name)
            left = [(name, self._known[name]) for name in is_left if name in self._known]
            found = [_Now(name, self._heads.get(name), seen.at, seen.sum) for name, seen in left]
        self._todo.extendleft((yield from self._compare(found)))

    def _find_head(self, name: str) -> Plan[None]:
        """Read the latest checkpoint of a thread. Two trips, mostly without its values."""
        self._heads.pop(name, None)
        newest: Sequence[Entry] = yield from self._session.store.scan(Query(name, "", limit=1))
        found = (yield from self._session.store.read_entry(Address(name), newest[0].stamp)) if newest else None
        if found is not None:
            self._heads[name] = newest[0] if isinstance(found, Unchanged) else found.entry
        else:
            self._known.pop(name, None)  # it was deleted

    def _end(self) -> Plan[None]:
        """End a poll: forget threads idle for an hour, unless their status is open."""
        yield from ()
        self._looks, self._upto = self._looks + 1, self._reached
        if self._thread_id is None:
            self._before = self._upto - _HOUR
            kept = [item for item in self._known.items() if item[1].at >= self._before or item[1].status in _OPEN]
            self._known = dict(kept)
            self._heads = {name: head for name, head in self._heads.items() if name in self._known}

    def _compare(self, found: Sequence[_Now]) -> Plan[Sequence[_Job]]:
        """Return the jobs to run, given the last known heads of threads. One trip."""
        heads, doing = [now.head for now in found if now.head], dict[Address, Doing]()
        for start in range(0, len(heads), _PAGE):
            doing |= yield from read_all_doing(self._session, heads[start : start + _PAGE])
        jobs: list[_Job] = []
        for now in found:
            seen = self._known.get(now.thread_id)
            status = seen.status if seen else ""
            it = doing.get(now.head.address) if now.head else None
            if now.head and it:
                self._heads[now.thread_id] = now.head
                status = status_of(it.source, it.next, it.asks, it.errors)
            else:
                self._heads.pop(now.thread_id, None)  # it was removed, or is damaged
            # In a feed of one thread no sum is known, and its sequence is read each time.
            if seen is None or self._thread_id is not None or (seen.sum, seen.status) != (now.sum, status):
                jobs.append(partial(self._read, now._replace(status=status, doing=it)))
        return jobs

    # -- the events of one thread --------------------------------------------------------------------------------------

    def _read(self, now: _Now) -> Plan[Sequence[Step]]:
        """Return a thread's new checkpoints, and its changed status. Two trips or more."""
        seen, steps = self._known.get(now.thread_id), list[Step]()
        newest, found = yield from self._scan(now.thread_id, seen)
        if newest is None:
            return ()
        root, before = next((e for e in found if not e.address.checkpoint_ns), None), seen.status if seen else ""
        heads, is_late = {each.address.checkpoint_ns: each.address for each in reversed(found)}, False
        if now.head:
            is_late = bool(root and sequence_of(root.stamp) > sequence_of(now.head.stamp))
            heads[""] = heads[""] if is_late else now.head.address  # the newest may be on a branch
        continued = {(each.address.checkpoint_ns, each.parent) for each in found}
        timeline = self._timeline(now.thread_id) if self._payload else None
        for stop in range(len(found), 0, -STRETCH):
            part = found[max(0, stop - STRETCH) : stop]
            moments = {each.address: each for each in (yield from _read_moments(self._session, part))}
            for place in range(stop - 1, stop - 1 - len(part), -1):
                at = found[place].address
                moment = moments.get(at)
                if moment is not None:
                    over: dict[str, Any] = {"position": -1 - place, "is_head": heads[at.checkpoint_ns] == at}
                    over["is_leaf"] = (at.checkpoint_ns, at.checkpoint_id) not in continued
                    over |= {} if over["is_leaf"] else {"pending": (), "errors": (), "interrupts": ()}
                    moment = replace(moment if self._payload else _strip(moment), owner=timeline, **over)
                steps.append((moment, now.thread_id, _Seen(found[place].stamp, now.at, 0, before)))
        # The status of a thread that was idle before the feed started is not reported.
        is_news = not is_late and now.status != before and (found or seen)
        whole = _Seen(newest.stamp, now.at, 0 if is_late else now.sum, before if is_late else now.status)
        return [*steps, (self._status(now) if is_news else None, now.thread_id, whole)]

    def _scan(self, thread_id: str, seen: _Seen | None) -> Plan[tuple[Entry | None, Sequence[Entry]]]:
        """Return the newest checkpoint, and the unreported ones, newest first.

        A trip, or more for many.
        """
        newest: Entry | None = None
        found: list[Entry] = []
        try:
            while True:
                asked = Query(thread_id, limit=_PAGE if found else _FEW, after=found[-1] if found else None)
                page: Sequence[Entry] = yield from self._session.store.scan(asked)
                newest = newest or (page[0] if page else None)
                # If the newest has a lower number, checkpoints were removed or a backup restored: all are reported.
                seen = seen if seen and newest and _is_upto(seen.stamp, newest.stamp) else None
                for entry in page:
                    if _is_upto(entry.stamp, seen.stamp) if seen else self._is_old(entry):
                        return newest, found
                    found.append(entry)
                if len(page) < asked.limit:
                    return newest, found
        except CorruptStore as error:
            _log.warning("the feed skips a thread until it changes: %s", error)
            return newest, ()

    def _is_old(self, entry: Entry) -> bool:
        """Return whether a checkpoint of an unknown thread is older than the feed."""
        if self._before <= 0:
            return False
        at = made_at(unpack_header(entry.header, self._session.codec, entry.address))
        return at is not None and at < self._before

    def _status(self, now: _Now) -> StatusChange | None:
        if now.head is None or now.doing is None:
            return None
        latest, it = str(now.head.address.checkpoint_id), now.doing
        info, _ = describe_thread(self._session, ThreadInfo(now.thread_id, 0, "", latest, None), now.head)
        error = error_class(it.errors[0]) if now.status == "failed" else ""
        return StatusChange(now.thread_id, now.status, latest, it.next, error, info.owner)


def _is_upto(stamp: Stamp, other: Stamp) -> bool:
    """Return whether an entry equals or precedes another of its thread, by stamps."""
    try:
        lives = [None if isinstance(each, int) else each.split(".")[0] for each in (stamp, other)]
        return lives[0] == lives[1] and sequence_of(stamp) <= sequence_of(other)
    except (AttributeError, LookupError, ValueError):  # from a cursor of another store
        return False


def _read_moments(session: Session, entries: Collection[Entry]) -> Plan[Sequence[Moment]]:
    """Return the moments of entries; damaged ones are logged and skipped."""
    try:
        return (yield from moments_of(session, [*entries]))
    except CorruptStore as error:
        if len(entries) == 1:
            _log.warning("the feed skips a checkpoint: %s", error)
            return ()
    found: list[Moment] = []
    for entry in entries:
        found += yield from _read_moments(session, [entry])
    return found


def _strip(moment: Moment) -> Moment:
    """Return a moment without the values of state, questions, errors and metadata."""
    return replace(
        moment,
        changes=tuple(Change(each.channel, "") for each in moment.changes),
        asked=tuple(replace(each, value=None) for each in moment.asked),
        interrupts=tuple(replace(each, value=None) for each in moment.interrupts),
        errors=tuple(map(error_class, moment.errors)),
        metadata={name: moment.metadata[name] for name in ("source", "step") if name in moment.metadata},
        summary="",
        drift=(),
    )
