"""Differences: what changed between two checkpoints, found without reading what did not."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from langgraph_keel.errors import NotFound
from langgraph_keel.testing.contract_delta import ten_steps
from langgraph_keel.testing.contract_travel import MEMORY, state, with_memory
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of

Told = list[tuple[str, tuple[Any, ...], Any]]


def told(rig: Rig, before: RunnableConfig, after: RunnableConfig) -> Told:
    """Return the edits between two checkpoints: what kind, where, and what stands there now (of a removal, stood)."""
    found = rig.face.diff(before, after)
    return [
        (edit.kind, edit.path, exact(edit.before if edit.kind == "removed" else edit.after)) for edit in found.edits
    ]


class DiffContract(RigFixtures):
    """`diff`."""

    def test_only_what_changed_is_told(self, rig: Rig) -> None:
        first, second = rig.author().follow([state(3), state(5)])
        added = [("added", ("list", n), exact(chat(5)[n])) for n in (3, 4)]
        assert told(rig, first, second) == [*added, ("changed", ("tree", "n"), exact(5)), ("changed", ("n",), exact(5))]
        assert told(rig, first, first) == []
        removed = [("removed", ("list", n), exact(chat(5)[n])) for n in (3, 4)]
        assert told(rig, second, first) == [
            *removed, ("changed", ("tree", "n"), exact(3)), ("changed", ("n",), exact(3)),
        ]  # fmt: skip

    @pytest.mark.parametrize("places", [(0, 69), (30, 31), (40, 20)], ids=str)
    def test_of_a_long_thread_whose_rows_were_packed(self, rig: Rig, places: tuple[int, int]) -> None:
        configs = rig.author().follow([{"list": chat(n + 1), "tree": TREE} for n in range(70)])
        lo, hi = (configs[place] for place in places)
        kind = "added" if places[0] < places[1] else "removed"
        between = range(min(places) + 1, max(places) + 1)
        assert told(rig, lo, hi) == [(kind, ("list", n), exact(chat(70)[n])) for n in between]

    def test_in_the_middle_of_a_list(self, rig: Rig) -> None:
        messages = chat(40)
        edited = [*messages[:7], *messages[8:20], *chat(1, 100), *messages[20:]]
        first, second = rig.author().follow([{"list": messages}, {"list": edited}])
        assert told(rig, first, second) == [
            ("removed", ("list", 7), exact(messages[7])),
            ("added", ("list", 19), exact(chat(1, 100)[0])),
        ]

    def test_channels_that_come_and_go(self, rig: Rig) -> None:
        first, second = rig.author().follow([{"a": 1, "b": [1], "c": {"x"}}, {"b": [], "c": {"x"}, "d": None}])
        assert told(rig, first, second) == [
            ("removed", ("a",), exact(1)),
            ("removed", ("b", 0), exact(1)),
            ("added", ("d",), exact(None)),
        ]

    def test_pending_writes_and_questions_are_no_change(self, rig: Rig) -> None:
        first, second = rig.author().follow([state(2), state(3)])
        expected = told(rig, first, second)
        rig.face.put_writes(first, [("list", "early"), ("__interrupt__", "may I?")], "task", "~1")
        assert told(rig, first, second) == expected

    def test_between_branches_and_to_a_twin(self, rig: Rig) -> None:
        configs = rig.author().follow([state(n) for n in range(1, 6)])
        branch = rig.continuing(configs[1]).put({**state(2), "n": "branch"})
        assert told(rig, configs[1], branch) == [("changed", ("n",), exact("branch"))]
        rig.face.rewind(configs[2])
        assert told(rig, configs[2], at()) == []
        assert told(rig, at(), configs[3]) == told(rig, configs[2], configs[3])

    def test_between_threads(self, rig: Rig) -> None:
        [first] = rig.author().follow([state(3)])
        [other] = rig.author("other").follow([{**state(3), "list": [*chat(3), *chat(1, 9)]}])
        assert told(rig, first, other) == [("added", ("list", 3), exact(chat(1, 9)[0]))]
        rig.face.fork(first, "fork")
        assert told(rig, first, at("fork")) == []

    def test_in_subgraphs(self, rig: Rig) -> None:
        with_memory(rig)
        found = [each.config for each in rig.face.list(at("t", MEMORY))]
        assert len(found) == 4
        assert told(rig, found[1], found[0]) == [("changed", ("seen", 2), exact("b"))]

    def test_delta_channels_are_no_edits(self, rig: Rig) -> None:
        configs = ten_steps(rig)  # with a snapshot in the third, which is no change of its own
        assert told(rig, configs[1], configs[2]) == [("changed", ("plain",), exact(2))]
        assert told(rig, configs[2], configs[3]) == [("changed", ("plain",), exact(3))]

    def test_what_is_not_there(self, rig: Rig) -> None:
        [first] = rig.author().follow([state(1)])
        for missing in (at("t", "", "nothing"), at("nobody"), at("t", "sub", id_of(first))):
            with pytest.raises(NotFound):
                rig.face.diff(first, missing)
            with pytest.raises(NotFound):
                rig.face.diff(missing, first)
