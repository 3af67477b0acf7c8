"""A test's own store that any process can open, on every backend that allows that."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import servers
from servers import Proxy

from langgraph_keel import FileSaver, KeelSaver, open_saver
from langgraph_keel.retention.check import Finding

KINDS = ("sqlite", "files", "postgres", "redis")
# For the fixture `place`: only stores that are reached over a network.
ON_SERVERS = pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a store, which can be passed to child processes.

    Attributes:
        kind: One of `KINDS`.
        url: As `open_saver` accepts it.
        options: Options of `open_saver` that separate it from other stores behind the same URL.
    """

    kind: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> KeelSaver:
        """Open another saver on the store."""
        return open_saver(self.url, **self.options, **options)

    def through(self, proxy: Proxy) -> Place:
        """Return the same store behind a proxy of its server."""
        return replace(self, url=proxy.url_for(self.url))

    def proxy(self) -> AbstractContextManager[Proxy]:
        """Run a proxy of its server."""
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return servers.proxy(parts.hostname, parts.port)

    def check(self) -> None:
        """Run the database's own integrity check, if it has one."""
        if self.kind == "sqlite":
            assert integrity(Path(self.url.removeprefix("sqlite:///"))) == "ok"
        if self.kind == "files":
            with FileSaver(self.url.removeprefix("files:")) as saver:
                assert [finding for finding in file_findings(saver) if finding.kind != "harmless"] == []


def file_findings(saver: FileSaver) -> list[Finding]:
    """Return the findings of a file store.

    Those of tools are omitted: the cells that tests write contain no records of tools.
    """
    return [finding for finding in saver.check() if not finding.path.startswith("tool ")]


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def files_place(directory: Path) -> Place:
    return Place("files", f"files:{directory}/files")


def file_place(directory: Path) -> Place:
    return Place("sqlite", f"sqlite:///{directory}/keel.db")


def postgres_place(url: str) -> Place:
    return Place("postgres", url)


def redis_place(url: str, prefix: str) -> Place:
    return Place("redis", url, {"prefix": prefix})
