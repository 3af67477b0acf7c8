"""The ledger as people read it: each call, what became of it, how often it was answered since, and what that saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from langgraph_keel.core.address import thread_id_of
from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.ledger import HITS, TOOLS, UNKNOWN, CallRecord, Ledger, is_lost
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.store import Store


@dataclass(frozen=True, slots=True)
class KeptCall:
    """One tool call as the ledger has it.

    Attributes:
        thread_id: The thread that made it.
        key: Its key: a keyed hash of tool and arguments.
        tool: The tool's name.
        state: `claimed` (it is running), `done`, `failed`, `waiting` (it has asked a person) or `unknown` (its process
            died, or it was cancelled while the tool ran).
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

    @property
    def saved(self) -> float:
        """What the hits would have cost."""
        return self.hits * (self.cost or 0.0)


def shelf_of(thread_id: str | None) -> Shelf:
    """Return where the calls of a thread are; with `None`, those that threads share."""
    return Shelf(None if thread_id is None else thread_id_of(thread_id), TOOLS)


def calls_of(
    store: Store[Q, R],
    codec: Codec,
    shelf: Shelf,
    after: str | None,
    limit: int,
    now: int,
    is_dead: Callable[[str], bool],
) -> Plan[Q, R, Sequence[KeptCall]]:
    """Read a page of calls, in the order of their keys. Two trips."""
    ledger = Ledger(store, codec, partial(str, ""), is_dead)
    page = yield from ledger.page(shelf, after, limit)
    if not page:
        return []
    counts = yield from store.read_cells(Shelf(shelf.thread_id, HITS), [key for key, _, _ in page])
    return [_call(key, record, cell, _hits(counts, key, codec), now, is_dead) for key, record, cell in page]


def _hits(counts: Mapping[str, Cell], key: str, codec: Codec) -> int:
    return int(codec.decode(counts[key].header)[0]) if key in counts else 0


def _cost(stored: Any) -> float | None:
    is_number = isinstance(stored, (int, float)) and math.isfinite(stored)
    return stored if is_number else None


def _call(key: str, record: CallRecord, cell: Cell, hits: int, now: int, is_dead: Callable[[str], bool]) -> KeptCall:
    return KeptCall(
        record.thread_id,
        key,
        record.tool,
        UNKNOWN if is_lost(record, now, is_dead) else record.state,
        record.args,
        moment(record.started_at),
        None if record.ended_at is None else moment(record.ended_at),
        hits,
        _cost(record.cost),
        record.nbytes,
        record.is_kept,
        record.error,
        record.version,
        record.checkpoint_id,
        record.run_id,
        record.tool_call_id,
        record.holder,
        None if cell.expires_at is None else moment(cell.expires_at),
        record.decided,
    )


def moment(milliseconds: int) -> str:
    """Return a time, given in milliseconds since 1970, as ISO text."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
