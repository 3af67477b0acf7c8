"""Doubts: a call was begun, and nobody knows how it ended. What is raised, what a person is asked, and the answers."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import ToolMessage

from langgraph_keel.core.calls import moment
from langgraph_keel.core.ledger import DONE, UNKNOWN, CallRecord, Doubtful, is_same_call
from langgraph_keel.errors import InvalidInput, ToolOutcomeUnknown
from langgraph_keel.tools.calls import Answers, Call
from langgraph_keel.tools.keys import canonical


def asked_person(call: Call, doubt: Doubtful, answers: Answers) -> tuple[str, Any]:
    """Ask a person; return the decision, and the result if one was given.

    LangGraph gives all answers of a task again at every attempt, and the last one again after every crash: an answer
    to an earlier question of this call must not be taken for one to this. So only the first question about a call may
    be answered by a word alone.
    """
    question = question_of(call, doubt)
    needs_name = is_same_call(doubt.record, call.record) and doubt.record.before == UNKNOWN
    while True:
        answer = answers.to(question)
        try:
            return decision_of(answer, question["attempt"], needs_name)
        except InvalidInput as error:
            # LangGraph keeps the answer, and would give it to every later attempt: ask once more instead of failing.
            question = {**question, "problem": str(error)}


def outcome_unknown(call: Call, record: CallRecord) -> ToolOutcomeUnknown:
    """Return the error for a call that nobody knows the end of."""
    reason = "has finished, but left no result" if record.state == DONE else "was cut off"
    began, whose = moment(record.started_at), call.shelf.thread_id
    return ToolOutcomeUnknown(record.tool, whose, call.key, began, reason, record.tool_call_id)


def question_of(call: Call, doubt: Doubtful) -> dict[str, Any]:
    """Return what a person is asked: an interrupt's value, plain data."""
    return {
        "type": "tool_outcome_unknown",
        "tool": doubt.record.tool,
        "tool_call_id": call.record.tool_call_id,
        "args": canonical(call.record.tool, call.args),
        "started_at": moment(doubt.record.started_at),
        "holder": doubt.record.holder.partition("/")[0],
        "key": call.key,
        "attempt": doubt.token[:8],
        "decisions": ["retry", "done", "skip"],
        "answer_like": {"decision": "retry", "attempt": doubt.token[:8]},
    }


def decision_of(answer: Any, attempt: str = "", needs_name: bool = False) -> tuple[str, Any]:
    """Return what a person has decided, and the result if one was given.

    Args:
        answer: A word, or `{"decision": ..., "result": ..., "attempt": ...}`.
        attempt: The attempt that was asked about.
        needs_name: Whether the answer must name it.

    Raises:
        InvalidInput: It is neither of those, or about another attempt.
    """
    said = answer if isinstance(answer, dict) else {"decision": answer}
    decision = str(said.get("decision")).strip().lower()
    if decision not in ("retry", "done", "skip"):
        raise InvalidInput(
            f"{answer!r} is no answer to a tool whose outcome is unknown: resume with 'retry', 'skip', 'done', or "
            "{'decision': 'done', 'result': 'what the tool would have said'}"
        )
    if said.get("attempt", "" if needs_name else attempt) != attempt:
        raise InvalidInput(
            f"an earlier question about this call was answered {decision!r}; say that this answer is about "
            f"this attempt: {{'decision': {decision!r}, 'attempt': {attempt!r}}}"
        )
    return decision, said.get("result")


def said(record: CallRecord, decision: str, result: Any) -> ToolMessage:
    """Return what a person has said instead of a tool."""
    if decision == "skip":
        text = "It is not known whether this call was carried out. A person decided not to repeat it."
    else:
        text = "A person confirmed that this call was carried out." if result is None else str(result)
    status: Literal["success", "error"] = "error" if decision == "skip" else "success"
    return ToolMessage(text, name=record.tool, tool_call_id=record.tool_call_id, status=status)
