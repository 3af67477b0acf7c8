"""Large values in objects: read back as stored, and removed with their row."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from golden import story
from golden.kinds import TYPES
from golden.seen import seen
from langgraph.checkpoint.base import CheckpointTuple
from support.blobs.threads import (
    IMAGE,
    backend_of,
    bodies_of,
    image,
    lose_objects,
    messages_of,
    moved_bodies,
    objects_in,
    put_images,
)
from support.cli_threads import keel, keel_json
from support.savers import each_backend
from support.tiers import sized

from langgraph_keel import (
    BlobLost,
    BlobsMissing,
    CheckpointConflict,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    Retention,
    SqliteSaver,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    Unread,
)
from langgraph_keel.blobs.store import GRACE, LEAST
from langgraph_keel.engine.records import Graph
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.rig import FACES, at, checkpoint_of

KEYRING = Keyring(LocalKey("k1", bytes(range(32))))
each_keyring = pytest.mark.parametrize("keyring", [None, KEYRING], ids=["plain", "sealed"])


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def blobs(objects: Path) -> dict[str, Any]:
    return {"blobs": f"file:{objects}"}


@pytest.fixture
def saver(tmp_path: Path, blobs: dict[str, Any]) -> Iterator[KeelSaver]:
    with SqliteSaver(tmp_path / "keel.db", **blobs) as saver:
        yield saver


def another(saver: KeelSaver, **options: Any) -> SqliteSaver:
    """The same database, opened by another process."""
    return SqliteSaver(saver.info().place, **options)


def make_old(objects: Path) -> None:
    """Make the objects older than any write could take."""
    for name in objects_in(objects):
        os.utime(objects / name, (0, 0))


# -- on every backend --------------------------------------------------------------------------------------------------


@each_backend
@pytest.mark.parametrize("face", list(FACES))
@each_keyring
def test_large_values_are_stored_in_objects_and_read_back(
    stores: Any, backend: str, face: str, keyring: Keyring | None, objects: Path, blobs: dict[str, Any]
) -> None:
    store = stores[backend]
    store.wipe()
    with store.open(**blobs, encryption=keyring) as saver, store.open(**blobs, encryption=keyring) as cold:
        through = FACES[face](lambda: saver)
        put = put_images(through, 4)
        assert len(objects_in(objects)) == 8
        assert len(moved_bodies(saver)) == 8
        assert max(map(len, bodies_of(saver))) <= 1024
        cold_face = FACES[face](lambda: cold)
        for reader in (through, cold_face):
            found = reader.read(at())
            assert found.checkpoint["channel_values"]["messages"] == put
            assert found.pending_writes == [("task 3", "messages", [put[3]])]
            for number, listed in enumerate(reversed(list(reader.list(at())))):
                assert listed.checkpoint["channel_values"]["messages"] == put[: number + 1]
        through.copy_thread("t", "u")
        through.fork(at("t", "", "00000002"), "v")
        assert messages_of(cold, "u") == put
        assert messages_of(cold, "v") == put[:2]
        through.prune(["t"])
        assert messages_of(cold) == put
        assert len(moved_bodies(saver)) == 5
        through.delete_thread("t")
        assert messages_of(cold) is None
        assert messages_of(cold, "u") == put
        assert messages_of(cold, "v") == put[:2]
        for thread in ("u", "v"):
            through.delete_thread(thread)
        assert objects_in(objects) == []
        through.close()
        cold_face.close()


@pytest.mark.slow
@each_backend
@each_keyring
def test_every_feature_works_the_same_with_objects(
    stores: Any, backend: str, keyring: Keyring | None, blobs: dict[str, Any]
) -> None:
    """The golden story, which uses every feature, with values over 1 KB in objects."""
    store, told = stores[backend], []
    for more in ({}, {**blobs, "blob_limit": LEAST}):
        store.wipe()

        def open_saver(**options: Any) -> Any:
            return store.open(**more, encryption=keyring, **{"types": TYPES, **options})  # noqa: B023

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            story.write(open_saver)
            with open_saver() as saver:
                told.append(seen(saver))
                assert not [finding for finding in saver.check() if finding.kind != "harmless"]
    assert told[0].keys() == told[1].keys()
    assert {name: len(each) for name, each in told[0].items()} == {name: len(each) for name, each in told[1].items()}


@each_backend
def test_each_tenant_has_its_own_folder(stores: Any, backend: str, objects: Path, blobs: dict[str, Any]) -> None:
    store = stores[backend]
    store.wipe()
    with store.open(**blobs) as saver:
        acme, other = saver.for_tenant("acme"), saver.for_tenant("other")
        put = [put_images(each, 2) for each in (saver, acme, other)]
        folders = {name.split("/")[0] for name in objects_in(objects)}
        assert len(folders) == 3
        acme.delete_thread("t")
        assert len(objects_in(objects)) == 8
        assert [messages_of(each) for each in (saver, acme, other)] == [put[0], None, put[2]]
        receipt = saver.tenants.delete("other")
        assert receipt.complete
        assert any("directory of objects" in sentence for sentence in receipt.exempt)
        assert len(objects_in(objects)) == 4
        assert messages_of(saver) == put[0]


@each_backend
@each_keyring
def test_an_erasure_leaves_no_object(
    stores: Any, backend: str, keyring: Keyring | None, objects: Path, blobs: dict[str, Any]
) -> None:
    store = stores[backend]
    store.wipe()
    with store.open(**blobs, encryption=keyring, owner=lambda config: config["configurable"]["thread_id"]) as saver:
        put_images(saver, 3, "ada")
        put_images(saver, 1, "bob")
        saver.copy_thread("ada", "copy")
        receipt = saver.retention.erase("ada")
        assert receipt.complete
        assert sorted(receipt.threads) == ["ada", "copy"]
        assert any("directory of objects" in sentence for sentence in receipt.exempt)
        assert len(objects_in(objects)) == 2
        saver.retention.erase("bob")
        assert objects_in(objects) == []


# -- round trips -------------------------------------------------------------------------------------------------------


@each_keyring
def test_an_erasure_without_the_objects_is_refused(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], keyring: Keyring | None
) -> None:
    path = tmp_path / "keel.db"
    options: dict[str, Any] = {} if keyring is None else {"encryption": keyring}
    with SqliteSaver(path, **blobs, **options) as saver:
        for each in (saver, saver.for_tenant("acme")):
            config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "user_id": "ada"}}
            each.put(config, checkpoint_of("1", {"messages": [image(1)]}), {}, {})  # type: ignore[arg-type]
    with SqliteSaver(path, **options) as saver:
        with pytest.raises(BlobsMissing, match="would stay"):
            saver.retention.erase("ada")
        with pytest.raises(BlobsMissing, match="would stay"):
            saver.tenants.delete("acme")
    with SqliteSaver(path, **blobs, **options) as saver:
        assert saver.retention.erase("ada").threads == ("t",)
        assert saver.tenants.delete("acme").complete
    assert not objects_in(objects)


def test_each_operation_takes_few_requests(saver: KeelSaver, blobs: dict[str, Any]) -> None:
    counter = Counter()
    counted = with_tap(saver, counter)
    put_images(counted, 1, writes=False)
    assert counter.taken() == 5  # the folder's name, in two requests; the folder; the object; the row
    put = put_images(counted, 2, "u", writes=False)
    assert counter.taken() == 4  # the object and the row, for each of two writes
    counted.put(at("small"), checkpoint_of("1", {"messages": ["small"]}), {}, {})  # type: ignore[arg-type]
    assert counter.taken() == 1
    assert messages_of(counted, "u") == put
    assert counter.taken() == 1  # this process has them cached
    with another(saver, **blobs) as cold:
        counted = with_tap(cold, counter)
        assert messages_of(counted, "small") == ["small"]
        assert counter.taken() == 1
        assert messages_of(counted, "u") == put
        assert counter.taken() == 2  # the rows, and all objects in one request
        assert messages_of(counted, "u", "00000001") == put[:1]
        assert counter.taken() == 1


def test_a_dry_run_counts_objects_without_fetching_them(saver: KeelSaver, objects: Path, blobs: dict[str, Any]) -> None:
    put_images(saver, 3)
    with another(saver, **blobs) as cold:
        for name in objects_in(objects):
            (objects / name).chmod(0)
        report = cold.prune(["t"], strategy="delete", dry_run=True)
    assert report.bytes
    assert 6 * IMAGE < report.bytes < 9 * IMAGE


def test_screenshots_leave_small_rows(saver: KeelSaver, objects: Path, blobs: dict[str, Any]) -> None:
    """200 screenshots of 2 MB; a tenth of that in CI."""
    number, size = sized((5, 300_000), (20, 1_500_000), (200, 1_500_000))  # 2 MB as base64
    with another(saver, **blobs, memo_bytes=1 << 20) as small:
        put_images(small, number, size=size, writes=False)
    assert len(objects_in(objects)) == number
    assert max(map(len, bodies_of(saver))) <= 1024
    assert sum(map(len, moved_bodies(saver))) < 100 * number
    assert os.path.getsize(saver.info().place) < 100_000 + 4096 * number
    found = messages_of(saver)
    assert found == [image(each, size) for each in range(number)]
    saver.prune(["t"])
    assert len(objects_in(objects)) == number
    assert saver.get_tuple(at())
    saver.delete_thread("t")
    assert objects_in(objects) == []


def test_small_items_do_not_share_a_row_with_a_large_one(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any]
) -> None:
    """Otherwise a lost object would take them with it, and reading one would fetch it."""
    values = {"messages": ["first", "second", image(0), "third", image(1)]}
    saver.put(at(), checkpoint_of("1", values), {}, {})  # type: ignore[arg-type]
    lose_objects(objects)
    with another(saver, **blobs) as cold:
        shown = messages_of(cold.raw)
    assert [each for each in shown if not isinstance(each, Unread)] == ["first", "second", "third"]
    assert len(shown) == 5


def test_packing_excludes_values_in_objects(tmp_path: Path, objects: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", blobs=f"file:{objects}", blob_limit=LEAST) as saver:
        texts = [os.urandom(100 if number % 3 else 1500).hex() for number in range(80)]
        for number in range(80):
            parent = f"{number - 1:04}" if number else None
            checkpoint = checkpoint_of(f"{number:04}", {"messages": texts[: number + 1]})
            saver.put(at("t", "", parent), checkpoint, {}, {})  # type: ignore[arg-type]
        large = sum(not number % 3 for number in range(80))
        assert len(objects_in(objects)) == large
    with SqliteSaver(tmp_path / "keel.db", blobs=f"file:{objects}") as saver:
        assert messages_of(saver) == texts


def test_a_saver_without_blobs_stores_no_objects(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        assert type(saver.engine.session.store) is type(backend_of(saver))
        put_images(saver, 2)
        assert not moved_bodies(saver)


# -- failures ----------------------------------------------------------------------------------------------------------


@each_keyring
def test_a_lost_object_is_named_and_other_values_are_read(
    tmp_path: Path, keyring: Keyring | None, objects: Path, blobs: dict[str, Any]
) -> None:
    options = {**blobs, "encryption": keyring}
    with SqliteSaver(tmp_path / "keel.db", **options) as saver:
        put = put_images(saver, 3, writes=False)
        put_images(saver, 1, "other")
        names = objects_in(objects)
        (victim,) = [name for name in names if _holds(saver, name, 1)]
        os.unlink(objects / victim)
    with SqliteSaver(tmp_path / "keel.db", **options) as saver:
        assert messages_of(saver, "other")
        assert messages_of(saver, "t", "00000001") == put[:1]
        for checkpoint_id in ("00000002", None):
            with pytest.raises(BlobLost) as told:
                messages_of(saver, "t", checkpoint_id)
            for word in ("'t'", checkpoint_id or "00000003", "'messages'", victim, f"file:{objects}", "is gone"):
                assert word in str(told.value)
            with pytest.raises(BlobLost):
                asyncio.run(saver.aget_tuple(at("t", "", checkpoint_id)))
        shown = messages_of(saver.raw)
        assert shown[0] == put[0]
        assert shown[2] == put[2]
        assert isinstance(shown[1], Unread)
        assert "is gone" in str(shown[1])
        findings = [finding for finding in saver.check() if finding.kind != "harmless"]
        assert {(finding.kind, finding.thread_id) for finding in findings} == {("lost", "t")}
        assert any(victim in finding.message and "messages" in finding.path for finding in findings)
        exported = saver.moving.export_to(str(tmp_path / "langgraph.db"))
        assert ([*exported.failed], exported.threads["exported"]) == (["t"], 1)
        # The thread continues from an earlier checkpoint.
        saver.rewind(at("t", "", "00000001"))
        assert messages_of(saver) == put[:1]
        saver.copy_thread("t", "copied with what it has lost")
        assert messages_of(saver, "copied with what it has lost") == put[:1]


def _holds(saver: KeelSaver, name: str, number: int) -> bool:
    """Whether an object, named by its digest, contains message `number` of thread `t`."""
    store, engine = backend_of(saver), saver.engine
    from langgraph_keel.engine.config import Address
    from langgraph_keel.engine.encoding.bodies import read_absent

    found = engine.run(store.read_entry(Address("t")))
    absent = read_absent(found.rows["messages"][number].body)
    return absent is not None and absent.digest.hex() in name


def test_lost_writes_are_named_and_shown_as_placeholders(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any]
) -> None:
    put_images(saver, 1)
    lose_objects(objects)
    with another(saver, **blobs) as cold:
        with pytest.raises(BlobLost, match=r"'t'.*00000001"):
            cold.get_tuple(at())
        found = cold.raw.get_tuple(at())
        assert isinstance(found, CheckpointTuple)
        assert found.pending_writes
        assert [type(value) for _, _, value in found.pending_writes] == [Unread]


@pytest.mark.parametrize("change", [b"", b"other bytes", None])
def test_a_changed_object_raises_blob_lost(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any], change: bytes | None
) -> None:
    put_images(saver, 1, writes=False)
    (name,) = objects_in(objects)
    data = (objects / name).read_bytes()
    (objects / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if change is None else change)
    with another(saver, **blobs) as cold, pytest.raises(BlobLost, match="was changed"):
        messages_of(cold)


def test_a_value_with_edits_is_a_placeholder_if_a_part_is_lost(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any]
) -> None:
    values = {"files": {"a.png": image(0).content[0]["image_url"]["url"], "b": "small"}}  # type: ignore[index]
    saver.put(at(), checkpoint_of("1", values), {}, {})  # type: ignore[arg-type]
    values["files"]["c"] = "more"
    saver.put(at("t", "", "1"), checkpoint_of("2", values), {}, {})  # type: ignore[arg-type]
    assert len(objects_in(objects)) == 1
    with another(saver, **blobs) as cold:
        found = cold.get_tuple(at())
        assert found
        assert found.checkpoint["channel_values"] == values
    lose_objects(objects)
    with another(saver, **blobs) as cold:
        found = cold.raw.get_tuple(at())
        assert found
        assert isinstance(found.checkpoint["channel_values"]["files"], Unread)


@each_keyring
def test_a_saver_opened_without_blobs_names_the_missing_option(
    tmp_path: Path, keyring: Keyring | None, blobs: dict[str, Any]
) -> None:
    with SqliteSaver(tmp_path / "keel.db", encryption=keyring, **blobs) as saver:
        put_images(saver, 1)
        saver.put(at("small"), checkpoint_of("1", {"messages": ["small"]}), {}, {})  # type: ignore[arg-type]
    with SqliteSaver(tmp_path / "keel.db", encryption=keyring) as saver:
        assert messages_of(saver, "small") == ["small"]
        with pytest.raises(BlobsMissing, match="blobs="):
            saver.get_tuple(at())
        with pytest.raises(BlobsMissing, match="KEEL_BLOBS"):
            list(saver.check())
        (shown,) = messages_of(saver.raw)
        assert isinstance(shown, Unread)


def test_commands_find_the_objects(saver: KeelSaver, objects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_images(saver, 2, writes=False)
    url = f"sqlite:///{saver.info().place}"
    monkeypatch.delenv("KEEL_BLOBS", raising=False)
    assert "opened without blobs=" in " ".join(keel("show", "t", "--url", url).output.split())
    monkeypatch.setenv("KEEL_BLOBS", f"file:{objects}")
    assert "image_url" in keel("show", "t", "--url", url).output
    assert keel_json("check", "--url", url)["findings"] == []
    lose_objects(objects)
    shown = keel("show", "t", "--json", "--url", url)
    assert "is gone" in json.dumps(json.loads(shown.stdout))
    assert "--import" not in shown.stderr
    found = keel_json("check", "--url", url, status=1)["findings"]
    assert {finding["kind"] for finding in found} == {"lost"}
    keel("delete", "t", "--yes", "--url", url)  # as the finding advises
    assert keel_json("threads", "--url", url)["threads"] == []


@pytest.mark.parametrize("lost_reply", [False, True])
@pytest.mark.parametrize("verb", ["put", "put_writes"])
def test_a_failed_upload_stores_nothing(saver: KeelSaver, objects: Path, verb: str, lost_reply: bool) -> None:
    put_images(saver, 1)
    saver.prune(["t"])
    before = [*bodies_of(saver)]
    failing = with_tap(saver, Fault(0, lost_reply=lost_reply))
    config, checkpoint = at("t", "", "00000001"), checkpoint_of("2", {"messages": [image(7)]})
    verbs: dict[str, Any] = {
        "put": lambda: failing.put(config, checkpoint, {}, {}),  # type: ignore[arg-type]
        "put_writes": lambda: failing.put_writes(config, [("messages", image(7))], "task"),
    }
    with pytest.raises(Injected):
        verbs[verb]()
    assert [*bodies_of(saver)] == before
    make_old(objects)
    saver.prune(["t"])
    assert len(objects_in(objects)) == 2


def test_an_unusable_directory_is_named_and_nothing_is_stored(saver: KeelSaver, objects: Path) -> None:
    objects.write_text("not a directory")
    with pytest.raises(StoreError, match="objects"):
        put_images(saver, 1)
    assert saver.get_tuple(at()) is None


def test_a_refused_put_leaves_no_object(saver: KeelSaver, objects: Path) -> None:
    put_images(saver, 1, writes=False)
    late = saver.get_tuple(at())
    assert late
    for number in range(2):
        checkpoint = checkpoint_of(f"1{number}", {"messages": [image(number + 5)]})
        if number:
            with pytest.raises(CheckpointConflict):
                saver.put(late.config, checkpoint, {}, {})  # type: ignore[arg-type]
        else:
            saver.put(late.config, checkpoint, {}, {})  # type: ignore[arg-type]
    assert len(objects_in(objects)) == 2


@pytest.mark.parametrize("is_there", [False, True], ids=["directory", "mount point"])
def test_an_unmounted_directory_does_not_count_objects_as_lost(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any], is_there: bool
) -> None:
    """The directory is missing, or its mount point exists and is empty."""
    put = put_images(saver, 2)
    saver.prune(["t"])
    away = objects.rename(objects.with_name("away"))
    if is_there:
        objects.mkdir()
    config = at("t", "", "00000002")
    checkpoint: Any = checkpoint_of("3", {"messages": [image(7)]})
    with another(saver, **blobs) as cold:
        verbs: dict[str, Callable[[], object]] = {
            "get": lambda: cold.get_tuple(at()),
            "aget": lambda: asyncio.run(cold.aget_tuple(at())),
            "raw": lambda: cold.raw.get_tuple(at()),
            "put": lambda: cold.put(config, checkpoint, {}, {}),
            "put_writes": lambda: cold.put_writes(config, [("messages", image(7))], "task"),
            "prune": lambda: cold.prune(["t"], strategy="delete"),
            "delete": lambda: cold.delete_thread("t"),
            "copy": lambda: cold.copy_thread("t", "u"),
            "reclaim": lambda: cold.retention.reclaim_space(full=True, strays=True),
            "check": lambda: [*cold.check()],
        }
        for call in verbs.values():
            with pytest.raises(StoreUnavailable, match=rf"file:{objects}: .* is not there, .* mounted"):
                call()
        cold.put(at("small"), checkpoint_of("1", {"messages": ["small"]}), {}, {})  # type: ignore[arg-type]
        assert messages_of(cold, "small") == ["small"]
    assert [*objects.parent.glob("objects/*")] == []
    assert objects.is_dir() == is_there
    shutil.rmtree(objects, ignore_errors=True)
    away.rename(objects)
    with another(saver, **blobs) as cold:
        assert messages_of(cold) == put
        cold.delete_thread("t")
        assert objects_in(objects) == []
        put_images(cold, 1)  # the folder of the store still exists


def test_a_recreated_directory_reports_its_objects_as_lost(
    saver: KeelSaver, objects: Path, blobs: dict[str, Any]
) -> None:
    """As the error message says."""
    put_images(saver, 1)
    (store,) = objects.iterdir()
    shutil.rmtree(objects)
    store.mkdir(parents=True)
    with another(saver, **blobs) as cold:
        with pytest.raises(BlobLost, match="is gone"):
            cold.get_tuple(at())
        cold.delete_thread("t")
        put = put_images(cold, 1)
        assert messages_of(cold) == put


# -- leftovers and their removal ---------------------------------------------------------------------------------------

KILLED = """
import os, sys
from support.blobs.threads import image, put_images
from langgraph_keel import SqliteSaver
from langgraph_keel.testing.faults import Tap, with_tap

class Kill(Tap):
    left = int(sys.argv[3])

    def sending(self, request):
        if not self.left:
            os.kill(os.getpid(), 9)
        self.left -= 1

saver = SqliteSaver(sys.argv[1], blobs=sys.argv[2])
put_images(with_tap(saver, Kill()), 3, "t")
"""


@pytest.mark.slow
def test_an_object_left_by_a_kill_is_swept(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    """Killed at each request of three puts and three writes: no row lacks its object."""
    tests = str(Path(__file__).parents[1])
    for kill_at in range(sized(4, 6, 14)):
        database = tmp_path / f"{kill_at}.db"
        words = [sys.executable, "-c", KILLED, str(database), blobs["blobs"], str(kill_at)]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": tests}, check=False)
        assert done.returncode == -9
        with SqliteSaver(database, **blobs) as saver:
            assert not [each for each in saver.check() if each.kind != "harmless"]
            kept = len(moved_bodies(saver)) if saver.get_tuple(at()) else 0
            left = len(objects_in(objects))
            assert left - kept in (0, 1, 2)  # objects of the current write, and of a task's writes without a checkpoint
            make_old(objects)
            saver.retention.sweep(Retention(last=10))
            saver.retention.reclaim_space(full=True, strays=True)
            assert len(objects_in(objects)) == kept
            assert not [each for each in saver.check() if each.kind != "harmless"]
            saver.delete_thread("t")
        assert objects_in(objects) == []


@pytest.mark.parametrize("remove", ["prune", "sweep", "reclaim", "delete", "erase"])
def test_leftovers_are_swept_after_an_hour(saver: KeelSaver, objects: Path, remove: str) -> None:
    put_images(saver, 2, writes=False)
    for fault in (Fault(1), Fault(1)):  # the row of the uploaded object is never written
        with pytest.raises(Injected):
            with_tap(saver, fault).put_writes(at("t", "", "00000002"), [("messages", image(7))], "task")
    verbs: dict[str, Any] = {
        "prune": lambda: saver.prune(["t"], strategy=Retention(last=2)),
        "sweep": lambda: saver.retention.sweep(Retention(last=2)),
        "reclaim": lambda: saver.retention.reclaim_space(full=True, strays=True),
        "delete": lambda: saver.delete_thread("t"),
        "erase": lambda: saver.delete_thread("t"),
    }
    kept = 0 if remove in ("delete", "erase") else 2
    assert len(objects_in(objects)) == 4
    verbs[remove]()
    assert len(objects_in(objects)) == kept + 2  # writes that are still running may need them
    make_old(objects)
    if not kept:
        (stray,) = saver.engine.run(saver.engine.session.store.list_strays(None, 10))
        assert "objects/" in stray
        assert saver.retention.reclaim_space(strays=True)
    verbs[remove]()
    assert len(objects_in(objects)) == kept


def test_partial_files_of_dead_processes_are_swept(saver: KeelSaver, objects: Path) -> None:
    put_images(saver, 1, writes=False)
    (name,) = objects_in(objects)
    (objects / f"{name}~cut").write_bytes(b"part")
    make_old(objects)
    saver.prune(["t"])
    assert objects_in(objects) == [name]


@pytest.mark.parametrize("verb", ["prune", "sweep", "delete", "reclaim"])
def test_removals_keep_objects_of_concurrent_puts(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], verb: str
) -> None:
    """Before each request of a removal, another process stores the same values again."""
    for moment in range(60):
        database = tmp_path / f"{moment}.db"
        with SqliteSaver(database, **blobs) as saver, SqliteSaver(database, **blobs) as other:
            put_images(saver, 2)
            saver.put(at("t", "", "00000002"), checkpoint_of("9", {"messages": []}), {}, {})  # type: ignore[arg-type]
            make_old(objects)

            def put_again(other: KeelSaver = other) -> None:
                head = other.get_tuple(at())
                config = head.config if head else at()
                checkpoint = checkpoint_of("99", {"messages": [image(0), image(1)]})
                config = other.put(config, checkpoint, {}, {})  # type: ignore[arg-type]
                other.put_writes(config, [("messages", image(0))], "task")

            tap = Meanwhile(moment, put_again)
            removing = with_tap(saver, tap)
            if verb == "prune":
                removing.prune(["t"])
            elif verb == "sweep":
                removing.retention.sweep(Retention(last=1))
            elif verb == "delete":
                removing.delete_thread("t")
            else:
                removing.retention.reclaim_space(full=True, strays=True)
            if not tap.happened:
                assert moment > 3
                return
            with SqliteSaver(database, **blobs) as cold:
                if cold.get_tuple(at()):
                    assert messages_of(cold) in ([image(0), image(1)], [])
                assert not [each for each in cold.check() if each.kind != "harmless"]
    pytest.fail("it has more requests than were looked at")


def test_a_prune_keeps_writes_of_a_checkpoint_stored_again(
    tmp_path: Path, objects: Path, blobs: dict[str, Any]
) -> None:
    for moment in range(30):
        database = tmp_path / f"{moment}.db"
        with SqliteSaver(database, **blobs) as saver, SqliteSaver(database, **blobs) as other:
            first: Any = checkpoint_of("1", {"messages": [image(1)]})
            config = saver.put(at("t"), first, {}, {})
            saver.put_writes(config, [("messages", image(2))], "task")
            saver.put(config, checkpoint_of("2", {"messages": [image(3)]}), {}, {})  # type: ignore[arg-type]
            make_old(objects)

            def put_again(other: KeelSaver = other, first: Any = first) -> None:
                other.put(at("t"), first, {}, {})

            tap = Meanwhile(moment, put_again)
            with_tap(saver, tap).prune(["t"])
            if not tap.happened:
                return
            with SqliteSaver(database, **blobs) as cold:
                assert not [each for each in cold.check() if each.kind != "harmless"]
    pytest.fail("it has more requests than were looked at")


def test_a_sweep_keeps_objects_of_an_earlier_checkpoint(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    for moment in range(20):
        database = tmp_path / f"{moment}.db"
        with SqliteSaver(database, **blobs) as saver, SqliteSaver(database, **blobs) as other:
            put = put_images(saver, 1, writes=False)
            config = at("t", "", "00000001")
            saver.put(config, checkpoint_of("2", {"messages": put}), {"run_id": "r"}, {})  # type: ignore[arg-type]
            make_old(objects)

            def remove(other: KeelSaver = other) -> None:
                other.delete_for_runs(["r"])

            tap = Meanwhile(moment, remove)
            sweeping = with_tap(saver, tap)
            sweeping.engine.run(sweeping.engine.session.store.remove_rows("t", {}, Graph([], {}, None)))
            if not tap.happened:
                assert moment > 3
                return
            with SqliteSaver(database, **blobs) as cold:
                assert messages_of(cold) == put
    pytest.fail("it has more requests than were looked at")


@pytest.mark.slow
def test_a_copy_has_all_its_objects_despite_concurrent_writes(
    tmp_path: Path, objects: Path, blobs: dict[str, Any]
) -> None:
    for moment in range(60):
        database = tmp_path / f"{moment}.db"
        with SqliteSaver(database, **blobs) as saver, SqliteSaver(database, **blobs) as other:
            put_images(saver, 2)

            def go_on(other: KeelSaver = other) -> None:
                config = other.put(at("t", "", "00000002"), checkpoint_of("9", {"messages": [image(8)]}), {}, {})  # type: ignore[arg-type]
                other.put_writes(config, [("messages", image(9))], "task")
                other.prune(["t"])

            tap = Meanwhile(moment, go_on)
            with suppress(StoreBusy):
                with_tap(saver, tap).copy_thread("t", "u")
            if not tap.happened:
                return
            with SqliteSaver(database, **blobs) as cold:
                assert not [each for each in cold.check() if each.kind != "harmless"]
                cold.delete_thread("t")
                assert not [each for each in cold.check() if each.kind != "harmless"]
    pytest.fail("it has more requests than were looked at")


def test_a_suspended_process_uploads_its_object_again(
    saver: KeelSaver, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour between the upload and the row: a sweep has removed the object."""
    now = [1_000_000_000_000]
    monkeypatch.setattr(saver.engine.session.store, "_clock", lambda: now[0])

    def sleep() -> None:
        now[0] += GRACE
        lose_objects(objects)

    put = put_images(with_tap(saver, Meanwhile(3, sleep)), 1, writes=False)
    with another(saver, blobs=f"file:{objects}") as cold:
        assert messages_of(cold) == put


# -- migration, bad input, the directory -------------------------------------------------------------------------------


def test_an_open_view_of_a_deleted_tenant_starts_a_new_folder(
    tmp_path: Path, objects: Path, blobs: dict[str, Any]
) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path, **blobs) as saver, SqliteSaver(path, **blobs) as other:
        put_images(saver.for_tenant("acme"), 1)
        assert other.tenants.delete("acme").complete
        checkpoint: Any = checkpoint_of("2", {"messages": [image(0), image(1)]})
        saver.for_tenant("acme").put(at("t", "", "00000001"), checkpoint, {}, {})
        assert messages_of(saver.for_tenant("acme")) == [image(0), image(1)]
        put_images(saver.for_tenant("acme"), 1, "u", writes=False)
    with SqliteSaver(path, **blobs) as saver:
        assert messages_of(saver.for_tenant("acme")) == [image(0), image(1)]
        saver.for_tenant("acme").delete_thread("u")
        saver.for_tenant("acme").delete_thread("t")
        assert not objects_in(objects)


@each_backend
def test_a_migration_seals_objects_too(stores: Any, backend: str, objects: Path, blobs: dict[str, Any]) -> None:
    store = stores[backend]
    store.wipe()
    with store.open(**blobs) as saver:
        put = put_images(saver, 2)
    with store.open(**blobs, encryption=Keyring(LocalKey("k1", bytes(range(32))), migrate=True)) as saver:
        assert messages_of(saver) == put
        assert saver.keys.migrate().is_done
        make_old(objects)
        saver.retention.reclaim_space(full=True)
        assert len(objects_in(objects)) == 4
        assert not any(b"image_url" in (objects / name).read_bytes() for name in objects_in(objects))
    with store.open(**blobs, encryption=KEYRING) as saver:
        assert messages_of(saver) == put


def test_lost_sealed_writes_are_named(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path, **blobs, encryption=KEYRING) as saver, MemorySaver() as target:
        saver.put(at("t"), checkpoint_of("1", {"a": 1}), {}, {"a": 1})  # type: ignore[arg-type]
        assert saver.get_tuple(at("t"))
        with SqliteSaver(path, **blobs, encryption=KEYRING) as other:
            other.put_writes(at("t", "", "1"), [("messages", [image(1)])], "task")
        lose_objects(objects)
        with pytest.raises(BlobLost):
            saver.get_tuple(at("t"))
        assert "is lost: the object" in saver.moving.copy_to(target).failed["t"]
    with SqliteSaver(path, encryption=KEYRING) as saver, MemorySaver() as target, pytest.raises(BlobsMissing):
        saver.moving.copy_to(target)


@pytest.mark.parametrize("is_away", [True, False])
@each_keyring
def test_a_copy_to_another_store_contains_no_references(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], keyring: Keyring | None, is_away: bool
) -> None:
    path = tmp_path / "keel.db"
    options: dict[str, Any] = {} if keyring is None else {"encryption": keyring}
    with SqliteSaver(path, **blobs, **options) as saver:
        put = put_images(saver, 2, writes=False)
    with MemorySaver() as target:
        if is_away:  # the directory is not mounted for a while
            objects.rename(tmp_path / "away")
            with SqliteSaver(path, **blobs, **options) as saver, pytest.raises(StoreUnavailable, match="mounted"):
                saver.moving.copy_to(target)
            (tmp_path / "away").rename(objects)
        else:
            with SqliteSaver(path, **options) as saver, pytest.raises(BlobsMissing):
                saver.moving.copy_to(target)
        assert not [*target.threads()]
        with SqliteSaver(path, **blobs, **options) as saver:
            assert saver.moving.copy_to(target).is_done
        assert messages_of(target) == put


def test_the_name_of_the_folder_of_objects_is_not_copied(tmp_path: Path, blobs: dict[str, Any]) -> None:
    path = tmp_path / "keel.db"
    with SqliteSaver(path, **blobs) as saver:
        put_images(saver, 1)
        saver.delete_thread("t")
    with SqliteSaver(path) as saver, MemorySaver() as target:  # two stores of one name would sweep each other's objects
        saver.moving.copy_to(target)
        store = target.engine.session.store
        assert "blobs" not in target.engine.run(store.list_kinds(None))


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("is_away", [True, False])
def test_a_migration_without_the_objects_is_refused(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], is_away: bool, writes: bool
) -> None:
    path = tmp_path / "keel.db"
    migrating: dict[str, Any] = {"encryption": Keyring(LocalKey("k1", bytes(range(32))), migrate=True)}
    with SqliteSaver(path, **blobs) as saver:
        put = put_images(saver, 2, writes=writes)
    if is_away:  # the directory is not mounted for a while
        objects.rename(tmp_path / "away")
        with SqliteSaver(path, **blobs, **migrating) as saver, pytest.raises(StoreUnavailable, match="mounted"):
            saver.keys.migrate()
        (tmp_path / "away").rename(objects)
    else:
        with SqliteSaver(path, **migrating) as saver, pytest.raises(BlobsMissing):
            saver.keys.migrate()
    with SqliteSaver(path, **blobs, **migrating) as saver:
        assert messages_of(saver) == put
        assert saver.keys.migrate().is_done
    with SqliteSaver(path, **blobs, encryption=KEYRING) as saver:
        assert messages_of(saver) == put


@pytest.mark.parametrize(
    "blobs",
    [
        "s3://AKIAIDENTITY:very-secret@bucket/prefix",
        "s3://very-secret@bucket/prefix",
        "s3://bucket/prefix?secret_access_key=very-secret",
        "az://account/container?sig=very-secret",
        "https://user:very-secret@host/bucket",
        "s3://",
        "s3:///very-secret",
        "file:",
        "/var/agent-blobs",
        "",
        7,
        b"s3://bucket",
        object,
    ],
)
def test_an_invalid_blobs_option_is_refused_and_not_shown(blobs: Any) -> None:
    with pytest.raises(InvalidInput) as told:
        MemorySaver(blobs=blobs)
    assert "very-secret" not in f"{told.value!r}{told.value.__cause__!r}{told.value.__context__!r}"
    assert "blobs" in str(told.value)


@pytest.mark.parametrize("limit", [0, -1, LEAST - 1, "64k", 1e9, None, True])
def test_an_invalid_blob_limit_is_refused(limit: Any, blobs: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="blob_limit"):
        MemorySaver(**blobs, blob_limit=limit)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is not a directory"):
        MemorySaver(blobs=f"file:{tmp_path}/file")


def test_the_directory_is_accessible_only_to_its_owner(saver: KeelSaver, objects: Path) -> None:
    put_images(saver, 1)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in objects.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in [objects, *objects.rglob("*")] if path.is_dir()}
    assert (modes, folders) == ({0o600}, {0o700})


@pytest.mark.slow
def test_objects_are_synced_before_their_rows(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    """By system calls: file, name and folder are synced before SQLite's log."""
    code = KILLED.replace("left = int(sys.argv[3])", "left = -1").replace('3, "t"', '1, "t"')
    tests = str(Path(__file__).parents[1])
    trace = tmp_path / "trace"
    calls = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2", "-o", str(trace)]
    words = [*calls, sys.executable, "-c", code, str(tmp_path / "keel.db"), blobs["blobs"], "0"]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": tests}, check=True)
    lines = [line for line in trace.read_text().splitlines() if str(tmp_path) in line]
    renamed = next(number for number, line in enumerate(lines) if "rename" in line and "objects" in line)
    assert any("fsync" in line and "objects" in line for line in lines[:renamed])
    after = [line for line in lines[renamed:] if "sync(" in line]
    until = next(number for number, line in enumerate(after) if "keel.db-wal" in line)
    synced = {
        line.partition("<")[2].partition(">")[0] for line in [*lines[:renamed], *after[:until]] if "sync(" in line
    }
    name, _ = objects_in(objects)
    assert {str(folder) for folder in (objects / name).parents if folder.is_relative_to(objects.parent)} <= synced
