"""The plans of one call: run the tool, replay the result, wait, or ask a person.

A plan (see `engine.plan`) whose requests are those of the store and two more: pause, and run the tool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand

from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.leases import Keeper, Pause, Watch
from langgraph_keel.engine.plan import Errand, Plan, run
from langgraph_keel.engine.runs import check_run
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import StoreError, UnstorableValue, ValueRefused
from langgraph_keel.tools.answers import CallsUnderWay, count_answers, store_answers
from langgraph_keel.tools.call import Answers, Call
from langgraph_keel.tools.keys import own_key
from langgraph_keel.tools.ledger import (
    CLAIMED,
    DONE,
    FAILED,
    SHOWN,
    UNKNOWN,
    WAITING,
    Busy,
    CallRecord,
    Claim,
    Doubtful,
    Finished,
    Ledger,
    Shown,
    SpokenFor,
    Verdict,
    find_original,
    is_lost,
    is_past,
    is_same_call,
    log_watch,
    looks_lost,
)
from langgraph_keel.tools.orphans import Orphan, find_orphan, stores_meanwhile
from langgraph_keel.tools.results import (
    ask_person,
    can_be_replayed,
    error_of_doubt,
    for_call,
    is_error,
    mark_replay,
    message_of,
    number_questions,
    reference_of,
    shorten,
)
from langgraph_keel.tools.stats import Account

_log = logging.getLogger(__name__)
_MOMENT, _SOON, _LATE = 0.001, 0.02, 0.5
"""Polling intervals, in seconds: of other calls of the task, of a call made elsewhere, and the maximum."""
_ERROR = 500
"""Maximum length of a stored error, in characters."""
_CANCELLED = "it was cancelled, but a tool that runs in a thread may still act until its process has ended"


@dataclass(frozen=True, slots=True)
class RunTool(Errand):
    """A request: run the tool."""

    execute: Callable[[], Any]

    def do(self) -> Any:
        """See `Errand.do`."""
        return self.execute()

    async def ado(self) -> Any:
        """See `Errand.ado`."""
        return await self.execute()


Steps: TypeAlias = Plan[Any]


class Flow:
    """The plans of calls, over one ledger.

    `clock` and `lease` are in milliseconds. With `by_time` (async graphs), LangGraph shows the question raised first.
    """

    def __init__(
        self,
        session: Session,
        keeper: Keeper[Claim],
        account: Account,
        under_way: CallsUnderWay,
        watch: Watch,
        clock: Callable[[], int],
        lease: int,
        by_time: bool,
    ) -> None:
        self._by_time = by_time
        self._session = session
        self._ledger = Ledger(session, watch)
        self._codec = session.codec
        self._keeper = keeper
        self._account = account
        self._under_way = under_way
        self._watch = watch
        self._clock = clock
        self._lease = lease
        self._driver = session.driver

    def answer(self, call: Call) -> Steps:
        """Return the stored result of a call, or run the tool.

        A hit is one trip, a miss two or three.
        """
        if call.slot.is_in_itself:
            return (yield RunTool(partial(call.execute, call.record.lineage)))
        pause, is_watched = _SOON, False
        doubt: Doubtful | None = None
        try:
            while True:
                self._under_way.begin(call.slot, call.record.thread_id, call.record.checkpoint_id)
                verdict = yield from self._claim(call, doubt)
                doubt = None
                if isinstance(verdict, SpokenFor):
                    call = _with_own_key(call)
                elif isinstance(verdict, Busy):
                    call.slot.calls.learn(call.slot)  # the call that runs it may arrive later in the same task
                    self._under_way.end(call.slot)
                    if not is_watched and looks_lost(verdict.record, self._clock()):
                        is_watched = True
                        log_watch(call.key, verdict.record)
                    yield Pause(pause)
                    pause = min(pause * 1.5, _LATE)
                elif isinstance(verdict, Claim):
                    return (yield from self._make(call, verdict))
                elif isinstance(verdict, Doubtful) and _asks_for_another(verdict.record, call):
                    call = yield from self._copy_doubt(call, verdict)
                else:
                    yield from self._wait_for_others(call, verdict.record)
                    call, doubt, settled = yield from self._resolve(call, verdict)
                    if doubt is None:
                        return settled
        finally:
            self._under_way.end(call.slot)

    def _wait_for_others(self, call: Call, record: CallRecord) -> Plan[None]:
        """Wait until the answers and the asking call of the task are known."""
        calls, scratchpad = call.slot.calls, call.slot.scratchpad
        is_same = is_same_call(record, call.record)
        call.slot.use(record.taken if is_same else ())
        if scratchpad is not None and count_answers(scratchpad):
            yield from self._read_shown(call)
        calls.learn(call.slot)
        yield from self._wait_for(calls.are_known)
        if scratchpad is not None:
            calls.restore(scratchpad)

    def _resolve(self, call: Call, verdict: Finished | Doubtful) -> Plan[tuple[Call, Doubtful | None, Any]]:
        """Return an earlier result, or the doubt to resolve by running the tool."""
        if isinstance(verdict, Finished):
            try:
                result = self._replay(call, verdict)
            except ValueRefused as error:
                _log.warning("tool %r: its stored result cannot be read here: %s", call.record.tool, error)
                doubt = Doubtful(verdict.record, verdict.token)
                if not is_same_call(verdict.record, call.record):
                    return call, doubt, None
                verdict = doubt
            else:
                self._account.note_hit(call)
                return call, None, result
        call, settled = yield from self._judge(call, verdict)
        return call, verdict if settled is None else None, settled

    def _copy_doubt(self, call: Call, doubt: Doubtful) -> Plan[Call]:
        """Record another call's doubt for this call, to allow any order of answers."""
        call = _with_own_key(call)
        before = doubt.record
        record = replace(call.record, state=UNKNOWN, started_at=before.started_at, until=before.until)
        record = replace(record, lineage=before.lineage)
        yield from self._ledger.settle_doubt(call.shelf, call.key, None, record, b"")
        return call

    def _wait_for(self, is_so: Callable[[], bool]) -> Plan[None]:
        """Wait for a condition, at most for a lease, to never hang."""
        pause, waited = _MOMENT, 0.0
        while not is_so() and waited * 1000 < self._lease:
            yield Pause(pause)
            pause, waited = min(pause * 1.5, _LATE), waited + pause

    def _wait_for_calls_under_way(self, call: Call) -> Plan[None]:
        """Wait for the step's other calls, which an async graph cancels if one raises."""
        self._under_way.end(call.slot)
        where = call.record.thread_id, call.record.checkpoint_id
        if call.slot.outer is None:
            yield from self._wait_for(lambda: not self._under_way.has_any(*where))

    def _ask(self, call: Call, question: GraphInterrupt) -> Plan[GraphInterrupt]:
        """Return the attempt's first question, to raise it. Two to four trips."""
        slot, calls = call.slot, call.slot.calls
        self._under_way.end(slot)
        yield from self._read_shown(call)
        yield from self._wait_for(lambda: not calls.is_waiting(slot))  # the same question is shown until it is answered
        if not calls.ask(question):
            if self._by_time:
                yield from self._wait_for(lambda: calls.is_raised)
            # On threads, LangGraph shows the question of the call that the model listed first.
            return GraphInterrupt(*calls.question)
        try:
            if _has_shown(call):
                shown = Shown(slot.id, len(slot.scratchpad.resume))
                if shown != calls.shown:
                    cells = self._shown(call)
                    yield from cells.overwrite_raw(call.record.task_id, cells.cell(shown))
                number_questions(question, call.config, shown.place)
                store_answers(call.config, slot)
            if self._by_time:
                yield from self._wait_for_calls_under_way(call)  # the question ends the run
        finally:
            calls.is_raised = True
        return question

    def _read_shown(self, call: Call) -> Plan[None]:
        """Read which question of the task was shown last, unless it is known. One trip."""
        if _has_shown(call) and call.slot.calls.shown is None:
            found = yield from self._shown(call).find(call.record.task_id)
            call.slot.calls.shown = found.record if found else None

    def _shown(self, call: Call) -> Cells[Shown]:
        return Cells(self._session, SHOWN, call.record.thread_id)

    def _claim(self, call: Call, doubt: Doubtful | None) -> Plan[Verdict]:
        check_run(call.config)
        now = self._clock()
        record = replace(call.record, started_at=now, until=now + self._lease, lease=self._lease)
        draft = self._ledger.draft(call.shelf, call.key, record)
        try:
            verdict = yield from self._ledger.claim(draft, doubt)
            # A call that resolves a doubt, or continues after a question, looked for orphans before.
            if isinstance(verdict, Claim) and call.is_alone and verdict.record.before in ("", FAILED):
                return (yield from self._look_for_orphan(call, verdict))
            return verdict
        except BaseException:
            # Cancelled, or the reply was lost: the claim may be stored, with no process to run the tool.
            self._keeper.defer(lambda: run(self._ledger.withdraw(draft, self._clock()), self._driver))
            raise

    # -- a call that was made under another id ------------------------------------------------------------------------

    def _look_for_orphan(self, call: Call, claim: Claim) -> Plan[Verdict]:
        """Return the claim, or the state of an orphan that this call continues."""
        own, pause, waited = claim.record, _MOMENT, 0.0
        while True:
            asked = self._watch.timer()
            equals = yield from self._ledger.read_equals(call.shelf, call.key)
            is_patient = waited * 1000 < self._lease and stores_meanwhile(self._session, call.config)
            found = yield from find_orphan(self._session, own, equals, call.config, is_patient)
            if isinstance(found, Orphan) and (
                found.kept.record.state != CLAIMED or is_lost(found.kept, self._watch, asked)
            ):
                verdict = yield from self._adopt(call, claim, found)
                if verdict is not None:
                    return verdict
                continue
            if isinstance(found, Orphan) and found.key < call.key:
                claim.record = own
                yield from self._ledger.withdraw(claim, self._clock())  # if two wait for each other, one yields
                return Busy(found.kept.record)
            if found is None and claim.record is own:
                return claim
            if found is not None:
                yield Pause(pause)
                pause, waited = min(pause * 1.5, _LATE), waited + pause
            claim.record = replace(own, until=claim.record.until)
            if not (yield from self._ledger.renew(claim, self._clock() + self._lease)):
                return Busy(own)
            own = claim.record

    def _adopt(self, call: Call, claim: Claim, orphan: Orphan) -> Plan[Verdict | None]:
        """Take an orphan's state over for this call; `None` if another call was faster."""
        record = orphan.kept.record
        # If this is interrupted, a doubt with the orphan's idempotency key remains.
        before = FAILED if record.state == FAILED else UNKNOWN
        claim.record = replace(claim.record, lineage=record.lineage, before=before)
        if not (yield from self._ledger.renew(claim, self._clock() + self._lease)):
            return Busy(record)
        cell = yield from self._ledger.take_over(call.shelf, orphan.key, orphan.kept)
        if cell is None:
            return None
        if record.state == FAILED:
            return claim
        body = self._read_for(call, record, cell) if orphan.is_certain else None
        state = DONE if record.state == DONE else UNKNOWN
        ours = replace(claim.record, state=state, before="", is_kept=body is not None, nbytes=len(body or b""))
        ours = replace(ours, started_at=record.started_at, until=record.until, ended_at=record.ended_at)
        ours = replace(ours, is_persons=record.is_persons, decided=record.decided)
        settlement = self._ledger.cell(ours, body=body or b"", expires_at=cell.expires_at)
        if not (yield from self._write(claim, settlement)):
            return Busy(record)
        if body is None:
            return Doubtful(ours, settlement.token)
        return Finished(record, body, settlement.token)

    def _read_for(self, call: Call, record: CallRecord, cell: Cell) -> bytes | None:
        """Return an orphan's result for this call; `None` if it is unusable: a doubt."""
        if record.state != DONE or not record.is_kept or record.version != call.record.version:
            return None
        try:
            (result,) = self._codec.decode(cell.body)
        except ValueRefused as error:
            _log.warning("tool %r: its stored result cannot be read here: %s", record.tool, error)
            return None
        return self._codec.encode([for_call(result, record.tool_call_id, call.record.tool_call_id)])

    # -- making a call -------------------------------------------------------------------------------------------

    def _make(self, call: Call, claim: Claim) -> Steps:
        answers = Answers(call, claim.record.answers)
        has_begun = False
        self._keeper.hold(claim)
        try:
            yield from self._wait_for_others(call, claim.record)
            has_begun = True
            self._account.note_miss()
            with answers.provide():
                result = yield RunTool(partial(call.execute, claim.record.lineage))
        except GraphInterrupt as question:
            yield from self._give_up(claim, WAITING, answers=answers.used, taken=call.slot.places)
            raise (yield from self._ask(call, question)) from None
        except GraphBubbleUp as error:
            # Passed to the parent graph: the tool has done its work, but the command is not kept.
            state = DONE if isinstance(error, ParentCommand) else UNKNOWN
            yield from self._give_up(claim, state, answers=answers.used, taken=call.slot.places)
            raise
        except Exception as error:
            may_have_acted = has_begun and isinstance(error, call.policy.unknown_errors)
            state = UNKNOWN if may_have_acted else FAILED
            yield from self._give_up(claim, state, error=f"{type(error).__name__}: {error}"[:_ERROR])
            if self._by_time:
                yield from self._wait_for_calls_under_way(call)  # the error ends the run
            raise
        except BaseException:
            # Cancelled while the tool ran: its effects are unknown, and this task must not wait for a store.
            state = UNKNOWN if has_begun else claim.record.before or FAILED
            self._defer(claim, self._end(claim, state, error=_CANCELLED))
            raise
        finally:
            self._keeper.drop(claim)
        return (yield from self._store_result(call, claim, result, answers.used))

    def _end(self, claim: Claim, state: str, **more: Any) -> CallRecord:
        return replace(claim.record, state=state, ended_at=self._clock(), **more)

    def _defer(self, claim: Claim, record: CallRecord) -> None:
        settlement = self._ledger.cell(record)
        self._keeper.defer(lambda: run(self._ledger.settle(claim, settlement), self._driver))

    def _write(self, claim: Claim, settlement: Cell) -> Plan[bool]:
        """Write the end of a call; after an error, the keeper retries once."""
        try:
            return (yield from self._ledger.settle(claim, settlement))
        except BaseException:
            self._keeper.defer(lambda: run(self._ledger.settle(claim, settlement), self._driver))
            raise

    def _give_up(self, claim: Claim, state: str, **more: Any) -> Plan[None]:
        # The tool's error matters more than a second one of the store: the lease expires, and the outcome is unknown.
        with suppress(StoreError):
            yield from self._write(claim, self._ledger.cell(self._end(claim, state, **more)))

    def _store_result(self, call: Call, claim: Claim, result: Any, answers: Sequence[int]) -> Steps:
        if is_error(result):
            yield from self._give_up(claim, FAILED, error=str(getattr(result, "content", ""))[:_ERROR])
            return result
        try:
            body = self._encode_result(call, result)
        except BaseException:
            self._defer(claim, self._end(claim, DONE, answers=answers, taken=call.slot.places))
            raise
        is_persons = claim.record.is_persons or bool(answers)
        more: dict[str, Any] = {"is_kept": body is not None, "is_persons": is_persons, "nbytes": len(body or b"")}
        more |= {"answers": answers, "taken": call.slot.places}
        ttl = call.policy.ttl
        expires_at = None if ttl is None else self._clock() + int(ttl * 1000)
        settlement = self._ledger.cell(self._end(claim, DONE, **more), body=body or b"", expires_at=expires_at)
        if not (yield from self._write(claim, settlement)):
            _log.warning(
                "tool %r was slow, and its claim was taken over: its result may not be stored", claim.record.tool
            )
            return result
        return result if body is None else self._shorten(call, result, body)

    def _encode_result(self, call: Call, result: Any) -> bytes | None:
        """Return a result as stored bytes; `None` if it may not or cannot be reused."""
        policy = call.policy
        try:
            if policy.cache_if is not None and not policy.cache_if(result):
                return None
        except Exception:  # the tool has run: the agent still gets its result
            _log.exception(
                "tool %r: its result is not kept, because cache_if of its ToolPolicy failed", call.record.tool
            )
            return None
        try:
            body = self._codec.encode([result])
            is_ours = can_be_replayed(result, call.record.tool_call_id)
        except UnstorableValue as error:
            _log.warning("tool %r: its result cannot be kept: %s", call.record.tool, error)
            return None
        return body if is_ours and len(body) <= (policy.max_bytes or len(body)) else None

    # -- a call that was made ------------------------------------------------------------------------------------

    def _replay(self, call: Call, found: Finished) -> Any:
        (result,) = self._codec.decode(found.body)
        if is_same_call(found.record, call.record):
            call.slot.pass_over(len(found.record.taken))
        return self._shorten(call, mark_replay(result, found.record, call.record.tool_call_id), found.body)

    def _shorten(self, call: Call, result: Any, body: bytes) -> Any:
        limit = call.policy.offload_bytes
        return result if limit is None else shorten(result, reference_of(call.shelf, call.key, body), limit)

    # -- a call of unknown outcome ---------------------------------------------------------------------------------

    def _judge(self, call: Call, doubt: Doubtful) -> Plan[tuple[Call, ToolMessage | None]]:
        """Return the result chosen by policy or person; `None` to run the tool again."""
        if call.policy.unknown == "retry":
            return call, None
        if call.policy.unknown == "raise":
            record = replace(doubt.record, state=UNKNOWN, retries=False)
            # UNKNOWN now, so that `settle` does not have to wait for another lease, whatever the earlier policy.
            if doubt.record.state in (CLAIMED, UNKNOWN) and doubt.record != record:
                yield from self._ledger.note_doubt(call.shelf, call.key, doubt.token, record)
            yield from self._wait_for_calls_under_way(call)
            raise error_of_doubt(call, doubt.record)
        original = yield from find_original(self._session, call.shelf, call.key, doubt.record)
        is_same = is_same_call(doubt.record, call.record)
        answers = Answers(call, doubt.record.decisions if is_same else ())
        ours = replace(call.record, started_at=doubt.record.started_at, until=doubt.record.until)
        ours = replace(ours, lineage=doubt.record.lineage, before=doubt.record.before if is_same else "")
        try:
            decision, result = ask_person(call, doubt, answers, original)
        except GraphInterrupt as question:
            record = replace(ours, state=UNKNOWN, decisions=answers.used, taken=call.slot.places)
            yield from self._ledger.note_doubt(call.shelf, call.key, doubt.token, record)
            raise (yield from self._ask(call, question)) from None
        if decision == "retry":
            return replace(call, record=replace(call.record, decisions=answers.used, taken=call.slot.places)), None
        message = message_of(call.record, decision, result)
        body = self._codec.encode([message])
        ended = replace(ours, state=DONE, ended_at=self._clock(), is_kept=True, is_persons=True, nbytes=len(body))
        ended = replace(ended, decisions=answers.used, taken=call.slot.places, decided=decision)
        is_settled = yield from self._ledger.settle_doubt(call.shelf, call.key, doubt.token, ended, body)
        return call, message if is_settled else None


def _has_shown(call: Call) -> bool:
    """Return whether a call shows its own questions: in a task, and not nested."""
    return bool(call.record.task_id) and call.slot.outer is None


def _asks_for_another(doubt: CallRecord, call: Call) -> bool:
    """Return whether the doubt is of another call that may still be resumed."""
    asks = call.policy.unknown == "ask" and bool(call.record.task_id)
    return asks and not is_same_call(doubt, call.record) and not is_past(doubt, call.record)


def _with_own_key(call: Call) -> Call:
    return replace(call, key=own_key(call.key, call.record))
