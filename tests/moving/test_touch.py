"""`moving_from=`: threads move in one by one, while users continue them."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from support.moving import old_graphs
from support.moving.old_graphs import SCENES, config_of
from support.moving.old_stores import OldStore, old_store
from support.places import Place, file_place, files_place, postgres_place, redis_place
from support.savers import BACKENDS, needing
from support.tiers import sized

from langgraph_keel import (
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    RefusedType,
    Retention,
    SqliteSaver,
    StoredState,
    StoreUnavailable,
    open_saver,
    upgrade,
)
from langgraph_keel.engine.verbs import VERBS
from langgraph_keel.moving.touch import Mover, MovingStore

Opener = Callable[..., KeelSaver]


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldStore]:
    needing(request.param, request)
    with old_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture
def old_file(tmp_path: Path) -> Iterator[OldStore]:
    with old_store("sqlite", tmp_path) as store:
        yield store


@pytest.fixture(params=BACKENDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Return a function that opens a saver on an empty store, with options."""
    if request.param == "memory":
        return MemorySaver
    if request.param == "sqlite":
        return file_place(tmp_path).open
    if request.param == "files":
        return files_place(tmp_path).open
    needing(request.param, request)
    if request.param == "postgres":
        return postgres_place(request.getfixturevalue("postgres_url")).open
    return redis_place(request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")).open


def write_scenes(old: OldStore, *names: str) -> None:
    with old.open() as saver:
        for name in names or SCENES:
            SCENES[name][0](saver, name)


@pytest.mark.slow
def test_each_thread_moves_in_at_its_first_use_and_continues(old: OldStore, opener: Opener) -> None:
    write_scenes(old)
    before = old.dump()
    with opener(moving_from=old.url) as saver:
        for done, (name, (_, go_on)) in enumerate(SCENES.items(), 1):
            found = go_on(saver, name)
            assert {info.thread_id for info in saver.threads()} == {*list(SCENES)[:done]}
            assert old.dump() == before
            with old.open() as other:
                assert go_on(other, name) == found
            before = old.dump()
        report = saver.moving.import_from(old.url)
        assert report.threads == {"failed": len(SCENES)}  # each was continued in both stores


async def test_threads_move_in_within_an_event_loop(old_file: OldStore, opener: Opener) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_scenes, old_file, "chat", "asks").result()
    async with opener(moving_from=old_file.url) as saver:
        graph = old_graphs.chat(saver)
        begin: Any = {"messages": [("user", "one more")]}
        found = await graph.ainvoke(begin, config_of("chat"))
        assert [each.content for each in found["messages"]][-2:] == ["one more", "answer 7"]
        assert [each.thread_id async for each in saver.athreads()] == ["chat"]
        assert len([each async for each in saver.alist(config_of("asks"))]) == 2
        assert len(await saver.approvals.apending()) == 2


TOUCHES: dict[str, Callable[[KeelSaver], object]] = {
    "list": lambda saver: list(saver.list(config_of("chat"))),
    "get_tuple": lambda saver: saver.get_tuple(config_of("chat")),
    "timeline": lambda saver: saver.timeline("chat"),
    "copy": lambda saver: saver.copy_thread("chat", "copied"),
    "fork": lambda saver: saver.timeline("chat")[2].fork("forked"),
    "history": lambda saver: list(old_graphs.chat(saver).get_state_history(config_of("chat"))),
    "status": lambda saver: saver.status("chat"),
    "update": lambda saver: old_graphs.chat(saver).update_state(config_of("chat"), {"messages": [("user", "by hand")]}),
    "prune": lambda saver: saver.prune(["chat"]),
}


@pytest.mark.parametrize("touch", TOUCHES)
def test_any_operation_moves_its_thread_in(old_file: OldStore, touch: str) -> None:
    write_scenes(old_file, "chat", "asks")
    with MemorySaver(moving_from=old_file.url) as saver:
        TOUCHES[touch](saver)
        found = saver.get_tuple(config_of("chat"))
        assert found is not None
        assert len(found.checkpoint["channel_values"]["messages"]) >= 6
        assert "asks" not in {info.thread_id for info in saver.threads()}


def test_a_put_without_a_read_continues_the_old_thread(old_file: OldStore, opener: Opener) -> None:
    write_scenes(old_file, "chat")
    with old_file.open() as other:
        found = other.get_tuple(config_of("chat"))
        assert found
    with opener(moving_from=old_file.url) as saver:
        new: Any = {**found.checkpoint, "id": "ffffffff-0000-6000-8000-000000000001"}
        saver.put(found.config, new, {"source": "loop", "step": 99, "parents": {}}, {})
        assert len(list(saver.list(config_of("chat")))) == 10
        latest = saver.get_tuple(config_of("chat"))
        assert latest
        assert latest.parent_config
        assert latest.parent_config["configurable"]["checkpoint_id"] == found.checkpoint["id"]


def test_new_threads_work_as_usual(old_file: OldStore, opener: Opener) -> None:
    write_scenes(old_file, "chat")
    with opener(moving_from=old_file.url) as saver:
        old_graphs.talk(saver, "new", 2)
        assert [info.thread_id for info in saver.threads()] == ["new"]
        assert old_graphs.go_on_talking(saver, "new")[-1] == ("ai", "answer 5")


def test_deleted_threads_do_not_move_in_again(old_file: OldStore, opener: Opener) -> None:
    write_scenes(old_file, "chat", "asks")
    with opener(moving_from=old_file.url) as saver:
        saver.get_tuple(config_of("chat"))
        saver.delete_thread("chat")
        saver.delete_thread("asks")  # before it was touched
        assert saver.get_tuple(config_of("chat")) is None
        assert saver.get_tuple(config_of("asks")) is None
        assert saver.moving.import_from(old_file.url).threads == {"deleted": 2}


@pytest.mark.parametrize("how", ["touch", "import"])
def test_a_thread_deleted_while_it_moves_in_stays_deleted(
    old_file: OldStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    url, name = f"sqlite:///{tmp_path}/keel.db", "chat"
    write_scenes(old_file, name)
    with open_saver(url, moving_from=old_file.url) as deleting, open_saver(url, moving_from=old_file.url) as saver:
        store: Any = saver.stack.mover and saver.stack.mover.session.store
        copy = type(store).copy_thread
        staged: list[Any] = []

        def copy_late(self: Any, *args: Any) -> Any:
            if self is store and not staged:
                staged.append(args)
                deleting.delete_thread(name)
            return copy(self, *args)

        monkeypatch.setattr(type(store), "copy_thread", copy_late)
        if how == "touch":
            assert saver.get_tuple(config_of(name)) is None
        else:
            assert saver.moving.import_from(old_file.url).threads["deleted"] == 1
        assert staged
    with open_saver(url, moving_from=old_file.url) as saver:
        assert saver.get_tuple(config_of(name)) is None
        assert saver.moving.import_from(old_file.url, [name]).threads["imported"] == 1  # a request by name does it


def test_an_erasure_reports_the_old_saver_as_exempt(old_file: OldStore) -> None:
    write_scenes(old_file, "chat")
    with MemorySaver(moving_from=old_file.url) as saver:
        receipt = saver.retention.erase("ada")  # none of her threads has moved in yet
        assert receipt.threads == ()
        assert [each for each in receipt.exempt if old_file.path in each]
        saver.get_tuple(config_of("chat"))
        receipt = saver.retention.erase("ada")
        assert receipt.threads == ("chat",)
        assert [each for each in receipt.exempt if old_file.path in each]
    with MemorySaver() as saver:
        assert not [each for each in saver.retention.erase("ada").exempt if "old saver" in each]


def test_deleted_threads_do_not_move_in_for_a_new_saver(old_file: OldStore, tmp_path: Path) -> None:
    write_scenes(old_file, "chat", "asks")
    with SqliteSaver(tmp_path / "new.db", moving_from=old_file.url) as saver:
        saver.get_tuple(config_of("chat"))
    with SqliteSaver(tmp_path / "new.db", moving_from=old_file.url) as saver:
        saver.delete_thread("chat")
    with SqliteSaver(tmp_path / "new.db", moving_from=old_file.url) as saver:
        assert saver.get_tuple(config_of("chat")) is None
        assert saver.get_tuple(config_of("asks")) is not None


def test_threads_move_into_an_encrypted_store(old_file: OldStore, tmp_path: Path) -> None:
    write_scenes(old_file)
    keyring = Keyring(LocalKey("one", bytes(range(32))))
    with SqliteSaver(tmp_path / "new.db", moving_from=old_file.url, encryption=keyring) as saver:
        with old_file.open() as other:
            for name, (_, go_on) in SCENES.items():
                assert go_on(saver, name) == go_on(other, name)
        assert saver.keys.list().is_current
        assert [finding for finding in saver.check() if finding.kind != "harmless"] == []
    assert b"question 0" not in (tmp_path / "new.db").read_bytes()


def test_threads_move_in_within_the_same_database(request: pytest.FixtureRequest, postgres_url: str) -> None:
    """The usual case: one database and one search path, with different tables."""
    old = OldStore("postgres", postgres_url)
    write_scenes(old)
    with open_saver(postgres_url, moving_from=postgres_url) as saver, old.open() as other:
        for name, (_, go_on) in SCENES.items():
            assert go_on(saver, name) == go_on(other, name)


def test_a_state_of_an_older_version_is_upgraded_as_it_moves_in(old_file: OldStore) -> None:
    @upgrade(1, 2)
    def rename(state: StoredState) -> None:
        state.rename("messages", "said")

    write_scenes(old_file, "chat")
    with MemorySaver(moving_from=old_file.url, upgrades=[rename]) as saver:
        found = saver.get_tuple(config_of("chat"))
        assert found
        assert len(found.checkpoint["channel_values"]["said"]) == 6


def test_a_moved_thread_is_not_expired_by_its_old_times(old_file: OldStore) -> None:
    """Otherwise a `ttl` would delete it immediately, by the times of its checkpoints."""
    write_scenes(old_file, "chat")
    with sqlite3.connect(old_file.path) as connection:
        for id, body in connection.execute("SELECT checkpoint_id, checkpoint FROM checkpoints").fetchall():
            old = body.replace(b"\xa2ts\xd9\x202026", b"\xa2ts\xd9\x202006")
            assert old != body
            connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE checkpoint_id = ?", (old, id))
    connection.close()
    with MemorySaver(moving_from=old_file.url) as saver:
        assert saver.get_tuple(config_of("chat"))
        saver.retention.set_policy(Retention(ttl=3600))
        saver.retention.sweep()
        assert saver.get_tuple(config_of("chat"))


def test_only_listed_verbs_do_not_move_threads_in() -> None:
    """Verbs that do not trigger a move find only threads that have moved in."""
    assert {name for name, verb in VERBS.items() if verb.thread is None} == {
        *("delete_all", "find_runs", "list_strays", "list_tenants"),
        *("read_stored", "read_threads", "read_values"),
    }


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_an_unreadable_source_fails_the_run(tmp_path: Path) -> None:
    """The run fails: it must not start a new conversation in place of the old one."""
    for url, error in (
        ("postgresql://ada:s3cret@127.0.0.1:1/db", StoreUnavailable),
        (f"sqlite:///{tmp_path}/nowhere.db", NotFound),
    ):
        with MemorySaver(moving_from=url) as saver:
            for _ in range(2):
                with pytest.raises(error) as raised:
                    old_graphs.talk(saver, "t", 1)
                assert "s3cret" not in str(raised.value)
            assert list(saver.threads()) == []


def test_the_error_names_an_unreadable_thread(old_file: OldStore) -> None:
    write_scenes(old_file, "chat")

    with sqlite3.connect(old_file.path) as connection:
        connection.execute("UPDATE checkpoints SET type = 'pickle'")
    connection.close()
    with MemorySaver(moving_from=old_file.url) as saver:
        with pytest.raises(RefusedType, match="thread 'chat'"):
            old_graphs.go_on_talking(saver, "chat")
        assert list(saver.threads()) == []


def test_incompatible_options_are_refused(old_file: OldStore, tmp_path: Path) -> None:
    write_scenes(old_file, "chat")
    with pytest.raises(InvalidInput, match="import_from"):
        MemorySaver(moving_from=old_file.url, tenants="required")
    old_graphs.talk(SqliteSaver(tmp_path / "new.db"), "t", 1)
    with pytest.raises(InvalidInput, match="a writable saver"):
        open_saver(f"sqlite:///{tmp_path}/new.db", read_only=True, moving_from=old_file.url)
    for wrong in ("redis://host", 3, MemorySaver()):
        with pytest.raises(InvalidInput):
            MemorySaver(moving_from=wrong)  # type: ignore[arg-type]
    with MemorySaver(moving_from=old_file.url) as saver:
        assert saver.for_tenant("acme").get_tuple(config_of("chat")) is None
        assert saver.for_tenant("acme").moving.import_from(old_file.url).threads == {"imported": 1}
        assert list(saver.threads()) == []


def test_the_source_is_not_read_without_need(old_file: OldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scenes(old_file, "chat")
    with MemorySaver() as saver:
        assert not isinstance(saver.engine.session.store, MovingStore)
    with MemorySaver(moving_from=old_file.url) as saver:
        saver.get_tuple(config_of("chat"))
        monkeypatch.setattr(Mover, "move", None)  # once a thread has moved in, the source is not read
        old_graphs.go_on_talking(saver, "chat")


# -- many at once ------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from support.moving import old_graphs
from langgraph_keel import open_saver
url, old, options, *names = eval(sys.argv[1])
with open_saver(url, moving_from=old, **options) as saver:
    print("ready", flush=True)
    sys.stdin.readline()
    for name in names:
        found = saver.get_tuple(old_graphs.config_of(name))
        messages, moments = found.checkpoint["channel_values"]["messages"], saver.list(old_graphs.config_of(name))
        print(name, len(messages), len(list(moments)))
"""


@pytest.mark.slow
def test_concurrent_processes_move_each_thread_once(old_file: OldStore, place: Place) -> None:
    names = [f"talk {number}" for number in range(4)]
    with old_file.open() as other:
        for name in names:
            old_graphs.talk(other, name, 2)
    with place.open():
        pass
    given = repr((place.url, old_file.url, dict(place.options), *names))
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        told, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        assert told.splitlines() == [f"{name} 4 6" for name in names]
    with place.open() as saver:
        assert {info.thread_id for info in saver.threads()} == {*names}
        assert saver.moving.import_from(old_file.url).threads == {"present": len(names)}
    place.check()


KILLED = """
import os, signal, sys
from langgraph_keel import open_saver
from langgraph_keel.moving import langgraph as moving
url, old, options, after = eval(sys.argv[1])
read_at, calls = moving.read_at, []
def die(*given):
    calls.append(given)
    if len(calls) > after:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_at(*given)
moving.read_at = die
with open_saver(url, **options) as saver:
    saver.moving.import_from(old)
"""


@pytest.mark.slow
def test_a_killed_import_completes_when_repeated(old_file: OldStore, place: Place) -> None:
    write_scenes(old_file)
    codes = []
    for after in sized((20,), (20,), (3, 10, 20, 30, 45, 60)):
        given = repr((place.url, old_file.url, dict(place.options), after))
        codes.append(subprocess.run([sys.executable, "-c", KILLED, given], check=False).returncode)
    assert {*codes[:2]} == {-signal.SIGKILL}
    assert {*codes} <= {-signal.SIGKILL, 0}  # 0 if less than that was left
    with place.open() as saver:
        report = saver.moving.import_from(old_file.url)
        assert report.failed == {}
        assert report.threads.total() == len(SCENES)
        assert {info.thread_id for info in saver.threads()} == {*SCENES}  # also those left by killed processes
        with old_file.open() as other:
            for name, (_, go_on) in SCENES.items():
                assert go_on(saver, name) == go_on(other, name)
    place.check()


@pytest.mark.slow
def test_clients_continue_during_the_import_of_the_rest(old: OldStore, opener: Opener) -> None:
    """Every turn succeeds, and none is lost."""
    clients, turns, idle = sized(4, 4, 20), 3, sized(6, 10, 200)
    with old.open() as other:
        for number in range(clients):
            old_graphs.talk(other, f"client {number}", 1)
        for number in range(idle):
            old_graphs.talk(other, f"idle {number}", 1)
    with opener(moving_from=old.url) as saver:
        graph, begin = old_graphs.chat(saver), threading.Barrier(clients + 1)

        def talk(number: int) -> list[Any]:
            begin.wait()
            for turn in range(turns):
                said: Any = {"messages": [HumanMessage(f"{number}: {turn}")]}
                graph.invoke(said, config_of(f"client {number}"))
            return [each.content for each in graph.get_state(config_of(f"client {number}")).values["messages"]]

        with ThreadPoolExecutor(clients) as pool:
            talks = [pool.submit(talk, number) for number in range(clients)]
            begin.wait()
            report = saver.moving.import_from(old.url)
            for number, each in enumerate(talks):
                said = each.result()
                assert [text for text in said if ": " in text] == [f"{number}: {turn}" for turn in range(turns)]
                assert said[0] == "question 0"
        assert report.failed == {}
        assert saver.moving.import_from(old.url).threads == {"present": clients + idle}
        assert len(list(saver.threads())) == clients + idle
