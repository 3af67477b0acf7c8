"""Reading records: filters, pages, other serializers, damage, pickled errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.provenance.models import Fake
from support.provenance.runs import Scene, calling, recorder_of, thread_config
from support.savers import each_backend, each_face

from langgraph_keel import DriftDetected, DriftReport, InvalidConfig, KeelSaver, MemorySaver
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.session import Hooks
from langgraph_keel.errors import DriftWarning
from langgraph_keel.provenance import reading
from langgraph_keel.provenance.drift import Change
from langgraph_keel.provenance.reading import models_of
from langgraph_keel.provenance.records import CALLS, ModelCall, pack_call, record_of, unpack_call, unpack_calls


@pytest.fixture
def saver(stores: Any, backend: str) -> Iterator[KeelSaver]:
    with stores[backend].open() as saver:
        yield saver
    stores[backend].wipe()


async def write(saver: KeelSaver, face: str, thread: str, *served: str) -> Scene:
    """Write a thread in which each run has a model with a different name."""
    scene = Scene(saver, face, "sync", thread)
    for name in served:
        await scene.run(scene.compiled(("a", calling(scene.model(served=name))), ("b", lambda state: {})))
    return scene


# -- filters -----------------------------------------------------------------------------------------------------------


@each_face
@each_backend
@pytest.mark.filterwarnings("ignore::langgraph_keel.errors.DriftWarning")
async def test_checkpoints_and_threads_are_filtered_by_model(saver: KeelSaver, face: str) -> None:
    scene = await write(saver, face, "both", "one", "two", "one")
    await write(saver, face, "only one", "one")
    for name, steps in {"one": [9, 1], "two": [5], "fake": [9, 5, 1], "none": []}.items():
        found = await scene.listed(filter={"model": name})
        assert [each.metadata["step"] for each in found] == steps
        limited = await scene.listed(filter={"model": name}, limit=1)
        assert [each.checkpoint["id"] for each in limited] == [each.checkpoint["id"] for each in found[:1]]
    assert [each.metadata["step"] for each in await scene.listed(filter={"model": "one", "step": 1})] == [1]
    names = {name: [info.thread_id for info in saver.threads(model=name)] for name in ("one", "two", "fake", "none")}
    assert names == {"one": ["only one", "both"], "two": ["both"], "fake": ["only one", "both"], "none": []}
    assert [info.thread_id for info in saver.threads(1, model="one")] == ["only one"]
    assert [info.thread_id for info in saver.threads(1, model="two")] == ["both"]
    assert list(saver.threads(0, model="one")) == []
    assert [info.models for info in saver.threads()] == [("fake", "one"), ("fake", "one", "two")]


@each_face
@each_backend
async def test_records_and_threads_are_read_in_pages(
    saver: KeelSaver, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = [await write(saver, face, f"t{number}", f"model {number % 2}") for number in range(5)]
    await write(saver, face, "t0", "model 0")
    scenes[0].told.calls.clear()
    whole = await scenes[0].records()
    assert len(whole) == 2
    monkeypatch.setattr(reading, "PAGE", 2)
    monkeypatch.setattr("langgraph_keel.engine.queries.PAGE", 2)
    assert await scenes[0].records() == whole
    for limit, found in (
        (None, ["t0", "t4", "t2"]),
        (2, ["t0", "t4"]),
        (3, ["t0", "t4", "t2"]),
        (9, ["t0", "t4", "t2"]),
    ):
        assert [info.thread_id for info in saver.threads(limit, model="model 0")] == found


@each_backend
async def test_records_are_read_by_checkpoint_or_namespace(saver: KeelSaver) -> None:
    scene = await write(saver, "sync", "t", "one", "one")
    one, two = await scene.records()
    assert await scene.records(thread_config("t", "", one.checkpoint_id)) == [one]
    assert await scene.records(thread_config("t", None, two.checkpoint_id)) == [two]
    assert await scene.records(thread_config("t", "")) == [one, two]
    assert await scene.records(thread_config("t", "sub")) == []
    assert await scene.records(thread_config("t", "", "unknown")) == []
    assert await scene.records(thread_config("unknown")) == []


@pytest.mark.parametrize("config", [None, {}, {"thread_id": "t"}, {"configurable": {}}], ids=repr)
async def test_reading_without_a_thread_is_refused(config: Any) -> None:
    with MemorySaver() as saver:
        await write(saver, "sync", "t", "one")
        with pytest.raises(InvalidConfig):
            saver.provenance.read(config)
        with pytest.raises(InvalidConfig):
            await saver.provenance.aread(config)


async def test_a_numeric_thread_id_is_read_as_text() -> None:
    waiting: list[Any] = []
    with MemorySaver() as saver:
        scene = Scene(saver, "sync", "sync", "5")
        ask = calling(scene.model(served="one"))

        def node(state: Any) -> Any:
            said = ask.invoke(state)
            waiting.extend(saver.provenance.read(thread_config(5)))
            return said

        await scene.run(scene.compiled(("a", node)))
        (found,) = saver.provenance.read(thread_config(5))
        assert [(call.id, call.thread_id, call.checkpoint_id) for call in waiting] == [(found.id, "5", None)]
        assert found.checkpoint_id
        assert saver.provenance.drifts(5) == saver.provenance.drifts("5") == []  # type: ignore[arg-type]


# -- serializers -------------------------------------------------------------------------------------------------------


@each_face
@each_backend
@pytest.mark.parametrize("serde", ["jsonplus", "encrypted"])
async def test_records_with_other_serializers(stores: Any, backend: str, face: str, serde: str) -> None:
    made: Any = (
        JsonPlusSerializer() if serde == "jsonplus" else EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)
    )
    with stores[backend].open(serde=made) as saver:
        scene = await write(saver, face, f"{serde} {face}", "served-in-secret", "served-in-secret")
        assert len(await scene.check()) == 2
        assert len(await scene.listed(filter={"model": "served-in-secret"})) == 2
        (found,) = [info.models for info in saver.threads() if info.thread_id == scene.thread]
        assert found == ("fake", "served-in-secret")
        if serde == "encrypted":
            assert b"served-in-secret" not in stores[backend].raw()
        saver.delete_thread(scene.thread)


# -- damage ------------------------------------------------------------------------------------------------------------

JUNK: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)
FIELDS = list(ModelCall.__dataclass_fields__)


@pytest.mark.slow
@given(JUNK | st.lists(JUNK | st.dictionaries(st.sampled_from(FIELDS), JUNK)))
def test_junk_is_ignored_without_an_error(junk: Any) -> None:
    for call in [unpack_call(junk), *unpack_calls(junk)]:
        assert call is None or isinstance(call.id, str)
    models_of({"calls": junk, "models": junk})


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(FIELDS), JUNK))
def test_a_damaged_record_keeps_its_readable_fields(junk: dict[str, Any]) -> None:
    call = unpack_call({**junk, "id": "x"})
    assert call
    assert all(isinstance(name, str) for name in call.names)
    assert sorted([call.started_at, "2026"])
    assert hash(call.stop) == hash(tuple(call.stop))
    again = unpack_call(pack_call(call))
    assert pack_call(again) == pack_call(call) if again else False


JUNK = {"of_the_future": [1], "stop": 7, "usage": 1}


@each_backend
@pytest.mark.filterwarnings("ignore::langgraph_keel.errors.DriftWarning")
async def test_a_damaged_record_does_not_hide_the_others(saver: KeelSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(facts: dict[str, Any]) -> Any:
        record = record_of(facts)
        if record.get("served_model") == "bad":
            return {"id": 5}
        return {**record, **JUNK} if "served_model" in record else record

    monkeypatch.setattr("langgraph_keel.provenance.capture.record_of", spoiled)
    scene = await write(saver, "sync", "t", "bad", "good")
    (record,) = await scene.records()
    assert (record.served_model, record.stop, record.usage) == ("good", (), {})
    assert len(await scene.listed(filter={"model": "good"})) == 1
    assert len([*saver.threads(model="good")]) == 1


@each_backend
async def test_headers_without_records_are_read(saver: KeelSaver) -> None:
    engine = saver.engine
    hooks = Hooks([hook for hook in engine.session.hooks.all if hook is not recorder_of(saver)])
    before = with_engine(saver, replace(engine, session=replace(engine.session, hooks=hooks)))
    scene = await write(before, "sync", "t", "one")
    assert await scene.records() == []
    await write(saver, "sync", "t", "two")
    assert [call.served_model for call in await scene.records()] == ["two"]
    assert [info.models for info in saver.threads()] == [("fake", "two")]


async def test_records_are_not_listed_as_pending_writes(stores: Any) -> None:
    with stores["memory"].open() as saver:
        scene = await write(saver, "sync", "writes", "one")
        for found in await scene.listed():
            assert CALLS not in [channel for _, channel, _ in found.pending_writes]
        saver.delete_thread("writes")


# -- errors that travel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DriftDetected, DriftWarning])
def test_drift_errors_and_warnings_can_be_pickled(kind: Any) -> None:
    report = DriftReport("t", (Change("served_model", "a", "b", 3, "node"), Change("langgraph", None, "2")))
    said = kind(report)
    again = pickle.loads(pickle.dumps(said))
    assert type(again) is kind
    assert (again.report, str(again)) == (report, str(said))
    assert "served_model was a up to step 3, now b" in str(again)


def test_a_record_can_be_pickled() -> None:
    call = ModelCall(id="x", stop=("a",), usage={"input_tokens": 1}, tools={"look": "hash"})
    assert pickle.loads(pickle.dumps(call)) == call


def test_the_fake_model_reports_its_name() -> None:
    assert Fake(served="one").invoke("hi").response_metadata["model_name"] == "one"
