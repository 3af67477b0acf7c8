"""Savers that are given what cannot be stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import checkpoint_of, config_for

from langgraph_keel import (
    MemorySaver,
    SqliteSaver,
)

METADATA: Any = {"source": "loop", "step": 1, "parents": {}}


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "keel.db") as saver:
        put(saver, "before", 1, "there before")
        yield saver
        # Whatever went wrong: what was there is there, and the saver works on.
        assert value_of(saver, "before") == "there before"
        put(saver, "before", 2, "still works")
        assert value_of(saver, "before") == "still works"


def put(saver: Any, thread: Any, number: int, value: Any) -> Any:
    return saver.put(config_for(thread), checkpoint_of(f"{number:08}", {"v": value}), METADATA, {})


def value_of(saver: Any, thread: Any) -> Any:
    found = saver.get_tuple(config_for(thread))
    return found and found.checkpoint["channel_values"]["v"]


def threads(saver: Any) -> set[str]:
    return {info.thread_id for info in saver.threads()}
