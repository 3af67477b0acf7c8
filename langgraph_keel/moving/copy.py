"""Copies threads to another store in two passes, resumable and while runs write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from langgraph_keel.approvals.arrivals import note_arrival, note_decisions
from langgraph_keel.display.text import count_of, format_size
from langgraph_keel.engine.cells import OBJECTS, Cell, Shelf
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.listing import read_names
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.errors import CorruptStore, InvalidInput, KeyMissing, NotFound, ThreadExists
from langgraph_keel.history.threads import ThreadFilter, read_names_of
from langgraph_keel.keys.datakeys import KIND, STORE
from langgraph_keel.moving.cells import CHAIN, CellCopy, Moved
from langgraph_keel.moving.damage import UNREADABLE, say_unreadable
from langgraph_keel.moving.marks import COPIES, KEY, PROBE, Mark
from langgraph_keel.moving.outline import Outline, read_cells_digest, read_outline
from langgraph_keel.moving.pair import SOURCE, TARGET, on
from langgraph_keel.moving.thread import ThreadChanged, ThreadCopy
from langgraph_keel.tools.copies import find_open, find_unused, note_brought
from langgraph_keel.tools.keys import HashSecret

Tell: TypeAlias = Callable[[int, int | None, int], object]
"""Called with threads processed, total threads, and bytes copied."""
Mode: TypeAlias = Literal["copy", "look", "verify"]
_ROUNDS = 3
"""Maximum attempts to copy a changing thread in each pass."""
_RESERVED = {OBJECTS.kind, STORE.kind, KIND}
"""Kinds of cells of the store itself: its list of objects, and its keys."""


@publish
@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of a copy.

    Attributes:
        copied: Number of threads that were copied or updated (or would be, or are missing or differ).
        same: Number of threads that were already up to date.
        nbytes: Bytes of copied records: checkpoints, rows of values, writes and cells.
        exists: Threads that exist in the target with different content, by id, with the reason.
        failed: Threads that cannot be read, or whose tool calls the target would not recognize, with the reason. The
            empty id is for threads that cannot be listed.
        changing: Threads that changed during each attempt: copy again when the source is idle. The empty id is for
            shared records.
        differs: Threads that differ in the target, with the difference; only with `verify`. The empty id is for shared
            records.
        kept: Kinds and keys of shared records that differ in the target, which keeps its own.
        gone: Copies whose threads no longer exist in the source; those deleted during this copy are deleted too.
        left: Kinds of shared records that were not copied, and `"tenants"` if there are any: use `shared=True`.
        mode: `"copy"`, `"look"` (nothing was written) or `"verify"` (only compared).
    """

    copied: int = 0
    same: int = 0
    nbytes: int = 0
    exists: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    changing: Sequence[str] = ()
    differs: Mapping[str, str] = field(default_factory=dict)
    kept: Sequence[str] = ()
    gone: Sequence[str] = ()
    left: Sequence[str] = ()
    mode: Mode = "copy"

    @property
    def is_done(self) -> bool:
        """Whether the target is complete, and was compared with the source."""
        left = self.exists or self.failed or self.changing or self.differs or self.kept
        return not left and (self.mode == "copy" or not self.copied)

    def plus(self, other: CopyReport, tenant: str) -> CopyReport:
        """Return the sum of this report and a tenant's."""

        def named(found: Mapping[str, str]) -> dict[str, str]:
            return {f"{tenant}/{name}": why for name, why in found.items()}

        return CopyReport(
            self.copied + other.copied,
            self.same + other.same,
            self.nbytes + other.nbytes,
            {**self.exists, **named(other.exists)},
            {**self.failed, **named(other.failed)},
            [*self.changing, *(f"{tenant}/{name}" for name in other.changing)],
            {**self.differs, **named(other.differs)},
            [*self.kept, *(f"{tenant}/{name}" for name in other.kept)],
            [*self.gone, *(f"{tenant}/{name}" for name in other.gone)],
            self.left,
            self.mode,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        fields = asdict(self)
        return {"bytes": fields.pop("nbytes"), **fields, "is_done": self.is_done}

    def __str__(self) -> str:
        """Return a summary in one line."""
        did = {"copy": "copied", "look": "to copy", "verify": "missing or different"}[self.mode]
        they = "is" if self.same == 1 else "are"
        counts = [f"{count_of(self.copied, 'thread')} {did}", f"{self.same:,} {they} up to date"]
        counts += [f"{format_size(self.nbytes)} of records"] if self.mode == "copy" else []
        counts += [
            f"{count_of(len(found), noun)} {what}"
            for found, noun, what in (
                (self.exists, "thread", "with different content in the target"),
                (self.failed, "thread", "that cannot be copied"),
                (self.changing, "thread", "still changing"),
                (self.differs, "thread", "with differences"),
                (self.kept, "record", "that the target keeps"),
            )
            if found
        ]
        return ", ".join(counts)


def check_mode(mode: object) -> None:
    """Raise `InvalidInput` for an unknown mode."""
    if not (isinstance(mode, str) and mode in get_args(Mode)):
        raise InvalidInput(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r:.100}")


def copy_store(
    source: Session,
    target: Session,
    thread_ids: Collection[str] | None,
    wanted: ThreadFilter,
    mode: Mode,
    tell: Tell,
    origin: str,
    *,
    shared: bool,
) -> Plan[CopyReport]:
    """Copy threads; see `MovingMethods.copy_to`."""
    # With shared records and all threads, also those of all tenants.
    report = yield from StoreCopy(source, target, mode, tell, origin, shared=shared).run(thread_ids, wanted)
    is_whole = thread_ids is None and wanted.is_empty and not source.tenant and not target.tenant
    tenants = (yield from on(SOURCE, read_tenants(source.store))) if is_whole else ()
    if tenants and not shared:
        return replace(report, left=[*report.left, "tenants"])
    for tenant in tenants:
        theirs, ours = (replace(each, store=each.store.of_tenant(tenant), tenant=tenant) for each in (source, target))
        copy = StoreCopy(theirs, ours, mode, tell, origin, shared=shared)
        report = report.plus((yield from copy.run(None, wanted)), tenant)
    return report


class StoreCopy:
    """Copies threads from one store to another; trusts the source if `shared`."""

    def __init__(self, source: Session, target: Session, mode: Mode, tell: Tell, origin: str, *, shared: bool) -> None:
        self._source, self._target, self._mode, self._tell = source, target, mode, tell
        self._origin, self._shared = origin, shared
        hooks = (*source.hooks.all, *target.hooks.all)
        own = [table for hook in hooks for table in hook.tables]
        common = [table for hook in hooks for table in hook.shared_tables]
        self._known = {table.kind for table in own}
        self._never = _RESERVED | {table.kind for table in (*own, *common) if table.moves == "never"}
        self._needed = {table.kind for table in common if table.moves == "always"}
        self._whole = {table.kind for table in common if table.moves == "whole"}
        self._belonging = {table.kind: table for table in common if table.thread_of}
        self._left: set[str] = set()
        self._thread = ThreadCopy(source.store, target.store, self._takes, source.codec.limit, self._count)
        self._marks: dict[str | None, Cells[Mark]] = {}
        self._done: dict[str, Literal["copied", "same", "gone"]] = {}
        self._exists: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._differs: dict[str, str] = {}
        self._changing: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._own: set[str] = set()
        self._moved = Moved()
        self._nbytes = self._looked = 0
        self._total: int | None = None
        self._loses_calls = False

    def _takes(self, kind: str) -> bool:
        """Return whether a thread's cells of this kind are copied with it."""
        if kind in self._never:
            return False
        if not (self._shared or kind in self._known):
            self._left.add(str(kind))
            return False
        return True

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._tell(self._looked, self._total, self._nbytes)

    def run(self, thread_ids: Collection[str] | None, wanted: ThreadFilter) -> Plan[CopyReport]:
        """Copy all matching threads, or those of them with the given ids."""
        is_whole = thread_ids is None and wanted.is_empty
        if self._mode == "copy":
            yield from self._check_apart()
        names = yield from self._read_names(thread_ids, wanted)
        passes = 2 if self._mode == "copy" else 1
        is_ours = is_whole and self._shared and self._mode == "copy" and (yield from self._begin_shared())
        self._loses_calls = yield from self._lacks_secret(is_ours)
        for number in range(passes):
            if number:
                names = list(dict.fromkeys([*names, *(yield from self._read_names(thread_ids, wanted, again=True))]))
            self._total, self._looked = passes * len(names), number * len(names)
            for name in names:
                if name not in self._exists and name not in self._failed:
                    yield from self._try(name, is_last=number == passes - 1)
                self._looked += 1
                self._tell(self._looked, self._total, self._nbytes)
            yield from self._copy_shared(is_whole, is_ours, number == passes - 1)
            if self._mode == "copy":
                yield from on(TARGET, note_decisions(self._target, self._done.keys() - self._own))
        if is_ours:
            have: bytes = yield from on(TARGET, read_cells_digest(self._target.store, None, self._is_copied))
            yield from self._mark(None, have.hex())
        if is_whole:
            # Copies in the target whose threads no longer exist in the source.
            there: list[str] = yield from on(TARGET, read_names(self._target.store))
            for name in sorted({*there} - {*names}):
                if (yield from self._read_mark(name)) is not None:
                    self._gone[name] = None
        return self._report()

    def _report(self) -> CopyReport:
        done = list(self._done.values())
        return CopyReport(
            copied=done.count("copied"),
            same=done.count("same"),
            nbytes=self._nbytes,
            exists=self._exists,
            failed=self._failed,
            changing=[*self._changing],
            differs=self._differs,
            kept=self._moved.kept,
            gone=sorted(self._gone),
            left=sorted(self._left),
            mode=self._mode,
        )

    def _read_names(self, asked: Collection[str] | None, wanted: ThreadFilter, again: bool = False) -> Plan[list[str]]:
        if asked is None or not wanted.is_empty:
            try:
                found = yield from on(SOURCE, read_names_of(self._source, wanted))
            except CorruptStore as error:
                self._failed[""] = f"a thread that cannot be listed was not copied: {error}"
                found = yield from on(SOURCE, read_names(self._source.store, passes=True))
            return [name for name in found if asked is None or name in asked]
        listed: list[str] = []
        for name in () if again else dict.fromkeys(asked):
            if (yield from self._look(SOURCE, name)).is_empty:
                raise NotFound(f"the source has no thread {name!r}")
            listed.append(name)
        return listed

    def _look(self, side: Literal[0, 1], thread_id: str) -> Plan[Outline]:
        store = (self._source, self._target)[side].store
        limit = self._source.codec.limit
        found: Outline = yield from on(side, read_outline(store, thread_id, self._takes, limit))
        return found

    def _check_apart(self) -> Plan[None]:
        """Check with a probe that source and target are different stores. Three trips."""
        cells = Cells(self._target, COPIES, None)
        token = self._target.new_token()
        yield from on(TARGET, cells.overwrite_raw(PROBE, cells.cell(Mark("", self._now()), token=token)))
        found = yield from on(SOURCE, Cells(self._source, COPIES, None).read_raw([PROBE]))
        yield from on(TARGET, cells.remove({PROBE: token}))
        if PROBE in found and found[PROBE].token == token:
            raise InvalidInput("the source and the target are the same store: nothing was copied")

    def _now(self) -> str:
        return self._target.clock().isoformat(timespec="seconds")

    # -- threads -----------------------------------------------------------------------------------------------

    def _try(self, thread_id: str, *, is_last: bool) -> Plan[None]:
        """Copy or compare a thread, and note the outcome."""
        try:
            for _ in range(_ROUNDS):
                try:
                    if (yield from self._bring(thread_id, is_last)):
                        self._changing.pop(thread_id, None)
                        return
                except ThreadChanged:
                    pass
            self._changing[thread_id] = None
        except ThreadExists as error:
            self._exists[thread_id] = str(error)
        except KeyMissing as error:
            if not self._done:
                raise  # the source was opened without keys, so all threads would fail
            self._failed[thread_id] = str(error)
        except UNREADABLE as error:
            self._failed[thread_id] = say_unreadable(thread_id, error)

    def _bring(self, thread_id: str, is_last: bool) -> Plan[bool]:
        """Update a thread in the target; return whether it is the same now."""
        # In the last pass, its values are compared too.
        want = yield from self._look(SOURCE, thread_id)
        if not want.is_empty:
            thread_id_of(thread_id)
        have = yield from self._look(TARGET, thread_id)
        if self._mode == "copy":
            if want.is_empty:
                return (yield from self._follow(thread_id, have))
        elif want.is_empty:
            return True
        if self._mode != "verify" and (yield from self._is_own(thread_id, want, have)):
            self._done[thread_id] = "same"
            return (yield from self._look(SOURCE, thread_id)).digest == want.digest
        if self._loses_calls and self._mode != "verify" and want.digest != have.digest:
            yield from self._check_calls(thread_id, want)
        if self._mode == "copy":
            have = yield from self._copy(thread_id, want, have)
        self._done.setdefault(thread_id, "same")
        if want.digest == have.digest and not (is_last and self._mode != "look"):
            return True
        if self._mode == "look":
            self._done[thread_id] = "copied"
            return True
        differs = yield from self._thread.find_difference(thread_id, want, have)
        if self._mode == "verify" and differs is not None:
            self._done[thread_id] = "copied"
            self._differs[thread_id] = differs
            return True
        # The comparison is valid if the source's thread did not change since its outline was read.
        is_settled = (yield from self._look(SOURCE, thread_id)).digest == want.digest
        if differs is None or not is_settled:
            return differs is None and is_settled
        if want.digest == have.digest == (yield from self._look(TARGET, thread_id)).digest:
            raise CorruptStore(f"thread {thread_id!r}: the target does not return the copied data: {differs}")
        return False

    def _is_own(self, thread_id: str, want: Outline, have: Outline) -> Plan[bool]:
        """Return whether the target's thread is not a copy, but has the same content."""
        try:
            if want.digest != have.digest:
                yield from self._check_free(thread_id, want, have)
        except ThreadExists:
            # For example, both stores imported it from a third one: times and tokens of the notes then differ.
            if (yield from self._thread.find_difference(thread_id, want, have)) is not None:
                raise
            self._own.add(thread_id)
            return True
        return False

    def _lacks_secret(self, is_ours: bool) -> Plan[bool]:
        """Return whether the target will lack the source's ledger secret. Two trips."""
        ours = yield from on(TARGET, HashSecret(None).read(self._target))
        try:
            theirs = yield from on(SOURCE, HashSecret(None).read(self._source))
        except CorruptStore:
            return True
        return theirs not in (None, ours) and not (self._shared and (ours is None or is_ours))

    def _check_calls(self, thread_id: str, want: Outline) -> Plan[None]:
        """Refuse a thread if its next run would repeat tool calls in the target."""
        session = self._source.with_placeholders()  # no class of the application is needed
        if calls := (yield from on(SOURCE, find_unused(session, thread_id, want.graph))):
            raise InvalidInput(
                f"thread {thread_id!r}: its next run would repeat these tool calls: "
                f"{', '.join(sorted({str(call.tool) for call in calls}))}. The target lacks the secret of the ledger, "
                "which is needed to find them. Copy with shared=True (--with-shared) into a store without its own "
                "secret, or let the run end first"
            )

    def _copy(self, thread_id: str, want: Outline, have: Outline) -> Plan[Outline]:
        if want.digest == have.digest:
            return have
        yield from self._mark(thread_id, "")
        if not have.begins(want):
            # Records of the source were removed or stored again, so the copy's order and numbers are outdated.
            yield from on(TARGET, self._target.store.delete_thread(thread_id))
            yield from self._mark(thread_id, "")
            have = yield from self._look(TARGET, thread_id)
        session = self._source.with_placeholders()  # no class of the application is needed
        calls = yield from on(SOURCE, find_open(session, thread_id))
        yield from on(TARGET, note_brought(self._target, thread_id, calls, self._origin or "another store"))
        yield from self._thread.add(thread_id, want, have)
        self._done[thread_id] = "copied"
        have = yield from self._look(TARGET, thread_id)
        yield from on(TARGET, note_arrival(self._target, thread_id))
        yield from self._mark(thread_id, have.digest.hex())
        return have

    def _check_free(self, thread_id: str, want: Outline, have: Outline) -> Plan[None]:
        """Raise `ThreadExists` if the target's thread is not an unused copy of this one."""
        if have.is_empty:
            return
        mark = yield from self._read_mark(thread_id)
        if mark is None:
            raise ThreadExists(f"thread {thread_id!r}: the target has a different thread with this id")
        if mark.digest not in ("", have.digest.hex()):
            raise ThreadExists(f"thread {thread_id!r}: the target has a copy from {mark.at} that was used since")
        if mark.source != self._origin and have.graph.nodes and not have.is_akin_to(want):
            raise ThreadExists(f"thread {thread_id!r}: the target has a different thread, copied from {mark.source!r}")

    def _follow(self, thread_id: str, have: Outline) -> Plan[bool]:
        """Delete the copy of a thread that was deleted from the source during the copy."""
        # A source also lists names without a thread (`Store.list_strays`); these have no copy.
        if not have.is_empty and (yield from self._read_mark(thread_id)) is not None:
            yield from self._check_free(thread_id, have, have)
            yield from on(TARGET, self._target.store.delete_thread(thread_id))
            self._gone[thread_id] = None
        self._done[thread_id] = "gone"
        return True

    def _read_mark(self, thread_id: str | None) -> Plan[Mark | None]:
        kept = yield from on(TARGET, Cells(self._target, COPIES, thread_id).find(KEY))
        return kept.record if kept else None

    def _mark(self, thread_id: str | None, digest: str) -> Plan[None]:
        cells = Cells(self._target, COPIES, thread_id)
        yield from on(TARGET, cells.overwrite_raw(KEY, cells.cell(Mark(digest, self._now(), self._origin))))

    # -- shared records ----------------------------------------------------------------------------------------

    def _begin_shared(self) -> Plan[bool]:
        """Return whether the target's shared records are an unused copy, so replaceable."""
        have: bytes = yield from on(TARGET, read_cells_digest(self._target.store, None, self._is_copied))
        if have:
            mark = yield from self._read_mark(None)
            if mark is None or mark.digest not in ("", have.hex()):
                return False
        yield from self._mark(None, "")
        return True

    def _copy_shared(self, is_whole: bool, is_ours: bool, is_last: bool) -> Plan[None]:
        """Copy the shared records that belong to the threads, and all with `shared=True`."""

        def is_meant_of(kind: str) -> Callable[[str, Cell], bool]:
            if (table := self._belonging.get(kind)) is not None and not self._shared:
                return lambda key, cell: cell.origin in self._done and self._belongs(table, key, cell)
            if kind in self._needed:
                return lambda key, cell: True
            return lambda key, cell: (
                cell.origin in self._done
                or (is_whole and cell.origin not in self._exists and cell.origin not in self._failed)
            )

        def may_replace(cell: Cell) -> bool:
            return is_ours or (cell.origin in self._done and cell.origin not in self._own)

        kinds = yield from self._shared_kinds(is_whole)
        if self._mode == "look":
            return
        self._moved = Moved()
        cells = CellCopy(self._source.store, self._target.store, self._moved)
        if self._mode == "copy":
            for kind in kinds:
                yield from cells.join(Shelf(None, kind), is_meant_of(kind), may_replace)
            if is_whole and self._shared:
                yield from cells.join_chain()
            for origin, why in self._moved.damaged.items():
                self._fail(origin, why)
            self._count(self._moved.nbytes)
        if is_last and not self._moved.kept:
            for kind in (*kinds, *(CHAIN if is_whole and self._shared else ())):
                differs = yield from cells.find_difference(Shelf(None, kind), is_meant_of(kind))
                if differs is not None and self._mode == "verify":
                    self._differs[""] = f"shared records: {differs}"
                elif differs is not None:
                    self._changing[""] = None

    def _shared_kinds(self, is_whole: bool) -> Plan[Sequence[str]]:
        theirs: Sequence[str] = yield from on(SOURCE, self._source.store.list_kinds(None))
        ours: Sequence[str] = yield from on(TARGET, self._target.store.list_kinds(None))
        if self._shared:
            self._left.update(() if is_whole else self._whole & {*theirs})
            return sorted({*theirs, *ours} - self._never - CHAIN)
        self._left.update({*map(str, theirs)} - self._never - self._belonging.keys())
        return sorted({*theirs, *ours} & self._belonging.keys())

    def _is_copied(self, kind: str) -> bool:
        return kind not in self._never

    def _belongs(self, table: CellTable[Any], key: str, cell: Cell) -> bool:
        """Return whether a shared record belongs to its thread; if not, the thread fails."""
        try:
            record = Cells(self._source, table, None).keep(key, cell).record
            if table.thread_of and table.thread_of(key, record) == cell.origin:
                return True
            why = f"{table.name.format(key=key)} does not belong to this thread"
        except CorruptStore as error:
            why = str(error)
        self._fail(cell.origin, why)
        return False

    def _fail(self, thread_id: str, why: str) -> None:
        self._done.pop(thread_id, None)
        self._failed[thread_id] = f"thread {thread_id!r}: {why}" if thread_id else why
