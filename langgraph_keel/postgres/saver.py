"""PostgresSaver: one database, any number of processes and machines."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.errors import InvalidInput
from langgraph_keel.postgres import notices, reclaiming
from langgraph_keel.postgres.driver import AsyncPostgresDriver, PostgresDriver
from langgraph_keel.postgres.store import PostgresStore
from langgraph_keel.postgres.tables import Tables
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.postgres.connection import Given


class PostgresSaver(KeelSaver):
    """A checkpointer on PostgreSQL, for any number of processes and machines.

    Opens itself on first use and creates its tables then. Each face has connections of its own, made when it needs
    them. Acknowledged means what a commit means to the server: on disk, unless `synchronous_commit` says otherwise.

    Args:
        connection: A URL (`postgresql://user@host/database`, also with `?schema=name`) or any connection string of
            libpq; or a connection or pool of your own from psycopg or psycopg_pool, which stays open. For one that
            blocks, the async methods wait in a thread; one that is async has no blocking methods. On a connection that
            is in a transaction of yours a put lasts when you commit. Its type loaders must be psycopg's own.
        schema: Where the tables are; by default the first schema of the connection's search path.
        partitions: Into how many hash partitions by thread the tables are divided when they are created.
        pool_size: Most connections at once, for each face and loop.
        timeout: Seconds a call waits for a connection, and for an answer, before it raises `StoreBusy` or
            `StoreUnavailable`.
        prepare_threshold: After how many uses psycopg prepares a statement; `None` (never) for PgBouncer before 1.21.
        read_only: Never write, and do not create what is missing.
        auto_setup: Create the tables on first use; otherwise `setup()` must have been called once.
        **options: As for `KeelSaver`: `serde`, `types`, `on_conflict`, `memo_entries`, `memo_bytes`; `keep_last`,
            `ttl`, `upkeep_every` (upkeep by itself), `archive_removed`, `owner`, and what else stands there.

    Raises:
        InvalidInput: The schema cannot be one, or is named twice.
    """

    def __init__(
        self,
        connection: Given,
        *,
        schema: str | None = None,
        partitions: int = 0,
        pool_size: int = 10,
        timeout: float = 30.0,
        prepare_threshold: int | None = 5,
        read_only: bool = False,
        auto_setup: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(connection, str):
            connection, schema = _without_schema(connection, schema)
        self._postgres = PostgresDriver(
            connection,
            Tables(schema, partitions),
            size=pool_size,
            timeout=timeout,
            prepare_threshold=prepare_threshold,
            read_only=read_only,
            auto_setup=auto_setup,
        )
        store = PostgresStore(self._postgres.tables)
        super().__init__(store, self._postgres, AsyncPostgresDriver(self._postgres), **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Return a saver for a URL, to be used in `with` or `async with`; the name LangGraph's savers have for it."""
        return cls(conn_string, **options)

    @property
    def ddl(self) -> str:
        """The statements that `setup` runs, for somebody else to run."""
        return self._postgres.tables.ddl

    def setup(self) -> None:
        """Create the tables if they are not there. Safe to call again, and from many processes at once.

        Raises:
            NotSetUp: They are not there, and this user may not create them.
        """
        self._postgres.open(create=True)

    async def asetup(self) -> None:
        """As `setup`, asynchronously."""
        await self._postgres.aopen(create=True)

    def _notify(self) -> None:
        notices.notify(self._postgres)

    async def _anotify(self) -> None:
        if self._postgres.blocks:
            await to_thread(self._notify)
        else:
            await notices.anotify(self._postgres)

    def _listen(self) -> notices.Listening | None:
        return notices.listen(self._postgres)

    async def _alisten(self) -> notices.AsyncListening | None:
        return await notices.alisten(self._postgres)

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return reclaiming.reclaim(self._postgres, full=full)

    async def _areclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return await reclaiming.areclaim(self._postgres, full=full)

    def _elsewhere(self) -> Sequence[str]:
        return [reclaiming.ELSEWHERE]

    def _close(self) -> None:
        """Close the connections that this saver opened. Calls after this raise `StoreClosed`."""
        self._postgres.close()


def _without_schema(url: str, schema: str | None) -> tuple[str, str | None]:
    """Take `schema=` out of a URL, which libpq does not know; the rest stays as it was written."""
    place, mark, query = url.partition("?")
    pairs = query.split("&") if mark and "://" in place else []
    found = [pair for pair in pairs if pair.startswith("schema=")]
    if not found:
        return url, schema
    if schema is not None or len(found) > 1:
        raise InvalidInput("the schema is named twice: in the URL and by schema=, or twice in the URL")
    rest = "&".join(pair for pair in pairs if pair not in found)
    return f"{place}?{rest}" if rest else place, unquote(found[0].removeprefix("schema="))
