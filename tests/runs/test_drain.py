"""Drains in one process: ended runs, refusals, reports and signals.

See `test_drain_processes` for other processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import to_thread
from collections.abc import Iterator
from threading import Event, Thread
from types import FrameType
from typing import Any

import pytest
from langgraph.errors import GraphDrained
from langgraph.types import Command, interrupt
from support.approvals.resuming import claim_of
from support.log_graphs import CONFIG, graph, say
from support.places import Place
from support.runs.draining import INPUT, config_of, five_steps
from support.savers import each_face

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SaverDraining, SqliteSaver
from langgraph_keel.engine.runs import find_runs_on

PATIENCE = 60


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with MemorySaver(recoverable=True) as saver:
        yield saver


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Check that each test restores the signal handlers."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def sends(number: signal.Signals) -> tuple[str, Any]:
    """Return a node that receives a signal."""

    def run(state: Any) -> Any:
        os.kill(os.getpid(), number)
        return {"log": ["sent"]}

    return "sends", run


def drains(saver: KeelSaver) -> tuple[str, Any]:
    """Return a node in which a saver starts to drain."""

    def run(state: Any) -> Any:
        saver.drain(grace=0)
        return {"log": ["drains"]}

    return "drains", run


async def run(face: str, made: Any, given: Any = INPUT, thread_id: str = "t", **options: Any) -> Any:
    config = config_of(thread_id)
    if face == "async":
        return await made.ainvoke(given, config, **options)
    return await to_thread(made.invoke, given, config, **options)


# -- what a drain ends -------------------------------------------------------------------------------------------------


@each_face
async def test_another_process_continues_a_drained_run_and_repeats_nothing(place: Place, face: str) -> None:
    options = {"recoverable": True, "on_busy": "wait"}
    with place.open(**options) as saver, place.open(**options) as other:
        with pytest.raises(GraphDrained, match="drain"):
            await run(face, graph(saver, say("a"), drains(saver), say("b")))
        assert (await saver.adrain() if face == "async" else await to_thread(saver.drain)) == ()
        status = await other.astatus("t")
        assert (status.stopped, status.next, status.can_go_on) == ("drained", ("b",), True)
        assert claim_of(other) is None
        done = await run(face, graph(other, say("a"), say("drains"), say("b")), None)
        assert done == {"log": ["a", "drains", "b"]}


@each_face
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_drained_run_has_stored_its_finished_steps(saver: KeelSaver, face: str, durability: Any) -> None:
    with pytest.raises(GraphDrained):
        await run(face, graph(saver, say("a"), drains(saver), say("b")), durability=durability)
    await saver.adrain()
    assert saver.get_tuple(CONFIG).checkpoint["channel_values"]["log"] == ["a", "drains"]  # type: ignore[union-attr]
    assert saver.status("t").stopped == "drained"


def test_runs_without_marks_drain_too() -> None:
    with MemorySaver() as saver:
        with pytest.raises(GraphDrained):
            graph(saver, drains(saver), say("b")).invoke(INPUT, CONFIG)
        assert saver.drain() == ()
        assert saver.status("t").state == "unfinished"


def test_a_run_in_its_last_step_ends_normally(saver: KeelSaver) -> None:
    assert graph(saver, say("a"), drains(saver)).invoke(INPUT, CONFIG) == {"log": ["a", "drains"]}
    assert (saver.drain(), saver.status("t").state) == ((), "idle")


def test_drain_does_not_wait_for_a_run_at_a_question(saver: KeelSaver) -> None:
    stream = graph(saver, ("ask", lambda state: {"log": [interrupt("?")]})).stream(INPUT, CONFIG)
    next(stream)
    assert saver.drain(grace=PATIENCE) == ()
    assert saver.status("t").state == "waits"
    stream.close()


def test_a_graph_invoked_in_a_step_drains_with_it(saver: KeelSaver) -> None:
    """Its saver does not refuse it, as it is part of the step, which runs again."""
    inner = five_steps(saver)

    def outer(state: Any) -> Any:
        saver.drain(grace=0)
        inner.invoke(INPUT, config_of("inner"))
        return {"log": ["outer"]}

    with pytest.raises(GraphDrained):
        graph(saver, say("a"), ("outer", outer), say("b")).invoke(INPUT, CONFIG)
    assert [(saver.status(name).stopped, saver.status(name).next) for name in ("t", "inner")] == [
        ("drained", ("outer",)),
        ("drained", ("__start__",)),
    ]


def test_draining_a_saver_drains_runs_of_its_tenant_views() -> None:
    with MemorySaver(recoverable=True, tenants="required") as saver:
        acme = saver.for_tenant("acme")
        with pytest.raises(InvalidInput, match="drain the saver it was made from"):
            acme.drain()
        with pytest.raises(GraphDrained):
            graph(acme, drains(saver), say("b")).invoke(INPUT, CONFIG)
        assert saver.drain() == ()
        assert acme.status("t").stopped == "drained"
        with pytest.raises(SaverDraining):
            graph(saver.for_tenant("new"), say("a")).invoke(INPUT, CONFIG)


# -- what it refuses and reports ---------------------------------------------------------------------------------------


@each_face
async def test_a_new_run_on_a_draining_saver_is_refused(saver: KeelSaver, face: str) -> None:
    await run(face, graph(saver, ("ask", lambda state: {"log": [interrupt("?")]})), thread_id="asks")
    await saver.adrain()
    for given, name in ((INPUT, "new"), (Command(resume="yes"), "asks"), (None, "asks")):
        with pytest.raises(SaverDraining, match="run it in another process") as refused:
            await run(face, graph(saver, ("ask", lambda state: {"log": [interrupt("?")]})), given, name)
        assert (refused.value.thread_id, refused.value.reason) == (name, "drain")
    assert [(await saver.astatus(name)).state for name in ("new", "asks")] == ["new", "waits"]


async def test_a_queued_run_on_a_draining_saver_is_refused() -> None:
    """Its input would replace the steps that the run before it has not finished."""
    with MemorySaver(recoverable=True, on_busy="wait") as saver:
        is_in, may_end = asyncio.Event(), asyncio.Event()

        async def hold(state: Any) -> Any:
            is_in.set()
            await may_end.wait()
            return {"log": ["held"]}

        first = asyncio.create_task(run("async", graph(saver, ("hold", hold), say("b"))))
        await is_in.wait()
        second = asyncio.create_task(run("async", graph(saver, say("c"))))
        while len(find_runs_on(saver.engine.session.store, "t")) < 2:
            await asyncio.sleep(0)
        assert await saver.adrain(grace=0) == ("t",)
        may_end.set()
        errors = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(error) for error in errors] == [GraphDrained, SaverDraining]
        assert await saver.adrain() == ()
        assert (await saver.astatus("t")).next == ("b",)


def test_runs_that_exceed_the_grace_time_are_reported_and_continue(
    saver: KeelSaver, caplog: pytest.LogCaptureFixture
) -> None:
    is_in, may_end, ended = Event(), Event(), Event()

    def held(state: Any) -> Any:
        is_in.set()
        assert may_end.wait(PATIENCE)
        return {"log": ["held"]}

    def work() -> None:
        with pytest.raises(GraphDrained):
            graph(saver, ("held", held), say("b")).invoke(INPUT, CONFIG)
        ended.set()

    Thread(target=work).start()
    assert is_in.wait(PATIENCE)
    with pytest.raises(SystemExit) as exit, saver.draining(grace=0) as draining:
        os.kill(os.getpid(), signal.SIGTERM)
    assert (exit.value.code, draining.left, draining.requested) == (1, ("t",), "SIGTERM")
    assert "runs that have not ended their steps, on threads: t" in caplog.text
    may_end.set()
    assert ended.wait(PATIENCE)
    assert (saver.drain(), saver.status("t").stopped) == ((), "drained")


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_notebook_cell_can_run_after_an_interrupt(saver: KeelSaver) -> None:
    """Cells run in a running loop, in the main thread."""
    made = graph(saver, sends(signal.SIGINT), say("b"))

    async def cell() -> None:
        with saver.draining():
            made.invoke(INPUT, CONFIG)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(cell())
    assert saver.status("t").stopped == "drained"
    assert made.invoke(None, CONFIG) == {"log": ["sent", "b"]}


def test_a_block_without_a_signal_changes_nothing(saver: KeelSaver) -> None:
    with saver.draining() as draining:
        assert graph(saver, say("a")).invoke(INPUT, CONFIG) == {"log": ["a"]}
    assert (draining.requested, draining.left) == ("", ())
    assert graph(saver, say("a")).invoke(INPUT, CONFIG) == {"log": ["a", "a"]}


def test_an_error_of_the_program_propagates(saver: KeelSaver) -> None:
    def fail() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), saver.draining():
        fail()


def test_the_programs_signal_handler_is_called_at_the_end(saver: KeelSaver) -> None:
    seen: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGTERM, hear)
    try:
        with saver.draining():
            graph(saver, sends(signal.SIGTERM), say("b")).invoke(INPUT, CONFIG)
        assert seen == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is hear
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_signal_has_its_previous_effect(saver: KeelSaver) -> None:
    def twice(state: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return {"log": ["twice"]}

    with pytest.raises(SystemExit) as exit, saver.draining():
        graph(saver, ("twice", twice), say("b")).invoke(INPUT, CONFIG)
    assert exit.value.code == 0


def test_an_ignored_signal_stays_ignored(saver: KeelSaver) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with saver.draining() as draining:
            os.kill(os.getpid(), signal.SIGINT)
            assert draining.requested == ""
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_signal_drains_the_savers_of_all_nested_blocks(saver: KeelSaver) -> None:
    """The inner blocks leave the signal to the outer one."""
    with MemorySaver(recoverable=True) as other:

        def work() -> None:
            with pytest.raises(GraphDrained), saver.draining(), saver.draining():
                graph(other, sends(signal.SIGTERM), say("b")).invoke(INPUT, CONFIG)
            graph(saver, say("a")).invoke(INPUT, CONFIG)

        with pytest.raises(SystemExit) as exit, other.draining():
            work()
        assert (exit.value.code, other.status("t").stopped, saver.status("t").state) == (0, "drained", "new")
        assert isinstance(exit.value.__context__, SaverDraining)


def test_a_forked_process_is_ended_by_the_signal(saver: KeelSaver) -> None:
    source, sink = os.pipe()
    with saver.draining():
        if (child := os.fork()) == 0:
            os.write(sink, b"!")  # Python drops a signal that comes in the fork itself
            signal.pause()
            os._exit(0)
        assert os.read(source, 1) == b"!"
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
    os.close(source)
    os.close(sink)


def test_draining_in_another_thread_is_refused_with_advice(saver: KeelSaver) -> None:
    seen: list[Exception] = []

    def work() -> None:
        try:
            saver.draining().__enter__()
        except InvalidInput as error:
            seen.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert "use it there; or call saver.drain(grace)" in str(seen[0])


@pytest.mark.parametrize("grace", [-1, float("nan"), "30", None])
def test_an_invalid_grace_time_is_refused(saver: KeelSaver, grace: Any) -> None:
    for drain in (saver.draining, saver.drain):
        with pytest.raises(InvalidInput, match="grace must be a number of seconds"):
            drain(grace)
    assert graph(saver, say("a")).invoke(INPUT, CONFIG) == {"log": ["a"]}


def test_a_plain_block_in_a_loop_does_not_wait_for_runs_of_the_loop(tmp_path: Any) -> None:
    async def main() -> None:
        with SqliteSaver(tmp_path / "keel.db", recoverable=True) as saver:
            is_in, may_end = asyncio.Event(), asyncio.Event()

            async def held(state: Any) -> Any:
                is_in.set()
                await may_end.wait()
                return {"log": ["held"]}

            running = asyncio.create_task(run("async", graph(saver, ("held", held), say("b"))))
            await is_in.wait()
            with pytest.raises(SystemExit) as exit, saver.draining(grace=PATIENCE) as draining:
                os.kill(os.getpid(), signal.SIGTERM)
            assert (exit.value.code, draining.left) == (1, ("t",))
            may_end.set()
            with pytest.raises(GraphDrained):
                await running

    asyncio.run(main())
