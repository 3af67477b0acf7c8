"""The same conversations shortened by langmem, LangChain's middleware and Keel."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langchain_core.messages.utils import count_tokens_approximately
from support.summaries.conversations import Noting, ids, orphans, talk

from langgraph_keel import SummarizationNode, SummaryWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses old import paths of LangGraph
    summarize_messages: Any = import_module("langmem.short_term").summarize_messages


def by_langmem(messages: list[AnyMessage], budget: int, model: Noting) -> Sequence[BaseMessage]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when it shows the model more than the budget
        result = summarize_messages(
            messages,
            running_summary=None,
            model=model,
            max_tokens=budget,
            max_tokens_before_summary=budget,
            max_summary_tokens=20,
        )
    return list(result.messages)


def by_langchain(messages: list[AnyMessage], trigger: Any, keep: Any, model: Noting) -> Sequence[BaseMessage]:
    middleware = SummarizationMiddleware(model, trigger=trigger, keep=keep)
    update = middleware.before_model({"messages": messages}, None)  # type: ignore[arg-type]
    return update["messages"][1:] if update else messages


def by_keel(messages: list[AnyMessage], trigger: Any, keep: Any, model: Noting) -> Sequence[BaseMessage]:
    update: list[BaseMessage] = SummarizationNode(model, archive=False, trigger=trigger, keep=keep).invoke(messages)
    return update[1:] or messages


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_call_pairs_stay_together_at_every_budget(calls: int) -> None:
    messages = talk(6, calls)
    budgets = range(40, count_tokens_approximately(messages), 12)
    langmem = [bool(orphans(by_langmem(messages, budget, Noting()))) for budget in budgets]
    size = [("tokens", budget) for budget in budgets]
    langchain = [bool(orphans(by_langchain(messages, each, each, Noting()))) for each in size]
    keel = [bool(orphans(by_keel(messages, None, each, Noting()))) for each in size]
    assert not any(keel)
    assert not any(langchain)
    # langmem 0.0.30 separates parallel calls (its issue 126). If this fails, it has been fixed: document that.
    assert any(langmem) is (calls > 1)


def shown(model: Noting, gone: Sequence[BaseMessage]) -> int:
    return sum(str(message.text) in model.everything for message in gone)


def test_the_model_sees_all_removed_messages() -> None:
    messages: list[AnyMessage] = [
        HumanMessage(f"number {number}:" + " so it went on" * 30, id=f"{number}") for number in range(220)
    ]
    theirs, ours = Noting(window=10_000), Noting(window=10_000)
    kept = by_langchain(messages, ("messages", 50), ("messages", 20), theirs)
    gone = [message for message in messages if message.id not in ids(kept)]
    assert len(gone) == 200
    assert 0 < shown(theirs, gone) < 50  # by default it trims to 4000 tokens silently
    assert len(theirs.seen) == 1
    assert by_keel(messages, ("messages", 50), ("messages", 20), ours)[1:] == kept[1:]
    assert shown(ours, gone) == 200
    assert len(ours.seen) > 1


def test_an_empty_summary_removes_nothing() -> None:
    """The empty summary replaces the removed messages; Keel removes nothing."""
    messages, size = talk(8), (("messages", 20), ("messages", 4))
    summary, *kept = by_langchain(messages, *size, Noting(said=[""]))
    assert (summary.text, len(kept)) == ("Here is a summary of the conversation to date:\n\n", 4)
    with pytest.warns(SummaryWarning):
        assert by_keel(messages, *size, Noting(said=[""])) == messages


def test_summaries_by_langchain_are_ordinary_messages() -> None:
    """LangChain's summary of an earlier part of the thread is archived by Keel, too."""
    first, *kept = by_langchain(talk(8), ("messages", 20), ("messages", 4), Noting(said=["theirs"]))
    model = Noting(said=["ours"])
    summary = by_keel([first, *kept, *talk(3, start=8)], ("messages", 10), ("messages", 4), model)[0]  # type: ignore[list-item]
    assert "theirs" in model.everything
    assert "keel_summary" not in first.additional_kwargs
    assert summary.additional_kwargs["keel_summary"]["count"] == len([first, *kept, *talk(3)]) - 4
