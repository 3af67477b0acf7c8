"""One process asks and exits, another decides, a third resumes; on every backend.

The one that decides does not have the graph. The one that resumes acts once.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.places import Place
from support.process_children import exit_code, forked
from support.races import context

from langgraph_keel import AlreadyDecided, KeelSaver

PAID, MAILED = ["pay", {"amount": 100}], ["mail", {"to": "ada"}]
EDITED = {"amount": 7}
EXPIRY = 1.5
"""Seconds, as in `support.approvals.children`. A shorter time could end before the graph stops."""


class Story(NamedTuple):
    """A thread: its graph, the decision about each action, and the expected effects."""

    graph: str
    decisions: Mapping[str, tuple[str, Mapping[str, Any]]]
    done: list[Any]


YES: tuple[str, Mapping[str, Any]] = ("approve", {})
NO: tuple[str, Mapping[str, Any]] = ("reject", {"reason": "too dear"})
EDIT: tuple[str, Mapping[str, Any]] = ("edit", {"args": EDITED})
ANN: tuple[str, Mapping[str, Any]] = ("answer", {"value": "ann"})
STORIES: Mapping[str, Story] = {
    "approved": Story("node", {"pay": YES}, [PAID]),
    "rejected": Story("node", {"pay": NO}, []),
    "edited": Story("node", {"pay": EDIT}, [["pay", EDITED]]),
    "expired": Story("node", {}, []),
    "stale": Story("node", {"pay": YES}, [PAID]),
    "stale in a subgraph": Story("called", {"pay": YES}, [PAID]),
    "two nodes": Story("parallel", {"pay": YES, "mail": NO}, [PAID]),
    "two tools of a node": Story("tool_node", {"pay": NO, "mail": YES}, [MAILED]),
    "two edited tools of a node": Story("tool_node", {"pay": EDIT, "mail": YES}, [["pay", EDITED], MAILED]),
    "two calls of an agent": Story("agent", {"pay": EDIT, "mail": NO}, [["pay", EDITED]]),
    "subgraph": Story("subgraph", {"pay": YES}, [PAID]),
    "rejected subgraph": Story("subgraph", {"pay": NO}, []),
    "subgraph with a memory": Story("remembering", {"pay": EDIT}, [["pay", EDITED]]),
    "called subgraph": Story("called", {"pay": YES}, [PAID]),
    "tasks": Story("functional", {"pay": NO, "mail": YES}, [MAILED]),
    "expired tasks": Story("functional", {}, []),
    "plain": Story("plain", {"": ANN}, [["", "ann"]]),
    "of its own class": Story("own", {"": ANN}, [["", "ann"]]),
    "middleware": Story("batched", {"pay": EDIT, "mail": NO}, [["pay", EDITED]]),
    "middleware per call": Story("per_call", {"pay": NO, "mail": YES}, [MAILED]),
}


def reported(told: Connection, work: Callable[..., Any], *args: Any) -> None:
    told.send(work(*args))
    told.close()


def nursery(orders: Connection, modules: Sequence[str]) -> None:
    """Import the modules, then do each job in a forked child, until the order `None`."""
    for module in modules:
        importlib.import_module(module)
    while (order := orders.recv()) is not None:
        reading, writing = Pipe(duplex=False)
        child = forked(reported, writing, *order)
        writing.close()
        try:
            said = reading.recv() if reading.poll(120) else None
        except EOFError:  # the child has failed, and printed the reason
            said = None
        orders.send((exit_code(child), said))


class Children:
    """Processes forked from one parent, so that each module is imported only once."""

    def __init__(self, *modules: str) -> None:
        mp = context()
        self._orders, theirs = mp.Pipe()
        self._process = mp.Process(target=nursery, args=(theirs, modules), daemon=True)
        self._process.start()

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run `work` in a new process, which ends before this returns."""
        self._orders.send((work, *args))
        assert self._orders.poll(150), "the child said nothing"
        code, said = self._orders.recv()
        assert code == 0, "see what it printed"
        return said

    def close(self) -> None:
        self._orders.send(None)
        self._process.join(10)


@pytest.fixture(scope="module")
def agents() -> Iterator[Children]:
    """Processes that have the graphs."""
    with closing(Children("support.approvals.children")) as children:
        yield children


@pytest.fixture(scope="module")
def reviewers() -> Iterator[Children]:
    """Processes that have only the store."""
    with closing(Children("langgraph_keel")) as children:
        yield children


def with_graphs(name: str, *args: Any) -> Any:
    """Do the work of a process with the graphs, which a reviewer must not import."""
    return getattr(importlib.import_module("support.approvals.children"), name)(*args)


def decided_in(place: Place) -> list[tuple[str, str, Any]]:
    """Decide as a process that has the store but not the graphs.

    Return the requests that it was shown.
    """
    with place.open() as saver:
        found = [(each.thread_id, each.action, each.args) for each in saver.approvals.pending(owner="ann", limit=None)]
        for request in saver.approvals.pending(limit=None):
            kind, details = STORIES[request.thread_id].decisions[request.action]
            settled = getattr(saver.approvals, kind)(request.id, by="bob", **details)
            assert saver.approvals.get(request.id) == settled
    assert "support.approvals.children" not in sys.modules
    return found


def refused_in(place: Place) -> list[str]:
    """Approve each expired request, too late; return their threads."""
    with place.open() as saver:
        late = saver.approvals.pending(status="expired", limit=None)
        for request in late:
            with pytest.raises(AlreadyDecided) as caught:
                saver.approvals.approve(request.id, by="bob")
            assert caught.value.status == "expired"
    return sorted(request.thread_id for request in late)


class World(NamedTuple):
    """A store, the file of effects outside of it, and the processes."""

    place: Place
    path: Path
    face: str
    agents: Children
    reviewers: Children

    def live(self, name: str, threads: Mapping[str, str]) -> Mapping[str, int]:
        left: Mapping[str, int] = self.agents.run(with_graphs, name, self.place, self.path, self.face, threads)
        return left

    def price(self, price: int) -> None:
        self.path.with_suffix(".price").write_text(str(price))

    def done(self) -> dict[str, list[Any]]:
        """Return the effects in each thread, in a fixed order."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return {name: sorted(rest for thread, *rest in lines if thread == name) for name in STORIES}

    def decide_and_resume(self, threads: Mapping[str, str]) -> dict[str, str]:
        """Let one process decide all open requests, and another resume.

        Return the threads that ask again.
        """
        self.reviewers.run(decided_in, self.place)
        left = self.live("resumed_in", threads)
        return {thread: threads[thread] for thread, asked in left.items() if asked}


@pytest.fixture(params=["sync", "async"])
def world(
    request: pytest.FixtureRequest, place: Place, tmp_path: Path, agents: Children, reviewers: Children
) -> Iterator[World]:
    made = World(place, tmp_path / "outside", request.param, agents, reviewers)
    made.path.touch()
    made.price(1200)
    yield made
    place.check()


@pytest.mark.slow
def test_three_processes_ask_decide_and_resume(world: World) -> None:
    threads = {name: story.graph for name, story in STORIES.items()}
    assert [thread for thread, asked in world.live("asked_in", threads).items() if not asked] == []
    time.sleep(EXPIRY)
    assert world.reviewers.run(refused_in, world.place) == ["expired", "expired tasks", "expired tasks"]
    seen = world.reviewers.run(decided_in, world.place)
    check_seen(seen)
    assert world.done() == {name: [] for name in STORIES}
    world.price(1500)
    left = world.live("resumed_in", threads)
    again = {thread: threads[thread] for thread, asked in left.items() if asked}
    # In an asynchronous `ToolNode`, the first tool that asks may end the step before the second one asks.
    assert {"stale", "stale in a subgraph"} <= set(again)
    assert {name for name in again if threads[name] != "tool_node"} == {"stale", "stale in a subgraph"}
    check_stale(world.place)
    assert world.decide_and_resume(again) == {}
    assert world.done() == {name: sorted(story.done) for name, story in STORIES.items()}
    with world.place.open() as saver:
        check_over(saver)


def check_seen(seen: list[tuple[str, str, Any]]) -> None:
    args = {"pay": PAID[1], "mail": MAILED[1]}
    for thread, story in STORIES.items():
        actions = [action for name, action, _ in seen if name == thread]
        assert len(actions) == len(set(actions))
        assert set(actions) <= set(story.decisions)
        assert story.graph == "tool_node" or set(actions) == set(story.decisions)
    for _, action, found in seen:
        assert action == "" or found == args[action]
    assert [found for name, _, found in seen if name == "of its own class"] != []


def check_stale(place: Place) -> None:
    with place.open() as saver:
        for thread in ("stale", "stale in a subgraph"):
            (request,) = saver.approvals.pending(thread)
            assert (request.before, request.facts) == ({"price": 1200}, {"price": 1500})
            assert request.value["before"] == {"price": 1200}


def check_over(saver: KeelSaver) -> None:
    """No request is open, and the trail has the author and the use of each decision."""
    assert saver.approvals.pending(status=["waiting", "claimed", "approved", "rejected", "expired"], limit=None) == []
    over = saver.approvals.pending(status=["consumed", "superseded"], limit=None)
    assert [each.thread_id for each in over if each.status == "superseded"] == ["stale", "stale in a subgraph"]
    by = {each.thread_id: each.decision.by for each in over if each.decision and each.status == "consumed"}
    assert by == {thread: "keel:expiry" if thread.startswith("expired") else "bob" for thread in STORIES}
    assert saver.approvals.verify_audit().ok
