"""Importing a hostile LangGraph database: a bad record costs only its own thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver as LangGraphSaver
from typer.testing import CliRunner

from langgraph_keel import InvalidInput, KeelError, MemorySaver, SqliteSaver
from langgraph_keel.cli import app
from langgraph_keel.testing.rig import at

GOOD = {"aaa", "zzz"}
ID = "1f000000-0000-6000-8000-000000000001"
Row = Callable[..., None]


def packed(**parts: Any) -> bytes:
    whole = {"v": 4, "id": ID, "ts": "2026", "channel_values": {"x": 1}, "channel_versions": {}, "versions_seen": {}}
    return ormsgpack.packb({name: part for name, part in {**whole, **parts}.items() if part is not ...})


def extension(code: int, *parts: Any) -> Any:
    return ormsgpack.Ext(code, ormsgpack.packb(list(parts)))


ENVELOPE = {"lc": 1, "type": "constructor", "id": ["langchain", "prompts", "prompt", "PromptTemplate"]}
CHECKPOINTS: Mapping[str, Mapping[str, Any]] = {
    "a list": {"body": ormsgpack.packb([])},
    "nothing": {"kind": "null", "body": b""},
    "bytes": {"kind": "bytes", "body": b"x"},
    "a version that is text": {"body": packed(v="4"), "parent": ID},
    "no values": {"body": packed(channel_values=...)},
    "values in a list": {"body": packed(channel_values=[1])},
    "versions in a text": {"body": packed(channel_versions="abc")},
    "versions of mixed kinds": {"body": packed(channel_versions={"x": 1, "y": "a"}, v=1), "parent": ID},
    "metadata 100,000 deep": {"meta": b"[" * 100_000},
    "an id that is bytes": {"id": b"abc"},
    "a thread that is bytes": {"thread": b"\xff\xfe"},
    "a class in an envelope of LangChain": {
        "kind": "json",
        "body": json.dumps({"channel_values": {"x": {**ENVELOPE, "kwargs": {"template": "{x}"}}}}).encode(),
    },
    "a regular expression of 3 MB": {
        "body": packed(channel_values={"x": extension(1, "re", "compile", ["(" * 90 + "a" * 3_000_000 + ")" * 90, 0])})
    },
}


def write_source(path: Path, **row: Any) -> None:
    """Make a database with two good threads, and a row of a third one."""
    with LangGraphSaver.from_conn_string(str(path)) as saver:
        for thread_id in sorted(GOOD):
            checkpoint: Any = ormsgpack.unpackb(packed(channel_versions={"x": "1"}))
            saver.put(at(thread_id), checkpoint, {"step": 0}, {"x": "1"})
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        if row:
            parts = {
                "thread": "mmm",
                "id": ID,
                "parent": None,
                "kind": "msgpack",
                "body": packed(),
                "meta": b"{}",
                **row,
            }
            database.execute("INSERT INTO checkpoints VALUES (:thread, '', :id, :parent, :kind, :body, :meta)", parts)
        database.commit()


def ids(saver: Any) -> set[str]:
    return {info.thread_id for info in saver.threads()}


@pytest.mark.parametrize("what", CHECKPOINTS)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_malformed_row_fails_only_its_thread(tmp_path: Path, what: str, face: str) -> None:
    path = tmp_path / "old.db"
    write_source(path, **CHECKPOINTS[what])
    with MemorySaver() as saver:
        report = saver.moving.import_from(path) if face == "sync" else await saver.moving.aimport_from(path)
        assert (report.threads["imported"], report.threads["failed"]) == (2, 1), report.to_dict()
        assert len(report.failed) == 1
        json.dumps(report.to_dict())
        assert ids(saver) == GOOD


def test_an_id_that_is_not_text_fails_only_its_thread(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    write_source(path)
    with closing(sqlite3.connect(path)) as database:
        values = f"SELECT CAST(x'6dff' AS TEXT), '', '{ID}', NULL, 'msgpack', x'80', x'7b7d'"
        database.execute(f"INSERT INTO checkpoints {values}")
        database.commit()
    found = CliRunner().invoke(app, ["import", str(path), "--url", f"sqlite:///{tmp_path / 'new.db'}", "--json"])
    assert found.exit_code == 1
    assert json.loads(found.stdout)["threads"]["imported"] == 2


@pytest.mark.parametrize("number", ["'one'", str(2**62), "x'ff'"])
def test_a_malformed_write_fails_only_its_thread(tmp_path: Path, number: str) -> None:
    path = tmp_path / "old.db"
    write_source(path, thread="mmm")
    with closing(sqlite3.connect(path)) as database:
        for index in ("0", number):
            columns = "thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value"
            values = f"'mmm', '', '{ID}', 'task', {index}, 'x', 'msgpack', x'01'"
            database.execute(f"INSERT INTO writes ({columns}) VALUES ({values})")
        database.commit()
    with MemorySaver() as saver:
        report = saver.moving.import_from(path)
        assert ids(saver) >= GOOD
        assert report.threads["failed"] == (number != str(2**62))


@pytest.mark.parametrize("what", ["a list", "no values", "metadata 100,000 deep"])
def test_a_malformed_thread_does_not_restart_empty(tmp_path: Path, what: str) -> None:
    write_source(tmp_path / "old.db", **CHECKPOINTS[what])
    with SqliteSaver(tmp_path / "new.db", moving_from=str(tmp_path / "old.db")) as saver:
        with pytest.raises(KeelError, match="mmm"):
            saver.get_tuple(at("mmm"))
        assert saver.get_tuple(at("aaa")) is not None


VIEW = "CREATE TABLE kept AS SELECT * FROM checkpoints; DROP TABLE checkpoints; CREATE VIEW checkpoints AS "
COLUMNS = "thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata"
COMPUTED = {
    "rows without end": f"{VIEW} WITH RECURSIVE x({COLUMNS}) AS (SELECT * FROM kept UNION ALL "
    "SELECT thread_id || 'a', '', '1', NULL, type, checkpoint, metadata FROM x) SELECT * FROM x",
    "rows of 900 MB": f"{VIEW} SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, "
    "zeroblob(900000000) AS checkpoint, metadata FROM kept",
    "a column of 900 MB": "DROP TABLE checkpoints; CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, "
    "parent_checkpoint_id, type, checkpoint AS (zeroblob(900000000)), metadata)",
}


@pytest.mark.parametrize("what", COMPUTED)
def test_a_source_with_computed_data_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "old.db"
    write_source(path)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(COMPUTED[what])
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="no table `checkpoints`"):
        saver.moving.import_from(path)


SECRET = "pw-SECRET-77"
PLACES = [
    f"host=127.0.0.1 port=1 password={SECRET}",
    f"postgresql:u:{SECRET}@127.0.0.1/db",
    f"sqlite:///x?password={SECRET}",
    f"sqlite://u:{SECRET}@h/x",
    f"postgresql://u:{SECRET}@[::1/db",
]


@pytest.mark.parametrize("place", PLACES)
def test_a_password_appears_in_no_message_and_no_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteSaver("keel.db") as saver:
        for act in (saver.moving.import_from, saver.moving.export_to):
            with pytest.raises(InvalidInput) as caught:
                act(place)
            assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        SqliteSaver("other.db", moving_from=place).get_tuple(at("t"))
    assert SECRET not in str(caught.value)
    for words in (["import", place, "--url", "sqlite:///keel.db"], ["copy", place, "sqlite:///keel.db"]):
        assert SECRET not in CliRunner().invoke(app, words).output
    found = CliRunner().invoke(app, ["export", "--to-langgraph", place, "--url", "sqlite:///keel.db"])
    assert found.exit_code != 0
    assert SECRET not in found.output
    assert not [each.name for each in tmp_path.iterdir() if SECRET in each.name]
