"""Redis: a server that the run starts; each directory is a prefix.

LangGraph's own saver needs modules that a plain Redis does not have, so Keel is not compared with it. The server syncs
its log at every write (`appendfsync always`), so that no completed write is lost.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import redis

from .backend import Backend, Pair
from .targets import REDIS

SERVER = "KEEL_BENCHMARK_REDIS_URL"


@contextmanager
def server(root: Path, policy: str) -> Iterator[str]:
    """Run a server with this `appendfsync` policy; yield its URL."""
    tempfile.tempdir = str(root.parent)  # the server's files must be on a real disk, too
    with import_module("tests.servers").redis(("--appendonly", "yes", "--appendfsync", policy)) as found:
        yield found.url


@contextmanager
def serve(root: Path) -> Iterator[str]:
    """Run the server, and set its URL in the environment."""
    with server(root, "always") as url, redis.Redis.from_url(url) as client:
        os.environ[SERVER] = url
        yield f"Redis {client.info('server')['redis_version']}, appendfsync always"


def memory(client: Any, prefix: str) -> int:
    """Return MEMORY USAGE of all keys of a prefix, with every element counted."""
    return sum(client.memory_usage(key, samples=0) for key in client.scan_iter(f"{prefix}:*"))


def stored(directory: Path) -> int:
    with redis.Redis.from_url(os.environ[SERVER]) as client:
        return memory(client, directory.name)


def opened(url: str, prefix: str) -> Any:
    # "any": one of the measured servers syncs its log every second, and Keel would warn about it.
    return import_module("langgraph_keel").RedisSaver(url, prefix=prefix, durability="any")


def _keel(directory: Path) -> Any:
    return opened(os.environ[SERVER], directory.name)


def _trip(stack: ExitStack, _: Path) -> Callable[[], object]:
    client = stack.enter_context(redis.Redis.from_url(os.environ[SERVER]))
    return lambda: client.ping()


@contextmanager
def _filled(directory: Path) -> Iterator[Path]:
    """Let writes in the block not wait for the disk."""
    with redis.Redis.from_url(os.environ[SERVER]) as client:
        client.config_set("appendfsync", "no")
        yield directory
        client.config_set("appendfsync", "always")


def _pids(_: Path) -> list[int]:
    with redis.Redis.from_url(os.environ[SERVER]) as client:
        return [client.info("server")["process_id"]]


PAIR = Pair(
    ours=Backend("keel-redis", _keel, _keel, stored, trip=_trip, pids=_pids, filled=_filled),
    theirs=None,
    targets=REDIS,
    measures=(
        "requests",
        "footprint",
        "cells",
        "turns",
        "service",
        "processes",
        "growth",
        "threads",
        "lists",
        "tenants",
        "ledger",
        "provenance",
        "diff",
        "travel",
    ),
    serve=serve,
)
