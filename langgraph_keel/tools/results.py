"""Stored results of tools; errors, questions and answers about unknown outcomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphInterrupt
from langgraph.types import Command

from langgraph_keel._langgraph import interrupt_id_of
from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.serde.serializer import encode
from langgraph_keel.errors import InvalidInput, ToolOutcomeUnknown, short_key
from langgraph_keel.tools.call import Answers, Call
from langgraph_keel.tools.keys import canonical
from langgraph_keel.tools.ledger import (
    DONE,
    TOOLS,
    UNKNOWN,
    CallRecord,
    Doubtful,
    Original,
    is_same_call,
    iso_time,
)

REPLAY = "keel_replay"
"""The key of `response_metadata` that marks a message as a replay."""
REFERENCE = "keel_result"
"""The key of `response_metadata` that refers to the full text of a large result."""
_PREVIEW = 500
"""Length of the preview of a large result in the conversation, in characters."""
_PROBE = "keel-probe"
_OF_THREAD, _SHARED = "keel-tool", "keel-shared-tool"

ChangeMessage = Callable[[BaseMessage], BaseMessage]


def is_error(result: Any) -> bool:
    """Return whether a result reports a failure of the tool."""
    return any(isinstance(message, ToolMessage) and message.status == "error" for message in messages_in(result))


def messages_in(result: Any) -> list[BaseMessage]:
    """Return the messages of a result."""
    found: list[BaseMessage] = []

    def note(message: BaseMessage) -> BaseMessage:
        found.append(message)
        return message

    _map_messages(result, note)
    return found


def _map_messages(result: Any, change: ChangeMessage) -> Any:
    """Return a result with its messages changed, also in commands and lists."""
    if isinstance(result, BaseMessage):
        return change(result)
    if isinstance(result, list):
        return [_map_messages(part, change) for part in result]
    if isinstance(result, Command):
        return replace(result, update=_map_messages(result.update, change))
    if isinstance(result, dict):
        return {name: _map_messages(part, change) for name, part in result.items()}
    return result


def can_be_replayed(result: Any, call_id: str) -> bool:
    """Return whether a result can answer another call: its call id is replaceable."""
    if not call_id or isinstance(result, ToolMessage):
        return True
    # Searched in the bytes of Keel's serializer: another one's may be compressed or encrypted.
    return call_id.encode() not in encode(for_call(result, call_id, _PROBE))


def for_call(result: Any, old_id: str, new_id: str) -> Any:
    """Return a copy of a result with another call id, and without message ids."""

    def answer(message: BaseMessage) -> BaseMessage:
        if not isinstance(message, ToolMessage):
            return message
        call_id = new_id if message.tool_call_id == old_id else message.tool_call_id
        return message.model_copy(update={"id": None, "tool_call_id": call_id})

    return _map_messages(result, answer)


def mark_replay(result: Any, record: CallRecord, call_id: str) -> Any:
    """Return a stored result for a new call, marked as a replay."""
    ended = datetime.fromtimestamp((record.ended_at or record.started_at) / 1000, UTC).isoformat()
    mark = {"from": ended, "checkpoint_id": record.checkpoint_id, "tool_call_id": record.tool_call_id}

    def mark_message(message: BaseMessage) -> BaseMessage:
        if not isinstance(message, ToolMessage):
            return message
        return message.model_copy(update={"response_metadata": {**message.response_metadata, REPLAY: mark}})

    return _map_messages(for_call(result, record.tool_call_id, call_id), mark_message)


def shorten(result: Any, reference: str, limit: int) -> Any:
    """Return a result in which texts of tool messages above `limit` bytes are cut off."""

    def cut(message: BaseMessage) -> BaseMessage:
        text = message.content
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else b""
        if not isinstance(message, ToolMessage) or not isinstance(text, str) or len(data) <= limit:
            return message
        whole = {"reference": reference, "sha256": sha256(data).hexdigest(), "bytes": len(data)}
        shown = f"{text[:_PREVIEW]}\n[... {len(data):,} bytes in all; full result: {reference}]"
        about = {**message.response_metadata, REFERENCE: whole}
        return message.model_copy(update={"content": shown, "artifact": None, "response_metadata": about})

    return _map_messages(result, cut)


def reference_of(shelf: Shelf, key: str, body: bytes) -> str:
    """Return the reference to a full result, with a digest of it."""
    return f"{_SHARED if shelf.thread_id is None else _OF_THREAD}:{key}:{_digest(body)}"


def place_of_result(reference: str, thread_id: str) -> tuple[Shelf, str]:
    """Return the shelf and the key in a reference."""
    kind, _, rest = reference.partition(":")
    return Shelf(None if kind == _SHARED else thread_id, TOOLS), rest.partition(":")[0]


def is_reference_to(reference: str, body: bytes) -> bool:
    """Return whether a reference is to this result."""
    return reference.endswith(f":{_digest(body)}")


def _digest(body: bytes) -> str:
    return sha256(body).hexdigest()[:16]


def ask_person(call: Call, doubt: Doubtful, answers: Answers, original: Original) -> tuple[str, Any]:
    """Ask a person; return the decision and the result, if any."""
    question = question_of(call, doubt, original)
    # LangGraph replays all answers of a task at every attempt. An answer to an earlier question could then be mistaken
    # for one to this question. So only the first question about a call may be answered without naming the attempt.
    needs_name = is_same_call(doubt.record, call.record) and doubt.record.before == UNKNOWN
    while True:
        answer = answers.ask(question)
        try:
            decision, result = decision_of(answer, question["attempt"], needs_name)
            if decision == "retry":
                check_retry(doubt.record.tool, call.key, original)
            return decision, result
        except InvalidInput as error:
            # LangGraph keeps the answer and replays it at every later attempt: ask again instead of failing.
            question = {**question, "problem": str(error)}


def error_of_doubt(call: Call, record: CallRecord) -> ToolOutcomeUnknown:
    """Return the error for a call whose outcome is unknown."""
    reason = "has finished, but left no result" if record.state == DONE else "was cut off"
    began, whose = iso_time(record.started_at), call.shelf.thread_id
    return ToolOutcomeUnknown(record.tool, whose, call.key, began, reason, record.tool_call_id)


def check_retry(tool: str, key: str, original: Original, *, moved: bool = False) -> None:
    """Check that no other thread may make a call that is to be retried."""
    if name := original.thread_id:
        raise InvalidInput(
            f"call {short_key(key)} of tool {tool!r} is shared with thread {name!r}, which may have made it or "
            f"still make it: with 'retry', both would. Settle it in {name!r}: with 'done' or 'skip', this "
            f"thread uses the same result; with 'retry', once {name!r} has made it"
        )
    if original.place and not moved:
        raise InvalidInput(
            f"the outcome of call {short_key(key)} of tool {tool!r} was unknown when its thread was copied from "
            f"{original.place}. The original may make it there, or has made it: with 'retry', both would. Look there "
            "first: if the original will never run again, settle it with `keel settle ... retry --moved`, or "
            "saver.tools.settle(..., 'retry', moved=True)"
        )


def question_of(call: Call, doubt: Doubtful, original: Original) -> dict[str, Any]:
    """Return the question to a person: an interrupt's value, plain data."""
    decisions = ["done", "skip"] if original.thread_id or original.place else ["retry", "done", "skip"]
    return {
        "type": "tool_outcome_unknown",
        "tool": doubt.record.tool,
        "tool_call_id": call.record.tool_call_id,
        "args": canonical(call.record.tool, call.args),
        "started_at": iso_time(doubt.record.started_at),
        "holder": doubt.record.holder.partition("/")[0],
        "key": call.key,
        "attempt": doubt.token[:8],
        "decisions": decisions,
        "answer_like": {"decision": decisions[0], "attempt": doubt.token[:8]},
        **({"original": original.thread_id} if original.thread_id else {}),
        **({"copied_from": original.place} if original.place else {}),
    }


def number_questions(raised: GraphInterrupt, config: RunnableConfig, place: int) -> None:
    """Correct the ids of questions if an answer came before they were shown."""
    task_ns = (config.get("configurable") or {}).get("checkpoint_ns", "")
    former = [interrupt_id_of(task_ns, number) for number in range(place)]
    for question in raised.args[0] if raised.args else ():
        if question.id in former:
            question.id = interrupt_id_of(task_ns, place)


def decision_of(answer: Any, attempt: str = "", needs_name: bool = False) -> tuple[str, Any]:
    """Return a person's decision, and the result if any."""
    given = answer if isinstance(answer, dict) else {"decision": answer}
    decision = str(given.get("decision")).strip().lower()
    if decision not in ("retry", "done", "skip"):
        raise InvalidInput(
            f"{answer!r} is not an answer to a tool call of unknown outcome: resume with 'retry', 'skip', 'done', or "
            "{'decision': 'done', 'result': 'the result of the tool'}"
        )
    if given.get("attempt", "" if needs_name else attempt) != attempt:
        raise InvalidInput(
            f"an earlier question about this call was answered {decision!r}; to answer about "
            f"this attempt, resume with {{'decision': {decision!r}, 'attempt': {attempt!r}}}"
        )
    return decision, given.get("result")


def message_of(record: CallRecord, decision: str, result: Any) -> ToolMessage:
    """Return the message that replaces a tool's result after a person decided."""
    if decision == "skip":
        text = "It is not known whether this call was carried out. A person decided not to repeat it."
    else:
        text = "A person confirmed that this call was carried out." if result is None else str(result)
    status: Literal["success", "error"] = "error" if decision == "skip" else "success"
    return ToolMessage(text, name=record.tool, tool_call_id=record.tool_call_id, status=status)
