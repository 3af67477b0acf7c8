"""Rewind, branch and fork. Nothing is deleted, and no value is read or written.

A rewind or a branch adds a *twin*: another checkpoint with the refs and the parent of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_keel.engine.audit import append_act, check_by
from langgraph_keel.engine.config import Address, config_of, thread_id_of
from langgraph_keel.engine.entries import (
    BRANCHED_FROM,
    FORKED_FROM,
    REWOUND_TO,
    STATE,
    TREE,
    Header,
    pack_header,
    rest_of,
    unpack_header,
)
from langgraph_keel.engine.events import Copy, Travel
from langgraph_keel.engine.lineage import find_moves_back
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import BaseGone, Entry, Graph, NewEntry, Node, Occupied, Stored
from langgraph_keel.engine.removal import check_objects, live_runs
from langgraph_keel.engine.session import Session, tell
from langgraph_keel.errors import InvalidInput, NotFound, ThreadExists
from langgraph_keel.history.labels import find_entry

CARRIED = ("known", "first", STATE, TREE)
"""The keys of `about` in a header that describe the thread and its files."""


def rewind_to(session: Session, address: Address, by: str | None) -> Plan[RunnableConfig]:
    """Make a root checkpoint the latest of its thread again.

    Three trips, and one for each subgraph memory that is rewound.
    """
    _check_root(address)
    # The headers of the whole thread, as only they list its namespaces.
    graph = yield from session.store.read_graph(address.thread_id)
    for node in graph.nodes:
        is_it = node.address == address if address.checkpoint_id else node.is_head and not node.address.checkpoint_ns
        if is_it and not node.is_ghost:
            plan = _take_back(session, graph, node)
            yield from _travel(session, Travel("rewound", node.address), plan, by)
            return thread_config(address.thread_id)
    raise NotFound(f"{address}: there is no such checkpoint")


def _travel(session: Session, travel: Travel, plan: Plan[tuple[Address, Header]], by: str | None) -> Plan[Address]:
    """Run a plan that adds a twin; notify hooks, and the audit trail if `by` is set."""
    check_by(by)
    try:
        yield from tell(session.hooks.before_travel, session, travel)
        twin, header = yield from plan
    except BaseException as error:
        yield from tell(session.hooks.travel_failed, session, travel, error)
        raise
    travel = replace(travel, twin=twin, about=header.about)
    yield from tell(session.hooks.after_travel, session, travel)
    if by is not None:
        about = {"checkpoint": travel.origin.checkpoint_id, "twin": twin.checkpoint_id}
        yield from append_act(session, twin.thread_id, travel.verb, by, **about)
    return twin


def _take_back(session: Session, graph: Graph, moment: Node) -> Plan[tuple[Address, Header]]:
    # The root is last: after a crash in between, the thread continues from where it was, and a second rewind completes
    # the first.
    for namespace, memory in find_moves_back(graph, moment, session.codec).items():
        if memory is None:
            # The checkpoint that LangGraph uses if it finds none, so that the subgraph starts as if it never ran.
            address = replace(moment.address, checkpoint_ns=namespace, checkpoint_id=session.new_id(-2))
            ts = session.clock().isoformat()
            checkpoint = {**rest_of(cast(Mapping[str, Any], empty_checkpoint())), "ts": ts}
            header = Header(checkpoint, {"source": "fork", "step": -2, "parents": {}, REWOUND_TO: None}, {})
            body = pack_header(header, session.codec, address)
            yield from _put(session, NewEntry(address, None, body, {}, updated_at=ts))
        else:
            yield from _put_twin(session, memory)
    return (yield from _put_twin(session, moment))


def _put_twin(session: Session, node: Node) -> Plan[tuple[Address, Header]]:
    header = _as_twin(session, node, {REWOUND_TO: node.address.checkpoint_id})
    # With the old checkpoint as its parent, the writes that followed it would count twice in delta channels.
    address = yield from _put(session, _twin(session, node, node.parent, header))
    return address, header


def fork_at(session: Session, address: Address, thread_id: str | None, by: str | None) -> Plan[RunnableConfig]:
    """Fork at a root checkpoint, into `thread_id` or a branch; return its config."""
    _check_root(address)
    if thread_id is None:
        entry = yield from find_entry(session, address)
        plan = _put_branch(session, entry)
        return config_of((yield from _travel(session, Travel("branched", entry.address), plan, by)), "named")
    target = thread_id_of(thread_id)
    yield from _fork(session, address, target, by)
    return thread_config(target)


def _put_branch(session: Session, entry: Entry) -> Plan[tuple[Address, Header]]:
    """Store a twin on a branch. It is the latest only if its parent is."""
    header, parent = _as_twin(session, entry, {BRANCHED_FROM: entry.address.checkpoint_id}), entry.parent
    channels = header.metadata.get("counters_since_delta_snapshot")
    if not parent and channels:  # the parent may be kept for delta channels only
        ancestors = yield from session.store.read_history(entry.address, list(channels))
        parent = ancestors[0].entry.address.checkpoint_id if ancestors else None
    new = replace(_twin(session, entry, parent, header), checked=True, on_conflict="fork")
    return (yield from _put(session, new)), header


def _fork(session: Session, address: Address, target: str, by: str | None) -> Plan[None]:
    """Copy a thread as it was when a checkpoint was stored.

    Ten trips, and those of the hooks. The work grows with the history up to the checkpoint. A crash in between leaves a
    complete fork, with more rows and perhaps entries than it needs, and without archive or ledger. Rows of packed
    elements are copied as a whole, so a fork may contain bytes of elements that are newer than the checkpoint.
    """
    check_by(by)
    entry = yield from find_entry(session, address)
    header = unpack_header(entry.header, session.codec, entry.address)
    origin = {"thread_id": address.thread_id, "checkpoint_id": entry.address.checkpoint_id}
    header.metadata[FORKED_FROM] = origin
    body = pack_header(header, session.codec, entry.address)
    upto = replace(entry, header=body, updated_at=session.clock().isoformat())
    yield from check_objects(session, f"a fork of thread {address.thread_id!r} would not have")
    outcome = yield from session.store.copy_thread(address.thread_id, target, upto)
    if isinstance(outcome, Occupied):
        raise ThreadExists(f"thread {target!r} already holds checkpoints: fork to a new thread id, or delete it first")
    if isinstance(outcome, BaseGone):
        raise NotFound(f"{entry.address}: there is no such checkpoint")
    graph = yield from session.store.read_graph(target)
    ahead = set()  # checkpoints of subgraphs called by a step after the checkpoint (`durability="async"`)
    for node in graph.nodes:
        if node.address.checkpoint_ns:
            callers = unpack_header(node.header, session.codec, node.address).metadata.get("parents")
            if isinstance(callers, dict) and callers.get("") == entry.address.checkpoint_id:
                ahead.add(node.stamp)
    graph = replace(graph, nodes=tuple(node for node in graph.nodes if node.stamp not in ahead))
    yield from tell(session.hooks.after_copy, session, Copy(address.thread_id, target, entry.address, graph))
    if ahead:
        yield from session.store.remove_entries(target, ahead, {})
        graph = yield from session.store.read_graph(target)
    yield from session.store.remove_rows(target, live_runs(graph), graph)
    if by is not None:
        about = {"checkpoint": entry.address.checkpoint_id, "to": target}
        yield from append_act(session, address.thread_id, "forked", by, **about)


def thread_config(thread_id: str) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def _check_root(address: Address) -> None:
    if address.checkpoint_ns:
        raise InvalidInput(
            f"{address}: a subgraph is rewound with its root graph: name a checkpoint of the root graph, "
            f"such as one in 'parents' of its metadata"
        )


def _as_twin(session: Session, of: Entry | Node, marks: Mapping[str, Any]) -> Header:
    old = unpack_header(of.header, session.codec, of.address)
    about = {name: old.about[name] for name in CARRIED if name in old.about}
    checkpoint = {**old.checkpoint, "ts": session.clock().isoformat()}
    return Header(checkpoint, {**old.metadata, "source": "fork", **marks}, old.inline, about)


def _twin(session: Session, of: Entry | Node, parent: str | None, header: Header) -> NewEntry:
    step = header.metadata.get("step")
    address = replace(of.address, checkpoint_id=session.new_id(step if isinstance(step, int) else 0))
    packed = pack_header(header, session.codec, address)
    ts = header.checkpoint["ts"]
    return NewEntry(address, parent, packed, of.refs, base=of.stamp, run_id=of.run_id, updated_at=ts)


def _put(session: Session, new: NewEntry) -> Plan[Address]:
    outcome = yield from session.store.write_entry(new)
    session.memo.forget((new.address.thread_id, new.address.checkpoint_ns))
    if not isinstance(outcome, Stored):
        raise NotFound(f"{new.address}: the original checkpoint was deleted concurrently")
    return new.address
