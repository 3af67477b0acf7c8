"""Measure 20, `lists`: the first page of a list of 100,000 threads, with and without filters.

Each thread has an owner (one of 1000) and one checkpoint, stored in the last 30 days. One of 33 threads has a node to
run, and one of 500 has failed. LangGraph's savers have no list of threads.
"""

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from .plan import Plan
from .report import Row
from .timing import interleaved, timed

COUNT, PAGE = 100_000, 50
ASKED: Mapping[str, Mapping[str, Any]] = {
    "all": {},
    "status=failed": {"status": "failed"},
    "status=failed, of an owner": {"status": "failed", "owner": "user 0"},
    "status=done": {"status": "done"},
    "of an owner": {"owner": "user 7"},
    "of an unknown owner": {"owner": "nobody"},
}


def name_of(number: int) -> str:
    return f"thread-{number:06}"


def fill(saver: Any, threads: int) -> None:
    """Store the threads, 32 at a time."""
    chosen = random.Random("lists")
    with ThreadPoolExecutor(32) as pool:
        chances = [(chosen.random(), chosen.random()) for _ in range(threads)]
        list(pool.map(partial(_put, saver), range(threads), chances))


def _put(saver: Any, number: int, chances: tuple[float, float]) -> None:
    chance, age = chances
    checkpoint = empty_checkpoint() | {"v": 4}
    checkpoint["ts"] = (datetime.now(UTC) - age * timedelta(days=30)).isoformat()
    if chance < 0.03:
        checkpoint["channel_values"] = {"branch:to:tools": None}
        checkpoint["channel_versions"] = {"branch:to:tools": 1}
    owner = f"user {number % 1000}"
    config = {"configurable": {"thread_id": name_of(number), "checkpoint_ns": "", "user_id": owner}}
    about = {"source": "loop", "step": 5, "parents": {}}
    stored = saver.put(config, checkpoint, about, checkpoint["channel_versions"])
    if number % 500 == 0:
        saver.put_writes(stored, [("__error__", ValueError("no answer"))], "task")


def _page(saver: Any, wanted: Mapping[str, Any]) -> float:
    return timed(lambda: list(saver.threads(PAGE, **wanted)))[0]


def measure(plan: Plan) -> list[Row]:
    threads = plan.count(COUNT)
    with plan.ours.open(plan.directory("lists")) as saver:
        fill(saver, threads)
        took = interleaved(plan.rounds(15), {name: partial(_page, saver, asked) for name, asked in ASKED.items()})
    target = plan.target("lists")
    return [
        Row("lists", f"first {PAGE} of {threads:,} threads, {name}", None, took[name], "ms", target) for name in ASKED
    ]
