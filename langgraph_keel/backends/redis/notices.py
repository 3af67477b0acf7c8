"""Notify workers in other processes of decisions, by PUBLISH and SUBSCRIBE.

Workers poll if the user may not use the channel (ACL), or if the client cannot subscribe.
"""

from __future__ import annotations

from typing import Any

from langgraph_keel.backends.redis.driver import AsyncRedisDriver, RedisDriver

CONFIRMED = 5.0
"""Seconds to wait for the server to confirm the subscription."""


def notify(driver: RedisDriver, channel: str) -> None:
    """Notify other processes that a reviewer has decided."""
    client: Any = driver.ready(writes=False)
    client.execute_command("PUBLISH", channel, b"")


async def anotify(driver: AsyncRedisDriver, channel: str) -> None:
    """Like `notify`, without blocking the running loop."""
    client: Any = await driver.ready(writes=False)
    await client.execute_command("PUBLISH", channel, b"")


class Listening:
    """A subscription."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    def wait(self, seconds: float) -> None:
        """Wait for a notice, at most `seconds`."""
        self._pubsub.get_message(timeout=seconds)

    def close(self) -> None:
        """Listen no longer."""
        self._pubsub.close()


class AsyncListening:
    """Like `Listening`, for a running loop."""

    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    async def wait(self, seconds: float) -> None:
        """As `Listening.wait`."""
        await self._pubsub.get_message(timeout=seconds)

    async def close(self) -> None:
        """Listen no longer."""
        await self._pubsub.aclose()


def listen(driver: RedisDriver, channel: str) -> Listening:
    """Subscribe to the channel."""
    client: Any = driver.ready(writes=False)
    pubsub = client.pubsub()
    try:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=CONFIRMED)
    except BaseException:
        pubsub.close()
        raise
    return Listening(pubsub)


async def alisten(driver: AsyncRedisDriver, channel: str) -> AsyncListening | None:
    """Like `listen`; `None` if the client cannot (on a Cluster, before redis-py 8)."""
    client: Any = await driver.ready(writes=False)
    if not hasattr(client, "pubsub"):
        return None
    pubsub = client.pubsub()
    try:
        await pubsub.subscribe(channel)
        await pubsub.get_message(timeout=CONFIRMED)
    except BaseException:
        await pubsub.aclose()
        raise
    return AsyncListening(pubsub)
