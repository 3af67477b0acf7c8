"""Reading: what `get_tuple` returns is what was put, the latest is what was put last, and it is the caller's own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata

from langgraph_keel.core.records import Query
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of

STATE: dict[str, Any] = {
    "text": "short",
    "none": None,
    "yes": True,
    "int": 7,
    "float": -0.0,
    "bytes": b"\x00\xff",
    "long": "x" * 500,
    "pair": (1, "two"),
    "list": [1, {"a": [True, None]}, (2, 3)],
    "empty list": [],
    "empty dict": {},
    "dict": {f"key {n}": {"n": n, "text": "y" * 40} for n in range(30)},
    "messages": [HumanMessage("hi", id="h"), AIMessage("hello", id="a", additional_kwargs={"k": [1]})],
}


class ReadingContract(RigFixtures):
    """`put` and `get_tuple`."""

    def test_reads_what_was_put(self, rig: Rig) -> None:
        versions = {"text": "00000000000000000000000000000002.0.25", "list": 3}
        checkpoint = checkpoint_of(
            "c1", STATE, channel_versions=versions, versions_seen={"node": {"text": 1}}, updated_channels=["text"]
        )
        metadata = {"source": "loop", "step": 3, "parents": {"": "p"}}
        stored = rig.face.put(at(), checkpoint, metadata, versions)
        found = rig.face.read(at())
        assert exact(found.checkpoint["channel_values"]) == exact(STATE)
        assert found.checkpoint == checkpoint
        assert exact(found.metadata) == exact(metadata)
        assert found.config == stored == at("t", "", "c1")
        assert found.parent_config is None
        assert found.pending_writes == []

    def test_channels_keep_their_order(self, rig: Rig) -> None:
        rig.author().put({"z": [1], "a": "text", "m": {"k": 1}, "b": None})
        assert list(values_of(rig.face.read(at()))) == ["z", "a", "m", "b"]

    def test_put_changes_nothing_of_what_it_is_given(self, rig: Rig) -> None:
        checkpoint, metadata, config = checkpoint_of("c1", STATE), {"step": 1}, at()
        before = exact(deepcopy((checkpoint, metadata, config)))
        rig.face.put(config, checkpoint, metadata, {"text": 1})
        assert exact((checkpoint, metadata, config)) == before

    def test_keeps_checkpoint_keys_it_does_not_know(self, rig: Rig) -> None:
        checkpoint = checkpoint_of("c1", {"a": 1}, of_the_future={"deep": [1, (2,)]})
        rig.face.put(at(), checkpoint)
        assert cast(Any, rig.face.read(at()).checkpoint)["of_the_future"] == {"deep": [1, (2,)]}

    def test_metadata_has_lists_for_tuples(self, rig: Rig) -> None:
        metadata = {"counters": {"a": (1, 2)}, "deep": [((), {"k": (3,)})], "set": {(4, 5)}}
        rig.face.put(at(), checkpoint_of("c1", {"state": (6, 7)}), metadata)
        read = [rig.face.read(at()), *rig.face.list(at())]
        said = {"counters": {"a": [1, 2]}, "deep": [[[], {"k": [3]}]], "set": {(4, 5)}}
        assert [exact(found.metadata) for found in read] == [exact(said)] * 2
        assert [values_of(found) for found in read] == [{"state": (6, 7)}] * 2

    def test_metadata_is_what_langgraph_makes_of_it(self, rig: Rig) -> None:
        configurable = {"user": "ann\x00e", "score": 0.5, "flag": True, "__secret": "s", "nested": {"a": 1}}
        config = cast(
            RunnableConfig,
            {
                "configurable": {"thread_id": "t", "checkpoint_ns": "", **configurable},
                "metadata": {"run_id": "r", "step": 99, "langgraph_node": "n"},
            },
        )
        metadata = {"source": "input", "step": -1, "parents": {}, "note": "nul\x00", "writes": {"node": [1]}}
        rig.face.put(config, checkpoint_of("c1", {}), metadata)
        expected = get_checkpoint_metadata(config, cast(CheckpointMetadata, metadata))
        assert exact(rig.face.read(at()).metadata) == exact(expected)

    def test_has_no_config_specs_of_its_own(self, warm: Rig) -> None:
        assert warm.face.saver.config_specs == []
        assert bool(warm.face.saver)

    def test_parent_is_the_checkpoint_it_was_put_on(self, rig: Rig) -> None:
        first, second, third = rig.author().follow([{"a": 1}, {"a": 2}, {"a": 3}])
        assert rig.face.read(third).parent_config == second
        assert rig.face.read(second).parent_config == first
        assert rig.face.read(first).parent_config is None

    def test_reads_a_checkpoint_by_id(self, rig: Rig) -> None:
        configs = rig.author().follow([{"a": [1]}, {"a": [1, 2]}, {"a": [2]}])
        found = [values_of(rig.face.read(at("t", "", id_of(config)))) for config in configs]
        assert found == [{"a": [1]}, {"a": [1, 2]}, {"a": [2]}]

    def test_what_is_not_there_is_none(self, rig: Rig) -> None:
        stored = rig.author().put({"a": 1})
        assert rig.face.get_tuple(at("t", "", "unknown")) is None
        assert rig.face.get_tuple(at("unknown")) is None
        assert rig.face.get_tuple(at("t", "unknown")) is None
        assert rig.face.get_tuple(at("t", "child", id_of(stored))) is None
        assert list(rig.face.list(at("unknown"))) == []

    def test_an_id_of_none_means_the_latest(self, rig: Rig) -> None:
        stored = rig.author().follow([{"a": 1}, {"a": 2}])[-1]
        config = cast(RunnableConfig, {"configurable": {"thread_id": "t", "checkpoint_id": None}})
        assert rig.face.read(config).config == stored

    def test_an_absent_namespace_is_the_root(self, rig: Rig) -> None:
        rig.author("t", "child").put({"a": "child"})
        rig.author().put({"a": "root"})
        rig.author("t", "child").put({"a": "child again"})
        assert values_of(rig.face.read(at("t", None))) == {"a": "root"}
        assert values_of(rig.face.read(at("t", "child"))) == {"a": "child again"}

    def test_namespaces_and_threads_with_equal_ids_do_not_mix(self, rig: Rig) -> None:
        for thread, ns in [("t", ""), ("t", "a"), ("t", "a|b"), ("u", ""), ("u", "a")]:
            rig.author(thread, ns).put({"where": [thread, ns]}, checkpoint_id="same")
        assert values_of(rig.face.read(at("t", "a", "same"))) == {"where": ["t", "a"]}
        assert values_of(rig.face.read(at("t", "a|b"))) == {"where": ["t", "a|b"]}
        assert values_of(rig.face.read(at("u", "", "same"))) == {"where": ["u", ""]}

    def test_the_latest_is_the_one_put_last_though_the_clock_went_back(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": 1}, checkpoint_id="1f0-12:00", ts="2026-01-01T12:00:00+00:00")
        author.put({"a": 2}, checkpoint_id="1f0-11:00", ts="2026-01-01T11:00:00+00:00")
        assert values_of(rig.face.read(at())) == {"a": 2}
        assert [id_of(found) for found in rig.face.list(at())] == ["1f0-11:00", "1f0-12:00"]

    def test_a_changed_tuple_changes_nothing_stored(self, rig: Rig) -> None:
        config = rig.author().put(STATE)
        rig.face.put_writes(config, [("messages", [HumanMessage("w", id="w")])], "task")
        for found in (rig.face.read(at()), rig.face.read(config), *rig.face.list(at())):
            _spoil(found)
        found = rig.face.read(at())
        assert exact(values_of(found)) == exact(STATE)
        assert found.metadata["step"] == -1
        assert cast(Any, found.pending_writes)[0][2][0].content == "w"

    def test_tuples_of_one_listing_share_nothing(self, rig: Rig) -> None:
        shared = [{"n": n, "parts": [n]} for n in range(40)]
        tree = {f"k{n}": {"parts": [n], "text": "z" * 30} for n in range(40)}
        rig.author().follow([{"list": shared, "tree": tree, "n": n} for n in range(3)])
        newest, *others = list(rig.face.list(at()))
        values_of(newest)["list"][0]["parts"].append("spoiled")
        values_of(newest)["list"].clear()
        values_of(newest)["tree"]["k0"]["parts"].append("spoiled")
        assert [values_of(found)["list"] for found in others] == [shared, shared]
        assert [values_of(found)["tree"] for found in others] == [tree, tree]

    def test_equal_elements_are_separate_objects(self, rig: Rig) -> None:
        same = {"parts": [1]}
        rig.author().follow([{"list": [{"parts": [1]}]}, {"list": [same, same, {"parts": [1]}]}])
        found = values_of(rig.face.read(at()))["list"]
        found[0]["parts"].append(2)
        assert found == [{"parts": [1, 2]}, {"parts": [1]}, {"parts": [1]}]

    def test_a_value_changed_in_place_comes_back_as_it_was_put(self, rig: Rig) -> None:
        state: dict[str, Any] = deepcopy(STATE)
        author = rig.author()
        author.put(state)
        state["messages"][0].content = "changed in place"
        state["dict"]["key 7"]["n"] = "changed"
        state["list"][1]["a"][0] = 1
        author.put(state)
        assert exact(values_of(rig.face.read(at()))) == exact(state)
        assert exact(values_of(list(rig.face.list(at()))[1])) == exact(STATE)

    def test_what_a_run_changed_in_a_tuple_is_stored_by_its_next_put(self, rig: Rig) -> None:
        rig.author().put(STATE)
        author = rig.continuing(at())
        state = values_of(rig.face.read(at()))
        _spoil_values(state)
        author.put(state)
        assert exact(values_of(rig.face.read(at()))) == exact(state)

    def test_putting_an_id_again_replaces_it_and_makes_it_the_latest(self, rig: Rig) -> None:
        first, _ = rig.author().follow([{"a": [1]}, {"a": [1, 2]}])
        rig.face.put_writes(first, [("a", "kept")], "task")
        rig.face.put(at(), checkpoint_of(str(id_of(first)), {"a": [1, "again"]}), {"step": 9})
        found = rig.face.read(at())
        assert (id_of(found), values_of(found)) == (id_of(first), {"a": [1, "again"]})
        assert found.pending_writes == [("task", "a", "kept")]
        assert [id_of(each) for each in rig.face.list(at())] == [id_of(first), "00000002"]

    def test_versions_grow(self, warm: Rig) -> None:
        saver = warm.face.saver
        for start in (None, 3, 2.5, "00000000000000000000000000000009.0.504"):
            versions: list[Any] = [start]
            for _ in range(3):
                versions.append(saver.get_next_version(versions[-1], None))
            grown = versions[1:] if start is None else versions
            assert sorted(set(grown)) == grown
            assert len({type(version) for version in grown}) == 1

    def test_with_allowlist_shares_the_data(self, warm: Rig) -> None:
        allowing = warm.on(warm.face.saver.with_allowlist([("some.module", "Model")]))
        stored = warm.author().put({"list": [1]})
        warm.continuing(at(), allowing).put({"list": [1, 2]})
        assert warm.face.read(stored).config == stored
        assert values_of(warm.face.read(at())) == {"list": [1, 2]}

    def test_checkpoints_of_old_formats_get_their_sends_from_the_parent(self, rig: Rig) -> None:
        author = rig.author()
        parent = author.put({"a": 1}, v=3, channel_versions={"a": 4})
        rig.face.put_writes(parent, [("__pregel_tasks", "send 1"), ("a", 2)], "task 1", "1")
        rig.face.put_writes(parent, [("__pregel_tasks", "send 2")], "task 2", "2")
        author.put({"a": 2}, v=3, channel_versions={"a": 5})
        found = rig.face.read(at())
        assert values_of(found) == {"a": 2, "__pregel_tasks": ["send 1", "send 2"]}
        assert found.checkpoint["channel_versions"] == {"a": 5, "__pregel_tasks": 5}
        assert values_of(next(rig.face.list(at()))) == values_of(found)

    def test_an_entry_whose_refs_were_emptied_is_read_with_its_writes_and_without_rows(self, warm: Rig) -> None:
        """So `saver.provenance` asks for what stands beside the writes, and for no values."""
        for config in warm.author().follow([STATE, {"list": [1]}]):
            warm.face.put_writes(config, [("a", id_of(config))], "task one")
            warm.face.put_writes(config, [("b", "x" * 600)], "task two", "path")
        asked = [replace(entry, refs={}) for entry in warm.face.verb("scan", Query("t"))]
        found = warm.face.verb("read_values", asked)
        assert [each.entry.address for each in found] == [entry.address for entry in asked]
        assert [(batch.task_id, batch.task_path) for each in found for batch in each.batches] == [
            ("task one", ""),
            ("task two", "path"),
        ] * 2
        assert [row for each in found for rows in each.rows.values() for row in rows] == []

    def test_threads_are_listed_by_last_activity(self, warm: Rig) -> None:
        warm.author("old").put({}, ts="2026-01-01T10:00:00+00:00")
        warm.author("new").follow([{}, {}])
        author = warm.author("back")
        author.put({}, ts="2026-01-03T00:00:00+00:00", metadata={"step": 4})
        last = author.put({}, ts="2025-12-31T00:00:00+00:00", metadata={"step": 5})
        listed = list(warm.face.saver.threads())
        assert [info.thread_id for info in listed] == ["old", "new", "back"]
        assert [info.checkpoints for info in listed] == [1, 2, 2]
        assert (listed[-1].latest, listed[-1].step) == (id_of(last), 5)
        assert [info.thread_id for info in warm.face.saver.threads(limit=1)] == ["old"]


def _spoil_values(values: dict[str, Any]) -> None:
    values["messages"][0].content = "spoiled"
    values["messages"][1].additional_kwargs["k"].append(2)
    values["list"][1]["a"].append("spoiled")
    values["dict"]["key 3"]["n"] = "spoiled"
    values["empty list"].append("spoiled")
    values["new"] = ["spoiled"]


def _spoil(found: Any) -> None:
    _spoil_values(found.checkpoint["channel_values"])
    found.checkpoint["channel_versions"]["list"] = 99
    found.metadata["step"] = 99
    for _, _, value in found.pending_writes:
        value[0].content = "spoiled"
