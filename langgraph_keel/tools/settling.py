"""A call whose outcome is unknown, and what a person says became of it."""

from __future__ import annotations

from dataclasses import replace

from langgraph_keel.engine.audit import check_by, text_of, was_appended
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.leases import Pause, Watch
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import InvalidInput, NotFound, short_key
from langgraph_keel.tools.ledger import (
    BROUGHT,
    CALLS,
    DONE,
    FAILED,
    OWN,
    CallRecord,
    adopt,
    as_brought,
    begins_with,
    digest_of,
    event_of,
    find_original,
    is_lost,
    log_watch,
    looks_lost,
    shelf_of,
    tell_settlement,
)
from langgraph_keel.tools.results import check_retry, decision_of, message_of

_LEAST = 6
"""Characters of a key that name a call: fewer are too easily those of another one."""
_LOOK = 0.5
"""Seconds between two looks at a claim that is watched."""


def settle_call(
    session: Session,
    thread_id: str | None,
    key: str,
    decision: str,
    result: str | None,
    by: str | None,
    moved: bool,
    now: int,
    watch: Watch,
) -> Plan[None]:
    """Record how a call ended, as a person says, in the audit trail too; see `saver.tools.settle`."""
    check_by(by)
    shelf = shelf_of(thread_id)
    if not isinstance(key, str) or len(key) < _LEAST:
        raise InvalidInput(f"{key!r} names no call: give its key, or at least the first {_LEAST} characters of it")
    decision, _ = decision_of(decision)
    if result is not None and decision != "done":
        raise InvalidInput(f"a result belongs to the decision 'done', not to {decision!r}")
    key, kept, lost = yield from _watch_one(session, shelf, key, now, watch)
    record = kept.record
    yield from tell_settlement(session, shelf, key, kept)
    # A result that a person did not give with 'done' may be given later, once: it takes the place of this message.
    nbytes = len(session.codec.encode([message_of(record, "done", None)]))
    is_late = result is not None and record.decided == "done" and record.nbytes == nbytes
    if not (lost or is_late) and (record.state != DONE or record.is_kept):
        raise NotFound(f"call {short_key(key)} of tool {record.tool!r} is {record.state}: there is nothing to settle")
    if decision == "retry":
        original = yield from find_original(session, shelf, key, record)
        check_retry(record.tool, key, original, moved=moved)
    told = {"secret": session.new_token(), "at": session.now, "by": by, "result": result, "moved": moved or None}
    untold = {name: value for name, value in told.items() if value is not None}
    body, record = b"", replace(record, ended_at=now, decided=decision, untold=untold)
    if decision == "retry":
        ended = replace(record, state=FAILED, error="a person said that it may be made again")
    else:
        body = session.codec.encode([message_of(record, decision, result)])
        ended = replace(record, state=DONE, is_kept=True, nbytes=len(body))
    _, secret, content = event_of(key, ended)
    text_of(content)  # before it is stored: what JSON cannot hold could never be appended
    calls = Cells(session, CALLS, shelf.thread_id)
    done, found = yield from calls.swap(key, kept.token, ended, body=body, origin=record.thread_id)
    if done and found is not None:
        if decision == "retry":  # until then it is in doubt
            yield from Cells(session, BROUGHT, shelf.thread_id).clear(digest_of(record.lineage))
        yield from tell_settlement(session, shelf, key, found)
        return
    # If only the reply was lost, and the call was changed since, whoever has changed it has appended our event before.
    if not (yield from was_appended(session, record.thread_id, content, secret)):
        raise NotFound(
            f"call {short_key(key)} of tool {record.tool!r} was changed or removed since it was read, and this "
            "decision was not recorded: look at it again (`keel tools`)"
        )


def _watch_one(
    session: Session, shelf: Shelf, key: str, now: int, watch: Watch
) -> Plan[tuple[str, Kept[CallRecord], bool]]:
    """Find a call, and whether nobody knows how it ended: its claim may have to be watched for a lease."""
    where = "shared by threads" if shelf.thread_id is None else f"of thread {shelf.thread_id!r}"
    is_watched = False
    while True:
        asked = watch.timer()
        calls = yield from Cells(session, CALLS, shelf.thread_id).every(key.partition(OWN)[0])
        found = [each for each in calls if begins_with(each[0], key)]
        if len(found) > 1:
            raise InvalidInput(f"more than one call {where} has a key that begins with {key!r}: give more of it")
        if not found:
            raise NotFound(f"there is no call {where} whose key begins with {key!r}")
        key, kept = found[0][0], (yield from as_brought(session, shelf, found[0][1]))
        record, lost = kept.record, is_lost(kept, watch, asked)
        if lost and (yield from adopt(session, shelf, key, kept)):
            continue
        if lost is not None or not looks_lost(record, now):
            return key, kept, bool(lost)
        if not is_watched:
            is_watched = True
            log_watch(key, record)
        yield Pause(_LOOK)
