"""`keel prune`, `keel retention`, and policies in `keel sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.retention.threads import Written, name_of
from typer.testing import CliRunner

from langgraph_keel import InvalidInput, Retention, open_saver
from langgraph_keel.cli import app
from langgraph_keel.cli.options import duration
from langgraph_keel.cli.retention import prune


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two threads of five checkpoints each, dated March 2026."""
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        for name in ("chat", EVIL):
            Written(saver, name).follow(5)
    return where


def left(url: str, thread: str = "chat") -> list[str]:
    with open_saver(url, read_only=True) as saver:
        return Written(saver, thread).ids()


def test_a_dry_run_reports_checkpoints_to_remove(url: str) -> None:
    told = keel_json("prune", "chat", EVIL, "--keep-last", "2", "--dry-run", "--url", url)
    assert (told["dry_run"], told["removed"], told["kept"], [each["removed"] for each in told["threads"]]) == (
        True,
        6,
        4,
        [3, 3],
    )
    assert told["bytes"] == sum(each["bytes"] for each in told["threads"]) > 0
    shown = keel("prune", "chat", EVIL, "--keep-last", "2", "--dry-run", "--url", url).stdout
    assert "Would remove 6 checkpoints, " in shown
    assert shown.split()[:5] == ["thread", "would", "remove", "kept", "bytes"]
    assert not RAW.search(shown)
    assert len(left(url)) == 5


def test_prune_by_rules(url: str) -> None:
    told = keel("prune", "chat", "--keep-last", "2", "--yes", "--url", url)
    assert told.stderr == ""
    assert told.stdout.splitlines()[-1] == "Removed 3 checkpoints."
    assert left(url) == [name_of(3), name_of(4)]
    assert keel_json("prune", EVIL, "--per", "day", "--yes", "--url", url)["removed"] == 3
    assert left(url, EVIL) == [name_of(1), name_of(4)]
    assert keel_json("prune", EVIL, "--within", "10000w", "--branch-points", "--yes", "--url", url)["removed"] == 0
    assert keel_json("prune", EVIL, "--yes", "--url", url)["removed"] == 1


def test_prune_with_delete_removes_whole_threads(url: str) -> None:
    assert "Removed 1 whole thread." in keel("prune", "chat", "--delete", "-y", "--url", url).stdout
    assert (left(url), len(left(url, EVIL))) == ([], 5)
    error = keel("prune", EVIL, "--delete", "--keep-last", "3", "--per", "run", "-y", "--url", url, status=2).stderr
    assert "leave out --keep-last, --per" in error


def test_keeping_zero_checkpoints_is_refused(url: str) -> None:
    for command in (["prune", "chat", "-y"], ["retention", "set"]):
        error = keel(*command, "--keep-last", "0", "--url", url, status=2).stderr
        assert "must be a whole number of checkpoints, at least 1, not 0" in error
    assert len(left(url)) == 5


class Terminal:
    """A person at the keyboard."""

    stdin: Any = type("Stdin", (), {"isatty": staticmethod(lambda: True)})


@pytest.mark.parametrize(("said", "status", "count"), [("n\n", 1, 5), ("y\n", 0, 1)], ids=["no", "yes"])
def test_prune_asks_for_confirmation_in_a_terminal(
    url: str, monkeypatch: pytest.MonkeyPatch, said: str, status: int, count: int
) -> None:
    monkeypatch.setattr(sys.modules[prune.__module__], "sys", Terminal)
    result = CliRunner().invoke(app, ["prune", "chat", "--url", url], input=said, env={"COLUMNS": "80"})
    assert result.exit_code == status
    assert "Would remove 4 checkpoints" in result.stdout
    assert "Remove it?" in result.stderr
    assert len(left(url)) == count


def test_prune_asks_nothing_if_there_is_nothing_to_remove(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[prune.__module__], "sys", Terminal)
    result = CliRunner().invoke(app, ["prune", "chat", "--keep-last", "9", "--url", url], env={"COLUMNS": "80"})
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "Would remove 0 checkpoints.\n"


def test_policies_are_ordered_from_specific_to_general(url: str) -> None:
    for pattern in ("ab-*", "*", "a*", "b"):
        told = keel_json("retention", "set", "--threads", pattern, "--keep-last", "2", "--url", url)
    assert [each.get("threads", "*") for each in told["policies"]] == ["b", "ab-*", "a*", "*"]
    told = keel_json("retention", "set", "--threads", "*", "--keep-last", "3", "--url", url)
    assert told["policies"][-1] == {"last": 3}
    hint = keel("retention", "set", "--threads", "x-*,y-*", "--keep-last", "2", "--url", url).stderr
    assert "one pattern that contains a comma" in hint


def test_missing_confirmation_and_invalid_values_are_refused(url: str) -> None:
    assert "--yes" in keel("prune", "chat", "--url", url, status=2).stderr
    assert "`keel threads` lists all threads" in keel("prune", EVIL, "chatt", "-y", "--url", url, status=1).stderr
    assert "not a duration" in keel("prune", "chat", "--within", "soon", "-y", "--url", url, status=2).stderr
    assert "use 7d, 7h or 7s" in keel("prune", "chat", "--within", "7", "-y", "--url", url, status=2).stderr
    zero = keel("retention", "set", "--ttl", "0d", "--url", url, status=2).stderr
    assert "more than 0" in zero
    assert "timedelta" not in zero
    assert (len(left(url)), len(left(url, EVIL))) == (5, 5)


def test_sweep_applies_stored_policies(url: str) -> None:
    assert "everything is kept" in keel("retention", "show", "--url", url).stdout
    keel("retention", "set", "--threads", "*", "--ttl", "2w", "--url", url)
    keel("retention", "set", "--threads", "cha*", "--per", "run", "--url", url)
    told = keel_json("retention", "set", "--threads", "cha*", "--keep-last", "2", "--idle", "90s", "--url", url)
    assert told["policies"] == [{"last": 2, "threads": "cha*", "idle": 90.0}, {"ttl": 1209600.0}]
    with open_saver(url) as saver:
        assert saver.retention.policies() == (Retention(last=2, threads="cha*", idle=90), Retention(ttl=14 * 86400))
    shown = keel("retention", "show", "--url", url, COLUMNS="200").stdout
    assert "threads 'cha*' idle for 90s: keeps the last 2" in shown
    assert "the thread goes after 14d" in shown
    swept = keel_json("sweep", "--dry-run", "--url", url)["retention"]
    assert (swept["removed"], swept["deleted"], swept["looked"]) == (3, 1, 2)
    assert "Would remove" in keel("sweep", "--dry-run", "--url", url).stdout
    assert len(left(url)) == 5
    shown = keel("sweep", "--limit", "1", "--url", url).stdout + keel("sweep", "--url", url).stdout
    assert "Removed 3 checkpoints" in shown
    assert "1 whole thread. Looked at" in shown
    assert (len(left(url)), left(url, EVIL)) == (2, [])
    assert keel_json("retention", "clear", "--threads", "cha*", "--url", url)["policies"] == [{"ttl": 1209600.0}]
    assert (
        "there is no policy for 'cha'" in keel("retention", "clear", "--threads", "cha", "--url", url, status=1).stderr
    )
    for given in (["--threads", "cha"], ["--idle", "1d"]):
        error = keel("retention", "set", *given, "--url", url, status=2).stderr
        assert "the policy needs a rule: --keep-last" in error
    keel("retention", "clear", "--url", url)
    swept = keel("sweep", "--url", url).stdout
    assert "nothing was pruned" in swept
    assert "No approval requests are open." in swept
    assert keel_json("retention", "show", "--url", url)["policies"] == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600), ("1.5h", 5400)],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "7 d", "1y", "1e3", "٣d", "30", "0", "0d", "99999999d"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="duration"):
        duration(text)
