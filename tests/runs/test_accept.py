"""Input stored without a run (`accept`): refusals, result, continuation."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langgraph.types import Command
from support.approvals.resuming import runs_of
from support.log_graphs import CONFIG, graph, say
from support.places import Place
from support.savers import each_face
from support.situations import SITUATIONS, Stage, graph_of

from langgraph_keel import (
    CheckpointConflict,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    SaverDraining,
    ThreadTaken,
    ThreadUnfinished,
)
from langgraph_keel.testing.faults import Counter, Tap, with_tap

INPUT: Any = {"log": ["hello"]}


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with MemorySaver(recoverable=True) as saver:
        yield saver


@each_face
async def test_any_process_can_run_accepted_input(place: Place, face: str) -> None:
    with place.open(recoverable=True) as saver, place.open(recoverable=True) as worker:
        for log in (["hello", "a"], ["hello", "a", "hello", "a"]):
            made = graph(saver, say("a"))
            if face == "async":
                at = await saver.aaccept(made, INPUT, CONFIG)
            else:
                at = await to_thread(saver.accept, made, INPUT, CONFIG)
            found = await worker.astatus("t")
            assert (found.state, found.stopped, found.can_go_on) == ("stopped", "accepted", True)
            assert (await worker.aget_tuple(CONFIG)).config == at  # type: ignore[union-attr]
            assert await graph(worker, say("a")).ainvoke(found.given, CONFIG) == {"log": log}
            assert (await worker.astatus("t")).state == "idle"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, ThreadTaken) for name in SITUATIONS if "running" in name and "without" not in name),
        *((name, ThreadUnfinished) for name in ("asking", "decided", "failed", "marked, killed", "marked, drained")),
        ("marked, its input accepted", ThreadUnfinished),
    ],
)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_accept_refuses_unfinished_threads(place: Place, name: str, error: type[Exception]) -> None:
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(place.open(recoverable=True))
        stage = Stage(place, saver, "async", await stack.enter_async_context(AsyncExitStack()))
        await SITUATIONS[name](stage, "t")
        before = [each async for each in saver.alist(CONFIG)]
        with pytest.raises(error, match="'t'") as refused:
            await saver.aaccept(graph_of(saver), INPUT, CONFIG)
        if isinstance(refused.value, ThreadUnfinished):
            assert refused.value.asks == (name in ("asking", "decided"))
        assert [each async for each in saver.alist(CONFIG)] == before


def test_a_draining_saver_still_accepts_input(saver: KeelSaver) -> None:
    """A server answers 202 to the last requests, and other processes run them."""
    made = graph(saver, say("a"))
    saver.drain()
    saver.accept(made, INPUT, CONFIG)
    assert saver.status("t").stopped == "accepted"
    with pytest.raises(SaverDraining):
        made.invoke(None, CONFIG)


def test_an_update_by_a_program_is_not_accepted_input(saver: KeelSaver) -> None:
    graph(saver, say("a")).update_state(CONFIG, INPUT, as_node="__input__")
    assert saver.status("t").stopped == "updated"


def test_accept_takes_six_trips(saver: KeelSaver) -> None:
    counter = Counter()
    tapped = with_tap(saver, counter)
    tapped.accept(graph(tapped, say("a")), INPUT, CONFIG)
    assert counter.taken() == 6


def test_one_of_two_concurrent_accepts_is_stored(saver: KeelSaver) -> None:
    made = graph(saver, say("a"))

    class Beside(Tap):
        left = 6

        def sending(self, request: Any) -> None:
            self.left -= 1
            if self.left == 0:  # the request that stores the checkpoint
                saver.accept(made, {"log": ["first"]}, CONFIG)

    tapped = with_tap(saver, Beside())
    runs_of(saver).patience = 0.0  # the inner call would wait for the outer one to store its checkpoint
    with pytest.raises(CheckpointConflict):
        tapped.accept(graph(tapped, say("a")), INPUT, CONFIG)
    assert made.invoke(None, CONFIG) == {"log": ["first", "a"]}


def test_invalid_arguments_of_accept_are_refused(saver: KeelSaver) -> None:
    made = graph(saver, say("a"))
    at: Any = {"configurable": {"thread_id": "t", "checkpoint_id": "1"}}
    with MemorySaver() as plain, MemorySaver(recoverable=True) as other:
        for one, given, config, says in (
            (plain, INPUT, CONFIG, "recoverable=True"),
            (other, INPUT, CONFIG, "compiled with this saver"),
            (saver.for_tenant("acme"), INPUT, CONFIG, "compiled with this saver"),
            (saver, None, CONFIG, "takes new input"),
            (saver, Command(resume=1), CONFIG, "takes new input"),
            (saver, INPUT, at, "the config names"),
        ):
            with pytest.raises(InvalidInput, match=says):
                one.accept(made, given, config)
    with pytest.raises(InvalidInput, match="compiled with this saver"):
        saver.accept(lambda state: state, INPUT, CONFIG)
    assert saver.status("t").state == "new"
