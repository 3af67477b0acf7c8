"""Runs the graph of a replay, some steps at a time, in a fork."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.engine import checkpoints
from langgraph_keel.engine.config import Address, config_of
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.lineage import NodeAndHeader
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query, Stamp
from langgraph_keel.engine.removal import remove
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.errors import NotFound, StoreError
from langgraph_keel.provenance.hook import Recorder
from langgraph_keel.provenance.reading import read_calls
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.history import History, Place, RecordedCheckpoint, read_history
from langgraph_keel.tools.guard import Refused, ToolGuard


@dataclass(slots=True)
class Played:
    """The result of a run."""

    made: list[tuple[int, str]] = field(default_factory=list)  # steps and the ids of their checkpoints
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Play(Call):
    """A request: run the graph until a step is made, without starting the next one."""

    graph: Any
    given: Any
    config: Mapping[str, Any]
    until: int
    since: str | None  # the checkpoint from which it starts, which LangGraph reports again
    guard: ToolGuard
    options: Mapping[str, Any]
    on_step: Callable[[int], object] | None

    def do(self) -> Played:
        """Run the graph in this thread."""
        played = Played()
        with self.guard.active(), closing(self._events(self.graph.stream)) as events:
            for event in _until_it_fails(events, played):
                if self._is_over(played, event):
                    break
        return played

    async def ado(self) -> Played:
        """Run the graph in this event loop."""
        played = Played()
        with self.guard.active():
            async with aclosing(self._events(self.graph.astream)) as events:
                async for event in _auntil_it_fails(events, played):
                    if self._is_over(played, event):
                        break
        return played

    def _events(self, stream: Callable[..., Any]) -> Any:
        # LangGraph reports a checkpoint when it is stored, before it starts a task of the next step.
        return stream(self.given, self.config, stream_mode="checkpoints", durability="sync", **self.options)

    def _is_over(self, played: Played, event: Mapping[str, Any]) -> bool:
        if self.guard.refused:
            return True  # the step was made without a tool's result
        step, made = event["metadata"]["step"], event["config"]["configurable"]["checkpoint_id"]
        if made == self.since:
            return False
        played.made.append((step, made))
        self.guard.step = step + 1
        if self.on_step is not None:
            self.on_step(step)
        return bool(step >= self.until)


def _keep_error(error: BaseException, played: Played) -> None:
    """Keep an exception of the graph; store errors are raised."""
    # Refusals of tools, also in a group, are ignored: the guard has noted them.
    is_refusal = isinstance(error, BaseExceptionGroup) and error.subgroup(Refused)
    if isinstance(error, Refused) or is_refusal:
        return
    if isinstance(error, StoreError) or not isinstance(error, Exception):
        raise error
    played.error = error


def _until_it_fails(events: Iterator[Any], played: Played) -> Iterator[Any]:
    try:
        yield from events
    except BaseException as error:
        _keep_error(error, played)


async def _auntil_it_fails(events: AsyncIterator[Any], played: Played) -> AsyncIterator[Any]:
    try:
        async for event in events:
            yield event
    except BaseException as error:
        _keep_error(error, played)


def cached_subgraphs(graph: Any) -> list[str]:
    """Return the subgraphs whose own cache may answer nodes."""
    # Only the root graph's cache is disabled.
    inner = ((name, each) for name, each in graph.get_subgraphs(recurse=True) if getattr(each, "cache", None))
    return [name for name, each in inner if each.cache_policy or any(node.cache_policy for node in each.nodes.values())]


class Fork:
    """The thread to which a replay writes."""

    def __init__(self, session: Session, thread_id: str) -> None:
        self.thread_id = thread_id
        self.head: str | None = None  # the id of its latest checkpoint
        self.questions: Sequence[Any] = ()  # the pending ones, as of the last call of `pending`
        self._session = session

    def begin_at(self, source: History, first: RecordedCheckpoint) -> Plan[None]:
        """Start with a recorded checkpoint and its history."""
        # Subgraphs and delta channels need the history.
        before = {each.id for each in source.trunk(first.parent, None)} if source.root(first.parent) else set()
        inner = any(each.address.checkpoint_ns and each.id < first.id for each in source.checkpoints)
        if before or inner:
            # Without hooks, so that no feature copies its cells.
            plain = replace(self._session, hooks=Hooks())
            yield from checkpoints.copy_thread(plain, source.thread_id, self.thread_id)
            yield from remove(plain, self.thread_id, partial(_choose_kept, before=before, first=first.id))
        # Stored again without the writes of its tasks, which will run again.
        found = yield from self.read(first)
        yield from self._put(found, first.id, first.parent)

    def copy(self, recorded: RecordedCheckpoint, parent: str | None) -> Plan[str]:
        """Store a recorded checkpoint under a new id; return the id."""
        found = yield from self.read(recorded)
        made = str(uuid6(clock_seq=recorded.step))
        yield from self._put(found, made, parent)
        return made

    def read(self, recorded: RecordedCheckpoint) -> Plan[CheckpointTuple]:
        """Read a recorded checkpoint."""
        found = yield from checkpoints.get_tuple(self._session, config_of(recorded.address, "named"))
        if found is None:
            raise NotFound(f"{recorded.address} was deleted while the thread was replayed")
        return found

    def _put(self, found: CheckpointTuple, checkpoint_id: str, parent: str | None) -> Plan[None]:
        config = config_of(Address(self.thread_id, "", parent), "named")
        checkpoint = cast(Any, {**found.checkpoint, "id": checkpoint_id})
        yield from checkpoints.put(self._session, config, checkpoint, cast(CheckpointMetadata, dict(found.metadata)))
        self.head = checkpoint_id

    def pending(self) -> Plan[Mapping[str, tuple[Place, int]]]:
        """Return pending questions by id: the asking task, and its number of answers."""
        found = yield from checkpoints.get_tuple(self._session, config_of(Address(self.thread_id, "", None), "head"))
        if found is None or not any(channel == INTERRUPT for _, channel, _ in found.pending_writes or ()):
            return {}
        history = yield from read_history(self._session, self.thread_id)
        head = found.checkpoint["id"]
        self.questions = history.questions(head)
        return history.pending(head)

    def calls(self, old: Collection[str]) -> Plan[list[ModelCall]]:
        """Return the model calls made in the fork; those in `old` were copied."""
        stored = yield from read_calls(self._session, Query(self.thread_id))
        recorder = self._session.hooks.find(Recorder)
        waiting = recorder.find_waiting(self.thread_id) if recorder else ()
        return [call for call in (*stored, *waiting) if call.id not in old]


def _choose_kept(nodes: Sequence[NodeAndHeader], before: Collection[str], first: str) -> set[Stamp]:
    """Return the entries of a copy to keep: ancestors, and earlier ones of subgraphs."""
    places = [(node.stamp, node.address.checkpoint_ns, str(node.address.checkpoint_id)) for node, _ in nodes]
    return {stamp for stamp, namespace, name in places if (name < first if namespace else name in before)}
