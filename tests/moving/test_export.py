"""No lock-in: LangGraph's own savers continue threads written by Keel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from support.moving import old_graphs
from support.moving.old_graphs import SCENES, config_of
from support.moving.old_stores import OldStore, old_store
from support.savers import needing

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SqliteSaver, StoreUnavailable


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldStore]:
    needing(request.param, request)
    with old_store(request.param, tmp_path) as store:
        yield store


def play(saver: BaseCheckpointSaver[Any], *names: str) -> None:
    for name in names or SCENES:
        SCENES[name][0](saver, name)


def states_of(saver: BaseCheckpointSaver[Any], name: str) -> list[Any]:
    """Return each moment as LangGraph sees it: values, next nodes, questions."""
    graphs = {"deltas": old_graphs.deltas, "asks": old_graphs.asking, "sent": old_graphs.sending}
    graph = graphs.get(name, old_graphs.chat)(saver)
    found = []
    for each in graph.get_state_history(config_of(name)):
        tasks = [(task.id, task.name, task.error, task.interrupts) for task in each.tasks]
        found.append((each.config["configurable"]["checkpoint_id"], each.values, each.next, tasks, each.metadata))
    return found


def test_savers_of_langgraph_continue_every_exported_graph(saver: KeelSaver, target: OldStore) -> None:
    play(saver)
    assert saver.moving.export_to(target.url).to_dict()["threads"] == {
        "exported": len(SCENES),
        "present": 0,
        "failed": 0,
    }
    assert saver.moving.export_to(target.url).threads == {"present": len(SCENES)}
    with target.open() as other:
        for name in ("chat", "asks", "deltas", "forks", "sent"):
            assert states_of(other, name) == states_of(saver, name), name
        for name, (_, go_on) in SCENES.items():
            assert go_on(other, name) == go_on(saver, name), name


def test_a_round_trip_between_langgraph_and_keel(target: OldStore, tmp_path: Path) -> None:
    """From LangGraph's saver to Keel and back, continued in each.

    The threads have versions of both kinds.
    """
    with target.open() as other:
        play(other, "chat", "forks", "deltas")
    (tmp_path / "back").mkdir()
    with old_store("sqlite", tmp_path / "back") as back, MemorySaver() as saver:
        saver.moving.import_from(target.url)
        for name in ("chat", "forks", "deltas"):
            SCENES[name][1](saver, name)
        assert saver.moving.export_to(back.url).threads == {"exported": 3}
        with back.open() as other:
            for name in ("chat", "forks", "deltas"):
                assert SCENES[name][1](other, name) == SCENES[name][1](saver, name)


def test_branches_keep_their_own_values(target: OldStore, saver: KeelSaver) -> None:
    """In PostgreSQL, LangGraph stores values by channel version.

    So two branches must not share a version.
    """
    old_graphs.talk(saver, "t", 2)
    graph = old_graphs.chat(saver)
    fork = list(graph.get_state_history(config_of("t")))[3]
    for text in ("left", "right"):
        graph.invoke({"messages": [("user", text)]}, fork.config)
    saver.moving.export_to(target.url)
    with target.open() as other:
        assert [each[:3] for each in states_of(other, "t")] == [each[:3] for each in states_of(saver, "t")]


def test_the_latest_checkpoint_stays_the_latest_without_the_greatest_id(target: OldStore, saver: KeelSaver) -> None:
    old_graphs.talk(saver, "t", 1)
    latest = saver.get_tuple(config_of("t"))
    assert latest
    early: Any = {**latest.checkpoint, "id": "00000000-0000-6000-8000-000000000001"}
    saver.put(latest.config, early, {"source": "loop", "step": 9, "parents": {}}, {})
    assert saver.moving.export_to(target.url).failed == {}
    assert saver.moving.export_to(target.url).threads == {"present": 1}
    with target.open() as other:
        found = old_graphs.chat(other).get_state(config_of("t"))
        assert found.metadata
        assert found.metadata["step"] == 9
        assert old_graphs.go_on_talking(other, "t") == old_graphs.go_on_talking(saver, "t")


def test_pruned_delta_channels_are_exported(target: OldStore, saver: KeelSaver) -> None:
    play(saver, "deltas", "subgraphs")
    saver.prune(["deltas", "subgraphs"])
    assert saver.moving.export_to(target.url).failed == {}
    with target.open() as other:
        for name in ("deltas", "subgraphs"):
            assert SCENES[name][1](other, name) == SCENES[name][1](saver, name)


def test_an_interrupted_export_completes_when_repeated(target: OldStore, saver: KeelSaver) -> None:
    play(saver, "chat", "asks")

    class Dies(InMemorySaver):
        left = 5

        def put(self, *given: Any, **more: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().put(*given, **more)

    other = Dies()
    with pytest.raises(KeyboardInterrupt):
        saver.moving.export_to(other)
    assert saver.moving.export_to(other, ["chat", "asks"]).failed == {}
    for name in ("chat", "asks"):
        assert SCENES[name][1](other, name) == SCENES[name][1](saver, name)


async def test_export_to_an_asynchronous_saver_object(target: OldStore) -> None:
    kind: Any = AsyncSqliteSaver if target.kind == "sqlite" else AsyncPostgresSaver
    async with kind.from_conn_string(target.path) as other, MemorySaver() as saver:
        await other.setup()
        await asyncio.to_thread(play, saver, "chat")
        assert (await saver.moving.aexport_to(other)).threads == {"exported": 1}
        begin: Any = {"messages": [("user", "one more")]}
        found = await old_graphs.chat(other).ainvoke(begin, config_of("chat"))
        assert found["messages"][-1].content == "answer 7"


def test_existing_threads_of_the_target_stay_unchanged(target: OldStore, tmp_path: Path) -> None:
    with target.open() as other, MemorySaver() as saver:
        old_graphs.talk(other, "chat", 1)
        play(saver, "chat")
        before = target.dump()
        report = saver.moving.export_to(target.url, ["chat", "nobody"])
        assert report.threads == {"failed": 2}
        assert "both stay unchanged" in report.failed["chat"]
        assert report.failed["nobody"] == "there is no thread 'nobody'"
        assert target.dump() == before


def test_a_value_that_langgraph_cannot_store_is_reported(target: OldStore) -> None:
    with MemorySaver() as saver:
        at: Any = {"v": 4, "id": "1ef4f797-0000-6000-8000-000000000001", "ts": "", "versions_seen": {}}
        at |= {"channel_values": {"n": [1 << 70]}, "channel_versions": {"n": 1}}
        saver.put(config_of("huge", checkpoint_ns=""), at, {"source": "loop", "step": 0, "parents": {}}, {"n": 1})
        play(saver, "chat")
        report = saver.moving.export_to(target.url)
        assert report.threads == {"exported": 1, "failed": 1}
        assert [*report.failed] == ["huge"]


def test_invalid_export_targets_are_refused(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        play(saver, "chat")
        for wrong, match in (
            (saver, "saver of Keel's"),
            (tmp_path / "keel.db", "another program's file"),
            ("redis://ada:s3cret@host", "not redis://"),
        ):
            with pytest.raises(InvalidInput, match=match) as raised:
                saver.moving.export_to(wrong)
            assert "s3cret" not in str(raised.value)
        with pytest.raises(StoreUnavailable) as unreachable:
            saver.moving.export_to("postgresql://ada:s3cret@127.0.0.1:1/db")
        assert "s3cret" not in str(unreachable.value)
