"""Exports threads to LangGraph's savers, with their own `put` and `put_writes`."""

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
from langgraph_keel.engine.records import Node
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
from langgraph_keel.moving.langgraph import list_threads
from langgraph_keel.moving.notes import SourceLike
from langgraph_keel.moving.sources import Call, Spot, call_directly, spot_of


@publish
@dataclass(slots=True)
class ExportReport:
    """The result of an export to another saver.

    Attributes:
        threads: How many threads were `"exported"`, were already `"present"`, or `"failed"`.
        checkpoints: How many checkpoints were stored.
        failed: Why threads could not be written, by thread id; the first thousand.
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
    """Open a store of LangGraph's savers and create its tables; yield a method caller."""
    if isinstance(target, BaseCheckpointSaver):
        if engine_of(target) is not None:
            raise InvalidInput("the target is a saver of Keel's: copy the threads to it (`keel copy`)")
        yield call or call_directly(target)
        return
    kind, address = find_place(target)
    is_file = kind == "sqlite"
    place = address if is_file else place_of(address)
    saver_class: Any
    try:
        if is_file:
            from langgraph.checkpoint.sqlite import SqliteSaver

            saver_class = SqliteSaver
        else:
            from langgraph.checkpoint.postgres import PostgresSaver

            saver_class = PostgresSaver
    except ModuleNotFoundError as error:
        package = f"langgraph-checkpoint-{'sqlite' if is_file else 'postgres'}"
        needed = f"the target's saver is not installed: pip install {package}"
        raise InvalidInput(needed) from error
    if not is_file or os.path.exists(address):
        with open_sqlite(address) if is_file else open_postgres(address) as there:
            columns = set(there.columns("checkpoints"))
            if columns and not columns >= {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"}:
                which = "has a table `checkpoints` that does not belong to LangGraph's saver: use another target"
                raise InvalidInput(f"{place} {which}")
            if is_file and not columns and there.read("SELECT name FROM sqlite_master WHERE type = 'table'"):
                raise InvalidInput(f"{place} is another program's file: use a new file, or one of LangGraph's saver")
    errors = sqlite_errors(place) if is_file else postgres_errors(place)
    with errors, saver_class.from_conn_string(address) as saver:
        saver.setup()
        yield call_directly(saver)


# -- threads -----------------------------------------------------------------------------------------------------------


def export_threads(session: Session, call: Call, threads: Sequence[str] | None, on_progress: Any) -> ExportReport:
    """Export threads one after the other; an interrupted export can be run again."""
    # Exported as stored, without the upgrades of the application.
    session = replace(session, hooks=Hooks(), memo=Memo(0, 0), state_version=sys.maxsize)
    report = ExportReport()
    names = [*list_threads(session)] if threads is None else threads
    for done, thread_id in enumerate(names, 1):
        try:
            outcome = _export_thread(session, call, thread_id, report)
        except KeelError as error:
            if isinstance(error, StoreError) and not isinstance(error, CorruptStore):
                raise
            outcome = _fail(report, thread_id, error)
        except (TypeError, ValueError, NotImplementedError) as error:  # LangGraph's serializer cannot store a value
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


def _export_thread(session: Session, call: Call, thread_id: str, report: ExportReport) -> str:
    graph = run(session.store.read_graph(thread_id), session.driver)
    nodes = [node for node in graph.nodes if not node.is_ghost]
    if not nodes:
        raise NotFound(f"there is no thread {thread_id!r}")
    twins = _find_twins(nodes)
    own = {(node.address.checkpoint_ns, str(node.address.checkpoint_id)) for node in nodes}
    stand_ins = {(ns, _neighbour(id, -1)) for ns, id in own}
    there = {spot_of(each) for each in call("list", {"configurable": {"thread_id": thread_id}})}
    if there - own - stand_ins - {*twins.items()}:
        raise ThreadExists(
            f"the target has a thread {thread_id!r} with other checkpoints: both stay unchanged. Delete it there "
            "(delete_thread), or export to another target"
        )
    if there >= own | {*twins.items()}:
        return "present"
    versions = Versions()
    for node in nodes:
        _put(session, call, node, versions)
    for node in nodes:
        if node.is_head and (twin := twins.get(node.address.checkpoint_ns)):
            _put(session, call, node, versions, twin)
    for ns in {ns for ns, _ in own}:
        latest = call("get_tuple", {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}})
        expected = twins.get(ns) or max(id for space, id in own if space == ns)
        if latest is None or latest.config["configurable"]["checkpoint_id"] != expected:
            raise StoreError(f"thread {thread_id!r}: the target does not return the exported checkpoint as the latest")
    report.checkpoints += len(nodes) + len(twins)
    return "exported"


def _find_twins(nodes: Sequence[Node]) -> dict[str, str]:
    """Return an id for a twin in each namespace whose head has not the greatest id."""
    greatest: dict[str, str] = {}
    heads: dict[str, str] = {}
    for node in nodes:
        ns, id = node.address.checkpoint_ns, str(node.address.checkpoint_id)
        greatest[ns] = max(greatest.get(ns, ""), id)
        if node.is_head:
            heads[ns] = id
    # LangGraph treats the greatest id as the latest checkpoint, Keel the one stored last. As after a rewind, a twin has
    # no writes, so its step runs again.
    return {ns: _neighbour(greatest[ns], 1) for ns, id in heads.items() if greatest[ns] != id}


def _neighbour(id: str, distance: int) -> str:
    """Return the next or previous UUID, or an id that sorts after or before `id`."""
    try:
        return str(UUID(int=UUID(id).int + distance))
    except ValueError:
        return f"{id}~" if distance > 0 else id[:-1]


def _put(session: Session, call: Call, node: Node, versions: Versions, twin: str | None = None) -> None:
    address = node.address
    found = run(session.store.read_entry(address), session.driver)
    if found is None:
        raise NotFound(f"{address} was removed during the export: export the thread again")
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
    """Store the checkpoint that replaces pruned ancestors of a delta channel."""
    # It has their last values, and all writes since.
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
    """Makes channel versions unique per branch.

    LangGraph's savers store a value by its channel's version: with equal versions, two branches would share a value.
    """

    def __init__(self) -> None:
        self._of: dict[Spot, Mapping[str, tuple[Any, str]]] = {}

    def carry(self, checkpoint: Mapping[str, Any], ns: str, id: str, parent: str | None) -> dict[str, Any]:
        """Return a checkpoint with the versions for another saver."""
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
    """Return a version in LangGraph's form: 32 digits, a dot, and a unique part."""
    whole, _, part = str(version).partition(".")
    if isinstance(version, str) and part.strip("0."):
        return version  # already in LangGraph's form
    number = int(blake2b(owner.encode(), digest_size=6).hexdigest(), 16) if owner else 0
    return f"{int(whole):032}.{number:016}"
