"""Two stored states to compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from langgraph_keel import KeelSaver
from support.checkpoints import checkpoint_of, config_for


def stored(saver: KeelSaver, versions: Sequence[dict[str, Any]], thread: str = "t") -> list[Any]:
    """Store versions of a state one after the other; return their configs."""
    configs = []
    config: Any = config_for(thread)
    for number, values in enumerate(versions):
        checkpoint = checkpoint_of(f"{number:04}", values)
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})
        configs.append(config)
    return configs


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
