"""Pending writes: what one task has produced, whenever it arrives and however often it is repeated."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel.errors import InvalidConfig
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact


def writes_of(found: CheckpointTuple) -> list[tuple[str, str, Any]]:
    """Return the pending writes of a tuple."""
    return list(found.pending_writes or ())


class WritesContract(RigFixtures):
    """`put_writes`."""

    def test_writes_come_back_in_the_order_langgraph_applies_them(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("b", 1), ("a", 2)], "task 2", "~1")
        rig.face.put_writes(config, [("c", 3)], "task 9", "~0")
        rig.face.put_writes(config, [("d", 4), ("e", 5), ("f", 6)], "task 1", "~1")
        rig.face.put_writes(config, [("g", 7)], "task 0", "~2")
        assert writes_of(rig.face.read(config)) == [
            ("task 9", "c", 3),
            ("task 1", "d", 4),
            ("task 1", "e", 5),
            ("task 1", "f", 6),
            ("task 2", "b", 1),
            ("task 2", "a", 2),
            ("task 0", "g", 7),
        ]

    def test_ten_writes_of_a_task_keep_their_order(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("list", n) for n in range(12)], "task")
        assert [value for _, _, value in writes_of(rig.face.read(config))] == list(range(12))

    def test_written_values_come_back_as_they_were(self, rig: Rig) -> None:
        config = rig.author().put({})
        values = [None, (1, 2), {"a": b"x"}, AIMessage("hello", id="m"), "z" * 5000, [True, 1, 1.0]]
        rig.face.put_writes(config, [("channel", value) for value in values], "task")
        assert exact([value for _, _, value in writes_of(rig.face.read(config))]) == exact(values)

    def test_a_call_without_writes_writes_nothing(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [], "task")
        assert writes_of(rig.face.read(config)) == []

    def test_a_repeated_regular_write_is_kept_as_it_was(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("a", "first")], "task")
        rig.face.put_writes(config, [("a", "second"), ("b", "more")], "task")
        assert writes_of(rig.face.read(config)) == [("task", "a", "first"), ("task", "b", "more")]

    @pytest.mark.parametrize("channel", ["__error__", "__scheduled__", "__interrupt__", "__resume__"])
    def test_a_repeated_special_write_is_replaced(self, rig: Rig, channel: str) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [(channel, "first")], "task")
        rig.face.put_writes(config, [("a", 1)], "task")
        rig.face.put_writes(config, [(channel, "second")], "task")
        assert writes_of(rig.face.read(config)) == [("task", channel, "second"), ("task", "a", 1)]

    def test_of_several_resumes_in_one_call_the_last_counts(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("__resume__", "one"), ("__resume__", "two")], "task")
        assert writes_of(rig.face.read(config)) == [("task", "__resume__", "two")]

    def test_one_call_may_mix_special_and_regular_writes(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("a", 1), ("__interrupt__", "ask"), ("b", 2)], "task")
        rig.face.put_writes(config, [("a", 9), ("__interrupt__", "ask again"), ("b", 9)], "task")
        assert writes_of(rig.face.read(config)) == [
            ("task", "__interrupt__", "ask again"),
            ("task", "a", 1),
            ("task", "b", 2),
        ]

    def test_channels_without_a_place_of_their_own_are_regular(self, rig: Rig) -> None:
        config = rig.author().put({})
        rig.face.put_writes(config, [("__error_source_node__", "node"), ("__error__", "boom")], "task")
        rig.face.put_writes(config, [("__error_source_node__", "other")], "task")
        found = writes_of(rig.face.read(config))
        assert found == [("task", "__error__", "boom"), ("task", "__error_source_node__", "node")]

    def test_writes_may_come_before_their_checkpoint(self, rig: Rig) -> None:
        rig.face.put_writes(at("t", "", "c1"), [("a", 1)], "task 2", "~2")
        assert rig.face.get_tuple(at("t", "", "c1")) is None
        assert rig.face.get_tuple(at()) is None
        assert list(rig.face.list(at())) == []
        rig.face.put_writes(at("t", "", "c1"), [("a", 2)], "task 1", "~1")
        rig.face.put(at(), checkpoint_of("c1", {"a": 0}))
        assert writes_of(rig.face.read(at())) == [("task 1", "a", 2), ("task 2", "a", 1)]

    def test_writes_may_come_long_after_their_checkpoint(self, rig: Rig) -> None:
        first, second, _ = rig.author().follow([{"a": 1}, {"a": 2}, {"a": 3}])
        rig.face.put_writes(first, [("a", "late")], "task")
        assert writes_of(rig.face.read(first)) == [("task", "a", "late")]
        assert writes_of(rig.face.read(second)) == []
        assert [writes_of(found) for found in rig.face.list(at())] == [[], [], [("task", "a", "late")]]

    def test_putting_the_checkpoint_again_keeps_its_writes(self, rig: Rig) -> None:
        author = rig.author()
        author.put({"a": [1]})
        config = author.put({"a": [1, 2]})
        rig.face.put_writes(config, [("a", 1)], "task")
        rig.face.put(rig.face.read(config).parent_config or at(), checkpoint_of("00000002", {"a": [1, 2]}))
        assert writes_of(rig.face.read(config)) == [("task", "a", 1)]
        assert writes_of(rig.face.read(at())) == [("task", "a", 1)]

    def test_writes_belong_to_one_checkpoint_of_one_namespace(self, rig: Rig) -> None:
        for thread, ns in [("t", ""), ("t", "sub"), ("u", "")]:
            rig.author(thread, ns).put({}, checkpoint_id="same")
            rig.face.put_writes(at(thread, ns, "same"), [("where", [thread, ns])], "task")
        assert writes_of(rig.face.read(at("t", "sub"))) == [("task", "where", ["t", "sub"])]
        assert writes_of(rig.face.read(at("u"))) == [("task", "where", ["u", ""])]

    def test_writes_need_a_checkpoint(self, rig: Rig) -> None:
        with pytest.raises(InvalidConfig, match="checkpoint_id"):
            rig.face.put_writes(at(), [("a", 1)], "task")

    def test_changing_a_written_value_afterwards_changes_nothing(self, rig: Rig) -> None:
        config = rig.author().put({})
        value = {"parts": [1]}
        rig.face.put_writes(config, [("a", value)], "task")
        value["parts"].append(2)
        assert writes_of(rig.face.read(config)) == [("task", "a", {"parts": [1]})]
