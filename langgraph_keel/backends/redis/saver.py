"""RedisSaver: threads in Redis or Valkey, as one server, Sentinel or Cluster."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from langgraph_keel.backends.redis import notices
from langgraph_keel.backends.redis.check import find_odd_keys
from langgraph_keel.backends.redis.connection import (
    MIGRATIONS,
    AsyncClient,
    Client,
    Durability,
    ServerCheck,
    Settings,
    check_client,
    check_url,
    where_of,
)
from langgraph_keel.backends.redis.driver import AsyncRedisDriver, RedisDriver
from langgraph_keel.backends.redis.entries import bucket_of
from langgraph_keel.backends.redis.store import (
    RedisStore,
    find_damaged,
    find_mislisted,
    find_unlisted,
    quote,
)
from langgraph_keel.engine.config import thread_id_of
from langgraph_keel.engine.plan import run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, NotAKeelStore, NotFound
from langgraph_keel.options import RedisOptions, split_options, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.info import StoreFacts


@publish
class RedisSaver(KeelSaver):
    """A checkpointer on Redis 6.2 or newer, or Valkey, without modules.

    It is for any number of processes, threads and loops, and opens itself on first use. The server's settings determine
    the durability of an acknowledged write (`durability()`); a warning is issued once if it is less than on disk. If a
    connection breaks, the request is sent again, up to three times within a second; the server recognizes by a token a
    request that it has already run.

    Args:
        url: `redis://host:6379/0` (`rediss://` with TLS, `unix://` for a socket), or `redis+cluster://host:port`.
        **options: `RedisOptions` lists and documents them, with those of every saver.

    Raises:
        InvalidInput: If arguments contradict each other, the URL is not a Redis URL, or a client decodes replies.
    """

    _registry = MIGRATIONS

    @takes(RedisOptions)
    def __init__(self, url: str | None = None, **options: Unpack[RedisOptions]) -> None:
        own, shared = split_options(type(self), RedisOptions, options)
        client, async_client, read_only = own["client"], own["async_client"], own["read_only"]
        if (url is None) == (client is None and async_client is None):
            raise InvalidInput("pass either a url or a client (and an async_client)")
        make: Callable[[], Client] | None
        make_async: Callable[[], AsyncClient] | None
        if url is not None:
            check_url(url)
            settings = Settings(url, own["timeout"], own["max_connections"])
            where, make, make_async = settings.where, settings.client, settings.async_client
        else:
            make = (lambda: client) if check_client(client) else None
            make_async = (lambda: async_client) if check_client(async_client) else None
            where = where_of(client or async_client)
        ttl = milliseconds_of(shared.pop("ttl", None))  # the server expires threads, not a background thread
        self._store = store = RedisStore(own["prefix"], ttl, own["refresh_ttl_on_read"], read_only)
        checks = {name: own[name] for name in ("read_only", "auto_setup", "durability", "allow_eviction")}
        check = ServerCheck(store.keys, where, **checks, migrations=self._registry)
        self._redis = RedisDriver(check, where, make, is_ours=url is not None)
        self._async_redis = AsyncRedisDriver(self._redis, make_async, is_ours=url is not None)
        super().__init__(store, self._redis, self._async_redis, read_only, self._redis.is_async_only, **shared)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Unpack[RedisOptions]) -> Self:
        """Return a saver for use in `with` or `async with`, as LangGraph's savers do."""
        return cls(conn_string, **options)

    def _setup(self) -> None:
        self._redis.setup()

    async def _asetup(self) -> None:
        await self._async_redis.setup()

    def _migrations(self) -> list[str]:
        return self._redis.migrations()

    async def _amigrations(self) -> list[str]:
        return await self._async_redis.migrations()

    def durability(self) -> Durability:
        """Return the durability of acknowledged writes, as reported on first use."""
        self._redis.open(writes=False)
        return self._redis.check.durability

    async def adurability(self) -> Durability:
        """Like `durability`, asynchronously."""
        await self._async_redis.open(writes=False)
        return self._redis.check.durability

    def set_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        """Set a thread's own time to live after a write, instead of the saver's `ttl`.

        Args:
            thread_id: The thread.
            ttl: Seconds or a timedelta; `None`: it never expires.

        Raises:
            NotFound: If the thread does not exist.
        """
        found = self.engine.run(self._store.set_ttl(thread_id_of(thread_id), milliseconds_of(ttl)))
        _require(found, thread_id)

    async def aset_ttl(self, thread_id: str, ttl: float | timedelta | None) -> None:
        """Like `set_ttl`, asynchronously."""
        found = await self.engine.arun(self._store.set_ttl(thread_id_of(thread_id), milliseconds_of(ttl)))
        _require(found, thread_id)

    def _notify(self) -> None:
        notices.notify(self._redis, self._store.keys.channel)

    async def _anotify(self) -> None:
        if self._async_redis.blocks:
            await to_thread(self._notify)
        else:
            await notices.anotify(self._async_redis, self._store.keys.channel)

    def _listen(self) -> notices.Listening | None:
        return notices.listen(self._redis, self._store.keys.channel)

    async def _alisten(self) -> notices.AsyncListening | None:
        if self._async_redis.blocks:
            return None
        return await notices.alisten(self._async_redis, self._store.keys.channel)

    def _place(self) -> str:
        return f"{self._redis.where}, prefix {self._store.keys.prefix}"

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        return StoreFacts("redis", self._place(), self._redis.check.version, self.durability().acknowledged)

    def _check(self) -> Iterator[Finding]:
        from langgraph_keel.retention.check import ADVICE, Finding

        odd = run(find_odd_keys(self._store.keys), self._redis)
        yield from (Finding("lost", each.thread_id, each.key, each.said, ADVICE) for each in odd)
        with suppress(NotAKeelStore):  # of keys that are already reported
            for name in run(find_damaged(self._store.keys), self._redis):
                yield Finding("lost", name, self._store.keys.thread(name), "the content of its key is damaged", ADVICE)
            advice = "write to the thread, and it is listed again"
            for name in run(find_unlisted(self._store.keys), self._redis):
                yield Finding("decide", name, "the index of threads", "it is missing from the list of threads", advice)
            for each in run(find_mislisted(self._store.keys), self._redis):
                yield Finding("decide", each.thread_id, "the index of threads", each.said, each.advice)

    def _index_advice(self, thread_id: str) -> str:
        return f"with redis-cli: DEL {quote(self._store.keys.marks(bucket_of(thread_id)).encode())}"

    def _elsewhere(self) -> Sequence[str]:
        return [
            "The server's append-only file (until BGREWRITEAOF), snapshots (until BGSAVE), slow log (until SLOWLOG "
            "RESET), and backups of them; replicas follow by themselves."
        ]

    def _close(self) -> None:
        """Close the clients that this saver created; later calls raise `StoreClosed`."""
        self._redis.close()
        self._async_redis.close()

    async def aclose(self) -> None:
        """Like `close`, asynchronously."""
        if self.tenant is None:
            await self._async_redis.aclose()
        await super().aclose()

    def _view(self, tenant: str) -> Self:
        view = super()._view(tenant)
        view._store = self._store.of_tenant(tenant)
        return view


def milliseconds_of(ttl: float | timedelta | None) -> int | None:
    """Return a time to live in milliseconds; `None`: no expiry."""
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.001 <= seconds < 1e10:
        raise InvalidInput(f"ttl must be seconds or a timedelta of at least a millisecond, not {ttl!r}")
    return int(seconds * 1000)


def _require(found: bool, thread_id: str) -> None:
    if not found:
        raise NotFound(f"there is no thread {thread_id!r}")


def open_url(url: str, *, read_only: bool = False, **options: Any) -> RedisSaver:
    """Open the server or cluster of a URL, with the options of `RedisSaver`."""
    return RedisSaver(url, read_only=read_only, **options)
