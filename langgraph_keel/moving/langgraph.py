"""Imports threads of LangGraph's own savers, each completely or not at all.

A thread is first stored under a temporary name and compared with the source by a digest of each checkpoint. One atomic
request then copies it to its own name; it refuses if the thread exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.approvals.arrivals import note_arrival
from langgraph_keel.approvals.interrupts import interrupts_in
from langgraph_keel.approvals.questions import record_interrupt
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.checkpoints import get_tuple, put
from langgraph_keel.engine.config import Address, config_of, owner_in, thread_id_of
from langgraph_keel.engine.entries import as_lists, marks_of, pack_batch, terms_of_writes, waiting_tasks
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.leases import is_dead, this_holder
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.records import Occupied, Page, Query, Stamp
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import KeelSerializer, encode
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, StoreError, ThreadExists, ValueRefused
from langgraph_keel.moving.damage import UNREADABLE, say_unreadable
from langgraph_keel.moving.notes import LEFT, MovedThread, find_note, note
from langgraph_keel.moving.sources import Index, Reader, Spot, StoredCheckpoint, StoredWrite
from langgraph_keel.moving.values import Allows
from langgraph_keel.retention.owners import AT, COPY_TIMES

Outcome: TypeAlias = Literal["imported", "present", "updated", "deleted"]
Progress: TypeAlias = Callable[[int, int | None], object]

STAGED = "keel-moving-"
"""The prefix of temporary names during an import."""
_ENTRIES = 500

_CONFLICT = (
    "thread {0!r} differs from the source ({1}), and both stay unchanged: keep it, or delete it here (`keel delete`) "
    "and import the source's by its id (`--thread`)"
)


class _OwnerTerms(Hook):
    """Adds the search term for a thread's owner, which its metadata names."""

    def draft_put(self, session: Session, put: Put) -> None:
        if owner := owner_in(put.header.metadata):
            put.terms.append(f"owner:{owner}")


def arriving(session: Session) -> Session:
    """Return a session that stores imported checkpoints unchanged, without features."""
    return replace(session, hooks=Hooks([_OwnerTerms()]), memo=Memo(4, 1 << 26), on_conflict="raise", owner=None)


def allows_of(session: Session) -> Allows:
    """Return the predicate for classes that a saver may revive."""
    serde = session.codec.serde
    return (serde if isinstance(serde, KeelSerializer) else KeelSerializer()).allows


# -- one thread --------------------------------------------------------------------------------------------------------


def move_thread(session: Session, reader: Reader, thread_id: str, index: Index) -> bool:
    """Import a thread, unless it exists; return whether it was imported."""
    with _staged(session, reader, thread_id, index) as staged:
        return _take_name(session, staged, thread_id, index)


@contextmanager
def _staged(session: Session, reader: Reader, thread_id: str, index: Index) -> Iterator[str]:
    """Store and compare a thread under a temporary name; yield it, then delete that."""
    name = f"{STAGED}{this_holder()}-{session.new_token()}"
    try:
        run(_note_time(session, name), session.driver)
        _compare(session, name, thread_id, _put_all(session, reader, thread_id, index, name))
        yield name
    finally:
        session.memo.forget_thread(name)
        run(session.store.delete_thread(name), session.driver)


def _put_all(session: Session, reader: Reader, thread_id: str, index: Index, name: str) -> Mapping[Spot, bytes]:
    """Store all checkpoints of a thread under another name; return their digests."""
    digests: dict[Spot, bytes] = {}
    for stored in reader.read_checkpoints(thread_id, index.in_order()):
        ns, id = stored.spot
        parent = index.parents[stored.spot]
        config = config_of(Address(name, ns, parent), "named")
        checkpoint, metadata = cast(Any, {**stored.checkpoint, "id": id}), cast(Any, stored.metadata)
        versions = stored.checkpoint.get("channel_versions") or {}
        try:
            run(put(session, config, checkpoint, metadata, [*versions]), session.driver)
            if stored.spot not in digests:
                run(_put_writes(session, Address(name, ns, id), stored.writes), session.driver)
        except ValueRefused as error:
            where = error.where.replace(name, thread_id)
            raise type(error)(error.type_name, error.reason, error.path, where) from error
        digests[stored.spot] = digest_of(stored, parent)
    if digests.keys() != index.parents.keys():
        raise CorruptStore(f"thread {thread_id!r} changed in the source during the import: import it again")
    return digests


def _put_writes(session: Session, address: Address, writes: Sequence[StoredWrite]) -> Plan[None]:
    for (task_id, path), group in groupby(writes, lambda each: (each.task_id, each.task_path)):
        own = [*group]
        pairs = [(each.channel, each.value) for each in own]
        places = [each.index for each in own]
        batch = pack_batch(pairs, task_id, path, session.codec, address, places=places)
        if not address.checkpoint_ns:
            batch = replace(batch, terms=marks_of(terms_of_writes(pairs, session.codec)))
        yield from session.store.write_batch(address, batch)


def _compare(session: Session, name: str, thread_id: str, digests: Mapping[Spot, bytes]) -> None:
    """Raise `CorruptStore` if a stored thread differs from the source."""
    session.memo.forget_thread(name)  # so that the stored values are compared
    for spot, digest in digests.items():
        found = read_at(session, name, spot)
        if found is None or digest_of_tuple(found) != digest:
            place = f"thread {thread_id!r}, checkpoint {spot[1]}" + (f", namespace {spot[0]!r}" if spot[0] else "")
            raise CorruptStore(f"{place}: the stored checkpoint differs from the source: the thread was not imported")


def read_at(session: Session, thread_id: str, spot: Spot) -> CheckpointTuple | None:
    """Return a checkpoint as the saver returns it."""
    return run(get_tuple(session, config_of(Address(thread_id, *spot), "named")), session.driver)


def digest_of(stored: StoredCheckpoint, parent: str | None) -> bytes:
    """Return a digest of a checkpoint in the source."""
    writes = [(each.task_id, each.channel, each.value) for each in stored.writes]
    return _digest(stored.spot[1], parent, stored.checkpoint, stored.metadata, writes)


def digest_of_tuple(found: CheckpointTuple) -> bytes:
    """Return a digest of a checkpoint that a saver returned."""
    parent = found.parent_config["configurable"].get("checkpoint_id") if found.parent_config else None
    id = found.config["configurable"]["checkpoint_id"]
    return _digest(id, parent, found.checkpoint, found.metadata, found.pending_writes or ())


def _digest(id: str, parent: str | None, checkpoint: Any, metadata: Any, writes: Iterable[Any]) -> bytes:
    parts = sorted((key, value) for key, value in checkpoint.items() if key not in ("id", "channel_values"))
    values = sorted(checkpoint["channel_values"].items(), key=lambda item: item[0])
    whole = [id, parent, [*map(list, parts)], [*map(list, values)], as_lists(metadata), [list(each) for each in writes]]
    return blake2b(encode(whole), digest_size=16).digest()


def _take_name(session: Session, staged: str, thread_id: str, index: Index) -> bool:
    """Copy a compared thread to its own name, with its requests and notes."""
    run(_note_time(session, thread_id), session.driver)
    outcome = run(session.store.copy_thread(staged, thread_id), session.driver)
    if isinstance(outcome, Occupied):
        return False
    if run(find_note(session, thread_id), session.driver) == LEFT:
        # The thread was deleted during the import. A deletion stores its note first, so one of both sees the other.
        run(session.store.delete_thread(thread_id), session.driver)
        return False
    finish(session, thread_id, index)
    return True


def _note_time(session: Session, thread_id: str) -> Plan[None]:
    """Note when a thread was imported."""
    # By the times of its checkpoints alone, a `ttl` would delete it immediately.
    yield from Cells(session, COPY_TIMES, thread_id).swap(AT, None, session.now)


def finish(session: Session, thread_id: str, index: Index) -> None:
    """Record an imported thread's questions, and the import note. May be repeated."""
    session.memo.forget_thread(thread_id)
    found = run(get_tuple(session, config_of(Address(thread_id), "head")), session.driver)
    writes = (found.pending_writes if found else None) or []
    waiting = waiting_tasks(writes)
    for task_id, channel, value in writes:
        if found and channel == INTERRUPT and task_id in waiting:
            address = Address(thread_id, "", found.config["configurable"]["checkpoint_id"])
            for interrupt in interrupts_in(value):
                recorded = record_interrupt(session, address, interrupt, task_id, owner_in(found.metadata))
                run(recorded, session.driver)
    run(note_arrival(session, thread_id), session.driver)
    run(note(session, thread_id, MovedThread(is_whole=True, fingerprint=index.fingerprint)), session.driver)


# -- all threads -------------------------------------------------------------------------------------------------------


@publish
@dataclass(slots=True)
class ImportReport:
    """The result of an import.

    Attributes:
        threads: How many threads were `"imported"` (or would be), were already `"present"`, were `"updated"` because
            they continued in the source, were `"deleted"` here after their import and stay so, or `"failed"`.
        checkpoints: How many checkpoints were stored.
        failed: Why threads could not be imported, by thread id; the first thousand.
        is_dry: Whether nothing was written.
    """

    threads: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    is_dry: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        names = ("imported", "present", "updated", "deleted", "failed")
        counts = {name: self.threads[name] for name in names}
        return {"threads": counts, "checkpoints": self.checkpoints, "failed": self.failed, "done": not self.is_dry}


def import_threads(
    session: Session,
    reader: Reader,
    threads: Sequence[str] | None,
    *,
    dry_run: bool,
    on_progress: Progress,
    is_cut_off: Callable[[], bool] = lambda: False,
) -> ImportReport:
    """Import threads one after the other; an interrupted import can be run again."""
    report = ImportReport(is_dry=dry_run)
    if not dry_run:
        _sweep(session)
    total = reader.count_threads() if threads is None else len(threads)
    for done, thread_id in enumerate(reader.list_threads() if threads is None else threads, 1):
        try:
            outcome: str = _import_thread(session, reader, thread_id, report, is_named=threads is not None)
        except (*UNREADABLE, KeelError) as error:
            if isinstance(error, StoreError) and error.code not in ("corrupt_store", "seal_broken"):
                raise
            outcome = "failed"
            if len(report.failed) < 1_000:
                report.failed[str(thread_id)] = say_unreadable(thread_id, error)
        report.threads[outcome] += 1
        on_progress(done, total)
        if is_cut_off():
            break
    return report


def _import_thread(
    session: Session, reader: Reader, thread_id: str, report: ImportReport, *, is_named: bool
) -> Outcome:
    """Import a thread if necessary; a deleted one only if it is named explicitly."""
    thread_id_of(thread_id)
    noted, is_late = run(find_note(session, thread_id), session.driver), False
    with reader.moment():
        index = reader.read_index(thread_id)
        if not index.parents:
            raise InvalidInput(f"the source has no thread {thread_id!r}")
        here, last = run(_read_spots(session, thread_id), session.driver)
        there, known = set(index.parents), noted if noted and noted.is_whole else None
        if known and not here and not is_named:
            return "deleted"
        if known and here and known.fingerprint == index.fingerprint:
            return "present"
        if here > there or (here == there and not known):
            _compare_all(session, reader, thread_id, index)
            if not report.is_dry:
                finish(session, thread_id, index)
            return "present"
        if here - there or (here and not noted):
            differs = f"{count_of(len(here ^ there), 'checkpoint')} in one of them only"
            raise ThreadExists(_CONFLICT.format(thread_id, differs))
        report.checkpoints += len(index.parents)
        if report.is_dry:
            for _ in reader.read_checkpoints(thread_id, index.in_order()):
                pass
        elif here:
            _replace(session, reader, thread_id, index, last, noted)
        else:
            if known:  # deleted here, but named explicitly
                run(note(session, thread_id, MovedThread(is_whole=False, fingerprint="")), session.driver)
            is_late = not move_thread(session, reader, thread_id, index)
    if is_late:  # it was imported concurrently, as with `moving_from`
        report.checkpoints -= len(index.parents)
        return _import_thread(session, reader, thread_id, report, is_named=is_named)
    return "updated" if here else "imported"


def _read_spots(session: Session, thread_id: str) -> Plan[tuple[set[Spot], Stamp | None]]:
    """Return the checkpoints here, and the last one's stamp. A trip for each 500."""
    spots: set[Spot] = set()
    first: Stamp | None = None
    query: Query | None = Query(thread_id, limit=_ENTRIES)
    while query is not None:
        page = yield from session.store.scan(query)
        first = page[0].stamp if page and first is None else first
        spots.update((each.address.checkpoint_ns, str(each.address.checkpoint_id)) for each in page)
        query = replace(query, after=page[-1]) if len(page) == _ENTRIES else None
    return spots, first


def _compare_all(session: Session, reader: Reader, thread_id: str, index: Index) -> None:
    """Raise `ThreadExists` if the thread here lacks or changes a source checkpoint."""
    for stored in reader.read_checkpoints(thread_id, index.parents):
        found = read_at(session, thread_id, stored.spot)
        if found is None or digest_of_tuple(found._replace(pending_writes=None)) != digest_of(
            replace(stored, writes=()), index.parents[stored.spot]
        ):
            raise ThreadExists(_CONFLICT.format(thread_id, f"checkpoint {stored.spot[1]} is different"))


def _replace(
    session: Session, reader: Reader, thread_id: str, index: Index, last: Stamp | None, noted: MovedThread | None
) -> None:
    """Import again a thread that has continued in the source, but not here."""
    with _staged(session, reader, thread_id, index) as staged:
        # If interrupted from here on, the thread counts as not imported yet.
        run(note(session, thread_id, MovedThread(is_whole=False, fingerprint="")), session.driver)
        session.memo.forget_thread(thread_id)
        is_gone = run(session.store.delete_thread(thread_id, last), session.driver)
        if not is_gone or not _take_name(session, staged, thread_id, index):
            if noted is not None:
                run(note(session, thread_id, noted), session.driver)
            raise ThreadExists(f"thread {thread_id!r} continued here during the import: both stay unchanged")


def _sweep(session: Session) -> None:
    """Delete partial imports of dead processes on this machine."""
    for name in [name for name in list_threads(session, tolerant=True) if name.startswith(STAGED)]:
        if is_dead(name.removeprefix(STAGED).rpartition("-")[0]):
            run(session.store.delete_thread(name), session.driver)


def list_threads(session: Session, *, tolerant: bool = False) -> Iterator[str]:
    """Yield the ids of all threads that have a checkpoint. Blocks."""
    after: tuple[str, str] | None = None
    while True:
        page = run(session.store.read_threads(Page(after, _ENTRIES, tolerant=tolerant)), session.driver)
        yield from (info.thread_id for info, _ in page)
        if len(page) < _ENTRIES:
            return
        after = page[-1][0].updated_at, page[-1][0].thread_id
