"""`keel tail`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import put
from support.cli_threads import keel, keel_json

from langgraph_keel import SqliteSaver


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "keel.db")
    with SqliteSaver(path) as saver:
        put(saver, "t", checkpoint_id="1")
    return path


def test_a_program_continues_from_the_cursor(path: str) -> None:
    found = keel_json("tail", "--url", path, "--after", "2025-12-31")
    assert [(each["thread_id"], each["kind"]) for each in found["events"]] == [("t", "checkpoint"), ("t", "status")]
    assert keel_json("tail", "--url", path, "--after", found["cursor"])["events"] == []
    assert "t" in keel("tail", "t", "--url", path, "--after", "2025-12-31").output.split()
