"""Faults of the disk, injected into system calls by strace: a named error, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from places import integrity
from test_encoding import checkpoint_of, config_for
from test_processes_race import context

from langgraph_keel import KeelError, SqliteSaver, StoreError, StoreFull

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}
CALLS = "pwrite64,fdatasync,ftruncate"
PUTS = 6


def usable_strace() -> bool:
    return (
        bool(shutil.which("strace"))
        and not subprocess.run(
            ["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False
        ).returncode
    )


@pytest.fixture(autouse=True, scope="module")
def strace() -> None:
    if usable_strace():
        return
    message = "strace cannot be used here: faults of the disk are NOT tested (apt-get install strace, allow ptrace)"
    if os.environ.get("KEEL_REQUIRE_SERVERS") == "1":
        pytest.fail(message)
    pytest.skip(message)


def values_at(number: int) -> dict[str, Any]:
    """Some kilobytes that do not compress, so that a put is many writes."""
    return {
        "number": number,
        "messages": [HumanMessage(f"{n} {n * 7919**9}", id=str(n)) for n in range(number * 3)],
        "blob": bytes((n * n * number + n // 7) % 251 for n in range(6000)),
    }


def put_and_tell(saver: SqliteSaver, number: int, pipe: Connection) -> None:
    """Put until it works, and tell of each attempt."""
    for _ in range(1000):
        try:
            saver.put(config_for("t"), checkpoint_of(f"{number:08}", values_at(number)), METADATA, {})
        except KeelError as error:
            pipe.send((number, type(error).__name__, str(error)))
            time.sleep(0.01)
        else:
            pipe.send((number, "kept", ""))
            return


def child(path: Path, pipe: Connection) -> None:
    with SqliteSaver(path) as saver:
        put_and_tell(saver, 0, pipe)
        assert pipe.recv() == "go"
        for number in range(1, PUTS + 1):
            put_and_tell(saver, number, pipe)
        pipe.send("done")
        assert pipe.recv() == "end"


class Patient:
    """A process that puts, and strace attached to it."""

    def __init__(self, path: Path, fault: str) -> None:
        self.path = path
        mp = context()
        self.pipe, theirs = mp.Pipe()
        self.process = mp.Process(target=child, args=(path, theirs))
        self.process.start()
        theirs.close()
        self.told: list[Any] = [self.pipe.recv()]
        self.strace = self.attached(fault)

    def attached(self, fault: str) -> subprocess.Popen[str]:
        command = ["strace", "-f", "-p", str(self.process.pid), "-e", f"trace={CALLS}", "-e", f"inject={fault}"]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert tracer.stderr
        line = tracer.stderr.readline()
        assert "attached" in line, line
        while not self.traced():
            time.sleep(0.005)
        return tracer

    def traced(self) -> bool:
        """Whether all its threads are."""
        tasks = list(Path(f"/proc/{self.process.pid}/task").iterdir())
        return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)

    def run(self) -> list[Any]:
        """Let it put; return what it told until it was done or died."""
        self.pipe.send("go")
        try:
            while self.told[-1] != "done":
                assert self.pipe.poll(60), "it hangs"
                self.told.append(self.pipe.recv())
        except (EOFError, ConnectionResetError):
            pass
        return self.told

    def detach(self) -> str:
        """Take strace away; return what it saw."""
        self.strace.send_signal(signal.SIGINT)
        return self.strace.communicate(timeout=30)[1]

    def end(self) -> int | None:
        if self.process.is_alive() and self.told[-1] == "done":
            self.pipe.send("end")
        self.process.join(30)
        code = self.process.exitcode
        self.process.kill()
        self.pipe.close()
        return code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keel.db"


@pytest.fixture
def patients() -> Iterator[list[Patient]]:
    made: list[Patient] = []
    yield made
    for patient in made:
        patient.process.kill()
        patient.strace.kill()


def kept_of(told: list[Any]) -> set[int]:
    return {one[0] for one in told if one != "done" and one[1] == "kept"}


def errors_of(told: list[Any]) -> list[tuple[str, str]]:
    return [(one[1], one[2]) for one in told if one != "done" and one[1] != "kept"]


def check_store(path: Path, kept: set[int]) -> None:
    """All that was acknowledged is there as it was; what is there besides is whole; and it can be written to."""
    assert integrity(path) == "ok"
    with SqliteSaver(path) as saver:
        found = {one.checkpoint["channel_values"]["number"]: one for one in saver.list(config_for("t"))}
        assert kept <= found.keys()
        for number, one in found.items():
            assert one.checkpoint["channel_values"] == values_at(number)
        saver.put(config_for("t"), checkpoint_of("00000099", values_at(9)), METADATA, {})
        assert saver.get_tuple(config_for("t")).checkpoint["channel_values"] == values_at(9)  # type: ignore[union-attr]


CASES = [
    *((f"pwrite64:error=EIO:when={nth}", "StoreError") for nth in (1, 2, 7, 20, 40)),
    *((f"pwrite64:error=ENOSPC:when={nth}", "StoreFull") for nth in (1, 2, 7, 20, 40)),
    *((f"fdatasync:error={error}:when={nth}", "StoreError") for error in ("EIO", "ENOSPC") for nth in (1, 2, 4)),
]
KILLS = [
    *(f"pwrite64:signal=KILL:when={nth}" for nth in (1, 2, 3, 7, 12, 20, 33, 50)),
    *(f"fdatasync:signal=KILL:when={nth}" for nth in (1, 2, 3, 5)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "error"), CASES)
def test_a_failing_write_is_named_and_the_saver_works_on(
    fault: str, error: str, path: Path, patients: list[Patient]
) -> None:
    patient = Patient(path, fault)
    patients.append(patient)
    told = patient.run()
    seen = patient.detach()
    assert patient.end() == 0
    assert "(INJECTED)" in seen
    (failed,) = errors_of(told)
    assert failed[0] == error
    assert "keel.db" in failed[1]
    assert kept_of(told) == set(range(PUTS + 1))
    check_store(path, kept_of(told))


@pytest.mark.slow
@pytest.mark.parametrize("fault", KILLS)
def test_a_kill_in_the_middle_of_a_write_loses_nothing(fault: str, path: Path, patients: list[Patient]) -> None:
    patient = Patient(path, fault)
    patients.append(patient)
    told = patient.run()
    assert patient.end() == -signal.SIGKILL
    patient.strace.communicate(timeout=30)
    assert not errors_of(told)
    assert len(kept_of(told)) <= PUTS
    check_store(path, kept_of(told))


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(path: Path, patients: list[Patient]) -> None:
    """Every write fails until there is room again; the process goes on, and so does the thread."""
    patient = Patient(path, "pwrite64:error=ENOSPC:when=1+")
    patients.append(patient)
    patient.pipe.send("go")
    for _ in range(3):
        number, name, says = patient.pipe.recv()
        assert (number, name) == (1, StoreFull.__name__)
        assert "keel.db: no space left" in says
    with SqliteSaver(path) as saver:
        assert saver.get_tuple(config_for("t")).checkpoint["channel_values"] == values_at(0)  # type: ignore[union-attr]
    patient.detach()
    while patient.told[-1] != "done":
        assert patient.pipe.poll(60)
        patient.told.append(patient.pipe.recv())
    assert patient.end() == 0
    assert kept_of(patient.told) == set(range(PUTS + 1))
    check_store(path, kept_of(patient.told))


def test_the_errors_are_the_builtins_that_fit() -> None:
    assert issubclass(StoreFull, (StoreError))
    assert issubclass(StoreFull, OSError)
