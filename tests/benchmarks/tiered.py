"""Redis as a hot store before PostgreSQL, compared with each of them alone; also the measure `hits`.

A hit is a `get_tuple` in a process that has not cached the thread, when the hot store has a copy: each saver's memo is
empty. A `put` follows a read by the same process.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from . import postgres, redis
from .backend import Backend, Pair, Saver
from .graphs import message, thread
from .plan import Plan
from .report import Row
from .steps import Calls, Sequence
from .targets import TIERED
from .timing import Clocked, interleaved

SIZES = (10, 100, 1000)


@contextmanager
def _serve(root: Path) -> Iterator[str]:
    # A hot store can only lose copies, so its log need not be synced.
    with redis.server(root, "no") as url, postgres.serve(root) as title:
        os.environ[redis.SERVER] = url
        yield f"Redis, appendfsync no; {title}"


def _redis(directory: Path, **options: Any) -> Any:
    url = os.environ[redis.SERVER]
    return import_module("langgraph_keel").RedisSaver(url, prefix=directory.name, durability="any", **options)


def _postgres(directory: Path, **options: Any) -> Any:
    return import_module("langgraph_keel").PostgresSaver(postgres.database(directory), **options)


def _tiered(directory: Path, **options: Any) -> Any:
    hot, cold = _redis(directory), _postgres(directory)
    return import_module("langgraph_keel").TieredSaver(hot=hot, cold=cold, **options)


OPENERS: dict[str, Callable[..., Any]] = {"redis": _redis, "postgres": _postgres, "tiered": _tiered}


def measure(plan: Plan) -> list[Row]:
    rows = []
    for size in SIZES:
        with ExitStack() as stack:
            hits, puts = {}, {}
            for name, opener in OPENERS.items():
                directory = plan.directory(f"hits-{size}-{name}")
                knows, stranger = (stack.enter_context(opener(directory, **memo)) for memo in ({}, {"memo_entries": 0}))
                hits[name], puts[name] = _subjects(knows, stranger, size)
            taken = interleaved(plan.rounds(61), hits)
            rows += [
                _row(plan, f"chat of {size} messages: a hit, compared with {label}", taken[name], taken["tiered"], name)
                for name, label in (("redis", "RedisSaver"), ("postgres", "PostgresSaver"))
            ]
            taken = interleaved(plan.rounds(31), puts)
            label = f"chat of {size} messages: a put, compared with PostgresSaver"
            rows.append(_row(plan, label, taken["postgres"], taken["tiered"]))
    return rows


def _row(plan: Plan, label: str, alone: float, ours: float, target: str = "") -> Row:
    return Row("hits", label, alone, ours, "ms", plan.target(f"hit: {target}"))


def _subjects(knows: Saver, stranger: Saver, size: int) -> tuple[Clocked, Clocked]:
    sequence = Sequence(knows, "t")
    sequence.put({"messages": [message(index) for index in range(size)]})
    calls = Calls(stranger)
    calls.get_tuple(thread("t"))  # creates the copy in the hot store

    def put() -> float:
        knows.get_tuple(thread("t"))
        said = sequence.values["messages"]
        return sequence.put({"messages": [*said, message(len(said))]})

    return lambda: calls.get_tuple(thread("t"))[0], put


PAIR = Pair(
    ours=Backend("keel-tiered", _tiered, _tiered),
    theirs=Backend("keel-redis-hot", _redis, _redis),
    targets=TIERED,
    measures=("hits", "cells"),
    serve=_serve,
)
