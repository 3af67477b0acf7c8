"""Copying a hostile store: only data of the requested threads is copied."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.moving import hostile_places
from support.moving.hostile_stores import COMPUTED, COSTS_THE_THREAD, EVIL, GOOD, IN_A_TENANT, fill, write_hostile
from support.places import Place
from support.tiers import BACKENDS

from langgraph_keel import CorruptStore, KeelSaver, MemorySaver, Retention, SqliteSaver
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import raw_frame
from langgraph_keel.testing.rig import at, checkpoint_of


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


def ids(saver: Any) -> set[str]:
    return {info.thread_id for info in saver.threads()}


@pytest.mark.parametrize("what", COSTS_THE_THREAD)
def test_a_thread_edited_by_sql_fails_alone(tmp_path: Path, what: str) -> None:
    write_hostile(tmp_path / "hostile.db", COSTS_THE_THREAD[what])
    with SqliteSaver(tmp_path / "hostile.db", read_only=True) as source, MemorySaver() as target:
        copy_and_check(source, target)


def copy_and_check(source: KeelSaver, target: KeelSaver) -> None:
    """Copy a store with an edited thread, which is skipped or reported as damaged.

    The other threads are copied.
    """
    report = source.moving.copy_to(target)
    assert report.failed, report.to_dict()
    assert not report.is_done
    json.dumps(report.to_dict())
    assert set(GOOD) <= ids(target)
    assert target.tenants.list() == []
    for thread_id in GOOD:
        assert [found.checkpoint["channel_values"]["n"] for found in target.list(at(thread_id))] == [2, 1, 0]
    asked = [request.thread_id for request in target.approvals.pending()]
    assert sorted(set(asked) - {EVIL}) == [*GOOD]
    assert len(asked) <= 3


@pytest.mark.parametrize(("place", "what"), hostile_places.COSTS_THE_THREAD, indirect=["place"])
def test_a_thread_edited_on_another_backend_fails_alone(place: Place, what: str) -> None:
    with place.open() as saver:
        fill(saver)
    hostile_places.COSTS_THE_THREAD[place.kind, what](place)
    with place.open(read_only=True) as source, MemorySaver() as target:
        copy_and_check(source, target)


@pytest.mark.parametrize("place", ["files", "postgres", "redis"], indirect=True)
def test_cyclic_parents_are_copied_and_read(place: Place) -> None:
    with place.open() as saver:
        fill(saver)
    hostile_places.CIRCLE(place)
    with place.open(read_only=True) as source, MemorySaver() as target:
        assert source.moving.copy_to(target).copied == 3
        for saver in (source, target):
            assert len(list(saver.list(at(EVIL)))) == len(saver.timeline(EVIL)) == 3
            saver.get_delta_channel_history(config=at(EVIL), channels=["list"])


def test_a_thread_named_like_one_of_a_tenant_is_not_copied(tmp_path: Path) -> None:
    write_hostile(tmp_path / "hostile.db", IN_A_TENANT)
    with SqliteSaver(tmp_path / "hostile.db", read_only=True) as source, SqliteSaver(tmp_path / "new.db") as target:
        assert "tenants" in source.moving.copy_to(target).left
        assert (ids(target), target.tenants.list()) == ({*GOOD}, [])


@pytest.mark.parametrize("what", COMPUTED)
def test_a_store_with_views_or_computed_columns_is_refused(tmp_path: Path, what: str) -> None:
    write_hostile(tmp_path / "hostile.db", COMPUTED[what])
    for read_only in (True, False):
        with (
            pytest.raises(CorruptStore, match="is a view or has computed columns"),
            SqliteSaver(tmp_path / "hostile.db", read_only=read_only) as source,
        ):
            source.moving.copy_to(MemorySaver())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", ["marks = x'61'", "rank = x'61'", "rank = 'a'", "rank = 1.5", "rank = -5"])
def test_a_shared_cell_with_a_field_of_the_wrong_type_is_not_copied(store: Any, change: str, tmp_path: Path) -> None:
    """Columns of SQLite have no types."""
    with SqliteSaver(tmp_path / "hostile.db") as source:
        fill(source)
        source.store().put(("likes",), "seat", {"text": "window"})
    with sqlite3.connect(tmp_path / "hostile.db") as connection:
        ranked = "rank IS NOT NULL AND shelf IN (SELECT id FROM shelves WHERE kind LIKE '%item%')"
        assert connection.execute(f"UPDATE cells SET {change} WHERE {ranked}").rowcount == 1
    with SqliteSaver(tmp_path / "hostile.db", read_only=True) as source, store.open() as target:
        report = source.moving.copy_to(target, shared=True)
        assert not report.is_done
        assert re.search(
            "has the rank .*, which is not a time|has the marks .*, which are not texts", report.failed[""]
        )
        assert set(GOOD) <= ids(target)
        assert target.store().search(()) == []


def plant(saver: Any) -> None:
    """Add shared records that affect other threads, in the name of the copied thread."""
    saver.put(at(EVIL), checkpoint_of("1", {"x": 1}, channel_versions={"x": 1}), {}, {"x": 1})
    saver.retention.set_policy(Retention(ttl=1))
    for kind in ("keyring", "secret", "cache", "tool", "retention", "later"):
        key = "policies" if kind == "retention" else "data"
        engine, shelf = saver.engine, Shelf(None, kind)
        store = engine.session.store
        there = engine.run(store.read_cells(shelf, [key])).get(key)
        cell = there or Cell("f" * 32, raw_frame(b"\x91\x00"), raw_frame(b"\x90"))
        planted = Cell("e" * 32, cell.header, cell.body, EVIL)
        assert engine.run(store.swap_cell(shelf, key, there and there.token, planted)).done


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_shared_records_are_copied_only_on_request(store: Any, backend: str, face: str) -> None:
    with MemorySaver() as target:
        target.put(at("precious"), checkpoint_of("1", {}), {}, {})  # type: ignore[arg-type]
        async with store.open() as source:
            plant(source)
            copied = (
                source.moving.copy_to(target, [EVIL])
                if face == "sync"
                else await source.moving.acopy_to(target, [EVIL])
            )
        assert copied.copied == 1
        assert copied.left == ["cache", "later", "retention", "secret", "tool"]
        assert target.retention.policies() == ()
        engine = target.engine
        assert set(engine.run(engine.session.store.list_kinds(None))) <= {"copied"}
        target.retention.sweep()
        assert ids(target) == {"precious", EVIL}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_keyring_is_never_copied(store: Any, backend: str) -> None:
    with store.open() as source, MemorySaver() as target:
        plant(source)
        source.moving.copy_to(target, shared=True)
        engine = target.engine
        assert "keyring" not in engine.run(engine.session.store.list_kinds(None))
        assert target.retention.policies() == (Retention(ttl=1),)  # the requested policy


@pytest.mark.parametrize("backend", BACKENDS)
def test_tenants_are_copied_only_on_request(store: Any, backend: str) -> None:
    with store.open() as source, MemorySaver() as target:
        for saver in (source, source.for_tenant("acme")):
            saver.put(at(), checkpoint_of("1", {}), {}, {})
        report = source.moving.copy_to(target)
        assert (report.copied, report.left, target.tenants.list()) == (1, ["tenants"], [])
        assert source.moving.copy_to(target, shared=True).copied == 1
        assert target.tenants.list() == ["acme"]
