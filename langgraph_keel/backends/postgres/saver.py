"""PostgresSaver: one database for any number of processes and machines."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import unquote

from langgraph_keel.backends.postgres import notices
from langgraph_keel.backends.postgres.connection import named_errors
from langgraph_keel.backends.postgres.driver import AsyncPostgresDriver, PostgresDriver
from langgraph_keel.backends.postgres.rows import MIGRATIONS, TABLES, Tables, key, unescape
from langgraph_keel.backends.postgres.store import PostgresStore
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import AccessDenied, InvalidInput, ReadOnlyStore
from langgraph_keel.options import PostgresOptions, split_options, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.backends.postgres.connection import AsyncConnection, Connection, Given
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.info import StoreFacts
    from langgraph_keel.retention.reclaim import Reclaimed


ELSEWHERE = (
    "The server's write-ahead log with its archive, replicas, logs and backups; rows still visible to an open "
    "transaction, until the next VACUUM; and samples in the planner's statistics (pg_statistic), which ANALYZE "
    "replaces for tables that are not empty."
)
_SIZE = b"""
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
WHERE c.oid = ANY (%(tables)s::regclass[])
OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = ANY (%(tables)s::regclass[]))
"""
_USED_AGAIN = (
    "the space will be used again (VACUUM); bytes of deleted rows stay in it until then, or until "
    "`keel reclaim --full` (saver.retention.reclaim_space(full=True)), which locks the tables (VACUUM FULL)"
)

_UNLISTED = """
SELECT e.thread_id, count(*), t.thread_id IS NULL FROM {entries} e LEFT JOIN {threads} t USING (thread_id)
WHERE e.state <> 2 AND (t.thread_id IS NULL OR e.seq > t.seq) GROUP BY e.thread_id, t.thread_id
"""
_PUT_AT = (
    "SELECT e.put_at FROM {entries} e WHERE e.thread_id = t.thread_id AND e.put_at >= '' AND e.state <> 2 "
    "ORDER BY e.seq DESC LIMIT 1"
)
_MISLISTED = f"""
SELECT t.thread_id, t.name, t.put_at, e.put_at FROM {{threads}} t CROSS JOIN LATERAL ({_PUT_AT}) e
WHERE t.put_at <> e.put_at OR t.name IS NOT NULL
"""


def reclaim(driver: PostgresDriver, *, full: bool) -> Reclaimed:
    """Free space by a `VACUUM` of Keel's tables.

    It uses a separate connection without the timeout of requests. On the user's own connection or pool, the saver's
    timeout applies.
    """
    _check_writable(driver)
    driver.open(create=driver.auto_setup)
    if driver.own is None:
        return driver.retry(lambda connection: _vacuum(connection, driver.tables, full=full))
    with named_errors(driver.where), closing(driver.own.connect()) as connection:
        return _vacuum(connection, driver.tables, full=full)


async def areclaim(driver: PostgresDriver, *, full: bool) -> Reclaimed:
    """Like `reclaim`, without blocking the running loop."""
    if driver.own is not None or driver.blocks:
        return await to_thread(reclaim, driver, full=full)
    _check_writable(driver)
    await driver.aopen(create=driver.auto_setup)
    return await driver.aretry(lambda connection: _avacuum(connection, driver.tables, full=full))


def _check_writable(driver: PostgresDriver) -> None:
    if driver.read_only:
        raise ReadOnlyStore(f"{driver.where}: this saver was opened read-only")


def _vacuum(connection: Connection, tables: Tables, *, full: bool) -> Reclaimed:
    names, cursor = _table_names(tables), connection.cursor(row_factory=_tuple_rows)
    with _collect_warnings(connection) as warnings:
        before = cursor.execute(_SIZE, {"tables": names}).fetchone()
        for statement in _statements(names, full=full):
            connection.execute(statement, prepare=False)
        after = cursor.execute(_SIZE, {"tables": names}).fetchone()
    return _report(names, before, after, warnings, full=full)


async def _avacuum(connection: AsyncConnection, tables: Tables, *, full: bool) -> Reclaimed:
    names, cursor = _table_names(tables), connection.cursor(row_factory=_tuple_rows)
    with _collect_warnings(connection) as warnings:
        before = await (await cursor.execute(_SIZE, {"tables": names})).fetchone()
        for statement in _statements(names, full=full):
            await connection.execute(statement, prepare=False)
        after = await (await cursor.execute(_SIZE, {"tables": names})).fetchone()
    return _report(names, before, after, warnings, full=full)


def _tuple_rows(cursor: Any) -> Any:
    """A row factory for tuples, independent of the user's connection."""
    return tuple


def _table_names(tables: Tables) -> list[str]:
    return [tables.fill_names(f"{{{name}}}") for name in TABLES]


def _statements(names: Sequence[str], *, full: bool) -> list[bytes]:
    how = "FULL, ANALYZE" if full else "ANALYZE"
    # After ANALYZE, the planner's samples of deleted rows are dead rows of this table.
    statistics = ["VACUUM FULL pg_catalog.pg_statistic"] if full else []
    return [text.encode() for text in (*(f"VACUUM ({how}) {name}" for name in names), *statistics)]


@contextmanager
def _collect_warnings(connection: Connection | AsyncConnection) -> Iterator[list[str]]:
    """Collect the server's warnings: one per table that this user may not vacuum."""
    if not connection.autocommit:
        raise AccessDenied(
            "nothing was done: VACUUM cannot run in a transaction, and the connection is not in autocommit mode"
        )
    warnings: list[str] = []

    def hear(diagnostic: Any) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            warnings.append(str(diagnostic.message_primary))

    connection.add_notice_handler(hear)
    try:
        yield warnings
    finally:
        connection.remove_notice_handler(hear)


def _report(names: Sequence[str], before: Any, after: Any, warnings: Sequence[str], *, full: bool) -> Reclaimed:
    from langgraph_keel.retention.reclaim import Reclaimed

    tables = [name.rpartition(".")[2].strip('"') for name in names]
    if all(any(table in warning for warning in warnings) for table in tables):
        raise AccessDenied("nothing was done, because this user may not VACUUM: " + "; ".join(warnings))
    done = "the tables were rewritten (VACUUM FULL)" if full else _USED_AGAIN
    return Reclaimed(before[0], after[0], "; ".join([done, *warnings]))


def _look(connection: Connection, tables: Tables) -> tuple[int, str, int]:
    """Return the tables' format and bytes, and the server's `synchronous_commit`."""
    cursor = connection.cursor(row_factory=_tuple_rows)
    query = tables.fill_names("SELECT max(format), current_setting('synchronous_commit') FROM {format}")
    ((version, commits),) = cursor.execute(query.encode()).fetchall()
    ((nbytes,),) = cursor.execute(_SIZE, {"tables": _table_names(tables)}).fetchall()
    return int(version), str(commits), int(nbytes)


def check(driver: PostgresDriver) -> Iterator[Finding]:
    """Check that the row of each thread agrees with its checkpoints."""
    from langgraph_keel.retention.check import Finding

    driver.open(create=False)
    fill = driver.tables.fill_names

    def read(query: str) -> list[tuple[Any, ...]]:
        return driver.retry(
            lambda connection: connection.cursor(row_factory=_tuple_rows).execute(fill(query).encode()).fetchall()
        )

    rows = read(_UNLISTED)
    for thread_id, count, is_unlisted in rows:
        why = "its thread has no row" if is_unlisted else "newer than the last number in its thread's row"
        message = f"{count_of(count, 'checkpoint')}: {why}"
        yield Finding("lost", unescape(thread_id), "keel_threads", message, "restore its row from a backup")
    for thread_id, name, listed_at, put_at in read(_MISLISTED):
        if name is not None and key(unescape(name)) != thread_id:
            message = f"its row has the name of another thread: {name!r:.300}"
            yield Finding("lost", unescape(name), "keel_threads", message, "restore its row from a backup")
        if listed_at != put_at:
            message = f"its row has the last write at {listed_at}, but its newest checkpoint is of {put_at}"
            quoted = thread_id.replace("'", "''")
            advice = f"{fill('UPDATE {threads} t')} SET put_at = ({fill(_PUT_AT)}) WHERE thread_id = '{quoted}'"
            yield Finding("decide", unescape(name or thread_id), "keel_threads", message, advice)


@publish
class PostgresSaver(KeelSaver):
    """A checkpointer on PostgreSQL, for any number of processes and machines.

    Opens itself and creates its tables on first use. Sync and async calls use separate connections, opened on demand.
    An acknowledged write is as durable as a commit of the server: on disk, unless `synchronous_commit` is weaker.

    Args:
        connection: A URL (`postgresql://user@host/database`, also with `?schema=name`), any libpq connection string, or
            your own psycopg connection or psycopg_pool pool, which stays open. With a blocking one, the async methods
            run in a thread; with an async one, the blocking methods do not work. In a transaction of yours, a write
            becomes durable when you commit. The connection must use psycopg's own type loaders.
        **options: `PostgresOptions` lists and documents them, with those of every saver.

    Raises:
        InvalidInput: If the name of the schema is invalid, or given twice.
    """

    _registry = MIGRATIONS

    @takes(PostgresOptions)
    def __init__(self, connection: Given, **options: Unpack[PostgresOptions]) -> None:
        own, shared = split_options(type(self), PostgresOptions, options)
        schema, partitions = own.pop("schema"), own.pop("partitions")
        if isinstance(connection, str):
            connection, schema = _without_schema(connection, schema)
        tables = Tables(schema, partitions, self._registry)
        self._postgres = driver = PostgresDriver(connection, tables, size=own.pop("pool_size"), **own)
        is_read_only, is_async_only = own["read_only"], driver.is_async_only
        super().__init__(
            PostgresStore(tables), driver, AsyncPostgresDriver(driver), is_read_only, is_async_only, **shared
        )

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Unpack[PostgresOptions]) -> Self:
        """Return a saver for use in `with` or `async with`, as LangGraph's savers do."""
        return cls(conn_string, **options)

    @property
    def ddl(self) -> str:
        """The statements that `setup` runs, for an administrator to run instead."""
        return self._postgres.tables.ddl

    def grants(self, role: str) -> str:
        """Return the grants for a role to run agents, prune, delete and erase.

        Only the owner can create and vacuum tables. For a tenant's saver, the role is limited to the tenant's rows by
        row-level security.

        Raises:
            InvalidInput: If the name of the role is invalid.
        """
        return self._postgres.tables.grants(role, self.tenant or "")

    def setup(self) -> Awaitable[None]:
        """As `KeelSaver.setup`; with your own async connection or pool, await it."""
        return self.asetup() if self._postgres.is_async_only else super().setup()

    def _setup(self) -> None:
        self._postgres.open(create=True)

    async def _asetup(self) -> None:
        await self._postgres.aopen(create=True)

    def _migrations(self) -> list[str]:
        return self._postgres.migrations()

    async def _amigrations(self) -> list[str]:
        return await self._postgres.amigrations()

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

    def _place(self) -> str:
        return self._postgres.where

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        self._postgres.open(create=False)
        version, commits, nbytes = self._postgres.retry(lambda connection: _look(connection, self._postgres.tables))
        kept = f"committed by the server (synchronous_commit={commits})"
        return StoreFacts("postgresql", self._postgres.where, version, kept, nbytes)

    def _check(self) -> Iterator[Finding]:
        return check(self._postgres) if self.tenant is None else iter(())

    def _index_advice(self, thread_id: str) -> str:
        quoted = key(thread_id).replace("'", "''")
        update = self._postgres.tables.fill_names("UPDATE {threads} SET marks = NULL, late = NULL, late_of = NULL")
        return f"{update} WHERE thread_id = '{quoted}'"

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return reclaim(self._postgres, full=full)

    async def _areclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return await areclaim(self._postgres, full=full)

    def _elsewhere(self) -> Sequence[str]:
        return [ELSEWHERE]

    def _close(self) -> None:
        self._postgres.close()


def _without_schema(url: str, schema: str | None) -> tuple[str, str | None]:
    """Remove `schema=`, which libpq does not know, from a URL; return both."""
    place, mark, query = url.partition("?")
    pairs = query.split("&") if mark and "://" in place else []
    found = [pair for pair in pairs if pair.startswith("schema=")]
    if not found:
        return url, schema
    if schema is not None or len(found) > 1:
        raise InvalidInput("the schema is given twice: in the URL and as schema=, or twice in the URL")
    rest = "&".join(pair for pair in pairs if pair not in found)
    return f"{place}?{rest}" if rest else place, unquote(found[0].removeprefix("schema="))


def open_url(url: str, *, read_only: bool = False, **options: Any) -> PostgresSaver:
    """Open the database of a libpq URL, which may have `?schema=name`."""
    return PostgresSaver(url, read_only=read_only, **options)
