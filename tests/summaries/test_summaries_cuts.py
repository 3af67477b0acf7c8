"""The cut between removed and kept messages never separates calls and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from support.summaries.conversations import ids, orphans, talk
from support.tiers import examples

from langgraph_keel.summaries.policy import Cut, cut, groups_of


def size(messages: Sequence[BaseMessage]) -> int:
    return sum(len(str(message.text)) for message in messages)


def pinned(message: BaseMessage) -> bool:
    return "pin" in str(message.text)


def cut_at(messages: Sequence[BaseMessage], keep: tuple[str, int]) -> Cut:
    return cut(messages, keep, size, pinned)


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[AnyMessage]:
    """A turn with up to four parallel calls, repeated ids, missing and late results."""
    calls = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4))
    asked: list[Any] = [{"name": "tool", "args": {}, "id": call} for call in calls]
    answered = draw(st.permutations(draw(st.lists(st.sampled_from(calls), unique=True)) if calls else []))
    strays = draw(st.lists(st.sampled_from("xy"), max_size=1))
    said = draw(st.sampled_from(["", "pin ", "much more of it "]))
    results = [ToolMessage(said, tool_call_id=call, id=f"{number}-{call}") for call in [*strays, *answered]]
    return [
        HumanMessage(f"{said}h", id=f"{number}-human"),
        AIMessage(f"{said}a", id=f"{number}-ai", tool_calls=asked),
        *results,
    ]


@st.composite
def conversations(draw: st.DrawFn) -> list[AnyMessage]:
    head: list[AnyMessage] = [SystemMessage("be kind", id=f"system-{each}") for each in range(draw(st.integers(0, 2)))]
    return head + [message for number in range(draw(st.integers(0, 8))) for message in draw(turns(number))]


def pairs(messages: Sequence[BaseMessage]) -> set[tuple[str | None, str | None]]:
    """Each tool result with the model message that called for it."""
    groups = groups_of(messages)
    return {
        (messages[group].id, message.id)
        for group, message in zip(groups, messages, strict=True)
        if isinstance(message, ToolMessage) and messages[group] is not message
    }


sizes = st.tuples(st.sampled_from(["messages", "tokens"]), st.integers(1, 40))


@settings(max_examples=examples(40))
@given(conversations(), sizes)
def test_a_cut_divides_a_conversation_in_order(messages: list[AnyMessage], keep: tuple[str, int]) -> None:
    found = cut_at(messages, keep)
    gone, kept = ids(found.gone), ids(found.kept)
    assert sorted(gone + kept) == sorted(ids(messages))
    assert [name for name in ids(messages) if name in kept] == kept
    assert [name for name in ids(messages) if name in gone] == gone
    assert gone == [] or ids(messages)[: found.at] == kept[: found.at]
    assert gone == [] or ids(messages)[found.at] == gone[0]


@settings(max_examples=examples(40))
@given(conversations(), sizes)
def test_a_cut_separates_no_call_from_its_result(messages: list[AnyMessage], keep: tuple[str, int]) -> None:
    found = cut_at(messages, keep)
    gone, kept = set(ids(found.gone)), set(ids(found.kept))
    assert [pair for pair in pairs(messages) if not (set(pair) <= gone or set(pair) <= kept)] == []
    assert set(orphans(found.kept)) <= set(orphans(messages))
    # The cut brings messages together, but must not create pairs.
    assert pairs(found.kept) <= pairs(messages)


@settings(max_examples=examples(40))
@given(conversations(), sizes)
def test_pinned_system_and_recent_messages_are_kept(messages: list[AnyMessage], keep: tuple[str, int]) -> None:
    kept = ids(cut_at(messages, keep).kept)
    assert [message for message in messages if pinned(message) and message.id not in kept] == []
    assert [name for name in ids(messages) if name.startswith("system") and name not in kept] == []
    answered = {(asked, result.partition("-")[2]) for asked, result in pairs(messages) if result}
    for message in messages:
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        if any((message.id, call["id"]) not in answered for call in calls):
            assert message.id in kept
    if keep[0] == "messages":
        assert kept[-keep[1] :] == ids(messages)[-keep[1] :]
    else:
        assert kept[-1:] == ids(messages)[-1:]


@settings(max_examples=examples(40))
@given(conversations(), sizes)
def test_a_second_cut_removes_nothing(messages: list[AnyMessage], keep: tuple[str, int]) -> None:
    """A second cut of the kept messages removes nothing."""
    kept = cut_at(messages, keep).kept
    assert ids(cut_at(kept, keep).kept) == ids(kept)


@pytest.mark.parametrize("calls", [0, 1, 2, 3])
def test_cuts_respect_every_budget(calls: int) -> None:
    messages = talk(5, calls)
    for number in range(1, len(messages) + 1):
        found = cut(messages, ("messages", number), size, pinned)
        assert orphans(found.kept) == orphans(found.gone) == []
        assert number <= len(found.kept) <= number + calls
    for tokens in range(1, count_tokens_approximately(messages), 7):
        found = cut(messages, ("tokens", tokens), count_tokens_approximately, pinned)
        assert orphans(found.kept) == orphans(found.gone) == []
        fits = count_tokens_approximately(found.kept) <= tokens
        assert fits or len(found.kept) == 1


def test_the_last_group_is_kept_even_beyond_the_budget() -> None:
    messages = talk(3, 2)[:-1]
    assert ids(cut_at(messages, ("tokens", 1)).kept) == ["asked-2", "result-call-2-0", "result-call-2-1"]


def test_an_unanswered_call_is_kept() -> None:
    messages = [*talk(1, 2)[:-2], *talk(5, 0, start=1)]
    found = cut_at(messages, ("messages", 2))
    assert ids(found.kept) == ["asked-0", "result-call-0-0", "question-5", "answer-5"]
    assert ids(found.gone)[0] == "question-0"
    assert found.at == 0


def test_reused_call_ids_belong_to_the_latest_call() -> None:
    """Some providers use tool names as ids: a result belongs to the latest call."""
    call: Any = {"name": "search", "args": {}, "id": "search"}
    messages: list[AnyMessage] = []
    for number in range(3):
        messages += [
            AIMessage("", id=f"asked-{number}", tool_calls=[call]),
            ToolMessage("it", tool_call_id="search", id=f"result-{number}"),
        ]
    assert ids(cut_at(messages, ("messages", 1)).kept) == ["asked-2", "result-2"]


def test_nothing_to_cut() -> None:
    assert cut_at([], ("messages", 1)) == Cut([], [], 0)
    assert cut_at([], ("tokens", 1)) == Cut([], [], 0)
    assert cut_at([HumanMessage("pin")], ("tokens", 1)).gone == []
