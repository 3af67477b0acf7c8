"""Pairs of states of two threads, without values unchanged since the last pair.

A state grows with its thread: when each step was read and compared in full, 400 turns took 46 s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph_keel.engine.checkpoints import delta_history, revive
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Found, Kind, Ref, Run
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import NotFound


@dataclass(frozen=True, slots=True)
class StatePair:
    """The channels of two states, without those unchanged in both."""

    was: Mapping[str, Any]
    now: Mapping[str, Any]
    starts: Mapping[str, int]  # per list: how many elements are omitted at the beginning


class StateReader:
    """Reads pairs of states in step order."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before: Sequence[Mapping[str, Ref]] = ({}, {})

    def next(self, was: Address, now: Address) -> Plan[StatePair]:
        """Read the next pair."""
        found = (yield from self._read_entry(was)), (yield from self._read_entry(now))
        refs = [each.entry.refs for each in found]
        same, starts = self._find_shared(refs)
        self._before = refs
        mine = yield from self._read_values(_without(found[0], same, starts))
        its = yield from self._read_values(_without(found[1], same, starts))
        return StatePair(mine, its, starts)

    def _read_entry(self, address: Address) -> Plan[Found]:
        found: Found | None = yield from self._session.store.read_entry(address)
        if found is None:
            raise NotFound(f"{address} was deleted while the thread was replayed")
        return found

    def _find_shared(self, refs: Sequence[Mapping[str, Ref]]) -> tuple[set[str], dict[str, int]]:
        """Return the channels unchanged on both sides, and the unchanged starts of lists."""
        same, starts = set[str](), dict[str, int]()
        for channel in refs[0].keys() & refs[1].keys():
            pairs = [(old.get(channel), new[channel]) for old, new in zip(self._before, refs, strict=True)]
            if all(new.kind is Kind.LIST and old and old.kind is Kind.LIST for old, new in pairs):
                starts[channel] = min(_count_alike(old.runs, new.runs) for old, new in pairs if old)
            elif all(old == new and new.kind is not Kind.INLINE for old, new in pairs):
                same.add(channel)
        return same, starts

    def _read_values(self, found: Found) -> Plan[Mapping[str, Any]]:
        """Return the channels of a checkpoint; delta channels as writes since a snapshot."""
        revived = yield from revive(self._session, found, Unpacker(self._session.codec), "named")
        values: dict[str, Any] = dict(revived.checkpoint["channel_values"])
        counted = revived.metadata.get("counters_since_delta_snapshot") or {}
        if channels := [name for name in counted if values.get(name) is None]:
            histories = yield from delta_history(self._session, found.entry.address, channels)
            for name, history in histories.items():
                values[name] = {**history, "writes": [value for _, _, value in history["writes"]]}
        return values


def _count_alike(old: Sequence[Run], new: Sequence[Run]) -> int:
    """Return the number of items at the beginning that two versions share."""
    count = 0
    for (lo, hi), (other_lo, other_hi) in zip(old, new, strict=False):
        if lo != other_lo:
            break
        count += min(hi, other_hi) - lo
        if hi != other_hi:
            break
    return count


def _without(found: Found, same: Collection[str], starts: Mapping[str, int]) -> Found:
    refs = {name: ref for name, ref in found.entry.refs.items() if name not in same}
    refs |= {name: replace(refs[name], runs=_after(refs[name].runs, count)) for name, count in starts.items()}
    return replace(found, entry=replace(found.entry, refs=refs))


def _after(runs: Sequence[Run], count: int) -> tuple[Run, ...]:
    left = []
    for lo, hi in runs:
        passed = min(count, hi - lo)
        count -= passed
        if lo + passed < hi:
            left.append((lo + passed, hi))
    return tuple(left)
