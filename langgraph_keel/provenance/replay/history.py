"""The recorded history of a thread: its trunk, questions, answers and inputs.

Task ids are hashes of checkpoint ids, so a replay has different ones. A task is identified by its place, which has no
ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_keel._langgraph import ERROR, ERROR_SOURCE_NODE, INTERRUPT, NS_END, NS_SEP, NULL_TASK_ID, RESUME
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import unpack_batches, unpack_header
from langgraph_keel.engine.lineage import origin_of, root_of, walk_back
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import DriftDetected, NotFound
from langgraph_keel.provenance.reading import read_entries
from langgraph_keel.tools.ledger import read_ledger

ASKED, ANSWERED, FAILED = INTERRUPT, RESUME, ERROR
NO_RESULTS = frozenset({*WRITES_IDX_MAP, ERROR_SOURCE_NODE})
"""The channels to which an unfinished task may have written."""


class Place(NamedTuple):
    """The place of a task in a thread, without ids, so it is the same in a replay."""

    namespace: str
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class RecordedCheckpoint:
    """A recorded checkpoint, without its values."""

    address: Address
    parent: str | None
    step: int
    source: str  # `"input"`, `"loop"`, `"update"` or `"fork"`
    metadata: Mapping[str, Any]
    writes: Sequence[tuple[str, str, Any]] = field(repr=False)  # task, channel and value

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return str(self.address.checkpoint_id)

    @property
    def root(self) -> str:
        """The id of the root checkpoint to whose step it belongs."""
        return str(root_of(self.address, self.metadata) or "")

    @property
    def has_failed(self) -> bool:
        """Whether a task of the step that started here has failed."""
        return any(channel == FAILED for _, channel, _ in self.writes)

    @property
    def command_writes(self) -> list[tuple[str, Any]]:
        """The caller's writes with a `Command`, except answers."""
        ours = [(channel, value) for task, channel, value in self.writes if task == NULL_TASK_ID]
        return [(channel, value) for channel, value in ours if channel not in WRITES_IDX_MAP]


class History:
    """All checkpoints of a thread, in the order in which they were stored."""

    def __init__(self, thread_id: str, checkpoints: Sequence[RecordedCheckpoint], paths: Mapping[str, str]) -> None:
        self.thread_id = thread_id
        self.checkpoints = checkpoints
        self._paths = paths
        self._at = {checkpoint.address: checkpoint for checkpoint in checkpoints}
        self._roots = {each.address.checkpoint_id: each for each in checkpoints if not each.address.checkpoint_ns}
        self._origins = {name: origin_of(each.parent, each.metadata, self._roots) for name, each in self._roots.items()}
        self._of: defaultdict[str, list[RecordedCheckpoint]] = defaultdict(list)
        for checkpoint in checkpoints:
            self._of[checkpoint.root].append(checkpoint)

    def root(self, checkpoint_id: str | None) -> RecordedCheckpoint | None:
        """Return a checkpoint of the root graph."""
        return self.at("", checkpoint_id)

    def at(self, namespace: str, checkpoint_id: str | None) -> RecordedCheckpoint | None:
        """Return a checkpoint of any graph."""
        return self._at.get(Address(self.thread_id, namespace, checkpoint_id))

    def trunk(self, head: str | None, start: str | None) -> list[RecordedCheckpoint]:
        """Return the checkpoints from a start to the head, or to its last descendant."""
        end = head
        if start is not None:
            after = {start: None}  # descendants, in order
            for checkpoint in self.checkpoints:
                if not checkpoint.address.checkpoint_ns and checkpoint.parent in after:
                    after[checkpoint.id] = None
            end = head if head in after else next(reversed(after))
        way: list[RecordedCheckpoint] = []
        for checkpoint_id in walk_back(end, self._origins):
            checkpoint = self._roots[checkpoint_id]
            is_twin = self._origins[checkpoint_id] != checkpoint.parent
            if not is_twin or checkpoint.id == start:  # a twin is skipped: its original is on the way
                way.append(checkpoint)
            if checkpoint.id == start:
                break
        if not way:
            what = "has no checkpoints" if start is None else f"has no checkpoint {start!r} of its root graph"
            raise NotFound(f"thread {self.thread_id!r} {what}")
        return way[::-1]

    # -- places ------------------------------------------------------------------------------------------------

    def place(self, checkpoint: RecordedCheckpoint, task_id: str) -> Place:
        """Return the place of a task that started at a checkpoint."""
        parts = (each.partition(NS_END) for each in checkpoint.address.checkpoint_ns.split(NS_SEP) if each)
        where = NS_SEP.join(f"{name}{NS_END}{self._paths.get(task, '')}" for name, _, task in parts)
        return Place(where, checkpoint.step, self._paths.get(task_id, ""))

    def path(self, task_id: str) -> str:
        """Return LangGraph's path of a task; empty if it has written nothing."""
        return self._paths.get(task_id, "")

    def root_step(self, namespace: str, checkpoint_id: str | None) -> int | None:
        """Return the root graph's step of a checkpoint; `None` if it was removed."""
        checkpoint = self.at(namespace, checkpoint_id)
        if checkpoint is None or not namespace:
            return checkpoint.step if checkpoint else None
        outer = self.root(checkpoint.root)
        return outer.step + 1 if outer else None

    # -- questions ---------------------------------------------------------------------------------------------

    def _within(self, root: str) -> Iterator[tuple[RecordedCheckpoint, str, str, Any]]:
        for checkpoint in self._of.get(root, ()):
            yield from ((checkpoint, task, channel, value) for task, channel, value in checkpoint.writes)

    def pending(self, root: str) -> dict[str, tuple[Place, int]]:
        """Return pending questions by id: the asking task's place, and its answer count."""
        answers = self.answers(root)
        waiting = self._waiting(root)
        asked: dict[str, Place] = {}
        for checkpoint, task, channel, value in self._within(root):
            for question in value if channel == ASKED else ():
                place = self.place(checkpoint, task)
                # A question in a subgraph is also stored with each task around it; the innermost task asks it.
                if question.id in waiting and len(place.namespace) >= len(asked.get(question.id, ("",))[0]):
                    asked[question.id] = place
        return {name: (place, len(answers.get(place, ()))) for name, place in asked.items()}

    def _waiting(self, root: str) -> set[str]:
        checkpoint = self.root(root)
        writes = checkpoint.writes if checkpoint else ()
        done = {task for task, channel, _ in writes if channel not in NO_RESULTS}
        asked = [value for task, channel, value in writes if channel == ASKED and task not in done]
        return {question.id for questions in asked for question in questions}

    def questions(self, root: str) -> list[Any]:
        """Return the pending questions at a checkpoint."""
        waiting, checkpoint = self._waiting(root), self.root(root)
        values = [value for _, channel, value in (checkpoint.writes if checkpoint else ()) if channel == ASKED]
        return [question.value for asked in values for question in asked if question.id in waiting]

    def was_asked(self, root: str) -> bool:
        """Return whether a question was asked at a checkpoint, answered or not."""
        checkpoint = self.root(root)
        return any(channel == ASKED for _, channel, _ in (checkpoint.writes if checkpoint else ()))

    def was_left(self, root: str | None) -> bool:
        """Return whether a task at a checkpoint failed or asked, and so had to run again."""
        checkpoint = self.root(root)
        return checkpoint is not None and (checkpoint.has_failed or self.was_asked(checkpoint.id))

    def answers(self, root: str) -> dict[Place, list[Any]]:
        """Return the answers to each task of a root checkpoint's step, in order."""
        found: dict[Place, list[Any]] = {}
        for checkpoint, task, channel, value in self._within(root):
            if channel == ANSWERED and task != NULL_TASK_ID:
                found[self.place(checkpoint, task)] = list(value) if isinstance(value, list) else [value]
        return found

    def tasks(self, root: str) -> dict[Place, str]:
        """Return the tasks of a root checkpoint's step."""
        return {self.place(checkpoint, task): task for checkpoint, task, _, _ in self._within(root)}

    def last_answer(self, root: str) -> list[Any]:
        """Return the last answer if its run ended before a task took it, as a list."""
        checkpoint = self.root(root)
        taken = [answers[-1] for answers in self.answers(root).values() if answers]
        last = [v for task, c, v in (checkpoint.writes if checkpoint else ()) if (task, c) == (NULL_TASK_ID, ANSWERED)]
        return [answer for answer in last if answer not in taken]


def read_history(session: Session, thread_id: str) -> Plan[History]:
    """Read a thread's headers and writes, without values. Two trips a page."""
    found = yield from read_entries(session, Query(thread_id))
    paths: dict[str, str] = {}
    for _, batches in found:
        # A task whose writes come from an update has its own path in another batch.
        paths |= {batch.task_id: batch.task_path for batch in batches if batch.task_path}
    checkpoints: list[RecordedCheckpoint] = []
    for entry, batches in found:
        metadata = unpack_header(entry.header, session.codec, entry.address).metadata
        writes, _ = unpack_batches(batches, session.codec, entry.address)
        step, source = metadata.get("step"), str(metadata.get("source", ""))
        step = step if isinstance(step, int) else -1
        checkpoints.append(RecordedCheckpoint(entry.address, entry.parent, step, source, metadata, writes))
    return History(thread_id, checkpoints, defaultdict(str, paths))


Outcomes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Outcomes of tasks in an unfinished step, by path: `error`, `question` or empty."""


def find_outcomes(history: History, root: str) -> Outcomes:
    """Return the outcomes of unfinished tasks of a root checkpoint's step, by path."""
    found = ((path, _outcome(left)) for path, left in _last_writes(history, root).items() if left.keys() <= NO_RESULTS)
    return {path: outcome for path, outcome in found if outcome}


def _last_writes(history: History, root: str) -> Mapping[str, dict[str, Any]]:
    checkpoint, found = history.root(root), defaultdict[str, dict[str, Any]](dict)
    for task, channel, value in checkpoint.writes if checkpoint else ():
        if task != NULL_TASK_ID:
            found[history.path(task)][channel] = value
    return found


def _outcome(left: Mapping[str, Any]) -> dict[str, Any]:
    # A resumed task that had failed may now ask; an answered task may have failed on the answer.
    if ASKED in left and not (FAILED in left and ANSWERED in left):
        return {"question": [question.value for question in left[ASKED]]}
    error = str(left.get(FAILED, "")).partition("(")[0]  # stored as its `repr`
    # `DriftDetected` comes from the saver, not from the graph, and a replay ignores drift.
    return {"error": error} if error not in ("", DriftDetected.__name__) else {}


def find_questions(history: History, root: str) -> Outcomes:
    """Return the last question of each task of a root checkpoint's step, by path."""
    found = ((path, left[ASKED]) for path, left in _last_writes(history, root).items() if ASKED in left)
    return {path: {"question": [question.value for question in asked]} for path, asked in found}


class Recall:
    """Finds the answers and `Command` updates that the original's runs were given."""

    def __init__(self, history: History, taken: Mapping[str, Collection[int]]) -> None:
        self._history = history
        # Per task, the indexes of answers that tools used: in a replay, the ledger answers these tools.
        self._taken = taken
        self._done: set[str] = set()

    @classmethod
    def read(cls, session: Session, history: History, allowed: Collection[str]) -> Plan[Recall]:
        """Read from the ledger which answers tools used; allowed tools ask again."""
        taken: defaultdict[str, set[int]] = defaultdict(set)
        for record in (yield from read_ledger(session, history.thread_id)).values():
            if record.tool not in allowed:
                taken[record.task_id].update(record.taken)
        return cls(history, taken)

    def find_command(self, before: RecordedCheckpoint) -> Any:
        """Return the `Command` updates at a checkpoint as one command, the first time."""
        if not before.command_writes or before.id in self._done:
            return None
        self._done.add(before.id)
        return _command(update=before.command_writes)

    def find_answers(self, before: RecordedCheckpoint, asked: Mapping[str, tuple[Place, int]]) -> Any:
        """Return a command with the next answers to questions; `None` if not recorded."""
        tasks, answers = self._history.tasks(before.id), self._history.answers(before.id)
        for place, all_given in answers.items():
            taken = self._taken.get(tasks[place], ())
            answers[place] = [answer for nth, answer in enumerate(all_given) if nth not in taken]
        given = {name: answers[place][nth] for name, (place, nth) in asked.items() if nth < len(answers.get(place, ()))}
        if not given and len(asked) == 1 and before.id not in self._done:
            given = {name: answer for name in asked for answer in self._history.last_answer(before.id)}
            self._done.add(before.id)
        if not given:
            return None
        command = self.find_command(before)
        return _command(resume=given, update=None if command is None else command.update)


def _command(**parts: Any) -> Any:
    from langgraph.types import Command  # not at the top: it takes as long to import as all of Keel's core

    return Command(**parts)
