"""The ledger of tool calls: claimed before a tool runs, settled before its result is used.

A call is a cell (see `engine.cells`) whose key is a hash of the call. Its header is a `CallRecord`; its body, once the
tool is done, the result. A claim that is taken over gets a new token, so its former holder cannot settle it (fencing).
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
"""The kind of the cells of calls."""
HITS = "hits"
"""The kind of the cells that count how often a call was answered from the ledger, under the keys of the calls."""
OWN = "."
"""In the key of a call that answers no other (`scope="call"`): after the hash of all calls like it, before its own."""
NEVER_BEGAN = "it never began"
"""The error of a call whose claim was withdrawn before the tool ran."""
LEASE = 30.0
"""Seconds without a renewal after which a claim counts as left, unless a `ToolCache` says otherwise."""
CLAIMED, DONE, FAILED, UNKNOWN, WAITING = "claimed", "done", "failed", "unknown", "waiting"
"""The states of a call. *Unknown*: its holder died, or was cancelled while the tool ran; *waiting*: for a person."""

BROUGHT: CellTable[str] = CellTable(
    "brought",
    "the note of a tool call from another store",
    lambda place: [place],
    lambda parts: str(parts[0]),
    moves="never",
)
"""By digests of idempotency keys: the store from which the thread was copied with a call in doubt, or to be retried."""

# What is empty or zero is not written.
_DEFAULTS: dict[str, Any] = {"version": "", "started_at": 0, "until": 0, "holder": "", "lineage": ""}

COUNTS: CellTable[int] = CellTable(
    HITS, "the count of hits of tool call", lambda count: [count], lambda parts: int(parts[0])
)


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a tool, as the ledger has it. Times are milliseconds since 1970."""

    tool: str
    version: str  # of the tool; a result of another version is not a hit
    state: str
    started_at: int
    until: int  # how long the claim holds, by its holder's clock alone (see `leases.Watch`); more with each renewal
    holder: str  # host, process, and which of them (see `langgraph_keel.engine.leases`)
    lineage: str  # the idempotency key: the same for every attempt at one call, until that is settled for good
    thread_id: str = ""
    checkpoint_ns: str = ""
    checkpoint_id: str = ""  # the checkpoint whose step made it
    task_id: str = ""
    run_id: str = ""  # as `delete_for_runs` knows it
    tool_call_id: str = ""  # the model's name for the call
    place: str = ""  # in its task: the call that it is made inside of, and its number among equal calls
    ended_at: int | None = None
    is_kept: bool = False  # its result is stored
    # Positions in LangGraph's list of the task's answers: those that the tool used, those about the fate of an earlier
    # attempt, and all that this call used, including its nested calls.
    answers: Sequence[int] = ()
    decisions: Sequence[int] = ()
    taken: Sequence[int] = ()
    is_persons: bool = False  # its result uses a person's answer, and is replayed to the very same call only
    before: str = ""  # the state of an earlier attempt that was taken over
    nbytes: int = 0  # of the stored result
    cost: Any = None  # from the policy; a value that is no number counts as none
    error: str | None = None
    decided: str = ""  # the end of the call, as a person has settled it: `retry`, `done` or `skip`
    args: Any = None  # if the user lets them be stored
    steps: Mapping[str, str] = field(default_factory=dict)  # in a subgraph: see `call.Place`
    invocation: str = ""  # the invocation of the root graph that made such a call (`invocations.py`)
    past_of: Sequence[str] = ()  # checkpoints whose states have its result, though a prune removed the way to them
    told_at: Sequence[str] = ()  # checkpoints from whose steps its result was added to the messages (`healing.py`)
    lease: int = 0  # milliseconds within which its holder renews the claim
    retries: bool = False  # the policy it was made with makes it again after a crash
    # The parts of a person's decision that the audit trail does not have yet: `secret`, `at`, `by`, `result`.
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
    """The question of a task that a person was shown last."""

    call: str  # the model's name for the call that asks, or its number in the task
    place: int  # of the answer in LangGraph's list


def _unpack_shown(parts: Sequence[Any]) -> Shown:
    call, place = parts
    return Shown(str(call), int(place))


SHOWN: CellTable[Shown] = CellTable("shown", "the note of the question that was shown of task", list, _unpack_shown)
"""By the ids of tasks."""


def _unpack_secret(parts: Sequence[Any]) -> bytes:
    (secret,) = parts
    if not isinstance(secret, bytes):
        raise TypeError(f"it is a {type(secret).__name__}")
    return secret


SECRETS: CellTable[bytes] = CellTable(
    "secret", "the secret of the ledger", lambda secret: [secret], _unpack_secret, moves="always"
)


def digest_of(name: str) -> str:
    """Return what tells a thread or a call from all others in the key of a note: 32 hexadecimal digits."""
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
"""The threads that have a call which was in doubt when a thread was forked or copied, by its idempotency key.

Each with its generation: 0 for the thread that made the call; for a fork or a copy of a thread, one more than for that.
"""


@dataclass(slots=True)
class Claim:
    """A call that is ours to make: until `record.until`, unless it is renewed. Or a claim on its way."""

    shelf: Shelf
    key: str
    token: str  # known before anything is sent
    record: CallRecord  # as it was sent last
    expected: str | None = None  # the token that the cell must hold

    @property
    def work(self) -> str:
        """What goes on under it, for the log."""
        return f"tool {self.record.tool!r} runs"


@dataclass(frozen=True, slots=True)
class Finished:
    """A call that was made already, and its result. `token` is what `claim` needs to make it again."""

    record: CallRecord
    body: bytes
    token: str


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is making this call now."""

    record: CallRecord


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A call that was begun, and nobody knows how it ended. `token` is what `claim` needs to make it again."""

    record: CallRecord
    token: str


@dataclass(frozen=True, slots=True)
class SpokenFor:
    """What stands under the key is for another call only, and must stay: this call needs a key of its own."""


Verdict: TypeAlias = Claim | Finished | Busy | Doubtful | SpokenFor


class Ledger:
    """The plans of the ledger, over one store."""

    def __init__(self, session: Session, watch: Watch) -> None:
        self._session = session
        self._watch = watch

    def draft(self, shelf: Shelf, key: str, mine: CallRecord) -> Claim:
        """Return a claim that is not made yet. `mine.started_at` is now."""
        return Claim(shelf, key, self._session.new_token(), mine)

    def claim(self, draft: Claim, doubt: Doubtful | None = None) -> Plan[Verdict]:
        """Claim a call, if nobody has made it or is making it. One trip; one more to take over what stands there."""
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
                    suspect = found.token  # it may have settled the call and ended since this was read: look again
                elif verdict is not None:
                    return verdict
                else:
                    # What was done for good is followed by a new call, not by another attempt.
                    draft.expected = found.token
                    draft.record = mine if found.record.state == DONE else _continue_attempt(mine, found.record)

    def _verdict(self, found: Kept[CallRecord], mine: CallRecord, asked: float) -> Verdict | None:
        """Return what a claim finds, or `None` if the call may be made."""
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
            return Doubtful(record, cell.token)  # the very same call has ended: it must not run again in silence
        is_current = record.version == mine.version and cell.is_live(mine.started_at)
        # The very same call is answered whatever became of the tool meanwhile, and however old the result is.
        return Finished(record, cell.body, cell.token) if is_same or is_current else None

    def renew(self, claim: Claim, until: int) -> Plan[bool]:
        """Make a claim hold longer; return whether it is still ours. One trip."""
        claim.record = replace(claim.record, until=max(until, claim.record.until + 1))
        cell = self.cell(claim.record, token=claim.token)
        return (yield from self._calls(claim.shelf).swap_raw(claim.key, claim.token, cell)).done

    def withdraw(self, draft: Claim, now: int) -> Plan[None]:
        """Take a claim back that may have been stored, or may still be on its way: the tool never ran. Two trips."""
        calls, done = self._calls(draft.shelf), False
        while not done:
            cell = (yield from calls.read_raw([draft.key])).get(draft.key)
            token = cell.token if cell else None
            if token not in (draft.token, draft.expected):
                return
            if cell is not None and cell.token != draft.token:
                # A claim that comes later finds that the token it expects is gone.
                new = replace(cell, token=self._session.new_token())
            else:  # a doubt stays a doubt, with its idempotency key
                record = replace(draft.record, state=draft.record.before or FAILED, ended_at=now)
                new = self.cell(replace(record, error=NEVER_BEGAN) if record.state == FAILED else record)
            done = (yield from calls.swap_raw(draft.key, token, new)).done

    def settle(self, claim: Claim, settlement: Cell) -> Plan[bool]:
        """Write how a call ended; return whether the claim was still ours. One trip, durable."""
        return (yield from self._calls(claim.shelf).swap_raw(claim.key, claim.token, settlement)).done

    def settle_doubt(self, shelf: Shelf, key: str, expected: str | None, record: CallRecord, body: bytes) -> Plan[bool]:
        """Write how a doubtful call ended, as a person says; return whether the doubt was still there. One trip."""
        return (yield from self._calls(shelf).swap_raw(key, expected, self.cell(record, body=body))).done

    def read_equals(self, shelf: Shelf, key: str) -> Plan[dict[str, Kept[CallRecord]]]:
        """Read the other calls with the same arguments as one that answers no other (`key`). One trip for each 500."""
        calls = yield from self._calls(shelf).every(key.partition(OWN)[0])
        for other, kept in calls:
            if other != key and kept.record.state == UNKNOWN and (yield from adopt(self._session, shelf, other, kept)):
                return (yield from self.read_equals(shelf, key))
        others = {other: kept for other, kept in calls if other != key}
        for other, kept in others.items():
            others[other] = yield from as_brought(self._session, shelf, kept)
        return others

    def take_over(self, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[Cell | None]:
        """Take over how a call has ended, with its body; `None` if another call was quicker. One trip, or two."""
        calls, cell, left = self._calls(shelf), kept.cell, None
        yield from tell_settlement(self._session, shelf, key, kept)
        if kept.record.state == DONE:
            found = (yield from calls.read_raw([key])).get(key)
            if found is None or found.token != kept.token:
                return None
            # A result also stays where it is, for runs that continue from its own step.
            cell, left = found, replace(found, token=self._session.new_token())
        return cell if (yield from calls.swap_raw(key, kept.token, left)).done else None

    def note_doubt(self, shelf: Shelf, key: str, token: str, record: CallRecord) -> Plan[None]:
        """Write that a person was asked about a doubt, which stays the same one, if it is still there. One trip."""
        yield from self._calls(shelf).swap_raw(key, token, self.cell(record, token=token))

    def _calls(self, shelf: Shelf) -> Cells[CallRecord]:
        return Cells(self._session, CALLS, shelf.thread_id)

    def cell(
        self, record: CallRecord, *, token: str | None = None, body: bytes = b"", expires_at: int | None = None
    ) -> Cell:
        """Return the cell of a call, ready to be written: more than once does no harm."""
        cells = Cells(self._session, CALLS, record.thread_id)  # which shelf makes no difference here
        return cells.cell(record, token=token, body=body, origin=record.thread_id, expires_at=expires_at)


class Original(NamedTuple):
    """What is known elsewhere of a call in doubt."""

    thread_id: str = ""  # in which it is to be settled; empty for a thread's own calls
    place: str = ""  # the store that this thread was copied from, if it had the call in doubt then
    end: Cell | None = None  # how it ended, if another thread knows that


def find_original(session: Session, shelf: Shelf, key: str, record: CallRecord) -> Plan[Original]:
    """Return where a call in doubt is to be settled, and how it ended if another thread of the store knows that.

    The first thread of `SHARERS` that still has the call is the original. A call that a person has skipped in another
    thread is skipped there only. Two trips, and one a page of each noted thread.
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
    """Return whether a person has said that a call may be made again, and that was not done yet."""
    return record.state == FAILED and record.decided == "retry"


def as_brought(session: Session, shelf: Shelf, kept: Kept[CallRecord]) -> Plan[Kept[CallRecord]]:
    """Return a call that may be made again as one in doubt if another store has it, too. One trip, or none."""
    record = kept.record
    if not may_run_again(record) or shelf.thread_id is None:
        return kept
    note = yield from Cells(session, BROUGHT, shelf.thread_id).find(digest_of(record.lineage))
    return replace(kept, record=replace(record, state=UNKNOWN, decided="", error=None)) if note else kept


def share_call(session: Session, lineage: str, source: str, target: str) -> Plan[None]:
    """Note that a copy of a thread shares a call in doubt with it. Two trips."""
    notes = Cells(session, SHARERS, None)
    _, kept = yield from notes.swap(_sharer_key(lineage, source), None, (0, source), origin=source)
    copy = (kept.record[0] if kept else 0) + 1, target
    yield from notes.swap(_sharer_key(lineage, target), None, copy, origin=target)


def adopt(session: Session, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[bool]:
    """Write down how a call in doubt has ended: see `find_original`. One trip more, if another thread knows that."""
    end = (yield from find_original(session, shelf, key, kept.record)).end
    return end is not None and (yield from Cells(session, CALLS, shelf.thread_id).swap_raw(key, kept.token, end)).done


def tell_settlement(session: Session, shelf: Shelf, key: str, kept: Kept[CallRecord]) -> Plan[None]:
    """Append a person's decision to the audit trail, unless that was done. No trip if it was, else six and more."""
    record = kept.record
    if record.untold:  # the process that wrote it may have died before it appended it
        at, secret, content = event_of(key, record)
        yield from append(session, record.thread_id, at, "settled", content, secret)
        yield from rewrite(Cells(session, CALLS, shelf.thread_id), key, kept, replace(record, untold={}), kept.token)


def event_of(key: str, record: CallRecord) -> tuple[str, str, dict[str, Any]]:
    """Return the event of a decision that the audit trail may not have yet: its time, secret and content."""
    content = {"tool": record.tool, "call": key, "decision": record.decided, **record.untold}
    return content.pop("at"), content.pop("secret"), content


def rewrite(
    calls: Cells[CallRecord], key: str, kept: Kept[CallRecord], record: CallRecord, token: str | None = None
) -> Plan[None]:
    """Replace a record, unless somebody else has; its result stays. Two trips."""
    cell = (yield from calls.read_raw([key])).get(key)
    if cell is not None and cell.token == kept.token:
        new = calls.cell(record, token=token, body=cell.body, origin=cell.origin, expires_at=cell.expires_at)
        yield from calls.swap_raw(key, kept.token, new)


def is_same_call(record: CallRecord, mine: CallRecord) -> bool:
    """Return whether a call is the very one that was made: of the same task, and by the same name."""
    places = [(call.task_id, call.tool_call_id, call.place) for call in (record, mine)]
    return bool(mine.task_id) and places[0] == places[1]


def speaks_for_one(record: CallRecord) -> bool:
    """Return whether a record is of no use to other calls: it used a person's answer, or asks, or has no result."""
    return record.is_persons or record.state == WAITING or (record.state == DONE and not record.is_kept)


def is_past(record: CallRecord, mine: CallRecord) -> bool:
    """Return whether nobody will resume a call: it is of no step, or of another one of the same graph and thread."""
    places = [(call.thread_id, call.checkpoint_ns) for call in (record, mine)]
    is_of_another_step = places[0] == places[1] and record.checkpoint_id != mine.checkpoint_id
    return not record.task_id or is_of_another_step


def begins_with(key: str, given: str) -> bool:
    """Return whether a person means this key: its beginning, or that of both of its parts (`errors.short_key`)."""
    stem, _, own = given.partition(OWN)
    whole, _, rest = key.partition(OWN)
    return whole.startswith(stem) and rest.startswith(own)


def is_lost(kept: Kept[CallRecord], watch: Watch, asked: float) -> bool | None:
    """Return whether nobody knows how a call ended; `None` if its claim is to be watched."""
    record = kept.record
    if record.state != CLAIMED:
        return record.state == UNKNOWN
    return is_dead(record.holder) or watch.is_over(kept.token, record.until, asked, record.lease / 1000)


def looks_lost(record: CallRecord, now: int) -> bool:
    """Return whether nobody knows how a call ended, as clocks tell: a guess, to show."""
    if record.state != CLAIMED:
        return record.state == UNKNOWN
    return is_dead(record.holder) or not looks_alive(record.until, record.lease, now)


def log_watch(key: str, record: CallRecord) -> None:
    """Say that somebody waits, for at most a lease, to see whether a call goes on."""
    _log.warning(
        "call %s of tool %r was begun on %s, and may still run: watching for up to %g s whether its claim is renewed",
        *(short_key(key), record.tool, record.holder.partition("/")[0], record.lease / 1000),
    )


def _continue_attempt(mine: CallRecord, before: CallRecord) -> CallRecord:
    """Return a claim that goes on from an earlier attempt at the same call, with its idempotency key."""
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
    """One tool call as the ledger has it.

    Attributes:
        thread_id: The thread that made it.
        key: Its key: a keyed hash of tool and arguments.
        tool: The tool's name.
        state: `claimed` (it is running), `done`, `failed`, `waiting` (it has asked a person) or `unknown` (its process
            died, or it was cancelled while the tool ran). Whether a process of another machine lives, is told by clocks
            here, and by more whenever something is done about it.
        args: The arguments, if the cache was told to store them.
        started_at: ISO time when it began.
        ended_at: ISO time when it ended, or when a person decided; `None` if it has not, or nobody knows.
        hits: How often it was answered from the ledger since.
        cost: What one call costs, as its policy says.
        nbytes: Bytes of the stored result.
        is_kept: Whether there is a stored result.
        error: What it failed with.
        version: The tool's version.
        checkpoint_id: The checkpoint whose step made it.
        run_id: The run that made it.
        tool_call_id: The model's name for it.
        holder: Who made it: host, machine, process, and when that began.
        expires_at: ISO time until which its result may be used again; `None` if there is no such limit.
        decided: What a person said became of it: `retry` (it may run again), `done` or `skip`; empty if nobody did.
        retries: Whether it is made again by itself, should nobody know how it ended: its policy had `unknown="retry"`.
        original: For a call in doubt that a fork or a copy shares with other threads, the first of them that exists:
            settle it there, and this thread uses the result. Empty for the original's own calls.
        idempotency_key: What the tool was given if its policy names an `idempotency_argument`: the same for every
            attempt at this call. A provider that was sent it can say whether the call was carried out.
        copied_from: For a call in doubt with which its thread was copied from another store: that store. The original
            may make the call there, or has made it.
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
        """What the hits would have cost."""
        return self.hits * (self.cost or 0.0)


def is_doubt(call: KeptCall) -> bool:
    """Return whether somebody has to say how a call ended."""
    return call.state == UNKNOWN and not call.retries


def shelf_of(thread_id: str | None) -> Shelf:
    """Return where the calls of a thread are; with `None`, those that threads share."""
    return Shelf(None if thread_id is None else thread_id_of(thread_id), TOOLS)


class CallPages:
    """Reads the calls of a thread, or with `None` those that threads share, in the order of their keys."""

    def __init__(self, session: Session, thread_id: str | None) -> None:
        self._session, self._shelf = session, shelf_of(thread_id)
        self._after: str | None = None
        self._is_whole = False

    def next(self) -> Plan[Sequence[KeptCall] | None]:
        """Return the next page; `None` after the last one. Two trips, and those of `find_original`."""
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
    """Return the calls of tools in the ledger of a thread, by their keys. One trip a page."""
    calls = yield from Cells(session, CALLS, shelf_of(thread_id).thread_id).every()
    return {key: kept.record for key, kept in calls}


def iso_time(milliseconds: int) -> str:
    """Return a time, given in milliseconds since 1970, as ISO text."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
