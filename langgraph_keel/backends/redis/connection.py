"""Create or check Redis clients, translate their errors, and check the server."""

from __future__ import annotations

import asyncio
import builtins
import os
import re
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Literal, Self, TypeAlias, cast
from urllib.parse import SplitResult, urlsplit

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
    ClusterDownError,
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

from langgraph_keel.backends.migrations import Migration, find_due, newest, refuse_older
from langgraph_keel.backends.redis.entries import Keys, escape_glob
from langgraph_keel.backends.resent import was_sent_before
from langgraph_keel.engine.plan import StorePlan
from langgraph_keel.errors import (
    AccessDenied,
    CorruptStore,
    DurabilityWarning,
    InvalidInput,
    KeelError,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnsafeStore,
)

Client: TypeAlias = "redis.Redis | RedisCluster"
AsyncClient: TypeAlias = "aio.Redis | AsyncRedisCluster"

UNLIMITED = 2**31
# Otherwise newer versions of redis-py read their own version from disk for each connection, in the event loop.
try:
    _IDENTITY = {"driver_info": import_module("redis.driver_info").DriverInfo()}
except ImportError:
    _IDENTITY = {}

RESENDS = 3
"""Maximum retries of a request whose connection breaks.

They follow after 0.05, 0.1 and 0.2 seconds, the time of a load balancer's failover. Scripts recognize a request that
they have already run.
"""

_SCHEMES = "redis", "rediss", "unix", "redis+cluster", "rediss+cluster"

_CLASSES: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (AuthenticationError, AccessDenied, "the server refuses this user or password"),
    (AuthorizationError, AccessDenied, "the server refuses this user"),
    (NoPermissionError, AccessDenied, "this user lacks permissions for Keel (EVALSHA, hashes, sorted sets, keys)"),
    (BusyLoadingError, StoreUnavailable, "the server is starting"),
    (ClusterDownError, StoreUnavailable, "a part of the Cluster has no master"),
    (OutOfMemoryError, StoreFull, "the server is out of memory (maxmemory); nothing was written"),
    (ReadOnlyError, ReadOnlyStore, "this is a replica, which may only be read"),
    (MaxConnectionsError, StoreBusy, "all connections of the client are busy; nothing was sent"),
    (TimeoutError, StoreUnavailable, "no reply within the timeout; a write may or may not be stored"),
)
_DAMAGED = "a thread is damaged"
# Errors inside scripts are wrapped in text, differently in Redis 6 and 7.
_CODES: tuple[tuple[str, type[StoreError], str], ...] = (
    (r"\bKEELFOREIGN\b|\bWRONGTYPE\b", NotAKeelStore, "the key of a thread has content that is not Keel's"),
    (r"\bKEELDAMAGED\b", CorruptStore, _DAMAGED),
    (r"\bOOM\b", StoreFull, "the server is out of memory (maxmemory); nothing was written"),
    (r"\bREADONLY\b|write commands against a read only", ReadOnlyStore, "this is a replica, which may only be read"),
    (r"\bMISCONF\b", StoreFull, "the server cannot write to its disk and accepts no writes"),
    (r"\bNOPERM\b|can't run this command|no permissions", AccessDenied, "this user lacks permissions for Keel"),
    (r"\b(NOAUTH|WRONGPASS)\b|invalid password|invalid username", AccessDenied, "the server refuses this user"),
    (r"\bBUSY\b|\bTRYAGAIN\b|No connection available|Too many connections", StoreBusy, "busy for too long"),
    # Errors of Lua and of commands on numbers when a script reads stored text of another form.
    (r"attempt to \w+|bad argument #|arguments must be strings|not an integer|out of range", CorruptStore, _DAMAGED),
    (r"\b(LOADING|CLUSTERDOWN|MASTERDOWN|NOREPLICAS)\b", StoreUnavailable, "the server is not ready"),
)

MIGRATIONS: Migrations = {}
"""A script, run for each thread and for shared cells, with the keys of `Keys.of`.

It must skip records of its own format or a later one, because it may run again, and late.
"""
LEASE = 10_000
"""Milliseconds that a migrating process makes others wait, renewed by each page.

It only avoids work: without it, a hundred processes that start together would each scan all threads.
"""

PAUSE, WAITS = 0.1, 300
"""Seconds between two polls of that lease, and maximum polls before `StoreBusy`."""
SCANNED = 100
"""Maximum SCAN calls, of 1000 keys each, when searching for foreign keys."""
UNKNOWN = "unknown"

_LOST = {
    ("yes", "always"): "on disk",
    ("yes", "everysec"): "lost by a power cut within about 1 s",
    ("yes", "no"): "lost by a power cut within about 30 s",
}
_WEAKEST = {"no": 0, UNKNOWN: 1, "everysec": 2}

_CHANGE_MARK = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end"

CLOSING = 10.0
"""Seconds that `close` waits for a loop in another thread."""

# Clients inherited by a forked child: it must not use or close them, nor let them be garbage collected.
_PARENTS: list[Any] = []


class Backoff(ExponentialBackoff):
    """Pauses between two attempts of redis-py; each is recorded in `was_sent_before`."""

    def compute(self, failures: int) -> float:
        """As in the base class."""
        was_sent_before.set(True)
        return super().compute(failures)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to connect to a server."""

    url: str
    timeout: float  # seconds to wait for a connection, and for a reply
    max_connections: int  # per pool; on a Cluster, per node

    @property
    def is_cluster(self) -> bool:
        """Whether the URL names a Cluster."""
        return urlsplit(self.url).scheme.endswith("+cluster")

    @property
    def where(self) -> str:
        """The name of the server in messages: the URL without its password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def client(self) -> Client:
        """Return a blocking client."""
        options = self._options(Retry(Backoff(cap=0.2, base=0.05), RESENDS, (ConnectionError,)))
        if self.is_cluster:
            # The default pools do not wait for a free connection.
            pools = partial(redis.BlockingConnectionPool, timeout=self.timeout)
            return RedisCluster.from_url(self._plain_url, connection_pool_class=pools, **options)
        pool = redis.BlockingConnectionPool.from_url(self.url, timeout=self.timeout, **options)
        return redis.Redis(connection_pool=pool)

    def async_client(self) -> AsyncClient:
        """Return a client for the running loop."""
        options = self._options(AsyncRetry(Backoff(cap=0.2, base=0.05), RESENDS, (ConnectionError,)))
        if self.is_cluster:
            return QueueingCluster.from_url_limited(self._plain_url, self.max_connections, self.timeout, **options)
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
            # also read by redis-py 5
            "retry_on_error": [ConnectionError],
            **_IDENTITY,
        }


class QueueingCluster(AsyncRedisCluster):
    """A Cluster client that limits concurrent calls; other calls wait for their turn.

    redis-py itself limits the connections per node, and a call without a free one fails at once. Here connections are
    not limited: a call uses one, and the client's own requests another.
    """

    _turns: asyncio.Semaphore
    _timeout: float

    @classmethod
    def from_url_limited(cls, url: str, calls: int, timeout: float, **options: Any) -> Self:
        """Return a client for `calls` concurrent calls; others wait up to `timeout`."""
        client = cast(Self, cls.from_url(url, **{**options, "max_connections": UNLIMITED}))
        client._turns = asyncio.Semaphore(calls)
        client._timeout = timeout
        return client

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        try:
            await asyncio.wait_for(self._turns.acquire(), self._timeout)
        except builtins.TimeoutError as error:
            raise MaxConnectionsError(f"no free connection within {self._timeout} s") from error
        try:
            yield
        finally:
            self._turns.release()

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """As in the base class, after waiting for a turn."""
        async with self.turn():
            return await super().execute_command(*args, **kwargs)


async def ask_node(client: AsyncClient, node: Any, *words: Any) -> Any:
    """Send a command to a node of a client, within its limit, or to the client."""
    async with client.turn() if isinstance(client, QueueingCluster) and node is not client else nullcontext():
        return await node.execute_command(*words)


def check_url(url: str) -> None:
    """Check a URL, which redis-py itself would do late or not at all."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        raise InvalidInput(
            f"this is not a Redis URL: use one that begins with {', '.join(f'{s}://' for s in _SCHEMES)}"
        )
    parts = _split(url)
    # The server follows the @; a password before it may contain an unescaped / or ?.
    if parts is None or "@" in parts.path + parts.query or parts.fragment:
        raise InvalidInput(
            f"this Redis URL is invalid: write {scheme}://user:password@host:port/number, with %40 for @, %2F "
            "for /, %3F for ? and %23 for # in the password"
        )
    if scheme != "unix" and not re.fullmatch(r"/?([0-9]{1,9}/?)?", parts.path):
        raise InvalidInput("the path of a Redis URL must be a database number, such as /0")
    if scheme.endswith("+cluster") and parts.path.strip("/0"):
        raise InvalidInput("a Redis Cluster has only one database: omit the number from the URL")
    try:
        pool = redis.BlockingConnectionPool.from_url(f"{scheme.removesuffix('+cluster')}://{rest}")
        if parts.query:  # does not connect, but reads redis-py's own version from disk
            pool.make_connection()  # type: ignore[no-untyped-call]
    except (TypeError, ValueError, redis.RedisError) as error:  # redis-py's messages name the option, not its value
        raise InvalidInput(
            f"invalid option in this Redis URL: {error}. Only connection options of redis-py are allowed; pass options "
            "of the saver as arguments of RedisSaver or open_saver"
        ) from None
    if "decode_responses" in pool.connection_kwargs:
        raise InvalidInput("leave decode_responses out of the Redis URL: Keel needs undecoded bytes")


def _split(url: str) -> SplitResult | None:
    """Return the parts of a URL, or `None`: Python's errors would quote parts of it."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises if it is invalid
    except ValueError:
        return None
    return parts


def check_client(client: Any) -> Any:
    """Check that a user's own client returns undecoded bytes; return it."""
    pool = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", None)
    if pool is not None and pool.connection_kwargs.get("decode_responses"):
        raise InvalidInput("the client has decode_responses=True: Keel stores bytes, so pass a client without it")
    return client


def where_of(client: Any) -> str:
    """Return the name in messages for the server of a user's own client."""
    if isinstance(client, (RedisCluster, AsyncRedisCluster)):
        return f"the Redis Cluster of {next(iter(client.nodes_manager.startup_nodes), 'no node')}"
    pool = client.connection_pool
    if hasattr(pool, "service_name"):
        return f"the Redis {pool.service_name!r} of Sentinel"
    options = pool.connection_kwargs
    return f"Redis at {options.get('path') or '{}:{}'.format(options.get('host'), options.get('port'))}"


def name_error(where: str, error: Exception) -> KeelError:
    """Return Keel's error for an error of the client."""
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
    """Translate the client's errors with `name_error`."""
    try:
        yield
    except NoScriptError:
        raise
    except (RedisError, RedisClusterException, OSError) as error:
        if isinstance(error, KeelError):
            raise
        raise name_error(where, error) from error


def abort_connections(client: AsyncClient, is_dead: bool) -> None:
    """Close the connections of an async client without awaiting anything."""
    names = "_available_connections", "_in_use_connections", "_connections"
    for connection in {each for pool in _pools(client) for name in names for each in getattr(pool, name, ())}:
        writer, connection._writer, connection._reader = getattr(connection, "_writer", None), None, None
        if writer is None:
            continue
        with suppress(RuntimeError):
            writer.transport.abort()
        sock = getattr(writer.transport, "_sock", None)
        if is_dead and sock is not None:
            # A transport closes its socket in the loop. If the loop is closed, asyncio and the client would both warn.
            writer.transport._sock = None
            sock.close()


def _pools(client: AsyncClient) -> Iterator[Any]:
    if isinstance(client, aio.Redis):
        yield client.connection_pool
        return
    # The client's own close does not reset this; a later use must initialize the client again.
    client._initialize = True
    yield from client.nodes_manager.nodes_cache.values()
    yield from client.nodes_manager.startup_nodes.values()


Migrations: TypeAlias = Mapping[int, Migration[str]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A command before the store is open; its reply lists a reply or error per node."""

    words: tuple[Any, ...]
    node: int | None = -1  # master of a Cluster: `None` is all, -1 the one that has the key
    pause: float = 0.0  # seconds to wait first


Replies: TypeAlias = list[Any]


@dataclass(frozen=True, slots=True)
class Durability:
    """Durability of acknowledged writes, by the settings of the server.

    On a Cluster, those of its weakest master.

    Attributes:
        appendonly: `yes`, `no` or `unknown`.
        appendfsync: `always`, `everysec`, `no` or `unknown`.
        acknowledged: Durability of an acknowledged write, in words.
        maxmemory_policy: Keys that the server evicts when memory is full; `noeviction` evicts none.
    """

    appendonly: str = UNKNOWN
    appendfsync: str = UNKNOWN
    acknowledged: str = UNKNOWN
    maxmemory_policy: str = UNKNOWN

    @property
    def is_on_disk(self) -> bool:
        """Whether an acknowledged write survives a power cut."""
        return (self.appendonly, self.appendfsync) == ("yes", "always")


warned_of: set[str] = set()


class ServerCheck:
    """Checks a server before its first use; shared by the two drivers of a saver."""

    def __init__(
        self,
        keys: Keys,
        where: str,
        read_only: bool = False,
        auto_setup: bool = True,
        durability: Literal["disk", "any"] = "disk",
        allow_eviction: bool = False,
        migrations: Migrations = MIGRATIONS,
    ) -> None:
        self._migrations = migrations
        self._lease = f"{keys.prefix}:migrating:keel"
        self._keys = keys
        self._where = where
        self._wants_disk = durability == "disk" and not read_only
        self._allow_eviction = allow_eviction
        self.read_only = read_only
        self.auto_setup = auto_setup
        self.durability = Durability()
        self.version: int | None = None
        self.has_read_server = False
        self.may_write = False

    def is_done(self, writes: bool) -> bool:
        """Return whether all checks before a request that writes, or reads, are done."""
        return self.may_write or (self.has_read_server and not writes)

    def prepare(self, writes: bool) -> StorePlan[Ask, Replies, None]:
        """Check the store and the server; create the store on a write; migrate it if due."""
        found = yield from self._format()
        if not self.has_read_server:
            # By CONFIG or, if that is forbidden, by INFO, which reports less.
            nodes = yield from _read_settings("CONFIG GET", ("append*", "maxmemory*"))
            if not all(nodes):
                nodes = yield from _read_settings("INFO", ("persistence", "memory"))
            self.durability = min(map(_durability_of, nodes), key=_strength)
            self._warn()
        if writes:
            policy = self.durability.maxmemory_policy
            if policy not in ("noeviction", UNKNOWN) and not self._allow_eviction:
                raise UnsafeStore(
                    f"{self._where}: with maxmemory-policy {policy} the server deletes threads when memory is short: "
                    "set it to noeviction, or pass allow_eviction=True if losing threads is acceptable"
                )
            if found is None:
                yield from self._make()
                found = newest(self._migrations)
        if found is not None and find_due(self._migrations, found, self._where):
            yield from self._migrate(found)
            found = newest(self._migrations)
        self.version = found
        self.has_read_server = True
        self.may_write = self.may_write or writes

    def _format(self) -> StorePlan[Ask, Replies, int | None]:
        """Return the format; the old one while a migration is in progress (`2 1`)."""
        [found] = yield Ask(("GET", self._keys.format))
        if isinstance(found, Exception):
            raise found
        if found is None and self.read_only:
            raise NotFound(f"{self._where}: there is no Keel store under the prefix {self._keys.prefix!r}")
        if found is None and not self.auto_setup:
            raise NotSetUp(f"{self._where}: no Keel store under the prefix {self._keys.prefix!r}: call setup() once")
        if found is None:
            return None
        if not re.fullmatch(rb"[0-9]+( [0-9]+)?", found):
            raise NotAKeelStore(f"{self._where}: the key {self._keys.format!r} is not Keel's: pass another prefix=")
        formats = [int(each) for each in found.split()]
        find_due(self._migrations, formats[0], self._where)
        return formats[-1]

    def refuse_newer(self) -> StorePlan[Ask, Replies, None]:
        """Raise `NewerFormat` if the store has a newer format, to explain an error."""
        with suppress(NotFound, NotSetUp):
            yield from self._format()

    def migrations(self) -> StorePlan[Ask, Replies, list[str]]:
        """Return the due migrations as text."""
        found = yield from self._format()
        if found is None:
            raise NotFound(f"{self._where}: there is no Keel store under the prefix {self._keys.prefix!r}")
        due = find_due(self._migrations, found, self._where)
        return [f"-- Format {number}: {each.what}. Run for each thread:\n{each.work.strip()}" for number, each in due]

    def _migrate(self, found: int) -> StorePlan[Ask, Replies, None]:
        if self.read_only or not self.auto_setup:
            why = "it may only be read here" if self.read_only else "auto_setup is off"
            raise refuse_older(self._where, found, newest(self._migrations), why)
        for _ in range(WAITS):
            is_ours = yield from _ask("SET", self._lease, "1", "NX", "PX", LEASE)
            still = yield from self._format()
            due = find_due(self._migrations, still or found, self._where)
            if is_ours:
                for number, migration in due:
                    yield from self._change_mark(f"{number - 1}", f"{number} {number - 1}")
                    yield from _run_for_all(self._keys, migration.work, self._lease)
                    yield from self._change_mark(f"{number} {number - 1}", f"{number}")
                yield from _ask("DEL", self._lease)
            if is_ours or not due:
                return
            yield Ask(("PING",), pause=PAUSE)
        raise StoreBusy(f"{self._where}: another process is migrating the store to a newer format: try again later")

    def carry_over_latecomers(self) -> StorePlan[Ask, Replies, None]:
        """Migrate threads that an older Keel has created since; one round trip per thread."""
        for _, migration in sorted(self._migrations.items()):
            yield from _run_for_all(self._keys, migration.work, self._lease)

    def _change_mark(self, old: str, new: str) -> StorePlan[Ask, Replies, None]:
        yield from _ask("EVAL", _CHANGE_MARK, 1, self._keys.format, old, new)

    def _make(self) -> StorePlan[Ask, Replies, None]:
        foreign = yield from _foreign_key(self._keys)
        if foreign is not None:
            raise NotAKeelStore(
                f"{self._where}: the key {foreign!r} is under the prefix {self._keys.prefix!r}, but not Keel's: pass "
                "another prefix="
            )
        yield from _ask("SET", self._keys.format, newest(self._migrations), "NX")

    def _warn(self) -> None:
        if not self._wants_disk or self.durability.is_on_disk or self._where in warned_of:
            return
        warned_of.add(self._where)
        kept = self.durability.acknowledged
        if kept == UNKNOWN:
            kept = f"of unknown durability (appendonly {self.durability.appendonly})"
        warnings.warn(
            f"{self._where}: an acknowledged write is {kept}: set appendonly yes and appendfsync always, or pass "
            "durability='any' to accept this",
            DurabilityWarning,
            stacklevel=2,
        )


def _read_settings(command: str, parts: Sequence[str]) -> StorePlan[Ask, Replies, list[dict[str, str]]]:
    """Return the settings of each node; an empty dict if the command is refused."""
    nodes: list[dict[str, str]] = []
    for part in parts:
        replies = yield Ask((command, part), None)
        nodes = nodes or [{} for _ in replies]
        for node, reply in zip(nodes, replies, strict=True):
            is_refused = type(reply) is StoreError or isinstance(reply, PermissionError)
            if isinstance(reply, Exception) and not is_refused:
                raise reply
            node.update({key: str(value) for key, value in reply.items()} if isinstance(reply, Mapping) else {})
    return nodes


def _durability_of(node: Mapping[str, str]) -> Durability:
    enabled = {"0": "no", "1": "yes"}.get(node.get("aof_enabled", ""), UNKNOWN)
    appendonly = node.get("appendonly", enabled)
    appendfsync = node.get("appendfsync", UNKNOWN)
    policy = node.get("maxmemory-policy", node.get("maxmemory_policy", UNKNOWN))
    lost = "in memory only" if appendonly == "no" else _LOST.get((appendonly, appendfsync), UNKNOWN)
    return Durability(appendonly, appendfsync, lost, policy)


def _strength(durability: Durability) -> tuple[bool, int, int]:
    safe = durability.maxmemory_policy in ("noeviction", UNKNOWN)
    return safe, _WEAKEST.get(durability.appendonly, 3), _WEAKEST.get(durability.appendfsync, 3)


def _ask(*words: Any, node: int = -1) -> StorePlan[Ask, Replies, Any]:
    """Send a command; return its reply, or raise it if it is an error."""
    [reply] = yield Ask(words, node)
    if isinstance(reply, Exception):
        raise reply
    return reply


def _run_for_all(keys: Keys, script: str, lease: str) -> StorePlan[Ask, Replies, None]:
    """Run a script for each thread and shared cells, of the store and its tenants."""
    pattern = f"*{escape_glob(keys.prefix)}:{{??}}:*"
    node = cursor = 0
    while (reply := (yield from _ask("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, node=node))) is not None:
        yield from _ask("PEXPIRE", lease, LEASE)
        cursor, found = reply
        for owner, thread_id in dict.fromkeys(
            filter(None, (keys.owner_in(key.decode(errors="backslashreplace")) for key in found))
        ):
            of_thread = owner.of(thread_id)
            yield from _ask("EVAL", script, len(of_thread), *of_thread)
        node, cursor = (node, cursor) if cursor else (node + 1, 0)


def _foreign_key(keys: Keys) -> StorePlan[Ask, Replies, str | None]:
    """Return a foreign key under our prefix, if there is one in the first 100,000."""
    node = cursor = 0
    for _ in range(SCANNED):
        pattern = f"{escape_glob(keys.prefix)}:*"
        [reply] = yield Ask(("SCAN", cursor, "MATCH", pattern, "COUNT", 1000), node)
        if reply is None or isinstance(reply, Exception):
            # No more nodes, or SCAN is forbidden; the scripts themselves refuse foreign keys.
            return None
        cursor, found = reply
        for key in found:
            name: str = key.decode(errors="backslashreplace")
            if not keys.is_ours(name):
                return name
        node, cursor = (node, cursor) if cursor else (node + 1, 0)
    return None


Loop: TypeAlias = asyncio.AbstractEventLoop


class _LoopClient:
    """The client of a loop, and the generator that closes it when the loop ends."""

    def __init__(self, client: AsyncClient, closer: AsyncGenerator[None, None]) -> None:
        self.client = client
        self.closer = closer
        self.is_ready = False
        self.opening = asyncio.Lock()


Clients: TypeAlias = dict[Loop, _LoopClient]


class Loops:
    """Keel's clients for event loops: an asyncio connection belongs to one loop.

    A loop that ends properly (`asyncio.run`) ends its async generators, and one of them closes the client. If a loop
    was only closed, its sockets are closed at the next use or close of `Loops`.
    """

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._make = make
        self._forget()

    def _forget(self) -> None:
        self._opened: Clients = {}
        self._process = os.getpid()
        # On garbage collection, and at the latest at the end of the process.
        weakref.finalize(self, _close_of_dead_loops, self._opened)

    async def client(self) -> AsyncClient:
        """Return the client of the running loop; create it if there is none."""
        if self._process != os.getpid():
            _PARENTS.append(self._opened)
            self._forget()
        loop = asyncio.get_running_loop()
        own = self._opened.get(loop) or await self._make_client(loop)
        if not own.is_ready:
            # One task initializes the client while others wait; if it is cancelled, the next one does.
            async with own.opening:
                if isinstance(own.client, AsyncRedisCluster):
                    # A client that does not know its nodes yet closes connections that concurrent calls have opened.
                    await own.client.initialize()
                own.is_ready = True
        return own.client

    async def _make_client(self, loop: Loop) -> _LoopClient:
        _close_of_dead_loops(self._opened)
        own = self._opened[loop] = _LoopClient(self._make(), self._close_at_end(loop))
        # The generator awaits nothing before its yield, so no other task runs in between.
        await anext(own.closer)
        return own

    async def _close_at_end(self, loop: Loop) -> AsyncGenerator[None, None]:
        opened = self._opened
        try:
            yield
        finally:
            # Without an entry, the client is already closed.
            own = opened.pop(loop, None)
            if own:
                await own.client.aclose()
                pool = getattr(own.client, "connection_pool", None)
                if pool is not None:
                    await pool.disconnect()

    async def aclose(self) -> None:
        """Close the client of the running loop."""
        own = self._opened.get(asyncio.get_running_loop())
        if own:
            await own.closer.aclose()

    def close(self) -> None:
        """Close all clients, each in its loop if that runs elsewhere or can run here."""
        if self._process == os.getpid():
            here = asyncio._get_running_loop()
            for loop, own in list(self._opened.items()):
                if loop is here or loop.is_closed():
                    _close_client(loop, self._opened)
                elif loop.is_running():
                    asyncio.run_coroutine_threadsafe(_aclose(own.closer), loop).result(CLOSING)
                elif here is None:
                    with suppress(RuntimeError):
                        loop.run_until_complete(_aclose(own.closer))


def _close_of_dead_loops(opened: Clients) -> None:
    """Close the clients of loops that were closed without ending their generators."""
    for loop in list(opened):
        if loop.is_closed():
            _close_client(loop, opened)


def _close_client(loop: Loop, opened: Clients) -> None:
    own = opened.pop(loop, None)
    if own is None:
        return
    abort_connections(own.client, loop.is_closed())
    # The generator awaits nothing more, so it can be ended without a loop.
    with suppress(StopIteration):
        own.closer.aclose().send(None)


async def _aclose(closer: AsyncGenerator[None, None]) -> None:
    await closer.aclose()
