"""The model's input: all messages, readable, in as many parts as its window needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from support.summaries.conversations import Noting, talk, texts
from support.tiers import examples

from langgraph_keel import InvalidInput, SummarizationNode
from langgraph_keel.summaries.summarizer import fill_prompt, render

OVERFLOW = ContextOverflowError("too long")


def summarized(model: Noting, messages: Sequence[BaseMessage], **options: Any) -> list[BaseMessage]:
    node = SummarizationNode(model, archive=False, trigger=None, **{"keep": ("messages", 1), **options})
    found: list[BaseMessage] = node.invoke(list(messages))
    return found


def test_the_model_sees_all_messages_in_parts_that_fit() -> None:
    model, messages = Noting(said=["first", "second", "third", "last"], window=1000), talk(80, 2)
    _, summary, *kept = summarized(model, messages)
    assert len(model.seen) > 10
    assert all(count_tokens_approximately([HumanMessage(prompt)]) <= 800 for prompt in model.seen)
    for text in texts(messages[:-1]):
        assert text in model.everything
    assert all(str(call["args"]["q"]) in model.everything for m in messages for call in getattr(m, "tool_calls", ()))
    assert [said in seen for said, seen in zip(("first", "second", "third"), model.seen[1:4], strict=True)] == [
        True
    ] * 3
    assert str(summary.text).endswith("last")
    assert kept == messages[-1:]


def test_a_message_larger_than_the_window_is_sliced() -> None:
    words = " ".join(f"word-{number}" for number in range(5000))
    model = Noting(window=1000)
    messages: list[AnyMessage] = [HumanMessage("before"), ToolMessage(words, tool_call_id="1"), *talk(1)]
    summarized(model, messages)
    assert all(count_tokens_approximately([HumanMessage(prompt)]) <= 800 for prompt in model.seen)
    shown = "".join(slice_of(prompt) for prompt in model.seen)
    assert words in shown


def slice_of(prompt: str) -> str:
    inside = prompt.partition("<messages>\n")[2].rpartition("\n</messages>")[0]
    return inside.removeprefix("(the message before goes on)\n")


@settings(max_examples=examples(20))
@given(st.lists(st.text(max_size=1500), min_size=1, max_size=4), st.integers(500, 1500))
def test_no_text_is_lost(said: list[str], window: int) -> None:
    model = Noting(window=None)
    counted = summarized(model, [HumanMessage(text) for text in [*said, "kept"]], max_input_tokens=window)
    assert len(counted) == 3
    shown = "".join(slice_of(prompt) + "\n" for prompt in model.seen)
    assert [text for text in said if text not in shown.replace("</human>\n<human>", "")] == []


def test_parts_shrink_after_a_context_overflow() -> None:
    model, messages = Noting(said=[OVERFLOW, OVERFLOW, "one", OVERFLOW, "two"], window=10_000), talk(80, 2)
    _, summary, *_ = summarized(model, messages, on_error="raise")
    assert str(summary.text).endswith("two")
    answered = "\n".join(model.seen[number] for number in range(len(model.seen)) if number not in (0, 1, 3))
    assert [text for text in texts(messages[:-1]) if text not in answered] == []
    with pytest.raises(ContextOverflowError):
        summarized(Noting(said=[OVERFLOW]), messages, on_error="raise")


def test_a_long_summary_is_never_cut_off() -> None:
    """A summary by another model may fill a part alone, and is never cut off."""
    words = " ".join(f"fact-{number}" for number in range(2000))
    first = summarized(Noting(said=[words]), talk(3))[1]
    model = Noting(window=1000)
    summarized(model, [first, *talk(3)])
    shown = "".join(slice_of(prompt) for prompt in model.seen)
    assert words in shown


MESSAGES: dict[str, tuple[BaseMessage, list[str]]] = {
    "arguments": (
        AIMessage("so", tool_calls=[{"name": "pay", "args": {"to": "Zoë", "sum": 12.5}, "id": "c1"}]),
        ["so", "pay", '{"to": "Zoë", "sum": 12.5}', "c1"],
    ),
    "malformed": (
        AIMessage("", invalid_tool_calls=[{"name": "pay", "args": '{"to', "id": "c2", "error": "cut"}]),
        ["pay", '{"to', "c2"],
    ),
    "error": (ToolMessage("no money", tool_call_id="c1", status="error"), ["no money", "c1", "error"]),
    "name": (HumanMessage("it is I", name="Ada"), ["Ada", "it is I"]),
    "image": (
        HumanMessage(["look:", {"type": "image", "base64": "A" * 5000, "mime_type": "image/png"}]),
        ["look:", "image/png", "5000 characters"],
    ),
    "picture": (
        HumanMessage([{"type": "image_url", "image_url": {"url": "https://pictures.test/cat.png"}}]),
        ["https://pictures.test/cat.png"],
    ),
    "inline": (HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;" + "A" * 900}}]), ["915"]),
    "thought": (AIMessage([{"type": "thinking", "thinking": "hm, if", "signature": "A" * 900}]), ["hm, if"]),
    "reasoning": (AIMessage([{"type": "reasoning", "reasoning": "it follows"}, "so"]), ["it follows", "so"]),
    "used": (
        AIMessage(
            [{"type": "tool_use", "id": "c3", "name": "go", "input": {"x": 1}}],
            tool_calls=[{"name": "go", "args": {"x": 1}, "id": "c3"}],
        ),
        ['<call name="go" id="c3">{"x": 1}</call>'],
    ),
    "server": (AIMessage([{"type": "server_tool_result", "output": "x" * 900}]), ["x" * 900]),
    "plain": (HumanMessage([{"type": "text-plain", "text": "y" * 900}]), ["y" * 900]),
    "refusal": (AIMessage("", additional_kwargs={"refusal": "I will not"}), ["I will not"]),
    "odd": (HumanMessage([{"what": "ever"}]), ['{"what": "ever"}']),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_readable_content_of_messages_is_rendered(name: str) -> None:
    message, wanted = MESSAGES[name]
    shown = render(message)
    assert [text for text in wanted if text not in shown] == []
    assert "AAAAA" not in shown
    assert shown.count('"x": 1') <= 1


def test_braces_in_messages_are_literal() -> None:
    prompt = 'Say {"json": 1}: {previous}{messages}'
    assert fill_prompt(prompt, ["{previous} {0}"], "{messages}").count("{messages}") == 1
    assert fill_prompt("All: {messages}", ["it"], "before").endswith(
        "<previous_summary>\nbefore\n</previous_summary>\n\nit"
    )


def test_a_custom_prompt() -> None:
    model = Noting()
    summarized(model, talk(2), prompt='In {"json"}: {messages}')
    assert model.seen[0].startswith('In {"json"}: <human>\nquestion 0')


def test_a_prompt_without_messages_is_refused() -> None:
    with pytest.raises(InvalidInput, match="messages"):
        SummarizationNode(Noting(), archive=False, prompt="Summarize!")
    with pytest.raises(InvalidInput, match="leaves less than 200 tokens"):
        SummarizationNode(Noting(), archive=False, max_input_tokens=300)
