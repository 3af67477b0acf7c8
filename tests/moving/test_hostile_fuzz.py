"""Stores of Keel's and of LangGraph's savers with random values changed: moved right, or refused by name.

`KEEL_FUZZ_SECONDS=3600 KEEL_FUZZ_SEED=7 pytest -n 0 tests/moving/test_hostile_fuzz.py` runs each for an hour.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import ormsgpack
import pytest
from hostile_stores import write_hostile
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from old_graphs import SCENES
from tiers import sized

from langgraph_keel import CorruptStore, FileSaver, InvalidInput, KeelError, MemorySaver, SqliteSaver, StoreError
from langgraph_keel.engine.encoding.bodies import frame, open_frame, raw_frame
from langgraph_keel.testing.rig import at

TRIALS = sized(15, 60, 2000)
SECONDS = 5
"""Processor time that a trial may take."""
MOST_MEMORY = 1 << 30
"""Bytes of address space beside those at the start of a trial."""
ODD: list[Any] = [
    *(None, -1, 0, 1.5, 2**63 - 1, "", "\x00", "../x", "\x1facme\x1fada", "x" * 3000, b"", b"\xff" * 9),
    *(
        b"\x80",
        b"\x90",
        b"[" * 5000,
        b"\x91" * 3000,
        b"\xdd\xff\xff\xff\xff",
        raw_frame(b"\xc1"),
        frame(bytes(1 << 20)),
    ),
]
TABLES = ["threads", "namespaces", "channels", "entries", "items", "batches", "shelves", "cells", "thread_index"]


class TooSlow(BaseException):
    """A trial has taken longer than it may."""


@contextmanager
def bounds() -> Any:
    def late(*_: Any) -> None:
        raise TooSlow

    resource = pytest.importorskip("resource")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    was = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_MEMORY, was[1]))
    handler = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, was)


def change_tree(random: Random, tree: Any) -> Any:
    """Return plain data with one part replaced."""
    if isinstance(tree, dict) and tree and random.random() < 0.8:
        key = random.choice([*tree])
        return {**tree, key: change_tree(random, tree[key])}
    if isinstance(tree, list) and tree and random.random() < 0.8:
        at_place = random.randrange(len(tree))
        return [*tree[:at_place], change_tree(random, tree[at_place]), *tree[at_place + 1 :]]
    return random.choice([*(each for each in ODD if not isinstance(each, bytes)), [], {}, [[]], {"a": {}}])


def change_value(random: Random, value: Any) -> Any:
    """Return what is to stand in the place of a value: its own content with one part changed, or something odd."""
    if isinstance(value, bytes) and value and random.random() < 0.7:
        try:
            is_framed = value[0] in (0, 1)
            content = open_frame(value) if is_framed else value
            tree = ormsgpack.unpackb(
                content, ext_hook=lambda code, data: [code, data], option=ormsgpack.OPT_NON_STR_KEYS
            )
            packed = ormsgpack.packb(change_tree(random, tree), option=ormsgpack.OPT_NON_STR_KEYS)
            return frame(packed) if is_framed else packed
        except (KeelError, ValueError, TypeError):
            place = random.randrange(len(value))
            return value[:place] + bytes([random.randrange(256)]) + value[place + 1 :]
    return random.choice(ODD)


def change_rows(random: Random, path: Path, tables: list[str]) -> None:
    """Change one to three cells of the tables of a database."""
    with closing(sqlite3.connect(path)) as database:
        database.text_factory = bytes
        for _ in range(random.choice([1, 1, 2, 3])):
            table = random.choice(tables)
            column = random.choice([name.decode() for _, name, *_ in database.execute(f"PRAGMA table_info({table})")])
            rows = database.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
            if rows:
                rowid, value = random.choice(rows)
                try:
                    new = change_value(random, value)
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, rowid))
                except sqlite3.IntegrityError:
                    pass  # no file has that
        database.commit()


def look_at(saver: Any) -> None:
    """Read what has come; what is damaged may be refused by name."""
    assert saver.tenants() == []
    for info in saver.threads():
        try:
            for found in saver.list(at(info.thread_id, None)):
                assert found.checkpoint["id"]
        except (StoreError, InvalidInput):
            pass


def copy(path: Path, directory: Path, random: Random) -> None:
    opened = MemorySaver() if random.random() < 0.7 else FileSaver(directory / "files")
    with SqliteSaver(path, read_only=True) as source, opened as target:
        report = source.copy_to(target)
        assert report.failed or report.changing or report.copied >= 1
        look_at(target)


def move_in(path: Path, directory: Path, random: Random) -> None:
    with MemorySaver() as target:
        report = target.import_from(path)
        assert sum(report.threads.values()) >= 1
        look_at(target)


def write_keel(path: Path) -> None:
    write_hostile(path)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")


def write_langgraph(path: Path) -> None:
    with LangGraphSaver.from_conn_string(str(path)) as saver:
        for name in ("chat", "forks"):
            SCENES[name][0](saver, name)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path, Path, Random], None], list[str]]] = {
    "store": (write_keel, copy, TABLES),
    "import": (write_langgraph, move_in, ["checkpoints", "checkpoints", "writes"]),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_changed_is_moved_or_refused_by_name(tmp_path: Path, kind: str) -> None:
    write, act, tables = KINDS[kind]
    write(tmp_path / "right.db")
    seconds, since = float(os.environ.get("KEEL_FUZZ_SECONDS", "0")), monotonic()
    seed, number = os.environ.get("KEEL_FUZZ_SEED", "0"), 0
    while monotonic() - since < seconds if seconds else number < TRIALS:
        directory = tmp_path / str(number)
        directory.mkdir()
        random = Random(f"{kind} {seed} {number}")
        shutil.copy(tmp_path / "right.db", directory / "it.db")
        change_rows(random, directory / "it.db", tables)
        try:
            with bounds():
                act(directory / "it.db", directory, random)
        except (StoreError, InvalidInput, CorruptStore):
            pass
        except BaseException as error:
            raise AssertionError(f"trial {number} of seed {seed}: {type(error).__name__}: {error}") from error
        shutil.rmtree(directory)
        number += 1
