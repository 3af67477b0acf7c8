"""Holds protect a person's data from erasure and pruning (GDPR, article 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256

from langgraph_keel.engine import audit
from langgraph_keel.engine.cells import BLOCK
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, CellTable, record_of
from langgraph_keel.errors import InvalidInput, NotFound, OnHold

FIELDS = ("user_id", "reason", "by", "at")


@publish
@dataclass(frozen=True, slots=True)
class Hold:
    """A hold on a person's data: the person, the reason, the author, and the ISO time."""

    user_id: str
    reason: str
    by: str
    at: str


HOLDS: CellTable[Hold] = CellTable(
    "holds", "a hold", astuple, lambda parts: record_of(Hold, dict(zip(FIELDS, parts, strict=False)))
)


def hash_of(text: str) -> str:
    """Return the hash that represents a person in kept records: SHA-256, hexadecimal."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def place_hold(session: Session, hold: Hold) -> Plan[Hold]:
    """Store a hold and audit it; return it, or an existing one with the same reason."""
    if not (isinstance(hold.reason, str) and hold.reason.strip()):
        raise InvalidInput(f"reason= must state why the data is kept, not {hold.reason!r:.100}")
    _, held = yield from Cells(session, HOLDS, None).swap(_key(hold.user_id, hold.reason), None, hold)
    assert held is not None, "a swap has returned no record"
    # The token ensures a single event, even if the hold is placed again after a crash.
    yield from audit.append(session, "", hold.at, "held", _content(held.record, held.record.by), secret=held.token)
    return held.record


def release_holds(session: Session, user: str, by: str, reason: str | None) -> Plan[Sequence[Hold]]:
    """Audit and remove a person's holds, or the one with a reason; return them."""
    cells = Cells(session, HOLDS, None)
    found = yield from cells.every(_key(user, reason))
    if not found:
        raise NotFound(f"{user!r} is not on hold{'' if reason is None else f' because of {reason!r:.200}'}")
    for key, held in found:
        content = _content(held.record, by)
        yield from audit.append(session, "", session.now, "released", content, secret=f"released {held.token}")
        yield from cells.remove({key: held.token})
    return [held.record for _, held in found]


def list_holds(session: Session) -> Plan[Sequence[Hold]]:
    """Return all holds, oldest first. One trip for each 500."""
    found = yield from Cells(session, HOLDS, None).every()
    return sorted((held.record for _, held in found), key=lambda hold: hold.at)


def read_holds(session: Session) -> Plan[Mapping[str, Hold]]:
    """Return one hold of each person on hold. One trip for each 500."""
    return {hold.user_id: hold for hold in (yield from list_holds(session))}


def refusal(what: str, hold: Hold) -> OnHold:
    """Return the error for the removal of data on hold."""
    return OnHold(
        f"{what} is on hold since {hold.at[:10]}, and was not removed. Reason: {hold.reason}. Ask {hold.by}, who "
        "placed the hold (`keel hold` lists all holds)"
    )


def _key(user: str, reason: str | None) -> str:
    return hash_of(user)[:BLOCK] + ("" if reason is None else hash_of(reason)[:BLOCK])


def _content(hold: Hold, by: str) -> dict[str, str]:
    user = hash_of(hold.user_id)
    return {"user": user, "reason": hold.reason, "by": user if by == hold.user_id else by}
