"""How checkpoints say that they are another one again: what rewind, branch and fork leave in the metadata."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

REWOUND_TO = "keel_rewound_to"
"""In the metadata of a twin that was made the latest: the id of the checkpoint it is a twin of."""
BRANCHED_FROM = "keel_branched_from"
"""In the metadata of a twin beside the trunk: the id of the checkpoint it is a twin of."""
FORKED_FROM = "keel_forked_from"
"""In the metadata of the checkpoint that a fork begins with: its `thread_id` and `checkpoint_id` in the source."""


def came_from(parent: str | None, metadata: Mapping[str, Any], known: Container[object]) -> str | None:
    """Return from which checkpoint one came: of a twin that it is a twin of, for what led there led to the twin, too.

    Args:
        parent: The id of its parent.
        metadata: Its metadata.
        known: The ids of those that are there; without the one it is a twin of, the parent counts.
    """
    original = metadata.get(REWOUND_TO) or metadata.get(BRANCHED_FROM)
    return original if isinstance(original, str) and original in known else parent
