"""A run that dies after a question leaves no request that waits forever.

It dies before the checkpoint of its step is stored.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt
from support.approvals.resuming import BACKENDS, State, graph_of
from support.places import Place
from support.process_children import exit_code, forked
from support.savers import SAVERS, needing
from support.tiers import sized

from langgraph_keel import AlreadyDecided, KeelSaver, NotFound, StoreUnavailable, request_approval
from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.approvals.requests import STATUSES, ApprovalRequest
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.events import Put, Writes
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Hooks, Session
from langgraph_keel.testing.faults import Counter, with_tap

WAYS = ("interrupt", "request_approval")
FACES = ("invoke", "ainvoke")
THEN = ("nothing", "sweep", "go on", "new input", "decided", "worker")
KILLS = sized(quick=24, ci=24, full=200)


class Unlucky(Hook):
    """Fail to store one step's checkpoint; optionally die once its question is stored."""

    def __init__(self, *, kills: bool = False, decides: KeelSaver | None = None) -> None:
        self.kills, self.decides, self.is_on = kills, decides, True

    def before_put(self, session: Session, put: Put) -> None:
        if self.is_on and put.metadata["step"] == 1:
            raise StoreUnavailable("the server is away")

    def after_writes(self, session: Session, writes: Writes) -> None:
        if self.kills and any(channel == INTERRUPT for channel, _ in writes.writes):
            if self.decides:
                for request in self.decides.approvals.pending(writes.address.thread_id):
                    self.decides.approvals.approve(request.id, by="ada")
            os.kill(os.getpid(), signal.SIGKILL)


def think(state: State) -> State:
    return {"second": "thought"}


def pay(state: State) -> State:
    return {"answer": "paid" if interrupt("pay?") else "not paid"}


def book(state: State) -> State:
    return {"answer": "paid" if request_approval("pay", {"amount": 10}).approved else "not paid"}


def graph_by(saver: Any, way: str) -> Any:
    return graph_of(saver, think, pay if way == "interrupt" else book)


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def run(face: str, graph: Any, given: Any, config: Any) -> Any:
    return graph.invoke(given, config) if face == "invoke" else asyncio.run(graph.ainvoke(given, config))


def every(saver: KeelSaver, thread_id: str) -> list[ApprovalRequest]:
    """Return all requests of a thread, without refreshing the thread."""
    found = saver.approvals.pending(status=STATUSES, limit=None)
    return [request for request in found if request.thread_id == thread_id]


def is_moot(saver: KeelSaver, request: ApprovalRequest) -> None:
    """Check that the request is closed: no list shows it, and it cannot be decided."""
    assert request.status == saver.approvals.get(request.id).status == "superseded"
    assert "ended before" in str(request.history[-1])  # its checkpoint, or anything of its thread, was stored
    assert request.id not in [each.id for each in saver.approvals.pending(limit=None)]
    with pytest.raises(AlreadyDecided, match=r"it is superseded: .*the run that asked"):
        saver.approvals.approve(request.id, by="bob")


def go_on(saver: KeelSaver, graph: Any, config: Any) -> None:
    """Resume a thread, or start it if it has no checkpoint."""
    graph.invoke(None if saver.get_tuple(config) else {}, config)


def finish(saver: KeelSaver, graph: Any, config: Any) -> None:
    """Let a thread run to its end; its one open request can be decided."""
    thread_id = config["configurable"]["thread_id"]
    if not graph.get_state(config).interrupts:
        go_on(saver, graph, config)
    (asked,) = [each for each in saver.approvals.pending(limit=None) if each.thread_id == thread_id]
    saver.approvals.approve(asked.id, by="bob")
    assert graph.invoke(saver.approvals.resume(thread_id), config)["answer"] == "paid"
    assert saver.engine.run(saver.approvals.plans.of_thread(thread_id)) == []


# -- killed ------------------------------------------------------------------------------------------------------------


def die(place: Place, way: str, face: str, thread_id: str, decides: bool) -> None:
    other = place.open() if decides else None
    saver = place.open(extra_hooks=[Unlucky(kills=True, decides=other)])
    run(face, graph_by(saver, way), {}, config_of(thread_id))


CASES = [*product(THEN, WAYS, FACES)]


@pytest.mark.slow
def test_a_killed_run_leaves_no_request_open_forever(place: Place) -> None:
    with place.open() as saver:
        for number in range(KILLS):
            # This step is coprime to the number of cases, so that a few kills cover every value of each parameter.
            then, way, face = CASES[number * 7 % len(CASES)]
            thread_id = f"{number} {then} {way} {face}"
            child = forked(die, place, way, face, thread_id, then in ("decided", "worker"))
            assert exit_code(child) == -signal.SIGKILL, thread_id
            after_a_kill(saver, then, way, thread_id)
        assert saver.approvals.sweep() == []
        assert saver.approvals.pending(limit=None) == []
        assert saver.approvals.verify_audit().ok


def after_a_kill(saver: KeelSaver, then: str, way: str, thread_id: str) -> None:
    graph, config = graph_by(saver, way), config_of(thread_id)
    (request,) = every(saver, thread_id)
    if then == "sweep":
        saver.approvals.sweep()
        assert saver.engine.run(saver.approvals.plans.of_thread(thread_id)) == []
    elif then == "go on":
        go_on(saver, graph, config)
    elif then == "new input":
        graph.invoke({"second": "again"}, config)
    elif then == "decided":
        with pytest.raises(NotFound, match="nothing to resume with"):
            saver.approvals.resume(thread_id)
    elif then == "worker":
        assert list(saver.approvals.run_when_decided(graph, timeout=0)) == []
        assert saver.engine.run(saver.approvals.plans.of_thread(thread_id)) == []
    is_moot(saver, saver.approvals.get(request.id))
    finish(saver, graph, config)


# -- aborted -----------------------------------------------------------------------------------------------------------


def with_hook(saver: KeelSaver, hook: Hook) -> KeelSaver:
    engine = saver.engine
    hooks = Hooks([hook, *engine.session.hooks.all])
    return with_engine(saver, replace(engine, session=replace(engine.session, hooks=hooks)))


@pytest.fixture(params=BACKENDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[KeelSaver, Unlucky]]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        unlucky = Unlucky()
        yield with_hook(saver, unlucky), unlucky


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_whose_put_fails_leaves_no_open_request(opened: tuple[KeelSaver, Unlucky], way: str, face: str) -> None:
    saver, unlucky = opened
    graph, config = graph_by(saver, way), config_of("t")
    with pytest.raises(StoreUnavailable):
        run(face, graph, {}, config)
    unlucky.is_on = False
    (request,) = every(saver, "t")
    is_moot(saver, request)
    finish(saver, graph, config)


def test_a_request_stays_waiting_until_the_run_stores_its_checkpoint(opened: tuple[KeelSaver, Unlucky]) -> None:
    """With `durability="exit"`, the checkpoint is stored when the run ends."""
    saver, unlucky = opened
    unlucky.is_on = False
    seen: list[Any] = []

    def asking(state: State) -> State:
        try:
            return book(state)
        finally:
            seen.append([each.status for each in every(saver, "t")])
            seen.append([each.status for each in saver.approvals.pending("t")])

    graph = graph_of(saver, think, asking)
    graph.invoke({}, config_of("t"), durability="exit")
    assert seen == [["waiting"], ["waiting"]]
    finish(saver, graph, config_of("t"))


def test_listing_takes_two_trips_for_each_pending_request(opened: tuple[KeelSaver, Unlucky]) -> None:
    saver, unlucky = opened
    unlucky.is_on = False
    for number in range(3):
        graph_by(saver, "interrupt").invoke({}, config_of(f"{number}"))
    counter = Counter()
    assert len(with_tap(saver, counter).approvals.pending()) == 3
    assert counter.taken() == 1 + 3 * 2  # whether its checkpoint exists, and whether its thread was copied
