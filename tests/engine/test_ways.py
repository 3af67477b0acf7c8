"""The five ways of engine/README.md, traced on SQLite: each uses few files."""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import langgraph_keel
from langgraph_keel import SqliteSaver

PACKAGE = Path(langgraph_keel.__file__).parent
MOST = 19
"""Maximum files of one way, except those of `put` and `get_tuple`, which are in brackets.

In all, an approval uses 21, a prune and an erasure 20 each, since the data that they change belongs to several rooms.
"""


def drawn_ways() -> Mapping[str, tuple[list[str], list[str]]]:
    """Return the files of each way on the page, and those in brackets.

    Files in brackets are known from the first two ways.
    """
    text = (PACKAGE / "engine" / "README.md").read_text("utf-8")
    block = text.partition("## Five ways")[2].partition("```text\n")[2].partition("```")[0]
    ways: dict[str, tuple[list[str], list[str]]] = {}
    for line in filter(None, block.splitlines()):
        name, _, told = line.partition(" ")
        if name:
            shown, known = ways[name] = [], []
        files = told.strip().partition("  ")[0]
        (known if files.startswith("[") else shown).extend(re.findall(r"[\w/]+", files))
    return ways


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    threading.setprofile(note)  # the writing thread inherits it
    try:
        with SqliteSaver(tmp_path / "agent.db") as saver:
            yield saver
    finally:
        threading.setprofile(None)


_asked: list[tuple[int, set[str]]] = []
"""The thread whose calls are recorded now, and the files that it has used."""


def note(frame: FrameType, event: str, _: object) -> None:
    """Record a call of the package.

    Generated functions, such as methods of data classes, have no file.
    """
    path = frame.f_code.co_filename
    if event != "call" or not path.startswith(str(PACKAGE)):
        return
    for thread, entered in _asked:
        # Other threads may renew claims, for example.
        if threading.get_ident() == thread or threading.current_thread().name == "keel-writer":
            entered.add(Path(path).relative_to(PACKAGE).with_suffix("").as_posix())


def files_entered(act: Callable[[], object]) -> set[str]:
    """Return the files whose functions are called, in this or the writing thread."""
    entered, before = set[str](), sys.getprofile()
    gc.collect()
    gc.disable()  # the collector may close leftovers of other tests, in any thread
    _asked.append((threading.get_ident(), entered))
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
        _asked.clear()
        gc.enable()
    return entered


def put(saver: SqliteSaver, config: RunnableConfig, user: str, texts: Sequence[str]) -> RunnableConfig:
    checkpoint = {
        **empty_checkpoint(),
        "v": 4,  # as graphs write them; for older versions, sends are read from the parent
        "id": f"{len(texts):04}",
        "channel_values": {"messages": [HumanMessage(text, id=text) for text in texts]},
        "channel_versions": {"messages": len(texts)},
    }
    about: Any = {"source": "loop", "step": len(texts), "parents": {}, "user_id": user}
    return saver.put(config, checkpoint, about, {"messages": len(texts)})  # type: ignore[arg-type]


def chat(saver: SqliteSaver, thread: str, user: str = "ann") -> RunnableConfig:
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for texts in ("a", "ab", "abc"):
        config = put(saver, config, user, texts)
    return config


# Each runs once on another thread first, so that only the usual way is traced.


def ready_put(saver: SqliteSaver) -> Callable[[], object]:
    config = chat(saver, "t")
    return lambda: put(saver, config, "ann", "abcd")


def ready_get_tuple(saver: SqliteSaver) -> Callable[[], object]:
    config = chat(saver, "t")
    saver.get_tuple(config)

    def act() -> None:
        assert saver.get_tuple(config) is not None
        saver.engine.session.memo.forget_thread("t")
        assert saver.get_tuple(config) is not None  # as a process that does not know the thread

    return act


def ready_approve(saver: SqliteSaver) -> Callable[[], object]:
    builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [AIMessage(interrupt("sure?"))]})
    graph = builder.add_edge(START, "ask").compile(checkpointer=saver)
    for thread in ("t", "other"):
        begin: Any = {"messages": [("user", "pay")]}
        graph.invoke(begin, {"configurable": {"thread_id": thread}})
    first, second = saver.approvals.pending()
    saver.approvals.approve(first.id, by="ann")
    return lambda: saver.approvals.approve(second.id, by="ann")


def ready_prune(saver: SqliteSaver) -> Callable[[], object]:
    chat(saver, "t")
    chat(saver, "other")
    saver.prune(["other"])
    return lambda: saver.prune(["t"])


def ready_erase(saver: SqliteSaver) -> Callable[[], object]:
    chat(saver, "t")
    chat(saver, "other", "bob")
    saver.retention.erase("bob")
    return lambda: saver.retention.erase("ann")


READY = {
    "put": ready_put,
    "get_tuple": ready_get_tuple,
    "approve": ready_approve,
    "prune": ready_prune,
    "erase": ready_erase,
}


@pytest.mark.parametrize("way", READY)
def test_a_way_enters_the_files_drawn_on_the_page(way: str, saver: SqliteSaver) -> None:
    shown, known = drawn_ways()[way]
    assert files_entered(READY[way](saver)) == {*shown, *known}


def test_each_way_is_short() -> None:
    ways = drawn_ways()
    assert ways.keys() == READY.keys()
    met = {*ways["put"][0], *ways["get_tuple"][0]}
    for way, (shown, known) in ways.items():
        assert len(shown) == len(set(shown)) <= MOST
        assert met >= set(known)
        assert not known if way in ("put", "get_tuple") else met.isdisjoint(shown)
