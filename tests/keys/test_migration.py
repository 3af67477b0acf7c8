"""A plain-text store is sealed in place, with interruptions and other writers.

Afterwards no record in plain text is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from golden.kinds import TYPES
from golden.seen import seen
from support.cli_threads import keel, keel_json
from support.retention.threads import BACKENDS, Written, name_of, secrets_in
from support.saver_parts import driver_of
from support.tiers import sized
from test_scan import left_in, write

from langgraph_keel import InvalidInput, KeelSaver, Keyring, LocalKey, MemorySaver, Retention, SealBroken, SqliteSaver
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.store import Store
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of, exact

KEY = LocalKey("k1", bytes(range(32)))
STRICT, MIGRATING = Keyring(KEY), Keyring(KEY, migrate=True)


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.slow
@pytest.mark.parametrize("backend", sized(["memory"], ["memory"], BACKENDS))
def test_every_feature_works_the_same_after_a_migration(store: Any, backend: str) -> None:
    def open_(**options: Any) -> KeelSaver:
        saver: KeelSaver = store.open(**options)
        return saver

    with open_() as saver:
        saver.retention.set_policy(Retention(last=9))
        empty = store.raw()
    write(open_)
    with open_(types=TYPES) as saver:
        before = seen(saver)
    with open_(types=TYPES, encryption=MIGRATING) as saver:
        assert exact(seen(saver)) == exact(before)
        done = saver.keys.migrate()
        assert done.is_done
        assert done.records > 100
        assert exact(seen(saver)) == exact(before)
        assert saver.keys.migrate() == (0, 0, {}, True)
        assert saver.keys.migrate(again=True).records == 0
    assert left_in(store.raw(), before, empty) == set()
    with open_(types=TYPES, encryption=STRICT) as saver:
        assert exact(seen(saver)) == exact(before)
        assert all(thread.thread_id in before["thread"] for thread in saver.threads(status="done"))


def story(saver: KeelSaver) -> Written:
    """A thread with a branch, a subgraph, ghosts, orphaned writes and a label.

    Every record contains a secret.
    """
    written = Written(saver)
    for _ in range(3):
        written.put()
    written.put(name_of(1))
    written.put(ns="sub")
    saver.put_writes(at("t", "", "later"), [("messages", "an orphan: <secret>")], "task")
    saver.labels.set(at("t", "", name_of(2)), "<secret> label")
    return written


def values(saver: KeelSaver) -> Any:
    return exact(
        [(found.config, found.checkpoint, found.metadata, found.pending_writes) for found in saver.list(at("t"))]
    )


def plain_in(store: Any) -> Any:
    raw = store.raw()
    return secrets_in(raw, 60) or b"<secret>" in raw


@each_backend
def test_a_migration_interrupted_repeatedly_is_resumed(store: Any, backend: str) -> None:
    with store.open() as saver:
        story(saver)
        before = values(saver)
    steps = sized(7, 7, 1)
    count, cut = Counter(), 0
    assert plain_in(store)
    # Each attempt gets a little further than the previous one, from no request to all.
    while True:
        with store.open(encryption=MIGRATING) as saver, suppress(Injected):
            tapped = with_tap(with_tap(saver, Fault(cut, lost_reply=cut % 2 == 1)), count)
            assert tapped.keys.migrate().is_done
            break
        with store.open(encryption=MIGRATING) as saver:
            assert values(saver) == before
        cut += steps
    assert count.count > 40
    assert not plain_in(store)
    with store.open(encryption=STRICT) as saver:
        assert values(saver) == before
        assert [label.name for label in saver.labels.list("t")] == ["<secret> label"]


@each_backend
def test_a_migration_interrupted_at_any_request_is_resumed(store: Any, backend: str) -> None:
    """The second attempt does the rest, whichever request the first one failed at."""
    cut, was_cut = 0, True
    while was_cut:
        store.wipe()
        with store.open() as saver:
            story(saver)
            before = values(saver)
        with store.open(encryption=MIGRATING) as saver:
            was_cut = False
            try:
                with_tap(saver, Fault(cut)).keys.migrate()
            except Injected:
                was_cut = True
        with store.open(encryption=MIGRATING) as saver:
            assert values(saver) == before
            assert saver.keys.migrate().is_done
        assert not plain_in(store)
        with store.open(encryption=STRICT) as saver:
            assert values(saver) == before
        cut += sized(29, 29, 1)


@each_backend
def test_runs_write_during_a_migration(store: Any, backend: str) -> None:
    with store.open() as saver:
        for number in range(6):
            thread = at(f"t{number}")
            for nth in range(1, 5):
                thread = saver.put(thread, numbered(nth), {"source": "loop", "step": nth, "parents": {}}, {})
    is_over = False

    def work(number: int) -> int:
        put = 4
        with store.open(encryption=MIGRATING) as saver:
            while put < 30 or (not is_over and put < 300):
                found = saver.get_tuple(at(f"t{number}"))
                assert len(found.checkpoint["channel_values"]["list"]) == put
                put += 1
                saver.put(found.config, numbered(put), {"source": "loop", "step": put, "parents": {}}, {})
                if put % 7 == 0:
                    saver.prune([f"t{number}"])
        return put

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(work, number) for number in range(4)]
        with store.open(encryption=MIGRATING) as saver:
            assert saver.keys.migrate().is_done
        is_over = True
        put = [each.result() for each in working]
    with store.open(encryption=STRICT) as saver:
        for number, count in enumerate([*put, 4, 4]):
            found = saver.get_tuple(at(f"t{number}"))
            assert found.checkpoint["channel_values"]["list"][-1] == f"<{count}> of the list"
            assert len(list(saver.list(at(f"t{number}")))) > 0
    assert b"> of the list" not in store.raw()


@pytest.mark.parametrize("backend", ["memory", "files"])
def test_rows_referenced_only_by_a_newer_checkpoint_are_sealed(store: Any, backend: str) -> None:
    """Before each request, another saver stores a checkpoint and prunes earlier ones.

    The new checkpoint shows rows in plain text.
    """
    trip, happened = 0, True
    while happened:
        store.wipe()
        with store.open() as saver:
            config = at("t")
            for nth in range(1, 5):
                config = saver.put(config, numbered(nth), {"source": "loop", "step": nth, "parents": {}}, {})
        with store.open(encryption=MIGRATING) as other, store.open(encryption=MIGRATING) as saver:

            def go_on(other: KeelSaver = other) -> None:
                found: Any = other.get_tuple(at("t"))
                number = len(found.checkpoint["channel_values"]["list"]) + 1
                other.put(found.config, numbered(number), {"source": "loop", "step": number, "parents": {}}, {})
                other.prune(["t"])

            go_on()
            meanwhile = Meanwhile(trip, go_on)
            assert with_tap(saver, meanwhile).keys.migrate().is_done
            happened = meanwhile.happened
        with store.open(encryption=STRICT) as saver:
            found: Any = saver.get_tuple(at("t"))
            assert len(found.checkpoint["channel_values"]["list"]) == (6 if happened else 5)
        trip += 1
    assert trip > 10


def numbered(number: int) -> Any:
    return checkpoint_of(f"{number:08}", {"list": [f"<{nth}> of the list" for nth in range(1, number + 1)]})


@each_backend
def test_plain_text_is_refused_except_during_a_migration(store: Any, backend: str) -> None:
    old = store.open()  # a process without keys that opened the store before it was encrypted
    story(old)
    before = values(old)
    with store.open(encryption=STRICT) as saver, pytest.raises(SealBroken, match=r"plain text.*migrate=True"):
        values(saver)
    with store.open(encryption=MIGRATING) as saver:
        assert values(saver) == before  # reading writes nothing
        saver.copy_thread("t", "copy")
        saver.fork(at("t", "", name_of(1)), "fork")
        saver.rewind(at("t", "", name_of(1)))
        assert saver.get_tuple(at("fork")) is not None
        assert saver.keys.migrate().is_done
        assert saver.get_tuple(at("copy")) is not None
        assert (
            saver.get_tuple(at("t")).checkpoint["channel_values"]
            == saver.get_tuple(at("fork")).checkpoint["channel_values"]
        )
    assert not plain_in(store)
    Written(old, "u").put()
    old.close()
    for keyring in (STRICT, MIGRATING):
        with store.open(encryption=keyring) as saver, pytest.raises(SealBroken, match="plain text"):
            saver.get_tuple(at("u"))
    with store.open(encryption=MIGRATING) as saver:
        assert saver.keys.migrate(again=True).threads == 1
        assert saver.get_tuple(at("u")) is not None


def test_each_tenant_is_migrated(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for each in (saver, saver.for_tenant("acme"), saver.for_tenant("bolt")):
            story(each)
        before = values(saver.for_tenant("bolt"))
    with SqliteSaver(tmp_path / "keel.db", encryption=MIGRATING) as saver:
        assert saver.for_tenant("acme").keys.migrate().threads == 1
        assert saver.keys.migrate().threads == 2
        saver.retention.reclaim_space(full=True)
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not secrets_in(raw, 60)
    with SqliteSaver(tmp_path / "keel.db", encryption=STRICT) as saver:
        assert values(saver.for_tenant("bolt")) == before


def test_threads_are_found_by_owner_before_and_after_a_migration(tmp_path: Path) -> None:
    def found(saver: KeelSaver) -> list[list[str]]:
        return [[info.thread_id for info in saver.threads(owner=owner)] for owner in ("ann", "ben")]

    with SqliteSaver(tmp_path / "keel.db") as saver:
        for name, owner in (("t", "ann"), ("u", "ben")):
            metadata: Any = {"source": "loop", "step": 1, "parents": {}, "user_id": owner}
            saver.put(at(name), numbered(1), metadata, {})
        before = found(saver)
        assert all(before)
    with SqliteSaver(tmp_path / "keel.db", encryption=MIGRATING) as saver:
        assert found(saver) == before
        saver.keys.migrate()
        assert found(saver) == before


def test_an_unreadable_thread_is_reported_and_not_sealed(tmp_path: Path) -> None:
    saver = MemorySaver()
    story(saver)
    state: Any = driver_of(saver).state
    for log in state["t"].logs.values():
        log.rows.clear()
    sealed = MemorySaver(encryption=MIGRATING)
    sealed = with_engine(sealed, sealed.engine.with_drivers(saver.engine.driver, saver.engine.async_driver))
    done = sealed.keys.migrate()
    assert not done.is_done
    assert list(done.failed) == ["t"]
    assert "cannot be read and were not sealed" in str(done)


def test_impossible_migrations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not allow a migration"):
        MemorySaver(encryption=STRICT).keys.migrate()
    with pytest.raises(InvalidInput, match="no keyring"):
        MemorySaver().keys.migrate()
    with pytest.raises(InvalidInput, match="migrate must be True or False"):
        Keyring(KEY, migrate="yes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cannot be migrated"):
        Store.list_writes(object(), "t", None, 1)  # type: ignore[arg-type]


def test_a_migration_may_end_during_a_read(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        story(saver)
        before = values(saver)
    for trip in range(4):
        with SqliteSaver(tmp_path / "keel.db", encryption=MIGRATING) as other:
            meanwhile = Meanwhile(trip, other.keys.migrate)
            with SqliteSaver(tmp_path / "keel.db", encryption=MIGRATING) as saver:
                assert values(with_tap(saver, meanwhile)) == before
        with SqliteSaver(tmp_path / "again.db") as saver:
            story(saver)
        for path in tmp_path.glob("again.db*"):
            path.rename(tmp_path / path.name.replace("again", "keel"))


def test_an_erasure_receipt_describes_backups(tmp_path: Path) -> None:
    metadata: Any = {"source": "loop", "step": 1, "parents": {}, "user_id": "ann"}

    def erase(**options: Any) -> str:
        with SqliteSaver(tmp_path / "keel.db", **options) as saver:
            saver.put(at("t"), numbered(1), metadata, {})
            return "\n".join(saver.retention.erase("ann").exempt)

    assert "encrypted" not in erase()
    migrating = erase(encryption=MIGRATING)
    assert "the master key (now 'k1')" in migrating
    assert "in plain text: destroy them" in migrating
    with SqliteSaver(tmp_path / "keel.db", encryption=MIGRATING) as saver:
        saver.keys.migrate()
    assert "in plain text: destroy them" in erase(encryption=STRICT)
    (tmp_path / "keel.db").unlink()
    assert "(now 'k1')" in erase(encryption=STRICT)
    assert "plain text" not in erase(encryption=STRICT)


def test_amigrate_completes() -> None:
    async def migrate() -> None:
        saver = MemorySaver(encryption=MIGRATING)
        await saver.aput(at("t"), numbered(1), {"source": "loop", "step": 1, "parents": {}}, {})
        assert (await saver.keys.amigrate()).is_done

    asyncio.run(migrate())


def test_the_migrate_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/keel.db"
    with SqliteSaver(tmp_path / "keel.db") as saver:
        story(saver)
    key = new_key("2026")
    monkeypatch.setenv("KEEL_KEYS", key)
    assert "keel keys migrate" in keel("show", "t", "--url", url, status=1).output
    done = keel_json("keys", "migrate", "--reclaim", "--url", url)
    assert (done["is_done"], done["threads"], done["failed"]) == (True, 1, {})
    said = keel("keys", "migrate", "--url", url)
    assert "the store contains no more plain text" in said.stdout
    assert key[10:30] not in said.output
    assert "00000002" in keel("history", "t", "--url", url).stdout
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not secrets_in(raw, 60)
