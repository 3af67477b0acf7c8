"""Properties and counts of a store: `keel info`."""

from __future__ import annotations

from dataclasses import dataclass

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Page
from langgraph_keel.engine.session import Session

THREADS = 500
"""Threads per request."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Properties of a store, as reported by its backend."""

    backend: str  # the scheme of its URLs
    place: str
    format: int | None  # `None` if it has none yet, or does not outlive the process
    durability: str  # of an acknowledged write, in words
    size: int | None = None  # in bytes, if known


@dataclass(frozen=True, slots=True)
class StoreInfo(StoreFacts):
    """Properties and counts of a store."""

    threads: int = 0
    checkpoints: int = 0
    waiting: int = 0  # requests that wait for a decision


def count_threads(session: Session) -> Plan[tuple[int, int]]:
    """Return the numbers of threads and checkpoints. One trip for each 500 threads."""
    threads, checkpoints, after, page = 0, 0, None, THREADS
    while page == THREADS:
        infos = yield from session.store.read_threads(Page(after, THREADS))
        threads, checkpoints = threads + len(infos), checkpoints + sum(info.checkpoints for info, _ in infos)
        page, after = len(infos), (infos[-1][0].updated_at, infos[-1][0].thread_id) if infos else None
    return threads, checkpoints
