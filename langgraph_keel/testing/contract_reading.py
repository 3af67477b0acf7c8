"""Reading, listing, exact and compact storage, and invalid or unusual input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, get_checkpoint_metadata
from langgraph.types import Interrupt
from pydantic import SecretStr

from langgraph_keel._langgraph import BRANCH_TO, ERROR, INTERRUPT, METADATA_NODE, TASKS
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.errors import CorruptStore, InvalidConfig, InvalidInput, RefusedType, UnstorableValue
from langgraph_keel.testing.machine import HISTORIES, TREE, chat
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

METADATA: dict[str, dict[str, Any]] = {
    "nested": {"deep": {"a": {"b": [1, 2]}}},
    "list": {"tags": ["x", "y"]},
    "tuple": {"pairs": {"a": (1, [(2, 3)])}},
    "true": {"flag": True},
    "false": {"flag": False},
    "one": {"flag": 1},
    "text one": {"flag": "1"},
    "null": {"flag": None},
    "odd keys": {"it's": 1, 'say "x"': 2, "a.b": 3, "a b": 4, "100%": 5, "$.x": 6, "": 7},
    "unicode": {"naïve 😀": "ü"},
}

FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"deep": {"a": {"b": [1, 2]}}}, {"nested"}),
    ({"deep": {"a": {"b": [2, 1]}}}, set()),
    ({"deep": {"a": {}}}, set()),
    ({"tags": ["x", "y"]}, {"list"}),
    ({"tags": ["x"]}, set()),
    ({"tags": ("x", "y")}, {"list"}),
    ({"pairs": {"a": [1, [[2, 3]]]}}, {"tuple"}),
    ({"pairs": {"a": (1, [(2, 3)])}}, {"tuple"}),
    ({"tags": "x"}, set()),
    ({"flag": True}, {"true", "one"}),
    ({"flag": 1}, {"true", "one"}),
    ({"flag": 0}, {"false"}),
    ({"flag": "1"}, {"text one"}),
    ({"flag": "true"}, set()),
    ({"flag": None}, set(METADATA) - {"true", "false", "one", "text one"}),
    ({"absent": None}, set(METADATA)),
    ({"absent": 0}, set()),
    ({"it's": 1}, {"odd keys"}),
    ({'say "x"': 2}, {"odd keys"}),
    ({"a.b": 3}, {"odd keys"}),
    ({"a b": 4}, {"odd keys"}),
    ({"100%": 5, "$.x": 6}, {"odd keys"}),
    ({"": 7}, {"odd keys"}),
    ({"naïve 😀": "ü"}, {"unicode"}),
    ({"flag": True, "name": "one"}, {"one"}),
    ({"source": "loop"}, set(METADATA)),
    ({"' OR 1=1 --": 1}, set()),
    ({}, set(METADATA)),
]

LONG = 130
"""Number of checkpoints of a history with several pages."""

IN_PLACE: dict[str, Callable[[dict[str, Any]], object]] = {
    "append": lambda state: state["list"].append(chat(1, 50)[0]),
    "edit a message": lambda state: setattr(state["list"][3], "content", "edited in place"),
    "edit what is in a message": lambda state: state["list"][2].additional_kwargs.update(n="edited"),
    "delete from the middle": lambda state: state["list"].pop(4),
    "clear": lambda state: state["list"].clear(),
    "reverse": lambda state: state["list"].reverse(),
    "sort of the same": lambda state: state["list"].__setitem__(0, deepcopy(state["list"][0])),
    "set a leaf": lambda state: state["tree"]["branch 3"]["leaves"]["leaf 1"].update(n="edited"),
    "delete a branch": lambda state: state["tree"].pop("branch 3"),
    "move a key to the end": lambda state: state["tree"].update(moved=state["tree"].pop("branch 0")),
    "change a tuple's list": lambda state: state["pair"][0].append(2),
    "equal but of another type": lambda state: state["numbers"].__setitem__(0, True),
}

ODD_IDS = {
    "long": "x" * 10_000,
    "slash": "a/b",
    "dots": "..",
    "dot": ".",
    "NUL": "a\x00b",
    "percent": "100%25%s",
    "newline": "a\nb\r\n",
    "emoji": "😀 naïve",
    "quotes": 'it\'s "quoted" `so`',
    "sql": "'; DROP TABLE threads; --",
    "glob": "*?[a-z]",
    "braces": "{t}:{}",
    "spaces": "  ",
    "backslash": "a\\b",
    "separators": "a|b:c|d",
    "not normalized": "e\u0301",
}
"""Ids with a special meaning in some store."""

BAD_IDS: dict[str, Any] = {"surrogate": "lone \ud800", "list": ["t"], "bytes": b"t", "float": 1.5, "bool": True}

LOOKALIKES = [("a", "A"), ("a/b", "a%2Fb"), ("é", "e\u0301"), ("1", "01"), ("a", "a "), ("a\x00", "a"), ("%", "%%")]


class ReadingContract(RigFixtures):
    """`put` and `get_tuple`."""

    def test_get_tuple_returns_the_stored_checkpoint(self, rig: Rig) -> None:
        versions = {"text": "00000000000000000000000000000002.0.25", "list": 3}
        more = {"versions_seen": {"node": {"text": 1}}, "updated_channels": ["text"]}
        checkpoint = checkpoint_of("c1", STATE, channel_versions=versions, **more)
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

    def test_put_does_not_modify_its_arguments(self, rig: Rig) -> None:
        checkpoint, metadata, config = checkpoint_of("c1", STATE), {"step": 1}, at()
        before = exact(deepcopy((checkpoint, metadata, config)))
        rig.face.put(config, checkpoint, metadata, {"text": 1})
        assert exact((checkpoint, metadata, config)) == before

    def test_unknown_checkpoint_keys_are_kept(self, rig: Rig) -> None:
        checkpoint = checkpoint_of("c1", {"a": 1}, of_the_future={"deep": [1, (2,)]})
        rig.face.put(at(), checkpoint)
        assert cast(Any, rig.face.read(at()).checkpoint)["of_the_future"] == {"deep": [1, (2,)]}

    def test_tuples_in_metadata_become_lists(self, rig: Rig) -> None:
        metadata = {"counters": {"a": (1, 2)}, "deep": [((), {"k": (3,)})], "set": {(4, 5)}}
        rig.face.put(at(), checkpoint_of("c1", {"state": (6, 7)}), metadata)
        read = [rig.face.read(at()), *rig.face.list(at())]
        said = {"counters": {"a": [1, 2]}, "deep": [[[], {"k": [3]}]], "set": {(4, 5)}}
        assert [exact(found.metadata) for found in read] == [exact(said)] * 2
        assert [values_of(found) for found in read] == [{"state": (6, 7)}] * 2

    def test_metadata_equals_that_of_langgraph(self, rig: Rig) -> None:
        configurable = {"user": "ann\x00e", "score": 0.5, "flag": True, "__secret": "s", "nested": {"a": 1}}
        about = {"run_id": "r", "step": 99, METADATA_NODE: "n"}
        config: RunnableConfig = {"configurable": {**at()["configurable"], **configurable}, "metadata": about}
        metadata = {"source": "input", "step": -1, "parents": {}, "note": "nul\x00", "writes": {"node": [1]}}
        rig.face.put(config, checkpoint_of("c1", {}), metadata)
        expected = get_checkpoint_metadata(config, cast(CheckpointMetadata, metadata))
        assert exact(rig.face.read(at()).metadata) == exact(expected)

    def test_a_saver_has_no_config_specs(self, warm: Rig) -> None:
        assert warm.face.saver.config_specs == []
        assert bool(warm.face.saver)

    def test_parent_is_the_checkpoint_named_in_the_config_of_the_put(self, rig: Rig) -> None:
        first, second, third = rig.author().follow([{"a": 1}, {"a": 2}, {"a": 3}])
        assert rig.face.read(third).parent_config == second
        assert rig.face.read(second).parent_config == first
        assert rig.face.read(first).parent_config is None

    def test_get_tuple_reads_a_checkpoint_by_id(self, rig: Rig) -> None:
        configs = rig.author().follow([{"a": [1]}, {"a": [1, 2]}, {"a": [2]}])
        found = [values_of(rig.face.read(at("t", "", id_of(config)))) for config in configs]
        assert found == [{"a": [1]}, {"a": [1, 2]}, {"a": [2]}]

    def test_unknown_ids_find_no_checkpoint(self, rig: Rig) -> None:
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

    def test_a_config_without_a_namespace_reads_the_root(self, rig: Rig) -> None:
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

    def test_the_latest_is_the_last_stored_even_if_the_clock_went_back(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": 1}, checkpoint_id="1f0-12:00", ts="2026-01-01T12:00:00+00:00")
        author.put({"a": 2}, checkpoint_id="1f0-11:00", ts="2026-01-01T11:00:00+00:00")
        assert values_of(rig.face.read(at())) == {"a": 2}
        assert [id_of(found) for found in rig.face.list(at())] == ["1f0-11:00", "1f0-12:00"]

    def test_changes_by_other_savers_to_a_known_checkpoint_are_seen(self, warm: Rig) -> None:
        """A saver that knows a checkpoint still reads all data that may have changed."""
        other = warm.open()
        first, second = warm.author().follow([STATE, STATE | {"count": 2}])
        other.put_writes(second, [("a", "of another")], "task")
        for config in (at("t"), second):
            found = warm.face.read(config)
            assert found.pending_writes == [("task", "a", "of another")]
            assert exact(values_of(found)) == exact(STATE | {"count": 2})
            assert id_of(found.parent_config) == id_of(first)
        other.prune(["t"])
        assert warm.face.read(at("t")).parent_config is None
        third = warm.continuing(at("t"), other).put({"messages": [HumanMessage("new", id="n")]})
        assert id_of(warm.face.read(at("t"))) == id_of(third)
        assert warm.face.read(second).pending_writes == [("task", "a", "of another")]
        assert id_of(warm.face.read(at("t"))) == id_of(third)
        other.delete_thread("t")
        assert warm.face.get_tuple(at("t")) is None
        assert warm.face.get_tuple(third) is None
        warm.author(face=other).put({"a": 1}, checkpoint_id=id_of(third))
        for config in (at("t"), third):
            assert values_of(warm.face.read(config)) == {"a": 1}

    def test_modifying_a_returned_tuple_does_not_change_the_store(self, rig: Rig) -> None:
        config = rig.author().put(STATE)
        rig.face.put_writes(config, [("messages", [HumanMessage("w", id="w")])], "task")
        for found in (rig.face.read(at()), rig.face.read(config), *rig.face.list(at())):
            _spoil_values(found.checkpoint["channel_values"])
            found.checkpoint["channel_versions"]["list"] = 99
            found.metadata["step"] = 99
            for _, _, value in found.pending_writes or ():
                value[0].content = "spoiled"
        found = rig.face.read(at())
        assert exact(values_of(found)) == exact(STATE)
        assert found.metadata["step"] == -1
        assert cast(Any, found.pending_writes)[0][2][0].content == "w"

    def test_tuples_of_one_listing_share_no_objects(self, rig: Rig) -> None:
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

    def test_a_value_changed_in_place_is_kept_in_both_versions(self, rig: Rig) -> None:
        state: dict[str, Any] = deepcopy(STATE)
        author = rig.author()
        author.put(state)
        state["messages"][0].content = "changed in place"
        state["dict"]["key 7"]["n"] = "changed"
        state["list"][1]["a"][0] = 1
        author.put(state)
        assert exact(values_of(rig.face.read(at()))) == exact(state)
        assert exact(values_of(list(rig.face.list(at()))[1])) == exact(STATE)

    def test_changes_to_a_returned_tuple_are_stored_by_the_next_put(self, rig: Rig) -> None:
        rig.author().put(STATE)
        author = rig.continuing(at())
        state = values_of(rig.face.read(at()))
        _spoil_values(state)
        author.put(state)
        assert exact(values_of(rig.face.read(at()))) == exact(state)

    def test_storing_an_id_again_replaces_it_and_makes_it_the_latest(self, rig: Rig) -> None:
        first, _ = rig.author().follow([{"a": [1]}, {"a": [1, 2]}])
        rig.face.put_writes(first, [("a", "kept")], "task")
        rig.face.put(at(), checkpoint_of(str(id_of(first)), {"a": [1, "again"]}), {"step": 9})
        found = rig.face.read(at())
        assert (id_of(found), values_of(found)) == (id_of(first), {"a": [1, "again"]})
        assert found.pending_writes == [("task", "a", "kept")]
        assert [id_of(each) for each in rig.face.list(at())] == [id_of(first), "00000002"]

    def test_channel_versions_increase(self, warm: Rig) -> None:
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
        rig.face.put_writes(parent, [(TASKS, "send 1"), ("a", 2)], "task 1", "1")
        rig.face.put_writes(parent, [(TASKS, "send 2")], "task 2", "2")
        author.put({"a": 2}, v=3, channel_versions={"a": 5})
        found = rig.face.read(at())
        assert values_of(found) == {"a": 2, TASKS: ["send 1", "send 2"]}
        assert found.checkpoint["channel_versions"] == {"a": 5, TASKS: 5}
        assert values_of(next(rig.face.list(at()))) == values_of(found)

    def test_an_entry_without_refs_is_read_with_writes_and_without_rows(self, warm: Rig) -> None:
        """This is how `saver.provenance.read` reads writes without values."""
        for config in warm.author().follow([STATE, {"list": [1]}]):
            warm.face.put_writes(config, [("a", id_of(config))], "task one")
            warm.face.put_writes(config, [("b", "x" * 600)], "task two", "path")
        asked = [replace(entry, refs={}) for entry in warm.face.verb("scan", Query("t"))]
        found = warm.face.verb("read_values", asked)
        assert [each.entry.address for each in found] == [entry.address for entry in asked]
        batches = [(batch.task_id, batch.task_path) for each in found for batch in each.batches]
        assert batches == [("task one", ""), ("task two", "path")] * 2
        assert [row for each in found for rows in each.rows.values() for row in rows] == []

    def test_threads_are_listed_by_last_activity(self, warm: Rig) -> None:
        warm.author("old").put({}, ts="2026-01-01T10:00:00+00:00")
        warm.author("new").follow([{}, {}])
        author = warm.author("back")
        author.put({}, ts="2025-12-30T00:00:00+00:00", metadata={"step": 4})
        last = author.put({}, ts="2025-12-31T00:00:00+00:00", metadata={"step": 5})
        listed = list(warm.face.saver.threads())
        assert [info.thread_id for info in listed] == ["old", "new", "back"]
        assert [info.checkpoints for info in listed] == [1, 2, 2]
        assert (listed[-1].latest, listed[-1].step) == (id_of(last), 5)
        assert [info.thread_id for info in warm.face.saver.threads(limit=1)] == ["old"]

    def test_a_host_with_a_slow_clock_never_decreases_updated_at(self, rig: Rig) -> None:
        """Times never go back: not by a write, also of a subgraph, and not by a prune."""
        early, noon, late = (f"2026-01-02T{hour}:00:00+00:00" for hour in ("08", "12", "16"))
        rig.author("other").put({}, ts="2026-01-02T10:00:00+00:00")
        author, inner = rig.author("t"), rig.author("t", "inner:1")

        def listed() -> Sequence[tuple[str, str]]:
            return [(info.thread_id, info.updated_at) for info in rig.face.saver.threads()]

        author.put({}, ts=noon)
        for put in (author.put, author.put, inner.put):
            put({}, ts=early, metadata={"run_id": "behind"})
            assert [thread for thread, _ in listed()] == ["t", "other"]
        assert listed()[0] == ("t", noon)
        author.put({}, ts=late, metadata={"run_id": "late"})
        assert listed()[0] == ("t", late)
        assert rig.face.read(at("t")).checkpoint["ts"] == late
        rig.face.delete_for_runs(["late"])
        assert listed()[0] == ("t", noon)  # the one before it was written by the host whose clock is behind
        rig.continuing(at("t")).put({}, ts=early)
        assert rig.face.read(at("t")).checkpoint["ts"] == early  # the checkpoint's own time is unchanged
        assert listed()[0] == ("t", noon)

    def test_threads_are_found_by_their_latest_checkpoint(self, rig: Rig) -> None:
        ends: dict[str, Any] = {}
        goes_on = {f"{BRANCH_TO}act": None}
        for thread, owner, values in (("a", "ada", ends), ("b", "bob", goes_on), ("c", "ada", goes_on)):
            rig.author(thread).put(values, metadata={"user_id": owner})
        assert _find_threads(rig, owner="ada") == ["a", "c"]
        assert _find_threads(rig, status="done") == ["a"]
        assert _find_threads(rig, status="incomplete", node="act") == ["b", "c"]
        assert _find_threads(rig, owner="ada", node="act") == ["c"]
        assert _find_threads(rig, owner="nobody") == _find_threads(rig, node="none") == []
        rig.author("a").put(goes_on, metadata={"user_id": "bob"})
        rig.author("b", "inner:1").put(ends, metadata={"user_id": "eve"})  # metadata of a subgraph does not count
        assert (_find_threads(rig, owner="ada"), _find_threads(rig, owner="bob")) == (["c"], ["a", "b"])
        assert _find_threads(rig, status="done") == _find_threads(rig, owner="eve") == []
        assert _find_threads(rig, node="act") == ["a", "b", "c"]

    def test_threads_are_found_by_pending_writes(self, rig: Rig) -> None:
        author, other = rig.author("t"), rig.author("other")
        other.put({})
        rig.face.put_writes(at("t", "", "00000001"), [(ERROR, ValueError("early"))], "task")  # before its checkpoint
        first = author.put({}, checkpoint_id="00000001")
        assert (_find_threads(rig, status="failed"), _find_threads(rig, error="ValueError")) == (["t"], ["t"])
        second = author.put({}, checkpoint_id="00000002")
        assert _find_threads(rig, status="failed") == _find_threads(rig, error=ValueError) == []
        rig.face.put_writes(second, [(ERROR, KeyError("k"))], "one")
        rig.face.put_writes(second, [("out", 1)], "two")
        rig.face.put_writes(second, [(INTERRUPT, (Interrupt("?", id="i"),))], "three")
        assert (_find_threads(rig, status="waiting"), _find_threads(rig, status="failed")) == (["t"], [])
        rig.face.put_writes(first, [(ERROR, OSError())], "old")  # as a run that continues from there
        assert _find_threads(rig, status="waiting") == ["t"]
        rig.face.put_writes(second, [("out", 1)], "three")
        assert (_find_threads(rig, status="waiting"), _find_threads(rig, error=KeyError)) == ([], ["t"])

    def test_threads_are_found_after_their_latest_checkpoint_is_deleted(self, rig: Rig) -> None:
        author = rig.author("t")
        for number, owner in enumerate(("ada", "bob", "eve")):
            config = author.put({}, metadata={"user_id": owner, "run_id": f"run {number}"})
        rig.face.put_writes(config, [(ERROR, ValueError("late"))], "task")
        rig.face.delete_for_runs(["run 2"])
        assert _find_threads(rig, owner="bob") == ["t"]
        assert _find_threads(rig, owner="eve") == _find_threads(rig, status="failed") == []
        rig.face.saver.copy_thread("t", "copy")
        assert _find_threads(rig, owner="bob") == ["copy", "t"]
        rig.face.delete_thread("t")
        assert _find_threads(rig, owner="bob") == ["copy"]
        rig.author("t").put({}, metadata={"user_id": "ada"})
        assert (_find_threads(rig, owner="bob"), _find_threads(rig, owner="ada")) == (["copy"], ["t"])


def _find_threads(rig: Rig, **wanted: Any) -> list[str]:
    return sorted(info.thread_id for info in rig.face.saver.threads(**wanted))


def _spoil_values(values: dict[str, Any]) -> None:
    values["messages"][0].content = "spoiled"
    values["messages"][1].additional_kwargs["k"].append(2)
    values["list"][1]["a"].append("spoiled")
    values["dict"]["key 3"]["n"] = "spoiled"
    values["empty list"].append("spoiled")
    values["new"] = ["spoiled"]


class ListingContract(RigFixtures):
    """`list`."""

    def test_list_returns_newest_first(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n, "list": list(range(n))} for n in range(5)])
        found = list(rig.face.list(at()))
        assert [each.config for each in found] == configs[::-1]
        assert [each.parent_config for each in found] == [*configs[-2::-1], None]
        assert [values_of(each)["list"] for each in found] == [list(range(n)) for n in range(4, -1, -1)]

    def test_list_returns_the_same_tuples_as_get_tuple(self, rig: Rig) -> None:
        author = rig.author()
        for n in range(4):
            author.put({"list": [n] * n, "tree": {f"k{k}": ["v" * 30, n] for k in range(30)}}, extra=[n])
            rig.face.put_writes(author.config, [("list", n), (INTERRUPT, "ask")], f"task {n}", f"{9 - n}")
        for found in rig.face.list(at()):
            assert exact(found) == exact(rig.face.read(found.config))

    def test_listings_follow_the_order_of_puts_not_of_ids(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("m", "z", "a", "k"):
            author.put({}, checkpoint_id=checkpoint_id)
        assert [id_of(found) for found in rig.face.list(at())] == ["k", "a", "z", "m"]

    def test_list_filters_by_metadata(self, warm: Rig) -> None:
        author = warm.author()
        for name, metadata in METADATA.items():
            author.put({}, metadata={"name": name, **metadata})
        for wanted, names in FILTERS:
            found = [str(each.metadata.get("name")) for each in warm.face.list(at(), filter=wanted)]
            assert found == [name for name in reversed(METADATA) if name in names], wanted

    def test_a_filter_searches_past_many_mismatches(self, rig: Rig) -> None:
        author = rig.author()
        for n in range(70):
            author.put({"n": n}, metadata={"wanted": n in (3, 66)})
        found = rig.face.list(at(), filter={"wanted": True}, limit=2)
        assert [values_of(each)["n"] for each in found] == [66, 3]

    def test_before_is_exclusive(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(5)])
        found = rig.face.list(at(), before=configs[3])
        assert [each.config for each in found] == configs[2::-1]
        assert list(rig.face.list(at(), before=configs[0])) == []
        assert [each.config for each in rig.face.list(at(), before=configs[4], limit=1)] == [configs[3]]

    def test_before_compares_the_order_of_puts_not_of_ids(self, rig: Rig) -> None:
        author = rig.author()
        for checkpoint_id in ("5", "9", "1", "7"):
            author.put({}, checkpoint_id=checkpoint_id)
        found = rig.face.list(at(), before=at("t", "", "1"))
        assert [id_of(each) for each in found] == ["9", "5"]

    def test_before_may_name_a_checkpoint_of_the_parent_graph(self, rig: Rig) -> None:
        for checkpoint_id in ("1", "5", "9"):
            rig.author().put({}, checkpoint_id=checkpoint_id)
        author = rig.author("t", "sub")
        for checkpoint_id in ("2", "4", "6"):
            author.put({}, checkpoint_id=checkpoint_id)
        found = rig.face.list(at("t", "sub"), before=at("t", "", "5"))
        assert [id_of(each) for each in found] == ["4", "2"]
        assert [id_of(each) for each in rig.face.list(at("t", "sub"), before=at("t", "", "9"), limit=1)] == ["6"]

    def test_a_listing_respects_its_limit(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(3)])
        assert list(rig.face.list(at(), limit=0)) == []
        assert [each.config for each in rig.face.list(at(), limit=1)] == configs[:1:-1]
        assert [each.config for each in rig.face.list(at(), limit=9)] == configs[::-1]
        with pytest.raises(InvalidInput, match="limit"):
            list(rig.face.list(at(), limit=-1))

    def test_a_listing_without_a_namespace_includes_all_namespaces(self, rig: Rig) -> None:
        rig.author("t", "sub").put({"n": 0})
        rig.author().put({"n": 1})
        rig.author("t", "sub|deep").put({"n": 2})
        rig.author("other").put({"n": 3})
        assert [values_of(each)["n"] for each in rig.face.list(at("t", None))] == [2, 1, 0]
        assert [values_of(each)["n"] for each in rig.face.list(at("t", "sub"))] == [0]
        assert [values_of(each)["n"] for each in rig.face.list(at("t", ""))] == [1]

    def test_a_listing_without_a_config_has_all_threads_newest_id_first(self, rig: Rig) -> None:
        for n in range(70):
            rig.author(f"thread {n % 3}", f"ns {n % 2}").put({"n": n})
        assert [values_of(each)["n"] for each in rig.face.list(None)] == list(range(69, -1, -1))
        assert [values_of(each)["n"] for each in rig.face.list(None, limit=2)] == [69, 68]

    def test_equal_ids_in_all_threads_are_each_listed_once(self, rig: Rig) -> None:
        for n in range(LONG):
            rig.author(f"thread {n}").put({"n": n}, checkpoint_id=f"same {n % 2}")
        assert sorted(values_of(each)["n"] for each in rig.face.list(None)) == list(range(LONG))

    def test_list_returns_one_checkpoint_by_id(self, rig: Rig) -> None:
        configs = rig.author().follow([{"n": n} for n in range(3)])
        assert [each.config for each in rig.face.list(configs[1])] == [configs[1]]
        assert list(rig.face.list(at("t", "", "unknown"))) == []

    def test_a_long_history_is_listed_completely_and_in_order(self, rig: Rig) -> None:
        rig.author().follow([{"n": n, "list": [*range(n)]} for n in range(LONG)])
        found = [values_of(each) for each in rig.face.list(at())]
        assert found == [{"n": n, "list": [*range(n)]} for n in range(LONG - 1, -1, -1)]
        assert len(list(rig.face.list(at(), limit=LONG - 3))) == LONG - 3

    def test_an_unfinished_listing_blocks_no_put(self, rig: Rig) -> None:
        author = rig.author()
        author.follow([{"n": n} for n in range(60)])
        listing = rig.face.list(at())
        next(listing)
        listing.close()
        author.put({"n": 60})
        listing = rig.face.list(at())
        next(listing)
        author.put({"n": 61})
        assert values_of(rig.face.read(at())) == {"n": 61}
        listing.close()

    def test_a_listing_ignores_checkpoints_stored_after_its_start(self, warm: Rig) -> None:
        author = warm.author()
        author.follow([{"n": n} for n in range(LONG)])
        listing = warm.face.list(at())
        found = [values_of(next(listing))["n"] for _ in range(10)]
        author.put({"n": "meanwhile"})
        found += [values_of(each)["n"] for each in listing]
        assert found == list(range(LONG - 1, -1, -1))

    @pytest.mark.parametrize("config", [at(), None], ids=["one thread", "all threads"])
    def test_a_listing_continues_past_removed_checkpoints(self, warm: Rig, config: Any) -> None:
        author = warm.author()
        for n in range(LONG):
            # The removed checkpoint could be the end of a page of any size.
            author.put({"n": n}, metadata={"run_id": "gone" if n > LONG // 2 else "kept"})
        listing = warm.face.list(config)
        assert values_of(next(listing)) == {"n": LONG - 1}
        warm.face.delete_for_runs(["gone"])
        found = [values_of(each)["n"] for each in listing]
        assert [n for n in found if n <= LONG // 2] == list(range(LONG // 2, -1, -1))


class ValuesContract(RigFixtures):
    """Channel values over time."""

    @pytest.mark.parametrize("name", HISTORIES)
    def test_every_version_is_read_back(self, rig: Rig, name: str) -> None:
        versions = HISTORIES[name]
        author = rig.author()
        for version in versions:
            author.put({"channel": version, "other": "unchanged"})
            assert exact(values_of(rig.face.read(at()))["channel"]) == exact(version)
        listed = [values_of(found)["channel"] for found in rig.face.list(at())]
        assert exact(listed) == exact([*reversed(versions)])

    @pytest.mark.parametrize("change", IN_PLACE)
    def test_a_change_in_place_is_stored_by_the_next_put(self, rig: Rig, change: str) -> None:
        state: dict[str, Any] = {"list": chat(9), "tree": deepcopy(TREE), "pair": ([1], 2), "numbers": [1, 2]}
        author = rig.author()
        author.put(state)
        before = exact(deepcopy(state))
        IN_PLACE[change](state)
        author.put(state, channel_versions={"list": 1})
        found, first = rig.face.list(at())
        assert exact(values_of(found)) == exact(state)
        assert exact(values_of(first)) == before
        author.put({**state, "list": [*state["list"], *chat(1, 60)]})
        assert exact(values_of(rig.face.read(at()))["list"]) == exact([*state["list"], *chat(1, 60)])

    def test_an_emptied_channel_does_not_come_back(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": chat(3), "b": TREE, "c": 1}, channel_versions={"a": 1, "b": 1, "c": 1})
        author.put({"c": 1}, channel_versions={"a": 2, "b": 2, "c": 1})
        assert values_of(rig.face.read(at())) == {"c": 1}
        author.put({"a": chat(4)}, channel_versions={"a": 3, "b": 2, "c": 2})
        assert exact(values_of(rig.face.read(at()))) == exact({"a": chat(4)})

    def test_odd_channel_names(self, rig: Rig) -> None:
        names = ["", "it's", 'say "x"', "a.b", "a/b", "..", "\x00", "100%", "line\nbreak", "😀", f"{BRANCH_TO}x"]
        author = rig.author()
        for n in range(3):
            author.put({name: [*range(n), name * 70] for name in names})
        assert values_of(rig.face.read(at())) == {name: [0, 1, name * 70] for name in names}

    def test_forks_of_a_thread_keep_their_own_values(self, rig: Rig) -> None:
        trunk = rig.author()
        states = [{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(1, 50)]
        configs = trunk.follow(states)
        forks = [rig.continuing(at("t", "", configs[n]["configurable"]["checkpoint_id"])) for n in (10, 30)]
        for n in range(40):
            for name, fork in zip("xy", forks, strict=True):
                state = {"list": chat(11) + chat(n, 100 * ord(name)), "tree": {**TREE, name: n}}
                fork.put(state)
                states.append(state)
        listed = [values_of(found) for found in rig.face.list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_packing_by_savers_with_different_memos_loses_nothing(self, warm: Rig) -> None:
        """Savers that know different versions would pack the same items differently."""
        old = warm.author(face=warm.open())
        states = [chat(n) for n in range(1, 33)]
        old.follow([{"list": state} for state in states])
        states.append(chat(20, 13))
        warm.continuing(at(), warm.open()).put({"list": states[-1]})
        # This saver only knows the trimmed list, so its packed row starts in the middle of the other saver's.
        packing = warm.continuing(at(), warm.open())
        for n in range(34, 80):
            states.append(chat(n - 13, 13))
            packing.put({"list": states[-1]})
        old.config = at("t", "", "00000032")
        states.append(chat(32) + chat(1, 900))
        old.put({"list": states[-1]})
        listed = [values_of(found)["list"] for found in warm.open().list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_savers_take_turns_on_one_thread(self, warm: Rig) -> None:
        faces = [warm.open() for _ in range(3)]
        states = [{"list": chat(min(n, 40), max(0, n - 40)), "tree": {**TREE, "n": n}} for n in range(1, 70)]
        for n, state in enumerate(states):
            face = faces[n * n % 3]
            author = warm.continuing(at(), face) if n else warm.author(face=face)
            author.put(state)
        listed = [values_of(found) for found in warm.open().list(at())]
        assert exact(listed) == exact([*reversed(states)])

    def test_storage_grows_linearly_with_new_messages(self, warm: Rig) -> None:
        author = warm.author()
        sizes = [len(warm.backend.raw())]
        for hundred in (1, 2):
            author.follow([{"messages": chat(n)} for n in range(100 * hundred - 99, 100 * hundred + 1)])
            sizes.append(len(warm.backend.raw()))
        assert sizes[2] - sizes[1] < 1.5 * (sizes[1] - sizes[0])

    def test_a_small_change_of_a_large_dict_takes_few_bytes(self, warm: Rig) -> None:
        tree = {f"k{n}": {"n": n, "text": f"{n} " * 30} for n in range(500)}
        author = warm.author()
        author.put({"tree": tree})
        before = len(warm.backend.raw())
        for n in range(10):
            author.put({"tree": {**tree, "k77": {"n": n}}})
        assert len(warm.backend.raw()) - before < 10 * 2000

    def test_a_fork_takes_few_bytes(self, warm: Rig) -> None:
        configs = warm.author().follow([{"messages": chat(n)} for n in range(1, 200, 9)])
        before = len(warm.backend.raw())
        warm.continuing(configs[11]).put({"messages": chat(100)})
        assert len(warm.backend.raw()) - before < 5000


@dataclass
class Allowed:
    """A class of the program."""

    name: str


class Unknown:
    """A class that no serializer can store."""

    __slots__ = ("lock",)


class Failed(Exception):
    """An exception of the program whose constructor does not take `args`."""

    def __init__(self, why: str, *, code: int) -> None:
        super().__init__(f"failed: {why}")
        self.code = code


def local_value() -> Any:
    """Return an object of a class that other processes cannot find."""

    @dataclass
    class Local:
        a: int

    return Local(1)


class InputContract(RigFixtures):
    """Arguments of callers."""

    @pytest.mark.parametrize("name", ODD_IDS)
    def test_odd_ids_work_in_every_operation(self, warm: Rig, name: str) -> None:
        odd = ODD_IDS[name]
        config = warm.author(odd, odd).put({"a": [1]}, checkpoint_id=odd, metadata={"run_id": odd.replace("\x00", "")})
        warm.face.put_writes(config, [(odd, 1)], odd, odd)
        warm.author("other", odd).put({"a": [2]}, checkpoint_id=odd)
        for found in (warm.face.read(at(odd, odd)), *warm.face.list(at(odd, odd, odd))):
            assert (values_of(found), found.config) == ({"a": [1]}, at(odd, odd, odd))
            assert found.pending_writes == [(odd, odd, 1)]
        warm.face.copy_thread(odd, f"{odd} copy")
        warm.face.prune([odd])
        warm.face.delete_for_runs([odd.replace("\x00", "")])
        assert list(warm.face.list(at(odd, None))) == list(warm.face.list(at(f"{odd} copy", None))) == []
        warm.face.delete_thread(odd)
        assert [values_of(found) for found in warm.face.list(None)] == [{"a": [2]}]

    @pytest.mark.parametrize("pair", LOOKALIKES, ids=str)
    def test_ids_that_look_alike_are_different(self, warm: Rig, pair: tuple[str, str]) -> None:
        for thread in pair:
            for ns in pair:
                warm.author(thread, ns).put({"where": [thread, ns]}, checkpoint_id=pair[0])
                warm.author(thread, ns).put({"where": [ns, thread]}, checkpoint_id=pair[1])
        for thread in pair:
            for ns in pair:
                assert values_of(warm.face.read(at(thread, ns, pair[0]))) == {"where": [thread, ns]}
                assert values_of(warm.face.read(at(thread, ns, pair[1]))) == {"where": [ns, thread]}
        warm.face.delete_thread(pair[0])
        assert len(list(warm.face.list(at(pair[1], None)))) == 4

    @pytest.mark.parametrize("name", BAD_IDS)
    def test_bad_ids_are_refused(self, warm: Rig, name: str) -> None:
        bad = BAD_IDS[name]
        for config in (at(bad), at("t", bad), at("t", "", bad)):
            with pytest.raises(InvalidConfig):
                warm.face.put(config, checkpoint_of("c1", {}))
            with pytest.raises(InvalidConfig):
                warm.face.get_tuple(config)
            with pytest.raises(InvalidConfig):
                list(warm.face.list(config))
            with pytest.raises(InvalidConfig):
                warm.face.put_writes({"configurable": {"checkpoint_id": "c", **config["configurable"]}}, [], "task")
        assert list(warm.face.list(None)) == []

    @pytest.mark.parametrize("name", BAD_IDS)
    def test_bad_ids_outside_the_config_are_refused(self, warm: Rig, name: str) -> None:
        bad = BAD_IDS[name]
        config = warm.author().put({"a": 1})
        calls: list[Callable[[], object]] = [
            lambda: warm.face.put(at(), checkpoint_of(bad, {})),
            lambda: warm.face.put_writes(config, [("a", 1)], bad),
            lambda: warm.face.put_writes(config, [("a", 1)], "task", bad),
            lambda: list(warm.face.list(at(), before=at("t", "", bad))),
            lambda: warm.face.delete_thread(bad),
            lambda: warm.face.delete_for_runs([bad]),
            lambda: warm.face.copy_thread("t", bad),
            lambda: warm.face.prune([bad]),
        ]
        for call in calls:
            with pytest.raises(InvalidInput):
                call()
        (found,) = warm.face.list(None)
        assert (values_of(found), found.pending_writes) == ({"a": 1}, [])

    def test_a_lone_surrogate_in_a_checkpoint_is_stored_or_refused(self, warm: Rig) -> None:
        lone = "lone \ud800"
        warm.author().put({"a": 1})
        attempts: list[dict[str, Any]] = [
            {"values": {lone: [1]}},
            {"values": {}, "metadata": {"run_id": lone}},
            {"values": {}, "metadata": {lone: 1}},
            {"values": {}, "ts": lone},
            {"values": {"a": lone}},
            {"values": {"a": [lone, {lone: lone}]}},
        ]
        for attempt in attempts:
            before = warm.face.read(at())
            author = warm.continuing(at())
            try:
                author.put(attempt.pop("values"), **attempt)
            except (InvalidInput, UnstorableValue):
                assert exact(warm.face.read(at())) == exact(before)
            else:
                assert id_of(warm.face.read(at())) == id_of(author.config)

    def test_configs_without_a_thread_are_refused(self, warm: Rig) -> None:
        without = {"configurable": {"thread_id": None}}
        configs: list[Any] = [{}, {"configurable": {}}, without, at(""), {"configurable": 1}]
        for config in configs:
            for call in (warm.face.get_tuple, lambda config: list(warm.face.list(config))):
                with pytest.raises(InvalidConfig):
                    call(config)
            with pytest.raises(InvalidConfig):
                warm.face.put(config, checkpoint_of("c1", {}))
        assert list(warm.face.list(None)) == []

    def test_an_int_is_accepted_as_a_thread_id(self, rig: Rig) -> None:
        config = rig.author(7).put({"a": 1})
        assert config["configurable"]["thread_id"] == "7"
        assert rig.face.read(at("7")).config == rig.face.read(at(7)).config == config

    def test_a_checkpoint_needs_an_id(self, rig: Rig) -> None:
        for missing in (None, "", 1):
            with pytest.raises(InvalidInput, match="id"):
                rig.face.put(at(), {**checkpoint_of("c", {}), "id": missing})
        assert list(rig.face.list(None)) == []

    @pytest.mark.parametrize("size", [1, 400])
    def test_an_unstorable_value_is_refused_by_name(self, rig: Rig, size: int) -> None:
        good: dict[str, Any] = {"list": list(range(size))}
        config = rig.author().put(good)
        before = rig.backend.raw()
        states: list[dict[str, Any]] = [{**good, "mine": Unknown()}, {"list": [*good["list"], {"deep": Unknown()}]}]
        for state, channel in zip(states, ["mine", "list"], strict=True):
            with pytest.raises(UnstorableValue, match=rf"thread 't'.*'{channel}'.*Unknown"):
                rig.continuing(at()).put(state)
        with pytest.raises(UnstorableValue, match=r"thread 't'.*task 1.*mine.*Unknown"):
            rig.face.put_writes(config, [("mine", Unknown())], "task 1")
        with pytest.raises(UnstorableValue, match=r"thread 't'.*metadata.*Unknown"):
            rig.continuing(at()).put(good, metadata={"mine": Unknown()})
        assert rig.backend.raw() == before
        rig.continuing(at()).put({"list": [*good["list"], "next"]})
        assert values_of(rig.face.read(at())) == {"list": [*good["list"], "next"]}

    def test_local_classes_and_secrets_are_refused_by_name(self, rig: Rig) -> None:
        config = rig.author().put({"mine": 1})
        before = rig.backend.raw()
        for value, named in ((local_value(), "local_value.<locals>.Local"), (SecretStr("s"), "SecretStr")):
            with pytest.raises(UnstorableValue, match=rf"thread 't'.*'mine'.*{named}"):
                rig.continuing(at()).put({"mine": {"deep": [value]}})
            with pytest.raises(UnstorableValue, match=rf"thread 't'.*task 1.*mine.*{named}"):
                rig.face.put_writes(config, [("mine", value)], "task 1")
        assert rig.backend.raw() == before

    def test_exceptions_are_restored_with_type_and_attributes(self, warm: Rig) -> None:
        errors = {"built in": [KeyError("x"), OSError(2, "gone", "a file")], "own": Failed("late", code=3)}
        warm.author().follow([{"errors": {}}, {"errors": errors}])
        found = values_of(warm.face.read(at()))["errors"]
        of_key, of_file = found["built in"]
        assert (type(of_key), of_key.args) == (KeyError, ("x",))
        assert (type(of_file), of_file.args, of_file.filename) == (FileNotFoundError, (2, "gone"), "a file")
        assert (type(found["own"]), found["own"].args, found["own"].code) == (Failed, ("failed: late",), 3)

    def test_the_error_of_a_failed_task_is_stored_as_text(self, rig: Rig) -> None:
        config = rig.author().put({"a": 1})
        rig.face.put_writes(config, [(ERROR, Failed("late", code=3))], "task 1")
        assert rig.face.read(at()).pending_writes == [("task 1", ERROR, "Failed('failed: late')")]

    def test_max_bytes_limits_the_size_of_a_value_in_memory(self, rig: Rig) -> None:
        large: dict[str, Any] = {"large": tuple([] for _ in range(500_000))}
        bounded = {"serde": KeelSerializer(max_bytes=1 << 26)}
        config = rig.author().put(large)
        with pytest.raises(CorruptStore, match=r"thread 't'.*'large'.*larger in memory"):
            rig.open(**bounded).get_tuple(at())
        assert len(values_of(rig.face.read(at()))["large"]) == 500_000
        before = rig.backend.raw()
        with pytest.raises(UnstorableValue, match="larger in memory"):
            rig.open(**bounded).put(at("u"), checkpoint_of("c1", large))
        with pytest.raises(UnstorableValue, match="larger in memory"):
            rig.open(**bounded).put_writes(config, [("large", large)], "task 1")
        assert rig.backend.raw() == before

    def test_a_type_that_is_not_allowed_is_refused_on_reading(self, warm: Rig) -> None:
        warm.author().follow([{"mine": 1}, {"mine": Allowed("x")}])
        narrow = warm.open(types=())
        with pytest.raises(RefusedType, match=r"thread 't'.*'mine'.*Allowed"):
            narrow.get_tuple(at())
        assert values_of(narrow.read(at("t", "", "00000001"))) == {"mine": 1}
        assert values_of(warm.face.read(at())) == {"mine": Allowed("x")}
