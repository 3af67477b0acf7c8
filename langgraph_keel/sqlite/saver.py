"""SqliteSaver: one file, many processes, nothing acknowledged is lost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Self

from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.errors import InvalidInput
from langgraph_keel.saver import KeelSaver
from langgraph_keel.sqlite import reclaiming
from langgraph_keel.sqlite.connection import schema
from langgraph_keel.sqlite.driver import AsyncSqliteDriver, SqliteDriver
from langgraph_keel.sqlite.store import SqliteStore


class SqliteSaver(KeelSaver):
    """A checkpointer on a SQLite file, for one machine and any number of processes and threads.

    Opens itself on first use and creates the tables then. Acknowledged means on disk (WAL, `synchronous=FULL`), also
    through power loss. The file has two companions while it is open (`-wal`, `-shm`) and one for good (`.lock`).

    Args:
        path: The file, or `":memory:"` for a database that lives as long as the saver.
        timeout: Seconds a call may wait for other processes before it raises `StoreBusy`.
        read_only: Never write, and do not create what is missing.
        auto_setup: Create the tables on first use; otherwise `setup()` must have been called once.
        **options: As for `KeelSaver`: `serde`, `types`, `on_conflict`, `memo_entries`, `memo_bytes`; `keep_last`,
            `ttl`, `upkeep_every` (upkeep by itself), `archive_removed`, `owner`, and what else stands there.

    Raises:
        InvalidInput: `path` is a URL.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        timeout: float = 30.0,
        read_only: bool = False,
        auto_setup: bool = True,
        **options: Any,
    ) -> None:
        if os.fspath(path).startswith("sqlite:"):
            raise InvalidInput(f"{path!r} is a URL: use open_saver(url), or pass the path alone")
        self._sqlite = SqliteDriver(os.fspath(path), timeout=timeout, read_only=read_only, auto_setup=auto_setup)
        super().__init__(SqliteStore(), self._sqlite, AsyncSqliteDriver(self._sqlite), **options)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Self:
        """Return a saver for a path, to be used in `with` or `async with`; the name LangGraph's savers have for it."""
        return cls(conn_string, **options)

    @property
    def ddl(self) -> str:
        """The SQL that makes an empty database a store."""
        return schema()

    def setup(self) -> None:
        """Create the tables if they are not there. Safe to call again, and from many processes at once."""
        self._sqlite.setup()

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        return reclaiming.reclaim(self._sqlite, full=full, scrub=scrub)

    def _elsewhere(self) -> Sequence[str]:
        return [] if self._sqlite.private else ["Backups and copies of the database file."]

    def _close(self) -> None:
        """Close the file. Calls after this raise `StoreClosed`."""
        self._sqlite.close()
