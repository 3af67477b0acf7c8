"""Ctrl-C during long work: progress, exit status, and a repeated command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.moving.old_graphs import SCENES
from support.moving.old_stores import old_store

from langgraph_keel import Retention, SqliteSaver
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.testing.rig import at, checkpoint_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")

INTERRUPTED = """
import os, signal
from rich.progress import Progress
from langgraph_keel.cli import main
update, left = Progress.update, int(os.environ["AFTER"])
def interrupt(self, task, **fields):
    global left
    update(self, task, **fields)
    left -= 1
    if not left:
        signal.raise_signal(signal.SIGINT)
Progress.update = interrupt
main()
"""
KEPT, UNCHANGED = "Finished work is kept: run the same command again to continue.", "Nothing was changed."


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of five threads of Ada's and five of a tenant's, 3 checkpoints each."""
    with SqliteSaver(tmp_path / "a.db") as saver:
        for store in (saver, saver.for_tenant("acme")):
            for name in "abcde":
                for step in ("1", "2", "3"):
                    config: Any = {"configurable": {**at(name)["configurable"], "user_id": "ada"}}
                    checkpoint: Any = checkpoint_of(step, {"n": step}, channel_versions={"n": step})
                    store.put(config, checkpoint, {"user_id": "ada"}, {"n": step})  # type: ignore[typeddict-unknown-key]
        saver.retention.set_policy(Retention(last=1))
    (tmp_path / "keys").write_text(new_key("2026"))
    (tmp_path / "keys").chmod(0o600)
    return tmp_path


def interrupted(place: Path, *words: str, after: int, **env: str) -> str:
    command = [sys.executable, "-c", INTERRUPTED, *words]
    environment = os.environ | {"AFTER": str(after), "KEEL_URL": "sqlite:///a.db"} | env
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=place)
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "after", "said"),
    [
        ("copy a.db files:b", 30, "Copying and comparing, N done. {kept}"),
        ("copy a.db files:b --dry-run", 3, "Comparing, N done. {unchanged}"),
        ("prune a b c d e --yes", 3, "Pruning threads, N done. {kept}"),
        ("sweep", 3, "Sweeping threads, N done. {kept}"),
        ("erase --user ada --yes", 3, "Erasing, N done. {kept}"),
        ("tenants delete acme --yes", 1, "Deleting, N done. {kept}"),
        ("check", 3, "Checking threads, N done. {unchanged}"),
        ("export --to-langgraph old.db", 3, "Exporting threads, N done. {kept}"),
        ("export --output all.jsonl --json", 1, "Reading threads, N done. all.jsonl was not written."),
    ],
)
def test_an_interrupted_command_reports_its_progress(place: Path, words: str, after: int, said: str) -> None:
    told = interrupted(place, *words.split(), after=after)
    assert re.sub(r"\d+( of \d+)?", "N", told) == f"interrupted: {said.format(kept=KEPT, unchanged=UNCHANGED)}\n"
    if "delete" not in words:  # some of them no longer exist
        again = [sys.executable, "-m", "langgraph_keel.cli", *words.split()]
        environment = os.environ | {"KEEL_URL": "sqlite:///a.db"}
        assert subprocess.run(again, capture_output=True, timeout=120, env=environment, cwd=place).returncode == 0


@pytest.mark.slow
def test_interrupted_key_commands_report_their_progress(place: Path) -> None:
    assert KEPT in interrupted(place, "keys", "migrate", after=2, KEEL_KEYS_FILE="keys")
    assert KEPT in interrupted(place, "keys", "migrate", after=2, KEEL_KEYS_FILE="keys")
    assert KEPT in interrupted(place, "keys", "renew", after=1, KEEL_KEYS_FILE="keys")


@pytest.mark.slow
def test_an_interrupted_import_can_be_repeated(tmp_path: Path) -> None:
    with old_store("sqlite", tmp_path) as store:
        with store.open() as saver:
            for name in ("chat", "asks", "forks"):
                SCENES[name][0](saver, name)
        new = ("--url", "files:new")
        told = interrupted(tmp_path, "import", store.path, *new, after=2)
        assert told == f"interrupted: Importing threads, 2 of 3 done. {KEPT}\n"
        told = interrupted(tmp_path, "import", store.path, *new, "--dry-run", after=1)
        assert told == f"interrupted: Importing threads, 1 of 3 done. {UNCHANGED}\n"
        command = [sys.executable, "-m", "langgraph_keel.cli", "import", store.path, *new]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0
        assert "1 thread moved" in done.stdout
        assert "2 threads there already" in done.stdout
