"""Renewal of a store's keys while other processes read and write.

A renewal may be interrupted, run concurrently, and be repeated: each thread gets its key by compare-and-set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from langgraph_keel.engine.listing import read_names
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import CorruptStore
from langgraph_keel.keys.migration import Tell
from langgraph_keel.keys.store import SealedStore


@dataclass(slots=True)
class Renewal:
    """Result of a renewal of one store."""

    threads: int = 0  # with a new key
    failed: dict[str, str] = field(default_factory=dict)  # threads whose keys cannot be read, and the reason


def renew(store: SealedStore, tell: Tell) -> Plan[Renewal]:
    """Renew the keys of a store and of its threads."""
    done = Renewal()
    id = yield from store.chest.begin_renewal()
    if id is None:
        return done
    names = yield from read_names(store.inner)
    for looked, thread_id in enumerate(names, 1):
        try:
            _, is_changed = yield from store.chest.renew_thread(thread_id)
            done.threads += is_changed
        except CorruptStore as error:
            done.failed[thread_id] = str(error)
        tell(looked, len(names))
    yield from store.chest.end_renewal(id)
    return done
