"""The Redis drivers: one that blocks, and one with a client per event loop.

A call is one EVALSHA, or EVAL if the server lacks the script (after a restart, a failover, SCRIPT FLUSH).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from threading import Lock
from typing import Any, TypeAlias, TypeVar, cast

from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError, NoScriptError, RedisError

from langgraph_keel.backends.groups import Groups
from langgraph_keel.backends.redis.connection import (
    Ask,
    AsyncClient,
    Client,
    Loops,
    ServerCheck,
    ask_node,
    named_errors,
)
from langgraph_keel.backends.resent import noted, was_sent_before
from langgraph_keel.engine.plan import arun, run
from langgraph_keel.errors import CorruptStore, InvalidInput, NotAKeelStore, ReadOnlyStore, refuse_closed

Argument: TypeAlias = str | bytes | int

# Read on import: an event loop must not wait for a disk.
_SCRIPTS = {
    file.name.removesuffix(".lua"): file.read_text("utf-8")
    for file in files(__package__).joinpath("scripts").iterdir()
    if file.name.endswith(".lua")
}

T = TypeVar("T")
PIPELINED = 256
"""Maximum calls per pipeline."""
SCANNED = 1000
"""Keys per step of a SCAN."""
AT_ONCE = 16
"""Maximum concurrent calls of a loop to a Cluster (no script pipelines there)."""

# redis-py 8.1 raises these for a closed buffer: a client that loses a node closes all its connections at once, in any
# thread or task.
_CLOSED = ValueError, AttributeError
_DELAYS = 0.05, 0.1, 0.2


@dataclass(frozen=True, slots=True)
class Script:
    """A script: its source and its SHA-1."""

    source: str
    sha: str


@dataclass(frozen=True, slots=True)
class Call:
    """One atomic run of a script."""

    script: str
    keys: tuple[str, ...]  # all keys that it uses: of one bucket, so in one slot of a Cluster
    args: tuple[Argument, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """One round trip: independent calls, which are pipelined."""

    calls: tuple[Call, ...]
    writes: bool = False
    # If set, there are no calls, and the reply is the names of all matching keys of all nodes, by SCAN. It does not
    # block the server; its duration grows with the number of all keys.
    pattern: str = ""


@cache
def script(name: str) -> Script:
    """Return a script, preceded by the shared parts named in its first lines."""
    text = _SCRIPTS[name]
    shared = re.search(r"^--.*?With: (.*)", text, re.MULTILINE)
    parts = [_SCRIPTS[part] for part in shared[1].split(", ")] if shared else []
    source = "\n".join([*parts, text])
    # Redis names scripts by SHA-1; its strength does not matter here.
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _evalsha(call: Call) -> tuple[Any, ...]:
    return "EVALSHA", script(call.script).sha, len(call.keys), *call.keys, *call.args


def _eval(call: Call) -> tuple[Any, ...]:
    return "EVAL", script(call.script).source, len(call.keys), *call.keys, *call.args


def _split(calls: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (calls[start : start + size] for start in range(0, len(calls), size))


class RedisDriver:
    """A client that all Python threads of a process share; a forked child has its own.

    `make` returns the client; it is `None` if there is no blocking client. If `is_ours`, the driver closes the client.
    """

    def __init__(self, check: ServerCheck, where: str, make: Callable[[], Client] | None, is_ours: bool) -> None:
        self.check = check
        self.where = where
        self._make = make
        self._is_ours = is_ours
        self.is_closed = False
        self._forget()

    @property
    def is_async_only(self) -> bool:
        """Whether there is no client for the blocking methods."""
        return self._make is None

    def _forget(self) -> None:
        # After a fork, a lock that another thread of the parent held would never be released.
        self._lock = Lock()
        self._client: Client | None = None
        self._process = os.getpid()

    def send(self, request: Request) -> list[Any]:
        """Run the calls of `request`; return their replies."""
        try:
            with named_errors(self.where):
                client = self.ready(request.writes)
                with _broken_if_closed():
                    if request.pattern:
                        return [*client.scan_iter(match=request.pattern, count=SCANNED)]
                    if len(request.calls) == 1:
                        was_sent_before.set(False)
                        retries_unseen = not self._is_ours or isinstance(client, RedisCluster)
                        return noted([_send_call(client, request.calls[0])], retries_unseen)
                    return _send_many(client, request.calls)
        except (CorruptStore, NotAKeelStore):
            run(self.check.refuse_newer(), _AskDriver(self.ready(writes=False), self.where))
            raise

    def setup(self) -> None:
        """Create the store, or migrate it if it has an older format."""
        self.check.auto_setup = True
        with named_errors(self.where):
            run(self.check.carry_over_latecomers(), _AskDriver(self.ready(writes=True), self.where))

    def migrations(self) -> list[str]:
        """Return the due migrations as text."""
        with self._lock:
            if self.is_closed:
                raise refuse_closed(self.where)
            if self._make is None:
                raise InvalidInput("this saver has only an async_client: use amigrations()")
            client = self._client = self._client or self._make_client(self._make)
        return run(self.check.migrations(), _AskDriver(client, self.where))

    def ready(self, writes: bool) -> Client:
        """Return the client, after the check of the server."""
        if writes and self.check.read_only:
            raise ReadOnlyStore(f"{self.where}: opened read-only")
        client = self._client if self._process == os.getpid() else None
        if client is None or self.is_closed or not self.check.is_done(writes):
            client = self._open(writes)
        return client

    def _open(self, writes: bool) -> Client:
        if self._process != os.getpid():
            self._forget()
        with self._lock:
            if self.is_closed:
                raise refuse_closed(self.where)
            if self._make is None:
                raise InvalidInput("this saver has only an async_client: also pass client= to use blocking methods")
            client = self._client = self._client or self._make_client(self._make)
        # Outside the lock: if the server hangs, threads would wait for each other. Checking twice is harmless.
        if not self.check.is_done(writes):
            run(self.check.prepare(writes), _AskDriver(client, self.where))
        return client

    def _make_client(self, make: Callable[[], Client]) -> Client:
        client = make()
        if self._is_ours:
            # For an abandoned client, redis-py closes a socket only if its connection happens to be garbage collected
            # first; otherwise Python warns.
            weakref.finalize(self, _close_client, client, self._process)
        return client

    def open(self, writes: bool) -> None:
        """Check the store and the server now, before any request."""
        with named_errors(self.where):
            self.ready(writes)

    def close(self) -> None:
        """Close the client, if the driver created it."""
        with self._lock:
            self.is_closed = True
            client, self._client = self._client, None
        if client is not None and self._is_ours:
            _close_client(client, self._process)


def _close_client(client: Client, process: int) -> None:
    """Close a client, unless it belongs to the parent process."""
    if process == os.getpid():
        client.close()
        if not isinstance(client, RedisCluster):
            client.connection_pool.disconnect()


def _send_call(client: Any, call: Call) -> Any:
    try:
        return _execute(client, _evalsha(call))
    except NoScriptError:
        return _execute(client, _eval(call))


def _execute(client: Any, words: Sequence[Any]) -> Any:
    """Send a command; on a Cluster, again if another thread closed its connection."""
    for delay in _DELAYS if isinstance(client, RedisCluster) else ():
        try:
            return client.execute_command(*words)
        except _CLOSED:
            time.sleep(delay)
    return client.execute_command(*words)


@contextmanager
def _broken_if_closed() -> Iterator[None]:
    try:
        yield
    except _CLOSED as error:
        raise ConnectionError(f"the client has closed it: {error}") from error


def _send_many(client: Any, calls: Sequence[Call]) -> list[Any]:
    """Send calls in pipelines, one per node; send failed ones again, one by one."""
    cluster: Any = client if isinstance(client, RedisCluster) else None
    nodes: dict[Any, list[Call]] = {}
    for call in calls:
        nodes.setdefault(cluster and cluster.get_node_from_key(call.keys[0]), []).append(call)
    replies: dict[Call, Any] = {}
    for node, group in nodes.items():
        one = cluster.get_redis_connection(node) if cluster else client
        for part in _split(group, PIPELINED):
            replies.update(zip(part, _send_pipeline(one, part), strict=True))
    return [_send_call(client, call) if isinstance(replies[call], Exception) else replies[call] for call in calls]


def _send_pipeline(client: Any, calls: Sequence[Call]) -> Sequence[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*_evalsha(call))
    try:
        return cast(Sequence[Any], pipeline.execute(raise_on_error=False))
    except (RedisError, *_CLOSED) as error:
        return [error] * len(calls)


@dataclass(frozen=True, slots=True)
class _AskDriver:
    """The driver of `ServerCheck`: its requests are Redis commands."""

    client: Any
    where: str

    def send(self, ask: Ask) -> list[Any]:
        time.sleep(ask.pause)
        client: Any = self.client
        nodes = [client]
        if ask.node != -1 and isinstance(self.client, RedisCluster):
            nodes = [client.get_redis_connection(each) for each in client.get_primaries()]
        if ask.node is not None and ask.node != -1:
            nodes = nodes[ask.node : ask.node + 1]
        return [self._reply(node, ask) for node in nodes] or [None]

    def _reply(self, client: Any, ask: Ask) -> Any:
        try:
            with named_errors(self.where):
                return client.execute_command(*ask.words)
        except Exception as error:
            return error


class AsyncRedisDriver:
    """A client per event loop; without one (`make` is `None`), threads use `driver`."""

    def __init__(self, driver: RedisDriver, make: Callable[[], AsyncClient] | None, is_ours: bool) -> None:
        self._driver = driver
        self._make = make
        self._loops = Loops(make) if make and is_ours else None
        self._groups = Groups(self._send_alone, self._send_group)

    @property
    def blocks(self) -> bool:
        """Whether there is only a blocking client, used in threads."""
        return self._make is None

    async def send(self, request: Request) -> list[Any]:
        """Like `RedisDriver.send`, without blocking the running loop."""
        if self._make is None:
            return await asyncio.to_thread(self._driver.send, request)
        where = self._driver.where
        try:
            with named_errors(where):
                client = await self.ready(request.writes)
                if len(request.calls) == 1 and not isinstance(client, AsyncRedisCluster):
                    return await self._groups.send(request)
                with _broken_if_closed():
                    if request.pattern:
                        return [key async for key in client.scan_iter(match=request.pattern, count=SCANNED)]
                    # A Cluster client does not report whether it has sent a call before.
                    return noted(await _asend_many(client, request.calls), True)
        except (CorruptStore, NotAKeelStore):
            await arun(self._driver.check.refuse_newer(), _AsyncAskDriver(await self._client(), where))
            raise

    async def setup(self) -> None:
        """As `RedisDriver.setup`."""
        if self._make is None:
            await asyncio.to_thread(self._driver.setup)
            return
        check, where = self._driver.check, self._driver.where
        check.auto_setup = True
        with named_errors(where):
            await arun(check.carry_over_latecomers(), _AsyncAskDriver(await self.ready(writes=True), where))

    async def migrations(self) -> list[str]:
        """As `RedisDriver.migrations`."""
        if self._make is None:
            return await asyncio.to_thread(self._driver.migrations)
        return await arun(self._driver.check.migrations(), _AsyncAskDriver(await self._client(), self._driver.where))

    async def _send_alone(self, request: Request) -> list[Any]:
        client = await self._client()
        was_sent_before.set(False)
        return noted([await _asend_call(client, request.calls[0])], not self._loops)

    async def _send_group(self, requests: Sequence[Request]) -> Sequence[list[Any] | None]:
        client = await self._client()
        was_sent_before.set(False)
        replies = await _asend_pipeline(client, [request.calls[0] for request in requests])
        return [None if isinstance(reply, RedisError) else noted([reply], not self._loops) for reply in replies]

    async def ready(self, writes: bool) -> AsyncClient:
        """As `RedisDriver.ready`."""
        check, where = self._driver.check, self._driver.where
        if writes and check.read_only:
            raise ReadOnlyStore(f"{where}: opened read-only")
        client = await self._client()
        if not check.is_done(writes):
            await arun(check.prepare(writes), _AsyncAskDriver(client, where))
        return client

    async def open(self, writes: bool) -> None:
        """As `RedisDriver.open`."""
        if self._make is None:
            await asyncio.to_thread(self._driver.open, writes)
        else:
            with named_errors(self._driver.where):
                await self.ready(writes)

    async def _client(self) -> AsyncClient:
        if self._driver.is_closed:
            raise refuse_closed(self._driver.where)
        assert self._make is not None
        return await self._loops.client() if self._loops else self._make()

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        if self._loops:
            await self._loops.aclose()

    def close(self) -> None:
        """Close all clients that this driver created."""
        if self._loops:
            self._loops.close()


async def _asend_call(client: AsyncClient, call: Call) -> Any:
    try:
        return await _aexecute(client, _evalsha(call))
    except NoScriptError:
        return await _aexecute(client, _eval(call))


async def _aexecute(client: AsyncClient, words: Sequence[Any]) -> Any:
    """As `_execute`, for a running loop."""
    for delay in _DELAYS if isinstance(client, AsyncRedisCluster) else ():
        try:
            return await client.execute_command(*words)
        except _CLOSED:
            await asyncio.sleep(delay)
    return await client.execute_command(*words)


async def _asend_many(client: AsyncClient, calls: Sequence[Call]) -> list[Any]:
    replies: list[Any] = []
    if isinstance(client, AsyncRedisCluster):
        for part in _split(calls, AT_ONCE):
            # All are awaited even if one fails: none may still run when the loop ends.
            done = await asyncio.gather(*(_asend_call(client, call) for call in part), return_exceptions=True)
            for error in done:
                if isinstance(error, BaseException):
                    raise error
            replies += done
        return replies
    for part in _split(calls, PIPELINED):
        for call, reply in zip(part, await _asend_pipeline(client, part), strict=True):
            replies.append(await _asend_call(client, call) if isinstance(reply, RedisError) else reply)
    return replies


async def _asend_pipeline(client: AsyncClient, calls: Sequence[Call]) -> Sequence[Any]:
    pipeline = client.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*_evalsha(call))
    return cast(Sequence[Any], await pipeline.execute(raise_on_error=False))


@dataclass(frozen=True, slots=True)
class _AsyncAskDriver:
    """As `_AskDriver`, for a running loop."""

    client: AsyncClient
    where: str

    async def send(self, ask: Ask) -> list[Any]:
        await asyncio.sleep(ask.pause)
        nodes: list[Any] = [self.client]
        if ask.node != -1 and isinstance(self.client, AsyncRedisCluster):
            await self.client.initialize()
            nodes = self.client.get_primaries()
        if ask.node is not None and ask.node != -1:
            nodes = nodes[ask.node : ask.node + 1]
        return [await self._reply(node, ask) for node in nodes] or [None]

    async def _reply(self, node: Any, ask: Ask) -> Any:
        try:
            with named_errors(self.where):
                return await ask_node(self.client, node, *ask.words)
        except Exception as error:
            return error
