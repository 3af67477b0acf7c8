"""The rig of the contract: a backend under test, seen through a face, and an author who writes its checkpoints.

A face is one way to call a saver, blocking or asynchronous. It asks for its saver at every call, so that a test may
have a new saver each time (a cold memo, as another process would have). Ids and times are counted.
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
    """The methods of a saver that read and write, each as in `KeelSaver`, called on what `opener` returns."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @property
    def saver(self) -> KeelSaver:
        """The saver that the next call would use."""
        return self._opener()

    @abstractmethod
    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its sync name."""

    @abstractmethod
    def verb(self, name: str, *args: Any) -> Any:
        """Call a verb of the store below the saver, for what no method of the saver shows as it is."""

    @abstractmethod
    def list(self, config: RunnableConfig | None, **options: Any) -> Generator[CheckpointTuple, None, None]:
        """As `KeelSaver.list`; closing the generator abandons the listing."""

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
        """As `get_tuple`, of a checkpoint that must be there."""
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
        """Free what the face itself holds; the saver stays open."""


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
        """Do nothing; this face holds nothing."""


class AsyncFace(Face):
    """The async methods, each driven to its end on a loop of the face's own."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener)
        # Not asyncio.Runner: for each call it asks the signal module about the task, whose repr names all of the state.
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Drive a coroutine to its end on this face's loop."""
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
    """What the author of a backend gives to the contract. The backend closes what it opened itself."""

    def open(self, **options: Any) -> KeelSaver:
        """Return a new saver object with an empty memo, on the same stored data; `options` as for `KeelSaver`."""
        ...

    def wipe(self) -> None:
        """Forget all stored data; savers opened before may go on writing to the now empty store."""
        ...

    def raw(self) -> bytes:
        """Return all live data read behind the saver's back: names, headers, row bodies and writes, end to end."""
        ...


def at(thread: Any = "t", ns: str | None = "", checkpoint_id: str | None = None) -> RunnableConfig:
    """Return a hand-made config: no run continues through it, so putting with it never conflicts."""
    values: dict[str, Any] = {"thread_id": thread}
    if ns is not None:
        values["checkpoint_ns"] = ns
    if checkpoint_id is not None:
        values["checkpoint_id"] = checkpoint_id
    return cast(RunnableConfig, {"configurable": values})


def checkpoint_of(checkpoint_id: str, values: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a checkpoint of today's format."""
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
    """Return the checkpoint id that a tuple or config names."""
    if found is None:
        return None
    config = found.config if isinstance(found, CheckpointTuple) else found
    return cast("str | None", config["configurable"].get("checkpoint_id"))


def values_of(found: CheckpointTuple) -> dict[str, Any]:
    """Return the channel values of a tuple."""
    return found.checkpoint["channel_values"]


def exact(value: Any) -> Any:
    """Return a form of `value` that is equal only for values of equal types; order of keys and sign of zero count."""
    kind = type(value)
    # The usual types first, and no call for a text: to compare whole histories was two fifths of the time in memory.
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
    """Puts one checkpoint after another, each on the one before it, as a run does.

    Args:
        face: Where to put them.
        config: Where to begin; a config from `get_tuple` continues that checkpoint as a run would.
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
        """Put the next checkpoint; return its config. What else the run's config says stays, as in LangGraph.

        The channels that are `written` have new versions; by default all that have one.
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
        """Put one checkpoint for each of these values; return their configs."""
        return [self.put(values) for values in versions]


class Rig:
    """One backend through one face.

    Args:
        backend: The backend under test.
        kind: Which face.
        cold: Whether every call goes to a new saver object.
    """

    def __init__(self, backend: StoreUnderTest, kind: type[Face], cold: bool = False) -> None:
        self.backend = backend
        self._kind = kind
        self._opened: list[Face] = []
        self.ids = (f"{number:08}" for number in count(1))
        self.face = self.through(backend.open) if cold else self.open()

    def through(self, opener: Any) -> Face:
        """Return a face on whatever savers `opener` returns."""
        face = self._kind(opener)
        self._opened.append(face)
        return face

    def on(self, saver: KeelSaver) -> Face:
        """Return a face on one saver."""
        return self.through(lambda: saver)

    def open(self, **options: Any) -> Face:
        """Return a face on a new saver with a memo of its own, as another process would have."""
        return self.on(self.backend.open(**options))

    def author(self, thread: Any = "t", ns: str = "", face: Face | None = None) -> Author:
        """Return an author at the start of a thread."""
        return Author(face or self.face, at(thread, ns), self.ids)

    def continuing(self, config: RunnableConfig, face: Face | None = None) -> Author:
        """Return an author who goes on from what `config` names now, as a run does."""
        reader = face or self.face
        return Author(reader, reader.read(config).config, self.ids)

    def close(self) -> None:
        """Close the faces."""
        for face in self._opened:
            face.close()


class RigFixtures:
    """The fixtures of every part of the contract. `backend` is for the subclass to define."""

    @pytest.fixture
    def backend(self) -> StoreUnderTest:
        """Return the backend under test, empty."""
        raise NotImplementedError("define a fixture `backend` that returns your store")

    @pytest.fixture(params=["sync-warm", "sync-cold", "async-warm", "async-cold"])
    def rig(self, backend: StoreUnderTest, request: pytest.FixtureRequest) -> Iterator[Rig]:
        """Yield a rig for each face, with a saver that remembers and with a new one for every call."""
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
