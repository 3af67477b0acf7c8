"""Fixtures and steps of the tests of `RedisSaver`, which import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from langgraph_keel import KeelSaver, RedisSaver
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import at, checkpoint_of

Open = Callable[..., RedisSaver]


@pytest.fixture
def opened(redis_url: str, redis_prefix: str) -> Iterator[Open]:
    """Opens savers on the test's own store."""
    savers: list[RedisSaver] = []

    def opening(**options: Any) -> RedisSaver:
        # The name separates their connections from those of other tests.
        url = f"{redis_url}{'&' if '?' in redis_url else '?'}client_name={redis_prefix}"
        savers.append(RedisSaver(url, **{"prefix": redis_prefix, "durability": "any", **options}))
        return savers[-1]

    yield opening
    for saver in savers:
        saver.close()


def connections(behind: Any, redis_prefix: str) -> int:
    """Return the number of connections of the test's savers."""
    return sum(each["name"] == redis_prefix for each in behind.client_list())


@pytest.fixture
def behind(redis_url: str) -> Iterator[Any]:
    """A client that bypasses the saver."""
    with Redis.from_url(redis_url) as client:
        yield client


def put(saver: KeelSaver, number: int, thread: str = "t", values: Any = None) -> Any:
    return saver.put(at(thread), checkpoint_of(f"{number:04}", values or {"list": chat(3)}), {}, {})  # type: ignore[arg-type]


def keys(behind: Any, prefix: str, kind: str) -> list[bytes]:
    return sorted(behind.scan_iter(match=f"{prefix}:*{kind}*"))
