"""After the fact: a person settles a call that nobody knows the end of; a large result is read by its reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.ledger import DONE, FAILED, Ledger, is_lost
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.store import Store
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.holder import is_dead
from langgraph_keel.tools.doubts import decision_of, said
from langgraph_keel.tools.results import is_meant, place_of

_LEAST = 6
"""Characters of a key that name a call: fewer are too easily those of another one."""


def settled(
    ledger: Ledger[Any, Any], codec: Codec, shelf: Shelf, key: str, decision: str, result: str | None, now: int
) -> Plan[Any, Any, None]:
    """Write what a person says became of a call; see `ToolCache.settle`."""
    if not isinstance(key, str) or len(key) < _LEAST:
        raise InvalidInput(f"{key!r} names no call: give its key, or at least the first {_LEAST} characters of it")
    decision, _ = decision_of(decision)
    if result is not None and decision != "done":
        raise InvalidInput(f"a result belongs to the decision 'done', not to {decision!r}")
    key, cell = yield from _one(ledger, shelf, key)
    record = ledger.record_of(key, cell)
    if not is_lost(record, now, is_dead) and (record.state != DONE or record.is_kept):
        raise NotFound(f"call {key[:16]} of tool {record.tool!r} is {record.state}: there is nothing to settle")
    body, record = b"", replace(record, ended_at=now, decided=decision)
    if decision == "retry":
        ended = replace(record, state=FAILED, error="a person said that it may be made again")
    else:
        body = codec.encode([said(record, decision, result)])
        ended = replace(record, state=DONE, is_kept=True, nbytes=len(body))
    done = yield from ledger.settle_doubt(shelf, key, cell.token, ended, body)
    if not done:
        raise NotFound(f"call {key[:16]} of tool {record.tool!r} was settled by somebody else meanwhile")


def _one(ledger: Ledger[Any, Any], shelf: Shelf, key: str) -> Plan[Any, Any, tuple[str, Cell]]:
    found = yield from ledger.beginning(shelf, key)
    if len(found) != 1:
        where = "shared by threads" if shelf.thread_id is None else f"of thread {shelf.thread_id!r}"
        if found:
            raise InvalidInput(f"more than one call {where} has a key that begins with {key!r}: give more of it")
        raise NotFound(f"there is no call {where} whose key begins with {key!r}")
    return found[0]


def read_result(
    store: Store[Any, Any], ledger: Ledger[Any, Any], thread_id: str, reference: str
) -> Plan[Any, Any, bytes | None]:
    """Read the stored result that a reference names; `None` if there is none."""
    shelf, key = place_of(reference, thread_id)
    cells: Mapping[str, Cell] = yield from store.read_cells(shelf, [key])
    if key not in cells or not ledger.record_of(key, cells[key]).is_kept or not is_meant(reference, cells[key].body):
        return None
    return cells[key].body
