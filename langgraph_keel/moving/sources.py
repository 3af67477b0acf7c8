"""Reads the tables of LangGraph's savers, in every layout, or any saver object.

Formats below 4 (LangGraph before 0.5) store the messages to nodes (`Send`) among the writes of the parent. A saver
object returns writes in order, but without task paths and write numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple

from langgraph_keel._langgraph import TASKS
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.errors import CorruptStore, InvalidInput
from langgraph_keel.moving.connection import Connection, find_place, open_postgres, open_sqlite, place_of
from langgraph_keel.moving.damage import check_texts
from langgraph_keel.moving.notes import SourceLike
from langgraph_keel.moving.values import Allows, StoredValues

Spot: TypeAlias = tuple[str, str]
"""A namespace, and the id of a checkpoint in it."""

_MOST_BLOBS = 1000


@dataclass(frozen=True, slots=True)
class StoredWrite:
    """One pending write."""

    task_id: str
    task_path: str
    index: int  # its number among the task's writes, negative for LangGraph's special channels
    channel: str
    value: Any


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One checkpoint."""

    spot: Spot
    checkpoint: dict[str, Any]  # with the values of its channels
    metadata: dict[str, Any]
    writes: Sequence[StoredWrite]  # in the order in which LangGraph applies them


@dataclass(frozen=True, slots=True)
class Index:
    """The checkpoints of a thread."""

    parents: Mapping[Spot, str | None]  # the parent's id, or `None` if there is none or it was removed
    writes: int  # number of pending writes

    @property
    def fingerprint(self) -> str:
        """A hash that changes when checkpoints or writes are added or removed."""
        names = "\n".join(f"{ns}\t{id}" for ns, id in sorted(self.parents))
        return blake2b(f"{self.writes}\n{names}".encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def in_order(self) -> list[Spot]:
        """Return the checkpoints in storage order: oldest first, parents before children."""
        order: dict[Spot, None] = {}
        by_age = sorted(self.parents, key=lambda spot: (spot[1], spot[0]))
        for spot in by_age:
            line = [spot]
            while (parent := self.parents[line[-1]]) is not None and (line[-1][0], parent) not in order:
                line.append((line[-1][0], parent))
                if len(line) > len(self.parents):
                    raise InvalidInput(f"checkpoint {spot[1]} is an ancestor of itself")
            order.update(dict.fromkeys(reversed(line)))
        # LangGraph's savers treat the greatest id of a namespace as the latest. With a wrong clock it may have
        # children; it is then stored again at the end.
        whole = [*order]
        last = dict(whole)
        return [*whole, *(spot for spot in dict(by_age).items() if last[spot[0]] != spot[1])]


class Reader(Protocol):
    """An open source."""

    def count_threads(self) -> int | None:
        """Return the number of threads; `None` if counting would read everything."""

    def list_threads(self) -> Iterator[str]:
        """Yield the ids of all threads, in a stable order."""

    def moment(self) -> AbstractContextManager[None]:
        """Read from one snapshot within this context, if the source supports it."""

    def read_index(self, thread_id: str) -> Index:
        """Return the checkpoints of a thread, without reading values if possible."""

    def read_checkpoints(self, thread_id: str, spots: Iterable[Spot]) -> Iterator[StoredCheckpoint]:
        """Yield the given checkpoints in order, with only one in memory."""


@dataclass(frozen=True, slots=True)
class Source:
    """A store from which threads are imported."""

    place: str  # its display name, without a password
    open: Callable[[Allows], AbstractContextManager[Reader]]


Call: TypeAlias = Callable[..., Any]
"""Calls a method of a saver object by name; for `list`, it returns a list."""


def source_of(given: SourceLike, call: Call | None = None) -> Source:
    """Return the source for a URL, the path of a SQLite file, or a saver object."""
    if isinstance(given, BaseCheckpointSaver):
        if engine_of(given) is not None:
            raise InvalidInput("the source is a saver of Keel's: copy its threads (`keel copy`)")
        return Source(f"a {type(given).__name__}", lambda _: nullcontext(SaverReader(call or call_directly(given))))
    if not isinstance(given, str | os.PathLike):
        raise InvalidInput(f"the source must be a URL, a path or a saver object, not a {type(given).__name__}")
    kind, place = find_place(given)
    if kind == "postgresql":
        return Source(place_of(place), lambda allows: _open_tables(open_postgres(place), place_of(place), allows))
    return Source(place, lambda allows: _open_tables(open_sqlite(place), place, allows))


# -- tables ------------------------------------------------------------------------------------------------------------


@contextmanager
def _open_tables(opened: AbstractContextManager[Connection], place: str, allows: Allows) -> Iterator[Reader]:
    with opened as connection:
        columns = set(connection.columns("checkpoints"))
        is_postgres = connection.mark == "%s"
        if not columns:
            if connection.columns("keel_format") if is_postgres else "refs" in connection.columns("entries"):
                raise InvalidInput(f"{place} is a store of Keel's: copy its threads (`keel copy`)")
            raise InvalidInput(f"{place} has no checkpoints of LangGraph's savers: it has no table `checkpoints`")
        if "thread_ts" in columns:
            older = "has the tables of LangGraph before 0.2 (`thread_ts`), which its own savers no longer read either"
            raise InvalidInput(f"{place} {older}")
        if not columns >= {"thread_id", "checkpoint_ns", "checkpoint", "metadata"}:
            other = "has a table `checkpoints` of another program, not of LangGraph's savers"
            raise InvalidInput(f"{place} {other}")
        tables = ("checkpoint_blobs", "checkpoint_writes") if is_postgres else ("writes",)
        found = {table: set(connection.columns(table)) for table in tables}
        if missing := [table for table, names in found.items() if not names]:
            raise InvalidInput(
                f"{place} has a table `checkpoints`, but no `{missing[0]}`: it is only partly set up. Open it with "
                "LangGraph's saver and call setup(), then import again"
            )
        values, has_path = StoredValues(allows), "task_path" in found[tables[-1]]
        if is_postgres:
            yield PostgresReader(connection, values, has_path, is_shallow="checkpoint_id" not in columns)
        else:
            yield SqliteReader(connection, values, has_path)


class TableReader:
    """The common code for the tables of both databases."""

    writes_table, value_column, id_column, parent_column = "writes", "value", "checkpoint_id", "parent_checkpoint_id"

    def __init__(self, connection: Connection, values: StoredValues, has_path: bool) -> None:
        self._connection = connection
        self._values = values
        self._path_column = "task_path" if has_path else "''"

    def _read(self, statement: str, *values: Any) -> Sequence[Sequence[Any]]:
        return self._connection.read(statement.replace("?", self._connection.mark), *values)

    def count_threads(self) -> int:
        """See `Reader.count_threads`."""
        ((count,),) = self._read("SELECT count(*) FROM (SELECT DISTINCT thread_id FROM checkpoints) AS threads")
        return int(count)

    def list_threads(self) -> Iterator[str]:
        """See `Reader.list_threads`."""
        for (thread_id,) in self._read("SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"):
            yield thread_id

    def moment(self) -> AbstractContextManager[None]:
        """See `Reader.moment`."""
        return self._connection.moment()

    def read_index(self, thread_id: str) -> Index:
        """See `Reader.read_index`."""
        names = f"checkpoint_ns, {self.id_column}, {self.parent_column}"
        rows = self._read(f"SELECT {names} FROM checkpoints WHERE thread_id = ?", thread_id)
        ((writes,),) = self._read(f"SELECT count(*) FROM {self.writes_table} WHERE thread_id = ?", thread_id)
        for ns, id, parent in rows:
            check_texts(ns, id, parent or "")
        spots = {(ns, id) for ns, id, _ in rows}
        return Index({(ns, id): parent if (ns, parent) in spots else None for ns, id, parent in rows}, writes)

    def _read_writes(self, thread_id: str, spot: Spot, where: str) -> list[StoredWrite]:
        rows = self._read(
            f"SELECT task_id, {self._path_column}, idx, channel, type, {self.value_column} FROM {self.writes_table} "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            thread_id,
            *spot,
        )
        for task_id, path, index, channel, _, _ in rows:
            check_texts(task_id, path, channel)
            if type(index) is not int:
                raise CorruptStore(f"{where}: a write has the invalid number {index!r:.40}")
        writes = []
        for task_id, path, index, channel, kind, value in sorted(rows, key=lambda row: (row[1], row[0], row[2])):
            decoded = self._values.load(kind, value, f"{where}, a write of task {task_id} to {channel!r}")
            writes.append(StoredWrite(task_id, path, index, channel, decoded))
        return writes

    def _adopt_sends(self, thread_id: str, spot: Spot, parent: str | None, checkpoint: dict[str, Any]) -> None:
        if _is_before_sends(checkpoint) and parent:
            where = f"thread {thread_id!r}, checkpoint {parent}"
            writes = self._read_writes(thread_id, (spot[0], parent), where)
            _adopt_sends(checkpoint, [write.value for write in writes if write.channel == TASKS])


def _is_before_sends(checkpoint: Mapping[str, Any]) -> bool:
    return bool(checkpoint.get("v", 4) < 4)


def _adopt_sends(checkpoint: dict[str, Any], sends: Sequence[Any]) -> None:
    """Add the `Send` messages of formats below 4, from the parent's writes."""
    if sends:
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"] = {**checkpoint["channel_values"], TASKS: [*sends]}
        checkpoint["channel_versions"] = {**versions, TASKS: max(versions.values()) if versions else 1}


def _check_checkpoint(checkpoint: Any, where: str) -> None:
    """Raise `CorruptStore` unless the value has the form of a LangGraph checkpoint."""
    is_whole = type(checkpoint) is dict and all(type(key) is str for key in checkpoint)
    if is_whole and type(checkpoint.get("v", 4)) in (int, float):
        parts = [checkpoint.get(name) for name in ("channel_values", "channel_versions", "versions_seen")]
        if all(type(part) is dict and all(type(key) is str for key in part) for part in parts):
            versions = {type(version) for version in parts[1].values()}
            if versions <= {str} or versions <= {int, float}:
                return
    raise CorruptStore(f"{where}: it is not a checkpoint of LangGraph")


def _where(thread_id: str, spot: Spot) -> str:
    namespace = f", namespace {spot[0]!r}" if spot[0] else ""
    return f"thread {thread_id!r}{namespace}, checkpoint {spot[1]}"


class SqliteReader(TableReader):
    """Reads the tables of `langgraph-checkpoint-sqlite`."""

    def read_checkpoints(self, thread_id: str, spots: Iterable[Spot]) -> Iterator[StoredCheckpoint]:
        """See `Reader.read_checkpoints`."""
        statement = (
            "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?"
        )
        for spot in spots:
            for parent, kind, body, metadata in self._read(statement, thread_id, *spot):
                where = _where(thread_id, spot)
                checkpoint = self._values.load(kind, body, where)
                _check_checkpoint(checkpoint, where)
                self._adopt_sends(thread_id, spot, parent, checkpoint)
                read = self._values.load_metadata(metadata, where)
                yield StoredCheckpoint(spot, checkpoint, read, self._read_writes(thread_id, spot, where))


class PostgresReader(TableReader):
    """Reads tables of `langgraph-checkpoint-postgres`, each version of a value once."""

    writes_table, value_column = "checkpoint_writes", "blob"

    def __init__(self, connection: Connection, values: StoredValues, has_path: bool, *, is_shallow: bool) -> None:
        super().__init__(connection, values, has_path)
        self._is_shallow = is_shallow
        if is_shallow:
            self.id_column, self.parent_column = "checkpoint ->> 'id'", "NULL"

    def read_checkpoints(self, thread_id: str, spots: Iterable[Spot]) -> Iterator[StoredCheckpoint]:
        """See `Reader.read_checkpoints`."""
        statement = (
            f"SELECT {self.parent_column}, checkpoint, metadata FROM checkpoints "
            f"WHERE thread_id = ? AND checkpoint_ns = ? AND {self.id_column} = ?"
        )
        known: dict[tuple[str, str, str], Any] = {}
        for spot in spots:
            for parent, checkpoint, metadata in self._read(statement, thread_id, *spot):
                where = _where(thread_id, spot)
                known = self._read_values(thread_id, spot, checkpoint.get("channel_versions") or {}, known, where)
                own = {channel: value for (ns, channel, _), value in known.items() if ns == spot[0]}
                checkpoint["channel_values"] = {**(checkpoint.get("channel_values") or {}), **own}
                self._adopt_sends(thread_id, spot, parent, checkpoint)
                yield StoredCheckpoint(spot, checkpoint, metadata or {}, self._read_writes(thread_id, spot, where))

    def _read_values(
        self,
        thread_id: str,
        spot: Spot,
        versions: Mapping[str, Any],
        known: Mapping[tuple[str, str, str], Any],
        where: str,
    ) -> dict[tuple[str, str, str], Any]:
        """Return the values of a checkpoint, by namespace, channel and version."""
        asked = [(spot[0], channel, str(version)) for channel, version in versions.items()]  # `str` as in `->>`
        found = {key: known[key] for key in asked if key in known}
        left = [key for key in asked if key not in known]
        version = "''" if self._is_shallow else "version"
        is_wanted = (
            "channel = ANY(?)"
            if self._is_shallow
            else "(channel, version) IN (SELECT * FROM unnest(?::text[], ?::text[]))"
        )
        for start in range(0, len(left), _MOST_BLOBS):
            part = left[start : start + _MOST_BLOBS]
            names = [channel for _, channel, _ in part]
            wanted = (names,) if self._is_shallow else (names, [version for _, _, version in part])
            rows = self._read(
                f"SELECT channel, {version}, type, blob FROM checkpoint_blobs "
                f"WHERE thread_id = ? AND checkpoint_ns = ? AND {is_wanted}",
                thread_id,
                spot[0],
                *wanted,
            )
            for channel, stored, kind, blob in rows:
                if kind != "empty":
                    found[spot[0], channel, stored] = self._values.load(kind, blob, f"{where}, channel {channel!r}")
        return {key: found[key] for key in found}


# -- any saver ---------------------------------------------------------------------------------------------------------


def call_directly(saver: BaseCheckpointSaver[Any]) -> Call:
    """Return a function that calls the methods of a saver object, blocking."""

    def call(method: str, *given: Any, **more: Any) -> Any:
        found = getattr(saver, method)(*given, **more)
        return list(found) if method == "list" else found

    return call


class SaverReader:
    """Reads a saver object, using only LangGraph's interface."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def count_threads(self) -> None:
        """See `Reader.count_threads`."""

    def list_threads(self) -> Iterator[str]:
        """See `Reader.list_threads`; lists all checkpoints. Pass the URL of a large store."""
        yield from dict.fromkeys(str(each.config["configurable"]["thread_id"]) for each in self._call("list", None))

    def moment(self) -> AbstractContextManager[None]:
        """See `Reader.moment`."""
        return nullcontext()

    def read_index(self, thread_id: str) -> Index:
        """See `Reader.read_index`."""
        parents: dict[Spot, str | None] = {}
        writes = 0
        for each in self._call("list", {"configurable": {"thread_id": thread_id}}):
            before = each.parent_config["configurable"].get("checkpoint_id") if each.parent_config else None
            parents[spot_of(each)] = before
            writes += len(each.pending_writes or ())
        return Index({spot: id if (spot[0], id) in parents else None for spot, id in parents.items()}, writes)

    def read_checkpoints(self, thread_id: str, spots: Iterable[Spot]) -> Iterator[StoredCheckpoint]:
        """See `Reader.read_checkpoints`."""
        for ns, id in spots:
            asked = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}
            found: CheckpointTuple | None = self._call("get_tuple", {"configurable": asked})
            if found is not None:
                checkpoint = dict(found.checkpoint)
                if _is_before_sends(checkpoint) and (before := found.parent_config):
                    parent: CheckpointTuple | None = self._call("get_tuple", before)
                    sent = parent.pending_writes or () if parent else ()
                    _adopt_sends(checkpoint, [value for _, channel, value in sent if channel == TASKS])
                writes = _number_writes(found.pending_writes or ())
                yield StoredCheckpoint((ns, id), checkpoint, dict(found.metadata), writes)


def spot_of(found: CheckpointTuple) -> Spot:
    """Return the namespace and the id of a checkpoint."""
    place = found.config["configurable"]
    return place.get("checkpoint_ns", ""), place["checkpoint_id"]


def _number_writes(writes: Sequence[tuple[str, str, Any]]) -> list[StoredWrite]:
    """Return writes with LangGraph's numbers, and with paths that keep their order."""
    counts: dict[str, int] = {}
    paths: dict[str, str] = {}
    numbered = []
    for task_id, channel, value in writes:
        index = WRITES_IDX_MAP.get(channel)
        if index is None:
            index = counts[task_id] = counts.get(task_id, -1) + 1
        path = paths.setdefault(task_id, f"{len(paths):08}")
        numbered.append(StoredWrite(task_id, path, index, channel, value))
    if [*paths] == sorted(paths):
        return [StoredWrite(each.task_id, "", each.index, each.channel, each.value) for each in numbered]
    return numbered
