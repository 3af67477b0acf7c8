"""Answers that come when nothing is asked.

`Command(resume=value)` names no question: LangGraph writes the answer beside a checkpoint, for whatever is asked there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import RESUME

from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Address
from langgraph_keel.core.store import Store
from langgraph_keel.core.writes import pending_writes, waiting_tasks

NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Whose writes LangGraph takes for input."""


def without_stray(
    store: Store[Q, R], codec: Codec, address: Address, writes: Sequence[tuple[str, Any]], task_id: str
) -> Plan[Q, R, Sequence[tuple[str, Any]] | None]:
    """Return writes without an answer to nothing; `None` if nothing is left. One trip if there is an answer, else none.

    Kept, it would answer the next question that is asked there: in the functional API, that of another request, which
    was carried out so, unasked (study of the extension points, C9).
    """
    if task_id != NULL_TASK or all(channel != RESUME for channel, _ in writes):
        return writes
    found = yield from store.read_entry(address)
    if found is not None and waiting_tasks(pending_writes(found.batches, codec, str(address))):
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
    is_spent = is_by_id or any(task != NULL_TASK and channel == RESUME for task, channel, _ in writes)
    if not is_spent:
        return found
    return found._replace(pending_writes=[write for write in writes if write[:2] != (NULL_TASK, RESUME)])
