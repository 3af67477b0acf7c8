"""Measure 13, `append`: what `put` and `put_writes` cost on the disk, beside the least that could be.

The very request that the store makes is timed where the saver's driver carries it out: lock, look, decide, write as
JSON, append, `fdatasync`. Beside it the same bytes are given to a bare `os.pwrite` and `os.fdatasync`, at the end of
another file that was opened before. The call as a whole is a plain figure; the bare append beside another one is the
machine's noise.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from .cells import Subject
from .plan import Plan
from .report import Row
from .shapes import chat
from .steps import Calls
from .timing import Clocked, interleaved, timed

CALLS: dict[str, Callable[[Subject], float]] = {"put": Subject.put, "put_writes": Subject.put_writes}


class Recorder:
    """Stands in for `driver.send`: keeps the seconds that the last request took, and the bytes that it appended."""

    def __init__(self, saver: Any, directory: Path) -> None:
        driver = saver.engine.driver
        self._send = driver.send
        driver.send = self
        self._log = directory / "threads" / "thread-0" / "log.jsonl"

    def __call__(self, request: Any) -> Any:
        self._before = self._log.stat().st_size
        self.seconds, reply = timed(self._send, request)
        return reply

    @property
    def appended(self) -> bytes:
        with open(self._log, "rb") as log:
            log.seek(self._before)
            return log.read()


class Bare:
    """Appends what the request that was recorded last has appended to a file of its own."""

    def __init__(self, stack: ExitStack, path: Path, recorder: Recorder) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        stack.callback(os.close, self._handle)
        self._recorder, self._end = recorder, 0

    def __call__(self) -> float:
        data = self._recorder.appended
        seconds, _ = timed(self._append, data)
        self._end += len(data)
        return seconds

    def _append(self, data: bytes) -> None:
        os.pwrite(self._handle, data, self._end)
        os.fdatasync(self._handle)


def _request(run: Callable[[], object], recorder: Recorder) -> float:
    run()
    return recorder.seconds


def _beside(plan: Plan, name: str, run: Callable[[], float], recorder: Recorder, stack: ExitStack) -> list[Row]:
    directory = plan.directory("append")
    runs: dict[str, Clocked] = {
        "request": partial(_request, run, recorder),
        "bare": Bare(stack, directory / "bare", recorder),
        "call": run,
        "noise": Bare(stack, directory / "noise", recorder),
    }
    took = interleaved(plan.rounds(201), runs)
    label = f"{len(recorder.appended)} bytes, {plan.messages} messages; beside a bare append"
    return [
        Row("append", f"request of {name}, {label}", took["bare"], took["request"], "ms", plan.target("append")),
        Row("append", f"{name} as a whole, {label}", took["bare"], took["call"], "ms"),
        Row("append", f"noise: a bare append of {name}, beside another", took["bare"], took["noise"], "ms"),
    ]


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        directory = plan.directory("append-ours")
        saver = stack.enter_context(plan.pair.ours.open(directory))
        subject = Subject(Calls(saver), chat(plan.messages, threads=1))
        recorder = Recorder(saver, directory)
        beside = partial(_beside, plan, recorder=recorder, stack=stack)
        return [row for name, call in CALLS.items() for row in beside(name, partial(call, subject))]
