"""Measures a store by thread, channel and kind of record, and possible savings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappush, heappushpop
from typing import Any, TypeAlias

from langgraph_keel.blobs.store import LIMIT as LARGE
from langgraph_keel.display.text import count_of, format_size, one_line
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import HUGE_ROW, array_header, content_of, frame, is_full
from langgraph_keel.engine.lineage import instant
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Node, Ref, Row, Run, Writes
from langgraph_keel.engine.removal import live_after, measure
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, KeyMissing
from langgraph_keel.history.threads import ThreadFilter, read_names_of
from langgraph_keel.moving.items import Numbers
from langgraph_keel.moving.outline import WRITES, Shelves
from langgraph_keel.retention.policy import KEEP_LATEST
from langgraph_keel.retention.prune import Pruning, plan_prune

Tell: TypeAlias = Callable[[int, int | None], object]
_LARGEST = 20
"""Number of largest threads that are listed."""
_PAGE, _CELLS = 32, 20
"""Entries, and cells, read per request."""
KIND_NAMES = {
    "values": "state values",
    "writes": "pending writes",
    "tool": "tool calls",
    "hits": "tool cache hits",
    "secret": "key of the ledger",
    "sharers": "threads that share calls in doubt",
    "cache": "cached node results",
    "model": "model calls (kept by a prune)",
    "resume": "run claims",
    "turns": "waiting runs",
    "owners": "owners of removed checkpoints",
    "made": "creation times",
    "approvals": "approvals",
    "approvalsover": "closed approvals",
    "audit": "audit trail (hashes)",
    "trail": "audit trail (contents)",
    "audithead": "audit trail (end)",
    "moved": "import marks",
    "copied": "copy marks",
    "retention": "retention policies",
    "keyring": "data keys",
}
"""Display names for kinds of records; other kinds are shown under their own name."""
_BAR = 30
"""Width of the longest bar, in columns."""
_IDLE, _DAY = (30, 90, 365), 86_400_000
"""Idle periods, in days; and milliseconds per day."""


@publish
@dataclass(frozen=True, slots=True)
class StoreStats:
    """The bytes of a store by thread, channel and kind of record.

    Attributes:
        threads: Number of threads.
        nbytes: Bytes of all their records, and of shared records.
        kinds: Bytes by kind of record, the largest first: `"metadata"` (headers, with small values), `"values"`,
            `"writes"`, and each kind of cells, such as `"tool"` or `"archive"`.
        channels: Bytes of the values by channel, the largest first.
        largest: The largest threads, at most 20, and their bytes.
        prunable: Bytes that `saver.prune(..., "keep_latest")` of all these threads would free.
        packable: Approximate bytes that packing small rows will free, which happens as threads continue.
        large: Bytes of values and task writes over 64 KB each, which `blobs=` stores outside the database.
        history: Bytes of values that `"keep_latest"` would not need. No run reads them again; only looking back,
            forking and rewinding do.
        idle: Bytes of threads without a write for 30, 90 and 365 days, by number of days.
        failed: Threads that cannot be read, with the reason.
    """

    threads: int
    nbytes: int
    kinds: Mapping[str, int]
    channels: Mapping[str, int]
    largest: Mapping[str, int]
    prunable: int
    packable: int
    large: int
    history: int
    idle: Mapping[int, int]
    failed: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        fields = asdict(self)
        idle = {str(days): size for days, size in self.idle.items()}
        return {"bytes": fields.pop("nbytes"), **fields, "idle": idle}

    def __str__(self) -> str:
        """Return a text chart with a bar for each kind, channel and thread."""
        lines = [f"{count_of(self.threads, 'thread')}, {format_size(self.nbytes)}"]
        kinds = {KIND_NAMES.get(kind, kind): size for kind, size in self.kinds.items()}
        for title, sizes in (("kind", kinds), ("channel", self.channels), ("thread", self.largest)):
            names = {name: one_line(name, 30) for name in sizes}
            width = max([len(title), *map(len, names.values())])
            most = max([1, *sizes.values()])
            lines += ["", f"by {title}"]
            for name, size in [*sizes.items()][:_LARGEST]:
                bar = "█" * max(1, round(_BAR * size / most))
                lines.append(f"  {names[name]:{width}}  {format_size(size):>7}  {bar}")
        return "\n".join([*lines, "", *self.describe()])

    def describe(self) -> list[str]:
        """Return lines about history, idle threads, possible savings and large values."""
        idle = ", ".join(f"{format_size(size)} ({days} d)" for days, size in self.idle.items())
        return [
            f"Reclaimable history: {format_size(self.history)} (only needed to look back).",
            f"Inactive threads: {idle}.",
            f"Pruning each thread to its latest checkpoint would free {format_size(self.prunable)}. "
            f"Compaction (automatic) will free about {format_size(self.packable)}.",
            f"Values over 64 KB (candidates for blobs=): {format_size(self.large)}.",
        ]


def read_stats(session: Session, wanted: ThreadFilter, tell: Tell) -> Plan[StoreStats]:
    """Measure the matching threads; without a filter, also shared records."""
    names = yield from read_names_of(session, wanted)
    count = _Count(session)
    for number, name in enumerate(names):
        tell(number, len(names))
        try:
            yield from count.add_thread(name)
        except (CorruptStore, KeyMissing) as error:
            count.failed[name] = str(error)
    if wanted.is_empty:
        yield from count.add_cells(None)
    tell(len(names), len(names))
    return StoreStats(
        threads=len(names),
        nbytes=count.kinds.total(),
        kinds=dict(count.kinds.most_common()),
        channels=dict(count.channels.most_common()),
        largest={name: size for size, name in sorted(count.largest, key=lambda each: (-each[0], each[1]))},
        prunable=count.prunable,
        packable=count.packable,
        large=count.large,
        history=count.history,
        idle=count.idle,
        failed=count.failed,
    )


class _Count:
    """Adds up the sizes of threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.kinds, self.channels = Counter[str](), Counter[str]()
        self.largest: list[tuple[int, str]] = []
        self.prunable = self.packable = self.large = self.history = 0
        self.idle = dict.fromkeys(_IDLE, 0)
        self.failed: dict[str, str] = {}

    def add_thread(self, thread_id: str) -> Plan[None]:
        before, store, now = self.kinds.total(), self._session.store, self._session.milliseconds
        read, _, removal = yield from plan_prune(self._session, thread_id, Pruning(KEEP_LATEST, now, is_dry=True))
        graph, needed = read.graph, live_after(read.graph, removal)
        self.kinds["metadata"] += sum(len(node.header) for node in graph.nodes)
        seen: defaultdict[tuple[str, str], Numbers] = defaultdict(Numbers)
        loose: defaultdict[tuple[str, str], _Loose] = defaultdict(_Loose)
        for begin in range(0, len(graph.nodes), _PAGE):
            yield from self._add_rows(graph.nodes[begin : begin + _PAGE], seen, loose, needed)
        self.packable += sum(each.end() for each in loose.values())
        page: Sequence[Writes] | None = None
        while page is None or len(page) == WRITES:
            page = yield from store.list_writes(thread_id, page[-1] if page else None, WRITES)
            sizes = [len(each.batch.body) for each in page]
            self.kinds["writes"] += sum(sizes)
            self.large += sum(size for size in sizes if size > LARGE)
        yield from self.add_cells(thread_id)
        _, prunable = yield from measure(self._session, read, removal)
        self.prunable += prunable
        size = self.kinds.total() - before
        times = [at for node in graph.nodes if (at := instant(node.updated_at)) is not None]
        for days in _IDLE if times else ():
            self.idle[days] += size if now - max(times) > days * _DAY else 0
        (heappush if len(self.largest) < _LARGEST else heappushpop)(self.largest, (size, thread_id))

    def _add_rows(
        self,
        page: Sequence[Node],
        seen: defaultdict[tuple[str, str], Numbers],
        loose: defaultdict[tuple[str, str], _Loose],
        needed: Mapping[tuple[str, str], Sequence[Run]],
    ) -> Plan[None]:
        asked: list[Entry] = []
        for node in page:
            refs = {}
            for name, ref in node.refs.items():
                if missing := tuple(seen[node.address.checkpoint_ns, name].missing(ref.runs)):
                    refs[name] = Ref(ref.kind, missing)
            if refs:
                asked.append(Entry(node.address, node.parent, node.stamp, node.header, refs, node.run_id))
        found: Sequence[Found] = (yield from self._session.store.read_values(asked)) if asked else ()
        for each in found:
            for name, rows in each.rows.items():
                place = each.entry.address.checkpoint_ns, name
                for row in rows:
                    whole = row.lo, row.lo + row.count
                    if list(seen[place].missing([whole])) == [whole]:
                        seen[place].add(*whole, row.lo)
                        self._add_row(name, row, needed.get(place, ()))
                        self.packable += loose[place].add(row)

    def _add_row(self, channel: str, row: Row, needed: Sequence[Run]) -> None:
        size, end = len(row.body), row.lo + row.count
        self.kinds["values"] += size
        self.channels[channel] += size
        self.large += size if size > LARGE and row.count == 1 else 0
        shown = sum(max(0, min(hi, end) - max(lo, row.lo)) for lo, hi in needed)
        self.history += size * (row.count - min(shown, row.count)) // row.count

    def add_cells(self, thread_id: str | None) -> Plan[None]:
        """Add the cells of a thread, or the shared ones."""
        store = self._session.store
        for kind in (yield from store.list_kinds(thread_id)):
            shelf = Shelf(thread_id, kind)
            walk, keys, is_last = Shelves(store, shelf), list[str](), False
            while not is_last:
                found = yield from walk.next()
                is_last = found is None
                keys += [] if found is None else [found[0]]
                if keys and (is_last or len(keys) == _CELLS):
                    cells: Mapping[str, Cell] = yield from store.read_cells(shelf, keys)
                    self.kinds[kind] += sum(len(cell.header) + len(cell.body) for cell in cells.values())
                    keys = []


class _Loose:
    """Consecutive small rows of a log, which would be packed together."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._nbytes = 0

    def add(self, row: Row) -> int:
        """Add a row; return the bytes saved by packing the rows before it."""
        content = content_of(row)
        if is_full(row.count, len(content)) or (self._rows and self._rows[-1].lo + self._rows[-1].count != row.lo):
            saved = self.end()
            if not is_full(row.count, len(content)):
                self._rows, self._nbytes = [row], len(content)
            return saved
        self._rows.append(row)
        self._nbytes += len(content)
        count = sum(each.count for each in self._rows)
        return self.end() if is_full(count, self._nbytes) or self._nbytes > HUGE_ROW else 0

    def end(self) -> int:
        """Return the bytes saved by packing the collected rows."""
        rows, self._rows, self._nbytes = self._rows, [], 0
        if len(rows) < 2:
            return 0
        packed = frame(array_header(sum(row.count for row in rows)) + b"".join(map(content_of, rows)))
        return max(0, sum(len(row.body) for row in rows) - len(packed))
