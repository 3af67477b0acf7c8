"""Savers of ours that replace LangGraph's in tests that create or subclass one."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from langgraph.checkpoint import memory
from langgraph.checkpoint.base import BaseCheckpointSaver
from support.savers import redis_place

from langgraph_keel import FileSaver, MemorySaver, PostgresSaver, RedisSaver, SqliteSaver
from langgraph_keel.saver import KeelSaver
from upstream.schemas import Schemas

Place = AbstractContextManager[dict[str, Any]]

SCHEMAS = Schemas()
# The class of each backend, and its options for a separate store, at an unused path if it needs one.
BACKENDS: dict[str, tuple[type[KeelSaver], Callable[[Path], Place]]] = {
    "keel_memory": (MemorySaver, lambda _: nullcontext({})),
    "keel_sqlite": (SqliteSaver, lambda path: nullcontext({"path": path})),
    "keel_sqlite-memory": (SqliteSaver, lambda _: nullcontext({"path": ":memory:"})),
    "keel_files": (FileSaver, lambda path: nullcontext({"root": path})),
    "keel_postgres": (PostgresSaver, lambda _: SCHEMAS.place()),
    "keel_redis": (RedisSaver, lambda _: redis_place()),
}


class Stores:
    """The stores of the stand-ins of one test, which are closed when it ends."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._numbers = count()
        self._opened = ExitStack()
        self.made = 0

    @contextmanager
    def of_a_test(self, directory: Path) -> Iterator[None]:
        self._directory, self.made = directory, 0
        try:
            with self._opened:
                yield
        finally:
            self._directory = None

    def place(self, place: Callable[[Path], Place]) -> dict[str, Any]:
        assert self._directory, "an InMemorySaver was made outside of a test that was found to make one"
        self.made += 1
        return self._opened.enter_context(place(self._directory / f"saver {next(self._numbers)}"))

    def close_later(self, saver: KeelSaver) -> None:
        self._opened.callback(saver.close)


def stand_in(name: str, stores: Stores, wrap: Callable[[Any], Any]) -> type[KeelSaver]:
    """Return the class that replaces InMemorySaver.

    `wrap` is called with each new saver.
    """
    backend, place = BACKENDS[name]

    class Walking(backend):  # type: ignore[misc, valid-type]
        """A test calls the methods of the class that follows InMemorySaver in its MRO."""

        get_delta_channel_history = BaseCheckpointSaver.get_delta_channel_history
        aget_delta_channel_history = BaseCheckpointSaver.aget_delta_channel_history

    class InMemorySaver(Walking):
        get_delta_channel_history = backend.get_delta_channel_history
        aget_delta_channel_history = backend.aget_delta_channel_history

        def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
            """`factory` creates the dictionaries of LangGraph's own saver, and is ignored."""
            super().__init__(**stores.place(place), serde=serde)
            stores.close_later(self)
            if serde is None:
                wrap(self)

    return InMemorySaver


def counted(cls: type[KeelSaver], stores: Stores) -> type[KeelSaver]:
    """Return a replacement for LangGraph's saver, on the database that the test names."""

    class Counted(cls):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            stores.made += 1

    return Counted


DATABASES = (
    ("langgraph.checkpoint.sqlite", "SqliteSaver", SqliteSaver),
    ("langgraph.checkpoint.sqlite.aio", "AsyncSqliteSaver", SqliteSaver),
    ("langgraph.checkpoint.postgres", "PostgresSaver", PostgresSaver),
    ("langgraph.checkpoint.postgres.aio", "AsyncPostgresSaver", PostgresSaver),
)
NAMES = {"InMemorySaver", "MemorySaver", *(name for _, name, _ in DATABASES)}


def put_in_place(cls: type, stores: Stores) -> None:
    """Replace the savers for all modules that are imported from now on."""
    memory.InMemorySaver = memory.MemorySaver = cls  # type: ignore[assignment, misc]
    for module, name, ours in DATABASES:
        setattr(importlib.import_module(module), name, counted(ours, stores))


def names(thing: Any, cls: type, seen: set[int] | None = None) -> bool:
    """Return whether test code refers to `cls` or to LangGraph's savers.

    References through other test code count, too.
    """
    seen = set() if seen is None else seen
    thing = getattr(thing, "__func__", thing)
    if id(thing) in seen or (isinstance(thing, type) and issubclass(thing, cls)):
        return isinstance(thing, type) and issubclass(thing, cls)
    seen.add(id(thing))
    if not str(getattr(thing, "__module__", "")).startswith("tests."):
        return False
    if isinstance(thing, type):
        return any(names(part, cls, seen) for part in vars(thing).values())
    if not isinstance(thing, types.FunctionType):
        return False
    cells = [cell.cell_contents for cell in thing.__closure__ or ()]
    words = set(_names_in(thing.__code__))
    others = [thing.__globals__.get(name) for name in words]
    return bool(words & NAMES) or any(names(other, cls, seen) for other in (*cells, *others))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in(inner)
