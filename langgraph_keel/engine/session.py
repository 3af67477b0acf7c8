"""What is live in a saver: LangGraph makes shallow copies of savers (`with_allowlist`), which share one `Backend`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from weakref import WeakSet

from langgraph_keel.engine.checkpoints import Checkpoints
from langgraph_keel.engine.plan import AsyncDriver, Driver


@dataclass(frozen=True, slots=True)
class Backend:
    """What all copies of one saver share.

    Attributes:
        checkpoints: The plans of its verbs.
        driver: Carries them out, blocking.
        async_driver: Carries them out without blocking a loop.
        runs: What claims a thread for the run that goes on from where it waits (`langgraph_keel.approvals.run_claims`).
        caches: What writes some things later than it is asked to: its `close()` does so before the store is closed.
        upkeep: What is told of each put, and prunes later (`retention.background`); `None` if nothing does.
    """

    checkpoints: Checkpoints[Any, Any]
    driver: Driver[Any, Any]
    async_driver: AsyncDriver[Any, Any]
    runs: Any
    caches: WeakSet[Any] = field(default_factory=WeakSet)
    upkeep: Any = None


def iso_time(milliseconds: int) -> str:
    """Return a time, given in milliseconds since 1970, as ISO text."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def is_keel(saver: object) -> bool:
    """Return whether a checkpointer is one of Keel's."""
    return isinstance(getattr(saver, "_backend", None), Backend)
