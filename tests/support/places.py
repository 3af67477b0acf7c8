"""A store of a test's own that any process can open: where it is, on every backend that processes can share."""

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
# For the fixture `place`: only the stores that are reached over a network.
ON_SERVERS = pytest.mark.parametrize("place", ["postgres", "redis"], indirect=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is; it travels to child processes.

    Attributes:
        kind: One of `KINDS`.
        url: As `open_saver` takes it.
        options: What keeps it apart from other stores behind the same URL, as `open_saver` takes them.
    """

    kind: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> KeelSaver:
        """Open it once more."""
        return open_saver(self.url, **self.options, **options)

    def through(self, proxy: Proxy) -> Place:
        """The same store behind a proxy of its server."""
        return replace(self, url=proxy.url_for(self.url))

    def proxy(self) -> AbstractContextManager[Proxy]:
        """Run a proxy of its server."""
        parts = urlsplit(self.url)
        assert parts.hostname
        assert parts.port
        return servers.proxy(parts.hostname, parts.port)

    def check(self) -> None:
        """Ask the store itself whether it is sound, where it can tell."""
        if self.kind == "sqlite":
            assert integrity(Path(self.url.removeprefix("sqlite:///"))) == "ok"
        if self.kind == "files":
            with FileSaver(self.url.removeprefix("files:")) as saver:
                assert [finding for finding in file_findings(saver) if finding.kind != "harmless"] == []


def file_findings(saver: FileSaver) -> list[Finding]:
    """What is found wrong with a store of files; the cells that tests write by themselves hold no records of tools."""
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
