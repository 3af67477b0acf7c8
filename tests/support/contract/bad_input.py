"""Savers that receive values that cannot be stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langgraph_keel import (
    MemorySaver,
    SqliteSaver,
)
from support.checkpoints import put, value_of


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with MemorySaver() if request.param == "memory" else SqliteSaver(tmp_path / "keel.db") as saver:
        put(saver, "before", "there before")
        yield saver
        # After any error, the earlier values are unchanged, and the saver still works.
        assert value_of(saver, "before") == "there before"
        put(saver, "before", "still works", "00000002")
        assert value_of(saver, "before") == "still works"


def threads(saver: Any) -> set[str]:
    return {info.thread_id for info in saver.threads()}
