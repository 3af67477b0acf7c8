"""Strategies for values of all kinds that can be stored."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import Any

from hypothesis import strategies as st

from support.engine.samples import (
    Bag,
    Basket,
    Colour,
    Frozen,
    Level,
    Loose,
    Model,
    Pair,
    Plain,
    Point,
    Right,
    Slotted,
    Table,
    Word,
)

texts = st.text(st.characters(), max_size=6)  # lone surrogates too


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(2**62, 2**66), st.floats(), texts, st.binary(max_size=6),
    st.datetimes(timezones=st.none() | st.timezones()), st.dates(), st.times(), st.timedeltas(), st.uuids(),
    st.decimals(allow_nan=False), st.complex_numbers(), st.ip_addresses(),
    st.sampled_from([Colour.RED, Colour.PAIR, Level.LOW, Word.A, Right.READ, Right.READ | Right.WRITE]),
)  # fmt: skip


def hashable_over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Frozen, inner),
        st.builds(Point, inner, inner),
        st.lists(inner, max_size=2).map(Pair),
    )


keys = st.recursive(scalars.filter(lambda value: value == value), hashable_over, max_leaves=4)


def values_over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    dicts = st.dictionaries(texts, inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        lists, lists.map(tuple), lists.map(Basket), lists.map(lambda part: deque(part, maxlen=5)),
        dicts, dicts.map(OrderedDict), st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.sets(keys, max_size=3), st.sets(keys, max_size=3).map(Bag), st.binary(max_size=6).map(bytearray),
        st.builds(Plain, st.integers(), lists), st.builds(Frozen, inner), st.builds(Slotted, inner, texts),
        st.builds(Model, a=st.integers(), b=inner), st.builds(Loose, extra=inner), dicts.map(table_of),
    )  # fmt: skip


def table_of(content: dict[Any, Any]) -> Table:
    made = Table()
    for key, part in content.items():
        dict.__setitem__(made, key, part)
    return made


values = st.recursive(keys, values_over, max_leaves=12)
