"""Threads of Keel, written into the store of one of LangGraph's own savers by its own `put` and `put_writes`.

What differs between the two is carried over:

* *Versions.* LangGraph's savers keep a value by its channel's version, which has a random part: two branches never have
  the same one. Keel's need none, so here each version gets a part that is made of the checkpoint that it began with.
* *The latest* is for LangGraph the greatest id, for Keel what was put last. Where they differ (a branch that lost a
  conflict, a host whose clock was wrong), a twin of Keel's latest is put at the end, with the next id. Like a rewind it
  takes no writes along, so its step runs anew.
* *Ancestors that a prune took away* from a delta channel stand before its oldest checkpoint as one, with the id before.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import groupby
from typing import Any, cast
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, PendingWrite

from langgraph_keel.engine.checkpoints import read_hidden, revive
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.engine.entries import BESIDE, HIDDEN, unpack_batch
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.plan import run
from langgraph_keel.engine.records import Node, Page
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, NotFound, RefusedType, StoreError, ThreadExists
from langgraph_keel.moving.connection import (
    find_place,
    open_postgres,
    open_sqlite,
    place_of,
    postgres_errors,
    sqlite_errors,
)
from langgraph_keel.moving.notes import SourceLike
from langgraph_keel.moving.sources import Call, Spot, call_directly

_PAGE = 500

_MISSING = "the saver that the threads are written by is not installed: pip install {0}"


@publish
@dataclass(slots=True)
class ExportReport:
    """What an export to another saver has done.

    Attributes:
        threads: How many threads were `"exported"`, are `"present"` already, or `"failed"`.
        checkpoints: How many checkpoints were put.
        failed: Why threads could not be written, by their ids; the first thousand.
    """

    threads: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        counts = {name: self.threads[name] for name in ("exported", "present", "failed")}
        return {"threads": counts, "checkpoints": self.checkpoints, "failed": self.failed}


# -- the target --------------------------------------------------------------------------------------------------------


@contextmanager
def open_target(target: SourceLike, call: Call | None = None) -> Iterator[Call]:
    """Open the store of one of LangGraph's savers, and make its tables; yield what calls the saver's methods."""
    if isinstance(target, BaseCheckpointSaver):
        if engine_of(target) is not None:
            raise InvalidInput("this is a saver of Keel's: copy the threads to it (`keel copy`)")
        yield call or call_directly(target)
        return
    kind, place = find_place(target)
    with (_open_postgres if kind == "postgresql" else _open_sqlite)(place) as opened:
        yield opened


@contextmanager
def _open_sqlite(path: str) -> Iterator[Call]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ModuleNotFoundError as error:
        raise InvalidInput(_MISSING.format("langgraph-checkpoint-sqlite")) from error
    if os.path.exists(path):
        with open_sqlite(path) as there:
            tables = {name for (name,) in there.read("SELECT name FROM sqlite_master WHERE type = 'table'")}
            _check_tables(path, set(there.columns("checkpoints")), bool(tables))
    with sqlite_errors(path), SqliteSaver.from_conn_string(path) as saver:
        saver.setup()
        yield call_directly(saver)


@contextmanager
def _open_postgres(url: str) -> Iterator[Call]:
    try:
        from langgraph.checkpoint.postgres import PostgresSaver
    except ModuleNotFoundError as error:
        raise InvalidInput(_MISSING.format("langgraph-checkpoint-postgres")) from error
    with open_postgres(url) as there:
        _check_tables(place_of(url), set(there.columns("checkpoints")), False)
    with postgres_errors(place_of(url)), PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield call_directly(saver)


def _check_tables(place: str, columns: set[str], has_tables: bool) -> None:
    if columns and not columns >= {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"}:
        raise InvalidInput(f"{place} has a table `checkpoints` that is not of LangGraph's saver: name another target")
    if has_tables and not columns:
        raise InvalidInput(f"{place} is another program's file: name a new one, or one of LangGraph's saver")


# -- threads -----------------------------------------------------------------------------------------------------------


def export_threads(session: Session, call: Call, threads: Sequence[str] | None, on_progress: Any) -> ExportReport:
    """Write threads into another saver, one after the other. Cut off, it is done by beginning again."""
    # As it was stored: by the version of the application that has put it.
    session = replace(session, hooks=Hooks(), memo=Memo(0, 0), state_version=sys.maxsize)
    report = ExportReport()
    names = [*_list_threads(session)] if threads is None else threads
    for done, thread_id in enumerate(names, 1):
        try:
            outcome = _export_thread(session, call, thread_id, report)
        except KeelError as error:
            if isinstance(error, StoreError) and not isinstance(error, CorruptStore):
                raise
            outcome = _fail(report, thread_id, error)
        except (TypeError, ValueError, NotImplementedError) as error:  # LangGraph's serializer, of what it cannot store
            outcome = _fail(report, thread_id, error)
        report.threads[outcome] += 1
        on_progress(done, len(names))
    return report


def _fail(report: ExportReport, thread_id: str, error: Exception) -> str:
    if len(report.failed) < 1_000:
        named = str(error) if isinstance(error, KeelError) else f"{type(error).__name__}: {error}"
        if isinstance(error, RefusedType):
            named += f" (on the command line: `--import {error.type_name.rpartition('.')[0]}`)"
        report.failed[thread_id] = named
    return "failed"


def _list_threads(session: Session) -> Iterator[str]:
    after: tuple[str, str] | None = None
    while True:
        page = run(session.store.read_threads(Page(after, _PAGE)), session.driver)
        yield from (info.thread_id for info, _ in page)
        if len(page) < _PAGE:
            return
        after = page[-1][0].updated_at, page[-1][0].thread_id


def _export_thread(session: Session, call: Call, thread_id: str, report: ExportReport) -> str:
    graph = run(session.store.read_graph(thread_id), session.driver)
    nodes = [node for node in graph.nodes if not node.is_ghost]
    if not nodes:
        raise NotFound(f"there is no thread {thread_id!r}")
    twins = _find_twins(nodes)
    own = {(node.address.checkpoint_ns, str(node.address.checkpoint_id)) for node in nodes}
    stand_ins = {(ns, _neighbour(id, -1)) for ns, id in own}
    there = {_spot_of(each) for each in call("list", {"configurable": {"thread_id": thread_id}})}
    if there - own - stand_ins - {*twins.items()}:
        raise ThreadExists(
            f"the target holds a thread {thread_id!r} with other checkpoints: both stay as they are. Delete it there "
            "(delete_thread), or export to another target"
        )
    if there >= own | {*twins.items()}:
        return "present"
    versions = Versions()
    for node in nodes:
        _put(session, call, node, versions)
    for ns, id in twins.items():
        _put(
            session,
            call,
            next(node for node in nodes if node.is_head and node.address.checkpoint_ns == ns),
            versions,
            id,
        )
    for ns in {ns for ns, _ in own}:
        latest = call("get_tuple", {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}})
        if latest is None or latest.config["configurable"]["checkpoint_id"] != _latest(nodes, twins, ns):
            raise StoreError(f"thread {thread_id!r}: the target does not give back what was put")
    report.checkpoints += len(nodes) + len(twins)
    return "exported"


def _spot_of(found: CheckpointTuple) -> Spot:
    place = found.config["configurable"]
    return place.get("checkpoint_ns", ""), place["checkpoint_id"]


def _find_twins(nodes: Sequence[Node]) -> dict[str, str]:
    """Return the namespaces whose latest has not the greatest id, and the id that follows that."""
    greatest: dict[str, str] = {}
    heads: dict[str, str] = {}
    for node in nodes:
        ns, id = node.address.checkpoint_ns, str(node.address.checkpoint_id)
        greatest[ns] = max(greatest.get(ns, ""), id)
        if node.is_head:
            heads[ns] = id
    return {ns: _neighbour(greatest[ns], 1) for ns, id in heads.items() if greatest[ns] != id}


def _latest(nodes: Sequence[Node], twins: Mapping[str, str], ns: str) -> str:
    own = [str(node.address.checkpoint_id) for node in nodes if node.address.checkpoint_ns == ns]
    return twins.get(ns) or max(own)


def _neighbour(id: str, distance: int) -> str:
    """Return the id right after another one, or before it; of what is no UUID, one that sorts so."""
    try:
        return str(UUID(int=UUID(id).int + distance))
    except ValueError:
        return f"{id}~" if distance > 0 else id[:-1]


def _put(session: Session, call: Call, node: Node, versions: Versions, twin: str | None = None) -> None:
    address = node.address
    found = run(session.store.read_entry(address), session.driver)
    if found is None:
        raise NotFound(f"{address}: it was removed while it was read: export the thread again")
    read = run(revive(session, found, Unpacker(session.codec), "named"), session.driver)
    id = twin or str(address.checkpoint_id)
    parent = read.parent_config["configurable"]["checkpoint_id"] if read.parent_config else None
    if parent is not None and parent.endswith(HIDDEN):
        parent = _neighbour(str(address.checkpoint_id), -1)
        hidden = run(read_hidden(session, address.at(f"{address.checkpoint_id}{HIDDEN}")), session.driver)
        if hidden is not None:
            _put_hidden(call, hidden, address.at(parent), versions)
    checkpoint = versions.carry(read.checkpoint, address.checkpoint_ns, id, parent)
    place = {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}
    config = {"configurable": {**place, **({"checkpoint_id": parent} if parent else {})}}
    call("put", config, checkpoint, read.metadata, checkpoint["channel_versions"])
    if twin is None:
        for batch in found.batches:
            unpacked = unpack_batch(batch, session.codec, address)
            if writes := [(channel, value) for channel, _, value in unpacked if channel != BESIDE]:
                call("put_writes", _config(address), writes, batch.task_id, batch.task_path)


def _put_hidden(call: Call, hidden: CheckpointTuple, address: Address, versions: Versions) -> None:
    """Put what stands for the ancestors that a prune took away: their last values, and all writes since."""
    values = hidden.checkpoint["channel_values"]
    own: Any = {**hidden.checkpoint, "id": address.checkpoint_id, "channel_versions": dict.fromkeys(values, 1)}
    checkpoint = versions.carry(own, address.checkpoint_ns, str(address.checkpoint_id), None)
    config = _config(address.at(None))
    call("put", config, checkpoint, hidden.metadata, checkpoint["channel_versions"])
    for number, (task_id, group) in enumerate(groupby(hidden.pending_writes or [], lambda write: write[0])):
        writes: list[PendingWrite] = [*group]
        pairs = [(channel, value) for _, channel, value in writes]
        call("put_writes", _config(address), pairs, f"{task_id}-{number}", f"{number:08}")


def _config(address: Address) -> dict[str, Any]:
    place = {"thread_id": address.thread_id, "checkpoint_ns": address.checkpoint_ns}
    return {"configurable": {**place, **({"checkpoint_id": address.checkpoint_id} if address.checkpoint_id else {})}}


class Versions:
    """Gives each version of a channel a part that no other branch has; those that have one stay."""

    def __init__(self) -> None:
        self._of: dict[Spot, Mapping[str, tuple[Any, str]]] = {}

    def carry(self, checkpoint: Mapping[str, Any], ns: str, id: str, parent: str | None) -> dict[str, Any]:
        """Return a checkpoint with the versions that another saver is given."""
        before = self._of.get((ns, parent), {}) if parent else {}
        own: dict[str, tuple[Any, str]] = {}
        for channel, version in checkpoint["channel_versions"].items():
            known = before.get(channel)
            is_same = known is not None and known[0] == version
            own[channel] = cast(tuple[Any, str], known) if is_same else (version, _unique(version, f"{id} {channel}"))
        self._of[ns, id] = own
        seen = {
            node: {
                channel: own[channel][1] if channel in own and own[channel][0] == version else _unique(version, "")
                for channel, version in those.items()
            }
            for node, those in checkpoint["versions_seen"].items()
        }
        carried = {channel: version for channel, (_, version) in own.items()}
        return {**checkpoint, "id": id, "channel_versions": carried, "versions_seen": seen}


def _unique(version: Any, owner: str) -> str:
    """Return a version in the form of LangGraph's savers: 32 digits, a dot, what tells it from those of branches."""
    whole, _, part = str(version).partition(".")
    if isinstance(version, str) and part.strip("0."):
        return version  # of LangGraph's own
    number = int(blake2b(owner.encode(), digest_size=6).hexdigest(), 16) if owner else 0
    return f"{int(whole):032}.{number:016}"
