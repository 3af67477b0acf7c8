"""Questions in every known format are read and answered in their format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware.human_in_the_loop import DecisionType

from langgraph_keel import InvalidInput
from langgraph_keel.approvals.interrupts import Ask, answer_of, asks_of
from langgraph_keel.approvals.requests import BY_EXPIRY, Decision
from langgraph_keel.tools.results import decision_of

ALL = ("approve", "reject", "edit", "answer")
REQUEST = "0123456789abcdef01234567"
PAY: dict[str, Any] = {"name": "pay", "args": {"x": 1}, "description": "Pay 1"}
MAIL: dict[str, Any] = {"name": "mail", "args": {}}
ALL_WORDS = ["approve", "edit", "reject", "respond"]
KEEL = {"type": "keel_approval", "request": REQUEST, "action": "pay", "args": 100, "description": "Pay?"}
PER_CALL = {"type": "tool_approval", "tool_call_id": "a", **PAY}
DOUBT: dict[str, Any] = {
    "type": "tool_outcome_unknown",
    "tool": "pay",
    "tool_call_id": "a",
    "args": {"x": 1},
    "attempt": "12345678",
    "decisions": ["retry", "done", "skip"],
}

APPROVE, REJECT = Decision("approve", "ada"), Decision("reject", "ada")
NO = Decision("reject", "ada", reason="too dear")
LATE = Decision("reject", BY_EXPIRY)
EDIT = Decision("edit", "ada", args={"x": 2})
ANSWER = Decision("answer", "ada", value="paid by hand")


def batched(*actions: dict[str, Any], words: Any = ALL_WORDS) -> dict[str, Any]:
    configs = [{"action_name": action["name"], "allowed_decisions": words} for action in actions]
    return {"action_requests": list(actions), "review_configs": configs}


def inbox(**flags: Any) -> dict[str, Any]:
    config = {f"allow_{name}": flags.get(name, True) for name in ("ignore", "respond", "edit", "accept")}
    return {"action_request": {"action": "pay", "args": {"x": 1}}, "config": config, "description": "Pay 1"}


def schema(*words: str) -> dict[str, Any]:
    return {"discriminator": {"propertyName": "type", "mapping": dict.fromkeys(words, "#")}}


PAID, MAILED = Ask("pay", {"x": 1}, "Pay 1"), Ask("mail", {})
FREE = Ask("", None, "", ("approve", "reject", "answer"))


def allowing(*allowed: str) -> Ask:
    return replace(PAID, allowed=allowed)


TWO_CONFIGS = [{"action_name": "pay", "allowed_decisions": [word]} for word in ("approve", "respond")]
QUESTIONS: dict[str, tuple[Any, list[Ask]]] = {
    "Keel's own": (KEEL, [Ask("pay", 100, "Pay?", keel=KEEL)]),
    "batched, one": (batched(PAY), [PAID]),
    "batched, two": (batched(PAY, MAIL), [PAID, MAILED]),
    "batched, some allowed": (batched(PAY, words=["edit", "approve"]), [allowing("approve", "edit")]),
    "batched, words of tomorrow": (batched(PAY, words=["approve", "delegate", {}]), [allowing("approve")]),
    "batched, one config for two": ({**batched(PAY), "action_requests": [PAY, PAY]}, [PAID, PAID]),
    "batched, configs by place": (
        {"action_requests": [PAY, PAY], "review_configs": TWO_CONFIGS},
        [allowing("approve"), allowing("answer")],
    ),
    "batched, in tuples": ({key: tuple(parts) for key, parts in batched(PAY).items()}, [PAID]),
    "per call": (PER_CALL, [PAID]),
    "Agent Inbox": (inbox(), [PAID]),
    "Agent Inbox, a list": ([inbox()], [PAID]),
    "Agent Inbox, a list of two": ([inbox(), inbox(edit=False)], [PAID, allowing("approve", "reject", "answer")]),
    "Agent Inbox, no description": ({**inbox(), "description": None}, [replace(PAID, description="")]),
    "Agent Inbox, flags left out": ({**inbox(), "config": {"allow_respond": True}}, [allowing("answer")]),
    "a doubt": (
        DOUBT,
        [Ask("pay", {"x": 1}, "Cut off: it may or may not have been carried out.", ("reject", "answer"))],
    ),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_asks_are_read_from_each_format(name: str) -> None:
    value, asks = QUESTIONS[name]
    assert list(asks_of(value)) == asks


SCHEMAS: list[tuple[Any, Sequence[str]]] = [
    (schema("reject", "approve"), ("approve", "reject")),
    ({"properties": {"type": {"const": "respond"}}}, ("answer",)),
    ({"type": "object", "properties": []}, ALL),
    (dict, ALL),
]


@pytest.mark.parametrize(("with_schema", "allowed"), SCHEMAS)
def test_decisions_allowed_per_call_are_read_from_the_schema(with_schema: Any, allowed: Sequence[str]) -> None:
    assert list(asks_of(PER_CALL, with_schema)) == [allowing(*allowed)]


def test_only_keels_own_questions_carry_a_request() -> None:
    assert asks_of(KEEL)[0].keel == KEEL
    assert asks_of(batched(PAY))[0].keel is None
    assert asks_of({**KEEL, "allowed": ["edit", "approve"]})[0].allowed == ("approve", "edit")


FREE_QUESTIONS: dict[str, Any] = {
    "a text": "Which day?",
    "nothing": None,
    "an empty list": [],
    "a list": [1, "two"],
    "a dict": {"approve": "it"},
    "Keel's own without a request": {**KEEL, "request": ""},
    "Keel's own with a number for a request": {**KEEL, "request": 7},
    "Keel's own without arguments": {"type": "keel_approval", "request": REQUEST, "action": "pay"},
    "Keel's own that allows nothing": {**KEEL, "allowed": []},
    "batched, empty": batched(),
    "batched without configs": {"action_requests": [PAY]},
    "batched, a config of another tool": {**batched(PAY), "review_configs": batched(MAIL)["review_configs"]},
    "batched, nothing allowed": batched(PAY, words=[]),
    "batched, a word for a list": batched(PAY, words="approve"),
    "batched, arguments in a list": batched({"name": "pay", "args": [1]}),
    "batched, one of two malformed": {**batched(PAY), "action_requests": [PAY, "mail"]},
    "batched, names that cannot be hashed": batched({"name": ["pay"], "args": {}}),
    "per call without a name": {"type": "tool_approval", "tool_call_id": "a", "args": {}},
    "Agent Inbox without a config": {"action_request": {"action": "pay", "args": {}}},
    "Agent Inbox that allows nothing": inbox(ignore=False, respond=False, edit=False, accept=False),
    "Agent Inbox with text for flags": {**inbox(), "config": {"allow_accept": "yes"}},
    "Agent Inbox beside something else": [inbox(), "hello"],
    "a doubt without an attempt": {**DOUBT, "attempt": None},
}


@pytest.mark.parametrize("name", FREE_QUESTIONS)
def test_any_other_interrupt_is_a_free_question(name: str) -> None:
    value = FREE_QUESTIONS[name]
    assert list(asks_of(value)) == [FREE]
    assert answer_of(value, [APPROVE]) is True
    assert answer_of(value, [NO]) is False
    assert answer_of(value, [Decision("answer", "ada", value={"day": 3})]) == {"day": 3}
    assert answer_of(value, [Decision("answer", "ada")]) is None
    with pytest.raises(InvalidInput, match="the question allows approve, reject, answer, not edit"):
        answer_of(value, [EDIT])


EDITED = {"name": "pay", "args": {"x": 2}}
HITL: list[tuple[Decision, dict[str, Any]]] = [
    (APPROVE, {"type": "approve"}),
    (REJECT, {"type": "reject"}),
    (NO, {"type": "reject", "message": "too dear"}),
    (LATE, {"type": "reject", "message": "not decided in time"}),
    (EDIT, {"type": "edit", "edited_action": EDITED}),
    (ANSWER, {"type": "respond", "message": "paid by hand"}),
    (
        Decision("answer", "ada", value={"zahl": "ü", "n": [1]}),
        {"type": "respond", "message": '{"zahl": "ü", "n": [1]}'},
    ),
    (Decision("answer", "ada"), {"type": "respond", "message": ""}),
]
INBOX: list[tuple[Decision, dict[str, Any]]] = [
    (APPROVE, {"type": "accept", "args": {"action": "pay", "args": {"x": 1}}}),
    (REJECT, {"type": "ignore", "args": None}),
    (NO, {"type": "ignore", "args": None}),
    (EDIT, {"type": "edit", "args": {"action": "pay", "args": {"x": 2}}}),
    (ANSWER, {"type": "response", "args": "paid by hand"}),
]


@pytest.mark.parametrize(("decision", "answer"), HITL)
def test_middleware_answers_are_built_from_decisions(decision: Decision, answer: dict[str, Any]) -> None:
    assert answer_of(PER_CALL, [decision]) == answer
    assert answer_of(batched(PAY), [decision]) == {"decisions": [answer]}
    assert answer_of(batched(MAIL, PAY), [NO, decision]) == {
        "decisions": [{"type": "reject", "message": "too dear"}, answer]
    }


@pytest.mark.parametrize(("decision", "answer"), INBOX)
def test_agent_inbox_answers_are_lists(decision: Decision, answer: dict[str, Any]) -> None:
    assert answer_of(inbox(), [decision]) == [answer]
    assert answer_of([inbox()], [decision]) == [answer]
    assert answer_of([inbox(), inbox()], [ANSWER, decision]) == [INBOX[-1][1], answer]


@pytest.mark.parametrize("decision", [APPROVE, NO, LATE, EDIT, ANSWER])
@pytest.mark.parametrize("allowed", [ALL, ("approve",)])
def test_an_answer_to_keels_own_question_only_names_the_request(decision: Decision, allowed: Any) -> None:
    assert answer_of({**KEEL, "allowed": allowed}, [decision]) == {"type": "keel_decision", "request": REQUEST}


DOUBTS: list[tuple[Decision, tuple[str, Any]]] = [
    (NO, ("skip", None)),
    (LATE, ("skip", None)),
    (Decision("answer", "ada", value="retry"), ("retry", None)),
    (Decision("answer", "ada", value={"decision": "done", "result": "7"}), ("done", "7")),
    (Decision("answer", "ada", value={"decision": "done", "attempt": "of before"}), ("done", None)),
]


@pytest.mark.parametrize(("decision", "read"), DOUBTS)
def test_an_answer_to_a_doubt_names_its_attempt(decision: Decision, read: Any) -> None:
    """Without an attempt, an answer is read as strictly as with an earlier one."""
    assert decision_of(answer_of(DOUBT, [decision]), DOUBT["attempt"], needs_name=True) == read


@pytest.mark.parametrize("decision", [APPROVE, EDIT])
def test_a_doubt_cannot_be_approved_or_edited(decision: Decision) -> None:
    with pytest.raises(InvalidInput, match=f"pay allows reject, answer, not {decision.kind}"):
        answer_of(DOUBT, [decision])


NUMBERS: list[tuple[Any, int, str]] = [
    (batched(PAY, MAIL), 1, r"with 2 .* none for mail \(number 2\)$"),
    (batched(PAY, MAIL), 0, r"with 2 .* none for pay \(number 1\), mail \(number 2\)$"),
    (batched(PAY), 3, "with 1 .* 2 too many$"),
    ([inbox(), inbox()], 1, r"none for pay \(number 2\)$"),
    (KEEL, 0, r"none for pay \(number 1\)$"),
    ("Which day?", 0, r"none for the question \(number 1\)$"),
]


@pytest.mark.parametrize(("value", "count", "said"), NUMBERS)
def test_a_wrong_number_of_decisions_is_refused(value: Any, count: int, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        answer_of(value, [APPROVE] * count)


REFUSED: list[tuple[Any, Any, Decision]] = [
    (batched(PAY, words=["approve", "reject"]), None, EDIT),
    (batched(PAY, words=["approve"]), None, NO),
    (PER_CALL, schema("reject", "edit"), APPROVE),
    (inbox(accept=False), None, APPROVE),
    (inbox(ignore=False, respond=False), None, LATE),
]


@pytest.mark.parametrize(("value", "with_schema", "decision"), REFUSED)
def test_a_decision_that_the_question_does_not_allow_is_refused(
    value: Any, with_schema: Any, decision: Decision
) -> None:
    with pytest.raises(InvalidInput, match=f"pay allows .*, not {decision.kind}"):
        answer_of(value, [decision], with_schema)


@pytest.mark.parametrize(
    ("decision", "words"),
    [(REJECT, "Rejected"), (NO, "Rejected: too dear"), (LATE, "Rejected: not decided in time")],
)
def test_a_rejection_is_sent_as_text_if_the_format_has_no_rejection(decision: Decision, words: str) -> None:
    assert answer_of(inbox(ignore=False), [decision]) == [{"type": "response", "args": words}]
    assert answer_of(PER_CALL, [decision], schema("approve", "respond")) == {"type": "respond", "message": words}


@pytest.mark.parametrize("value", [batched(PAY), PER_CALL, inbox()])
@pytest.mark.parametrize("args", [None, 2, [1]])
def test_an_edit_needs_arguments(value: Any, args: Any) -> None:
    with pytest.raises(InvalidInput, match="an edit of pay needs its arguments as a dict"):
        answer_of(value, [Decision("edit", "ada", args=args)])


def test_every_decision_of_the_installed_middleware_is_known() -> None:
    assert set(get_args(DecisionType)) == set(ALL_WORDS)


# -- whatever is asked -------------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
PLAIN = st.recursive(
    SCALARS | st.sampled_from([PAY, "pay", "approve", *ALL_WORDS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SHAPES = [KEEL, batched(PAY, MAIL), PER_CALL, inbox(), DOUBT, PAY, schema(*ALL_WORDS)]
KEYS = sorted({key for shape in SHAPES for key in shape} | {"config", "allowed", "allow_accept", "action_name"})


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Draw a question of a known format with some of its parts replaced or missing."""
    shape = dict(draw(st.sampled_from(SHAPES)))
    shape.update(draw(st.dictionaries(st.sampled_from(KEYS), PLAIN, max_size=2)))
    for key in draw(st.lists(st.sampled_from(sorted(shape)), max_size=1)):
        del shape[key]
    return draw(st.sampled_from([shape, [shape], [shape, inbox()], batched(shape) if "name" in shape else shape]))


VALUES = PLAIN | st.sampled_from(SHAPES) | damaged()


@given(VALUES, PLAIN | st.sampled_from([None, schema("approve"), schema("respond")]))
def test_every_question_has_an_answer(value: Any, with_schema: Any) -> None:
    asks = asks_of(value, with_schema)
    assert len(asks) >= 1
    assert all(ask.allowed and set(ask.allowed) <= set(ALL) for ask in asks)
    decisions = [Decision(ask.allowed[0], "ada", args=ask.args) for ask in asks]  # type: ignore[arg-type]
    answer = answer_of(value, decisions, with_schema)
    if any(ask.action for ask in asks):
        assert isinstance(answer, dict | list)
