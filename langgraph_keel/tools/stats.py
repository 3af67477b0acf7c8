"""Statistics of a cache: hits and misses here, and stored hits of each call.

Counts are collected in memory and written every few seconds, so a killed process loses the last ones. No result
depends on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import NamedTuple

from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.leases import Keeper
from langgraph_keel.engine.plan import Plan, run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.tables import Cells
from langgraph_keel.tools.call import Call
from langgraph_keel.tools.ledger import CALLS, COUNTS, Claim

_EVERY = 5.0
"""Seconds between two writes of the counts."""


@publish
@dataclass(frozen=True, slots=True)
class CacheStats:
    """Hits, misses and savings of one `ToolCache` in this process.

    Attributes:
        hits: Calls that were answered from the ledger.
        misses: Calls that ran.
        saved: The cost of the hits, by the `cost` of their policies.
    """

    hits: int
    misses: int
    saved: float

    @property
    def hit_rate(self) -> float:
        """Hits among all calls, 0 to 1."""
        return self.hits / (self.hits + self.misses) if self.hits else 0.0


class _HitKey(NamedTuple):
    thread_id: str | None
    key: str
    origin: str


class Account:
    """Counts hits and misses."""

    def __init__(self, saver: EngineSaver, keeper: Keeper[Claim]) -> None:
        self._saver = saver
        self._keeper = keeper
        self.forget()

    def forget(self) -> None:
        """Start at zero in a forked process: its parent writes the earlier counts."""
        self._lock = Lock()
        self._hits = self._misses = 0
        self._saved = 0.0
        self._counts: Counter[_HitKey] = Counter()
        self._written = monotonic()

    @property
    def stats(self) -> CacheStats:
        """The statistics of this process."""
        return CacheStats(self._hits, self._misses, self._saved)

    def note_miss(self) -> None:
        """Count a call that runs."""
        with self._lock:
            self._misses += 1

    def note_hit(self, call: Call) -> None:
        """Count a call that was answered from the ledger."""
        with self._lock:
            self._hits += 1
            self._saved += call.policy.cost or 0.0
            self._counts[_HitKey(call.shelf.thread_id, call.key, call.record.thread_id)] += 1
        if monotonic() - self._written > _EVERY:
            self.flush()

    def flush(self) -> None:
        """Let the keeper write the counts."""
        with self._lock:
            counts, self._counts, self._written = self._counts, Counter(), monotonic()
        if counts:
            self._keeper.defer(lambda: self._write(counts))

    def _write(self, counts: Mapping[_HitKey, int]) -> None:
        for counted, more in counts.items():
            run(self._add(counted, more), self._saver.engine.driver)

    def _add(self, counted: _HitKey, more: int) -> Plan[None]:
        session = self._saver.engine.session
        # Skip a call that was deleted concurrently.
        if (yield from Cells(session, CALLS, counted.thread_id).read_raw([counted.key])):
            counts = Cells(session, COUNTS, counted.thread_id)
            yield from counts.change(counted.key, lambda before: (before or 0) + more, origin=counted.origin)
