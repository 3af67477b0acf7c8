"""Lists are proved unchanged block by block.

Every change is found, and an unchanged block costs nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from support.tiers import examples
from test_trees import Log

from langgraph_keel.engine.encoding.bodies import PACK, body_of, rows_in
from langgraph_keel.engine.encoding.values import BLOCK, Unpacker
from langgraph_keel.engine.records import Kind, Ref, Row
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer
from langgraph_keel.errors import CorruptStore
from langgraph_keel.testing.rig import exact

SERDE = KeelSerializer()
LENGTH = 3 * BLOCK + 5
PLACES = [0, BLOCK - 1, BLOCK, 2 * BLOCK + 3, LENGTH - 1]


def chat() -> list[Any]:
    return [(AIMessage if place % 2 else HumanMessage)(f"message {place}", id=str(place)) for place in range(LENGTH)]


IN_PLACE: dict[str, Callable[[Any], object]] = {
    "content": lambda message: setattr(message, "content", "changed"),
    "a key beside": lambda message: message.additional_kwargs.update(seen=True),
    "true for one": lambda message: message.additional_kwargs.update(seen=1),
    "no content set": lambda message: message.__pydantic_fields_set__.discard("content"),
    "an attribute of its own": lambda message: message.__pydantic_extra__.update(note="new"),
    "bytes": lambda message: message.additional_kwargs.update(raw=b"same"),
    "a bytearray": lambda message: message.additional_kwargs.update(raw=bytearray(b"same")),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_message_changed_in_place_is_found(place: int) -> None:
    value = chat()
    log = Log(value)
    assert log.put(copy.deepcopy(value)) == 0
    for name, change in IN_PLACE.items():
        change(value[place])
        assert log.put(value) > 0, name
        assert exact(log.read()) == exact(value), name
        assert log.put(copy.deepcopy(value)) == 0, name


@given(data=st.data())
@settings(max_examples=examples(100))
def test_every_version_of_a_long_list_is_read_back(data: st.DataObject) -> None:
    value: list[Any] = [*range(LENGTH)]
    log = Log(value)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(value)))
        verb = data.draw(st.sampled_from(["append", "set", "insert", "cut", "trim", "again", "move"]))
        new = data.draw(st.sampled_from([1, 1.0, True, -0.0, b"x", bytearray(b"x"), "x", [b"x"], [bytearray(b"x")]]))
        if verb == "append":
            value += [new] * data.draw(st.integers(1, 2 * BLOCK))
        elif verb == "set" and at < len(value):
            value[at] = new
        elif verb == "insert":
            value.insert(at, new)
        elif verb == "cut":
            del value[at : at + data.draw(st.integers(0, BLOCK))]
        elif verb == "trim":
            del value[:at]
        elif verb == "again":
            value += value[at : at + 3]
        elif verb == "move" and value:
            value.append(value.pop(at % len(value)))
        log.put(value)
        assert exact(log.read()) == exact(value)


@given(data=st.data())
@settings(max_examples=examples(200))
def test_rows_return_the_items_of_any_runs(data: st.DataObject) -> None:
    rows: list[Row] = []
    for count in data.draw(st.lists(st.sampled_from([1, 2, 4, PACK + 1]), min_size=1, max_size=5)):
        at = rows[-1].lo + rows[-1].count if rows else data.draw(st.integers(0, 2))
        rows.append(Row(at, count, body_of([SERDE.pack_item(at + nth) for nth in range(count)])))
    first, last = rows[0].lo, rows[-1].lo + rows[-1].count
    starts = st.integers(first, last - 1)
    runs = [(lo, data.draw(st.integers(lo + 1, last))) for lo in data.draw(st.lists(starts, min_size=1, max_size=3))]
    whole = data.draw(st.sampled_from([runs, [(first, last)]]))
    numbers = [number for lo, hi in whole for number in range(lo, hi)]
    assert Unpacker(Codec(SERDE)).items(whole, rows) == numbers
    used = [row for row in rows if not {*range(row.lo, row.lo + row.count)}.isdisjoint(numbers)]
    if whole == sorted(whole):
        assert [*rows_in(rows, whole)] == used
    gone = data.draw(st.sampled_from(used))
    with pytest.raises(CorruptStore, match="missing"):
        Unpacker(Codec(SERDE)).items(whole, [row for row in rows if row is not gone])


@pytest.mark.parametrize("kind", [Kind.WHOLE, Kind.TREE])
def test_a_value_without_items_raises_corrupt_store(kind: Kind) -> None:
    """Damaged refs may contain no runs (seen on PostgreSQL: an array of owners)."""
    with pytest.raises(CorruptStore, match="no items"):
        Unpacker(Codec(KeelSerializer())).value(Ref(kind), [])
