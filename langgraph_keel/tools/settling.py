"""Settles calls of unknown outcome by the decision of a person."""

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
    NEVER_BEGAN,
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
"""Minimum length of a key prefix, in characters: shorter ones are too often ambiguous."""
_LOOK = 0.5
"""Polling interval of a watched claim, in seconds."""


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
    """Record and audit a person's decision on a call; see `saver.tools.settle`."""
    check_by(by)
    shelf = shelf_of(thread_id)
    if not isinstance(key, str) or len(key) < _LEAST:
        raise InvalidInput(f"{key!r} is not a call's key: give the key, or at least its first {_LEAST} characters")
    decision, _ = decision_of(decision)
    if result is not None and decision != "done":
        raise InvalidInput(f"a result belongs to the decision 'done', not to {decision!r}")
    key, kept, lost = yield from _watch_one(session, shelf, key, now, watch)
    record = kept.record
    yield from tell_settlement(session, shelf, key, kept)
    # If 'done' was recorded without a result, a result may be added once. It replaces this message.
    nbytes = len(session.codec.encode([message_of(record, "done", None)]))
    is_late = result is not None and record.decided == "done" and record.nbytes == nbytes
    # The tool may have acted before it raised its error: a person can say so, and it does not run again.
    may_have_acted = record.state == FAILED and not record.decided and record.error != NEVER_BEGAN
    is_known = may_have_acted and decision != "retry"
    if not (lost or is_late or is_known) and (record.state != DONE or record.is_kept):
        problem = "it runs again with its step" if may_have_acted else "there is nothing to settle"
        raise NotFound(f"call {short_key(key)} of tool {record.tool!r} is {record.state}: {problem}")
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
    text_of(content)  # checked before it is stored: JSON must be able to represent it, or it could never be appended
    calls = Cells(session, CALLS, shelf.thread_id)
    done, found = yield from calls.swap(key, kept.token, ended, body=body, origin=record.thread_id)
    if done and found is not None:
        if decision == "retry":  # until then its outcome is unknown
            yield from Cells(session, BROUGHT, shelf.thread_id).clear(digest_of(record.lineage))
        yield from tell_settlement(session, shelf, key, found)
        return
    # If only the reply was lost and the call changed since, the process that changed it appended our event first.
    if not (yield from was_appended(session, record.thread_id, content, secret)):
        raise NotFound(
            f"call {short_key(key)} of tool {record.tool!r} was changed or removed since it was read, so this "
            "decision was not recorded: check it again (`keel tools`)"
        )


def _watch_one(
    session: Session, shelf: Shelf, key: str, now: int, watch: Watch
) -> Plan[tuple[str, Kept[CallRecord], bool]]:
    """Find a call and whether its outcome is unknown; may watch the claim."""
    where = "shared by threads" if shelf.thread_id is None else f"of thread {shelf.thread_id!r}"
    is_watched = False
    while True:
        asked = watch.timer()
        calls = yield from Cells(session, CALLS, shelf.thread_id).every(key.partition(OWN)[0])
        found = [each for each in calls if begins_with(each[0], key)]
        if len(found) > 1:
            raise InvalidInput(f"more than one call {where} has a key that begins with {key!r}: give more characters")
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
