"""Going back and branching off: a checkpoint made the latest again, a branch beside the trunk, a thread of its own.

Nothing is deleted, and no value is read or written. Going back adds a *twin*: another checkpoint with the refs of the
old one and the old one's parent. With the old one itself as its parent, the writes that led on from there would count
twice in delta channels. It takes no writes along, so that its step runs anew: tasks and questions have new ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_keel.engine.audit import append_act, check_by
from langgraph_keel.engine.config import Address, config_of, thread_id_of
from langgraph_keel.engine.entries import STATE, Header, pack_header, rest_of, unpack_header
from langgraph_keel.engine.events import Copy, Travel
from langgraph_keel.engine.lineage import BRANCHED_FROM, FORKED_FROM, REWOUND_TO, find_moves_back
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import BaseGone, Entry, Graph, NewEntry, Node, Occupied, Query, Stored
from langgraph_keel.engine.removal import check_objects, live_runs
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session, tell
from langgraph_keel.errors import InvalidInput, NotFound, ThreadExists

CARRIED = ("known", "first", STATE)
"""What a header's `about` says of the thread at this point, not of the step that led there (`provenance.hook`)."""


def rewind(session: Session, address: Address, by: str | None = None) -> Plan[Address]:
    """Make a checkpoint of the root graph the latest of its thread again; return the address of its twin.

    Subgraphs with a memory of their own (`checkpointer=True`) go back with it (`engine.lineage`). Two trips, and one
    more for each of those that moves; more, if a question is known to wait. The first reads the headers of the whole
    thread, however long it is: nothing else tells which namespaces there are.

    The root goes last: a crash in between leaves a thread that goes on from where it was, with the memories of some
    subgraphs as they were at the moment. To rewind again completes it.
    """
    _check_root(address)
    graph = yield from session.store.read_graph(address.thread_id)
    moment = _find_moment(graph, address)
    travel = Travel("rewound", moment.address)
    return (yield from _travel(session, travel, _take_back(session, graph, moment), by))


def _travel(session: Session, travel: Travel, plan: Plan[tuple[Address, Header]], by: str | None) -> Plan[Address]:
    """Carry out a plan that adds a twin, and tell the hooks of it, and the audit trail if somebody is named."""
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
    for namespace, memory in find_moves_back(graph, moment, session.codec).items():
        if memory is None:
            # The checkpoint that LangGraph takes where it finds none, so that the subgraph begins as if it never ran.
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
    address = yield from _put(session, _twin(session, node, node.parent, header))
    return address, header


def branch(session: Session, address: Address, by: str | None = None) -> Plan[Address]:
    """Begin a branch at a checkpoint of the root graph; return the address of its twin beside the trunk.

    The twin is not the latest until something is put on it, by a run that is given its config. Two trips; three where
    the parent is kept for delta channels only. There is one case with nothing to be beside, so that the twin is the
    latest: the checkpoint's parent is the latest itself (what had followed it there was deleted).

    Subgraphs with a memory of their own have one memory for all branches, as everywhere in LangGraph.
    """
    _check_root(address)
    entry = yield from _read_entry(session, address)
    return (yield from _travel(session, Travel("branched", entry.address), _put_branch(session, entry), by))


def _put_branch(session: Session, entry: Entry) -> Plan[tuple[Address, Header]]:
    header = _as_twin(session, entry, {BRANCHED_FROM: entry.address.checkpoint_id})
    parent = entry.parent or (yield from _hidden_parent(session, entry.address, header))
    new = replace(_twin(session, entry, parent, header), checked=True, on_conflict="fork")
    return (yield from _put(session, new)), header


def fork(session: Session, address: Address, target: str, by: str | None = None) -> Plan[Address]:
    """Make a thread of what another one was when a checkpoint was put; return the address of its latest.

    Ten trips; eleven where the threads may be on different servers; two more if steps after the checkpoint had
    overtaken it (`durability="async"`), which are left out; one for each prune that has carried records of calls, and
    for each owner that one has noted; two for an archive, and some more than one for each of its cells; for calls of
    tools see `tools.copies`. Rows are copied: the work grows with the history up to the checkpoint, not with what
    follows. A crash in between leaves a fork that is whole, with rows and perhaps entries more than it needs, and
    without archive or ledger: delete it and fork again.

    As after a prune, what shares a row with something that is shown stays with it: up to 32 small elements of a list
    are packed into one, so the bytes of a fork (never what it shows) may hold some from after the moment.
    """
    _check_root(address)
    check_by(by)
    entry = yield from _read_entry(session, address)
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
        raise _not_found(entry.address)
    graph = yield from session.store.read_graph(target)
    ahead = {node.stamp for node in graph.nodes if _called_by(node, session.codec) == entry.address.checkpoint_id}
    graph = replace(graph, nodes=tuple(node for node in graph.nodes if node.stamp not in ahead))
    yield from tell(session.hooks.after_copy, session, Copy(address.thread_id, target, entry.address, graph))
    if ahead:  # these belong to steps after its latest checkpoint
        yield from session.store.remove_entries(target, ahead, {})
        graph = yield from session.store.read_graph(target)
    yield from session.store.remove_rows(target, live_runs(graph), graph)
    if by is not None:
        about = {"checkpoint": entry.address.checkpoint_id, "to": target}
        yield from append_act(session, address.thread_id, "forked", by, **about)
    return replace(entry.address, thread_id=target)


def rewind_to(session: Session, address: Address, by: str | None) -> Plan[RunnableConfig]:
    """As `rewind`; return the config of the thread."""
    return thread_config((yield from rewind(session, address, by)).thread_id)


def fork_at(session: Session, address: Address, thread_id: str | None, by: str | None) -> Plan[RunnableConfig]:
    """As `fork`, or without `thread_id` as `branch`; return the config to go on from."""
    if thread_id is None:
        return config_of((yield from branch(session, address, by)), "named")
    return thread_config((yield from fork(session, address, thread_id_of(thread_id), by)).thread_id)


def thread_config(thread_id: str) -> RunnableConfig:
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread_id}}


def _called_by(node: Node, codec: Codec) -> object:
    """Return the id of the root checkpoint that called a subgraph's step; `""` for a root checkpoint."""
    if not node.address.checkpoint_ns:
        return ""
    parents = unpack_header(node.header, codec, node.address).metadata.get("parents")
    return parents.get("") if isinstance(parents, dict) else None


# -- the checkpoint that is meant ------------------------------------------------------------------------------------


def _check_root(address: Address) -> None:
    if address.checkpoint_ns:
        raise InvalidInput(
            f"{address}: a subgraph is taken back with its root graph: name a checkpoint of that, "
            f"such as its metadata's 'parents' tells"
        )


def _not_found(address: Address) -> NotFound:
    return NotFound(f"{address}: there is no such checkpoint")


def _find_moment(graph: Graph, address: Address) -> Node:
    for node in graph.nodes:
        is_it = node.address == address if address.checkpoint_id else node.is_head and not node.address.checkpoint_ns
        if is_it and not node.is_ghost:
            return node
    raise _not_found(address)


def _read_entry(session: Session, address: Address) -> Plan[Entry]:
    """Read a checkpoint without its values, or the latest: that with them, as only `read_entry` knows which it is."""
    if address.checkpoint_id is None:
        found = yield from session.store.read_entry(address)
        entries: Sequence[Entry] = [found.entry] if found else ()
    else:
        query = Query(address.thread_id, address.checkpoint_ns, address.checkpoint_id, limit=1)
        entries = yield from session.store.scan(query)
    if not entries:
        raise _not_found(address)
    return entries[0]


def _hidden_parent(session: Session, address: Address, header: Header) -> Plan[str | None]:
    """Return the parent of a checkpoint that has none to be read: one that is kept for delta channels only."""
    channels = header.metadata.get("counters_since_delta_snapshot")
    if not channels:
        return None
    ancestors = yield from session.store.read_history(address, list(channels))
    return ancestors[0].entry.address.checkpoint_id if ancestors else None


# -- what is added ---------------------------------------------------------------------------------------------------


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
        raise NotFound(f"{new.address}: what it was to be a twin of was deleted meanwhile")
    return new.address
