"""Values that a checkpoint has from its parent: its versions name them, its `channel_values` do not hold them.

LangGraph puts a `DeltaChannel`'s snapshot once. The checkpoints after it name the channel at the same version, without
a value, until it is written again. LangGraph's InMemorySaver and PostgresSaver, which keep values by version, give the
snapshot back with all of them; here such a checkpoint refers to the value of its parent. As in PostgresSaver, small
scalars, which stand in the header, do not stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph_keel.engine.encoding.values import Known
from langgraph_keel.engine.records import record
from langgraph_keel.engine.session import Base


@record
class Inheritance:
    """What a checkpoint leaves to its parent.

    Attributes:
        parent: The id of the checkpoint it continues.
        versions: All versions that it names.
        left: Those of channels that have no value in it, and no version that is new.
        is_asked: Whether the parent surely has a value for one of them: a snapshot that nothing was written to since.
    """

    parent: str | None
    versions: Mapping[str, Any]
    left: Mapping[str, Any]
    is_asked: bool

    def usable(self, base: Base | None) -> Base | None:
        """Return what is known, unless it is of another checkpoint than the parent, whose values are needed."""
        return None if self.is_asked and base and base.checkpoint_id != self.parent else base

    def values(self, base: Base | None) -> dict[str, Known]:
        """Return the values that the parent has at these very versions, if `base` is what is known of it."""
        if base is None or base.checkpoint_id != self.parent:
            return {}
        same = [name for name, version in self.left.items() if base.versions.get(name) == version]
        return {name: base.channels[name] for name in same if name in base.channels}


def inheritance_of(
    parent: str | None, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Collection[str]
) -> Inheritance:
    """Return what a checkpoint leaves to its parent, as it is now: the program may go on with it."""
    versions, values = versions_of(checkpoint), checkpoint["channel_values"]
    left = {name: each for name, each in versions.items() if name not in values and name not in new_versions}
    counters = metadata.get("counters_since_delta_snapshot") or {}
    is_asked = parent is not None and any(name in left and not updates for name, (updates, _) in counters.items())
    return Inheritance(parent, versions, left, is_asked)


def versions_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the versions of a checkpoint's channels."""
    return dict(checkpoint.get("channel_versions") or {})
