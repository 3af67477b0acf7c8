"""Answers tool calls that an interrupted run left open, from the ledger.

Providers reject a list of messages in which an answer is missing, or does not directly follow its `AIMessage`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage

from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.config import Address, address_of, run_of
from langgraph_keel.engine.entries import UnreadHeader, pending_writes, waiting_tasks
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.runs import find_runs
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import ValueRefused, short_key
from langgraph_keel.tools.call import Place, place_of
from langgraph_keel.tools.ledger import CALLS, DONE, FAILED, NEVER_BEGAN, OWN, UNKNOWN, WAITING, CallRecord, adopt
from langgraph_keel.tools.orphans import Past, read_past, steps_of
from langgraph_keel.tools.policy import ToolPolicy
from langgraph_keel.tools.results import mark_replay, messages_in, reference_of, shorten

_log = logging.getLogger(__name__)
HEALED = "keel_healed"
"""The key of `response_metadata` that marks an added answer, with the call's state and key."""
_NOT_MADE = "This call was not made: the conversation continued before it began."
_UNREADABLE = "This call was not made: its arguments could not be read."
_UNKNOWN = "It is not known whether this call was carried out. Check before you repeat it."
_UNASKED = "This call was not finished: it asked a person, and the conversation continued without an answer."
_NO_RESULT = "This call was carried out, but its result was not kept."


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call without an answer."""

    id: str
    tool: str
    is_valid: bool  # its arguments could be parsed; otherwise no tool was called


Made: TypeAlias = tuple[str, Kept[CallRecord]]
PolicyOf: TypeAlias = Callable[[str], ToolPolicy | None]


def heal(
    session: Session, policy_of: PolicyOf, messages: Sequence[BaseMessage], config: Mapping[str, Any]
) -> Plan[list[BaseMessage]]:
    """Return the update that answers each call; see `ToolCache.heal_tool_calls`."""
    placed = place_answers(messages)
    if placed == list(messages):
        return []
    where, place = address_of(config), place_of(config)
    here = Address(where.thread_id, place.checkpoint_ns, place.checkpoint_id or where.checkpoint_id)
    if (yield from _asks_person(session, here)):
        return []
    calls = [each for each in placed if isinstance(each, OpenCall)]
    made = yield from _find_made(session, place, here, config, {call.id for call in calls if call.is_valid})
    answers: list[ToolMessage] = []
    for call in reversed(calls):  # of the records of one id, the last belongs to the last call
        found = made[call.id].pop() if call.is_valid and made[call.id] else None
        answers.append((yield from _answer(session, policy_of(call.tool), place, call, found)))
    from langgraph.graph.message import REMOVE_ALL_MESSAGES

    healed = [answers.pop() if isinstance(each, OpenCall) else each for each in placed]
    return [RemoveMessage(REMOVE_ALL_MESSAGES), *healed]


def place_answers(messages: Sequence[BaseMessage]) -> list[BaseMessage | OpenCall]:
    """Return the messages with each call's first answer, or an `OpenCall`, after it.

    Answers to calls that are not in the list keep their place.
    """
    placed: list[BaseMessage | OpenCall] = []
    places: dict[str, list[int]] = {}  # of the last message with a call of this id
    for message in messages:
        if isinstance(message, ToolMessage) and message.tool_call_id in places:
            free = [each for each in places[message.tool_call_id] if isinstance(placed[each], OpenCall)]
            if free:
                placed[free[0]] = message
            continue
        placed.append(message)
        calls = _calls_of(message)
        places |= {call.id: [] for call in calls}
        for call in calls:
            places[call.id].append(len(placed))
            placed.append(call)
    return placed


def _calls_of(message: BaseMessage) -> list[OpenCall]:
    """Return the calls of a message that have an id, and so can be answered."""
    if not isinstance(message, AIMessage):
        return []
    # Message converters send a provider both kinds, in this order.
    calls = [(each, True) for each in message.tool_calls] + [(each, False) for each in message.invalid_tool_calls]
    return [OpenCall(each["id"], each["name"] or "", is_valid) for each, is_valid in calls if each["id"]]


def _asks_person(session: Session, here: Address) -> Plan[bool]:
    """Return whether the thread waits for a person at this checkpoint. One trip."""
    found = yield from session.store.read_entry(here)
    return found is not None and bool(waiting_tasks(pending_writes(found.batches, session.codec, here)))


def _find_made(
    session: Session, place: Place, here: Address, config: Mapping[str, Any], ids: set[str]
) -> Plan[defaultdict[str, list[Made]]]:
    """Return the calls of these ids without a result in the thread. Two trips."""
    made: defaultdict[str, list[Made]] = defaultdict(list)
    calls = yield from Cells(session, CALLS, here.thread_id).every()
    # Nested calls have a place.
    calls = [each for each in calls if each[1].record.tool_call_id in ids and not each[1].record.place]
    if not calls:
        return made
    graph = yield from session.store.read_graph(here.thread_id)
    steps = {"": here.checkpoint_id, **place.steps, here.checkpoint_ns: here.checkpoint_id}
    # An open call was made before this run started, and the checkpoint of this step may be stored only after the step
    # ends.
    began_at = [run.began_at for run in find_runs(run_of(config)) if run.thread_id == here.thread_id]
    pasts: dict[str, tuple[Past, set[str | None]]] = {}
    for namespace in {"", here.checkpoint_ns}:
        nodes = {each.address.checkpoint_id: each for each in graph.nodes if each.address.checkpoint_ns == namespace}
        starts = [nodes[each] for each in (steps[namespace], *began_at) if each in nodes]
        starts += [node for node in nodes.values() if node.is_head]
        moments = [(node, UnreadHeader(node, session.codec)) for node in nodes.values()]
        past = read_past(moments, starts[:1])
        pasts[namespace] = past, nodes.keys() - past.way - past.originals if starts else set()
    for key, kept in calls:
        theirs = steps_of(kept.record)
        namespace = here.checkpoint_ns if here.checkpoint_ns in theirs else ""
        step = theirs.get(namespace, "")
        past, elsewhere = pasts[namespace]
        if step not in elsewhere and not past.knows(kept.record, step):
            made[kept.record.tool_call_id].append((key, kept))
    for each in made.values():
        each.sort(key=lambda one: one[1].record.started_at)
    return made


def _answer(
    session: Session, policy: ToolPolicy | None, place: Place, call: OpenCall, made: Made | None
) -> Plan[ToolMessage]:
    """Return the answer to a call. One or two trips if the ledger has a record of it."""
    if made is None:
        # For calls that threads share, the ledger keeps only the last one.
        is_kept = policy is not None and policy.scope in ("call", "thread", "run")
        text = _UNREADABLE if not call.is_valid else _NOT_MADE if is_kept else _UNKNOWN
        return _message(text, call, UNKNOWN if text == _UNKNOWN else "not made")
    key, kept = made
    calls = Cells(session, CALLS, place.thread_id)
    yield from adopt(session, calls.shelf, key, kept)
    found = (yield from calls.find(key)) or kept
    record = found.record
    if record.state == WAITING:
        return _message(_UNASKED, call, WAITING, key)
    if record.state == FAILED and record.error == NEVER_BEGAN:
        return _message(_NOT_MADE, call, "not made", key)
    if record.state == FAILED:
        return _message(f"This call failed: {record.error}", call, FAILED, key)
    if record.state != DONE:  # or it is still running
        return _message(_UNKNOWN, call, UNKNOWN, key)
    if place.task_id and OWN in key:
        # Now the result is in the thread, so the next equal call is a new call.
        told_at = sorted({*record.told_at, place.checkpoint_id, *place.steps.values()})
        told, cell = replace(record, told_at=told_at), found.cell
        new = calls.cell(told, body=cell.body, origin=cell.origin, expires_at=cell.expires_at)
        yield from calls.swap_raw(key, found.token, new)
    result = _result_of(session, policy, calls.shelf, call, key, found)
    return _mark(result, DONE, key) if result else _message(_NO_RESULT, call, DONE, key)


def _result_of(
    session: Session, policy: ToolPolicy | None, shelf: Shelf, call: OpenCall, key: str, found: Kept[CallRecord]
) -> ToolMessage | None:
    """Return the message in the stored result of a call; `None` if there is none."""
    record, body = found.record, found.cell.body
    if not record.is_kept:
        return None
    try:
        (result,) = session.codec.decode(body)
    except ValueRefused as error:
        _log.warning("tool %r: its stored result cannot be read here: %s", record.tool, error)
        return None
    result = mark_replay(result, record, call.id)
    if policy is not None and policy.offload_bytes is not None:
        result = shorten(result, reference_of(shelf, key, body), policy.offload_bytes)
    if not isinstance(result, ToolMessage):
        _log.warning(
            "call %s of tool %r: only the message is put into the conversation; its other updates are dropped",
            *(short_key(key), record.tool),
        )
    said = [each for each in messages_in(result) if isinstance(each, ToolMessage) and each.tool_call_id == call.id]
    return said[0] if said else None


def _message(text: str, call: OpenCall, state: str, key: str = "") -> ToolMessage:
    status: Literal["success", "error"] = "success" if state == DONE else "error"
    return _mark(ToolMessage(text, name=call.tool, tool_call_id=call.id, status=status), state, key)


def _mark(message: ToolMessage, state: str, key: str = "") -> ToolMessage:
    about = {**message.response_metadata, HEALED: {"state": state} | ({"key": key} if key else {})}
    return message.model_copy(update={"response_metadata": about})
