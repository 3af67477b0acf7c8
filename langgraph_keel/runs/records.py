"""Records for `recoverable=True`: heartbeats, reasons of stops, recovery attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from langgraph_keel.engine.tables import CellTable

LAST = "last"
"""The key of a thread's last stop, and of the attempts to recover it."""
Why: TypeAlias = Literal["breakpoint", "cancelled", "drained", "accepted", "failed", "unreachable"]
"""Why a run has stopped with steps left.

`"failed"` is an error outside of its tasks, such as `GraphRecursionError`; `"unreachable"` is an unreachable store.
"""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The heartbeat of the runs of one saver in one process."""

    holder: str  # the process (see `langgraph_keel.engine.leases`)
    beat: int  # increases with each renewal
    since: str  # ISO time


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the last run of a thread has stopped with steps left.

    Attributes:
        checkpoints: The ids of the possible latest checkpoints: more than one if it is unknown whether its last one was
            stored.
        why: The reason.
        claim: The token of the thread's claim at that time; empty if it had none.
    """

    checkpoints: tuple[str, ...]
    why: Why
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Tries:
    """The attempts of workers to continue a thread from one checkpoint.

    Attributes:
        checkpoint_id: The checkpoint to which the count applies.
        count: The number of attempts, counted before they begin.
        error: The error of the last attempt; empty if its result was not recorded.
    """

    checkpoint_id: str
    count: int
    error: str = ""


def _unpack_process(parts: Sequence[Any]) -> ProcessRecord:
    if [type(part) for part in parts] != [str, int, str]:
        raise TypeError("it has parts of the wrong type")
    return ProcessRecord(*parts)


def _unpack_stop(parts: Sequence[Any]) -> Stop:
    checkpoints, why, claim = parts
    if why not in get_args(Why) or [type(each) for each in (*checkpoints, claim)] != [str] * (len(checkpoints) + 1):
        raise TypeError("it has parts of the wrong type")
    return Stop(tuple(checkpoints), why, claim)


def _unpack_tries(parts: Sequence[Any]) -> Tries:
    if [type(part) for part in parts] != [str, int, str]:
        raise TypeError("it has parts of the wrong type")
    return Tries(*parts)


PROCESSES: CellTable[ProcessRecord] = CellTable(
    "process", "a heartbeat", lambda each: [each.holder, each.beat, each.since], _unpack_process, moves="never"
)
STOPS: CellTable[Stop] = CellTable(
    "stopped", "why a run has stopped", lambda it: [[*it.checkpoints], it.why, it.claim], _unpack_stop, moves="never"
)
TRIES: CellTable[Tries] = CellTable(
    "tries",
    "the attempts to recover it",
    lambda it: [it.checkpoint_id, it.count, it.error],
    _unpack_tries,
    moves="never",
)
