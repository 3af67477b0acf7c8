"""What this process remembers of the threads that a saver has served, so that no put has to read it from the store.

Of each thread, what it was written with at its latest checkpoints; of each run, the same, for checkpoints that are not
stored (`durability="exit"`); the records of tasks that were not finished when a run began; and which run was at a
thread last. Each of these is bounded: what was not used for longest is forgotten, and then drift is not noticed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count
from threading import Lock
from typing import TypeVar

from langgraph_keel.engine.config import Address
from langgraph_keel.provenance.drift import Fingerprint
from langgraph_keel.provenance.records import Record

THREADS = 5000
"""Most threads, and runs, of which anything is remembered."""
CHECKPOINTS = 8
"""Most checkpoints of one thread whose fingerprints are remembered: those that runs are at, and some."""
UNFINISHED = 1000
"""Most checkpoints of which the calls of unfinished tasks are remembered."""

UNKNOWN = Fingerprint()

K = TypeVar("K")
T = TypeVar("T")
_order = count(1)  # of the runs of all savers


class KnownThreads:
    """What is remembered of the threads of one saver. Any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._fingerprints: OrderedDict[str, OrderedDict[str, Fingerprint]] = OrderedDict()
        self._of_runs: OrderedDict[int, tuple[object, Fingerprint]] = OrderedDict()
        self._unfinished: OrderedDict[Address, Sequence[Record]] = OrderedDict()
        self._last_runs: OrderedDict[str, tuple[int, object]] = OrderedDict()

    def forget_thread(self, thread_id: str) -> None:
        """Forget what a thread was written with, and its unfinished tasks."""
        with self._lock:
            self._fingerprints.pop(thread_id, None)
            for address in [address for address in self._unfinished if address.thread_id == thread_id]:
                del self._unfinished[address]

    # -- what a thread was written with ------------------------------------------------------------------------

    def remember(self, address: Address, fingerprint: Fingerprint) -> None:
        """Remember what the thread of a root checkpoint was written with, up to there."""
        with self._lock:
            checkpoints = self._fingerprints.setdefault(address.thread_id, OrderedDict())
            _keep(checkpoints, str(address.checkpoint_id), fingerprint, CHECKPOINTS)
            _keep(self._fingerprints, address.thread_id, checkpoints, THREADS)

    def remember_run(self, run: object, fingerprint: Fingerprint) -> None:
        """Remember what the thread of a run was written with, up to where the run is."""
        with self._lock:
            # The run is kept alive with it, so that no other one gets its address.
            _keep(self._of_runs, id(run), (run, fingerprint), THREADS)

    def has_fingerprint(self, thread_id: str, run: object) -> bool:
        """Return whether it is remembered what a thread, or a run, was written with."""
        return thread_id in self._fingerprints or id(run) in self._of_runs

    def find_fingerprint(self, thread_id: str, checkpoint_id: str | None, run: object) -> Fingerprint:
        """Return what a thread was written with up to a checkpoint.

        If that one is not stored (yet), its run knows, or else the latest checkpoint before it.
        """
        if checkpoint_id is None or not self.has_fingerprint(thread_id, run):
            return UNKNOWN
        with self._lock:
            checkpoints: Mapping[str, Fingerprint] = self._fingerprints.get(thread_id, {})
            if checkpoint_id in checkpoints:
                return checkpoints[checkpoint_id]
            if run is not None and id(run) in self._of_runs:
                return self._of_runs[id(run)][1]
            before = [each for each in checkpoints if each < checkpoint_id]
            return checkpoints[max(before)] if before else UNKNOWN

    # -- tasks that were not finished --------------------------------------------------------------------------

    def remember_unfinished(self, address: Address, records: Sequence[Record]) -> None:
        """Remember the calls of tasks that are done while the step that began at a checkpoint is not."""
        with self._lock:
            _keep(self._unfinished, address, records, UNFINISHED)

    def find_unfinished(self, address: Address) -> Sequence[Record]:
        """Return the calls of such tasks."""
        return self._unfinished.get(address, ())

    # -- runs --------------------------------------------------------------------------------------------------

    def see_run(self, thread_id: str, run: object) -> None:
        """Note that a run has read or put something of a thread."""
        with self._lock:
            _keep(self._last_runs, thread_id, (next(_order), run), THREADS)

    def last_run(self, thread_id: str) -> tuple[int, object]:
        """Return when a run was last seen at a thread, in an order that all savers share, and which; 0 if none was."""
        return self._last_runs.get(thread_id, (0, None))


def _keep(kept: OrderedDict[K, T], key: K, value: T, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > most:
        kept.popitem(last=False)
