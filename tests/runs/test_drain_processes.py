"""Programs that receive SIGTERM in step three of five end after that step.

No step runs twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import httpx
import pytest
from support.places import Place, file_place
from support.runs.draining import THREADS, config_of, five_steps

pytestmark = pytest.mark.slow
CHILD = Path(__file__).parents[1] / "support" / "runs" / "draining.py"
OPTIONS = {"recoverable": True, "on_busy": "wait"}
PATIENCE = 120
"""Timeout for another process, in seconds."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return file_place(tmp_path)


@contextmanager
def started(program: str, place: Place, *more: str, inside: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and kill it if the test fails."""
    words = [*inside, sys.executable, str(CHILD), program, place.url, json.dumps(OPTIONS), *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def lines_until(child: subprocess.Popen[str], last: set[str]) -> list[str]:
    """Read the child's output until all of these lines have come."""
    assert child.stdout is not None
    seen: list[str] = []
    while not last <= set(seen):
        line = child.stdout.readline()
        assert line, seen
        seen.append(line.strip())
    return seen


def end(child: subprocess.Popen[str], threads: str, is_inside: bool = False) -> int:
    """Send SIGTERM when all runs are in step 3; return the exit status.

    No later step may start.
    """
    seen = lines_until(child, {f"{name} 3" for name in threads})
    inner = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text() if is_inside else child.pid
    os.kill(int(inner), signal.SIGTERM)
    child.wait(PATIENCE)
    assert child.stdout is not None
    seen += child.stdout.read().splitlines()
    assert sorted(seen) == [f"{name} {number}" for name in threads for number in (1, 2, 3)]
    return child.returncode


def go_on(place: Place, threads: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Resume the threads here, without a wait; only the remaining steps run."""
    with place.open(**OPTIONS) as saver:
        for name in threads:
            status = saver.status(name)
            assert (status.state, status.stopped, status.can_go_on) == ("stopped", "drained", True)
            capfd.readouterr()
            assert five_steps(saver).invoke(status.given, config_of(name)) == {"log": [1, 2, 3, 4, 5]}
            assert capfd.readouterr().out.splitlines() == [f"{name} 4", f"{name} 5"]


@pytest.mark.parametrize(("program", "threads"), [("alone", "a"), ("threads", THREADS), ("asyncio", THREADS)])
def test_a_program_ends_after_its_step(
    program: str, threads: str, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    with started(program, place) as child:
        assert end(child, threads) == 0
    go_on(place, threads, capfd)


def test_the_first_process_of_a_container_ends_after_its_step(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """For PID 1 the kernel drops signals without a handler."""
    words = ["unshare", "--pid", "--fork"] if os.getuid() == 0 else ["unshare", "--user", "--pid", "--fork"]
    if not shutil.which("unshare") or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("the kernel refuses a namespace of processes (unshare --pid)")
    with started("alone", place, inside=words) as child:
        assert end(child, "a", is_inside=True) == 0
    go_on(place, "a", capfd)


@pytest.mark.parametrize(
    ("program", "statuses"),
    # uvicorn raises the signal again after its shutdown, which ends the process by default. The block ends it with 0.
    [("uvicorn", (0, -signal.SIGTERM)), ("uvicorn in a block", (0,))],
)
def test_a_service_ends_after_its_step(
    program: str, statuses: tuple[int, ...], place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started(program, place, str(port)) as child:
        for name in "ab":
            post(f"http://127.0.0.1:{port}/{name}")
        assert end(child, "ab") in statuses
    go_on(place, "ab", capfd)


def post(url: str) -> None:
    """Send a request to a service that is starting, without a signal of its readiness."""
    until = monotonic() + PATIENCE
    while True:
        try:
            assert httpx.post(url).status_code == 202
            return
        except httpx.TransportError:
            assert monotonic() < until
            sleep(0.05)
