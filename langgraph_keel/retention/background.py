"""Background upkeep: prunes threads after writes, and deletes expired threads."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread, current_thread
from typing import Any

from langgraph_keel.engine.engine import Engine, EngineSaver, engines_of
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CorruptStore, InvalidInput, StoreClosed, StoreError, StoreUnavailable
from langgraph_keel.retention.policy import Retention, in_seconds

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 30.0
"""Seconds that `close` waits for running work, and allows for the last prune."""


def upkeep_of(saver: EngineSaver, keep_last: int | None, ttl: Any, every: Any) -> UpkeepThread | None:
    """Return the upkeep for a saver's options; `None` without `keep_last` and `ttl`."""
    keep = None if keep_last is None else Retention(last=keep_last)
    gone = None if ttl is None else Retention(ttl=ttl)
    if keep is gone is None:
        return None
    if saver.stack.is_read_only:
        raise InvalidInput("keep_last and ttl remove stored data: leave them out, or open the store without read_only")
    if saver.stack.is_async_only:
        raise InvalidInput(
            "keep_last and ttl need a background thread, but this saver has only an async client or pool: pass a URL "
            "or a blocking client (for Redis in addition, as client=), or leave them out and await "
            "saver.retention.asweep(...)"
        )
    return UpkeepThread(saver, keep, gone, in_seconds(every))


class UpkeepThread(Hook):
    """Prunes the threads that a saver writes to, and deletes expired threads.

    A matching stored policy replaces `keep` and `ttl`.
    """

    # It starts with the first write. Its errors are logged, never raised.
    def __init__(self, saver: EngineSaver, keep: Retention | None, ttl: Retention | None, every: float) -> None:
        self.saver = saver
        self._keep = keep
        self._ttl = ttl
        self._every = every
        self.put_to: set[tuple[str, str]] = set()
        self._stop = Event()
        self._lock = Lock()
        self.thread: Thread | None = None

    def after_put(self, session: Session, put: Put) -> None:
        """Note a written thread, and start the background thread if necessary."""
        if self._keep is not None:
            self.put_to.add((session.tenant or "", put.address.thread_id))
        # A forked process does not have the thread.
        if self.thread is None or not self.thread.is_alive():
            self._start()

    def _start(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread starts it
        try:
            if not self._stop.is_set() and (self.thread is None or not self.thread.is_alive()):
                # A weak reference: the upkeep must not keep a saver alive that is dropped without `close`.
                ours = weakref.ref(self)
                self.thread = Thread(
                    target=_run_rounds, args=(ours, self._stop, self._every), name="keel-upkeep", daemon=True
                )
                self.thread.start()
        except RuntimeError as error:  # the interpreter is shutting down
            _log.info("upkeep has stopped: %s", error)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Stop, and prune the threads written to since the last round.

        Safe to call again.
        """
        end = time.monotonic() + _CLOSE_TIMEOUT
        self._stop.set()
        if self.thread is not None and self.thread.is_alive() and self.thread is not current_thread():
            self.thread.join(_CLOSE_TIMEOUT)
            if self.thread.is_alive():
                _log.warning("upkeep: the store does not answer; %d threads were not pruned", len(self.put_to))
                return
        self._attempt("the last threads", self._prune, lambda: time.monotonic() < end)

    def round(self) -> None:
        """Prune the threads written to since the last round, and delete expired threads."""
        self._attempt("written threads", self._prune, lambda: not self._stop.is_set())
        if self._ttl is not None:
            self._attempt("expired threads", self._expire, self._ttl)

    def _attempt(self, what: str, work: Callable[..., None], *args: Any) -> Exception | None:
        try:
            work(*args)
        except StoreClosed as error:
            self._stop.set()
            return error
        except Exception as error:
            _log.warning("upkeep of %s: %s: %s", what, type(error).__name__, error)
            return error
        return None

    def _prune(self, goes_on: Callable[[], bool]) -> None:
        for tenant in sorted({tenant for tenant, _ in self.put_to}):
            engine = (self.saver.for_tenant(tenant) if tenant else self.saver).engine
            stored = _read_policies(engine)
            for thread in [thread for thread in self.put_to if thread[0] == tenant]:
                if not goes_on():
                    return
                self.put_to.discard(thread)  # first: concurrent writes are for the next round
                error = self._attempt(f"thread {thread[1]!r}", self._prune_thread, engine, thread[1], stored)
                if isinstance(error, StoreError) and not isinstance(error, CorruptStore):
                    self.put_to.add(thread)  # the store may be less busy in the next round
                if isinstance(error, StoreUnavailable | StoreClosed):
                    return

    def _prune_thread(self, engine: Engine, thread_id: str, stored: Sequence[Retention]) -> None:
        from langgraph_keel.retention.owners import check_threads
        from langgraph_keel.retention.prune import Pruning, prune
        from langgraph_keel.retention.sweep import policy_for

        policy = policy_for(thread_id, stored) or self._keep
        # Policies with `idle` are for sweeps: this thread was just written to.
        if policy is not None and not policy.keeps_all and policy.idle is None:
            engine.run(check_threads(engine.session, [thread_id]))
            engine.run(prune(engine.session, thread_id, Pruning(policy, engine.session.milliseconds)))

    def _expire(self, ttl: Retention) -> None:
        from langgraph_keel.retention.prune import Pruning
        from langgraph_keel.retention.sweep import Sweep

        never = 9e9  # seconds: some 285 years
        for engine in engines_of(self.saver):
            stored = _read_policies(engine)
            policies = [*(Retention(threads=each.threads, ttl=each.ttl or never) for each in stored), ttl]
            sweep = Sweep(engine.session, policies, Pruning(None, engine.session.milliseconds))
            while not self._stop.is_set() and engine.run(sweep.next()):
                pass
            for thread_id, why in sweep.report().failed.items():
                _log.warning("upkeep of thread %r: %s", thread_id, why)


def _read_policies(engine: Engine) -> Sequence[Retention]:
    from langgraph_keel.retention.sweep import read_policies

    return engine.run(read_policies(engine.session))


def _run_rounds(ours: weakref.ref[UpkeepThread], stop: Event, every: float) -> None:
    while not stop.wait(every):
        upkeep = ours()
        if upkeep is None:
            return
        upkeep.round()
        del upkeep
