"""Changes between two checkpoints equal those of their values, with fewer reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from support.checkpoints import checkpoint_of, config_for
from support.history.states import stored
from support.savers import SAVERS, needing
from support.tiers import examples
from typing_extensions import TypedDict

from langgraph_keel import KeelSaver, MemorySaver, NotFound
from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.config import address_of
from langgraph_keel.engine.plan import Plan, StorePlan
from langgraph_keel.engine.records import Entry, Found
from langgraph_keel.engine.serde.serializer import Codec, encode
from langgraph_keel.history.diff import StateDiff, diff_checkpoints
from langgraph_keel.history.edits import edits

NUMBERS = count()


def changed(messages: list[BaseMessage], moves: Sequence[tuple[str, int]], is_named: bool) -> list[BaseMessage]:
    """Add, edit, remove or move messages that are all different."""
    result = list(messages)
    for kind, place in moves:
        at = place % (len(result) + 1)
        if kind == "add":
            name = f"new {next(NUMBERS)}"
            result.insert(at, AIMessage(name, id=name if is_named else None))
        elif at < len(result) and kind == "edit":
            result[at] = result[at].model_copy(update={"content": f"edited {next(NUMBERS)}"})
        elif at < len(result):
            taken = result.pop(at)
            result += [taken] if kind == "move" else []
    return result


MOVES = st.lists(st.tuples(st.sampled_from(["add", "edit", "remove", "move"]), st.integers(0, 40)), max_size=6)


@given(MOVES, MOVES, st.booleans())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_diff_equals_a_comparison_of_the_values(
    first: Sequence[tuple[str, int]], second: Sequence[tuple[str, int]], is_named: bool
) -> None:
    begun: list[BaseMessage] = [HumanMessage(str(n), id=str(n) if is_named else None) for n in range(40)]
    versions = [{"messages": begun}]
    for moves in (first, second):
        versions.append({"messages": changed(versions[-1]["messages"], moves, is_named)})
    with MemorySaver() as saver:
        configs = stored(saver, versions)
        for a, b in ((0, 1), (1, 2), (0, 2), (2, 0)):
            expected = list(edits(versions[a], versions[b], encode))
            found = saver.diff(configs[a], configs[b])
            assert [(e.kind, e.path, repr(e.before), repr(e.after)) for e in found.edits] == [
                (e.kind, e.path, repr(e.before), repr(e.after)) for e in expected
            ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_diff_may_match_any_of_several_equal_messages_without_ids(place: int) -> None:
    """The store numbers messages, and may match any of several equal ones."""
    begun: list[BaseMessage] = [HumanMessage(text) for text in ("so", "so", "so", "end")]
    after: list[BaseMessage] = [*begun[:place], HumanMessage("edited"), *begun[place + 1 :]]
    with MemorySaver() as saver:
        configs = stored(saver, [{"messages": each} for each in (begun[:1], begun, after)])
        patch = jsonpatch.JsonPatch(saver.diff(configs[1], configs[2]).to_patch())
    assert patch.apply(as_json({"messages": begun})) == as_json({"messages": after})


def test_unchanged_items_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[BaseMessage] = [HumanMessage(f"message {n} " * 20, id=str(n)) for n in range(1000)]
    after = [
        *begun[:500],
        begun[500].model_copy(update={"content": "edited"}),
        *begun[501:],
        AIMessage("new", id="new"),
    ]
    decoded: list[int] = []
    unpack: Callable[..., list[Any]] = Codec.unpack_items

    def counted(self: Codec, data: bytes) -> list[Any]:
        items = unpack(self, data)
        decoded.append(len(items))
        return items

    with MemorySaver() as saver:
        a, b = stored(
            saver, [{"messages": begun, "n": 1, "big": "x" * 9999}, {"messages": after, "n": 2, "big": "x" * 9999}]
        )
        monkeypatch.setattr(Codec, "unpack_items", counted)
        found = saver.diff(a, b)
    assert [(edit.kind, edit.path) for edit in found.edits] == [
        ("changed", ("messages", 500, "content")),
        ("added", ("messages", 1000)),
        ("changed", ("n",)),
    ]
    assert found.channels == ["messages", "n"]
    assert sum(decoded) < 120


def test_unchanged_channels_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel with the same version in both checkpoints is not requested."""
    asked: list[list[list[str]]] = []
    read = MemoryStore.read_values

    def watched(self: MemoryStore, entries: Sequence[Entry]) -> StorePlan[Any, Any, Sequence[Found]]:
        asked.append([list(entry.refs) for entry in entries])
        return read(self, entries)

    monkeypatch.setattr(MemoryStore, "read_values", watched)
    with MemorySaver() as saver:
        a, b = stored(saver, [{"n": "x" * 99, "big": "y" * 9999}, {"n": "z" * 99, "big": "y" * 9999}])
        assert saver.diff(a, b).channels == ["n"]
    assert asked == [[["n"], ["n"]]]


def counted(plan: Plan[StateDiff], seen: list[Any]) -> Plan[StateDiff]:
    """Run a plan, and count its trips."""
    request = next(plan)
    while True:
        seen.append(request)
        try:
            request = plan.send((yield request))
        except StopIteration as end:
            found: StateDiff = end.value
            return found


@pytest.mark.parametrize(("changed", "trips"), [({"n": 2}, 2), ({"big": "y" * 99}, 3)], ids=["small", "large"])
def test_a_diff_takes_two_or_three_trips(changed: dict[str, Any], trips: int) -> None:
    begun = {"n": 1, "big": "x" * 99}
    with MemorySaver() as saver:
        places = map(address_of, stored(saver, [begun, begun | changed]))
        seen: list[Any] = []
        assert saver.engine.run(counted(diff_checkpoints(saver.engine.session, *places), seen)).channels == list(
            changed
        )
    assert len(seen) == trips


def interrupted(saver: KeelSaver, places: Sequence[Any], meanwhile: Callable[[], object]) -> Any:
    """Compare two checkpoints; call `meanwhile` between reading headers and values."""
    plan = diff_checkpoints(saver.engine.session, *map(address_of, places))

    def late() -> Plan[StateDiff]:
        reply = yield next(plan)
        reply = yield plan.send(reply)
        last = plan.send(reply)
        meanwhile()
        while True:
            try:
                last = plan.send((yield last))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    return saver.engine.run(late())


def test_a_diff_of_a_concurrently_deleted_thread_raises_not_found() -> None:
    with MemorySaver() as saver:
        places = stored(saver, [{"n": "x" * 99}, {"n": "y" * 99}])
        with pytest.raises(NotFound, match="there is no such checkpoint"):
            interrupted(saver, places, lambda: saver.delete_thread("t"))


def test_a_diff_sees_a_checkpoint_that_is_replaced_concurrently() -> None:
    versions = [{"n": "x" * 99}, {"n": "y" * 99}]
    with MemorySaver() as saver:
        places = stored(saver, versions)
        found = interrupted(saver, places, lambda: stored(saver, [versions[0], {"n": "z" * 99}]))
        assert [edit.after for edit in found] == ["z" * 99]


@pytest.mark.parametrize("name", SAVERS)
def test_diffs_are_equal_on_every_backend_and_both_faces(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needing(name, request)
    begun: list[BaseMessage] = [HumanMessage(f"message {n}", id=str(n)) for n in range(300)]
    edited = begun[200].model_copy(update={"content": "edited"})
    after = [*begun[:100], *begun[101:200], edited, *begun[201:], AIMessage("new", id="new")]
    with SAVERS[name](tmp_path) as opened:
        saver: Any = opened
        a, b = stored(saver, [{"messages": begun, "n": 1}, {"messages": after, "n": 1}])
        found = saver.diff(a, b)
        assert [(edit.kind, edit.path) for edit in found] == [
            ("removed", ("messages", 100)),
            ("changed", ("messages", 199, "content")),
            ("added", ("messages", 299)),
        ]
        assert saver.diff(a, config_for("t")).plain() == found.plain()  # the latest
        assert asyncio.run(saver.adiff(a, b)).plain() == found.plain()
        assert not saver.diff(b, b)


def test_a_diff_between_threads_compares_values() -> None:
    """There, the same numbers belong to other messages."""
    with MemorySaver() as saver:
        (a,) = stored(saver, [{"messages": [HumanMessage("a", id="1")]}])
        (b,) = stored(saver, [{"messages": [HumanMessage("b", id="1")]}], "u")
        assert [edit.path for edit in saver.diff(a, b).edits] == [("messages", 0, "content")]
        saver.copy_thread("t", "v")
        assert saver.diff(a, config_for("v")).edits == []


def test_a_diff_between_branches() -> None:
    with MemorySaver(on_conflict="fork") as saver:
        trunk = stored(saver, [{"said": ["a"]}, {"said": ["a", "b"]}])
        checkpoint = checkpoint_of("0001b", {"said": ["a", "c"]})
        branch = saver.put(trunk[0], checkpoint, {"source": "update", "step": 1, "parents": {}}, {})
        assert [(edit.path, edit.before, edit.after) for edit in saver.diff(trunk[1], branch)] == [
            (("said", 1), "b", "c")
        ]


class DeltaState(TypedDict):
    log: Annotated[list[str], DeltaChannel(lambda state, writes: state + [each for one in writes for each in one])]
    turn: int


def test_a_diff_names_delta_channels_that_were_written() -> None:
    """Not every checkpoint has their values, so a missing value is not an edit."""
    graph = StateGraph(DeltaState)
    graph.add_node("say", lambda state: {"log": ["x"], "turn": 1})
    graph.add_edge(START, "say")
    config: Any = {"configurable": {"thread_id": "t"}}
    with MemorySaver() as saver:
        compiled: Any = graph.compile(checkpointer=saver)
        for _ in range(2):
            compiled.invoke({"log": ["hi"]}, config, durability="sync")
        first, *_, last = [found.config for found in saver.list(config)][::-1]
        found = saver.diff(first, last)
        assert (found.deltas, "log" in {edit.path[0] for edit in found}) == (["log"], False)
        assert "log: written between the two" in str(found)
        assert saver.diff(last, last).deltas == []


def test_a_diff_of_a_delta_channel_with_one_snapshot_has_no_edits() -> None:
    with MemorySaver() as saver:
        whole, delta = checkpoint_of("0", {"log": _DeltaSnapshot(["a"])}), checkpoint_of("1", {})
        whole["channel_versions"], delta["channel_versions"] = {"log": 1}, {"log": 2}
        a = saver.put(config_for("t"), whole, {"source": "loop", "step": 0, "parents": {}}, {})
        metadata: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"log": (1, 1)}}
        b = saver.put(a, delta, metadata, {})
        for first, last in ((a, b), (b, a)):
            found = saver.diff(first, last)
            assert (found.edits, found.deltas, bool(found)) == ([], ["log"], True)


def test_a_diff_with_a_missing_checkpoint_raises_not_found() -> None:
    with MemorySaver() as saver:
        (a,) = stored(saver, [{"n": 1}])
        with pytest.raises(NotFound, match="there is no such checkpoint"):
            saver.diff(a, config_for("u"))
        with pytest.raises(NotFound, match="checkpoint 0007"):
            saver.diff(config_for("t", "0007"), a)
