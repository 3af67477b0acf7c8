"""The PostgreSQL driver: check or create the tables, and send requests.

A request is sent again if its connection breaks; every request is safe to repeat.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from langgraph_keel.backends.groups import Groups
from langgraph_keel.backends.migrations import Migration, find_due, newest, refuse_older
from langgraph_keel.backends.postgres.connection import (
    AsyncConnection,
    Connection,
    Given,
    GroupFailed,
    OwnConnections,
    Retry,
    RetryBudget,
    Watchdog,
    is_usable,
    named_errors,
)
from langgraph_keel.backends.postgres.exchange import AsyncOwnConnection, Exchange, OwnConnection, exchange
from langgraph_keel.backends.postgres.rows import Request, Statement, Tables
from langgraph_keel.backends.resent import noted, was_sent_before
from langgraph_keel.engine.plan import StorePlan, arun, run
from langgraph_keel.errors import (
    InvalidInput,
    KeelError,
    NewerFormat,
    NotAKeelStore,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    StoreError,
    refuse_closed,
)

MISSING = {"42P01", "3F000"}  # undefined_table, invalid_schema_name
RENAMED = {"42P01", "42703"}  # undefined_table, undefined_column
"""Errors of an old format's statement after a newer Keel migrated the tables."""
FOREIGN = {"42703", "42883"}  # undefined_column, undefined_function (an operator for other types)
DENIED = {"42501", "25006"}  # insufficient_privilege, read_only_sql_transaction
# Another process has just created the same objects: unique_violation and internal_error ("tuple concurrently
# updated") of the catalogs, duplicate table, object and schema, serialization_failure, deadlock_detected.
RIVALLED = {"23505", "XX000", "42P07", "42710", "42P06", "40001", "40P01"}
# Another process has already migrated: division_by_zero (`Tables.script_of`), and as above.
OVERTAKEN = {"22012", "40001", "40P01"}
TRIES = 8

FORMATS = """
SELECT format, EXISTS (
    SELECT FROM pg_class own, pg_class cells, pg_attribute c
    WHERE own.oid = f.tableoid AND cells.relname = 'keel_cells' AND cells.relnamespace = own.relnamespace
        AND c.attrelid = cells.oid AND c.attname = 'rank'
) FROM {format} f
"""

Rows: TypeAlias = list[Any]
Asked: TypeAlias = "str | Request"  # a script, run as one transaction without a reply, or a query

T = TypeVar("T")

_UNKNOWN = re.compile(r'(?:query parameter|connection option): "([A-Za-z_]+)"|connection option "([A-Za-z_]+)"')
"""Matches libpq's message about an unknown option."""

_BEGIN, _COMMIT = Statement(b"BEGIN", ()), Statement(b"COMMIT", ())
# Short: if one request waits for a lock, its whole group waits.
_GROUP_BEGINS = _BEGIN, Statement(b"SET LOCAL lock_timeout = '50ms'", ())


def ensure_tables(tables: Tables, where: str, *, create: bool, read_only: bool) -> StorePlan[Asked, Rows, None]:
    """Check the tables and their format in one trip; create or migrate them if due."""
    for _ in range(TRIES * (1 + len(tables.migrations))):
        formats, is_ranked = yield from _read_formats(tables, where)
        due = find_due(tables.migrations, min(formats), where) if formats else ()
        if is_ranked and not due:
            return
        if not formats:
            yield from _create(tables, where, create=create, read_only=read_only)
        elif not is_ranked:
            yield from _add_ranks(tables, where, can_change=create and not read_only)
        elif read_only or not create:
            why = "it may only be read here" if read_only else "auto_setup is off"
            raise refuse_older(where, min(formats), newest(tables.migrations), why)
        else:
            yield from _migrate(tables, where, *due[0])
    prefix = f"{tables.schema}." if tables.schema else ""
    names = (f"{prefix}keel_{name}" for name in ("threads", "entries", "items", "floors", "batches", "cells"))
    raise NotAKeelStore(
        f"{where}: a table or type with one of Keel's names ({', '.join(names)}) exists, "
        "but keel_format does not: use another schema="
    )


def _add_ranks(tables: Tables, where: str, *, can_change: bool) -> StorePlan[Asked, Rows, None]:
    """Add the columns and the index of cells that an earlier Keel did not create."""
    try:
        if can_change:
            yield tables.add_ranks
            return
    except StoreError as error:
        if _sqlstate(error) in RIVALLED:
            return
        if _sqlstate(error) not in DENIED:
            raise
    raise NotSetUp(
        f"{where} was created by an earlier Keel: let the owner of its tables run `keel schema --upgrade --url ...`"
    )


def _migrate(tables: Tables, where: str, number: int, migration: Migration[Any]) -> StorePlan[Asked, Rows, None]:
    try:
        if isinstance(migration.work, str):
            yield tables.statements_of(number, migration.work)
            return
        # During the migration both formats are stored, so an older Keel refuses the store.
        yield tables.fill_names(
            f"INSERT INTO {{format}} SELECT {number} FROM {{format}} WHERE format = {number - 1} FOR UPDATE "
            "ON CONFLICT DO NOTHING"
        )
        yield from migration.work(tables)
        yield tables.fill_names(f"DELETE FROM {{format}} WHERE format = {number - 1}")
    except StoreError as error:
        state = _sqlstate(error)
        if state in DENIED:
            why = f"this user may not change its tables ({_server_message(error)})"
            raise refuse_older(where, number - 1, newest(tables.migrations), why) from error
        if state not in OVERTAKEN:
            raise


def list_scripts(tables: Tables, where: str) -> StorePlan[Asked, Rows, list[str]]:
    """Return the scripts of the due migrations."""
    formats, is_ranked = yield from _read_formats(tables, where)
    if not formats:
        raise NotFound(f"{where}: there are no Keel tables")
    added = [] if is_ranked else [tables.add_ranks]
    return added + [tables.script_of(*each) for each in find_due(tables.migrations, min(formats), where)]


def refuse_newer(tables: Tables, where: str) -> StorePlan[Asked, Rows, None]:
    """Raise `NewerFormat` if the tables have one, to explain an error."""
    try:
        yield from _read_formats(tables, where)
    except NewerFormat:
        raise
    except KeelError:
        return  # the caller raises the first error


def _read_formats(tables: Tables, where: str) -> StorePlan[Asked, Rows, tuple[Sequence[int], bool]]:
    """Return the format (two while migrating, none without tables), and if ranked."""
    try:
        rows = yield Request((Statement(tables.prepare(FORMATS).text, ()),))
    except StoreError as error:
        if (state := _sqlstate(error)) in MISSING:
            return (), False
        if state in FOREIGN:
            raise NotAKeelStore(f"{where}: the table keel_format is not Keel's: use another schema=") from error
        raise
    formats = [row[0] for row in rows]
    if len(formats) not in (1, 2) or not all(isinstance(each, int) for each in formats):
        raise NotAKeelStore(f"{where}: the table keel_format is not Keel's: use another schema=")
    find_due(tables.migrations, max(formats), where)
    return formats, all(row[1] for row in rows)


def _sqlstate(error: Exception) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def _create(tables: Tables, where: str, *, create: bool, read_only: bool) -> StorePlan[Asked, Rows, None]:
    what = f"{where}: there are no Keel tables"
    if read_only:
        raise NotFound(what)
    if not create:
        raise NotSetUp(f"{what}: call setup(), or {_advice(tables)}")
    try:
        ((version, has_schema),) = yield tables.version_query
        yield tables.ddl_for(version, has_schema)
    except StoreError as error:
        state = _sqlstate(error)
        if state in DENIED:
            text = f"{what}, and this user may not create them ({_server_message(error)}): {_advice(tables)}"
            raise NotSetUp(text) from error
        if state not in RIVALLED:
            raise


def _server_message(error: StoreError) -> object:
    # Only the server's message: the error repeats the store and contains the statement.
    return getattr(getattr(error.__cause__, "diag", None), "message_primary", None) or error


def _advice(tables: Tables) -> str:
    first = next(line for line in tables.ddl.splitlines() if line.startswith("CREATE"))
    return (
        "let an administrator run the statements printed by `keel schema --url postgresql://... --print` "
        f"(the first is `{first.rstrip(' (')}`)"
    )


_drivers: WeakSet[PostgresDriver] = WeakSet()
# A forked child inherits sockets, and must not use or close those of its parent.
_inherited: list[object] = []


def _after_fork_in_child() -> None:
    for driver in list(_drivers):
        driver.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class PostgresDriver:
    """Sends requests to one database."""

    def __init__(
        self,
        given: Given,
        tables: Tables,
        *,
        size: int,
        timeout: float,
        prepare_threshold: int | None,
        read_only: bool,
        auto_setup: bool,
    ) -> None:
        self.given = given
        self.tables = tables
        parts = _parts(given)
        self.where = "PostgreSQL"
        if isinstance(given, str):  # never with the password
            place = f"{parts.get('host', 'local socket')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
            self.where = f"PostgreSQL at {place}"
        self.size = size
        self.timeout = timeout
        self.read_only = read_only
        self.auto_setup = auto_setup
        self.options: dict[str, Any] = {"autocommit": True, "prepare_threshold": prepare_threshold}
        if "connect_timeout" not in parts and "PGCONNECT_TIMEOUT" not in os.environ:
            self.options["connect_timeout"] = max(2, int(timeout))
        self._closed = False
        self._start()
        _drivers.add(self)

    def _start(self) -> None:
        self._ready = False
        self._starting = threading.RLock()
        self._watchdog = Watchdog(self.timeout)
        self._groups = Groups(self._asend_alone, self._asend_group)
        self.own: OwnConnections | None = None
        if isinstance(self.given, str):
            self.own = OwnConnections(self.given, self.options, self.size, self.timeout, self.where)
        self._source = self.own or GivenConnections(self.given, self.timeout)
        # With a blocking connection or pool, the async methods run in a thread.
        self.blocks = self._source.blocks
        self.is_async_only = self.own is None and not self.blocks

    def forget(self) -> None:
        """Reset all state in a forked child."""
        _inherited.append(self._source)
        self._start()

    # -- sending -----------------------------------------------------------------------------------------------

    def send(self, request: Request) -> list[Rows]:
        """Send `request` as one transaction; return the rows of each statement."""
        self._check(request)
        if not self._ready:
            self.open(self.auto_setup)
        try:
            budget = RetryBudget(self.where, self.timeout)
            return noted(self.retry(lambda connection: _run(connection, request), budget), budget.was_broken)
        except StoreError as error:
            if _sqlstate(error) in RENAMED:
                run(refuse_newer(self.tables, self.where), _ScriptDriver(self))
            raise

    async def asend(self, request: Request) -> list[Rows]:
        """Like `send`, without blocking the running loop."""
        if self.blocks:
            return await asyncio.to_thread(self.send, request)
        self._check(request)
        if not self._ready:
            await self.aopen(self.auto_setup)
        try:
            if request.joins and self.own:
                return await self._groups.send(request)
            return await self._asend_alone(request)
        except StoreError as error:
            if _sqlstate(error) in RENAMED:
                await arun(refuse_newer(self.tables, self.where), _AsyncScriptDriver(self))
            raise

    async def _asend_alone(self, request: Request) -> list[Rows]:
        budget = RetryBudget(self.where, self.timeout)
        return noted(await self.aretry(lambda connection: _arun(connection, request), budget), budget.was_broken)

    async def _asend_group(self, requests: Sequence[Request]) -> Sequence[list[Rows] | None]:
        budget = RetryBudget(self.where, self.timeout)
        try:
            replies = await self.aretry(lambda connection: _arun_group(connection, requests), budget)
            return [noted(each, budget.was_broken) for each in replies]
        except GroupFailed as error:
            # Without a reply, the group may be stored; each request is sent again in this context.
            was_sent_before.set(_sqlstate(error) is None)
            return [None] * len(requests)

    def _check(self, request: Request) -> None:
        if self._closed:
            raise refuse_closed(self.where)
        if request.writes and self.read_only:
            raise ReadOnlyStore(f"{self.where}: this saver was opened read-only")

    def retry(self, act: Callable[[Connection], T], budget: RetryBudget | None = None) -> T:
        """Call `act` with a connection; again if it breaks or loses a race."""
        budget = budget or RetryBudget(self.where, self.timeout)
        while True:
            try:
                with (
                    named_errors(self.where),
                    self._source.connection() as connection,
                    self._watchdog.watch(connection, budget),
                ):
                    return act(connection)
            except Retry as error:
                time.sleep(error.delay)

    async def aretry(self, act: Callable[[AsyncConnection], Awaitable[T]], budget: RetryBudget | None = None) -> T:
        """Like `retry`, without blocking the running loop."""
        budget = budget or RetryBudget(self.where, self.timeout)
        while True:
            try:
                with named_errors(self.where):
                    async with self._source.aconnection() as connection:
                        with self._watchdog.watch(connection, budget):
                            return await act(connection)
            except Retry as error:
                await asyncio.sleep(error.delay)

    # -- opening and closing -----------------------------------------------------------------------------------

    def open(self, create: bool) -> None:
        """Check the tables; see `ensure_tables`."""
        with self._starting:
            if not self._ready:
                plan = ensure_tables(self.tables, self.where, create=create, read_only=self.read_only)
                run(plan, _ScriptDriver(self))
                self._ready = True

    async def aopen(self, create: bool) -> None:
        """Like `open`, without blocking the running loop."""
        if self.blocks:
            await asyncio.to_thread(self.open, create)
        elif not self._ready:
            plan = ensure_tables(self.tables, self.where, create=create, read_only=self.read_only)
            await arun(plan, _AsyncScriptDriver(self))
            self._ready = True

    def migrations(self) -> list[str]:
        """Return the scripts of the due migrations."""
        return run(list_scripts(self.tables, self.where), _ScriptDriver(self))

    async def amigrations(self) -> list[str]:
        """Like `migrations`, without blocking the running loop."""
        if self.blocks:
            return await asyncio.to_thread(self.migrations)
        return await arun(list_scripts(self.tables, self.where), _AsyncScriptDriver(self))

    def close(self) -> None:
        """Close Keel's own pools; the user's connections and pools stay open."""
        self._closed = True
        self._source.close()


class GivenConnections:
    """The user's own connection or pool; never closed or reset (after a fork)."""

    def __init__(self, given: Any, timeout: float) -> None:
        self._given = given
        self._timeout = timeout
        # The block of a pool commits if its connections are not in autocommit mode.
        self._is_pool = not isinstance(given, psycopg.Connection | psycopg.AsyncConnection)
        self._turn = threading.RLock()
        self._turns: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self.blocks = not inspect.iscoroutinefunction(given.close)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend the connection, or one of the pool, to this thread."""
        if not self.blocks:
            raise InvalidInput(
                "this saver was created with an async connection or pool: use its async methods, or pass a URL"
            )
        # One thread at a time: on one connection, the statements of two would share a transaction.
        lending: Any = self._given.connection(self._timeout) if self._is_pool else self._turn
        with lending as lent:
            yield _without_pipeline(lent if self._is_pool else self._given)

    @asynccontextmanager
    async def aconnection(self) -> AsyncIterator[AsyncConnection]:
        """Lend the connection, or one of the pool, to this task."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        lending: Any = self._given.connection(self._timeout) if self._is_pool else turn
        async with lending as lent:
            yield _without_pipeline(lent if self._is_pool else self._given)

    def close(self) -> None:
        """Do nothing: it stays open."""


def _without_pipeline(connection: Any) -> Any:
    """Return a connection, or raise `InvalidInput` if it is in pipeline mode."""
    if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise InvalidInput(
            "this connection is in pipeline mode, where Keel cannot wait for a reply: use the saver outside of "
            "`with connection.pipeline()`; Keel batches its statements itself"
        )
    return connection


def _parts(given: Given) -> dict[str, Any]:
    """Return the options of a connection string; empty for a connection or pool."""
    if not isinstance(given, str):
        if not callable(getattr(given, "close", None)):
            raise InvalidInput(f"pass a URL, or a connection or pool of psycopg, not {type(given).__name__}")
        return {}
    try:
        parts = conninfo_to_dict(given)
    except (psycopg.Error, ValueError) as error:
        advice = _name_option(given, str(error)) or "use postgresql://user@host/database"
    else:
        if re.fullmatch(r"[0-9,]*", str(parts.get("port", ""))):
            return parts
        advice = "the port must be a number"
    # No cause: libpq's message quotes parts of the string, perhaps the password.
    raise InvalidInput(f"this is not a PostgreSQL connection string: {advice}")


def _name_option(given: str, message: str) -> str:
    """Return advice about an option unknown to libpq; "" if there is none."""
    match = _UNKNOWN.search(message)
    name = match and (match[1] or match[2])
    place, _, query = given.partition("?")
    is_url = "://" in place
    # Quote a name only if it cannot be part of an unquoted password.
    options, *behind = re.split(r"password\s*=", query if is_url else given, maxsplit=1, flags=re.IGNORECASE)
    may_hold_password = "@" in "".join((options, *behind)) if is_url else False
    if not name or may_hold_password or not re.search(rf"(?:^|[&\s]){name}\s*=", options):
        return ""
    if name == "schema":
        return "'schema' is an option of a URL, or of the saver: pass schema="
    known = [each.keyword.decode() for each in pq.Conninfo.get_defaults()] + ["schema"] * is_url
    near = [f"do you mean {each!r}?" for each in get_close_matches(name, known, 1)]
    return f"it has no option {name!r}: {next(iter(near), 'see the parameter key words of libpq')}"


def exchange_request(connection: OwnConnection | AsyncOwnConnection, request: Request) -> Exchange:
    """Send a request as one transaction; return the rows of each statement."""
    if len(request.statements) == 1:
        return (yield from exchange(connection, request.statements))
    rows = yield from exchange(connection, [_BEGIN, *request.statements, _COMMIT])
    return rows[1:-1]


# In a pipeline on the user's connection, no statement may be prepared: if one fails, the server skips the others, but
# psycopg considers them prepared.


def _run(connection: Connection, request: Request) -> list[Rows]:
    if isinstance(connection, OwnConnection):
        return connection.wait(exchange_request(connection, request))
    if len(request.statements) == 1 and connection.autocommit:
        return [_fetch(_execute(connection, request.statements[0]))]
    is_idle = is_usable(connection)
    try:
        with connection.pipeline(), connection.transaction():
            cursors = [_execute(connection, statement, False) for statement in request.statements]
    except psycopg.Error:
        if is_idle:  # otherwise the transaction is the user's
            with suppress(psycopg.Error):
                connection.rollback()
        raise
    return [_fetch(cursor) for cursor in cursors]


def _fetch(cursor: psycopg.Cursor[Any]) -> Rows:
    return [] if cursor.rownumber is None else cursor.fetchall()


def _execute(connection: Connection, statement: Statement, prepare: bool | None = None) -> psycopg.Cursor[Any]:
    # Not the connection's own row factory: LangGraph's savers set one that returns dicts.
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    return cursor.execute(statement.sql, statement.parameters, binary=True, prepare=prepare)


async def _arun(connection: AsyncConnection, request: Request) -> list[Rows]:
    if isinstance(connection, AsyncOwnConnection):
        return await connection.wait(exchange_request(connection, request))
    if len(request.statements) == 1 and connection.autocommit:
        return [await _afetch(await _aexecute(connection, request.statements[0]))]
    is_idle = is_usable(connection)
    try:
        async with connection.pipeline(), connection.transaction():
            cursors = [await _aexecute(connection, statement, False) for statement in request.statements]
    except psycopg.Error:
        if is_idle:
            with suppress(psycopg.Error):
                await connection.rollback()
        raise
    return [await _afetch(cursor) for cursor in cursors]


async def _arun_group(connection: AsyncConnection, requests: Sequence[Request]) -> list[list[Rows]]:
    assert isinstance(connection, AsyncOwnConnection)
    statements = [*_GROUP_BEGINS, *(each for request in requests for each in request.statements), _COMMIT]
    try:
        rows = iter((await connection.wait(exchange(connection, statements)))[len(_GROUP_BEGINS) :])
    except Exception as error:
        raise GroupFailed from error
    return [list(islice(rows, len(request.statements))) for request in requests]


async def _aexecute(
    connection: AsyncConnection, statement: Statement, prepare: bool | None = None
) -> psycopg.AsyncCursor[Any]:
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    return await cursor.execute(statement.sql, statement.parameters, binary=True, prepare=prepare)


async def _afetch(cursor: psycopg.AsyncCursor[Any]) -> Rows:
    return [] if cursor.rownumber is None else await cursor.fetchall()


class _ScriptDriver:
    """The driver of `ensure_tables`."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    def send(self, asked: Asked) -> Rows:
        """Run a script in a transaction, or send a query."""

        def act(connection: Connection) -> Rows:
            if isinstance(asked, Request):
                return _run(connection, asked)[0]
            with connection.transaction():
                connection.execute(asked.encode(), prepare=False)
                return []

        return self._driver.retry(act)


class _AsyncScriptDriver:
    """Like `_ScriptDriver`, for a running loop."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    async def send(self, asked: Asked) -> Rows:
        """Like `_ScriptDriver.send`."""

        async def act(connection: AsyncConnection) -> Rows:
            if isinstance(asked, Request):
                return (await _arun(connection, asked))[0]
            async with connection.transaction():
                await connection.execute(asked.encode(), prepare=False)
                return []

        return await self._driver.aretry(act)


class AsyncPostgresDriver:
    """The same driver, for a running loop."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._driver = driver

    async def send(self, request: Request) -> list[Rows]:
        """Call `PostgresDriver.asend`."""
        return await self._driver.asend(request)
