"""Puts to a store that processes share, by both faces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import checkpoint_of, config_for
from langchain_core.runnables import RunnableConfig
from places import Place

from langgraph_keel import KeelSaver

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


def put(saver: KeelSaver, thread: str, checkpoint_id: str = "00000001", value: Any = 1) -> RunnableConfig:
    return saver.put(config_for(thread), checkpoint_of(checkpoint_id, {"v": value}), METADATA, {})


async def aput(saver: KeelSaver, thread: str, value: Any = 1) -> RunnableConfig:
    return await saver.aput(config_for(thread), checkpoint_of("00000001", {"v": value}), METADATA, {})


def value_of(saver: KeelSaver, thread: str) -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and found.checkpoint["channel_values"]["v"]


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver
