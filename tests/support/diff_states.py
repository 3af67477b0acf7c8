"""Two states, stored, to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkpoints import checkpoint_of, config_for

from langgraph_keel import KeelSaver


def stored(saver: KeelSaver, versions: Sequence[dict[str, Any]], thread: str = "t") -> list[Any]:
    """Put versions of a state one after the other; return their configs."""
    configs = []
    config: Any = config_for(thread)
    for number, values in enumerate(versions):
        checkpoint = checkpoint_of(f"{number:04}", values)
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {})
        configs.append(config)
    return configs
