"""`keel erase` and `keel reclaim`: the preview, and the output for programs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.retention.people import ids, say

from langgraph_keel import open_saver


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a hostile thread, a shared one, and one of another person.

    The first two belong to a person with a hostile name.
    """
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        for thread, owner in ((EVIL, EVIL), ("joint", EVIL), ("joint", "bob"), ("of bob", "bob")):
            say(saver, thread, owner)
    return where


def threads(url: str) -> list[str]:
    with open_saver(url) as saver:
        return ids(saver)


def test_a_dry_run_lists_threads_to_erase(url: str) -> None:
    told = keel("erase", "--user", EVIL, "--dry-run", "--url", url)
    assert "Would be erased: 1 thread, 3 checkpoints" in told.stdout
    assert told.stdout.splitlines()[1:3] == [f"  {EVIL!r}", "  shared: 'joint'"]
    assert not RAW.search(told.stdout)
    assert len(threads(url)) == 3


def test_erase_json_reports_everything(url: str) -> None:
    looked = keel_json("erase", "--user", EVIL, "--dry-run", "--url", url)
    assert (looked["dry_run"], looked["thread_ids"], looked["shared_ids"]) == (True, [EVIL], ["joint"])
    said = keel_json("erase", "--user", EVIL, "--shared", "delete", "--full", "--yes", "--url", url)
    assert (said["complete"], said["thread_count"], said["checkpoints"], said["shared_count"]) == (True, 2, 9, 0)
    assert said["reclaimed"]["after"] < said["reclaimed"]["before"]
    assert threads(url) == ["of bob"]
    assert keel_json("erase", "--user", EVIL, "--yes", "--url", url)["thread_count"] == 0


@pytest.mark.parametrize("option", ["--url", "--json"])
def test_erase_without_a_terminal_needs_confirmation(url: str, option: str) -> None:
    told = keel("erase", "--user", EVIL, *(["--json"] if option == "--json" else []), "--url", url, status=2)
    assert "nothing was erased" in told.output
    assert len(threads(url)) == 3


def test_an_incomplete_erasure_is_an_error(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE entries SET header = x'00' WHERE key >> 32 = 3")
    told = keel("erase", "--user", EVIL, "--yes", "--url", url, status=1)
    assert "Not done: 1 thread" in told.stdout
    assert "its owner is unknown" in told.stderr


def test_reclaim_returns_space(url: str) -> None:
    told = keel("reclaim", "--full", "--url", url)
    assert "(VACUUM)" in told.stdout
    reclaimed = keel_json("reclaim", "--url", url)
    assert reclaimed["before"] >= reclaimed["after"] > 0


@pytest.mark.parametrize(("said", "status"), [("n\n", 1), ("y\n", 0)], ids=["no", "yes"])
def test_erase_asks_for_confirmation_in_a_terminal(
    url: str, typed: Any, capfd: pytest.CaptureFixture[str], said: str, status: int
) -> None:
    with open_saver(url) as saver:
        saver.delete_thread("joint")
    assert typed(said, "erase", "--user", EVIL, "--url", url) == status
    out, err = capfd.readouterr()
    assert out.startswith("Would be erased: 1 thread")
    assert "Erase? [y/N]" in err
    assert len(threads(url)) == (1 if status == 0 else 2)


@pytest.mark.parametrize(("user", "status"), [("nobody", 0), ("carl", 1)])
def test_erase_asks_nothing_if_there_is_nothing_to_erase(
    url: str, typed: Any, capfd: Any, user: str, status: int
) -> None:
    with open_saver(url) as saver:
        say(saver, "joint", "carl")
    assert typed("y\n", "erase", "--user", user, "--url", url) == status
    out, err = capfd.readouterr()
    assert ("shared: 'joint'" in out, "Erase?" in err) == (user == "carl", False)
    assert len(threads(url)) == 3


def test_a_shared_thread_is_kept_and_is_an_error(url: str) -> None:
    told = keel("erase", "--user", EVIL, "--yes", "--url", url, status=1)
    assert told.stdout.splitlines()[1] == "  shared: 'joint'"
