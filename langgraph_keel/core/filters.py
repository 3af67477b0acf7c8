"""What a metadata filter means, and what `before` means: here and nowhere else.

A filter is a mapping of top-level metadata keys to values. A checkpoint matches if for every key its metadata,
as it is read, has an equal value (`==`); a key that is absent equals `None`, a tuple the list of its parts. This is
what LangGraph's InMemorySaver does (where no tuple equals anything); its SQL savers differ from it on 6 of 10 filters
tried (study of the architecture, 4.2).

`model` is also the name of any model that was called on the way to the checkpoint, asked for or served.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph_keel.core.headers import as_lists


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any] | None, models: Collection[str] = ()) -> bool:
    """Return whether `metadata`, of a checkpoint that `models` led to, passes `filter`; none lets everything pass."""
    return not filter or all(
        metadata.get(key) == as_lists(value) or (key == "model" and value in models) for key, value in filter.items()
    )
