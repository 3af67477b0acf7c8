"""Threads of LangGraph's own savers continue in Keel as they would have there."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.postgres.shallow import ShallowPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from support.moving import old_graphs
from support.moving.old_graphs import SCENES, config_of
from support.moving.old_stores import OldStore, old_store
from support.savers import needing
from support.tiers import sized

from langgraph_keel import (
    AccessDenied,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    PostgresSaver,
    SqliteSaver,
    StoreUnavailable,
)
from langgraph_keel.engine.leases import this_holder
from langgraph_keel.moving import langgraph as moving


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldStore]:
    needing(request.param, request)
    with old_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def old_file(tmp_path: Path) -> Iterator[OldStore]:
    with old_store("sqlite", tmp_path) as store:
        yield store


def write_scenes(old: OldStore, *names: str) -> None:
    with old.open() as saver:
        for name in names or SCENES:
            SCENES[name][0](saver, name)


def as_plain(found: CheckpointTuple) -> Any:
    """Return the parts of a moment that must be equal in both savers."""
    parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None
    writes = [tuple(write) for write in found.pending_writes or ()]
    return found.config["configurable"]["checkpoint_id"], found.checkpoint, found.metadata, parent, writes


def moments_of(saver: BaseCheckpointSaver[Any], thread_id: str) -> dict[Any, Any]:
    listed = list(saver.list(config_of(thread_id)))
    return {(each.config["configurable"]["checkpoint_ns"], each.checkpoint["id"]): as_plain(each) for each in listed}


@pytest.mark.slow
def test_imported_threads_have_equal_moments_and_continue(old: OldStore, saver: KeelSaver) -> None:
    write_scenes(old)
    before = old.dump()
    report = saver.moving.import_from(old.url)
    assert (report.threads, report.failed) == ({"imported": len(SCENES)}, {})
    assert old.dump() == before
    assert {info.thread_id for info in saver.threads()} == {*SCENES}
    assert saver.moving.import_from(old.url).threads == {"present": len(SCENES)}
    with old.open() as other:
        for name, (_, go_on) in SCENES.items():
            moments = moments_of(other, name)
            assert moments_of(saver, name) == moments, name
            for ns in {ns for ns, _ in moments}:
                config = config_of(name, checkpoint_ns=ns)
                there, here = other.get_tuple(config), saver.get_tuple(config)
                assert there
                assert here
                assert as_plain(here) == as_plain(there)
            assert go_on(saver, name) == go_on(other, name), name


@pytest.mark.slow
def test_import_of_many_threads(old: OldStore, tmp_path: Path) -> None:
    """Every moment is the same, and every graph continues."""
    kinds = [*SCENES]
    threads = {f"{kinds[number % len(kinds)]} {number}": number % len(kinds) for number in range(sized(7, 28, 2_000))}
    with old.open() as other:
        for name, kind in threads.items():
            SCENES[kinds[kind]][0](other, name)
    with SqliteSaver(tmp_path / "new.db") as saver:
        assert saver.moving.import_from(old.url).threads == {"imported": len(threads)}
        with old.open() as other:
            for name, kind in threads.items():
                assert moments_of(saver, name) == moments_of(other, name)
                assert SCENES[kinds[kind]][1](saver, name) == SCENES[kinds[kind]][1](other, name)
        assert [finding for finding in saver.check() if finding.kind != "harmless"] == []


def test_imported_questions_are_answered_through_the_inbox(old_file: OldStore) -> None:
    write_scenes(old_file, "asks")
    with MemorySaver() as saver:
        saver.moving.import_from(old_file.url)
        requests = saver.approvals.pending()
        assert sorted(each.value["question"] for each in requests) == ["first", "second"]
        for each in requests:
            saver.approvals.answer(each.id, value="by hand", by="ada")
        resumed = old_graphs.asking(saver).invoke(saver.approvals.resume("asks"), config_of("asks"))
        assert resumed["log"] == ["begin", "first: by hand", "quick", "second: by hand", "end"]
        assert saver.approvals.pending() == []


def test_owners_of_threads_are_imported(old_file: OldStore) -> None:
    write_scenes(old_file, "chat", "asks")
    with MemorySaver() as saver:
        saver.moving.import_from(old_file.url)
        assert [info.thread_id for info in saver.threads(owner="ada")] == ["chat"]
        assert [info.thread_id for info in saver.threads(waiting=True)] == ["asks"]
        assert [info.status for info in saver.threads(status="waiting")] == ["waiting"]
        assert saver.retention.erase("ada").threads == ("chat",)
        assert saver.moving.import_from(old_file.url).threads == {"present": 1, "deleted": 1}
        assert [info.thread_id for info in saver.threads()] == ["asks"]
        assert saver.moving.import_from(old_file.url, ["chat"]).threads == {"imported": 1}  # the operator wants it back
        assert saver.moving.import_from(old_file.url).threads == {"present": 2}


def test_import_into_a_tenant_of_an_encrypted_store(old_file: OldStore, tmp_path: Path) -> None:
    write_scenes(old_file)
    keyring = Keyring(LocalKey("one", bytes(range(32))))
    with SqliteSaver(tmp_path / "new.db", encryption=keyring) as saver:
        tenant = saver.for_tenant("acme")
        assert tenant.moving.import_from(old_file.url).threads == {"imported": len(SCENES)}
        assert list(saver.threads()) == []
        with old_file.open() as other:
            for name, (_, go_on) in SCENES.items():
                assert go_on(tenant, name) == go_on(other, name)
        assert [finding for finding in saver.check() if finding.kind != "harmless"] == []
    assert b"question 0" not in (tmp_path / "new.db").read_bytes()


# -- what was done is not done again, and what goes on is seen ---------------------------------------------------------


def test_a_thread_continued_in_the_source_is_updated(old: OldStore, saver: KeelSaver) -> None:
    write_scenes(old, "chat", "asks", "failed")
    saver.moving.import_from(old.url)
    with old.open() as other:
        for name in ("chat", "asks", "failed"):
            SCENES[name][1](other, name)
        assert saver.moving.import_from(old.url).threads == {"updated": 3}
        assert saver.approvals.pending() == []
        for name in ("chat", "asks", "failed"):
            assert moments_of(saver, name) == moments_of(other, name)
    assert saver.moving.import_from(old.url).threads == {"present": 3}


def test_a_thread_continued_in_both_stores_stays_unchanged(old_file: OldStore, saver: KeelSaver) -> None:
    write_scenes(old_file, "chat", "forks")
    saver.moving.import_from(old_file.url)
    old_graphs.go_on_talking(saver, "chat")
    old_graphs.go_on_talking(saver, "forks")
    before = moments_of(saver, "chat")
    assert saver.moving.import_from(old_file.url).threads == {"present": 2}
    with old_file.open() as other:
        old_graphs.go_on_talking(other, "chat")
    report = saver.moving.import_from(old_file.url)
    assert report.threads == {"present": 1, "failed": 1}
    assert "and both stay unchanged" in report.failed["chat"]
    assert moments_of(saver, "chat") == before


def test_an_existing_thread_with_the_same_id_is_left_alone(old_file: OldStore, saver: KeelSaver) -> None:
    write_scenes(old_file, "chat")
    old_graphs.talk(saver, "chat", 1)
    before = moments_of(saver, "chat")
    assert saver.moving.import_from(old_file.url).threads == {"failed": 1}
    assert moments_of(saver, "chat") == before


def test_an_import_interrupted_before_its_last_step_is_completed(
    old_file: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scenes(old_file, "asks")
    with MemorySaver() as saver:
        with monkeypatch.context() as patch:
            patch.setattr(moving, "finish", _die)
            with pytest.raises(KeyboardInterrupt):
                saver.moving.import_from(old_file.url)
        assert saver.approvals.pending() == []
        assert saver.moving.import_from(old_file.url).threads == {"present": 1}
        assert len(saver.approvals.pending()) == 2


def test_an_import_interrupted_while_storing_leaves_no_thread(
    old_file: OldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scenes(old_file, "chat")
    with MemorySaver() as saver:
        with monkeypatch.context() as patch:
            patch.setattr(moving, "read_at", _die)
            with pytest.raises(KeyboardInterrupt):
                saver.moving.import_from(old_file.url)
        assert list(saver.threads()) == []
        assert saver.moving.import_from(old_file.url).threads == {"imported": 1}


def _die(*_: object) -> None:
    raise KeyboardInterrupt


def test_staged_threads_of_dead_processes_are_removed(old_file: OldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scenes(old_file, "chat")
    with MemorySaver() as saver:
        name = f"{moving.STAGED}{this_holder()}-123"
        old_graphs.talk(saver, name, 1)
        saver.moving.import_from(old_file.url)
        assert name in {info.thread_id for info in saver.threads()}
        monkeypatch.setattr(moving, "is_dead", lambda holder: True)
        saver.moving.import_from(old_file.url)
        assert {info.thread_id for info in saver.threads()} == {"chat"}


def test_a_dry_run_reads_everything_and_writes_nothing(old_file: OldStore) -> None:
    write_scenes(old_file)
    with MemorySaver() as saver:
        told: list[Any] = []
        report = saver.moving.import_from(old_file.url, dry_run=True, on_progress=lambda *each: told.append(each))
        assert (report.threads, report.is_dry) == ({"imported": len(SCENES)}, True)
        assert told[-1] == (len(SCENES), len(SCENES))
        assert list(saver.threads()) == []


def test_import_of_threads_by_id(old: OldStore) -> None:
    write_scenes(old, "chat", "asks")
    with MemorySaver() as saver:
        report = saver.moving.import_from(old.url, ["chat", "chat", "nobody"])
        assert report.threads == {"imported": 1, "failed": 1}
        assert report.failed == {"nobody": "the source has no thread 'nobody'"}
        with pytest.raises(InvalidInput, match="not one string"):
            saver.moving.import_from(old.url, "chat")


# -- saver objects -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_import_from_a_saver_object(old: OldStore, saver: KeelSaver) -> None:
    write_scenes(old)
    with old.open() as other:
        assert saver.moving.import_from(other).threads == {"imported": len(SCENES)}
        for name, (_, go_on) in SCENES.items():
            assert moments_of(saver, name) == moments_of(other, name), name
            assert go_on(saver, name) == go_on(other, name), name


def test_import_from_the_in_memory_saver(saver: KeelSaver) -> None:
    other = InMemorySaver()
    for name, (begin, _) in SCENES.items():
        begin(other, name)
    assert saver.moving.import_from(other).threads == {"imported": len(SCENES)}
    for name, (_, go_on) in SCENES.items():
        assert go_on(saver, name) == go_on(other, name), name


async def test_import_from_an_asynchronous_saver_object(old: OldStore) -> None:
    await asyncio.to_thread(write_scenes, old)
    kind: Any = AsyncSqliteSaver if old.kind == "sqlite" else AsyncPostgresSaver
    async with kind.from_conn_string(old.path) as other, MemorySaver() as saver:
        assert (await saver.moving.aimport_from(other)).threads == {"imported": len(SCENES)}
        assert (await saver.moving.aimport_from(old.url)).threads == {"present": len(SCENES)}


# -- old layouts -------------------------------------------------------------------------------------------------------


def test_writes_without_a_task_path_are_imported(old: OldStore, saver: KeelSaver) -> None:
    write_scenes(old, "asks", "sent")
    table = "writes" if old.kind == "sqlite" else "checkpoint_writes"
    run_sql(old, f"ALTER TABLE {table} DROP COLUMN task_path")
    assert saver.moving.import_from(old.url).threads == {"imported": 2}
    with old.open() as other:  # adds the column again
        for name in ("asks", "sent"):
            assert moments_of(saver, name) == moments_of(other, name)
            assert SCENES[name][1](saver, name) == SCENES[name][1](other, name)


def run_sql(old: OldStore, statement: str) -> None:
    if old.kind == "sqlite":
        with sqlite3.connect(old.path) as connection:
            connection.execute(statement)
        connection.close()
        return
    with psycopg.connect(old.url) as server:
        server.execute(statement.encode())
        if "task_path" in statement:
            server.execute("DELETE FROM checkpoint_migrations WHERE v = 9")


def test_sends_of_checkpoints_before_format_4_are_imported(old: OldStore, saver: KeelSaver) -> None:
    """LangGraph before 0.5 stores `Send` tasks among the writes of the parent."""
    from langgraph.types import Send

    with old.open() as other:
        sends = [Send("work", {"number": number}) for number in range(3)]
        first: Any = {"v": 3, "id": "1ef4f797-8335-6428-8001-000000000001", "ts": "2024-05-04T06:32:42+00:00"}
        empty: Any = {
            "channel_values": {},
            "channel_versions": {"log": "1.1"},
            "versions_seen": {},
            "pending_sends": [],
        }
        meta: Any = {"source": "loop", "step": 0, "parents": {}}
        begun: Any = {**first, **empty}
        config = other.put(config_of("old", checkpoint_ns=""), begun, meta, {})
        other.put_writes(config, [("__pregel_tasks", send) for send in sends], "task-b", "path-1")
        second: Any = {**first, **empty, "id": "1ef4f797-8335-6428-8001-000000000002"}
        meta["step"] = 1
        other.put(config, second, meta, {})
    assert saver.moving.import_from(old.url).threads == {"imported": 1}
    found = saver.get_tuple(config_of("old"))
    assert found is not None
    assert found.checkpoint["channel_values"]["__pregel_tasks"] == sends
    assert found.checkpoint["channel_versions"]["__pregel_tasks"] == "1.1"


@pytest.mark.filterwarnings("ignore:.*ShallowPostgresSaver.*:DeprecationWarning")
def test_import_from_the_shallow_postgres_saver(
    request: pytest.FixtureRequest, tmp_path: Path, saver: KeelSaver
) -> None:
    needing("postgres", request)
    with old_store("postgres", tmp_path) as old:
        with ShallowPostgresSaver.from_conn_string(old.url) as other:
            other.setup()
            for name in ("chat", "asks"):
                SCENES[name][0](other, name)
        assert saver.moving.import_from(old.url).threads == {"imported": 2}
        with ShallowPostgresSaver.from_conn_string(old.url) as other:
            for name in ("chat", "asks"):
                assert SCENES[name][1](saver, name) == SCENES[name][1](other, name)


def test_the_greatest_id_is_the_latest_even_if_it_has_children(old: OldStore, saver: KeelSaver) -> None:
    """The parent was stored by a host whose clock was an hour ahead."""
    ids = ["1ef4f797-0000-6000-8000-000000000001", "1ef4f797-9999-6000-8000-000000000002"]
    ids += ["1ef4f797-1111-6000-8000-000000000003"]
    with old.open() as other:
        config = config_of("clock", checkpoint_ns="")
        for step, each in enumerate(ids):
            begun: Any = {
                "v": 4,
                "id": each,
                "ts": "",
                "channel_values": {"n": step},
                "channel_versions": {"n": step + 1},
            }
            meta: Any = {"source": "loop", "step": step, "parents": {}}
            begun["versions_seen"] = {}
            config = other.put(config, begun, meta, {"n": step + 1})
            other.put_writes(config, [("n", step)], f"task-{step}", "")
        assert saver.moving.import_from(old.url).failed == {}
        assert moments_of(saver, "clock") == moments_of(other, "clock")
        there, here = other.get_tuple(config_of("clock")), saver.get_tuple(config_of("clock"))
        assert there
        assert here
        assert as_plain(here) == as_plain(there)
        assert here.checkpoint["id"] == ids[1]


# -- what is refused, by name ------------------------------------------------------------------------------------------


@dataclass
class Order:
    """A class that LangGraph revives by its name."""

    number: int

    pass


def store_value(old: OldStore, thread_id: str, value: Any, serde: Any = None) -> None:
    with old.open() as saver:
        saver.serde = serde or saver.serde
        at: Any = {"v": 4, "id": f"1ef4f797-0000-6000-8000-{len(thread_id):012}", "ts": "", "versions_seen": {}}
        at |= {"channel_values": {"kept": [value]}, "channel_versions": {"kept": 1}}
        meta: Any = {"source": "loop", "step": 0, "parents": {}}
        saver.put(config_of(thread_id, checkpoint_ns=""), at, meta, {"kept": 1})


def test_a_thread_with_an_unlisted_class_is_refused(old: OldStore) -> None:
    store_value(old, "order", Order(3))
    write_scenes(old, "chat")
    with MemorySaver(types=[]) as saver:
        report = saver.moving.import_from(old.url)
        assert report.threads == {"imported": 1, "failed": 1}
        assert "thread 'order'" in report.failed["order"]
        assert f"{Order.__module__}.Order: not allowed here" in report.failed["order"]
        assert {info.thread_id for info in saver.threads()} == {"chat"}
    with MemorySaver(types=[Order]) as saver:
        assert saver.moving.import_from(old.url).threads == {"imported": 2}
        found = saver.get_tuple(config_of("order"))
        assert found
        assert found.checkpoint["channel_values"]["kept"] == [Order(3)]


def test_import_calls_no_function_named_in_the_data(old: OldStore, tmp_path: Path) -> None:
    import ormsgpack

    packed = ormsgpack.packb(("builtins", "open", str(tmp_path / "made")))

    class Evil(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "msgpack", ormsgpack.packb({"channel_values": ormsgpack.Ext(0, packed)})

    store_value(old, "evil", 1, Evil())
    with MemorySaver() as saver:
        assert "builtins.open: not allowed here" in saver.moving.import_from(old.url).failed["evil"]
    assert not (tmp_path / "made").exists()


def test_pickled_values_are_refused_by_place(old: OldStore) -> None:
    class Pickles(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            import pickle

            return "pickle", pickle.dumps(obj)

    store_value(old, "pickled", 1, Pickles())
    with MemorySaver() as saver:
        failed = saver.moving.import_from(old.url).failed["pickled"]
        assert failed.startswith("thread 'pickled', checkpoint 1ef4f797-0000-6000-8000-000000000007")
        assert "pickle: a pickle, which can run any code" in failed


def test_pickled_metadata_is_refused_by_place(old_file: OldStore) -> None:
    import pickle

    write_scenes(old_file, "chat")
    with sqlite3.connect(old_file.path) as connection:
        connection.execute("UPDATE checkpoints SET metadata = ?", (pickle.dumps({"step": 1}),))
    connection.close()
    with MemorySaver() as saver:
        assert ", metadata: pickle: a pickle" in saver.moving.import_from(old_file.url).failed["chat"]


def test_a_damaged_thread_is_reported_and_others_are_imported(old_file: OldStore) -> None:
    write_scenes(old_file, "chat", "asks")
    with sqlite3.connect(old_file.path) as connection:
        connection.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'chat'")
    connection.close()
    with MemorySaver() as saver:
        report = saver.moving.import_from(old_file.url)
        assert report.threads == {"imported": 1, "failed": 1}
        assert "cannot be decoded" in report.failed["chat"]


def test_invalid_sources_are_refused(tmp_path: Path, old_file: OldStore) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        old_graphs.talk(saver, "t", 1)
        with pytest.raises(NotFound, match="there is no file"):
            saver.moving.import_from(tmp_path / "nowhere.db")
        (tmp_path / "text").write_text("no database at all, though it is long enough to be taken for one " * 20)
        with pytest.raises(InvalidInput, match="is not a valid SQLite database"):
            saver.moving.import_from(tmp_path / "text")
        with pytest.raises(InvalidInput, match=r"keel\.db is a store of Keel's.*`keel copy`"):
            saver.moving.import_from(tmp_path / "keel.db")
        sqlite3.connect(tmp_path / "none.db").execute("CREATE TABLE entries (id)").connection.close()
        with pytest.raises(InvalidInput, match="no table `checkpoints`"):
            saver.moving.import_from(tmp_path / "none.db")
        with pytest.raises(InvalidInput, match="saver of Keel's"):
            saver.moving.import_from(saver)
        for move in (saver.raw.moving.import_from, saver.raw.moving.export_to):
            with pytest.raises(InvalidInput, match="placeholders"):
                move(tmp_path / "old.db")
        with pytest.raises(InvalidInput, match=r"not mysql://"):
            saver.moving.import_from("mysql://user:secret@host/db")
        write_scenes(old_file, "chat")
        run_sql(old_file, "DROP TABLE writes")
        with pytest.raises(InvalidInput, match="it is only partly set up"):
            saver.moving.import_from(old_file.url)
        for columns in ("thread_id, thread_ts", "id, name"):
            other = tmp_path / f"{columns[:2]}.db"
            with sqlite3.connect(other) as connection:
                connection.execute(f"CREATE TABLE checkpoints ({columns})")
            connection.close()
            with pytest.raises(InvalidInput, match=r"thread_ts|another program"):
                saver.moving.import_from(other)


def test_unusable_postgres_sources_are_refused(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    needing("postgres", request)
    with old_store("postgres", tmp_path) as old, MemorySaver() as saver:
        with pytest.raises(InvalidInput, match="no table `checkpoints`"):
            saver.moving.import_from(old.url)
        with PostgresSaver(old.url) as keels:
            keels.setup()
        with pytest.raises(InvalidInput, match="is a store of Keel's"):
            saver.moving.import_from(old.url)
        with old.open():
            pass
        assert saver.moving.import_from(old.url).threads == {}
        run_sql(old, "DROP TABLE checkpoint_blobs")
        with pytest.raises(InvalidInput, match="no `checkpoint_blobs`"):
            saver.moving.import_from(old.url)
        for url, error in (
            ("postgresql://ada:s3cret@127.0.0.1:1/db", StoreUnavailable),
            ("postgresql://ada:s3cret@127.0.0.1:1/db?nonsense=1", InvalidInput),
        ):
            with pytest.raises(error) as raised:
                saver.moving.import_from(url)
            assert "s3cret" not in f"{raised.value}{raised.value.__cause__}"


def test_a_wrong_password_raises_access_denied(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    from langgraph_keel.moving.connection import postgres_errors

    with pytest.raises(AccessDenied) as raised, postgres_errors("postgresql://host/db"):
        raise psycopg.errors.InvalidPassword('password authentication failed for user "ada"')
    assert "refuses this user or password" in str(raised.value)


def test_import_keeps_values_and_their_types(old: OldStore) -> None:
    """Values that are equal only in LangGraph: numbers, keys that are not text, sets."""
    values: dict[str, Any] = {"n": 1, "f": 1.0, "keys": {1: "one", "2": "two"}, "set": {1, 2}, "none": None, "b": b"x"}

    whole: Any = dict
    builder = StateGraph(whole).add_node("put", lambda state: values)
    with old.open() as other, MemorySaver() as saver:
        builder.add_edge(START, "put").compile(checkpointer=other).invoke({}, config_of("typed"))
        assert saver.moving.import_from(old.url).failed == {}
        assert moments_of(saver, "typed") == moments_of(other, "typed")
        assert json.dumps(moments_of(saver, "typed"), default=repr, skipkeys=True) == json.dumps(
            moments_of(other, "typed"), default=repr, skipkeys=True
        )


READ = """
import os, sys
from langgraph_keel import StoreError
from langgraph_keel.moving.connection import open_sqlite
if not os.geteuid():
    os.seteuid(65534)  # root may write anywhere
try:
    with open_sqlite(sys.argv[1]) as connection:
        connection.columns("checkpoints")
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs modes of files")
def test_a_wal_database_in_a_read_only_directory_gets_a_hint() -> None:
    with TemporaryDirectory() as name:  # not below pytest's own directory, which only its user can read
        path, place = Path(name, "old.db"), Path(name)
        with closing(sqlite3.connect(path)) as behind:
            behind.execute("PRAGMA journal_mode = wal")
            behind.execute("CREATE TABLE checkpoints (thread_id)")
        place.chmod(0o555)
        told = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, timeout=120)
        assert told.stdout.startswith(f"{path}: "), told.stderr
        assert "The file may be in WAL mode in a read-only directory" in told.stdout
        assert [each.name for each in place.iterdir()] == ["old.db"]
        place.chmod(0o755)
