"""A checker of histories: did concurrent clients of one thread see what one list, changed one step at a time, can show?

The method is that of Elle's list-append workload (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from
Experimental Observations", VLDB 2020). Every append carries a mark that nobody else uses, so a list that was read tells
which appends it holds and in which order: the order of all writes can be read off the final list instead of being
searched for, and checking takes n log n where linearizability in general is NP-complete.

An append is a read of the head and a put on it, which the store must take only if the head is still what was read: the
version it writes is known beforehand (`after + (mark,)`). So every operation tells of a version, and a version is known
by its length. What one list can show is then three rules:

1. Each version that was read or acknowledged is the beginning of the final list, which holds no mark twice, none that
   nobody wrote and none that was refused. An append whose outcome is unknown may be there or not.
2. Real time: whoever begins after somebody else had version n must have n or a later one, and a put a later one.
3. A put is refused only for a reason: by the time it was, somebody had moved the head on.

`test_histories.py` compares this with a search of all orders, in which both must always agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

Version: TypeAlias = tuple[str, ...]
Outcome = Literal["ok", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What one client did.

    Attributes:
        client: Who.
        invoked: When the call began, on a clock that all clients share.
        completed: When it returned.
        seen: The version it read; of an append, the one that it was put on.
        mark: What it appended, `None` for a read.
        outcome: Whether it is done; `refused` is certainly not applied (`CheckpointConflict`), `unknown` may be.
    """

    client: int
    invoked: float
    completed: float
    seen: Version
    mark: str | None = None
    outcome: Outcome = "ok"

    @property
    def version(self) -> Version:
        """The version that it read, or wrote if it was applied."""
        return self.seen if self.mark is None else (*self.seen, self.mark)

    @property
    def place(self) -> tuple[int, bool]:
        """Where it stands in the order of versions: the write of one comes before its reads."""
        return len(self.version), self.mark is None or self.outcome == "refused"

    @property
    def done(self) -> float:
        """When it was certainly over: never, if its outcome is unknown."""
        return inf if self.outcome == "unknown" else self.completed


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What one list cannot show, and the operation that shows it."""

    kind: str
    why: str


def anomalies(history: Sequence[Operation], final: Version) -> list[Anomaly]:
    """Return what is wrong with a history.

    Args:
        history: All operations, in any order.
        final: The list at the end, read when all clients were done.
    """
    found = [*_in_lists(history, final), *_in_versions(history, final)]
    return found or list(_in_time([operation for operation in history if _took_place(operation, final)], final))


def _took_place(operation: Operation, final: Version) -> bool:
    return operation.outcome != "unknown" or operation.mark in final


def _in_lists(history: Sequence[Operation], final: Version) -> Iterator[Anomaly]:
    """Rule 1, of the lists by themselves: marks that stand twice, from nowhere, or though they were refused."""
    written = {operation.mark for operation in history}
    refused = {operation.mark for operation in history if operation.outcome == "refused"}
    for version in {final, *(operation.seen for operation in history)}:
        if len(set(version)) < len(version):
            yield Anomaly("duplicate", f"a mark stands twice in {version}")
        if strangers := set(version) - written:
            yield Anomaly("phantom", f"nobody wrote {strangers} in {version}")
        if risen := set(version) & refused:
            yield Anomaly("refused, yet there", f"{risen} were refused and stand in {version}")


def _in_versions(history: Sequence[Operation], final: Version) -> Iterator[Anomaly]:
    """Rule 1, of the lists beside the final one."""
    for operation in history:
        if operation.outcome == "ok" and operation.mark is not None and operation.mark not in final:
            yield Anomaly("lost update", f"acknowledged and not in the end: {operation}")
        elif operation.seen != final[: len(operation.seen)]:
            yield Anomaly("divergence", f"read what is no beginning of the final list: {operation}")
        elif operation.mark in final and operation.version != final[: len(operation.version)]:
            yield Anomaly("divergence", f"applied to another version than it was put on: {operation}")


def _in_time(history: Sequence[Operation], final: Version) -> Iterator[Anomaly]:
    """Rules 2 and 3, in one walk through time: `latest` is the last version somebody had when `operation` began.

    Versions are in one order by rule 1, so comparing each operation with the latest that was over before it began finds
    every contradiction: sorted by version, and by time within one, the operations are otherwise a possible order.
    A refused put is over when the next version was there. When it began tells nothing: it may have seen any later one.
    """
    over = sorted(history, key=lambda operation: operation.done, reverse=True)
    latest: Operation | None = None
    for operation in sorted(history, key=lambda operation: operation.invoked):
        while over[-1].done < operation.invoked:
            latest = max(latest or over[-1], over.pop(), key=lambda operation: operation.place)
        if operation.outcome == "refused":
            if len(operation.version) > len(final):
                yield Anomaly("groundless refusal", f"nobody had moved the head on: {operation}")
        elif latest and operation.place < latest.place:
            yield Anomaly(_kind(operation, latest), f"{operation} began when this was over: {latest}")


def _kind(operation: Operation, latest: Operation) -> str:
    if operation.mark is None:
        return "stale read"
    return "groundless refusal" if latest.outcome == "refused" else "seen before it was written"
