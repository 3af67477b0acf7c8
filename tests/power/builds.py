"""Builds of Keel for recorded runs: the sound one, and others that skip syncs."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from langgraph_keel.backends.sqlite import connection
from langgraph_keel.backends.sqlite import driver as sqlite_driver

WAL_BYTES = 40_000
"""Small enough that even a short run checkpoints its WAL, in bytes."""


def sound() -> None:
    pytest.MonkeyPatch().setattr(sqlite_driver, "WAL_BYTES", WAL_BYTES)


def synchronous(mode: str) -> None:
    """Use SQLite with a common, weaker setting."""
    sound()
    connect = connection.connect

    def connect_so(path: str, timeout: float) -> sqlite3.Connection:
        opened = connect(path, timeout)
        opened.execute(f"PRAGMA synchronous = {mode}")
        return opened

    pytest.MonkeyPatch().setattr(sqlite_driver, "connect", connect_so)


def without_fsync(is_left_out: Callable[[int], bool]) -> None:
    """Let `fsync` and `fdatasync` return immediately, for some files."""
    for name in ("fsync", "fdatasync"):
        pytest.MonkeyPatch().setattr(os, name, partial(_sync, getattr(os, name), is_left_out))


def _sync(real: Callable[[int], None], is_left_out: Callable[[int], bool], file: Any) -> None:
    number = file if isinstance(file, int) else file.fileno()
    if not is_left_out(number):
        real(number)


def _is_directory(number: int) -> bool:
    return stat.S_ISDIR(os.fstat(number).st_mode)


BUILDS: Mapping[str, Callable[[], None]] = {
    "sound": sound,
    "synchronous=OFF": partial(synchronous, "OFF"),
    "synchronous=NORMAL": partial(synchronous, "NORMAL"),
    "without fsync": partial(without_fsync, lambda number: True),
    "without fsync of directories": partial(without_fsync, _is_directory),
    "without fsync of files": partial(without_fsync, lambda number: not _is_directory(number)),
}
