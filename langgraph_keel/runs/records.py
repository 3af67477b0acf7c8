"""Records of savers with `recoverable=True`: heartbeats of processes, why runs have stopped, attempts to recover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from langgraph_keel.engine.tables import CellTable

LAST = "last"
"""The key of the note why the last run of a thread has stopped, and of the attempts of workers to continue it."""
Why: TypeAlias = Literal["breakpoint", "cancelled", "drained", "accepted", "failed", "unreachable"]
"""Why a run has stopped with steps left: `"failed"` is an error that no task has stored, such as `GraphRecursionError`,
and `"unreachable"` that of a store that could not be reached."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The heartbeat of the runs of one saver in one process."""

    holder: str  # the process (see `langgraph_keel.engine.leases`)
    beat: int  # more with each renewal
    since: str  # ISO time


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the last run of a thread has stopped with steps left.

    Attributes:
        checkpoints: The ids of the checkpoints that it may have left as the latest: more than one if it is not known
            whether its last put was stored.
        why: The reason.
        claim: The token of the claim of the thread at that time, which is older; empty if it had none.
    """

    checkpoints: tuple[str, ...]
    why: Why
    claim: str = ""


@dataclass(frozen=True, slots=True)
class Tries:
    """The attempts of workers to continue a thread from one checkpoint.

    Attributes:
        checkpoint_id: The checkpoint. From another one, nothing was tried yet.
        count: How many there were. An attempt is counted before it begins.
        error: The error of the last one; empty if its end was not heard.
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
