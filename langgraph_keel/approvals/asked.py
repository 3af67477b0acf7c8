"""The questions of a step's tasks, and which are open, read from their writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from langgraph_keel._langgraph import ERROR, INTERRUPT, NS_SEP, NULL_TASK_ID, RESUME
from langgraph_keel.approvals.interrupts import interrupts_in
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import has_result, pending_writes, unpack_batch
from langgraph_keel.engine.events import Reading
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Batch, Entry, Found, Query
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple, PendingWrite
    from langgraph.types import Interrupt

_LOOKED_AT = 200
"""Maximum newest checkpoints that are searched for those of subgraphs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a task.

    It is open until the task has a result, asks the next question, or has failed with an answer to it.
    """

    # LangGraph keeps a task's last question and all its answers so far, and passes the answers to its next attempt.
    interrupt: Interrupt
    task_id: str  # of the root graph
    before: Sequence[Any]  # answers to earlier questions of its task
    is_open: bool
    is_last: bool  # its task has not reached another question or a result
    is_done: bool  # its task has a result
    may_be_inside: bool  # the task has failed since without its own answer: a subgraph may have one
    answers: Sequence[Any]  # one, or none if it is not known
    writer: tuple[str, str, Address]  # task, path and checkpoint under which the answers are stored


@dataclass(slots=True)
class _Task:
    path: str
    asked: dict[str, tuple[Interrupt, int]] = field(default_factory=dict)
    last: Sequence[str] = ()
    answers: Sequence[Any] = ()
    is_done: bool = False
    has_failed: bool = False


def read_questions(batches: Sequence[Batch], codec: Codec, where: Address) -> Mapping[str, Asked]:
    """Return the questions of a step's tasks, answered or not, by interrupt id."""
    tasks: dict[str, _Task] = {}
    for batch in batches:
        if batch.task_id == NULL_TASK_ID:
            continue
        task = tasks.setdefault(batch.task_id, _Task(batch.task_path))
        writes = {channel: value for channel, _, value in unpack_batch(batch, codec, where)}
        given = writes.get(RESUME)
        if RESUME in writes:
            task.answers = given if isinstance(given, list) else [given]
        if INTERRUPT in writes:
            asks = interrupts_in(writes[INTERRUPT])
            had = len(task.answers)
            task.asked |= {each.id: (each, had) for each in asks}
            task.last, task.has_failed = [each.id for each in asks], False
        elif ERROR in writes:
            task.has_failed = True
        task.is_done = task.is_done or has_result(writes)
    found: dict[str, Asked] = {}
    for task_id, task in tasks.items():
        for name, (interrupt, had) in task.asked.items():
            before, answers = task.answers[:had], task.answers[had : had + 1]
            is_last = name in task.last and not task.is_done
            is_open = is_last and len(task.answers) == had  # with fewer, the next attempt asks an earlier question
            is_inside = is_open and task.has_failed
            writer = task_id, task.path, where
            new = Asked(interrupt, task_id, before, is_open, is_last, task.is_done, is_inside, answers, writer)
            found[name] = _merge(found[name], new) if name in found else new
    return found


def _merge(one: Asked, other: Asked) -> Asked:
    """Merge a question that two tasks have written: the asking one and the outer one."""
    known = one if one.answers or not one.is_open else other
    is_open, is_last = one.is_open and other.is_open, one.is_last and other.is_last
    return replace(known, is_open=is_open, is_last=is_last, is_done=one.is_done or other.is_done)


def find_questions(session: Session, head: Found, taken: Mapping[str, str]) -> Plan[Mapping[str, Asked]]:
    """Return `read_questions` of a root checkpoint, and of subgraphs if needed.

    Two trips if subgraphs must be read, else none.
    """
    found = dict(read_questions(head.batches, session.codec, head.entry.address))
    inside = {
        name: asked
        for name, asked in found.items()
        if asked.may_be_inside or taken.get(name, asked.task_id) != asked.task_id
    }
    if not inside:
        return found
    heads = yield from _read_below(session, head.entry.address.thread_id, {each.task_id for each in inside.values()})
    below = [read_questions(each.batches, session.codec, each.entry.address) for each in heads]
    for name, asked in inside.items():
        known = [questions[name] for questions in below if name in questions]
        is_of_subgraph = any(_is_under(each.entry, asked.task_id) for each in heads)
        for each in known:
            found[name] = replace(_merge(found[name], each), task_id=asked.task_id)
        if is_of_subgraph and not known:  # the subgraph has continued after the step that asked
            found[name] = replace(asked, is_open=False, is_last=False, is_done=True)
    return found


def without_spent(session: Session, reading: Reading, is_by_id: bool) -> Plan[CheckpointTuple | None]:
    """Return a checkpoint to continue from, without a plain answer that was used.

    LangGraph keeps the answer, and passes it to the next question of another run, which the person has not seen: after
    an answer by id, and in subgraphs (seen with 1.2.24). No trip, or two if only a subgraph can have used it.
    """
    found = reading.result
    writes = (found and found.pending_writes) or []
    if found is None or all(write[:2] != (NULL_TASK_ID, RESUME) for write in writes):
        return found
    if not is_by_id and not _has_answer(writes):
        tasks = {task for task, channel, _ in writes if channel == INTERRUPT}
        heads = yield from _read_below(session, reading.address.thread_id, tasks)
        if not any(_has_answer(pending_writes(each.batches, session.codec, each.entry.address)) for each in heads):
            return found
    return found._replace(pending_writes=[write for write in writes if write[:2] != (NULL_TASK_ID, RESUME)])


def _has_answer(writes: Iterable[PendingWrite]) -> bool:
    return any(task != NULL_TASK_ID and channel == RESUME for task, channel, _ in writes)


def _read_below(session: Session, thread_id: str, tasks: Set[str]) -> Plan[Sequence[Found]]:
    """Return the latest checkpoints of tasks' subgraphs, with writes only. Two trips."""
    latest: dict[str, Entry] = {}
    for entry in (yield from session.store.scan(Query(thread_id, None, limit=_LOOKED_AT))):
        if any(_is_under(entry, task) for task in tasks):
            latest.setdefault(entry.address.checkpoint_ns, replace(entry, refs={}))
    return (yield from session.store.read_values(list(latest.values()))) if latest else ()


def _is_under(entry: Entry, task_id: str) -> bool:
    return entry.address.checkpoint_ns.split(NS_SEP)[0].endswith(f":{task_id}")


def waiting_in(questions: Mapping[str, Asked]) -> Iterator[Asked]:
    """Yield the open questions."""
    return (asked for asked in questions.values() if asked.is_open)


def without_replaced(reading: Reading, codec: Codec, answers: Mapping[str, Any]) -> CheckpointTuple | None:
    """Return a checkpoint without stored answers that the run replaces by id."""
    # LangGraph treats a second answer to a task's first question as one to the next question (`_scratchpad`, 1.2.24).
    found = reading.result
    writes = (found and found.pending_writes) or []
    if found is None or not _has_answer(writes):
        return found
    places: dict[str, int] = {}
    asked = read_questions(reading.batches, codec, reading.address)
    given = [each for name, each in asked.items() if name in answers]
    takes_next = {each.writer[0] for each in given if each.is_open}  # LangGraph reads that answer first
    for each in given:
        task, place = each.writer[0], len(each.before)
        if each.answers and task not in takes_next:
            places[task] = min(place, places.get(task, place))
    kept = [
        (task, channel, value[: places[task]] if channel == RESUME and task in places else value)
        for task, channel, value in writes
    ]
    return found._replace(pending_writes=kept) if places else found
