"""Another key of the store, and another data key for each thread, while others read and write.

The store gets its key first, in one request; from then on what is new is wrapped by it. Then the threads get theirs,
one after the other, each by compare-and-set. So it may be cut off anywhere, several may do it at once, and whoever does
it again goes on with what is left.
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
    """What was done to a store.

    Attributes:
        threads: How many threads have got another key.
        failed: Threads whose keys cannot be read, and why.
    """

    threads: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def renew(store: SealedStore, tell: Tell) -> Plan[Renewal]:
    """Renew the key of a store, and those of its threads."""
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
