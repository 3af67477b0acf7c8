"""An archive belongs to its thread: deleted with it, and never moved to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from support.approvals.resuming import runs_of
from support.repositories import Repository, isolate
from support.summaries.archives import CONFIG, Box, memory_box, turns
from support.summaries.conversations import Noting
from support.tool_graphs import Scripted

from langgraph_keel import (
    CheckpointConflict,
    CorruptStore,
    FileSaver,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    NotFound,
    SlidingWindow,
    SqliteSaver,
    SummarizationNode,
)
from langgraph_keel.testing.faults import Counter, Meanwhile, Tap, with_tap

__all__ = ["memory_box"]  # a fixture

OWNED: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}


def chat(saver: KeelSaver, node: Any = None) -> Any:
    """A graph that keeps two messages and a summary, and answers."""
    short: Any = node or SummarizationNode(Noting(said=["in short"]), trigger=("messages", 6), keep=("messages", 2))
    builder: Any = StateGraph(MessagesState).add_node("shorten", short)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("a", id=f"{state['messages'][-1].id}a")]})
    return builder.add_edge(START, "shorten").add_edge("shorten", "answer").compile(checkpointer=saver)


def talk(graph: Any, count: int, config: Any = CONFIG, word: str = "q") -> Any:
    for n in range(count):
        graph.invoke({"messages": [HumanMessage("x", id=f"{word}{n}")]}, config)
    return graph


def invoke(box: Box, graph: Any, given: Any, **options: Any) -> Any:
    if box.face == "sync":
        return graph.invoke(given, OWNED, **options)
    return asyncio.run(graph.ainvoke(given, OWNED, **options))


def names(graph: Any, config: Any = CONFIG) -> list[str | None]:
    found: list[BaseMessage] = graph.get_state(config).values["messages"]
    return [message.id for message in found]


# -- a deleted thread --------------------------------------------------------------------------------------------------


def test_a_restore_does_not_recreate_a_deleted_thread(memory_box: Box) -> None:
    box = memory_box
    for at in range(30):
        talk(chat(box.saver), 5, OWNED)
        rival = Meanwhile(at, lambda: box.saver.delete_thread("t"))
        tapped = Box(with_tap(box.saver, rival), box.face)
        graph = chat(tapped.saver)
        with suppress(NotFound):
            tapped.call("restore", graph)
        if not rival.happened:
            break
        assert list(box.saver.threads()) == []
        assert graph.get_state(CONFIG).values == {}
    assert 3 < at < 29


def test_a_restore_at_a_pruned_checkpoint_is_refused(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 5)
    config = graph.get_state(CONFIG).config
    box.saver.rewind(list(graph.get_state_history(CONFIG))[3].config)
    box.saver.prune(["t"], strategy="keep_latest")
    before = list(graph.get_state_history(CONFIG))
    with pytest.raises(NotFound, match="no checkpoint of thread 't'"):
        box.call("restore", graph, config=config)
    assert list(graph.get_state_history(CONFIG)) == before


@pytest.mark.parametrize("is_named", [False, True], ids=["latest", "named"])
def test_a_restore_keeps_the_owner_of_the_thread(memory_box: Box, is_named: bool) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 5, OWNED)
    before = graph.get_state(CONFIG).config
    box.saver.engine.session.memo.forget(("t", ""))
    done = box.call("restore", graph, config=before if is_named else None)
    assert "user_id" not in done.config["configurable"]
    assert graph.get_state(CONFIG).metadata["user_id"] == "ada"
    assert graph.get_state(CONFIG).config != before


def test_a_restore_that_is_always_overtaken_raises_a_conflict(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 5)
    runs_of(box.saver).patience = 0  # the rival stores within the call that it would wait for

    class Rival(Tap):
        is_busy = False
        count = 0

        def sending(self, request: Any) -> None:
            if not self.is_busy:
                self.is_busy, self.count = True, self.count + 1
                graph.update_state(CONFIG, {"messages": [HumanMessage("me first", id=f"r{self.count}")]})
                self.is_busy = False

    tapped = Box(with_tap(box.saver, Rival()), box.face)
    with pytest.raises(CheckpointConflict):
        tapped.call("restore", chat(tapped.saver))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("by", ["summary", "rule", "window"])
def test_parts_of_a_run_on_a_deleted_thread_are_removed(memory_box: Box, by: str, durability: Any) -> None:
    box = memory_box
    talk(chat(box.saver), 2, OWNED)

    class Erasing(Noting):
        def _generate(self, *args: Any, **options: Any) -> Any:
            box.saver.delete_thread("t")
            return super()._generate(*args, **options)

    def erased(state: Any, config: RunnableConfig) -> Any:
        box.saver.delete_thread("t")
        if by == "window":
            return SlidingWindow(trigger=("messages", 3), keep=("messages", 2)).invoke(state, config)
        return {"messages": [RemoveMessage(message.id) for message in state["messages"][:3]]}

    model = Erasing(said=["in short"])
    node = SummarizationNode(model, trigger=("messages", 4), keep=("messages", 2)) if by == "summary" else erased
    with pytest.raises(CheckpointConflict):
        invoke(box, chat(box.saver, node), {"messages": turns(0, 4)}, durability=durability)
    if box.cells():  # the step ended before its run noticed the deletion: a stray, as on every slow store
        assert durability == "async"
        box.saver.delete_thread("t")
    assert box.cells() == {}
    assert list(box.saver.threads()) == []


def test_a_conflict_with_another_run_removes_no_parts(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 5)
    before = box.cells()

    class Rival(Noting):
        def _generate(self, *args: Any, **options: Any) -> Any:
            graph.update_state(CONFIG, {"messages": [HumanMessage("me first", id="rival")]})
            return super()._generate(*args, **options)

    late = chat(box.saver, SummarizationNode(Rival(), trigger=("messages", 4), keep=("messages", 2)))
    with pytest.raises(CheckpointConflict):
        invoke(box, late, {"messages": turns(0, 4)})
    assert before.items() <= box.cells().items()


@pytest.mark.parametrize("copy", ["fork", "copy_thread"])
def test_a_copy_deleted_concurrently_leaves_no_parts(memory_box: Box, copy: str) -> None:
    box = memory_box
    talk(chat(box.saver), 8)
    source: Any = CONFIG if copy == "fork" else "t"
    for at in range(40):
        rival = Meanwhile(at, lambda: box.saver.delete_thread("u"))
        with suppress(NotFound):
            getattr(with_tap(box.saver, rival), copy)(source, "u")
        left = box.cells("u")
        assert left == {} or [thread for thread in box.saver.threads() if thread.thread_id == "u"]
        if not rival.happened:
            break
        box.saver.delete_thread("u")
    assert 9 < at < 39
    assert len(box.cells("u")) == len(box.cells()) > 2


# -- copies ------------------------------------------------------------------------------------------------------------


def test_the_archive_of_a_fork_is_committed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    repository = Repository.made(tmp_path)
    with FileSaver(tmp_path / "store", git=True) as saver:
        talk(chat(saver), 5)
        saver.fork(CONFIG, "f")
        saver.copy_thread("t", "c")
        saver.close()
    assert repository("status", "--short") == ""
    assert len(repository("ls-files", "*archive*").splitlines()) % 3 == 0


def test_a_fork_copies_a_damaged_part_unchanged(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 8)
    parts = box.call("entries")
    box.set_cell(parts[0].id, replace(box.cells()[parts[0].id], token="bad", header=b""))
    box.saver.fork(CONFIG, "f")
    assert set(box.cells("f")) == {part.id for part in parts}
    with pytest.raises(CorruptStore, match=f"thread 'f': the head of archived part {parts[0].id}"):
        box.call("restore", graph, thread="f")
    box.call("messages", parts[1].id, thread="f")


def test_a_missing_part_is_reported(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 8)
    parts = box.call("entries")
    for part in parts:
        box.call("remove", part)
    done = box.call("restore", graph)
    assert done.missing == (parts[-1].id,)
    assert str(done) == "0 messages restored, 1 part of summaries not in the archive"


def test_an_abandoned_branch_is_not_restored_after_a_prune(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 2)
    at = graph.get_state(CONFIG).config
    talk(graph, 5, word="wrong")
    box.saver.rewind(at)
    talk(graph, 5, word="right")
    box.saver.prune(["t"], strategy="keep_latest")
    wrong = next(part for part in box.call("entries") if "wrong1" in part.message_ids)
    box.call("restore", graph)
    every = [f"{word}{n}{a}" for word, count in (("q", 2), ("right", 5)) for n in range(count) for a in ("", "a")]
    assert names(graph) == every
    box.call("restore", graph)
    assert names(graph) == every
    box.call("restore", graph, wrong)
    assert "wrong1" in names(graph), "who asks for it gets it"


# -- another store -----------------------------------------------------------------------------------------------------


def test_a_restore_into_another_store_or_thread_is_refused(memory_box: Box) -> None:
    box = memory_box
    graph = talk(chat(box.saver), 5)
    with MemorySaver() as other:
        with pytest.raises(NotFound, match="another saver"):
            box.call("restore", chat(other))
        talk(chat(other), 2)
        with pytest.raises(InvalidInput, match="another store"):
            box.call("restore", chat(other))
        assert names(chat(other)) == ["q0", "q0a", "q1", "q1a"]
    bob: Any = {"configurable": {"thread_id": "bob"}}
    talk(graph, 1, bob)
    with pytest.raises(InvalidInput, match="config names thread 'bob'"):
        box.call("restore", graph, config=bob)
    assert names(graph, bob) == ["q0", "q0a"]
    with pytest.raises(InvalidInput, match="no checkpointer"):
        box.call("restore", graph.copy(update={"checkpointer": None}))


@pytest.fixture(params=["memory", "sqlite"])
def apart(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], KeelSaver]]:
    """Return a function that opens savers, each on its own store."""
    opened: list[KeelSaver] = []

    def open_one() -> KeelSaver:
        place = str(tmp_path / f"{len(opened)}.db")
        opened.append(MemorySaver() if request.param == "memory" else SqliteSaver(place))
        return opened[-1]

    yield open_one
    for saver in opened:
        saver.close()


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_node_that_archives_in_another_store_is_refused(apart: Callable[[], KeelSaver], face: str) -> None:
    ours, theirs = apart(), apart()
    node = SlidingWindow(theirs, keep=("messages", 2))
    window = theirs.summarization_middleware(None, keep=("messages", 2))
    agent = create_agent(Scripted(script=[]), [], middleware=[window], checkpointer=ours)
    for graph in (chat(ours, node), agent):
        with pytest.raises(InvalidInput, match="another store"):
            invoke(Box(ours, face), graph, {"messages": turns(0, 4)})
    assert len(ours.archive("t")) == len(theirs.archive("t")) == 0


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_node_may_use_another_saver_of_the_same_store(tmp_path: Path, face: str) -> None:
    with SqliteSaver(str(tmp_path / "k.db")) as one, SqliteSaver(str(tmp_path / "k.db")) as two:
        graph = chat(one, SlidingWindow(two, keep=("messages", 2)))
        invoke(Box(one, face), graph, {"messages": turns(0, 4)})
        (part,) = one.archive("t")
        assert part.message_ids == ("m0", "m1")
        Box(two, face).call("restore", graph)
        assert names(graph) == ["m0", "m1", "m2", "m3", "m3a"]


def test_an_invalid_saver_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no saver with an archive; did you mean keep="):
        SlidingWindow(("messages", 4))
    with pytest.raises(InvalidInput, match="needs one of Keel's"):
        SlidingWindow("redis://")


def test_listing_reads_the_archive_once(memory_box: Box) -> None:
    box = memory_box
    box.begin()
    for n in range(4):
        box.keep(turns(n, n + 1))
    box.saver.copy_thread("t", "copy")
    counter = Counter()
    archive = with_tap(box.saver, counter).archive("t")
    parts = archive.entries()
    assert counter.taken() == 1
    assert [*archive] == parts
    assert list(reversed(archive)) == parts[::-1]
    assert archive.index(parts[2]) == 2
    assert parts[3] in archive
    with pytest.raises(ValueError, match="not in"):
        archive.index(parts[1], 2)
    assert counter.taken() <= 6
    with_tap(box.saver, counter).copy_thread("t", "other")
    before = counter.taken()
    for n in range(4, 8):
        box.keep(turns(n, n + 1))
    with_tap(box.saver, counter).copy_thread("t", "more")
    assert counter.taken() == before + 4, "they are read together"
