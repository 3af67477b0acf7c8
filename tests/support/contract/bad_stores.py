"""A closed SQLite store that tests damage, and locks on it."""

from __future__ import annotations

import fcntl
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_keel import (
    SqliteSaver,
)
from support.checkpoints import METADATA, checkpoint_of, config_for


def put(saver: Any, number: int, thread: str = "t") -> Any:
    values = {"v": number, "m": [HumanMessage(f"message {n} {n * 7919}" * 3, id=str(n)) for n in range(number)]}
    return saver.put(config_for(thread), checkpoint_of(f"{number:08}", values), METADATA, {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keel.db"


@pytest.fixture
def store(path: Path) -> Path:
    """Create and close a store with a thread of five checkpoints."""
    with SqliteSaver(path) as saver:
        for number in range(1, 6):
            put(saver, number)
    return path


class SqliteLock:
    """Another connection in the middle of a transaction."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)

    def __enter__(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *_: object) -> None:
        self.connection.execute("ROLLBACK")
        self.connection.close()


class FileLock:
    """Another process of Keel that holds the write lock for too long."""

    def __init__(self, path: Path) -> None:
        self.file = open(f"{path}.lock")  # noqa: SIM115

    def __enter__(self) -> None:
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)
        self.file.close()
