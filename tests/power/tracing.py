"""A child process with strace attached to it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

DEADLINE = 60
# Slow imports, so that a child starts quickly.
IMPORTED = ("hypothesis", "langgraph.graph", "psycopg", "redis", "langgraph_keel.backends.sqlite")


def context() -> ForkServerContext:
    """Return a clean process with the children's imports, forked for each child."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["pytest", *IMPORTED])
    return made


@cache
def _is_usable() -> bool:
    if not shutil.which("strace"):
        return False
    return not subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True).returncode


def require_strace() -> None:
    """Skip the test if strace cannot be used, or fail it if no test may be skipped."""
    if _is_usable():
        return
    message = "strace cannot be used here: faults of the disk are NOT tested (apt-get install strace, allow ptrace)"
    if os.environ.get("KEEL_REQUIRE_SERVERS") == "1":
        pytest.fail(message)
    pytest.skip(message)


class Traced:
    """A forked `target(*args, pipe)`, which strace traces after its first message.

    It continues when it receives "go" (`tell`); its messages are in `told`.
    """

    def __init__(self, target: Callable[..., object], *args: Any, options: Sequence[str]) -> None:
        mp = context()
        self.pipe, theirs = mp.Pipe()
        self.process = mp.Process(target=target, args=(*args, theirs))
        self.process.start()
        theirs.close()
        self.told: list[Any] = [self.pipe.recv()]
        self.strace = self._attached(options)

    def _attached(self, options: Sequence[str]) -> subprocess.Popen[str]:
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(self.process.pid), *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert tracer.stderr
        line = tracer.stderr.readline()
        assert "attached" in line, line
        while not self._is_traced():
            time.sleep(0.005)
        return tracer

    def _is_traced(self) -> bool:
        """Return whether all its threads are traced."""
        tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
        return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)

    def tell(self, word: str) -> None:
        self.pipe.send(word)

    def hear(self) -> Any:
        """Wait for its next message."""
        assert self.pipe.poll(DEADLINE), "it hangs"
        self.told.append(self.pipe.recv())
        return self.told[-1]

    def hear_all(self) -> list[Any]:
        """Return its messages until it was done or died."""
        try:
            while self.told[-1] != "done":
                self.hear()
        except (EOFError, ConnectionResetError):
            pass
        return self.told

    def detach(self) -> str:
        """Detach strace; return its output."""
        self.strace.send_signal(signal.SIGINT)
        return self.strace.communicate(timeout=120)[1]

    def end(self) -> int | None:
        """Wait for its end; return its exit code."""
        if self.process.is_alive() and self.told[-1] == "done":
            self.tell("end")
        self.process.join(30)
        code = self.process.exitcode
        self.process.kill()
        self.pipe.close()
        return code

    def kill(self) -> None:
        """Kill the process and strace."""
        self.process.kill()
        self.strace.kill()
        self.strace.communicate()
