"""Orphans: earlier calls whose results are not in the thread.

A call is identified by the checkpoint of its step. If that is lost with its process (or left by a rewind), the run
starts again from an earlier one, the model is called again, and the same call gets another id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from langgraph_keel._langgraph import CONFIG_KEY_CHECKPOINTER
from langgraph_keel.engine.config import must_follow_head, stores_at_end
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.engine.entries import BRANCHED_FROM, REWOUND_TO, Header, UnreadHeader
from langgraph_keel.engine.lineage import Ancestry, NodeAndHeader
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Graph, Node
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Kept
from langgraph_keel.tools.ledger import DONE, FAILED, WAITING, CallRecord, is_same_call

NOTE = "invocation"
"""Key in a header's `about`: the invocation at whose end the checkpoint was stored."""


class Parting(NamedTuple):
    """The outermost graph in which two calls' steps differ, and their checkpoints."""

    namespace: str
    theirs: str
    ours: str


def steps_of(record: CallRecord) -> Mapping[str, str]:
    """Return the checkpoints of a call's step in its own and all enclosing graphs."""
    return record.steps or {record.checkpoint_ns: record.checkpoint_id}


def find_parting(record: CallRecord, mine: CallRecord) -> Parting | None:
    """Return where the paths of two calls diverge; `None` if nowhere, or unknown."""
    theirs, ours = steps_of(record), steps_of(mine)
    for namespace in sorted(ours, key=len):
        if namespace in theirs and theirs[namespace] != ours[namespace]:
            return Parting(namespace, theirs[namespace], ours[namespace])
    return None


@dataclass(frozen=True, slots=True)
class Past:
    """The history of a checkpoint."""

    way: Set[str]  # the checkpoint and its ancestors
    steps: Set[str]  # those whose step's results are in its state
    invocations: Mapping[str, str]  # those that ended on the path, and the last checkpoint of each
    originals: Set[str]  # of the twins on the path

    def knows(self, record: CallRecord, checkpoint_id: str) -> bool:
        """Return whether the state has the result of a call of this checkpoint's step."""
        is_told = not (self.way | self.originals).isdisjoint(record.past_of)
        is_told |= not self.steps.isdisjoint(record.told_at)
        return is_told or self.has(checkpoint_id, record.invocation)

    def has(self, checkpoint_id: str, invocation: str) -> bool:
        """Return whether the state contains the results of a step."""
        # The checkpoint ids of one process are in order of creation.
        return checkpoint_id in self.steps or checkpoint_id < self.invocations.get(invocation, "")


def read_past(moments: Sequence[NodeAndHeader], starts: Iterable[Node]) -> Past:
    """Return the past of checkpoints of one namespace."""
    headers = {node.address.checkpoint_id: header for node, header in moments}
    way, steps, invocations, originals = set[str](), set[str](), dict[str, str](), set[str]()
    for node in Ancestry(node for node, _ in moments).way(*starts):
        own = headers[node.address.checkpoint_id].metadata
        originals |= {str(own[mark]) for mark in (REWOUND_TO, BRANCHED_FROM) if mark in own}
        header = _original(headers[node.address.checkpoint_id], headers)
        way.add(str(node.address.checkpoint_id))
        # An input, an update or a copy continues without the results of the step before. For a twin whose original
        # is gone this is unknown; most twins are of a step.
        if node.parent and (header is None or header.metadata.get("source") == "loop"):
            steps.add(node.parent)
        if header and (name := header.about.get(NOTE)):
            invocations[str(name)] = max(str(node.address.checkpoint_id), invocations.get(str(name), ""))
    return Past(way, steps, invocations, originals)


def _original(header: Header, headers: Mapping[Any, Header]) -> Header | None:
    """Return a twin's original header, or its own; `None` if the original is gone."""
    for _ in headers:  # stored references may be circular
        mark = next((mark for mark in (REWOUND_TO, BRANCHED_FROM) if mark in header.metadata), None)
        if mark is None:
            return header
        original = headers.get(str(header.metadata[mark]))
        if original is None:
            return None
        header = original
    return None


@dataclass(frozen=True, slots=True)
class Orphan:
    """An earlier call whose result is not in its thread."""

    key: str
    kept: Kept[CallRecord]
    is_certain: bool = True  # the thread cannot contain its result


@dataclass(frozen=True, slots=True)
class Pending:
    """Not decidable yet: the checkpoint of the step is still being stored."""


def find_orphan(
    session: Session,
    mine: CallRecord,
    equals: Mapping[str, Kept[CallRecord]],
    config: Mapping[str, Any],
    is_patient: bool,
) -> Plan[Orphan | Pending | None]:
    """Return the orphan that a call continues, if any. One trip, or none.

    An equal call is past if it is of the same step, or the thread continued from its result: a step led from its
    checkpoint to ours. If an invocation stores no checkpoint before its end, its calls are recognized by its name.
    """
    orphans = [Orphan(key, kept) for key, kept in equals.items() if is_same_call(kept.record, mine)]
    theirs: dict[str, dict[str, str]] = {}
    for key, kept in equals.items():
        parting = find_parting(kept.record, mine)
        if parting and (parting.namespace or not _is_own(kept.record, mine)):
            theirs.setdefault(parting.namespace, {})[key] = parting.theirs
    graph = (yield from session.store.read_graph(mine.thread_id)) if theirs else Graph([], {}, None)
    for namespace, steps in theirs.items():
        nodes = [node for node in graph.nodes if node.address.checkpoint_ns == namespace]
        stored = {node.address.checkpoint_id: node for node in nodes}
        ours = stored.get(steps_of(mine)[namespace])
        # Subgraphs without a checkpointer store none at all.
        if ours is None and is_patient and (not namespace or not stored.keys().isdisjoint(steps.values())):
            return Pending()
        start: Node | None = ours
        if start is None and must_follow_head(config, {}):
            start = next((node for node in nodes if node.is_head), None)
        past = read_past([(node, UnreadHeader(node, session.codec)) for node in nodes], [start] if start else [])
        for key, step in steps.items():
            record = equals[key].record
            is_on = _is_own(record, mine) and step not in past.way  # in a subgraph: it has continued since
            if not is_on and not past.knows(record, step):
                # A run with durability="exit" may continue from its first step, or have new input instead.
                is_certain = start is None or start is ours or start.address.checkpoint_id != step
                orphans.append(Orphan(key, equals[key], is_certain))
    return _choose(orphans, equals, mine)


def _is_own(record: CallRecord, mine: CallRecord) -> bool:
    return bool(mine.invocation) and record.invocation == mine.invocation


def _choose(orphans: Collection[Orphan], equals: Mapping[str, Kept[CallRecord]], mine: CallRecord) -> Orphan | None:
    """Return the orphan that a call continues: one with its id, otherwise the first."""
    lost = {orphan.key for orphan in orphans}
    # Calls with one idempotency key are one call on several branches: no orphan if the thread contains one of them.
    known = {kept.record.lineage for key, kept in equals.items() if key not in lost}
    of_lineage: dict[str, Orphan] = {}
    for orphan in sorted(orphans, key=lambda each: (each.kept.record.state != DONE, each.key)):
        record, is_done = orphan.kept.record, orphan.kept.record.state == DONE
        # A tool that asked a person asks again.
        has_asked = record.state == WAITING or (is_done and record.is_persons and not record.decided)
        is_usable = not has_asked and (not is_done or orphan.kept.cell.is_live(mine.started_at))
        if record.lineage not in known and is_usable:
            of_lineage.setdefault(record.lineage, orphan)

    def rank(orphan: Orphan) -> tuple[bool, bool, int, str]:
        record = orphan.kept.record
        is_named_so = (record.tool_call_id, record.place) == (mine.tool_call_id, mine.place)
        return not is_named_so, record.state == FAILED, record.started_at, orphan.key

    return min(of_lineage.values(), key=rank, default=None)


def stores_meanwhile(session: Session, config: Mapping[str, Any]) -> bool:
    """Return whether a missing checkpoint of a step is still being stored."""
    values = config.get("configurable") or {}
    engine = engine_of(values.get(CONFIG_KEY_CHECKPOINTER))
    is_same_store = engine is not None and engine.session.store is session.store
    return is_same_store and not stores_at_end(config)
