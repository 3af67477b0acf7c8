"""Draining: before a process ends, its runs end after their current steps.

Other processes can then continue the threads. LangGraph's `RunControl` ends the runs. Before the end of a drained run
is reported here, it has released its claim, and with `recoverable=True` recorded why it has stopped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from functools import partial
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Self

from langgraph_keel.engine import runs as live
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, SaverDraining
from langgraph_keel.runs.hook import keepers_of

_log = logging.getLogger(__name__)
_LOOK = 0.02
"""Polling interval of runs that have not ended, in seconds."""
_LAST = 5.0
"""Maximum seconds for the writes after the end of runs: stops, released claims."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_open: list[Draining] = []
"""The active blocks of the main thread, the outermost first."""
_former: dict[int, Any] = {}
"""The handlers that the outermost block has replaced."""


def drain_runs(drain: live.Drain, grace: float) -> Plan[tuple[str, ...]]:
    """Wait for the runs of a draining saver; return the threads of unfinished ones."""
    until = monotonic() + grace
    # Blocking a running loop would keep its own runs from ending.
    waits_for_async = yield Call(lambda: asyncio._get_running_loop() is None, _agree)
    while left := live.ask_to_end(drain):
        if monotonic() >= until or not (waits_for_async or any(not run.is_async for run in left)):
            break
        yield Pause(_LOOK)
    for keeper in keepers_of(drain):
        yield Call(partial(keeper.flush, _LAST))
    threads = tuple(sorted({run.thread_id for run in left}))
    if threads:
        _log.warning("drained, except for runs that have not ended their steps, on threads: %s", ", ".join(threads))
    return threads


async def _agree() -> bool:
    return True


@publish
class Draining:
    """A block in which SIGTERM and SIGINT end a saver's runs; see `saver.draining`.

    Attributes:
        requested: The name of the received signal, such as `"SIGTERM"`; empty if none.
        left: After the block, the threads of runs that have not ended within the grace time.
    """

    def __init__(self, engine: Engine, drain: live.Drain, grace: float) -> None:
        self._engine = engine
        self._drain = drain
        self._grace = grace
        self.pid = os.getpid()
        self.requested = ""
        self.left: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        """Start to handle the signals."""
        if threading.current_thread() is not threading.main_thread():
            raise InvalidInput(
                "saver.draining() handles signals, which Python delivers to the main thread: use it there; or call "
                "saver.drain(grace), or await saver.adrain(grace), when your program has to end"
            )
        _open.append(self)  # first: a signal may arrive as soon as it is handled
        if len(_open) == 1:
            # Signals that are ignored, or handled outside of Python, are not changed.
            _former.clear()
            former = {each: signal.getsignal(each) for each in _SIGNALS}
            _former.update((each, now) for each, now in former.items() if now not in (signal.SIG_IGN, None))
            for number in _former:
                signal.signal(number, _hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Wait for the runs if a signal was received, and act on it."""
        try:
            if self.requested:
                self.left = self._engine.run_patiently(drain_runs(self._drain, self._grace))
        finally:
            self._leave()
        return self._act(error)

    async def __aenter__(self) -> Self:
        """Like the blocking form."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Like the blocking form, without blocking the loop."""
        try:
            if self.requested:
                self.left = await self._engine.arun_patiently(drain_runs(self._drain, self._grace))
        finally:
            self._leave()
        return self._act(error)

    def request(self, name: str) -> None:
        """End runs after their steps, and refuse new ones. Lock-free, for signal handlers."""
        self.requested = self._drain.reason = name
        live.ask_to_end(self._drain)

    def _leave(self) -> None:
        if self in _open:  # not in a process that was forked in the block
            _open.remove(self)
        if not _open:
            _restore()
        if self.requested == signal.SIGINT.name and all(each._drain is not self._drain for each in _open):
            self._drain.reason = ""  # in a notebook, the next cell may run graphs

    def _act(self, error: BaseException | None) -> bool:
        """Act on the signal after the outermost block; return whether to drop the error."""
        from langgraph.errors import GraphDrained

        if _open or not self.requested or not isinstance(error, GraphDrained | SaverDraining | None):
            return False
        number = signal.Signals[self.requested]
        former = _former[number]
        if not callable(former):
            raise SystemExit(1 if self.left else 0) from None
        former(number, None)
        return True


def _hear(number: int, frame: FrameType | None) -> None:
    """Handle the first signal, and restore the former handlers for a second one."""
    _restore()
    blocks = [each for each in _open if each.pid == os.getpid()]
    if not blocks:  # in a process that was just forked
        signal.raise_signal(number)
    for each in blocks:
        each.request(signal.Signals(number).name)


def _restore() -> None:
    for number, former in _former.items():
        if signal.getsignal(number) is _hear:  # else the program has replaced it since
            signal.signal(number, former)


def _after_fork() -> None:
    # In the child, a signal ends the process as it did before.
    _open.clear()
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
