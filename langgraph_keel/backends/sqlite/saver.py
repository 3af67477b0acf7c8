"""SqliteSaver: one file for many processes, without loss of acknowledged writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from langgraph_keel.backends.paths import checked_path
from langgraph_keel.backends.registry import path_in, refuse_url
from langgraph_keel.backends.sqlite.connection import MIGRATIONS, list_due, read_format, schema, script_of
from langgraph_keel.backends.sqlite.driver import (
    RESERVE,
    AsyncSqliteDriver,
    LockFile,
    SqliteDriver,
    name_error,
    named_errors,
)
from langgraph_keel.backends.sqlite.entries import MAKE_ROOM, PUT_AT, TENS, Work
from langgraph_keel.backends.sqlite.store import SqliteStore, has_index
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import CorruptStore, StoreBusy, StoreFull
from langgraph_keel.options import SqliteOptions, split_options, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.info import StoreFacts
    from langgraph_keel.retention.reclaim import Reclaimed

_UNNAMED = """
SELECT count(*) FROM entries e WHERE e.state <> 2 AND NOT EXISTS (
    SELECT 1 FROM namespaces n JOIN threads t ON t.id = n.thread WHERE n.id = e.namespace AND t.id = e.key >> 32
)
"""

_MISLISTED = f"""
SELECT count(*) FROM (SELECT o.id, o.name, ({PUT_AT.replace("{thread}", "o.id")}) AS put_at FROM threads o) t
LEFT JOIN thread_index i ON i.thread = t.id
WHERE t.put_at IS NOT NULL AND (i.name IS NOT t.name OR substr(i.put_at, 1, {TENS}) IS NOT substr(t.put_at, 1, {TENS}))
"""


def reclaim(driver: SqliteDriver, *, full: bool, scrub: bool) -> Reclaimed:
    """Truncate the log and return free pages. Writers wait for it, readers do not."""
    from langgraph_keel.retention.reclaim import Reclaimed

    if driver.private:
        return Reclaimed(None, None, "a database in memory: free space is used again, and released on close")
    driver.send(Work(lambda _: None, writes=True))  # opens the database, or raises an error
    before = _size(driver.path)
    # An erasure (`scrub`) also rewrites the file: when SQLite balances a tree, copies of cells remain in unused parts
    # of pages, which `secure_delete` does not overwrite (2 of 6 databases of 3,000 rows, SQLite 3.40.1).
    try:
        done, is_read = _give_back(driver, whole=full or scrub)
    except StoreFull:
        if not driver.send(MAKE_ROOM):
            raise
        done, is_read = _give_back(driver, whole=full or scrub)
    if is_read and scrub:
        raise StoreBusy(f"{driver.path}-wal is not truncated: a reader has used an old snapshot for {driver.timeout} s")
    kept = "; its write-ahead log stays, because a reader uses an old snapshot" if is_read else ""
    return Reclaimed(before, _size(driver.path), done + kept)


def _give_back(driver: SqliteDriver, *, whole: bool) -> tuple[str, int]:
    """Return a sentence on the work done, and whether a reader holds the log."""
    with (
        closing(LockFile(driver.path)) as lock,
        named_errors(driver.path),
        driver.lend() as connection,
        lock.hold(driver.timeout),
    ):
        done = _rewrite(connection, driver.path, whole=whole), _ask(connection, "wal_checkpoint(TRUNCATE)")
        if os.path.getsize(driver.path) < RESERVE:
            lock.give_up_reserve()  # restored once the log has been long
        return done


def _rewrite(connection: Any, path: str, *, whole: bool) -> str:
    pages, free = _ask(connection, "page_count"), _ask(connection, "freelist_count")
    # VACUUM rewrites the whole file. New databases have no `auto_vacuum`: its page map cost 11 to 21 % more bytes per
    # chat turn.
    if whole or (free and free * 2 >= pages):
        try:
            connection.execute("VACUUM")
        except Exception as error:
            if whole or not isinstance(name_error(path, error), StoreFull):
                raise
            return f"{free:,} of {pages:,} pages are free and will be used again; the disk has no room for a VACUUM"
        return "the file was rewritten (VACUUM)"
    if _ask(connection, "auto_vacuum") == 2:  # incremental
        # `execute` would run only one step, which returns one page.
        connection.executescript("PRAGMA incremental_vacuum")
        return f"{free:,} free pages were returned (incremental_vacuum)"
    return f"{free:,} of {pages:,} pages are free and will be used again; full=True (--full) returns them (VACUUM)"


def _ask(connection: Any, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _size(path: str) -> int:
    return sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))


def check(driver: SqliteDriver) -> Iterator[Finding]:
    """Check SQLite's pages and indexes, and the thread of each checkpoint."""
    from langgraph_keel.retention.check import Finding

    advice = "restore a backup, or copy all readable threads to another store"
    try:
        rows = driver.send(Work(lambda execute: execute("PRAGMA integrity_check").fetchall()))
        ((unnamed,),) = driver.send(Work(lambda execute: execute(_UNNAMED).fetchall()))
        ((mislisted,),) = driver.send(
            Work(lambda execute: execute(_MISLISTED).fetchall() if has_index(execute) else [(0,)])
        )
    except CorruptStore as error:
        rows, unnamed, mislisted = [(str(error),)], 0, 0
    yield from (Finding("lost", None, driver.path, str(problem), advice) for (problem,) in rows if problem != "ok")
    if unnamed:
        yield Finding("lost", None, driver.path, f"{count_of(unnamed, 'checkpoint')} without a thread", advice)
    if mislisted:
        again = "DROP TABLE thread_index (with sqlite3): it is rebuilt when the store is opened"
        yield Finding(
            "decide", None, driver.path, f"wrong entries in the list of threads: {count_of(mislisted, 'thread')}", again
        )


@publish
class SqliteSaver(KeelSaver):
    """A checkpointer on a SQLite file, for any number of local processes and threads.

    Opens the file and creates the tables on first use. An acknowledged write is on disk (WAL, `synchronous=FULL`) and
    survives power loss. Next to the file are `-wal` and `-shm` while it is open, and a permanent `.lock`.

    Args:
        path: The file, or `":memory:"` for a database that exists as long as the saver.
        **options: `SqliteOptions` lists and documents them, with those of every saver.

    Raises:
        InvalidInput: If `path` is a URL or a connection.
    """

    _registry = MIGRATIONS

    @takes(SqliteOptions)
    def __init__(self, path: str | os.PathLike[str], **options: Unpack[SqliteOptions]) -> None:
        own, shared = split_options(type(self), SqliteOptions, options)
        self._sqlite = SqliteDriver(checked_path(path, "sqlite"), **own, migrations=self._registry)
        super().__init__(SqliteStore(), self._sqlite, AsyncSqliteDriver(self._sqlite), own["read_only"], **shared)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Unpack[SqliteOptions]) -> Self:
        """Return a saver for use in `with` or `async with`, as LangGraph's savers do."""
        return cls(conn_string, **options)

    @property
    def ddl(self) -> str:
        """The SQL that creates a store in an empty database."""
        return schema(self._registry)

    def _setup(self) -> None:
        self._sqlite.setup()

    def _migrations(self) -> list[str]:
        if self._sqlite.private:
            return []
        with named_errors(self._sqlite.path):
            return [script_of(*each) for each in list_due(self._sqlite.path, self._registry)]

    def _place(self) -> str:
        return str(self._sqlite.path)

    def _beside(self) -> Path | None:
        return None if self._sqlite.private else Path(self._sqlite.path)

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        version = self._sqlite.send(Work(read_format))
        if self._sqlite.private:
            return StoreFacts("sqlite", "this process", version, "lost when the saver is closed")
        path = os.path.abspath(self._sqlite.path)
        return StoreFacts("sqlite", path, version, "on disk (WAL, synchronous=FULL)", _size(path))

    def _check(self) -> Iterator[Finding]:
        return check(self._sqlite) if self.tenant is None else iter(())

    def _index_advice(self, thread_id: str) -> str:
        quoted = thread_id.replace("'", "''")
        return f"UPDATE thread_index SET marks = NULL, late = NULL, late_of = NULL WHERE name = '{quoted}'"

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return reclaim(self._sqlite, full=full, scrub=scrub)

    def _elsewhere(self) -> Sequence[str]:
        return [] if self._sqlite.private else ["Backups and copies of the database file."]

    def _close(self) -> None:
        self._sqlite.close()


def open_url(url: str, *, read_only: bool = False, **options: Any) -> SqliteSaver:
    """Open the database of a URL: `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    path = path_in(url, "sqlite:///")
    if not path:
        raise refuse_url(url)
    return SqliteSaver(path, read_only=read_only, **options)
