"""Checkpoints in sequence: what LangGraph's loop hands a saver, without the loop."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from .backend import Saver
from .graphs import thread
from .timing import timed


class Sequence:
    """One thread's checkpoints, each the child of the one before."""

    def __init__(self, saver: Saver, thread_id: str) -> None:
        self.saver = saver
        found = saver.get_tuple(thread(thread_id))
        self.config: RunnableConfig = found.config if found else thread(thread_id)
        self.checkpoint: Checkpoint = found.checkpoint if found else empty_checkpoint()
        self.step = (found.metadata.get("step", -1) if found else -1) + 1

    @property
    def values(self) -> dict[str, Any]:
        return self.checkpoint["channel_values"]

    def put(self, updates: Mapping[str, Any]) -> float:
        """Store a checkpoint in which these channels have these values; the seconds that `put` took."""
        versions = self._advance(updates)
        metadata: CheckpointMetadata = {"source": "loop", "step": self.step, "parents": {}}
        seconds, self.config = timed(self.saver.put, self.config, self.checkpoint, metadata, versions)
        self.step += 1
        return seconds

    def _advance(self, updates: Mapping[str, Any]) -> dict[str, Any]:
        old = self.checkpoint
        next_version = self.saver.get_next_version
        versions = {name: next_version(old["channel_versions"].get(name), None) for name in updates}
        self.checkpoint = Checkpoint(
            v=old["v"],
            id=str(uuid6(clock_seq=self.step)),
            ts=datetime.now(UTC).isoformat(),
            channel_values={**old["channel_values"], **updates},
            channel_versions={**old["channel_versions"], **versions},
            versions_seen=old["versions_seen"],
            updated_channels=sorted(updates),
        )
        return versions
