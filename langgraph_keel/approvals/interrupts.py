"""Reads questions from interrupts, and writes answers in the format of the asker.

Formats, in the order in which they are tried:

1. Keel's own: `{"type": "keel_approval", "request": id, "action": ..., "args": ...}`. The answer only wakes the task,
   which reads the decision from the record.
2. LangChain's `HumanInTheLoopMiddleware`, batched: all calls of a turn in one interrupt.
3. The same, per call: one interrupt for each call; only its `response_schema` lists the allowed decisions.
4. Agent Inbox: a `HumanInterrupt`, alone or in a list. The answer is a list either way: that inbox always sends one.
5. `ToolCache`'s question about a call that was cut off. "Approve" is not allowed, as it could mean either "run it
   again" or "it did run": the answer is `retry`, `done` or `skip`, and a rejection is `skip`.
6. Anything else, including values that only resemble one of the above, is a free question. The answer is the value of
   an answer, `True` for an approval and `False` for a rejection.

The shapes are those of langchain 1.4.7 (`agents.middleware.human_in_the_loop`), langgraph-prebuilt 1.1.2
(`langgraph.prebuilt.interrupt`), and agent-inbox f38301b (README.md, src/components/agent-inbox/types.ts).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_keel.approvals.requests import BY_EXPIRY, ApprovalRequest, Decision
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.errors import InvalidInput

if TYPE_CHECKING:
    from langgraph.types import Interrupt

# The names of the kinds of decision in LangChain's middleware, and the flags that allow them in the Agent Inbox.
_HITL = {"approve": "approve", "reject": "reject", "edit": "edit", "answer": "respond"}
_INBOX = {"approve": "allow_accept", "reject": "allow_ignore", "edit": "allow_edit", "answer": "allow_respond"}
_KINDS = tuple(_HITL)


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that an interrupt asks."""

    action: str  # empty for a free question
    args: Any
    description: str = ""
    allowed: Sequence[str] = _KINDS
    keel: Mapping[str, Any] | None = None  # the interrupt's value, if `request_approval` asks


Asks: TypeAlias = Sequence[Ask]
_Reader: TypeAlias = Callable[[Any, Any], Asks]
_Writer: TypeAlias = Callable[[Any, Asks, Sequence[Decision]], Any]


def interrupts_in(value: Any) -> Sequence[Interrupt]:
    """Return the interrupts in a write to LangGraph's channel for them."""
    from langgraph.types import Interrupt

    values = value if isinstance(value, tuple | list) else (value,)
    return [each for each in values if isinstance(each, Interrupt)]


def asks_of(value: Any, schema: Any = None) -> Asks:
    """Return the questions of an interrupt, in the order of their decisions."""
    return _read(value, schema)[0]


def describe_question(value: Any) -> str:
    """Return the question of an interrupt as text: actions, or else its value."""
    asks = [ask for ask in asks_of(value) if ask.action]
    if asks:
        return ", ".join(f"{ask.action} {text_of(ask.args)}" if ask.args else ask.action for ask in asks)
    if isinstance(value, Mapping) and value:
        return ", ".join(f"{name}: {text_of(part)}" for name, part in value.items())
    return text_of(value)


def text_of(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False)


def answer_of(value: Any, decisions: Sequence[Decision], schema: Any = None) -> Any:
    """Return the value to resume an interrupt with."""
    asks, write = _read(value, schema)
    if len(asks) != len(decisions):
        names = [f"{ask.action or 'the question'} (number {place})" for place, ask in enumerate(asks, 1)]
        missing = ", ".join(names[len(decisions) :])
        problem = f"none for {missing}" if missing else f"{len(decisions) - len(asks)} too many"
        raise InvalidInput(f"an interrupt with {len(asks)} question(s) needs a decision for each, in order: {problem}")
    return write(value, asks, [_allow(ask, decision) for ask, decision in zip(asks, decisions, strict=True)])


def is_wake(answer: Any) -> bool:
    """Return whether `saver.approvals` has answered a question of `request_approval`."""
    return _is_a(answer, "keel_decision")


def answer_with(request: ApprovalRequest, decision: Decision) -> Any:
    """Return an answer with a decision in its place; `None` if the place is unknown."""
    asks = asks_of(request.value, request.schema)
    said = [Decision(ask.allowed[0], args=ask.args, value="") for ask in asks]  # type: ignore[arg-type]
    if request.part >= len(said):
        return None
    said[request.part] = decision
    return answer_of(request.value, said, request.schema)


# -- reading: each returns an empty list for other formats -------------------------------------------------------------


def _read(value: Any, schema: Any) -> tuple[Asks, _Writer]:
    return next((asks, writer) for reader, writer in _FORMATS if (asks := reader(value, schema)))


def _keel(value: Any, schema: Any) -> Asks:
    action, request = _at(value, "action"), _at(value, "request")
    if not (_is_a(value, "keel_approval") and isinstance(action, str) and isinstance(request, str) and "args" in value):
        return []
    allowed = value.get("allowed", _KINDS)
    kinds = tuple(kind for kind in _KINDS if kind in allowed) if _is_list(allowed) else ()
    return [Ask(action, value["args"], _prose(value), kinds, value)] if request and kinds else []


def _read_batch(value: Any, schema: Any) -> Asks:
    requests, configs = _at(value, "action_requests"), _at(value, "review_configs")
    if not (_is_list(requests) and _is_list(configs)):
        return []
    # The middleware passes one config for each request; its types would also allow one for each tool.
    found = []
    for place, request in enumerate(requests):
        name, fitting = _at(request, "name"), [*configs[place : place + 1], *configs]
        words = (_at(config, "allowed_decisions") for config in fitting if _at(config, "action_name") == name)
        found.append(_call(request, name, _at(request, "args"), _kinds_in(next(words, None))))
    return _all(found)


def _per_call(value: Any, schema: Any) -> Asks:
    if not _is_a(value, "tool_approval"):
        return []
    # Pydantic distinguishes several decisions by type; a single one is not a union and has no discriminator.
    words = _at(schema, "discriminator", "mapping") or [_at(schema, "properties", "type", "const")]
    return _call(value, value.get("name"), value.get("args"), _kinds_in(words) or _KINDS)


def _inbox(value: Any, schema: Any) -> Asks:
    found = []
    for request in value if _is_list(value) else [value]:
        # A missing flag counts as False, as in the Agent Inbox.
        allowed = tuple(kind for kind, flag in _INBOX.items() if _at(request, "config", flag) is True)
        action, args = (_at(request, "action_request", name) for name in ("action", "args"))
        found.append(_call(request, action, args, allowed))
    return _all(found)


def _doubt(value: Any, schema: Any) -> Asks:
    if not (_is_a(value, "tool_outcome_unknown") and isinstance(value.get("attempt"), str)):
        return []
    described = {"description": f"Cut off: it may or may not have been carried out. {_text(value.get('problem'))}"}
    return _call(described, value.get("tool"), value.get("args"), ("reject", "answer"))


def _call(about: Any, action: Any, args: Any, allowed: Sequence[str]) -> Asks:
    fits = isinstance(action, str) and isinstance(args, Mapping) and allowed
    return [Ask(action, args, _prose(about), allowed)] if fits else []


def _all(found: Iterable[Asks]) -> Asks:
    """Return all questions, or none if a part could not be read."""
    parts = list(found)
    return [ask for asks in parts for ask in asks] if all(parts) else []


def _kinds_in(words: Any) -> tuple[str, ...]:
    known = words if _is_list(words) or isinstance(words, Mapping) else ()
    return tuple(kind for kind, word in _HITL.items() if word in known)


def _prose(about: Any) -> str:
    description = _at(about, "description")
    return description.strip() if isinstance(description, str) else ""


def _at(value: Any, *names: str) -> Any:
    """Return a value in nested mappings; `None` if it or a mapping is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_a(value: Any, kind: str) -> bool:
    return bool(_at(value, "type") == kind)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


# -- writing -----------------------------------------------------------------------------------------------------------


def _hitl(ask: Ask, decision: Decision) -> dict[str, Any]:
    match decision.kind:
        case "approve":
            return {"type": "approve"}
        case "edit":
            return {"type": "edit", "edited_action": {"name": ask.action, "args": _edited_args(ask, decision)}}
        case "answer":
            return {"type": "respond", "message": _text(decision.value)}
    reason = _reason(decision)
    return {"type": "reject", "message": reason} if reason else {"type": "reject"}


def _response(ask: Ask, decision: Decision) -> dict[str, Any]:
    match decision.kind:
        case "approve":  # LangGraph's docstring says args are None; the inbox sends them, and a node may use them.
            return {"type": "accept", "args": {"action": ask.action, "args": ask.args}}
        case "edit":
            return {"type": "edit", "args": {"action": ask.action, "args": _edited_args(ask, decision)}}
        case "answer":
            return {"type": "response", "args": _text(decision.value)}
    return {"type": "ignore", "args": None}


def _doubt_answer(value: Any, asks: Asks, decisions: Sequence[Decision]) -> dict[str, Any]:
    decided = "skip" if decisions[0].kind == "reject" else decisions[0].value
    said = decided if isinstance(decided, Mapping) else {"decision": decided}
    # The asker treats a bare word as the answer to an earlier question, if there was one.
    return {**said, "attempt": value["attempt"]}


_FORMATS: Sequence[tuple[_Reader, _Writer]] = (
    (_keel, lambda value, asks, made: {"type": "keel_decision", "request": value["request"]}),
    (_read_batch, lambda value, asks, made: {"decisions": [*map(_hitl, asks, made)]}),
    (_per_call, lambda value, asks, made: _hitl(asks[0], made[0])),
    # Also for a single request: "The Agent Inbox will always respond with a list" (its README), so a node uses the
    # first element that `interrupt(request)` returns, as it does with `interrupt([request])`.
    (_inbox, lambda value, asks, made: [*map(_response, asks, made)]),
    (_doubt, _doubt_answer),
    (
        lambda value, schema: [Ask("", None, allowed=("approve", "reject", "answer"))],
        lambda value, asks, made: made[0].value if made[0].kind == "answer" else made[0].approved,
    ),
)


def _allow(ask: Ask, decision: Decision) -> Decision:
    if decision.kind in ask.allowed or ask.keel is not None:
        return decision
    if decision.kind == "reject" and "answer" in ask.allowed:  # such as the rejection of an expired request
        reason = _reason(decision)
        return Decision("answer", decision.by, value=f"Rejected: {reason}" if reason else "Rejected")
    raise InvalidInput(
        f"{ask.action or 'the question'} allows {', '.join(ask.allowed)}, not {decision.kind}, on which the agent "
        "would fail: use one of the allowed decisions"
    )


def _edited_args(ask: Ask, decision: Decision) -> dict[str, Any]:
    if not isinstance(decision.args, Mapping):
        raise InvalidInput(f"an edit of {ask.action} needs its arguments as a dict, not {decision.args!r:.200}")
    return dict(decision.args)


def _reason(decision: Decision) -> str:
    return decision.reason or ("not decided in time" if decision.by == BY_EXPIRY else "")


def _text(value: Any) -> str:
    """Return a value for formats that take text only."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)
