"""SQLite: one file in the directory."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from .backend import Backend, Pair, Saver, directory_bytes
from .targets import SQLITE


def _database(directory: Path) -> str:
    return str(directory / "checkpoints.db")


def url_of(directory: Path) -> str:
    return f"sqlite:///{_database(directory)}"


def _langgraph(directory: Path) -> AbstractContextManager[Saver]:
    return SqliteSaver.from_conn_string(_database(directory))


def _langgraph_async(directory: Path) -> AbstractAsyncContextManager[Saver]:
    return AsyncSqliteSaver.from_conn_string(_database(directory))


def _stored(directory: Path) -> int:
    """Return the bytes of all files but the lock file: a constant 5 MB for a full disk, once the WAL was long."""
    return directory_bytes(directory) - Path(f"{_database(directory)}.lock").stat().st_size


def _keel(directory: Path) -> Any:
    return import_module("langgraph_keel").SqliteSaver.from_conn_string(_database(directory))


THEIRS = Backend("langgraph-sqlite", _langgraph, _langgraph_async)
PAIR = Pair(
    ours=Backend("keel-sqlite", _keel, _keel, _stored),
    theirs=THEIRS,
    targets=SQLITE,
    measures=(
        "chat",
        "cells",
        "turns",
        "service",
        "processes",
        "growth",
        "bytes",
        "fork",
        "threads",
        "lists",
        "tenants",
        "memory",
        "ledger",
        "provenance",
        "marks",
        "diff",
        "travel",
        "start",
        "vectors",
        "items",
    ),
)
