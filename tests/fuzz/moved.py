"""Fuzz copies and imports: change values of Keel's and LangGraph's stores by SQL."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from support.moving.hostile_stores import write_hostile
from support.moving.old_graphs import SCENES

from fuzz.stored import change_content, forge
from fuzz.trials import Trial, WrongValue
from langgraph_keel import FileSaver, KeelError, MemorySaver, SqliteSaver
from langgraph_keel.engine.encoding.bodies import frame, raw_frame
from langgraph_keel.testing.rig import at

ODD: list[Any] = [
    *(None, -1, 0, 1.5, 2**63 - 1, "", "\x00", "../x", "\x1facme\x1fada", "x" * 3000, b"", b"\xff" * 9, b"\x80"),
    *(b"\x90", b"[" * 5000, b"\x91" * 3000, b"\xdd\xff\xff\xff\xff", raw_frame(b"\xc1"), frame(bytes(1 << 20))),
]


def write_langgraph(path: Path) -> None:
    """Create a store of LangGraph's saver."""
    with LangGraphSaver.from_conn_string(str(path)) as saver:
        for name in ("chat", "forks"):
            SCENES[name][0](saver, name)


def copy(path: Path, target: Any) -> None:
    """Copy all threads of a store of Keel."""
    with SqliteSaver(path, read_only=True) as source:
        report = source.moving.copy_to(target)
    if not (report.failed or report.changing or report.copied):
        raise WrongValue(f"nothing was copied or refused: {report.to_dict()}")


def move_in(path: Path, target: Any) -> None:
    """Import all threads of a store of LangGraph."""
    report = target.moving.import_from(path)
    if not sum(report.threads.values()):
        raise WrongValue(f"nothing was moved in or refused: {report}")


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path, Any], None]]] = {
    "stores": (write_hostile, copy),
    "imports": (write_langgraph, move_in),
}


@contextmanager
def opened(kind: str) -> Iterator[Trial]:
    """Open the fuzzer of copies, or that of imports."""
    write, act = KINDS[kind]
    with TemporaryDirectory() as parent:
        right = Path(parent, "right.db")
        write(right)
        with closing(sqlite3.connect(right)) as database:
            database.execute("PRAGMA journal_mode = DELETE")

        def trial(random: Random) -> None:
            with TemporaryDirectory(dir=parent) as directory:
                path = Path(directory, "it.db")
                shutil.copy(right, path)
                change_rows(random, path)
                with MemorySaver() if random.random() < 0.7 else FileSaver(Path(directory, "files")) as target:
                    act(path, target)
                    look_at(target)

        yield trial


def change_rows(random: Random, path: Path) -> None:
    """Change one to three values of the tables of a database."""
    with closing(sqlite3.connect(path)) as database:
        database.text_factory = bytes
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        tables = [name.decode() for (name,) in found]
        for _ in range(random.choice((1, 1, 2, 3))):
            table = random.choice(tables)
            column = random.choice([row[1].decode() for row in database.execute(f"PRAGMA table_info({table})")])
            if rows := database.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
                rowid, value = random.choice(rows)
                with suppress(sqlite3.IntegrityError):  # no file violates a constraint
                    values = (change_value(random, value), rowid)
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", values)
        database.commit()


def change_value(random: Random, value: Any) -> Any:
    """Return a replacement for a value: its content with one change, or an odd value."""
    if isinstance(value, bytes) and value and random.random() < 0.7:
        return forge(value, random) or change_content(value, random)
    return random.choice(ODD)


def look_at(saver: Any) -> None:
    """Read the result; damaged parts may raise a named error."""
    if saver.tenants.list():
        raise WrongValue("a copy has brought a tenant")
    for info in saver.threads():
        with suppress(KeelError):
            for found in saver.list(at(info.thread_id, None)):
                if not found.checkpoint["id"]:
                    raise WrongValue(f"thread {info.thread_id!r} has a checkpoint without an id")
