"""Lists of threads in both orders, page by page, equal Python's sort."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from support.cli_threads import keel, keel_json
from support.places import Place

from langgraph_keel import InvalidInput, KeelSaver, Keyring, LocalKey, MemorySaver, SqliteSaver, ThreadInfo, TieredSaver
from langgraph_keel.engine.queries import PAGE

ORDERS: tuple[Literal["newest", "oldest"], ...] = ("newest", "oldest")
THREADS = PAGE + 20
BEGIN = datetime(2026, 11, 23, 10, tzinfo=UTC)
KEY = LocalKey("k", bytes(range(32)))


def fill(saver: KeelSaver) -> None:
    """Store threads in random order, seconds or hours apart, with ids of all kinds."""
    chosen = random.Random("order")
    ids = [f"t{number}{chosen.choice(['', '/', 'é', '%', ' x'])}" for number in range(THREADS)] + ["t", "t1", "t10\x01"]
    for thread in ids:
        at = BEGIN + chosen.choice(
            [timedelta(), timedelta(seconds=chosen.random() * 9), timedelta(days=chosen.random())]
        )
        config: Any = {
            "configurable": {"thread_id": thread, "checkpoint_ns": "", "user_id": chosen.choice(["ada", "bob"])}
        }
        checkpoint: Any = {**empty_checkpoint(), "ts": at.isoformat()}
        saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})


def pages(saver: KeelSaver, size: int, **wanted: Any) -> list[ThreadInfo]:
    """Read a list page by page."""
    found: list[ThreadInfo] = []
    after = None
    while page := list(saver.threads(size, after=after, **wanted)):
        found += page
        after = page[-1].cursor
    return found


async def asynchronously(saver: KeelSaver, **wanted: Any) -> list[ThreadInfo]:
    return [info async for info in saver.athreads(**wanted)]


def compare(saver: KeelSaver) -> None:
    fill(saver)
    everything = list(saver.threads())
    assert len(everything) == THREADS + 3
    middle = BEGIN + timedelta(hours=8)
    asked: list[dict[str, Any]] = [
        {},
        {"owner": "ada"},
        {"status": "done", "owner": "bob"},
        {"since": middle},
        {"until": middle},
        {"owner": "ada", "since": BEGIN + timedelta(seconds=5), "until": middle},
    ]
    for wanted in asked:
        known = {info.thread_id: info.updated_at for info in saver.threads(**wanted)}
        assert 0 < len(known) <= len(everything)
        for order in ORDERS:
            said = sorted(known, key=lambda name: (known[name], name), reverse=order == "newest")
            found = pages(saver, 7, order=order, **wanted)
            assert [info.thread_id for info in found] == said, (wanted, order)
            whole = asyncio.run(asynchronously(saver, order=order, **wanted))
            assert whole == list(saver.threads(order=order, **wanted)) == found
            assert list(saver.threads(5, order=order, **wanted)) == found[:5]


@pytest.mark.slow
def test_both_orders_equal_a_sort(place: Place) -> None:
    with place.open() as saver:
        compare(saver)


def test_both_orders_in_memory() -> None:
    with MemorySaver() as saver:
        compare(saver)


@pytest.mark.slow
def test_both_orders_of_a_tenant_with_hidden_names(place: Place) -> None:
    with place.open(encryption=Keyring(KEY, hide_names=True)) as shared:
        fill(shared.for_tenant("before"))
        compare(shared.for_tenant("acme"))


def test_both_orders_of_a_tiered_store(tmp_path: Path) -> None:
    with TieredSaver(hot=MemorySaver(), cold=SqliteSaver(tmp_path / "agent.db")) as saver:
        compare(saver)


def test_a_cursor_of_the_other_order_is_refused() -> None:
    with MemorySaver() as saver:
        fill(saver)
        (info,) = saver.threads(1, order="oldest")
        with pytest.raises(InvalidInput, match="with other filters"):
            list(saver.threads(after=info.cursor))


def test_keel_threads_order(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    with SqliteSaver(path) as saver:
        fill(saver)
        oldest = [info.thread_id for info in saver.threads(order="oldest")]
    url = f"sqlite:///{path}"
    said = keel_json("threads", "--url", url, "--order", "oldest", "--limit", "5")
    assert [each["thread_id"] for each in said["threads"]] == oldest[:5]
    cursor = said["threads"][-1]["cursor"]
    said = keel_json("threads", "--url", url, "--order", "oldest", "--limit", "5", "--after", cursor)
    assert [each["thread_id"] for each in said["threads"]] == oldest[5:10]
    assert "and newer ones" in keel("threads", "--url", url, "--order", "oldest", "--limit", "5").output
    keel("threads", "--url", url, "--order", "created_at", status=2)
