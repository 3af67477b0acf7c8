"""Check that the observations of concurrent clients of a thread fit one growing list.

The method is that of Elle's list-append workload (Kingsbury and Alvaro, "Elle: Inferring Isolation Anomalies from
Experimental Observations", VLDB 2020). Every append adds a unique mark, so a list shows which appends it contains and
in which order. The order of all writes is therefore read off the final list, without a search. Checking takes n log n,
where linearizability in general is NP-complete.

An append reads the head and stores a successor, which the store must accept only if the head has not changed. So the
version that it writes is known beforehand (`after + (mark,)`). Every operation names a version, and the length of a
version identifies it. A history fits one list if it obeys three rules:

1. Each version that was read or acknowledged is a prefix of the final list. The final list contains no mark twice, no
   unknown mark and no refused mark. It may contain an append with an unknown outcome.
2. Real time: an operation that begins after another one had version n has version n or later, an append a later one.
3. An append is refused only if another client had changed the head by then.

`test_histories.py` compares this with a search of all orders; both must always agree.
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
    """One operation of a client.

    Attributes:
        client: The client.
        invoked: Time at which the call began, on a clock that all clients share.
        completed: Time at which it returned.
        seen: The version that it read; for an append, the version that it extended.
        mark: The mark that it appended, `None` for a read.
        outcome: `ok`; `refused`, certainly not applied (`CheckpointConflict`); `unknown`, perhaps applied.
    """

    client: int
    invoked: float
    completed: float
    seen: Version
    mark: str | None = None
    outcome: Outcome = "ok"

    @property
    def version(self) -> Version:
        """The version that the operation read, or would have written."""
        return self.seen if self.mark is None else (*self.seen, self.mark)

    @property
    def place(self) -> tuple[int, bool]:
        """Position in the order of versions: a version's write precedes its reads."""
        return len(self.version), self.mark is None or self.outcome == "refused"

    @property
    def done(self) -> float:
        """Time at which the operation had certainly ended: never, if that is unknown."""
        return inf if self.outcome == "unknown" else self.completed


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A contradiction to the rules, and the operation that shows it."""

    kind: str
    why: str


def anomalies(history: Sequence[Operation], final: Version) -> list[Anomaly]:
    """Return the anomalies of a history.

    Args:
        history: All operations, in any order.
        final: The list at the end, read after all clients had ended.
    """
    found = [*_in_lists(history, final), *_in_versions(history, final)]
    return found or list(_in_time([operation for operation in history if _took_place(operation, final)], final))


def _took_place(operation: Operation, final: Version) -> bool:
    return operation.outcome != "unknown" or operation.mark in final


def _in_lists(history: Sequence[Operation], final: Version) -> Iterator[Anomaly]:
    """Check rule 1 within each list: marks that are repeated, unknown or refused."""
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
    """Check rule 1 between each list and the final one."""
    for operation in history:
        if operation.outcome == "ok" and operation.mark is not None and operation.mark not in final:
            yield Anomaly("lost update", f"acknowledged and not in the end: {operation}")
        elif operation.seen != final[: len(operation.seen)]:
            yield Anomaly("divergence", f"read what is no beginning of the final list: {operation}")
        elif operation.mark in final and operation.version != final[: len(operation.version)]:
            yield Anomaly("divergence", f"applied to another version than it was put on: {operation}")


def _in_time(history: Sequence[Operation], final: Version) -> Iterator[Anomaly]:
    """Check rules 2 and 3 in one pass over time.

    `latest` is the latest version of the operations that had ended when `operation` began. By rule 1, all versions are
    in one order. So comparing each operation with `latest` finds every contradiction: otherwise, sorting by version,
    and by time within a version, is a possible order. A refused append ends no earlier than the next version appears.
    Its beginning proves nothing: it may have seen any later version.
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
