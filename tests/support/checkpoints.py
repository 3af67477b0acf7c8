"""Checkpoints and configs made by hand, and a saver as in another process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.memo import Memo
from langgraph_keel.engine.session import Hooks
from langgraph_keel.saver import KeelSaver
from support.engine.states import State

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def checkpoint_of(checkpoint_id: str, values: State) -> Checkpoint:
    return {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": {},
        "versions_seen": {},
        "updated_channels": None,
    }


def config_for(thread: str, checkpoint_id: str | None = None) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


def put(saver: KeelSaver, thread: Any, value: Any = 1, checkpoint_id: str = "00000001") -> RunnableConfig:
    return saver.put(config_for(thread), checkpoint_of(checkpoint_id, {"v": value}), METADATA, {})


async def aput(saver: KeelSaver, thread: str, value: Any = 1) -> RunnableConfig:
    return await saver.aput(config_for(thread), checkpoint_of("00000001", {"v": value}), METADATA, {})


def value_of(saver: KeelSaver, thread: Any = "t") -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and found.checkpoint["channel_values"]["v"]


def twin(saver: KeelSaver, entries: int, nbytes: int) -> KeelSaver:
    """Return the saver as another process would have it: the same store, its own memo."""
    engine = saver.engine
    session = replace(engine.session, memo=Memo(entries, nbytes), hooks=Hooks())
    return with_engine(saver, replace(engine, session=session))
