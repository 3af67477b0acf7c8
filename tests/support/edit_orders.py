"""Classes whose objects are edited."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from pydantic import BaseModel

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, width=16) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz", max_size=1), inner, max_size=3),
    max_leaves=8,
)


class Order(BaseModel):
    item: str
    count: int = 1


@dataclass
class Place:
    city: str
    zip: str = ""
