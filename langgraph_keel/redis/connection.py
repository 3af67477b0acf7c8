"""Clients of Redis, made from a URL or brought by the user, and their errors by Keel's names."""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias, cast
from urllib.parse import urlsplit

import redis
from redis import asyncio as aio
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TimeoutError,
)
from redis.retry import Retry

from langgraph_keel.errors import (
    AccessDenied,
    InvalidInput,
    KeelError,
    NotAKeelStore,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

Client: TypeAlias = "redis.Redis | RedisCluster"
AsyncClient: TypeAlias = "aio.Redis | AsyncRedisCluster"

UNLIMITED = 2**31
RESENDS = 3
"""How often a request is sent again when its connection breaks: after 0.05, 0.1 and 0.2 seconds, which a failover of a
load balancer takes. Scripts know a request that they have carried out before."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a server.

    Attributes:
        url: `redis://`, `rediss://`, `unix://`, `redis+cluster://` or `rediss+cluster://`.
        timeout: Seconds to wait for a connection, and for a reply.
        max_connections: Most connections of one pool (of a Cluster: to one node).
    """

    url: str
    timeout: float
    max_connections: int

    @property
    def is_cluster(self) -> bool:
        """Whether the URL names a Cluster."""
        return urlsplit(self.url).scheme.endswith("+cluster")

    @property
    def where(self) -> str:
        """How messages name the server: the URL without its password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def client(self) -> Client:
        """Return a blocking client."""
        options = self._options(Retry(ExponentialBackoff(cap=0.2, base=0.05), RESENDS, (ConnectionError,)))
        if self.is_cluster:
            # Its own pools do not wait for a connection.
            pools = partial(redis.BlockingConnectionPool, timeout=self.timeout)
            return RedisCluster.from_url(self._plain_url, connection_pool_class=pools, **options)
        pool = redis.BlockingConnectionPool.from_url(self.url, timeout=self.timeout, **options)
        return redis.Redis(connection_pool=pool)

    def async_client(self) -> AsyncClient:
        """Return a client for the running loop."""
        options = self._options(AsyncRetry(ExponentialBackoff(cap=0.2, base=0.05), RESENDS, (ConnectionError,)))
        if self.is_cluster:
            return PatientCluster.limited(self._plain_url, self.max_connections, self.timeout, **options)
        pool = aio.BlockingConnectionPool.from_url(self.url, timeout=self.timeout, **options)
        return aio.Redis(connection_pool=pool)

    @property
    def _plain_url(self) -> str:
        return self.url.replace("+cluster://", "://", 1)

    def _options(self, retry: Any) -> dict[str, Any]:
        return {
            "max_connections": self.max_connections,
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            "retry": retry,
            # redis-py 5 looks here besides.
            "retry_on_error": [ConnectionError],
        }


class PatientCluster(AsyncRedisCluster):
    """A client of a Cluster whose calls wait for their turn: its nodes refuse calls beyond their connections.

    They may have as many as they like instead: a call uses one, and what the client asks for itself another.
    """

    _turns: asyncio.Semaphore
    _timeout: float

    @classmethod
    def limited(cls, url: str, calls: int, timeout: float, **options: Any) -> Self:
        """Return a client that lets so many calls be under way at once, and others wait so many seconds."""
        client = cast(Self, cls.from_url(url, **{**options, "max_connections": UNLIMITED}))
        client._turns = asyncio.Semaphore(calls)
        client._timeout = timeout
        return client

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it.

        Raises:
            MaxConnectionsError: There was none within the timeout.
        """
        try:
            await asyncio.wait_for(self._turns.acquire(), self._timeout)
        except builtins.TimeoutError as error:
            raise MaxConnectionsError(f"no turn within {self._timeout} s") from error
        try:
            yield
        finally:
            self._turns.release()

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """As its base does, when it is its turn."""
        async with self.turn():
            return await super().execute_command(*args, **kwargs)


async def ask_node(client: AsyncClient, node: Any, *words: Any) -> Any:
    """Send a command to a node of a client, or to the client itself; what is sent to a node takes a turn too."""
    async with client.turn() if isinstance(client, PatientCluster) and node is not client else nullcontext():
        return await node.execute_command(*words)


async def prepared(client: AsyncClient) -> None:
    """Let a client learn what it must know before several calls at once.

    One of a Cluster sends calls that come at once before it knows the nodes, and then closes what these opened.
    """
    if isinstance(client, AsyncRedisCluster):
        await client.initialize()


def checked(client: Any) -> Any:
    """Return a user's own client, if it returns bytes as they are.

    Raises:
        InvalidInput: It decodes replies.
    """
    pool = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", None)
    if pool is not None and pool.connection_kwargs.get("decode_responses"):
        raise InvalidInput("the client was made with decode_responses=True: Keel stores bytes, pass one without it")
    return client


def where_of(client: Any) -> str:
    """Return how messages name the server of a user's own client."""
    if isinstance(client, (RedisCluster, AsyncRedisCluster)):
        return f"the Redis Cluster of {next(iter(client.nodes_manager.startup_nodes), 'no node')}"
    options = client.connection_pool.connection_kwargs
    return f"Redis at {options.get('path') or '{}:{}'.format(options.get('host'), options.get('port'))}"


_CLASSES: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (AuthenticationError, AccessDenied, "the server refuses this user or password"),
    (AuthorizationError, AccessDenied, "the server refuses this user"),
    (NoPermissionError, AccessDenied, "this user may not run what Keel needs (EVALSHA, and hashes, sorted sets, keys)"),
    (BusyLoadingError, StoreUnavailable, "the server is starting"),
    (OutOfMemoryError, StoreFull, "the server is out of memory (maxmemory); nothing was written"),
    (ReadOnlyError, ReadOnlyStore, "this is a replica, which may only be read"),
    (MaxConnectionsError, StoreBusy, "all connections of the client are busy; nothing was sent"),
    (TimeoutError, StoreUnavailable, "no answer within the timeout; a put may or may not be stored"),
)
# Errors inside scripts come wrapped in text, differently in Redis 6 and 7.
_CODES: tuple[tuple[str, type[StoreError], str], ...] = (
    (r"\bKEELFOREIGN\b|\bWRONGTYPE\b", NotAKeelStore, "a key that should be a thread's holds something else"),
    (r"\bOOM\b", StoreFull, "the server is out of memory (maxmemory); nothing was written"),
    (r"\bREADONLY\b|write commands against a read only", ReadOnlyStore, "this is a replica, which may only be read"),
    (r"\bMISCONF\b", StoreFull, "the server cannot write to its disk and takes no writes"),
    (r"\bNOPERM\b|can't run this command|no permissions", AccessDenied, "this user may not run what Keel needs"),
    (r"\b(NOAUTH|WRONGPASS)\b|invalid password|invalid username", AccessDenied, "the server refuses this user"),
    (r"\bBUSY\b|\bTRYAGAIN\b|No connection available|Too many connections", StoreBusy, "busy for too long"),
    (r"\b(LOADING|CLUSTERDOWN|MASTERDOWN|NOREPLICAS)\b", StoreUnavailable, "the server is not ready"),
)


def named(where: str, error: Exception) -> KeelError:
    """Return the error of Keel for one of the client."""
    for kind, keel, meaning in _CLASSES:
        if isinstance(error, kind):
            return keel(f"{where}: {meaning}: {error}")
    for pattern, keel, meaning in _CODES:
        if re.search(pattern, str(error)):
            return keel(f"{where}: {meaning}: {error}")
    if isinstance(error, (ConnectionError, OSError, RedisClusterException)):
        return StoreUnavailable(f"{where}: cannot be reached, or the connection broke: {error}")
    return StoreError(f"{where}: {error}")


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Raise the client's errors by Keel's names."""
    try:
        yield
    except NoScriptError:
        raise
    except (RedisError, RedisClusterException, OSError) as error:
        if isinstance(error, KeelError):
            raise
        raise named(where, error) from error


def drop(client: AsyncClient, is_dead: bool) -> None:
    """Close the connections of an asynchronous client where nothing can be awaited.

    In a loop that runs, they end in its next round. What asyncio and the client do for this they do in the loop, so if
    that is dead this reaches for the sockets themselves: else both would warn of each connection (ResourceWarning).
    """
    for connection in {each for pool in _pools(client) for each in _connections(pool)}:
        writer, connection._writer, connection._reader = getattr(connection, "_writer", None), None, None
        if writer is not None:
            _abort(writer.transport, is_dead)


def _pools(client: AsyncClient) -> Iterator[Any]:
    if isinstance(client, aio.Redis):
        yield client.connection_pool
        return
    # What its own close leaves behind: it is to begin anew.
    client._initialize = True
    yield from client.nodes_manager.nodes_cache.values()
    yield from client.nodes_manager.startup_nodes.values()


def _connections(pool: Any) -> Iterator[Any]:
    for name in ("_available_connections", "_in_use_connections", "_connections"):
        yield from getattr(pool, name, ())


def _abort(transport: Any, is_dead: bool) -> None:
    with suppress(RuntimeError):
        transport.abort()
    sock = getattr(transport, "_sock", None)
    if is_dead and sock is not None:
        transport._sock = None
        sock.close()
