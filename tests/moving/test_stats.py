"""Sizes of a store: each record counts once, and prunes free the predicted bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from support.moving.copies import write_history
from support.stores import MemoryUnderTest
from support.tiers import BACKENDS

from langgraph_keel import Keyring, LocalKey, MemorySaver
from langgraph_keel.testing.machine import chat
from langgraph_keel.testing.rig import FACES, Rig, at, checkpoint_of


@pytest.fixture
def store(stores: Any, backend: str) -> Iterator[Any]:
    stores[backend].wipe()
    yield stores[backend]
    stores[backend].wipe()


def test_each_record_is_counted_once() -> None:
    backend = MemoryUnderTest()
    write_history(backend)
    state = backend._state  # private: the records in the store, read behind the saver's back
    stats = backend.open().stats()
    records = [record for thread in state.values() for record in thread.records.values()]
    rows = [row for thread in state.values() for log in thread.logs.values() for row in log.rows.values()]
    batches = [each for thread in state.values() for of in thread.batches.values() for each in of]
    cells = [cell for shelf in state.cells.values() for cell in shelf.values()]
    assert stats.kinds["metadata"] == sum(len(record.entry.header) for record in records)
    assert stats.kinds["values"] == sum(len(row.body) for row in rows) == sum(stats.channels.values())
    assert stats.kinds["writes"] == sum(len(batch.body) for batch in batches)
    assert stats.kinds["later"] == sum(len(cell.header) + len(cell.body) for cell in cells if len(cell.body) > 99)
    assert stats.nbytes == sum(stats.kinds.values())
    assert stats.threads == 4
    assert next(iter(stats.largest)) == "t"
    assert list(stats.kinds.values()) == sorted(stats.kinds.values(), reverse=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prune_frees_the_predicted_bytes(store: Any, backend: str) -> None:
    with store.open() as saver:
        Rig(store, FACES["sync"]).author().follow([{"list": chat(n), "n": n} for n in range(30)])
        before = saver.stats()
        assert asyncio.run(saver.astats()) == before
        assert list(saver.threads()) != []
        assert before.prunable > 0
        saver.prune(["t"])
        after = saver.stats()
        assert after.prunable == 0
        assert before.nbytes - after.nbytes == before.prunable


def test_packable_bytes_decrease_as_the_thread_is_continued() -> None:
    backend = MemoryUnderTest()
    rig = Rig(backend, FACES["sync"])
    for n in range(31):  # a new saver each time has no memory of small rows
        rig.continuing(at()).put({"list": chat(n)}) if n else rig.author().put({"list": chat(0)})
    before = rig.face.saver.stats()
    assert 0 < before.packable < before.kinds["values"]
    rig.continuing(at()).follow([{"list": chat(n)} for n in range(31, 80)])
    assert rig.face.saver.stats().packable < before.packable


@pytest.mark.parametrize("backend", BACKENDS)
def test_history_counts_values_that_no_run_reads(store: Any, backend: str) -> None:
    with store.open() as saver:
        pages = [random.Random(n).randbytes(1500).hex() for n in range(30)]
        Rig(store, FACES["sync"]).author().follow([{"list": chat(30), "page": page} for page in pages])
        stats = saver.stats()
        assert 28 / 30 < stats.history / stats.channels["page"] < 1
        saver.prune(["t"])
        assert saver.stats().history == 0


def fold(log: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(log or []), *(page for write in writes for page in write)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(fold, snapshot_frequency=5)]


def test_history_excludes_writes_needed_by_delta_channels() -> None:
    pages = iter([random.Random(number).randbytes(1500).hex() for number in range(9)])
    builder = StateGraph(Delta).add_node("write", lambda _: {"log": [next(pages)]}).add_edge(START, "write")
    with MemorySaver() as saver:
        graph = builder.compile(checkpointer=saver)
        for _ in range(9):
            graph.invoke({"log": []}, at())
        assert 0 < saver.stats().history < saver.stats().channels["log"]
        saver.prune(["t"])
        assert saver.stats().channels["log"] > 0
        assert saver.stats().history == 0
        assert len(graph.get_state(at()).values["log"]) == 9


def test_stats_count_large_values_and_idle_threads() -> None:
    saver = MemorySaver()
    text = random.Random(1).randbytes(100_000).hex()
    for days, name in ((10, "new"), (40, "old")):
        checkpoint: Any = checkpoint_of("1", {"text": text}, channel_versions={"text": 1})
        checkpoint["ts"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        saver.put(at(name), checkpoint, {}, {"text": 1})
    stats = saver.stats()
    assert stats.large > 2 * 100_000
    assert stats.history == 0
    assert stats.idle == {30: saver.stats(match="old").nbytes, 90: 0, 365: 0}
    assert stats.to_dict()["idle"]["90"] == 0


def test_stats_of_selected_threads_and_their_display() -> None:
    saver = MemorySaver(encryption=Keyring(LocalKey("k1", bytes(range(32)))))
    for name in ("a", "b\x1b[31m"):
        saver.put(at(name), _checkpoint(), {}, {"list": 1})
    assert saver.stats(match="a").threads == 1
    shown = str(saver.stats())
    assert "by channel" in shown
    assert "█" in shown
    assert "\x1b" not in shown
    assert saver.stats().to_dict()["bytes"] == saver.stats().nbytes


def _checkpoint() -> Any:
    return checkpoint_of("1", {"list": ["x" * 50]}, channel_versions={"list": 1})
