"""Checks whether all records of a store are readable and consistent. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from langgraph_keel.engine import audit
from langgraph_keel.engine.checkpoints import describe_thread
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import ABSENT, SEALED, refuse_absent, row_index
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import marks_of, terms_of_entry, terms_of_writes, unpack_batches, unpack_header
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Graph, Kind, Listed, Page, Query, Ref, Row, Run, ThreadInfo
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import NODE_CACHE, Cells, CellTable
from langgraph_keel.errors import CorruptStore, KeelError, KeyMissing, NotAKeelStore, StoreError, ValueRefused
from langgraph_keel.retention.erase import Tell, each_stray
from langgraph_keel.retention.sweep import POLICIES

THREADS, ENTRIES, CELLS = 50, 50, 50
"""Page sizes: threads, entries and cells per request."""
ADVICE = "restore it from a backup; or `keel rewind` to an earlier checkpoint, or `keel delete` the thread"

_LIST = "the list of threads"
_DAMAGE = CorruptStore, KeyMissing
"""Errors of damaged records. Damage to the first byte can make a record look encrypted."""
Severity: TypeAlias = Literal["harmless", "repairable", "decide", "lost"]
"""Left by an interrupted operation; fixed by `repair`; to be decided by a person; lost even after a repair."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation of a store from what Keel writes."""

    kind: Severity
    thread_id: str | None
    path: str  # a file or directory; in a database, a part of it
    message: str
    advice: str = ""
    offset: int | None = None  # of a byte in the file

    @property
    def is_list(self) -> bool:
        """Whether a damaged thread prevented the listing of threads."""
        return self.path == _LIST


class StoreCheck:
    """Checks every header, row, write and cell of a store, thread by thread."""

    def __init__(
        self,
        session: Session,
        check_backend: Callable[[], Iterable[Finding]],
        index_advice: Callable[[str], str],
        tell: Tell,
    ) -> None:
        self._session = session
        self._check_backend = check_backend
        self._index_advice = index_advice
        self._tell = tell
        self._own: Sequence[Finding] | None = None
        self._tables = [table for hook in session.hooks.all for table in hook.tables]
        self._steps: Iterator[Plan[Sequence[Finding]]] = iter((self._check_shared(), self._check_strays()))
        self._after: tuple[str, str] | None = None
        self._is_tolerant = False
        self._has_more = True
        self._looked = 0

    def next(self) -> Plan[Sequence[Finding] | None]:
        """Return the backend's findings, then those of further threads, then `None`."""
        if self._own is None:
            self._own = yield Call(lambda: list(self._check_backend()))
            return self._own
        step = self._check_page() if self._has_more else next(self._steps, None)
        if step is None:
            return None
        try:
            found = yield from step
        except NotAKeelStore as error:  # on Redis, a key that all threads share contains other data
            self._has_more = False
            found = [Finding("lost", None, "records shared by all threads", str(error), "restore it from a backup")]
        self._tell(self._looked, None)
        # Skip threads that the backend already reported, because it knows the location of the damage.
        damage = [each for each in self._own if each.kind != "harmless"]
        threads, messages = {each.thread_id for each in damage}, {each.message for each in damage}
        new = [each for each in found if each.thread_id not in threads and each.message not in messages]
        return [each for each in new if not (damage and each.is_list)]

    def _check_page(self) -> Plan[Sequence[Finding]]:
        found: list[Finding] = []
        try:
            page = yield from self._read_page()
        except (CorruptStore, StoreError) as error:
            if not _is_damage(error) or self._is_tolerant:
                raise
            found.append(Finding("lost", None, _LIST, str(error), "restore it from a backup"))
            self._is_tolerant = True  # to check the other threads
            page = yield from self._read_page()
        heads = [head for _, head in page if head]
        if heads and all(head.header.startswith(SEALED) for head in heads):  # not checked without a key
            unpack_header(heads[0].header, self._session.codec, heads[0].address)
        odd: dict[str, tuple[ThreadInfo, list[Finding]]] = {}
        terms: dict[str, Sequence[str]] = {}
        for info, head in page:
            damage, disagreements, terms[info.thread_id] = yield from check_thread(
                self._session, info, head, self._tables
            )
            found += damage
            if disagreements:
                odd[info.thread_id] = info, disagreements
            self._looked += 1
        infos = {info.thread_id: info for info, _ in page}
        for name, missing in (yield from self._find_left_out(terms)).items():
            asked = ", ".join(f"{kind}={value!r}" for kind, _, value in (term.partition(":") for term in missing))
            message = f"lists of threads with {asked} do not contain it, but its latest checkpoint has these values"
            finding = Finding("decide", name, "the index of threads", message, self._index_advice(name))
            odd.setdefault(name, (infos[name], []))[1].append(finding)
        if odd:
            # Another process may have written concurrently: report only if the thread did not change.
            again = {info.thread_id: info for info, _ in (yield from self._read_page())}
            found += [each for name, (info, each_of) in odd.items() if again.get(name) == info for each in each_of]
        self._has_more = len(page) == THREADS
        self._after = (page[-1][0].updated_at, page[-1][0].thread_id) if page else None
        return found

    def _read_page(self) -> Plan[Sequence[Listed]]:
        page = Page(self._after, THREADS, tolerant=self._is_tolerant)
        return (yield from self._session.store.read_threads(page))

    def _find_left_out(self, terms: Mapping[str, Sequence[str]]) -> Plan[Mapping[str, Sequence[str]]]:
        """Return terms whose lists omit threads of the page. A trip for each term."""
        missing: dict[str, list[str]] = {}
        for term in sorted({term for of_thread in terms.values() for term in of_thread}):
            page = Page(self._after, THREADS, marks_of([term]), tolerant=True)
            listed = yield from self._session.store.read_threads(page)
            names = {info.thread_id for info, _ in listed}
            for name, of_thread in terms.items():
                if term in of_thread and name not in names:
                    missing.setdefault(name, []).append(term)
        return missing

    def _check_shared(self) -> Plan[Sequence[Finding]]:
        """Check the cells that all threads share, and the audit trail."""
        tables = [table for hook in self._session.hooks.all for table in hook.shared_tables]
        found = yield from check_cells(self._session, None, [*tables, NODE_CACHE, POLICIES])
        verdict = yield from audit.verify(self._session)
        return [*found, *(Finding("decide", None, "the audit trail", problem) for problem in verdict.problems)]

    def _check_strays(self) -> Plan[Sequence[Finding]]:
        """Check cells of threads without a checkpoint: stored elsewhere, or just started."""
        strays, found = list[str](), list[Finding]()
        yield from each_stray(self._session.store, strays.append)
        for name in strays:
            found += yield from check_cells(self._session, name, self._tables)
        return found


def check_thread(
    session: Session, info: ThreadInfo, listed: Entry | None, tables: Sequence[CellTable[Any]]
) -> Plan[tuple[list[Finding], list[Finding], Sequence[str]]]:
    """Return a thread's damage, its inconsistencies, and its terms in lists."""
    thread_id = info.thread_id
    found = yield from check_cells(session, thread_id, tables)
    try:
        graph = yield from session.store.read_graph(thread_id)
        read = yield from _check_values(session, thread_id, graph)
        lost_heads = yield from _find_lost_heads(session, graph)
    except (CorruptStore, StoreError) as error:
        if not _is_damage(error):
            raise
        return [*found, _lost(thread_id, "its checkpoints", error)], [], ()
    shown = {node.address for node in graph.nodes if not node.is_ghost}
    found += read.findings
    head = next((node for node in graph.nodes if node.is_head and not node.address.checkpoint_ns), None)
    latest = head.address.checkpoint_id if head else None
    counts = {
        f"its list counts {info.checkpoints:,} checkpoints, but {len(shown):,} exist": info.checkpoints != len(shown),
        f"a scan does not find {len(shown - read.seen):,} of its checkpoints": bool(shown - read.seen),
        f"its list names {info.latest} as the latest checkpoint, but it is {latest}": info.latest != latest,
    }
    counts |= lost_heads
    odd = [
        Finding("decide", thread_id, "its checkpoints", message, ADVICE) for message, is_so in counts.items() if is_so
    ]
    if listed is not None and not found and not odd:
        told, _ = describe_thread(session, info, listed)
        read.terms += [f"owner:{told.owner}"] * bool(told.owner) + [f"model:{model}" for model in told.models]
    return found, odd, read.terms


def _find_lost_heads(session: Session, graph: Graph) -> Plan[dict[str, bool]]:
    """Return whether readers find each namespace's latest checkpoint, one trip each."""
    heads = {node.address.checkpoint_ns: node.address.checkpoint_id for node in graph.nodes if node.is_head}
    lost: dict[str, bool] = {}
    for namespace in {node.address.checkpoint_ns: None for node in graph.nodes if not node.is_ghost}:
        read = yield from session.store.read_entry(Address(graph.nodes[0].address.thread_id, namespace))
        latest = read.entry.address.checkpoint_id if read else None
        is_lost = latest is None or latest != heads.get(namespace)
        lost[f"its latest checkpoint in namespace {namespace!r} is not found"] = is_lost
    return lost


class _Values:
    """The values of a thread. Each row is checked once."""

    def __init__(self, session: Session, graph: Graph) -> None:
        self._codec = session.codec
        self._heads = {node.address for node in graph.nodes if node.is_head}
        self._rows: set[tuple[str, str, int, int]] = set()
        self.seen: set[Address] = set()
        self.findings: list[Finding] = []
        self.terms: list[str] = []  # terms of the latest root checkpoint, by which lists must find the thread
        for node in graph.nodes:
            self._attempt(node.address, "", partial(unpack_header, node.header, self._codec, node.address))

    def check(self, found: Found) -> None:
        entry, address, known = found.entry, found.entry.address, len(self.findings)
        for channel, ref in entry.refs.items():
            rows = found.rows.get(channel, ()) if ref.kind is not Kind.INLINE else ()
            for row in rows:
                key = (address.checkpoint_ns, channel, row.lo, row.count)
                if key not in self._rows:
                    self._rows.add(key)
                    what = f"channel {channel!r}, items from {row.lo:,}"
                    self._attempt(address, what, partial(self._read, row, (row.lo, row.lo + row.count)))
            if ref.kind is not Kind.INLINE:
                self._attempt(address, f"channel {channel!r}", partial(_check_covered, ref, rows))
        self._attempt(address, "its tasks' writes", partial(self._read_writes, found))
        if address in self._heads and len(self.findings) == known:
            self._attempt(address, "its state", partial(self._read_state, found))

    def _read_writes(self, found: Found) -> None:
        for batch in found.batches:
            _check_there(batch.body)
        unpack_batches(found.batches, self._codec, found.entry.address)

    def _read_state(self, found: Found) -> None:
        # No term depends on a value of a class that cannot be imported.
        entry, codec = found.entry, self._codec.with_placeholders()
        values = Unpacker(codec).values(entry.refs, found.rows, entry.address)
        if not entry.address.checkpoint_ns:
            header = unpack_header(entry.header, codec, entry.address)
            writes = unpack_batches(found.batches, codec, entry.address)[0]
            state = {**header.checkpoint, "channel_values": {**header.inline, **values}}
            self.terms += terms_of_entry(state, header.metadata.get("source"))
            self.terms += terms_of_writes(((channel, value) for _, channel, value in writes), codec)

    def _read(self, row: Row, run: Run) -> None:
        _check_there(row.body)
        Unpacker(self._codec).items([run], [row])

    def _attempt(self, address: Address, what: str, read: Any) -> None:
        try:
            read()
        except ValueRefused:
            pass  # its class cannot be imported; its checksum is correct
        except _DAMAGE as error:
            place = f"checkpoint {address.checkpoint_id}" + (what and f", {what}")
            self.findings.append(_lost(address.thread_id, place, error))


def _check_there(body: bytes) -> None:
    """Raise if the body was kept in an object that is missing, even with placeholders."""
    if body.startswith(ABSENT):
        raise refuse_absent(body)


def _check_covered(ref: Ref, rows: Sequence[Row]) -> None:
    """Check that the rows contain all items of a value."""
    for lo, hi in ref.runs:
        while lo < hi:
            row = rows[row_index(rows, lo)]
            lo = row.lo + row.count


def _check_values(session: Session, thread_id: str, graph: Graph) -> Plan[_Values]:
    values = _Values(session, graph)
    page: Sequence[Entry] = yield from session.store.scan(Query(thread_id, limit=ENTRIES))
    while page:
        values.seen.update(entry.address for entry in page)
        for found in (yield from _read_values(session, page, values)):
            values.check(found)
        query = Query(thread_id, after=page[-1], limit=ENTRIES)
        page = (yield from session.store.scan(query)) if len(page) == ENTRIES else ()
    return values


def _read_values(session: Session, page: Sequence[Entry], values: _Values) -> Plan[Sequence[Found]]:
    """Read the values of entries; on damage, entry by entry, to find the damaged ones."""
    try:
        return (yield from session.store.read_values(page))
    except _DAMAGE:
        pass
    found: list[Found] = []
    for entry in page:
        try:
            found += yield from session.store.read_values([entry])
        except _DAMAGE as error:
            address = entry.address
            values.findings.append(_lost(address.thread_id, f"checkpoint {address.checkpoint_id}, its values", error))
    return found


def check_cells(session: Session, thread_id: str | None, tables: Sequence[CellTable[Any]]) -> Plan[list[Finding]]:
    """Return the unreadable records of a thread, or of those shared by all threads."""
    found: list[Finding] = []
    for table in tables:
        cells = Cells(session, table, thread_id)
        try:
            keys = [key for key, _ in (yield from cells.every_raw())]
            for start in range(0, len(keys), CELLS):
                found += _check_records(session, table, cells, (yield from cells.read_raw(keys[start : start + CELLS])))
        except (CorruptStore, StoreError) as error:
            if not _is_damage(error):
                raise
            found.append(_lost(thread_id, table.kind, error))
    return found


def _check_records(
    session: Session, table: CellTable[Any], cells: Cells[Any], read: Mapping[str, Any]
) -> Iterator[Finding]:
    for key, cell in read.items():
        try:
            needs_body = table.is_piece(key) or table.has_body(cells.keep(key, cell).record)
            if cell.body or needs_body:
                session.codec.open(cell.body)
        except _DAMAGE as error:
            if not isinstance(error.__cause__, ValueRefused):
                yield _lost(cells.shelf.thread_id, f"{table.kind} {key}", error)


def _is_damage(error: KeelError) -> bool:
    """Return whether an error is due to stored data."""
    return isinstance(error, (*_DAMAGE, NotAKeelStore)) or type(error) is StoreError


def _lost(thread_id: str | None, place: str, error: KeelError) -> Finding:
    return Finding("lost", thread_id, place, str(error), ADVICE if thread_id else "restore it from a backup")
