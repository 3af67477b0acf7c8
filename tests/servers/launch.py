"""Run a server in its own directory, as an unprivileged user.

It ends with this process, even if this process is killed.
"""

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

# Maximum duration of a start or a stop, in seconds. A start takes one; the rest is for a busy machine.
PATIENCE = 60.0
# Below the range of client ports (on Linux from 32768). A stopped server must find its port free when it starts again,
# and a retrying client must not connect to itself. Redis Cluster also needs port + 10000.
PORTS = range(12_000, 22_000)
BUS = 10_000

# Reads until the process at the other end has ended, then kills its remaining servers and deletes the directory.
WATCH = """
read -r _
[ -d "$1" ] || exit 0
for pid in $(cat "$1"/pid-*); do kill -QUIT "$pid"; done 2>/dev/null
sleep 1
for pid in $(cat "$1"/pid-*); do kill -KILL "$pid"; done 2>/dev/null
rm -rf "$1"
"""


class ServerFailed(Exception):
    """A server did not start, or does not answer; the message has the end of its log."""


def unprivileged() -> dict[str, Any]:
    """Return arguments for `subprocess` that make root run a program as `nobody`.

    PostgreSQL and PgBouncer refuse to run as root.
    """
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free just now, with that of its cluster bus."""
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
    """Yield a directory for a server of any user; it is removed even if we are killed."""
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
    """Return the directory for temporary files.

    If only root may enter it (TMPDIR below /root), return another one if possible.
    """
    usual = tempfile.gettempdir()
    places = [usual, "/tmp", "/var/tmp"] if unprivileged() else [usual]
    return next((place for place in places if _is_open(Path(place).resolve())), usual)


def _is_open(directory: Path) -> bool:
    return all(path.is_dir() and path.stat().st_mode & 0o001 for path in (directory, *directory.parents))


def _give(path: Path) -> None:
    if account := unprivileged():
        os.chown(path, account["user"], account["group"], follow_symlinks=False)


def remove(directory: Path) -> None:
    """Delete a directory, even if a killed server's children still write for a moment."""
    until = time.monotonic() + PATIENCE
    while directory.exists() and time.monotonic() < until:
        shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ServerFailed(f"{directory} can't be removed")


def runnable(binary: Path, directory: Path, root: Path, *others: Path) -> Path:
    """Return a path at which the server's user can run the binary, perhaps a copy.

    A wheel may be installed where only root can read (/root/...). Nothing outside `directory` is changed.

    Args:
        binary: The program.
        directory: The server's own, for the copy.
        root: The part to copy: a directory that contains the program, or the program.
        others: More to copy, to the same place relative to `root`.
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
    """Return whether the server's user can run the binary."""
    try:
        done = subprocess.run([binary, "--version"], cwd="/", capture_output=True, timeout=PATIENCE, **unprivileged())
    except PermissionError:
        return False
    return done.returncode == 0


class Launched:
    """A server process of the tests, in its own directory, on a port of 127.0.0.1.

    Args:
        directory: Its working directory, with its log.
        command: Returns the command line for a port.
        ready: Returns the version of the server on a port; raises if no server answers.
        stop: The signal for an immediate clean shutdown.
        says: A text that its log contains once it listens. Before that, a server that answers may be another one.
        is_ours: Whether it runs as the user of the tests, as programs of this environment must.
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
        """The id of the current process, or else of the last one."""
        assert self._process
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and return when it answers; a restart uses the same port.

        Raises:
            ServerFailed: If it does not start.
        """
        until = time.monotonic() + PATIENCE
        while not self._comes_up(until):
            self.kill()
            said = self.log()
            # Another process took the port first, or children of the killed server still run.
            if "in use" not in said or time.monotonic() > until:
                raise ServerFailed(f"{self.directory.name} does not start. The end of its log:\n{said}")
            self.port = self.port if self.version else free_port()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it with SIGKILL, as the kernel does if memory is short."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop it cleanly, or with SIGKILL if that takes too long."""
        try:
            self._end(self._stop)
        except subprocess.TimeoutExpired:
            self.kill()

    def restart(self) -> None:
        """Start it again with its data, after stopping it if it runs."""
        self.stop()
        self.start()

    def log(self) -> str:
        """Return the end of the server's log since its last start."""
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
