"""The cost of recording: no additional round trip, few bytes, little time.

If it is off, it costs nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from support.provenance.models import Fake
from support.provenance.runs import ASK, Scene, calling, recorder_of
from support.savers import each_backend, each_face

from langgraph_keel import KeelSaver, MemorySaver
from langgraph_keel.provenance.capture import CAPTURE
from langgraph_keel.provenance.hook import WAITING_THREADS, WaitingRecord, WaitingRecords
from langgraph_keel.testing.faults import Counter, with_tap


async def three_steps(saver: KeelSaver, face: str, durability: str, thread: str, model: Any) -> Scene:
    scene = Scene(saver, face, durability, thread)
    graph = scene.compiled(("a", calling(model)), ("b", calling(model)), ("c", calling(model)))
    await scene.run(graph)
    await scene.run(graph)
    return scene


@each_face
@each_backend
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_recording_takes_no_extra_round_trip(stores: Any, backend: str, face: str, durability: str) -> None:
    taken = []
    for provenance in (True, False):
        counter = Counter()
        with stores[backend].open(provenance=provenance) as saver:
            thread = f"{face} {durability} {provenance}"
            scene = await three_steps(with_tap(saver, counter), face, durability, thread, Fake())
            taken.append(counter.taken())
            assert len(await scene.records()) == (6 if provenance else 0)
    assert taken[0] == taken[1] > 0


def stored_bytes(store: Any) -> int:
    return len(store.raw())


@each_backend
async def test_recording_adds_few_bytes_to_a_step(stores: Any, backend: str) -> None:
    """Bytes per step, for a model that reports as much about itself as OpenAI's does."""
    sizes = {}
    for provenance in (True, False):
        before = stored_bytes(stores[backend])
        with stores[backend].open(provenance=provenance) as saver:
            model = Fake(served="gpt-4o-2024-08-06", fingerprint="fp_50cad350e4")
            await three_steps(saver, "sync", "sync", f"bytes {provenance}", model)
        sizes[provenance] = stored_bytes(stores[backend]) - before
    assert 0 < sizes[True] - sizes[False] < 6 * (1700 if backend == "files" else 1500)  # files are JSON


@each_backend
async def test_a_saver_without_provenance_stores_no_records(stores: Any, backend: str) -> None:
    store = stores[backend]
    with store.open(), store.open(provenance=False) as saver:  # the other saver of the same process records
        scene = await three_steps(saver, "sync", "sync", "off", Fake(served="never-stored"))
        assert not recorder_of(saver).captures
        assert await scene.records() == []
    assert b"never-stored" not in store.raw()


async def test_a_call_outside_of_a_graph_is_not_recorded() -> None:
    with MemorySaver() as saver:
        model = Fake()
        model.invoke(ASK)
        await model.ainvoke(ASK)
        list(model.stream(ASK))
        thread = threading.Thread(target=model.invoke, args=(ASK,))
        thread.start()
        thread.join()
        assert (len(recorder_of(saver).waiting), dict(CAPTURE.under_way)) == (0, {})
        assert list(saver.threads()) == []


async def test_a_graph_on_another_librarys_saver_is_not_recorded() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    other: Any = InMemorySaver()
    with MemorySaver():
        scene = Scene(other, "sync", "sync", "t")
        await scene.run(scene.compiled(("a", calling(Fake()))))
        assert dict(CAPTURE.under_way) == {}


@each_face
async def test_no_records_remain_in_memory_after_a_run(face: str) -> None:
    with MemorySaver() as saver:
        for durability in ("sync", "async", "exit"):
            await three_steps(saver, face, durability, durability, Fake())
            await three_steps(saver, face, durability, durability, Fake())
        assert len(recorder_of(saver).waiting) == 0
        assert dict(CAPTURE.under_way) == {}


@each_face
@pytest.mark.parametrize("where", ["_place_of", "describe_request", "describe_answer"])
async def test_an_error_of_the_callback_handler_does_not_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, face: str, where: str
) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("a fault")

    with MemorySaver() as saver:
        scene = Scene(saver, face, "sync", "t")
        graph = scene.compiled(("a", calling(scene.model())))
        with monkeypatch.context() as patch:
            patch.setattr(f"langgraph_keel.provenance.capture.{where}", fail)
            assert (await scene.run(graph))["said"] == ["hello", "all done"]
        assert "a fault" in caplog.text
        recorded = len(await scene.records())
        assert recorded == (where == "describe_answer")  # the request was recorded
        assert dict(CAPTURE.under_way) == {}
        await scene.run(graph)
        assert len(await scene.records()) == recorded + 1


@pytest.mark.parametrize("odd", ["params", "metadata", "response"])
async def test_a_call_with_malformed_metadata_is_recorded(odd: str) -> None:
    """Odd values are skipped; the call is recorded."""

    class Odd(Fake):
        def _get_invocation_params(self, stop: Any = None, **options: Any) -> Any:
            strange = {"model": b"\xff", "tools": [1, None, {"function": {"name": 5}}], "stop": 7, "seed": "x"}
            return strange if odd == "params" else super()._get_invocation_params(stop=stop, **options)

        def _get_ls_params(self, stop: Any = None, **options: Any) -> Any:
            return {"ls_provider": ["x"], "ls_temperature": {}} if odd == "metadata" else {}

        def _answer(self, messages: Any) -> AIMessage:
            about = {"model_name": 5, "finish_reason": [1], "system_fingerprint": {"a": object()}}
            return AIMessage("all done", response_metadata=about) if odd == "response" else super()._answer(messages)

    with MemorySaver() as saver:
        scene = Scene(saver, "sync", "sync", "t")
        await scene.run(scene.compiled(("a", calling(Odd(callbacks=[scene.told])))))
        assert len(await scene.check()) == 1


def test_unstored_records_are_never_evicted() -> None:
    """Unstored records are never evicted; of the others, only the latest stay."""
    waits = WaitingRecords()
    every = [
        WaitingRecord({"id": str(n)}, str(n), {"": "c"}, {"t"}, is_written=n % 2 == 1)
        for n in range(3 * WAITING_THREADS)
    ]
    for each in every:
        waits.add(each)
    assert [len(waits.find_unstored(each.thread_id)) for each in every] == [1, 0] * (len(every) // 2)
    assert len(waits) < len(every)


async def test_a_cancelled_call_leaves_nothing_in_memory() -> None:
    """LangChain does not report the cancellation.

    The record is stored with the thread's next checkpoint.
    """
    saver = MemorySaver()
    scene = Scene(saver, "async", "sync", "t")

    begun = threading.Event()

    def hook() -> None:
        begun.set()
        time.sleep(0.2)

    async def node(state: Any) -> Any:
        await scene.model(hook=hook).ainvoke(ASK)

    graph = scene.compiled(("a", node))
    run = asyncio.create_task(graph.ainvoke({"said": []}, scene.config))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.sleep(0.3)
    await scene.run(scene.compiled(("b", calling(scene.model()))))
    assert [call.path for call in await scene.records()] == ["a", "b"]
    assert len(recorder_of(saver).waiting) == 0
