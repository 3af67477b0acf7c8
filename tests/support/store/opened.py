"""Stores under test, opened several times by either face, with a test clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pytest
from langgraph.store.base import Op

from langgraph_keel import KeelStore
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.saver import KeelSaver
from langgraph_keel.testing.faults import Counter, with_tap
from support.savers import needing
from support.stores import MemoryUnderTest, SqliteUnderTest
from support.stores.files import FilesUnderTest
from support.stores.postgres import postgres_store
from support.stores.redis import redis_store

T = TypeVar("T")
START = 1_800_000_000_000_000
"""Microseconds since 1970 at which test clocks begin."""


class Clock:
    """The time that a test sets, in microseconds since 1970."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.now)


def with_clock(saver: KeelSaver, clock: Clock) -> KeelSaver:
    """Return a copy of a saver that has another clock."""
    return with_engine(saver, replace(saver.engine, session=replace(saver.engine.session, clock=clock)))


class Asked:
    """A store that is used by one face.

    All asynchronous calls wait in one loop, that of `opened`.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, store: KeelStore, face: str) -> None:
        self.store, self.face = store, face

    def batch(self, ops: Sequence[Op]) -> list[Any]:
        return self._ask(self.store.batch, self.store.abatch, ops)

    def put(self, *args: Any, **options: Any) -> None:
        return self._ask(self.store.put, self.store.aput, *args, **options)

    def get(self, *args: Any, **options: Any) -> Any:
        return self._ask(self.store.get, self.store.aget, *args, **options)

    def delete(self, *args: Any) -> None:
        return self._ask(self.store.delete, self.store.adelete, *args)

    def search(self, *args: Any, **options: Any) -> list[Any]:
        return self._ask(self.store.search, self.store.asearch, *args, **options)

    def list_namespaces(self, **options: Any) -> list[tuple[str, ...]]:
        return self._ask(self.store.list_namespaces, self.store.alist_namespaces, **options)

    def sweep(self) -> int:
        return self._ask(self.store.sweep_ttl, self.store.asweep_ttl)

    def _ask(self, blocking: Callable[..., T], other: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
        if self.face == "sync":
            return blocking(*args, **options)

        async def ask() -> T:
            return await other(*args, **options)

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(120)


def counted(saver: KeelSaver) -> tuple[KeelStore, Counter]:
    """Return a store, and a function that counts its round trips."""
    counter = Counter()
    return with_tap(saver, counter).store(), counter


@contextmanager
def a_loop() -> Iterator[None]:
    """Run a loop in a thread."""
    Asked.loop = loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def opened(backend: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield an empty place of a backend, to be opened (`open`) and emptied (`wipe`)."""
    needing(backend, request)
    with a_loop(), _opened(backend, directory, request) as place:
        yield place


@contextmanager
def _opened(backend: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    if backend == "memory":
        yield MemoryUnderTest()
    elif backend == "postgres":
        with postgres_store(request.getfixturevalue("postgres_server").url) as store:
            yield store
    elif backend == "redis":
        with redis_store(request.getfixturevalue("redis_server").url) as store:
            yield store
    else:
        on_disk = (
            SqliteUnderTest(str(directory / "keel.db")) if backend == "sqlite" else FilesUnderTest(directory / "f")
        )
        with closing(on_disk) as store:
            yield store
