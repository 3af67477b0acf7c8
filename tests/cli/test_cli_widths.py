"""Tables at 80 columns: no word is broken, and no time takes two lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from rich.console import Console
from rich.text import Text
from support.cli_threads import keel

from langgraph_keel import ToolCache, open_saver
from langgraph_keel.cli.output import Rows

LONG = "lookup_order_by_customer"


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


@tool
def lookup_order_by_customer(order: int) -> str:
    """Look it up."""
    return f"order {order}: 10 EUR"


@tool
def refund(order: int, amount: float) -> str:
    """Pay it back."""
    return "paid back"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a waiting agent's thread, asked by LangChain's middleware."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import HumanInTheLoopMiddleware

    where = f"sqlite:///{tmp_path_factory.mktemp('widths') / 'agent.db'}"
    calls = [(LONG, {"order": 4004}), ("refund", {"order": 4004, "amount": 10})]
    said = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"c{n}"}]) for n, (name, args) in enumerate(calls)
    ]
    with open_saver(where) as saver, ToolCache(saver) as cache:
        asks: Any = [HumanInTheLoopMiddleware(interrupt_on={"refund": True}), cache.middleware()]
        agent = create_agent(
            Model(messages=iter(said)), [lookup_order_by_customer, refund], middleware=asks, checkpointer=saver
        )
        begin: Any = {"messages": [("user", "pay it back")]}
        agent.invoke(begin, {"configurable": {"thread_id": "customer-5"}})
    return where


@pytest.mark.parametrize("width", ["60", "72", "80", "100"])
@pytest.mark.parametrize(
    "words", [("tools", "customer-5"), ("cache", "stats"), ("history", "customer-5")], ids=" ".join
)
def test_no_word_is_broken_at_any_width(words: tuple[str, ...], width: str, url: str) -> None:
    shown = keel(*words, "--url", url, COLUMNS=width).stdout
    assert all(len(line) <= int(width) for line in shown.splitlines())
    name = LONG if words[0] != "history" else "HumanInTheLoopMiddleware.after_model"
    assert re.search(rf"(?<!\S){re.escape(name)}(?!\S)", shown)


def test_every_command_shows_requests_alike(url: str) -> None:
    wanted = 'refund {"order": 4004, "amount": 10}'
    for words in (("approvals",), ("history", "customer-5"), ("timeline", "customer-5"), ("audit", "show")):
        shown = " ".join(keel(*words, "--url", url, COLUMNS="200").stdout.split())
        assert wanted in shown or 'refund {"amount": 10, "order": 4004}' in shown
        assert "action_requests" not in shown
        assert "'order'" not in shown


def rendered(width: int, table: Any) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


PAGE = Rows(
    ("name", "time", ">sum", "about"),
    [
        (Text("a_name_of_some_length"), "2026-11-22 10:15", "", "words that may stand in several lines"),
        Text("a note"),
        (Text("other"), "2026-11-22 10:16", "", "more"),
    ],
)
PARAGRAPHS = [
    "a_name_of_some_length",
    "  time 2026-11-22 10:15 · about words that",
    "  may stand in several lines",
    "a note",
    "other",
    "  time 2026-11-22 10:16 · about more",
]


@pytest.mark.parametrize("width", range(50, 90))
def test_a_table_wraps_at_words_or_becomes_paragraphs(width: int) -> None:
    lines = rendered(width, PAGE)
    assert lines[0] == PARAGRAPHS[0] or "a_name_of_some_length   2026-11-22 10:15   words" in lines[2]
    assert max(map(len, lines)) <= width


def test_a_table_needs_enough_width() -> None:
    assert rendered(43, PAGE) == PARAGRAPHS
    assert len(rendered(54, PAGE)) > 5
    assert rendered(100, PAGE)[3:] == ["a note", f"{'other':<24}2026-11-22 10:16   more"]
    assert len(rendered(100, PAGE)) == 5


def test_tables_without_rows() -> None:
    assert rendered(80, Rows(("name", "time"), [Text("a note")])) == ["a note"]
    assert rendered(80, Rows(("name", "time"), [])) == []


def test_the_last_checkpoint_of_each_run_is_shown_as_done(tmp_path: Path) -> None:
    from langgraph.graph import START, MessagesState, StateGraph

    where = f"sqlite:///{tmp_path / 'agent.db'}"
    builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [AIMessage("so")]})
    with open_saver(where) as saver:
        graph = builder.add_edge(START, "say").compile(checkpointer=saver)
        for _ in range(2):
            begin: Any = {"messages": [("user", "on")]}
            graph.invoke(begin, {"configurable": {"thread_id": "t"}})
    assert keel("history", "t", "--url", where).stdout.count("done") == 2


def test_bars_of_days_fit_the_width(url: str) -> None:
    shown = keel("usage", "--by", "day", "--bytes", "--url", url).stdout
    assert "█" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
