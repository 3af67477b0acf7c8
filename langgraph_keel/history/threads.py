"""Lists of threads with filters, counts and usage.

They are made from the latest checkpoints and their pending writes. Stores narrow a list by the marks that are stored
with each checkpoint (`engine.entries.marks_of`); the filters are applied here again.
"""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from langgraph_keel.approvals.plans import find_waiting_threads
from langgraph_keel.display import html
from langgraph_keel.display.text import count_of, format_money, format_size, one_line, plain
from langgraph_keel.engine.checkpoints import describe_thread
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Status, as_lists, error_class, marks_of, status_of
from langgraph_keel.engine.lineage import instant
from langgraph_keel.engine.listing import read_names
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE, checked_limit
from langgraph_keel.engine.records import Entry, Listed, Page, ThreadInfo, record
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, InvalidInput
from langgraph_keel.history.labels import read_labels
from langgraph_keel.history.reading import Doing, read_doing

_log = logging.getLogger(__name__)

_DAYS, _WIDTH, _OWNERS, _NAME = 14, 40, 10, 40
"""For counts as text: maximum days, bar width, owners, and characters of a name."""
Order: TypeAlias = Literal["newest", "oldest"]
_MOST = 500
"""Maximum threads in a page; the first page has `PAGE`."""
_ZONES = timedelta(days=1)
"""Margin for time zones: stores compare times as text at the start of a page."""


@record
class ThreadFilter:
    """The filters of `KeelSaver.threads`, combined with AND."""

    model: str | None = None
    match: str | None = None
    owner: str | None = None
    waiting: bool = False
    since: datetime | None = None
    until: datetime | None = None
    status: Status | None = None
    label: str | None = None
    node: str | None = None
    error: str | None = None
    where: Mapping[str, Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the filter matches all threads."""
        return self == ThreadFilter()

    @property
    def times(self) -> tuple[float | None, float | None]:
        """`since` and `until`, in milliseconds since 1970."""
        since, until = (None if at is None else at.timestamp() * 1000 for at in (self.since, self.until))
        return since, until

    def marks(self) -> tuple[str, ...]:
        """Return the marks by which a store can narrow the list."""
        asked = {"owner": self.owner, "model": self.model, "status": self.status, "error": self.error}
        terms = [f"{name}:{value}" for name, value in asked.items() if value is not None]
        # A node runs after a checkpoint with the status `incomplete`, even if writes of tasks have changed it since.
        return marks_of([*terms, *(["status:incomplete"] if self.node is not None else [])])

    def first_place(self, order: Order) -> tuple[str, str] | None:
        """Return the place where a list starts that skips threads outside the times."""
        at, zones = (self.until, _ZONES) if order == "newest" else (self.since, -_ZONES)
        return None if at is None else ((at.astimezone(UTC) + zones).isoformat(), "")

    def fits(self, info: ThreadInfo, metadata: Mapping[str, Any]) -> bool:
        """Return whether a thread's latest checkpoint matches."""
        at, (since, until) = instant(info.updated_at), self.times
        return (
            (self.model is None or self.model in info.models)
            and (self.match is None or fnmatchcase(info.thread_id, self.match))
            and self.owner in (None, info.owner)
            and (since is None or at is None or at >= since)
            and (until is None or at is None or at <= until)
            and all(metadata.get(key) == as_lists(value) for key, value in (self.where or {}).items())
        )

    def fits_doing(self, info: ThreadInfo) -> bool:
        """Return whether a thread's status, next nodes and error match."""
        return (
            self.status in (None, info.status)
            and (self.node is None or self.node in info.next)
            and self.error in (None, info.error)
        )

    def ends_at(self, info: ThreadInfo, order: Order) -> bool:
        """Return whether this thread and all later ones of the list are out of range."""
        at, end = instant(info.updated_at), self.times[order == "oldest"]
        return at is not None and end is not None and (at < end if order == "newest" else at > end)


def filter_of(
    model: str | None = None,
    match: str | None = None,
    owner: str | None = None,
    waiting: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    status: Status | None = None,
    label: str | None = None,
    node: str | None = None,
    error: str | type[BaseException] | None = None,
    where: Mapping[str, Any] | None = None,
) -> ThreadFilter:
    """Check the filters of `KeelSaver.threads`, and return them."""
    for name, value in (("model", model), ("match", match), ("owner", owner), ("label", label), ("node", node)):
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"{name} must be a text, not {value!r:.100}")
    if status is not None and not (isinstance(status, str) and status in get_args(Status)):
        raise InvalidInput(f"status must be one of {', '.join(get_args(Status))}, not {status!r:.100}")
    if where is not None and not (isinstance(where, Mapping) and all(isinstance(key, str) for key in where)):
        raise InvalidInput(f"where must map keys of metadata to values, not {where!r:.100}")
    if isinstance(error, type):
        error = error.__name__
    if error is not None and not isinstance(error, str):
        raise InvalidInput(f"error must be a class, or its name, not {error!r:.100}")
    for name, at in (("since", since), ("until", until)):
        if at is not None and not isinstance(at, datetime):
            raise InvalidInput(f"{name} must be a datetime, not {at!r:.100}")
    return ThreadFilter(model, match, owner, waiting, since, until, status, label, node, error, where)


class ThreadPages:
    """Reads threads in pages, by last activity; `after` is a cursor of the same list."""

    def __init__(
        self,
        session: Session,
        limit: int | None,
        wanted: ThreadFilter,
        after: str | None = None,
        order: Order = "newest",
    ) -> None:
        if not (isinstance(order, str) and order in get_args(Order)):
            raise InvalidInput(
                f"order must be 'newest' or 'oldest', by last activity, not {order!r:.100}: the index of threads has "
                "no other order; sort the result of `saver.threads()`"
            )
        self._session = session
        self._wanted = wanted
        self._marks = wanted.marks()
        self._order = order
        # A cursor belongs to one list. Its times may change, as with `--since 24h`.
        asked = replace(wanted, where=dict(sorted((wanted.where or {}).items())), since=None, until=None)
        text = repr(asked) + ("" if order == "newest" else order)
        self._asked = blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
        self._after = wanted.first_place(order) if after is None else _place_in(after, self._asked)
        self._left, self._size = checked_limit(limit), PAGE
        self._waiting: set[str] | None = None
        self.heads: dict[str, Entry] = {}  # the latest checkpoints of the last page, by thread

    def next(self) -> Plan[Sequence[ThreadInfo] | None]:
        """Return the next threads; `None` at the end. Two trips, or more for filters."""
        if self._left == 0:
            return None
        wanted = self._wanted
        if wanted.waiting and self._waiting is None:
            self._waiting = yield from find_waiting_threads(self._session)
        size = self._size if self._left is None or not wanted.is_empty else min(self._size, self._left)
        # To find the next page, PostgreSQL and files read every thread: long lists have fewer, larger pages.
        self._size = min(2 * self._size, _MOST)
        page: Sequence[Listed] = yield from self._session.store.read_threads(
            Page(self._after, size, self._marks, oldest_first=self._order == "oldest", tolerant=True)
        )
        if not page:
            return None
        last, _ = page[-1]
        self._after = last.updated_at, last.thread_id
        found = (yield from self._choose(page))[: self._left]
        if len(page) < size or wanted.ends_at(last, self._order):
            self._left = 0
        elif self._left is not None:
            self._left -= len(found)
        cursors = [json.dumps([info.updated_at, info.thread_id, self._asked], separators=(",", ":")) for info in found]
        names = [urlsafe_b64encode(cursor.encode()).decode().rstrip("=") for cursor in cursors]
        return [replace(info, cursor=name) for info, name in zip(found, names, strict=True)]

    def _choose(self, page: Sequence[Listed]) -> Plan[Sequence[ThreadInfo]]:
        chosen: list[Listed] = []
        for info, head in page:
            told, metadata = describe_thread(self._session, info, head)
            is_asked = self._waiting is None or info.thread_id in self._waiting
            if is_asked and self._wanted.fits(told, metadata):
                labels = (yield from read_labels(self._session, info.thread_id)) if self._wanted.label else ()
                if self._wanted.label in (None, *(label.name for label in labels)):
                    chosen.append((told, head))
        self.heads = {info.thread_id: head for info, head in chosen if head}
        doing = yield from read_all_doing(self._session, [head for _, head in chosen if head])
        found = []
        for info, head in chosen:
            if head and (it := doing.get(head.address)):
                status = status_of(it.source, it.next, it.asks, it.errors)
                error = error_class(it.errors[0]) if status == "failed" else ""
                info = replace(info, status=status, next=it.next, error=error)
            found += [info] if self._wanted.fits_doing(info) else []
        return found


def read_names_of(session: Session, wanted: ThreadFilter) -> Plan[list[str]]:
    """Return the ids of matching threads. A trip for each page."""
    if wanted.is_empty:  # includes threads without a visible checkpoint
        return (yield from read_names(session.store))
    names: list[str] = []
    pages = ThreadPages(session, None, wanted)
    while (page := (yield from pages.next())) is not None:
        names += [info.thread_id for info in page]
    return names


def read_all_doing(session: Session, heads: Sequence[Entry]) -> Plan[Mapping[Address, Doing]]:
    """Read the activity of threads at their heads; a damaged one is logged.

    One trip; if one is damaged, one for each.
    """
    try:
        return (yield from read_doing(session, heads)) if heads else {}
    except CorruptStore as error:
        if len(heads) == 1:
            _log.warning("a thread is listed without its status: %s", error)
            return {}
    found: dict[Address, Doing] = {}
    for head in heads:
        found |= yield from read_all_doing(session, [head])
    return found


def _place_in(cursor: str, asked: str) -> tuple[str, str]:
    try:
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        updated_at, thread_id, was_asked = json.loads(text)
        parts = [str(part) for part in (updated_at, thread_id)]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"after must be the cursor of a thread of this list (`info.cursor`): {cursor!r:.100}"
        ) from None
    if was_asked != asked:
        raise InvalidInput("after is the cursor of a list with other filters: use the same filters")
    return parts[0], parts[1]


@publish
class Usage(NamedTuple):
    """The usage of some threads.

    Attributes:
        threads: Number of threads.
        checkpoints: Number of their checkpoints.
        tokens: Input and output tokens of the calls that led to their latest checkpoints, as far as reported.
        cost: Cost of those calls, as far as reported; `None` if no call reported it.
        bytes: Stored bytes of headers, writes and rows; `None` if not measured.
    """

    threads: int = 0
    checkpoints: int = 0
    tokens: tuple[int, int] = (0, 0)
    cost: float | None = None
    bytes: int | None = None

    def add(self, info: ThreadInfo, nbytes: int | None = None) -> Usage:
        """Return the usage with one more thread, of `nbytes` bytes."""
        (given, written), (more_given, more_written) = self.tokens, info.tokens
        cost = self.cost if info.cost is None else (self.cost or 0.0) + info.cost
        tokens = given + more_given, written + more_written
        nbytes = self.bytes if nbytes is None else (self.bytes or 0) + nbytes
        return Usage(self.threads + 1, self.checkpoints + info.checkpoints, tokens, cost, nbytes)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**self._asdict(), "tokens": list(self.tokens)}


@publish
class ThreadCounts(NamedTuple):
    """Numbers and usage of threads.

    Attributes:
        all: The usage of all threads.
        statuses: Number of threads by status; `""` is for threads whose status cannot be read.
        owners: Usage by owner; `""` is for threads without an owner.
        days: Number of threads by the day of their last activity (UTC, ISO date), in order.
    """

    all: Usage
    statuses: Mapping[str, int]
    owners: Mapping[str, Usage]
    days: Mapping[str, int]

    def __str__(self) -> str:
        """Return statuses, a histogram of the last days, and the largest owners as text."""
        parts = [f"{self.statuses[status]:,} {status}" for status in get_args(Status) if status in self.statuses]
        lines = [": ".join([count_of(self.all.threads, "thread"), *([" · ".join(parts)] if parts else [])])]
        if not self.all.threads:
            return lines[0]
        most = max(self.days.values())
        lines += [usage_text(self.all), ""]
        for day, count in list(self.days.items())[-_DAYS:]:
            lines.append(f"{plain(day)}  {'█' * max(1, round(_WIDTH * count / most))} {count:,}")
        ordered = sorted(self.owners.items(), key=lambda each: (-sum(each[1].tokens), -each[1].threads, each[0]))
        if [*self.owners] != [""]:
            lines.append("")
            for owner, usage in ordered[:_OWNERS]:
                name = one_line(owner, _NAME) if owner else "(nobody)"
                lines.append(f"{name}  {count_of(usage.threads, 'thread')} · {usage_text(usage)}")
            if len(ordered) > _OWNERS:
                lines.append(f"… and {count_of(len(ordered) - _OWNERS, 'owner')} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return html.pre(str(self))


@publish
def count_threads(threads: Iterable[ThreadInfo]) -> ThreadCounts:
    """Count threads by status, owner and day: `count_threads(saver.threads())`."""
    everything, statuses, days = Usage(), Counter[str](), Counter[str]()
    owners: defaultdict[str, Usage] = defaultdict(Usage)
    for info in threads:
        everything = everything.add(info)
        owners[info.owner] = owners[info.owner].add(info)
        statuses[info.status] += 1
        days[day_of(info)] += 1
    return ThreadCounts(everything, dict(statuses), dict(owners), dict(sorted(days.items())))


def day_of(info: ThreadInfo) -> str:
    """Return the day of a thread's last activity: UTC, ISO date."""
    at = instant(info.updated_at)
    return info.updated_at[:10] if at is None else datetime.fromtimestamp(at / 1000, UTC).date().isoformat()


def usage_text(usage: Usage) -> str:
    """Return usage in a few words."""
    given, written = usage.tokens
    cost = [] if usage.cost is None else [f"cost {format_money(usage.cost)}"]
    tokens = [f"{given:,} + {written:,} tokens"] if given or written else []
    size = [] if usage.bytes is None else [format_size(usage.bytes)]
    return " · ".join([count_of(usage.checkpoints, "checkpoint"), *tokens, *cost, *size])
