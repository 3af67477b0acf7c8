"""Copies with objects are complete or refused, despite concurrent removals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.blobs.threads import image, messages_of, objects_in, put_images
from support.savers import each_backend

from langgraph_keel import (
    BlobsMissing,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    SqliteSaver,
    StoreBusy,
    TieredSaver,
)
from langgraph_keel.blobs.objects import Ask, CopyObjects
from langgraph_keel.blobs.store import GRACE, LEAST
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Graph
from langgraph_keel.testing.faults import Meanwhile, Tap, with_tap
from langgraph_keel.testing.rig import at, checkpoint_of


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def blobs(objects: Path) -> dict[str, Any]:
    return {"blobs": f"file:{objects}"}


def lost_in(saver: KeelSaver) -> list[str]:
    """The findings of a check of all values."""
    return [finding.message for finding in saver.check() if finding.kind != "harmless"]


# -- without blobs= ----------------------------------------------------------------------------------------------------


@each_backend
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_copy_by_a_saver_without_the_objects_is_refused(
    stores: Any, backend: str, objects: Path, blobs: dict[str, Any], tenant: str | None
) -> None:
    def of(saver: KeelSaver) -> KeelSaver:
        return saver if tenant is None else saver.for_tenant(tenant)

    store = stores[backend]
    store.wipe()
    with store.open(**blobs) as saver:
        put = put_images(of(saver), 2)
    names = objects_in(objects)
    with store.open() as saver:
        for change in (
            lambda: of(saver).copy_thread("t", "u"),
            lambda: of(saver).fork(at("t", "", "00000001"), "u"),
            lambda: of(saver).fork(at("t"), "u"),
        ):
            with pytest.raises(BlobsMissing, match=r"of thread 't' would not have: open it with blobs="):
                change()
        assert not of(saver).raw.get_tuple(at("u"))
    with store.open(**blobs) as saver:
        assert objects_in(objects) == names
        of(saver).copy_thread("t", "u")
        of(saver).delete_thread("t")
        assert messages_of(of(saver), "u") == put


# -- concurrent removals -----------------------------------------------------------------------------------------------


class Steps:
    """A plan that is executed a few requests at a time."""

    def __init__(self, saver: KeelSaver, plan: Plan[Any]) -> None:
        self._driver, self._plan = saver.engine.driver, plan
        self._request: Any = next(plan)
        self.is_over = False

    def go(self, requests: int | None = None) -> None:
        """Execute this many requests, or all."""
        for _ in count() if requests is None else range(requests):
            if self.is_over:
                return
            try:
                reply = self._driver.send(self._request)
                self._request = self._plan.send(reply)
            except (StopIteration, StoreBusy):
                self.is_over = True


@pytest.fixture
def removals(objects: Path) -> dict[str, Callable[[KeelSaver], Plan[Any]]]:
    """Plans that remove objects of `u`, a copy of `t` or a rest of a failed copy."""

    def delete(saver: KeelSaver) -> Plan[Any]:
        saver.copy_thread("t", "u")
        return saver.engine.session.store.delete_thread("u")

    def leave_objects(saver: KeelSaver) -> str:
        """Return the folder of a copy that was cut off an hour ago, before it had rows."""
        store = saver.engine.session.store
        plan = store.copy_thread("t", "u")
        reply = None
        while not (isinstance(asked := plan.send(reply), Ask) and isinstance(request := asked.request, CopyObjects)):
            reply = saver.engine.driver.send(asked)
        saver.engine.driver.send(asked)
        for name in set(request.names.values()):
            os.unlink(objects / name)  # it is the same file as the source's
            (objects / name).write_bytes(b"cut off")
            os.utime(objects / name, (0, 0))
        (name, *_) = request.names.values()
        return name.split("/")[1]

    def sweep(saver: KeelSaver) -> Plan[Any]:
        leave_objects(saver)
        return saver.engine.session.store.remove_rows("u", {}, Graph([], {}, None))

    def remove_strays(saver: KeelSaver) -> Plan[Any]:
        return saver.engine.session.store.delete_thread(f"\x1fobjects/{leave_objects(saver)}")

    return {"delete": delete, "sweep": sweep, "strays": remove_strays}


@pytest.mark.slow
@pytest.mark.parametrize("removal", ["delete", "sweep", "strays"])
def test_a_copy_loses_nothing_to_a_concurrent_removal(
    blobs: dict[str, Any], removals: dict[str, Any], removal: str
) -> None:
    """All orders: part of the removal, of the copy, of the removal; the rest of both."""
    most, is_over = 0, False
    for before in count():
        for between in count():
            for then in count():
                with MemorySaver(**blobs, blob_limit=LEAST) as saver:
                    saver.put(at("t"), checkpoint_of("1", {"messages": [image(1, 2000)]}), {}, {"messages": "1"})  # type: ignore[arg-type]
                    put = messages_of(saver)
                    removing = Steps(saver, removals[removal](saver))
                    copying = Steps(saver, saver.engine.session.store.copy_thread("t", "u"))
                    removing.go(before)
                    is_over = removing.is_over
                    copying.go(between)
                    is_copied = copying.is_over
                    removing.go(then)
                    is_last = removing.is_over
                    copying.go()
                    removing.go()
                    assert lost_in(saver) == [], (before, between, then)
                    assert messages_of(saver) == put
                    assert messages_of(saver, "u") in (None, put)
                    if is_over:
                        assert messages_of(saver, "u") == put
                if is_last:
                    break
            most = max(most, between)
            if is_copied:
                break
        if is_over:
            break
    assert before > 3
    assert most > 6


def test_a_copy_has_the_first_object_of_a_store_despite_a_concurrent_put(tmp_path: Path, blobs: dict[str, Any]) -> None:
    for moment in count():
        path = tmp_path / f"{moment}.db"
        with SqliteSaver(path, **blobs) as saver, SqliteSaver(path, **blobs) as other:
            config = saver.put(at("t"), checkpoint_of("1", {"messages": []}), {}, {})  # type: ignore[arg-type]
            checkpoint: Any = checkpoint_of("2", {"messages": [image(1)]})
            tap = Meanwhile(moment, lambda: other.put(config, checkpoint, {}, {}))  # noqa: B023
            with_tap(saver, tap).copy_thread("t", "u")
        if not tap.happened:
            assert moment > 2
            return
        with SqliteSaver(path, **blobs) as saver:
            saver.delete_thread("t")
            assert messages_of(saver, "u") in ([], [image(1)])


def make_marks_old(objects: Path) -> None:
    """Make the marks of a running removal an hour old."""
    for path in objects.glob("*/*/removing-*"):
        os.utime(path, (0, 0))


def test_a_refused_copy_is_undone_and_can_be_repeated(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    """A process died while it deleted the old thread; its mark is valid for an hour."""
    with SqliteSaver(tmp_path / "keel.db", **blobs) as saver:
        put = put_images(saver, 2)
        saver.copy_thread("t", "u")
        plan: Any = saver.engine.session.store.delete_thread("u")
        reply = None
        while saver.get_tuple(at("u")):
            reply = saver.engine.driver.send(plan.send(reply))
        with pytest.raises(StoreBusy, match=r"thread 'u': .* still being removed: copy 't' again"):
            saver.copy_thread("t", "u")
        assert saver.get_tuple(at("u")) is None
        make_marks_old(objects)
        saver.copy_thread("t", "u")
        assert messages_of(saver, "u") == put
        saver.delete_thread("u")
        saver.delete_thread("t")
        assert objects_in(objects) == []


def test_a_suspended_delete_removes_no_object_of_a_later_copy(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delete continues after an hour, when its mark is no longer valid for copies."""
    path = tmp_path / "keel.db"
    with SqliteSaver(path, **blobs) as saver, SqliteSaver(path, **blobs) as other:
        put = put_images(saver, 1, writes=False)
        saver.copy_thread("t", "u")
        now = [int(time.time() * 1000)]
        monkeypatch.setattr(saver.engine.session.store, "_clock", lambda: now[0])

        class Sleep(Tap):
            def replied(self, request: Any, reply: Any) -> None:
                if other.get_tuple(at("u")) is None:
                    now[0] += GRACE
                    make_marks_old(objects)
                    other.copy_thread("t", "u")

        with_tap(saver, Sleep()).delete_thread("u")
    with SqliteSaver(path, **blobs) as saver:
        assert messages_of(saver, "u") == put


# -- with other features -----------------------------------------------------------------------------------------------


@pytest.fixture
def hidden() -> Keyring:
    return Keyring(LocalKey("k1", bytes(range(32))), hide_names=True)


def test_copies_in_and_of_a_store_with_hidden_names(
    tmp_path: Path, objects: Path, blobs: dict[str, Any], hidden: Keyring
) -> None:
    with SqliteSaver(tmp_path / "keel.db", **blobs, encryption=hidden) as saver, MemorySaver() as target:
        put = put_images(saver, 2)
        saver.copy_thread("t", "u")
        saver.fork(at("t", "", "00000001"), "v")
        assert saver.moving.copy_to(target).is_done
        saver.prune(["t"])
        saver.delete_thread("t")
        for each in (saver, target):
            assert messages_of(each, "u") == put
            assert messages_of(each, "v") == put[:1]
        assert not lost_in(saver)
        saver.delete_thread("u")
        saver.delete_thread("v")
        assert objects_in(objects) == []
    with SqliteSaver(tmp_path / "keel.db", encryption=hidden) as saver, pytest.raises(BlobsMissing):
        saver.copy_thread("t", "u")


def test_tiers_share_references_to_objects(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    hot, cold = MemorySaver(), SqliteSaver(tmp_path / "cold.db")
    with TieredSaver(hot=hot, cold=cold, **blobs) as saver:
        put = put_images(saver, 2)
        saver.copy_thread("t", "u")
        saver.fork(at("t", "", "00000001"), "v")
        saver.prune(["t"])
        assert [messages_of(saver, name) for name in "tuv"] == [put, put, put[:1]]
        saver.delete_thread("t")
        assert [messages_of(saver, name) for name in "tuv"] == [None, put, put[:1]]
    with SqliteSaver(tmp_path / "cold.db", **blobs) as saver:
        assert messages_of(saver, "u") == put
        assert not lost_in(saver)
        saver.delete_thread("u")
        saver.delete_thread("v")
    assert objects_in(objects) == []


def test_values_that_move_in_are_stored_in_objects(tmp_path: Path, objects: Path, blobs: dict[str, Any]) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver as OldSaver

    old = tmp_path / "old.db"
    with OldSaver.from_conn_string(str(old)) as saver:
        for thread in ("t", "other"):
            checkpoint: Any = {**checkpoint_of("1", {"messages": [image(1)]}), "channel_versions": {"messages": 1}}
            config = saver.put(at(thread), checkpoint, {}, {"messages": 1})
            saver.put_writes(config, [("messages", [image(2)])], "task")
    with SqliteSaver(tmp_path / "new.db", **blobs, moving_from=str(old)) as saver:
        assert messages_of(saver) == [image(1)]
        assert len(objects_in(objects)) == 2
        saver.copy_thread("other", "copy")
        saver.delete_thread("other")
        assert messages_of(saver, "copy") == [image(1)]
        assert not lost_in(saver)
        saver.delete_thread("copy")
        saver.delete_thread("t")
        assert saver.get_tuple(at()) is None
        assert objects_in(objects) == []


def test_a_copy_does_not_take_a_folder_of_objects_for_a_thread(
    tmp_path: Path, objects: Path, blobs: dict[str, Any]
) -> None:
    with SqliteSaver(tmp_path / "keel.db", **blobs) as saver, MemorySaver() as target:
        put_images(saver, 1)
        name = objects_in(objects)[0]
        saver.put(at("u"), checkpoint_of("1", {}), {}, {})  # type: ignore[arg-type]
        (objects / name.split("/")[0] / ("0" * 32)).mkdir()
        (objects / name.split("/")[0] / ("0" * 32) / "left-over").write_bytes(b"")
        report = saver.moving.copy_to(target)
        assert (report.copied, report.gone, report.is_done) == (2, [], True)
        saver.delete_thread("u")
        assert saver.moving.copy_to(target).gone == ["u"]
