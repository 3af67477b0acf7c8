"""The methods of a saver that continue threads whose process has died."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from threading import Event
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig

from langgraph_keel.engine.engine import EngineSaver

if TYPE_CHECKING:
    from langgraph_keel.runs.worker import Resumed, Worker


class RecoveryMethods(EngineSaver):
    """The methods that recover threads."""

    def recover(
        self,
        graph: Any,
        *,
        attempts: int = 3,
        match: str | None = None,
        poll: float = 1.0,
        timeout: float | None = None,
        config: RunnableConfig | None = None,
        stop: Event | None = None,
    ) -> Iterator[Resumed]:
        """Run a worker: continue threads that were cut off, drained or accepted.

            for resumed in saver.recover(graph):
                print(resumed.thread_id, resumed.error or resumed.result)

        All savers that run graphs on the store need `recoverable=True`. Any number of workers may run, in any
        processes; only one of them continues a thread. A step that was cut off runs again from its beginning; completed
        steps do not. A run with `durability="exit"` stores nothing before its end, so it cannot be continued after a
        crash.

        A worker continues threads whose `saver.status` is `"cut off"`, or `"stopped"` because they were drained or
        accepted, and threads that failed in the run of a worker. It leaves a thread alone that stopped at a breakpoint,
        was cancelled, waits for a person, has a tool call with an unknown outcome, or has no mark of a process.
        `saver.unfinished()` lists those.

        Attempts are counted in the store, from zero again when the thread gets another checkpoint. After the last one
        the thread is left alone (`keel threads --unfinished` shows the error). An attempt does not count if another run
        was faster, or if the state was written by a newer version of the application (`NewerState`).

        Each poll costs the round trips of `saver.unfinished()`; taking a thread over costs about ten.

        Args:
            graph: The graph, compiled with this saver. A thread is continued if the graph has all nodes that run next;
                before the thread's first step, if it has one of the nodes that are known of the thread's graph. If
                graphs on the store have equal node names, or no node is known yet, use `match`.
            attempts: Maximum attempts to continue a thread from the same checkpoint.
            match: Pattern of thread ids, such as `orders/*`.
            poll: Polling interval, in seconds.
            timeout: Seconds without work after which the worker ends. With 0 it ends after one poll, with `None` never.
                With `None` the worker also waits for a store that is unreachable.
            config: The config of every run. The thread id is added to it, and `user_id` if the thread has an owner.
            stop: Set this event to end the worker: after its current run, or within `poll` seconds if it is idle.

        Returns:
            An iterator of the threads that were continued, each after its graph has returned or raised.

        Raises:
            InvalidInput: If the graph was not compiled with this saver, the saver was not opened with
                `recoverable=True`, or another argument is invalid.
            ReadOnlyStore: If the saver was opened read-only.
            StoreError: If the store cannot be reached while iterating.
        """
        return self._recovery(graph, attempts, match, poll, timeout, config, stop).run()

    def arecover(
        self,
        graph: Any,
        *,
        attempts: int = 3,
        match: str | None = None,
        poll: float = 1.0,
        timeout: float | None = None,
        config: RunnableConfig | None = None,
        stop: Event | None = None,
    ) -> AsyncIterator[Resumed]:
        """Like `recover`, asynchronously: `async for resumed in saver.arecover(graph)`.

        Cancelling the task cancels its current run, and workers leave a cancelled thread alone: set `stop` instead.
        """
        return self._recovery(graph, attempts, match, poll, timeout, config, stop).arun()

    def _recovery(
        self,
        graph: Any,
        attempts: int,
        match: str | None,
        poll: float,
        timeout: float | None,
        config: RunnableConfig | None,
        stop: Event | None,
    ) -> Worker:
        from langgraph_keel.approvals.notices import SILENT
        from langgraph_keel.recovery.recover import Recovery, check_graph
        from langgraph_keel.runs.worker import PollTimer, RetryList, Worker

        engine, timer = self.engine, PollTimer(poll, timeout)
        check_graph(engine, graph, self.stack.is_read_only)
        retries = RetryList(poll)
        found = Recovery(engine.session, graph, config or {}, attempts, match, retries)
        return Worker(engine, SILENT, found, timer, stop.is_set if stop else bool)
