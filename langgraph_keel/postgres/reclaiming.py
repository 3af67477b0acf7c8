"""Space that returns: `VACUUM` of Keel's tables, outside of any transaction.

It runs on a connection of its own, for it may take longer than any request may. Behind PgBouncer in transaction pooling
that works, too: each statement is a transaction by itself. On a connection or pool of the user's, the saver's timeout
holds, and nothing can be done where that is not in autocommit.
"""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.errors import AccessDenied, ReadOnlyStore
from langgraph_keel.postgres.connection import named_errors
from langgraph_keel.postgres.driver import PostgresDriver
from langgraph_keel.postgres.tables import TABLES, Tables

if TYPE_CHECKING:
    from langgraph_keel.postgres.connection import AsyncConnection, Connection

ELSEWHERE = (
    "The server's write-ahead log with its archive, replicas, logs and backups; rows that a transaction which is open "
    "may still see, up to the next VACUUM; and samples in the planner's statistics (pg_statistic), which ANALYZE "
    "replaces for tables that are not empty."
)
_SIZE = b"""
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
WHERE c.oid = ANY (%(tables)s::regclass[])
OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = ANY (%(tables)s::regclass[]))
"""
_USED_AGAIN = (
    "the space is used again (VACUUM); bytes of deleted rows stay in it until then, or until saver.reclaim(full=True), "
    "which locks the tables (VACUUM FULL)"
)
_GIVEN_BACK = "the tables were written anew (VACUUM FULL)"
_IN_TRANSACTION = "VACUUM cannot run in a transaction, and the connection given is not in autocommit: nothing was done"


def reclaim(driver: PostgresDriver, *, full: bool) -> Reclaimed:
    """Give back what is free.

    Args:
        driver: The database's.
        full: Whether the system gets it back, which locks the tables for as long as it takes.
    """
    _check(driver)
    driver.open(create=driver.auto_setup)
    if driver.own is None:
        return driver.insist(lambda connection: _vacuumed(connection, driver.tables, full=full))
    with named_errors(driver.where), closing(driver.own.connect()) as connection:
        return _vacuumed(connection, driver.tables, full=full)


async def areclaim(driver: PostgresDriver, *, full: bool) -> Reclaimed:
    """As `reclaim`, without blocking the running loop."""
    if driver.own is not None or driver.blocks:
        return await to_thread(reclaim, driver, full=full)
    _check(driver)
    await driver.aopen(create=driver.auto_setup)
    return await driver.ainsist(lambda connection: _avacuumed(connection, driver.tables, full=full))


def _check(driver: PostgresDriver) -> None:
    if driver.read_only:
        raise ReadOnlyStore(f"{driver.where}: this saver was opened to read only")


def _vacuumed(connection: Connection, tables: Tables, *, full: bool) -> Reclaimed:
    _check_autocommit(connection)
    names, cursor = _names(tables), connection.cursor(row_factory=_plain)
    before = cursor.execute(_SIZE, {"tables": names}).fetchone()
    with _heard(connection) as warnings:
        for statement in _statements(names, full=full):
            connection.execute(statement, prepare=False)
    _check_any(names, warnings)
    after = cursor.execute(_SIZE, {"tables": names}).fetchone()
    return _reclaimed(before, after, warnings, full=full)


async def _avacuumed(connection: AsyncConnection, tables: Tables, *, full: bool) -> Reclaimed:
    _check_autocommit(connection)
    names, cursor = _names(tables), connection.cursor(row_factory=_plain)
    before = await (await cursor.execute(_SIZE, {"tables": names})).fetchone()
    with _heard(connection) as warnings:
        for statement in _statements(names, full=full):
            await connection.execute(statement, prepare=False)
    _check_any(names, warnings)
    after = await (await cursor.execute(_SIZE, {"tables": names})).fetchone()
    return _reclaimed(before, after, warnings, full=full)


def _check_autocommit(connection: Connection | AsyncConnection) -> None:
    if not connection.autocommit:
        raise AccessDenied(_IN_TRANSACTION)


def _check_any(names: Sequence[str], warnings: Sequence[str]) -> None:
    """Check that one of the tables at least was not left out."""
    tables = [name.rpartition(".")[2].strip('"') for name in names]
    if all(any(table in warning for warning in warnings) for table in tables):
        raise AccessDenied("nothing was done, as this user may not VACUUM: " + "; ".join(warnings))


def _plain(cursor: Any) -> Any:
    """Make rows of their values, whatever the user's connection makes of them."""
    return tuple


def _names(tables: Tables) -> list[str]:
    return [tables.named(f"{{{name}}}") for name in TABLES]


def _statements(names: Sequence[str], *, full: bool) -> list[bytes]:
    how = "FULL, ANALYZE" if full else "ANALYZE"
    # The planner's samples of what was deleted are dead rows by then.
    statistics = ["VACUUM FULL pg_catalog.pg_statistic"] if full else []
    return [text.encode() for text in (*(f"VACUUM ({how}) {name}" for name in names), *statistics)]


@contextmanager
def _heard(connection: Connection | AsyncConnection) -> Iterator[list[str]]:
    """Hear what the server leaves out, for the user may not do it: it says so in a warning, and goes on."""
    warnings: list[str] = []

    def hear(diagnostic: Any) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            warnings.append(str(diagnostic.message_primary))

    connection.add_notice_handler(hear)
    try:
        yield warnings
    finally:
        connection.remove_notice_handler(hear)


def _reclaimed(before: Any, after: Any, warnings: Sequence[str], *, full: bool) -> Reclaimed:
    return Reclaimed(before[0], after[0], "; ".join([_GIVEN_BACK if full else _USED_AGAIN, *warnings]))
