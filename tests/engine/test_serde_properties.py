"""Random values and random bytes for the serializer."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine.messages import messages
from support.engine.samples import (
    VALUES,
    assert_same,
)
from support.engine.values import values
from support.tiers import examples

from langgraph_keel.engine.encoding.bodies import array_header, body_of
from langgraph_keel.engine.serde.serializer import Codec, KeelSerializer, encode
from langgraph_keel.errors import CorruptStore, RefusedType

KEEL = KeelSerializer()


@settings(max_examples=examples(300), deadline=None)
@given(values)
def test_random_values_are_restored_unchanged(value: Any) -> None:
    packed = KEEL.pack(value)
    back = KEEL.unpack(packed)
    assert_same(back, value)
    assert KEEL.pack(value) == packed
    assert_same(KEEL.unpack_items(array_header(1) + KEEL.pack_item(value))[0], value)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(values, max_size=4))
def test_the_encoding_of_a_list_joins_those_of_its_elements(parts: list[Any]) -> None:
    assert encode(parts) == array_header(len(parts)) + b"".join(map(encode, parts))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(values | messages, max_size=4), st.sampled_from([0, 0, 0, 249, 250, 251, 252, 253]))
def test_values_packed_together_have_the_same_bytes_as_alone(parts: list[Any], depth: int) -> None:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    parts.append(nested)
    assert Codec(KEEL).encode(parts) == body_of([KEEL.pack_item(part) for part in parts])


def survives(data: bytes) -> None:
    """Unpack: any value is correct, and so are the two errors; other errors are not."""
    for read in (KEEL.unpack, KEEL.unpack_items, lambda part: KEEL.loads_typed(("keel", part))):
        try:
            read(data)
        except (CorruptStore, RefusedType):
            continue


@settings(max_examples=examples(400), deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_a_value_or_a_named_error(data: bytes) -> None:
    survives(data)
    survives(b"\x92\xc7\x00" + data)


STORED = [encode(value) for value in VALUES] + [array_header(1) + KEEL.pack_item(value) for value in VALUES]


@settings(max_examples=examples(600), deadline=None)
@given(st.sampled_from(STORED), st.data())
def test_damaged_bytes_are_a_value_or_a_named_error(stored: bytes, data: st.DataObject) -> None:
    damaged = bytearray(stored)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, min(len(damaged), 400) - 1))
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    survives(bytes(damaged))


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(STORED), st.data())
def test_truncated_bytes_are_refused(stored: bytes, data: st.DataObject) -> None:
    cut = stored[: data.draw(st.integers(0, len(stored) - 1))]
    try:
        KEEL.unpack(cut)
    except (CorruptStore, RefusedType):  # the cut may be in a name
        return
    raise AssertionError("a cut value was read")


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(STORED), st.binary(min_size=1, max_size=12))
def test_bytes_after_the_end_are_refused(stored: bytes, more: bytes) -> None:
    try:
        KEEL.unpack(stored + more)
    except CorruptStore:
        return
    raise AssertionError("bytes after the value went unnoticed")
