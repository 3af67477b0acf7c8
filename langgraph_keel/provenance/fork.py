"""The thread that a replay writes to: what it begins with, what is put into it, what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from langgraph_keel.core.address import config_of
from langgraph_keel.core.checkpoints import Checkpoints, where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import Plan
from langgraph_keel.core.policies import Moment as Node
from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.core.recorded import recorded
from langgraph_keel.core.records import Address, Query, Stamp
from langgraph_keel.core.removing import remove
from langgraph_keel.errors import NotFound
from langgraph_keel.provenance.history import History, Moment, Place, read_history


class Fork:
    """The thread of a replay.

    Args:
        core: The store.
        codec: How values are written.
        thread_id: Its id, which no thread has.

    Attributes:
        head: The id of its latest checkpoint.
        questions: What it waits for, as far as `pending` has found out.
    """

    def __init__(self, core: Checkpoints[Any, Any], codec: Codec, thread_id: str) -> None:
        self.thread_id = thread_id
        self.head: str | None = None
        self.questions: Sequence[Any] = ()
        self._core = core
        self._codec = codec

    def begin_at(self, source: History, first: Moment) -> Plan[Any, Any, None]:
        """Begin with a recorded checkpoint, and with what there was before it: subgraphs and delta channels need that.

        The checkpoint itself is put anew, without the writes of its tasks, which are to run again.
        """
        before = {moment.id for moment in source.trunk(first.parent, None)} if source.root(first.parent) else set()
        inner = any(moment.address.checkpoint_ns and moment.id < first.id for moment in source.moments)
        if before or inner:
            yield from self._core.copy_thread(source.thread_id, self.thread_id)
            kept = partial(_kept, before=before, first=first.id)
            yield from remove(self._core, self._codec, self.thread_id, kept)
        found = yield from self.read(first)
        yield from self._put(found, first.id, first.parent)

    def carry(self, moment: Moment, parent: str | None) -> Plan[Any, Any, str]:
        """Put a recorded checkpoint as it is, under an id of its own; return that."""
        found = yield from self.read(moment)
        made = str(uuid6(clock_seq=moment.step))
        yield from self._put(found, made, parent)
        return made

    def read(self, moment: Moment) -> Plan[Any, Any, CheckpointTuple]:
        """Read a recorded checkpoint.

        Raises:
            NotFound: It is gone by now.
        """
        found = yield from self._core.get_tuple(self._codec, config_of(moment.address, "named"))
        return _there(found, moment.address)

    def _put(self, found: CheckpointTuple, checkpoint_id: str, parent: str | None) -> Plan[Any, Any, None]:
        config = config_of(Address(self.thread_id, "", parent), "named")
        checkpoint = cast(Any, {**found.checkpoint, "id": checkpoint_id})
        yield from self._core.put(self._codec, config, checkpoint, cast(CheckpointMetadata, dict(found.metadata)))
        self.head = checkpoint_id

    def pending(self) -> Plan[Any, Any, Mapping[str, tuple[Place, int]]]:
        """Return the questions it waits for: by their ids, who asks, and how many answers that one has got."""
        found = yield from self._core.get_tuple(self._codec, config_of(Address(self.thread_id, "", None), "head"))
        if found is None or not any(channel == "__interrupt__" for _, channel, _ in found.pending_writes or ()):
            return {}
        history = yield from read_history(self._core, self._codec, self.thread_id)
        head = found.checkpoint["id"]
        self.questions = history.questions(head)
        return history.pending(head)

    def calls(self, old: Collection[str]) -> Plan[Any, Any, list[ModelCall]]:
        """Return the calls of models that were made in it; those in `old` were copied."""
        stored = yield from recorded(self._core, self._codec, Query(self.thread_id))
        recorder = self._core.recorder
        waiting = recorder.waiting(self.thread_id) if recorder else ()
        found = [*stored, *(replace(call, thread_id=self.thread_id) for call in waiting)]
        return [call for call in found if call.id not in old]


def _kept(nodes: Sequence[Node], before: Collection[str], first: str) -> set[Stamp]:
    """Return what stays of a copy: the way to its first checkpoint, and what other graphs had done by then."""
    places = [(node.stamp, node.address.checkpoint_ns, str(node.address.checkpoint_id)) for node, _ in nodes]
    return {stamp for stamp, namespace, name in places if (name < first if namespace else name in before)}


def _there(found: CheckpointTuple | None, address: Address) -> CheckpointTuple:
    if found is None:
        raise NotFound(f"{where_is(address)} was deleted while the thread was replayed")
    return found
