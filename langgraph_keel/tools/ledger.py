"""The ledger of tool calls: claimed before a tool runs, then settled.

A call is a cell (see `engine.cells`) whose key is a hash of the call. Its header is a `CallRecord`; its body is the
result, once the tool is done. Taking over a claim changes its token, so the former holder cannot settle it (fencing).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel.engine.audit import append
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.leases import Watch, is_dead, looks_alive
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import PAGE
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, Kept, record_of
from langgraph_keel.errors import short_key

_log = logging.getLogger(__name__)

TOOLS = "tool"
"""The kind of the cells that contain calls."""
HITS = "hits"
"""The kind of the cells that count the hits of calls, under the keys of the calls."""
OWN = "."
"""In the key of a call that answers only itself (`scope="call"`): separates the hash of equal calls from its own."""
NEVER_BEGAN = "it never began"
"""The error of a call whose claim was withdrawn before the tool ran."""
LEASE = 30.0
"""Default seconds without a renewal after which a claim counts as abandoned."""
CLAIMED, DONE, FAILED, UNKNOWN, WAITING = "claimed", "done", "failed", "unknown", "waiting"
"""The states of a call. *Unknown*: its holder died or was cancelled during the call; *waiting*: for a person."""

BROUGHT: CellTable[str] = CellTable(
    "brought",
    "the note of a tool call from another store",
    lambda place: [place],
    lambda parts: str(parts[0]),
    moves="never",
)
"""By digest of the idempotency key: the store from which a thread was copied with an open call."""

# Empty and zero fields are not written.
_DEFAULTS: dict[str, Any] = {"version": "", "started_at": 0, "until": 0, "holder": "", "lineage": ""}

COUNTS: CellTable[int] = CellTable(
    HITS, "the count of hits of tool call", lambda count: [count], lambda parts: int(parts[0])
)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One tool call in the ledger. Times are milliseconds since 1970."""

    tool: str
    version: str  # of the tool; a result of another version is not a hit
    state: str
    started_at: int
    until: int  # end of the claim by its holder's clock only (see `leases.Watch`); increased by each renewal
    holder: str  # host and process (see `langgraph_keel.engine.leases`)
    lineage: str  # the idempotency key: the same for every attempt at one call, until that is finally settled
    thread_id: str = ""
    checkpoint_ns: str = ""
    checkpoint_id: str = ""  # the checkpoint whose step made it
    task_id: str = ""
    run_id: str = ""  # as in `delete_for_runs`
    tool_call_id: str = ""  # the model's id of the call
    place: str = ""  # in its task: the enclosing call, and its number among equal calls
    ended_at: int | None = None
    is_kept: bool = False  # its result is stored
    # Positions in LangGraph's list of the task's answers: those used by the tool, those about the outcome of an earlier
    # attempt, and all that this call and its nested calls used.
    answers: Sequence[int] = ()
    decisions: Sequence[int] = ()
    taken: Sequence[int] = ()
    is_persons: bool = False  # its result uses a person's answer, and answers only the same call
    before: str = ""  # the state of an earlier attempt that was taken over
    nbytes: int = 0  # of the stored result
    cost: Any = None  # from the policy; ignored if it is not a number
    error: str | None = None
    decided: str = ""  # a person's decision: `retry`, `done` or `skip`
    args: Any = None  # only with `store_arguments=True`
    steps: Mapping[str, str] = field(default_factory=dict)  # in a subgraph: see `call.Place`
    invocation: str = ""  # the root graph's invocation, with `scope="call"` (`invocations.py`)
    past_of: Sequence[str] = ()  # checkpoints whose states contain its result, after a prune removed the path to them
    told_at: Sequence[str] = ()  # checkpoints from whose steps its result was added to the messages (`healing.py`)
    lease: int = 0  # milliseconds within which its holder renews the claim
    retries: bool = False  # its policy repeats it after a crash
    # The parts of a person's decision not yet in the audit trail: `secret`, `at`, `by`, `result`.
    untold: Mapping[str, Any] = field(default_factory=dict)


_FIELDS = tuple(field.name for field in fields(CallRecord))


def _pack_call(record: CallRecord) -> list[Any]:
    values = ((name, getattr(record, name)) for name in _FIELDS)
    return [{name: value for name, value in values if value not in (None, "", 0, False, (), [], {})}]


def _unpack_call(parts: Sequence[Any]) -> CallRecord:
    (values,) = parts
    record = record_of(CallRecord, _DEFAULTS | values)
    if record.untold and not {"at", "secret"} <= record.untold.keys():
        raise TypeError("its untold decision has no time, or no secret")
    return record


CALLS: CellTable[CallRecord] = CellTable(
    TOOLS,
    "the record of tool call",
    _pack_call,
    _unpack_call,
    has_body=lambda record: record.state == DONE and record.is_kept,
)


class Shown(NamedTuple):
    """The last shown question of a task."""

    call: str  # the model's id of the asking call, or its number in the task
    place: int  # of the answer in LangGraph's list


def _unpack_shown(parts: Sequence[Any]) -> Shown:
    call, place = parts
    return Shown(str(call), int(place))


SHOWN: CellTable[Shown] = CellTable("shown", "the note of the question that was shown of task", list, _unpack_shown)
"""By task id."""


def _unpack_secret(parts: Sequence[Any]) -> bytes:
    (secret,) = parts
    if not isinstance(secret, bytes):
        raise TypeError(f"it is a {type(secret).__name__}")
    return secret


SECRETS: CellTable[bytes] = CellTable(
    "secret", "the secret of the ledger", lambda secret: [secret], _unpack_secret, moves="always"
)


def digest_of(name: str) -> str:
    """Return the digest of a thread id or lineage: 32 hexadecimal digits."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _sharer_key(lineage: str, thread_id: str) -> str:
    return f"{lineage}.{digest_of(thread_id)}"


SHARERS: CellTable[tuple[int, str]] = CellTable(
    "sharers",
    "the note of a thread that shares a call in doubt",
    list,
    lambda parts: (int(parts[0]), str(parts[1])),
    thread_of=lambda key, note: note[1] if key == _sharer_key(key.partition(".")[0], note[1]) else "",
)
"""The threads that share a call whose outcome was unknown at a fork or copy, by its idempotency key.

Each has its generation: 0 for the thread that made the call, and one more than its source for a fork or copy.
"""


@dataclass(slots=True)
class Claim:
    """The right to make a call until `record.until`, stored or not yet."""

    shelf: Shelf
    key: str
    token: str  # chosen before the claim is sent
    record: CallRecord  # as last sent
    expected: str | None = None  # the token that the cell must hold

    @property
    def work(self) -> str:
        """A description of the running call, for the log."""
        return f"tool {self.record.tool!r} runs"


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished call and its result. `claim` needs the `token` to repeat it."""

    record: CallRecord
    body: bytes
    token: str


@dataclass(frozen=True, slots=True)
class Busy:
    """Another process or task is making this call now."""

    record: CallRecord


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A call of unknown outcome. `claim` needs the `token` to repeat it."""

    record: CallRecord
    token: str


@dataclass(frozen=True, slots=True)
class SpokenFor:
    """The key has a record that answers only another call: use an own key."""


Verdict: TypeAlias = Claim | Finished | Busy | Doubtful | SpokenFor


class Ledger:
    """The plans of the ledger, over one store."""

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session = session
        self._watch = watch

    def draft(self, shelf: Shelf, key: str, mine: CallRecord) -> Claim:
        """Return a claim that is not stored yet. `mine.started_at` is now."""
        return Claim(shelf, key, self._session.new_token(), mine)

    def claim(self, draft: Claim, doubt: Doubtful | None = None) -> Plan[Verdict]:
        """Claim a call unless it is running or made.

        One trip; one more to take over an existing record.
        """
        mine, suspect = draft.record, ""
        if doubt:
            draft.expected, draft.record = doubt.token, _continue_attempt(mine, doubt.record)
        while True:
            record, asked = draft.record, self._watch.timer()
            done, found = yield from self._calls(draft.shelf).swap(
                draft.key, draft.expected, record, token=draft.token, origin=record.thread_id
            )
            if done:
                return draft
            draft.expected, draft.record = None, mine
            if found is not None:
                yield from tell_settlement(self._session, draft.shelf, draft.key, found)
                found = yield from as_brought(self._session, draft.shelf, found)
                verdict = self._verdict(found, mine, asked)
                if isinstance(verdict, Doubtful) and (yield from adopt(self._session, draft.shelf, draft.key, found)):
                    continue
                if isinstance(verdict, Doubtful) and found.record.state == CLAIMED and found.token != suspect:
                    suspect = found.token  # its process may have settled the call and exited since: look again
                elif verdict is not None:
                    return verdict
                else:
                    # After a finished call this is a new call, not another attempt.
                    draft.expected = found.token
                    draft.record = mine if found.record.state == DONE else _continue_attempt(mine, found.record)

    def _verdict(self, found: Kept[CallRecord], mine: CallRecord, asked: float) -> Verdict | None:
        """Return the verdict on an existing record; `None` if the call may be made."""
        record, cell = found.record, found.cell
        is_same = is_same_call(record, mine)
        if not is_same and speaks_for_one(record):
            if not is_past(record, mine):
                return SpokenFor()
            if record.state in (DONE, WAITING):
                return None
        if record.state == CLAIMED and not is_lost(found, self._watch, asked):
            return Busy(record)
        if record.state in (CLAIMED, UNKNOWN):
            return Doubtful(record, cell.token)
        if record.state != DONE:
            return None
        if not record.is_kept:
            return Doubtful(record, cell.token)  # the same call finished: it must not silently run again
        is_current = record.version == mine.version and cell.is_live(mine.started_at)
        # The same call is answered even if the tool changed since, and regardless of the age of the result.
        return Finished(record, cell.body, cell.token) if is_same or is_current else None

    def renew(self, claim: Claim, until: int) -> Plan[bool]:
        """Extend a claim; return whether it is still ours. One trip."""
        claim.record = replace(claim.record, until=max(until, claim.record.until + 1))
        cell = self.cell(claim.record, token=claim.token)
        return (yield from self._calls(claim.shelf).swap_raw(claim.key, claim.token, cell)).done

    def withdraw(self, draft: Claim, now: int) -> Plan[None]:
        """Withdraw a claim that is or may yet be stored, before its tool ran. Two trips."""
        calls, done = self._calls(draft.shelf), False
        while not done:
            cell = (yield from calls.read_raw([draft.key])).get(draft.key)
            token = cell.token if cell else None
            if token not in (draft.token, draft.expected):
                return
            if cell is not None and cell.token != draft.token:
                # A claim that arrives later then fails, because its expected token is gone.
                new = replace(cell, token=self._session.new_token())
            else:  # a doubt stays a doubt, with its idempotency key
                record = replace(draft.record, state=draft.record.before or FAILED, ended_at=now)
                new = self.cell(replace(record, error=NEVER_BEGAN) if record.state == FAILED else record)
            done = (yield from calls.swap_raw(draft.key, token, new)).done

    def settle(self, claim: Claim, settlement: Cell) -> Plan[bool]:
        """Write a call's end, durably; return whether the claim was ours. One trip."""
        return (yield from self._calls(claim.shelf).swap_raw(claim.key, claim.token, settlement)).done

    def settle_doubt(self, shelf: Shelf, key: str, expected: str | None, record: CallRecord, body: bytes) -> Plan[bool]:
        """Write a decision on a doubt; return whether the doubt still existed. One trip."""
        return (yield from self._calls(shelf).swap_raw(key, expected, self.cell(record, body=body))).done

    def read_equals(self, shelf: Shelf, key: str) -> Plan[dict[str, Kept[CallRecord]]]:
        """Read the other calls with the same arguments as `key`. One trip for each 500."""
        calls = yield from self._calls(shelf).every(key.partition(OWN)[0])
        for other, kept in calls:
            if other != key and kept.record.state == UNKNOWN and (yield from adopt(self._session, shelf, other, kept)):
                return (yield from self.read_equals(shelf, key))
        others = {other: kept for other, kept in calls if other != key}
        for other, kept in others.items():
            others[other] = yield from as_brought(self._session, shelf, kept)
        return others

    def take_over(self, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[Cell | None]:
        """Take over a call's end and body; `None` if another call was faster.

        One trip, or two.
        """
        calls, cell, left = self._calls(shelf), kept.cell, None
        yield from tell_settlement(self._session, shelf, key, kept)
        if kept.record.state == DONE:
            found = (yield from calls.read_raw([key])).get(key)
            if found is None or found.token != kept.token:
                return None
            # A result also stays in its place, for runs that continue from its own step.
            cell, left = found, replace(found, token=self._session.new_token())
        return cell if (yield from calls.swap_raw(key, kept.token, left)).done else None

    def note_doubt(self, shelf: Shelf, key: str, token: str, record: CallRecord) -> Plan[None]:
        """Update a doubt, if it still exists, after a person was asked. One trip."""
        yield from self._calls(shelf).swap_raw(key, token, self.cell(record, token=token))

    def _calls(self, shelf: Shelf) -> Cells[CallRecord]:
        return Cells(self._session, CALLS, shelf.thread_id)

    def cell(
        self, record: CallRecord, *, token: str | None = None, body: bytes = b"", expires_at: int | None = None
    ) -> Cell:
        """Return the cell of a call. Writing it more than once is harmless."""
        cells = Cells(self._session, CALLS, record.thread_id)  # the shelf does not matter here
        return cells.cell(record, token=token, body=body, origin=record.thread_id, expires_at=expires_at)


class Original(NamedTuple):
    """Information from elsewhere about a call of unknown outcome."""

    thread_id: str = ""  # the thread in which to settle it; empty for a thread's own calls
    place: str = ""  # the store from which this thread was copied with the call, if any
    end: Cell | None = None  # its end, if another thread recorded it


def find_original(session: Session, shelf: Shelf, key: str, record: CallRecord) -> Plan[Original]:
    """Return where to settle an unknown outcome, and its end if recorded elsewhere.

    The original is the first thread of `SHARERS` that still has the call. A `skip` in another thread is valid only
    there. Two trips, and one a page of each noted thread.
    """
    original, is_before = "", True
    if record.state not in (CLAIMED, UNKNOWN) or not record.lineage or shelf.thread_id is None:
        return Original()
    sharers = yield from Cells(session, SHARERS, None).every(f"{record.lineage}.")
    for _, name in sorted(kept.record for _, kept in sharers):
        calls = Cells(session, CALLS, name)
        is_before = is_before and name != shelf.thread_id
        for other, kept in (yield from calls.every()) if name != shelf.thread_id else ():
            there = kept.record
            if there.lineage != record.lineage:
                continue
            is_original = is_before and original in ("", name)
            if other == key and there.state == DONE and (is_original or there.decided != "skip"):
                if cell := (yield from calls.read_raw([key])).get(key):
                    there = replace(there, thread_id=shelf.thread_id, untold={})
                    end = calls.cell(there, body=cell.body, origin=there.thread_id, expires_at=cell.expires_at)
                    return Original(name, end=end)
            elif is_original:
                original = name
    if original:
        return Original(original)
    note = yield from Cells(session, BROUGHT, shelf.thread_id).find(digest_of(record.lineage))
    return Original(place=note.record if note else "")


def may_run_again(record: CallRecord) -> bool:
    """Return whether a person allowed a retry that has not happened yet."""
    return record.state == FAILED and record.decided == "retry"


def as_brought(session: Session, shelf: Shelf, kept: Kept[CallRecord]) -> Plan[Kept[CallRecord]]:
    """Return a call to retry as unknown if another store has it. One trip, or none."""
    record = kept.record
    if not may_run_again(record) or shelf.thread_id is None:
        return kept
    note = yield from Cells(session, BROUGHT, shelf.thread_id).find(digest_of(record.lineage))
    return replace(kept, record=replace(record, state=UNKNOWN, decided="", error=None)) if note else kept


def share_call(session: Session, lineage: str, source: str, target: str) -> Plan[None]:
    """Note that a thread and its copy share a call of unknown outcome. Two trips."""
    notes = Cells(session, SHARERS, None)
    _, kept = yield from notes.swap(_sharer_key(lineage, source), None, (0, source), origin=source)
    copy = (kept.record[0] if kept else 0) + 1, target
    yield from notes.swap(_sharer_key(lineage, target), None, copy, origin=target)


def adopt(session: Session, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[bool]:
    """Write the end of a call that another thread recorded; see `find_original`."""
    end = (yield from find_original(session, shelf, key, kept.record)).end
    return end is not None and (yield from Cells(session, CALLS, shelf.thread_id).swap_raw(key, kept.token, end)).done


def tell_settlement(session: Session, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[None]:
    """Append a missing decision to the audit trail. No trip, or six and more."""
    record = kept.record
    if record.untold:  # the process that wrote it may have died before it appended it
        at, secret, content = event_of(key, record)
        yield from append(session, record.thread_id, at, "settled", content, secret)
        yield from rewrite(Cells(session, CALLS, shelf.thread_id), key, kept, replace(record, untold={}), kept.token)


def event_of(key: str, record: CallRecord) -> tuple[str, str, dict[str, Any]]:
    """Return the time, secret and content of a decision's event in the audit trail."""
    content = {"tool": record.tool, "call": key, "decision": record.decided, **record.untold}
    return content.pop("at"), content.pop("secret"), content


def rewrite(
    calls: Cells[CallRecord], key: str, kept: Kept[CallRecord], record: CallRecord, token: str | None = None
) -> Plan[None]:
    """Replace a record but not its result, unless it changed concurrently. Two trips."""
    cell = (yield from calls.read_raw([key])).get(key)
    if cell is not None and cell.token == kept.token:
        new = calls.cell(record, token=token, body=cell.body, origin=cell.origin, expires_at=cell.expires_at)
        yield from calls.swap_raw(key, kept.token, new)


def is_same_call(record: CallRecord, mine: CallRecord) -> bool:
    """Return whether a record is of the same call: same task, same id, same place."""
    places = [(call.task_id, call.tool_call_id, call.place) for call in (record, mine)]
    return bool(mine.task_id) and places[0] == places[1]


def speaks_for_one(record: CallRecord) -> bool:
    """Return whether a recorded call must not answer other calls with the same key.

    That is the case if it used a person's answer, if it waits for one, or if its result was not kept.
    """
    return record.is_persons or record.state == WAITING or (record.state == DONE and not record.is_kept)


def is_past(record: CallRecord, mine: CallRecord) -> bool:
    """Return whether no run will resume a call.

    Its step is unknown, or another one of the same graph and thread.
    """
    places = [(call.thread_id, call.checkpoint_ns) for call in (record, mine)]
    is_of_another_step = places[0] == places[1] and record.checkpoint_id != mine.checkpoint_id
    return not record.task_id or is_of_another_step


def begins_with(key: str, given: str) -> bool:
    """Return whether a key matches a prefix of it or of its parts (`short_key`)."""
    stem, _, own = given.partition(OWN)
    whole, _, rest = key.partition(OWN)
    return whole.startswith(stem) and rest.startswith(own)


def is_lost(kept: Kept[CallRecord], watch: Watch, asked: float) -> bool | None:
    """Return whether a call's outcome is unknown; `None` to watch its claim."""
    record = kept.record
    if record.state != CLAIMED:
        return record.state == UNKNOWN
    return is_dead(record.holder) or watch.is_over(kept.token, record.until, asked, record.lease / 1000)


def looks_lost(record: CallRecord, now: int) -> bool:
    """Estimate by clocks whether the outcome of a call is unknown, for display."""
    if record.state != CLAIMED:
        return record.state == UNKNOWN
    return is_dead(record.holder) or not looks_alive(record.until, record.lease, now)


def log_watch(key: str, record: CallRecord) -> None:
    """Log that a process watches a claim, for at most a lease."""
    _log.warning(
        "call %s of tool %r was started on %s and may still run: watching for up to %g s whether its claim is renewed",
        *(short_key(key), record.tool, record.holder.partition("/")[0], record.lease / 1000),
    )


def _continue_attempt(mine: CallRecord, before: CallRecord) -> CallRecord:
    """Return a claim that continues an earlier attempt and its idempotency key."""
    state = UNKNOWN if before.state in (CLAIMED, DONE) else before.state
    mine = replace(mine, lineage=before.lineage, before=state)
    if not is_same_call(before, mine):
        return mine
    is_persons = before.is_persons or before.state == WAITING
    decisions = mine.decisions or before.decisions
    return replace(mine, decisions=decisions, answers=before.answers, taken=before.taken, is_persons=is_persons)


@publish
@dataclass(frozen=True, slots=True)
class KeptCall:
    """One tool call in the ledger.

    Attributes:
        thread_id: The thread that made the call.
        key: A keyed hash of tool and arguments.
        tool: The tool's name.
        state: `claimed` (running), `done`, `failed`, `waiting` (for a person's answer) or `unknown` (the process died,
            or the call was cancelled while the tool ran). For calls on another machine, `claimed` or `unknown` is
            estimated from clocks here, and verified before the call is settled or repeated.
        args: The arguments, with `store_arguments=True`.
        started_at: ISO time of the start.
        ended_at: ISO time of the end, or of a person's decision; `None` if it has not ended, or its end is unknown.
        hits: The number of later calls that it answered.
        cost: The cost of one call, by its policy.
        nbytes: Size of the stored result, in bytes.
        is_kept: Whether its result is stored.
        error: The error with which it failed.
        version: The tool's version.
        checkpoint_id: The checkpoint whose step made it.
        run_id: The run that made it.
        tool_call_id: The model's id of the call.
        holder: The process that made it: host, machine, process id, and start time of the process.
        expires_at: ISO time until which its result may be reused; `None`: no limit.
        decided: A person's decision: `retry` (it may run again), `done` or `skip`; empty without one.
        retries: Whether the call is repeated if its outcome is unknown: its policy had `unknown="retry"`.
        original: For a call of unknown outcome that a fork or copy shares: the first of these threads that exists.
            Settle it there, and this thread uses the result. Empty for the original's own calls.
        idempotency_key: The tool receives it if its policy names an `idempotency_argument`. It is the same for every
            attempt at this call, so the provider can look up whether the call was carried out.
        copied_from: The store from which the thread was copied while the call was open. The original may make the call
            there, or has made it.
    """

    thread_id: str
    key: str
    tool: str
    state: str
    args: Any
    started_at: str
    ended_at: str | None
    hits: int
    cost: float | None
    nbytes: int
    is_kept: bool
    error: str | None
    version: str
    checkpoint_id: str
    run_id: str
    tool_call_id: str
    holder: str
    expires_at: str | None = None
    decided: str = ""
    retries: bool = field(default=False, repr=False)
    original: str = field(default="", repr=False)
    idempotency_key: str = field(default="", repr=False)
    copied_from: str = field(default="", repr=False)

    @property
    def saved(self) -> float:
        """The cost of the hits, had they run."""
        return self.hits * (self.cost or 0.0)


def is_doubt(call: KeptCall) -> bool:
    """Return whether a call must be settled."""
    return call.state == UNKNOWN and not call.retries


def shelf_of(thread_id: str | None) -> Shelf:
    """Return the shelf of a thread's calls; with `None`, of those that threads share."""
    return Shelf(None if thread_id is None else thread_id_of(thread_id), TOOLS)


class CallPages:
    """Reads the calls of a thread (`None`: those that threads share), by key."""

    def __init__(self, session: Session, thread_id: str | None) -> None:
        self._session, self._shelf = session, shelf_of(thread_id)
        self._after: str | None = None
        self._is_whole = False

    def next(self) -> Plan[Sequence[KeptCall] | None]:
        """Return the next page; `None` at the end. Two trips and `find_original`'s."""
        if self._is_whole:
            return None
        session, thread_id = self._session, self._shelf.thread_id
        calls, page = Cells(session, CALLS, thread_id), []
        for key, kept in (yield from calls.page(after=self._after, limit=PAGE)):
            kept, original = (yield from as_brought(session, self._shelf, kept)), Original()
            if looks_lost(kept.record, session.milliseconds):
                original = yield from find_original(session, self._shelf, key, kept.record)
            page.append((key, calls.keep(key, original.end) if original.end else kept, original))
        self._is_whole = len(page) < PAGE
        if not page:
            return None
        self._after = page[-1][0]
        counts = yield from Cells(session, COUNTS, thread_id).read([key for key, *_ in page])
        hits = {key: count.record for key, count in counts.items()}
        return [_describe(key, kept, origin, hits.get(key, 0), session.milliseconds) for key, kept, origin in page]


def _describe(key: str, kept: Kept[CallRecord], original: Original, hits: int, now: int) -> KeptCall:
    record, expires_at = kept.record, kept.cell.expires_at
    is_cost = isinstance(record.cost, (int, float)) and math.isfinite(record.cost)
    return KeptCall(
        record.thread_id,
        key,
        record.tool,
        UNKNOWN if looks_lost(record, now) else record.state,
        record.args,
        iso_time(record.started_at),
        None if record.ended_at is None else iso_time(record.ended_at),
        hits,
        record.cost if is_cost else None,
        record.nbytes,
        record.is_kept,
        record.error,
        record.version,
        record.checkpoint_id,
        record.run_id,
        record.tool_call_id,
        record.holder,
        None if expires_at is None else iso_time(expires_at),
        record.decided,
        record.retries,
        "" if record.state == DONE else original.thread_id,
        record.lineage,
        original.place,
    )


def read_ledger(session: Session, thread_id: str) -> Plan[dict[str, CallRecord]]:
    """Return the calls in a thread's ledger, by their keys. One trip a page."""
    calls = yield from Cells(session, CALLS, shelf_of(thread_id).thread_id).every()
    return {key: kept.record for key, kept in calls}


def iso_time(milliseconds: int) -> str:
    """Return a time, given in milliseconds since 1970, as ISO text."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
