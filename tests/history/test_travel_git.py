"""Rewind and fork with `FileSaver(git=True)`: each makes a separate commit."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from support.repositories import Repository, isolate

from langgraph_keel.backends.files import FileSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    isolate(monkeypatch)
    return Repository.made(tmp_path / "repository")


@pytest.fixture
def saver(repository: Repository) -> Iterator[FileSaver]:
    with FileSaver(repository.path / "store", git=True) as saver:
        yield saver


def graph_on(saver: FileSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("a", lambda state: {"log": ["a"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("waits", [True, False], ids=["later", "at-once"])
def test_each_rewind_and_fork_is_a_separate_commit(repository: Repository, saver: FileSaver, waits: bool) -> None:
    graph = graph_on(saver)
    graph.invoke({"log": ["in"]}, CONFIG)
    if waits:
        assert len(repository.titles(expected=1)) == 1
    [_, at, first] = graph.get_state_history(CONFIG)
    moment = at.config["configurable"]["checkpoint_id"]
    saver.rewind(at.config)
    saver.fork(at.config, "u")
    saver.fork(first.config)
    assert repository.titles() == [
        "thread t: step 1 (loop)",
        f"thread t: rewound to {moment}",
        "thread u: forked from t",
        f"thread t: branched from {first.config['configurable']['checkpoint_id']}",
    ]
    assert repository("status", "--short") == ""
    graph.invoke(None, CONFIG)
    assert repository.titles(expected=5)[4:] == ["thread t: step 1 (loop)"]


def test_refused_operations_make_no_commit(repository: Repository, saver: FileSaver) -> None:
    graph = graph_on(saver)
    graph.invoke({"log": ["in"]}, CONFIG)
    assert len(repository.titles(expected=1)) == 1
    unknown: Any = {"configurable": {"thread_id": "t", "checkpoint_id": "unknown"}}
    for call in (saver.rewind, saver.fork, lambda at: saver.fork(at, "u")):
        with pytest.raises(LookupError):
            call(unknown)
    with pytest.raises(ValueError, match="already"):
        saver.fork(CONFIG, "t")
    assert len(repository.titles()) == 1
    assert repository("status", "--short") == ""
