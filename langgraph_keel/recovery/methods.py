"""The methods of a saver that continue threads which no process runs any more."""

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
        """Continue threads whose process has died, and those that were drained or accepted: a worker.

            for resumed in saver.recover(graph):
                print(resumed.thread_id, resumed.error or resumed.result)

        All savers that run graphs on the store need `recoverable=True`. There may be any number of workers, in any
        processes: one of them takes a thread over. A step that was cut off runs again from its beginning; steps before
        it do not. A run with `durability="exit"` stores nothing before its end, so after a crash nothing is left of it.

        It takes threads whose `saver.status` is `"cut off"`, or `"stopped"` because they were drained or accepted; and
        those that have failed under a worker. Never one that stopped at a breakpoint, was cancelled, waits for a
        person, has a call of a tool in doubt, or has no mark of a process. `saver.unfinished()` lists those.

        Attempts are counted in the store, and from zero again when the thread gets another checkpoint. After the last
        one the thread is left alone (`keel threads --unfinished` shows the error). An attempt that another run or a
        newer version of the application (`NewerState`) was in the way of does not count.

        A look costs the round trips of `saver.unfinished()`. To take a thread over costs about ten.

        Args:
            graph: The graph, compiled with this saver. A thread is taken if the nodes that run next are all in it; and
                before its first step, if it has one of the nodes that are known of the thread's graph. That cannot tell
                graphs apart whose nodes have the same names, nor where nothing is known: then use `match`.
            attempts: How often a thread is continued from the same checkpoint.
            match: Only threads whose ids fit this pattern: `orders/*`.
            poll: Seconds between two looks.
            timeout: Seconds without work after which to end; 0 is after one look, `None` is never. With `None`, a store
                that cannot be reached is waited for.
            config: The config of every run, besides its thread, and `user_id` where the thread has an owner.
            stop: Once it is set, the worker ends: after the run that it is at, or else within `poll` seconds.

        Returns:
            The threads that were continued, each when the graph has returned or raised.

        Raises:
            InvalidInput: The graph was not compiled with this saver, which must have `recoverable=True`; or an argument
                is none.
            ReadOnlyStore: The saver was opened to read only.
            StoreError: The store cannot be asked; while iterating.
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
        """As `recover`, asynchronously: `async for resumed in saver.arecover(graph)`.

        A task that is cancelled cancels the run that it is at, whose thread is then left alone: set `stop` instead.
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
