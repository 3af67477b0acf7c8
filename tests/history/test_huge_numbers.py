"""Numbers of over 4,300 digits, which Python cannot print in decimal, are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from support.cli_threads import keel

from langgraph_keel import SqliteSaver, request_approval

HUGE = 10**5000
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    number: int
    nested: dict[Any, Any]
    log: list[Any]


def grow(state: State) -> State:
    return {"number": -HUGE, "nested": {"keys": {HUGE: [HUGE, {HUGE}]}}, "log": [*state["log"], HUGE, (HUGE,)]}


def ask(state: State) -> State:
    return {"number": request_approval("pay", {"amount": HUGE, "each": [HUGE]}).args["amount"]}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "keel.db")
    with SqliteSaver(path) as saver:
        graph = StateGraph(State).add_sequence([grow, ask]).add_edge(START, "grow").compile(checkpointer=saver)
        graph.invoke({"number": 1, "nested": {"keys": {}}, "log": [1]}, CONFIG)
    return path


def test_huge_numbers_are_shown_in_python(path: str) -> None:
    with SqliteSaver(path) as saver:
        timeline = saver.timeline("t")
        diff = timeline.diff(0, -1)
        shown = [str(timeline), timeline._repr_html_(), str(diff), diff._repr_html_()]  # private: what notebooks call
        assert all(text for text in shown)
        assert hex(HUGE) in str(diff.to_patch())
        assert "pay" in str(saver.approvals.pending())
        assert saver.approvals.pending()._repr_html_()  # private: what notebooks call
        assert timeline.head.values["number"] == -HUGE


@pytest.mark.parametrize(
    "words",
    [
        *("show t", "show t --json", "diff t 0", "diff t 0 --json", "diff t 0 --patch", "timeline t"),
        *("timeline t --json", "history t", "history t --json", "approvals", "approvals --json", "threads"),
    ],
)
def test_huge_numbers_are_shown_in_a_terminal(path: str, words: str) -> None:
    assert keel(*words.split(), "--url", f"sqlite:///{path}").stdout
