"""One commit per run: LangGraph's graphs of every kind with `git=True`."""

from __future__ import annotations

import asyncio
import operator
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.checkpoints import checkpoint_of, config_for
from support.repositories import Repository, isolate

from langgraph_keel.backends.files import git
from langgraph_keel.backends.files.saver import FileSaver
from langgraph_keel.saver import KeelSaver

DURABILITIES = ["sync", "async", "exit"]
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


START_WITH: Any = {"log": ["in"]}
Node = Any  # Callable[[State], Any], of which LangGraph's own types make four others


def says(name: str) -> Node:
    return lambda state: {"log": [name]}


def asks(state: State) -> State:
    return {"log": [str(interrupt("may I?"))]}


def fails(state: State) -> State:
    raise RuntimeError("no")


def chain(*nodes: Node) -> StateGraph[State]:
    builder = StateGraph(State)
    names = [f"n{place}" for place in range(len(nodes))]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for edge in zip([START, *names], names, strict=False):
        builder.add_edge(*edge)
    return builder


def diamond() -> StateGraph[State]:
    builder = chain(says("a"))
    for name in "bcd":
        builder.add_node(name, says(name), defer=name == "c")
    builder.add_edge("n0", "b")
    builder.add_edge("n0", "c")
    builder.add_edge(["b", "c"], "d")
    return builder


def sending() -> StateGraph[State]:
    builder = chain(says("a"))
    builder.add_node("w", says("w"))
    builder.add_conditional_edges("n0", lambda state: [Send("w", state), Send("w", state)], ["w"])
    return builder


def looping() -> StateGraph[State]:
    def again(state: State) -> Command[Any]:
        return Command(goto="n0" if len(state["log"]) % 4 else END, update={"log": ["a"]})

    return chain(again)


def nested(*nodes: Node) -> StateGraph[State]:
    return chain(says("a"), chain(*nodes).compile(), says("z"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    isolate(monkeypatch)
    # On a busy machine, LangGraph may store the last writes of a run later than the usual wait.
    monkeypatch.setattr(git, "QUIET", 1.5)
    return Repository.made(tmp_path)


@pytest.fixture
def saver(repository: Repository) -> Iterator[KeelSaver]:
    with FileSaver(repository.path / "store", git=True) as saver:
        yield saver


GRAPHS = {
    "one node": chain(says("a")),
    "chain": chain(says("a"), says("b"), says("c")),
    "parallel, deferred and joined": diamond(),
    "sends": sending(),
    "goto": looping(),
    "subgraph": nested(says("b"), says("c")),
}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("builder", GRAPHS.values(), ids=GRAPHS)
def test_each_run_is_one_commit(
    repository: Repository, saver: KeelSaver, builder: StateGraph[State], durability: Any
) -> None:
    graph = builder.compile(checkpointer=saver)
    expected = []
    for _ in range(3):
        graph.invoke(START_WITH, CONFIG, durability=durability)
        step = (graph.get_state(CONFIG).metadata or {})["step"]
        expected.append(f"thread t: step {step} (loop)")
        assert len(repository.titles()) >= len(expected) - 1
    saver.close()
    assert repository.titles() == expected
    assert repository("status", "--short") == ""


@pytest.mark.slow
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("builder", [chain(says("a"), asks), nested(says("b"), asks)], ids=["chain", "subgraph"])
def test_a_question_is_a_commit_and_the_answer_another(
    repository: Repository, saver: KeelSaver, builder: StateGraph[State], durability: Any
) -> None:
    graph = builder.compile(checkpointer=saver)
    graph.invoke(START_WITH, CONFIG, durability=durability)
    assert repository.titles(expected=1) == ["thread t: step 1 (interrupt)"]
    assert repository("status", "--short") == ""
    graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
    saver.close()
    # One, or two: on a busy machine, a run's late writes may look like its end.
    assert [title.endswith("(loop)") for title in repository.titles()[1:]] in ([True], [True, True])


@pytest.mark.slow
def test_a_commit_waits_for_writes_to_a_slow_disk(
    repository: Repository, saver: KeelSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, asked, go_on = os.fdatasync, Event(), Event()

    def fdatasync(handle: int) -> None:
        asked.set()
        go_on.wait(10)
        sync(handle)

    stored = saver.put(config_for("t"), checkpoint_of("end", {}), {"source": "loop", "step": 1, "parents": {}}, {})
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with ThreadPoolExecutor() as pool:
        pool.submit(saver.put_writes, stored, [("log", ["in"])], "task")
        assert asked.wait(10)
        time.sleep(3 * git.QUIET)
        assert repository.titles() == []
        go_on.set()
    assert repository.titles(expected=1) == ["thread t: step 1 (loop)"]
    assert repository("status", "--short") == ""


def test_a_commit_does_not_wait_forever_for_an_abandoned_write(
    repository: Repository, saver: KeelSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is forked during another thread's write has a note that never ends."""
    monkeypatch.setattr(git, "_MOST_DELAY", 0.2)
    hook = saver.engine.session.hooks.find(git.GitHook)
    assert hook
    hook._commits.begin_storing("t")  # private: nothing public records a write that never ends
    saver.put(config_for("t"), checkpoint_of("end", {}), {"source": "loop", "step": 1, "parents": {}}, {})
    assert repository.titles(expected=1) == ["thread t: step 1 (loop)"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_failure_is_a_commit(repository: Repository, saver: KeelSaver, durability: Any) -> None:
    graph = chain(says("a"), fails).compile(checkpointer=saver)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            graph.invoke(START_WITH, CONFIG, durability=durability)
    saver.close()
    assert repository.titles() == ["thread t: step 1 (error)", "thread t: step 4 (error)"]


@pytest.mark.parametrize("channel", ["__error__", "__interrupt__"])
def test_a_run_is_committed_before_writes_that_precede_the_next_checkpoint(
    repository: Repository, saver: KeelSaver, channel: str
) -> None:
    """With `durability="exit"`, a run's only checkpoint and its writes are stored at once, by several threads."""
    for step in (1, 2):
        saver.put_writes(config_for("t", f"{step:08}"), [(channel, ())], "task")
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        saver.put(config_for("t"), checkpoint_of(f"{step:08}", {}), metadata, {})
    saver.close()
    how = channel.strip("_")
    assert repository.titles() == [f"thread t: step 1 ({how})", f"thread t: step 2 ({how})"]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_run_stopped_at_a_breakpoint_is_committed_with_its_rest(
    repository: Repository, saver: KeelSaver, durability: Any
) -> None:
    graph = chain(says("a"), says("b")).compile(checkpointer=saver, interrupt_before=["n1"])
    graph.invoke(START_WITH, CONFIG, durability=durability)
    assert repository.titles() == []
    graph.invoke(None, CONFIG, durability=durability)
    saver.close()
    assert repository.titles() == ["thread t: step 2 (loop)"]


def test_the_rest_of_a_run_is_committed_before_the_next(repository: Repository, saver: KeelSaver) -> None:
    graph = chain(says("a"), says("b")).compile(checkpointer=saver, interrupt_before=["n1"])
    graph.invoke(START_WITH, CONFIG)
    graph.invoke(START_WITH, CONFIG)
    assert repository.titles() == ["thread t: step 1 (loop)"]
    saver.close()
    assert repository.titles() == ["thread t: step 1 (loop)", "thread t: step 4 (loop)"]


@pytest.mark.slow
@pytest.mark.parametrize("durability", DURABILITIES)
def test_runs_of_the_functional_api_are_commits(repository: Repository, saver: KeelSaver, durability: Any) -> None:
    @task
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(checkpointer=saver)
    def flow(number: int) -> int:
        return double(number).result() + int(interrupt("how much?"))

    flow.invoke(1, CONFIG, durability=durability)
    assert repository.titles(expected=1) == ["thread t: step -1 (interrupt)"]
    assert flow.invoke(Command(resume=5), CONFIG, durability=durability) == 7
    assert repository.titles(expected=2)[1:] == ["thread t: step 0 (loop)"]
    assert repository("status", "--short") == ""


def test_an_edit_is_a_commit(repository: Repository, saver: KeelSaver) -> None:
    graph = chain(says("a"), says("b")).compile(checkpointer=saver)
    graph.update_state(CONFIG, {"log": ["by hand"]}, as_node="n0")
    graph.invoke(None, CONFIG)
    assert repository.titles(expected=2) == ["thread t: step 0 (update)", "thread t: step 1 (loop)"]


async def test_concurrent_runs_of_many_threads_are_separate_commits(repository: Repository, saver: KeelSaver) -> None:
    graph = chain(says("a"), says("b")).compile(checkpointer=saver)
    configs: list[Any] = [{"configurable": {"thread_id": f"t{number}"}} for number in range(8)]
    await asyncio.gather(*(graph.ainvoke(START_WITH, config) for config in configs))
    assert sorted(repository.titles(expected=8)) == [f"thread t{number}: step 2 (loop)" for number in range(8)]
    assert repository("status", "--short") == ""


def test_a_deleted_thread_is_a_commit(repository: Repository, saver: KeelSaver) -> None:
    chain(says("a")).compile(checkpointer=saver).invoke(START_WITH, CONFIG)
    assert len(repository.titles(expected=1)) == 1
    saver.delete_thread("t")
    assert repository.titles()[1:] == ["thread t: deleted"]
    assert repository("status", "--short") == ""


async def test_no_event_loop_waits_for_git(repository: Repository, saver: KeelSaver) -> None:
    """While another git holds its lock, commits wait for two seconds.

    So does the next run of the thread.
    """
    graph = chain(says("a")).compile(checkpointer=saver)
    await graph.ainvoke(START_WITH, CONFIG)
    assert len(repository.titles(expected=1)) == 1
    (repository.path / ".git" / "index.lock").touch()
    await graph.ainvoke(START_WITH, CONFIG)
    following = asyncio.create_task(graph.ainvoke(START_WITH, CONFIG))
    loop, gaps = asyncio.get_running_loop(), []
    while not following.done():
        began = loop.time()
        await asyncio.sleep(0.01)
        gaps.append(loop.time() - began)
    assert (await following)["log"] == ["in", "a"] * 3
    assert len(gaps) > 50
    assert max(gaps) < 1


def test_a_store_at_the_top_of_a_repository_leaves_its_files_alone(repository: Repository) -> None:
    (repository.path / ".gitignore").write_text("/build\n")
    (repository.path / "README.md").write_text("mine\n")
    repository.commit("mine")
    (repository.path / ".gitignore").write_text("/build\n/dist\n")
    with FileSaver(repository.path, git=True) as saver:
        chain(says("a")).compile(checkpointer=saver).invoke(START_WITH, CONFIG)
    assert repository.titles() == ["mine", "thread t: step 1 (loop)"]
    assert repository("status", "--short") == " M .gitignore\n"


def test_a_pruned_and_a_copied_thread_are_commits(repository: Repository, saver: KeelSaver) -> None:
    chain(says("a")).compile(checkpointer=saver).invoke(START_WITH, CONFIG)
    assert len(repository.titles(expected=1)) == 1
    saver.prune(["t"])
    saver.copy_thread("t", "u")
    assert repository.titles()[1:] == ["thread t: pruned", "thread u: copied from t"]
    assert repository("status", "--short") == ""


def test_a_saver_without_git_commits_nothing(repository: Repository) -> None:
    with FileSaver(repository.path / "store") as saver:
        chain(says("a")).compile(checkpointer=saver).invoke(START_WITH, CONFIG)
    assert repository.titles() == []
