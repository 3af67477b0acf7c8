"""The rig of the contract: a backend behind a face, and an author of checkpoints.

A face calls a saver, blocking or asynchronously. It requests its saver for every call, so a test can use a new saver
each time (with an empty memo, as in another process). Ids and times are counters.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory
from pydantic import BaseModel

from langgraph_keel import StateDiff
from langgraph_keel.saver import KeelSaver

T = TypeVar("T")
Opener = Callable[[], KeelSaver]

_PLAIN = frozenset({type(None), bool, int, float, bytes})


class Face(ABC):
    """The methods of `KeelSaver`, called on the saver that `opener` returns."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @property
    def saver(self) -> KeelSaver:
        """The saver of the next call."""
        return self._opener()

    @abstractmethod
    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its sync name."""

    @abstractmethod
    def verb(self, name: str, *args: Any) -> Any:
        """Call a verb of the store, for behaviour that no method of the saver exposes."""

    @abstractmethod
    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        """Do the same as `KeelSaver.list`. Closing the generator abandons the listing."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        new_versions: Mapping[str, Any] | None = None,
    ) -> RunnableConfig:
        kept = cast(CheckpointMetadata, metadata or {})
        stored = self._call("put", config, cast(Checkpoint, checkpoint), kept, dict(new_versions or {}))
        return cast(RunnableConfig, stored)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._call("put_writes", config, writes, task_id, task_path)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return cast("CheckpointTuple | None", self._call("get_tuple", config))

    def read(self, config: RunnableConfig) -> CheckpointTuple:
        """Return a checkpoint that must exist."""
        found = self.get_tuple(config)
        assert found is not None, f"there is no checkpoint at {config}"
        return found

    def delta_history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        history = self._call("get_delta_channel_history", config=config, channels=channels)
        return cast(Mapping[str, DeltaChannelHistory], history)

    def delete_thread(self, thread_id: str) -> None:
        self._call("delete_thread", thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._call("delete_for_runs", run_ids)

    def copy_thread(self, source: str, target: str) -> None:
        self._call("copy_thread", source, target)

    def diff(self, before: RunnableConfig, after: RunnableConfig) -> StateDiff:
        return cast(StateDiff, self._call("diff", before, after))

    def rewind(self, config: RunnableConfig) -> RunnableConfig:
        return cast(RunnableConfig, self._call("rewind", config))

    def fork(self, config: RunnableConfig, thread_id: str | None = None) -> RunnableConfig:
        return cast(RunnableConfig, self._call("fork", config, thread_id))

    def prune(self, thread_ids: Sequence[str], strategy: str = "keep_latest") -> None:
        self._call("prune", thread_ids, strategy=strategy)

    @abstractmethod
    def close(self) -> None:
        """Release the face's own resources. The saver stays open."""


class SyncFace(Face):
    """The blocking methods."""

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.saver, name)(*args, **kwargs)

    def verb(self, name: str, *args: Any) -> Any:
        engine = self.saver.engine
        return engine.run(getattr(engine.session.store, name)(*args))

    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        listing = cast(Generator[CheckpointTuple, None, None], self.saver.list(config, **options))
        try:
            yield from listing
        finally:
            listing.close()

    def close(self) -> None:
        """Do nothing."""


class AsyncFace(Face):
    """The async methods, each run to its end on the face's own loop."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener)
        # Not asyncio.Runner, which for each call passes the task to the signal module; its repr would format the state.
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on this face's loop."""
        return self._loop.run_until_complete(coroutine)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.run(getattr(self.saver, f"a{name}")(*args, **kwargs))

    def verb(self, name: str, *args: Any) -> Any:
        engine = self.saver.engine
        return self.run(engine.arun(getattr(engine.session.store, name)(*args)))

    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        listing = cast(AsyncGenerator[CheckpointTuple, None], self.saver.alist(config, **options))
        try:
            while (found := self._loop.run_until_complete(anext(listing, None))) is not None:
                yield found
        finally:
            self._loop.run_until_complete(listing.aclose())

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


FACES: Mapping[str, type[Face]] = {"sync": SyncFace, "async": AsyncFace}


class StoreUnderTest(Protocol):
    """The interface that the author of a backend implements.

    The backend closes its own resources.
    """

    def open(self, **options: Any) -> KeelSaver:
        """Return a new saver with an empty memo, on the same stored data.

        `options` as for `KeelSaver`.
        """
        ...

    def wipe(self) -> None:
        """Delete all stored data. Open savers may continue to write to the empty store."""
        ...

    def raw(self) -> bytes:
        """Return all live data, read directly: names, headers, rows and writes, joined."""
        ...


def at(thread: Any = "t", ns: str | None = "", checkpoint_id: str | None = None) -> RunnableConfig:
    """Return a hand-made config.

    It does not continue a run, so writing with it never conflicts.
    """
    values: dict[str, Any] = {"thread_id": thread}
    if ns is not None:
        values["checkpoint_ns"] = ns
    if checkpoint_id is not None:
        values["checkpoint_id"] = checkpoint_id
    return cast(RunnableConfig, {"configurable": values})


def checkpoint_of(checkpoint_id: str, values: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a checkpoint in the current format."""
    versions = dict.fromkeys(values, 1)
    return {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
        **changes,
    }


def id_of(found: CheckpointTuple | RunnableConfig | None) -> str | None:
    """Return the checkpoint id in a tuple or config."""
    if found is None:
        return None
    config = found.config if isinstance(found, CheckpointTuple) else found
    return cast("str | None", config["configurable"].get("checkpoint_id"))


def values_of(found: CheckpointTuple) -> dict[str, Any]:
    """Return the channel values of a tuple."""
    return found.checkpoint["channel_values"]


def exact(value: Any) -> Any:
    """Return a form of a value that compares types, key order, and the sign of zero."""
    kind = type(value)
    # The usual types first, and no call for a text: comparing whole histories took two fifths of the time in memory.
    if kind is str:
        return value
    if kind in _PLAIN:
        return kind.__name__, repr(value)
    if kind is dict or isinstance(value, Mapping):
        return kind.__name__, [
            (key if type(key) is str else exact(key), part if type(part) is str else exact(part))
            for key, part in value.items()
        ]
    if isinstance(value, (list, tuple)):
        return kind.__name__, [part if type(part) is str else exact(part) for part in value]
    if isinstance(value, str):
        # A thread id that remembers how it was read is a str in every respect.
        return str(value)
    if isinstance(value, (set, frozenset)):
        return kind.__name__, sorted(map(repr, map(exact, value)))
    if isinstance(value, BaseModel):
        return kind.__name__, exact(vars(value))
    return kind.__name__, repr(value)


class Author:
    """Writes checkpoints in sequence, each based on the one before it, like a run.

    Args:
        face: The face to write with.
        config: The start; a config from `get_tuple` continues that checkpoint like a run.
        ids: The ids to use, by default the rig's.
    """

    def __init__(self, face: Face, config: RunnableConfig, ids: Iterator[str]) -> None:
        self.face = face
        self.config = config
        self._ids = ids
        self._step = count(-1)

    def put(
        self,
        values: Mapping[str, Any],
        *,
        checkpoint_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        written: Sequence[str] | None = None,
        **changes: Any,
    ) -> RunnableConfig:
        """Put the next checkpoint; return its config.

        Other keys of the run's config stay, as in LangGraph.

        The channels in `written` get new versions; by default all channels that have a version.
        """
        step = next(self._step)
        checkpoint = checkpoint_of(checkpoint_id or next(self._ids), values, **changes)
        kept = {"source": "loop", "step": step, "parents": {}, **(metadata or {})}
        versions = checkpoint["channel_versions"]
        new = versions if written is None else {name: versions[name] for name in written}
        stored = self.face.put(self.config, checkpoint, kept, new)
        configurable = {**self.config["configurable"], "checkpoint_id": checkpoint["id"]}
        self.config = cast(RunnableConfig, {**self.config, "configurable": configurable})
        return stored

    def follow(self, versions: Sequence[Mapping[str, Any]]) -> list[RunnableConfig]:
        """Put one checkpoint for each version; return their configs."""
        return [self.put(values) for values in versions]


class Rig:
    """A backend with one face.

    Args:
        backend: The backend under test.
        kind: The kind of face.
        cold: Whether every call uses a new saver.
    """

    def __init__(self, backend: StoreUnderTest, kind: type[Face], cold: bool = False) -> None:
        self.backend = backend
        self._kind = kind
        self._opened: list[Face] = []
        self.ids = (f"{number:08}" for number in count(1))
        self.face = self.through(backend.open) if cold else self.open()

    def through(self, opener: Any) -> Face:
        """Return a face on the savers that `opener` returns."""
        face = self._kind(opener)
        self._opened.append(face)
        return face

    def on(self, saver: KeelSaver) -> Face:
        """Return a face on one saver."""
        return self.through(lambda: saver)

    def open(self, **options: Any) -> Face:
        """Return a face on a new saver with its own memo, as in another process."""
        return self.on(self.backend.open(**options))

    def author(self, thread: Any = "t", ns: str = "", face: Face | None = None) -> Author:
        """Return an author at the start of a thread."""
        return Author(face or self.face, at(thread, ns), self.ids)

    def continuing(self, config: RunnableConfig, face: Face | None = None) -> Author:
        """Return an author who continues the checkpoint of `config`, like a run."""
        reader = face or self.face
        return Author(reader, reader.read(config).config, self.ids)

    def close(self) -> None:
        """Close the faces."""
        for face in self._opened:
            face.close()


class RigFixtures:
    """The fixtures of all parts of the contract. Subclasses define `backend`."""

    @pytest.fixture
    def backend(self) -> StoreUnderTest:
        """Return the backend under test, empty."""
        raise NotImplementedError("define a fixture `backend` that returns your store")

    @pytest.fixture(params=["sync-warm", "sync-cold", "async-warm", "async-cold"])
    def rig(self, backend: StoreUnderTest, request: pytest.FixtureRequest) -> Iterator[Rig]:
        """Yield a rig for each face, with one saver and with a new saver for every call."""
        face, memo = request.param.split("-")
        rig = Rig(backend, FACES[face], memo == "cold")
        yield rig
        rig.close()

    @pytest.fixture(params=list(FACES))
    def warm(self, backend: StoreUnderTest, request: pytest.FixtureRequest) -> Iterator[Rig]:
        """Yield a rig for each face, with one saver."""
        rig = Rig(backend, FACES[request.param])
        yield rig
        rig.close()
