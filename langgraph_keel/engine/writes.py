"""Pending writes: what one task has produced before the step is over.

A store only appends; what repeated calls mean is decided here, on reading. A write is known by its task and index
(`WRITES_IDX_MAP` gives special channels fixed negative ones). Of a special write the last one counts, of
any other the first: LangGraph repeats a task's writes after a crash, and answers an interrupt again.

Answers that come when nothing is asked.

`Command(resume=value)` names no question: LangGraph writes the answer beside a checkpoint, for whatever is asked there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple, PendingWrite, writes_sort_key

from langgraph_keel._langgraph import ERROR, ERROR_SOURCE_NODE, INTERRUPT, NULL_TASK_ID, RESUME
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Q, R, StorePlan
from langgraph_keel.engine.records import Batch
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, ValueRefused

_BESIDE, _BESIDE_AT = "__keel_calls__", -100
"""The channel and the index of what is no write: what hooks have stored; LangGraph's special ones are from -1."""
_NO_RESULT = {INTERRUPT, RESUME, ERROR, ERROR_SOURCE_NODE}


def pack_batch(
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    codec: Codec,
    where: Address,
    beside: Sequence[Any] = (),
) -> Batch:
    """Return the writes of one call, and what hooks have to store with them.

    Raises:
        UnstorableValue: The serializer cannot store one of them; the error names its channel.
    """
    heads = [[channel, WRITES_IDX_MAP.get(channel, place)] for place, (channel, _) in enumerate(writes)]
    values = [codec.plain_error(value) if channel == ERROR else value for channel, value in writes]
    if beside:
        heads.append([_BESIDE, _BESIDE_AT])
    try:
        return Batch(task_id, task_path, codec.encode([heads, *values, *([list(beside)] if beside else [])]))
    except ValueRefused as error:
        raise error.at(f"{where}, writes of task {task_id} to {[channel for channel, _ in writes]}") from error


def _unpack(batch: Batch, codec: Codec, where: Address) -> Iterable[tuple[str, int, Any]]:
    try:
        heads, *values = codec.decode(batch.body)
        return [(channel, index, value) for (channel, index), value in zip(heads, values, strict=True)]
    except ValueRefused as error:
        raise error.at(f"{where}, writes of task {batch.task_id}") from error
    except (CorruptStore, TypeError, ValueError) as error:
        raise CorruptStore(f"{where}: writes of task {batch.task_id} do not decode: {error}") from error


def pending_writes(batches: Sequence[Batch], codec: Codec, where: Address) -> list[PendingWrite]:
    """Return the writes that count, in the order in which LangGraph applies them.

    Raises:
        CorruptStore: A batch is damaged.
        RefusedType: A write names a type that may not be revived here.
    """
    return unpack_batches(batches, codec, where)[0]


def unpack_batches(batches: Sequence[Batch], codec: Codec, where: Address) -> tuple[list[PendingWrite], list[Any]]:
    """As `pending_writes`, and what hooks have stored with them, as it was stored, one item a call."""
    kept: dict[tuple[str, int], tuple[str, PendingWrite]] = {}
    beside: list[Any] = []
    for batch in batches:
        for channel, index, value in _unpack(batch, codec, where):
            key = (batch.task_id, index)
            if index == _BESIDE_AT and channel == _BESIDE:
                beside.append(value)
            elif index < 0 or key not in kept:
                kept[key] = batch.task_path, (batch.task_id, channel, value)
    order = sorted(kept, key=lambda key: writes_sort_key(kept[key][0], *key))
    return [kept[key][1] for key in order], beside


def waiting_tasks(writes: Iterable[PendingWrite]) -> Set[str]:
    """Return the tasks of a checkpoint that have asked, and have no result yet.

    The same as LangGraph's `get_state().interrupts` says, in each of 23 cases.
    """
    channels: dict[str, set[str]] = {}
    for task_id, channel, _ in writes:
        channels.setdefault(task_id, set()).add(channel)
    return {task_id for task_id, seen in channels.items() if INTERRUPT in seen and seen <= _NO_RESULT}


def without_stray(
    store: Store[Q, R], codec: Codec, address: Address, writes: Sequence[tuple[str, Any]], task_id: str
) -> StorePlan[Q, R, Sequence[tuple[str, Any]] | None]:
    """Return writes without an answer to nothing; `None` if nothing is left. One trip if there is an answer, else none.

    Kept, it would answer the next question that is asked there: in the functional API, that of another request, which
    was carried out so, unasked (seen with langgraph 1.2.22).
    """
    if task_id != NULL_TASK_ID or all(channel != RESUME for channel, _ in writes):
        return writes
    found = yield from store.read_entry(address)
    if found is not None and waiting_tasks(pending_writes(found.batches, codec, address)):
        return writes
    return [write for write in writes if write[0] != RESUME] or None


def without_spent(found: CheckpointTuple, is_by_id: bool) -> CheckpointTuple:
    """Return a checkpoint to go on from, without an answer to whatever is asked that was given already.

    LangGraph leaves it there when a task has taken it, and gives it to the next question of another run, unasked: "one"
    to the first question, and `{id: "two"}` to the second, and the third is "one" (seen with 1.2.22).

    Args:
        found: The checkpoint.
        is_by_id: Whether the run brings answers by the ids of interrupts. If it brings none at all, such an answer may
            have been stored, and the process have died before a task took it: it counts unless a task has any.
    """
    writes = found.pending_writes or []
    is_spent = is_by_id or any(task != NULL_TASK_ID and channel == RESUME for task, channel, _ in writes)
    if not is_spent:
        return found
    return found._replace(pending_writes=[write for write in writes if write[:2] != (NULL_TASK_ID, RESUME)])
