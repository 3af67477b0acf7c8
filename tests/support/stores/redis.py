"""Redis for the contract: one prefix of a server or cluster, two shared drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from secrets import token_hex
from typing import Any

import redis
from redis.cluster import RedisCluster

from langgraph_keel.backends.redis.saver import RedisSaver
from langgraph_keel.engine.encoding.bodies import restore_frame
from langgraph_keel.saver import KeelSaver
from support.saver_parts import async_driver_of, driver_of, store_of


class RedisUnderTest:
    """Two savers, as of two processes; further ones share their drivers in turn."""

    def __init__(self, url: str, prefix: str) -> None:
        self.prefix = prefix
        self.savers = [RedisSaver(url, prefix=prefix, durability="any") for _ in range(2)]
        self._turns = cycle(self.savers)
        self._client: Any = client_of(url)

    def open(self, **options: Any) -> KeelSaver:
        shared = next(self._turns)
        return KeelSaver(store_of(shared), driver_of(shared), async_driver_of(shared), **options)

    def wipe(self) -> None:
        for key in self.stored_keys():
            self._client.unlink(key)

    def remove(self) -> None:
        self.wipe()
        self._client.unlink(f"{self.prefix}:keel")

    def raw(self) -> bytes:
        return b"\n".join(part for key in sorted(self.stored_keys()) for part in (key, *self._parts(key)))

    def stored_keys(self) -> list[bytes]:
        found = self._client.scan_iter(match=f"*{self.prefix}:*", count=1000)
        return [key for key in found if not key.endswith(b":keel")]

    def _parts(self, key: bytes) -> Iterator[bytes]:
        if self._client.type(key) == b"hash":
            parts = legible_cell if b":cells:" in key else legible
            for name, value in sorted(self._client.hgetall(key).items()):
                yield from (name, *parts(name, value))
        else:
            yield from self._client.zrange(key, 0, -1)

    def close(self) -> None:
        for saver in self.savers:
            saver.close()
        self._client.close()


@contextmanager
def redis_store(url: str) -> Iterator[RedisUnderTest]:
    """Open a store under its own prefix, whose keys are deleted at the end."""
    store = RedisUnderTest(url, f"keel-{token_hex(6)}")
    try:
        yield store
    finally:
        store.remove()
        store.close()


def legible(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the part of a field's value before the body, and the frame of the body."""
    before = {b"entry": rb"[^\n]*\n", b"item": rb"\d+ ", b"write": rb"[^ ]* [^ ]* "}
    line = re.match(before.get(name.partition(b":")[0], rb"(?s:.*)"), value)
    assert line
    return line[0], restore_frame(value[line.end() :])


def legible_cell(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """As `legible`, for a cell."""
    return (b"", restore_frame(value)) if name.endswith(b":body") else (value, b"")


def client_of(url: str) -> Any:
    """Return the test's own client."""
    if "+cluster" in url:
        return RedisCluster.from_url(url.replace("+cluster", ""))
    return redis.Redis.from_url(url)
