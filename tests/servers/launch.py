"""Runs a server: in a directory of its own, as an unprivileged user, gone at the end whatever ends this process."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Of a start or a stop, in seconds. A start takes one; the rest is for a machine that is busy.
PATIENCE = 60.0
# Below the range that the kernel takes clients' ports from (32768 and up on Linux): a server that is down for a moment
# must not find its port taken, nor a client that retries be connected to itself. Redis Cluster also wants port + 10000.
PORTS = range(12_000, 22_000)
BUS = 10_000

# Reads until the process that holds the other end is gone, then ends what that has left behind, if anything.
WATCH = """
read -r _
[ -d "$1" ] || exit 0
for pid in $(cat "$1"/pid-*); do kill -QUIT "$pid"; done 2>/dev/null
sleep 1
for pid in $(cat "$1"/pid-*); do kill -KILL "$pid"; done 2>/dev/null
rm -rf "$1"
"""


class ServerFailed(Exception):
    """A server did not start, or does not answer; with the end of its log."""


def unprivileged() -> dict[str, Any]:
    """Arguments for `subprocess`: as `nobody` when we are root, whom PostgreSQL and PgBouncer refuse."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def free_port() -> int:
    """A port of 127.0.0.1 that was free just now, with that of its cluster bus."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        if _is_free(port) and _is_free(port + BUS):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A directory for a server that may run as another user; removed at the end, also when we are killed."""
    directory = Path(tempfile.mkdtemp(prefix=f"keel-{name}-", dir=_reachable()))
    _give(directory)
    watch = ["sh", "-c", WATCH, "keel-watch", str(directory)]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True) as watching:
        try:
            yield directory
        finally:
            remove(directory)
            watching.kill()  # a forked child may hold the pipe open


def _reachable() -> str:
    """The directory for temporary files; not one that only root may enter (TMPDIR below /root) if there is a better."""
    usual = tempfile.gettempdir()
    places = [usual, "/tmp", "/var/tmp"] if unprivileged() else [usual]
    return next((place for place in places if _is_open(Path(place).resolve())), usual)


def _is_open(directory: Path) -> bool:
    return all(path.is_dir() and path.stat().st_mode & 0o001 for path in (directory, *directory.parents))


def _give(path: Path) -> None:
    if account := unprivileged():
        os.chown(path, account["user"], account["group"], follow_symlinks=False)


def remove(directory: Path) -> None:
    """Delete a directory in which children of a killed server may still write for a moment."""
    until = time.monotonic() + PATIENCE
    while directory.exists() and time.monotonic() < until:
        shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ServerFailed(f"{directory} can't be removed")


def runnable(binary: Path, directory: Path, root: Path, *others: Path) -> Path:
    """Return a path of the binary that the server's user can run: itself, or a copy in the server's directory.

    A wheel may lie where only root can read (/root/...). Nothing outside of `directory` is changed.

    Args:
        binary: The program.
        directory: The server's own.
        root: What to copy, a directory that has the program in it, or the program.
        others: More to copy; where they lie relative to `root` is kept.
    """
    if runs(binary):
        return binary
    top = Path(os.path.commonpath([root.parent, *(other.parent for other in others)]))
    for tree in (root, *others):
        _copy(tree, directory / "copy" / tree.relative_to(top))
    for path in (directory / "copy", *(directory / "copy").rglob("*")):
        _give(path)
    return directory / "copy" / binary.relative_to(top)


def _copy(tree: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if tree.is_dir():
        shutil.copytree(tree, target, ignore=shutil.ignore_patterns("include"))
    else:
        shutil.copy2(tree, target)


def runs(binary: Path) -> bool:
    """Whether the server's user can run the binary."""
    try:
        done = subprocess.run([binary, "--version"], cwd="/", capture_output=True, timeout=PATIENCE, **unprivileged())
    except PermissionError:
        return False
    return done.returncode == 0


class Launched:
    """A server process of ours, in a directory of its own, on a port of 127.0.0.1.

    Args:
        directory: Where it runs, and its log is.
        command: The command line, of a port.
        ready: Returns the server's version, of a port; raises as long as there is no server.
        stop: The signal that makes the server finish what must be finished, and exit at once.
        says: What its log has, in any case, when it listens. Before that, who answers may be another's server.
        is_ours: Whether it runs as the user of the tests, as a program of this environment must.
    """

    def __init__(
        self,
        directory: Path,
        command: Callable[[int], Sequence[str | Path]],
        ready: Callable[[int], str],
        stop: signal.Signals,
        says: str = "ready to accept",
        is_ours: bool = False,
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.version = ""
        self._command = command
        self._ready = ready
        self._stop = stop
        self._says = says
        self._user = {} if is_ours else unprivileged()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; of the one that ran last, if none does."""
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and return when it answers; on the same port as before, if it ran before.

        Raises:
            ServerFailed: it does not come up.
        """
        until = time.monotonic() + PATIENCE
        while not self._comes_up(until):
            self.kill()
            said = self.log()
            # Somebody was quicker to take the port; or children of the one that was killed are not gone yet.
            if "in use" not in said or time.monotonic() > until:
                raise ServerFailed(f"{self.directory.name} does not start. The end of its log:\n{said}")
            self.port = self.port if self.version else free_port()
            time.sleep(0.1)

    def kill(self) -> None:
        """End it with SIGKILL, as the kernel does when memory is short."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it orderly, and with SIGKILL when that takes too long."""
        try:
            self._end(self._stop)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Start it again, with the data it had, after a stop if it runs."""
        self.stop()
        self.start()

    def log(self) -> str:
        """The end of what the server wrote since it was last started."""
        return (self.directory / "log").read_text(errors="replace")[-3000:]

    def _comes_up(self, until: float) -> bool:
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(self.port),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._user,
            )
        self._pid_file().write_text(f"{self._process.pid}\n")
        while self.is_running and time.monotonic() < until:
            if self._answers():
                return True
            time.sleep(0.02)
        return False

    def _answers(self) -> bool:
        if self._says not in self.log().lower():
            return False
        with suppress(Exception):
            self.version = self._ready(self.port)
            return True
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self.is_running:
                self._process.send_signal(how)
            self._process.wait(10)
            self._pid_file().unlink(missing_ok=True)

    def _pid_file(self) -> Path:
        return self.directory / f"pid-{self.port}"


@contextmanager
def running(server: Launched) -> Iterator[Launched]:
    """Start the server, and stop it at the end."""
    try:
        server.start()
        yield server
    finally:
        server.stop()
