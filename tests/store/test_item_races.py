"""Concurrent item writes by threads and processes: none lost, distinct versions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest
from langgraph.store.base import PutOp
from support.places import Place
from support.savers import each_backend, each_face
from support.store.opened import Asked, opened

from langgraph_keel import KeelStore

FORK = get_context("fork")
WRITERS, ITEMS = 4, 20
SHARED = ("board", "all")


def write(store: Any, writer: int) -> None:
    """Write the writer's own keys, singly and in batches, and a shared key."""
    for n in range(ITEMS):
        store.put(("board", str(writer)), f"k{n}", {"n": n})
        store.put(SHARED, "k", {"writer": writer, "n": n})
        # In opposite orders: two transactions must not wait for each other.
        keys = [f"b{m}" for m in range(6)]
        store.batch([PutOp(SHARED, key, {"writer": writer}) for key in (keys if writer % 2 else keys[::-1])])


def check_written(store: KeelStore, created: Any) -> None:
    for writer in range(WRITERS):
        found = store.search(("board", str(writer)), limit=1000)
        assert {item.key: item.value["n"] for item in found} == {f"k{n}": n for n in range(ITEMS)}
    last = store.get(SHARED, "k")
    assert last
    assert last.created_at == created
    assert last.value["n"] == ITEMS - 1
    assert {item.key for item in store.search(SHARED)} == {"k", *(f"b{m}" for m in range(6))}
    assert store.list_namespaces() == sorted([*(("board", str(each)) for each in range(WRITERS)), SHARED])


def watch(store: KeelStore, stopped: Event) -> dict[Any, Any]:
    """Return each observed version of the shared key by its time, which is unique."""
    versions: dict[Any, Any] = {}
    while not stopped.is_set():
        item = store.get(SHARED, "k")
        assert item
        assert versions.setdefault(item.updated_at, item.value) == item.value
        assert item.updated_at == max(versions)
    return versions


@pytest.mark.slow
@each_backend
@each_face
def test_concurrent_writes_by_threads(backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with opened(backend, tmp_path, request) as place:
        first, barrier, stopped = place.open().store(), Barrier(WRITERS), Event()
        first.put(SHARED, "k", {"writer": None, "n": -1})
        created = first.get(SHARED, "k").created_at
        # Two of them share a store, and its cache of versions.
        stores = [place.open().store() for _ in range(WRITERS - 1)]
        stores.append(stores[0])

        def begin(writer: int) -> None:
            barrier.wait()
            write(Asked(stores[writer], face), writer)

        with ThreadPoolExecutor(WRITERS + 1) as pool:
            watched = pool.submit(watch, first, stopped)
            for each in [pool.submit(begin, writer) for writer in range(WRITERS)]:
                each.result(120)
            stopped.set()
            watched.result(30)
        check_written(first, created)


def begin_process(place: Place, writer: int, barrier: Any) -> None:
    with place.open() as saver:
        store = saver.store()
        barrier.wait(60)
        write(store, writer)


@pytest.mark.slow
def test_concurrent_writes_by_processes(place: Place) -> None:
    with place.open() as saver:
        store = saver.store()
        store.put(SHARED, "k", {"writer": None, "n": -1})
        item = store.get(SHARED, "k")
        assert item
    barrier = FORK.Barrier(WRITERS)
    children = [FORK.Process(target=begin_process, args=(place, each, barrier)) for each in range(WRITERS)]
    with ExitStack() as stack:
        for child in children:
            child.start()
            stack.callback(child.kill)
        for child in children:
            child.join(120)
        assert [child.exitcode for child in children] == [0] * WRITERS
    with place.open() as saver:
        check_written(saver.store(), item.created_at)


@each_backend
@each_face
def test_a_store_with_an_outdated_version_overwrites_the_latest(
    backend: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with opened(backend, tmp_path, request) as place:
        one, other = (Asked(place.open().store(), face) for _ in range(2))
        one.put(SHARED, "k", {"n": 1})
        made = other.get(SHARED, "k")
        one.put(SHARED, "k", {"n": 2})
        other.put(SHARED, "k", {"n": 3})
        one.delete(SHARED, "k")  # it knows the second version
        assert other.get(SHARED, "k") is None
        other.put(SHARED, "k", {"n": 4})  # it knows the third one
        again = one.get(SHARED, "k")
        assert again.value == {"n": 4}
        assert again.created_at == again.updated_at > made.updated_at
