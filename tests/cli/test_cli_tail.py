"""`keel tail`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_following_tail_prints_its_cursor_when_signalled(path: str, number: signal.Signals) -> None:
    words = [sys.executable, "-m", "langgraph_keel", "tail", "-f", "--json", "--url", path, "--after", "2025-12-31"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        with SqliteSaver(path) as saver:
            put(saver, "t", checkpoint_id="2")
        seen.append(json.loads(process.stdout.readline()))
        process.send_signal(number)
        try:
            rest, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert [each.get("id") or each["checkpoint_id"] for each in seen] == ["1", "1", "2"]
    assert (process.returncode, said) == (0, "")
    *_, cursor = rest.splitlines()
    found = keel_json("tail", "--url", path, "--after", json.loads(cursor)["cursor"])["events"]
    assert [each["kind"] for each in found if each["kind"] == "checkpoint"] == []
