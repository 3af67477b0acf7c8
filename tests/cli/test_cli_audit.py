"""`keel audit show` and `keel audit verify`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from support.approvals.audit import Trail
from support.cli_threads import EVIL, RAW
from typer.testing import CliRunner

from langgraph_keel import open_saver
from langgraph_keel.cli import KeelGroup
from langgraph_keel.cli.audit import audit
from langgraph_keel.engine.audit import LINKS, key_of

APP = typer.Typer(cls=KeelGroup)
APP.add_typer(audit, name="audit")
APP.callback()(lambda: None)


def keel(*arguments: str, status: int = 0, **env: str) -> Any:
    result = CliRunner().invoke(APP, ["audit", *arguments], env={"COLUMNS": "120", "NO_COLOR": "1", **env})
    assert result.exit_code == status, result.output
    assert not RAW.search(result.output)
    return result


def keel_json(*arguments: str, status: int = 0) -> Any:
    result = keel(*arguments, "--json", status=status)
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with six events of three threads, one of which is deleted."""
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        trail = Trail(saver)
        for n, thread in enumerate(("trip", EVIL, "gone", "trip", EVIL, "trip")):
            trail.append("approved" if n % 2 else "asked\x1b[2J", thread, by="ann", reason=f"no. {n} [red]\x9b31m")
        saver.delete_thread("gone")
    return where


def tamper(url: str) -> None:
    with open_saver(url) as saver:
        Trail(saver).put(LINKS, key_of(2), None)
        Trail(saver).put_content(4, "salt", "{}")


def test_show_lists_events_newest_last(url: str) -> None:
    told = keel("show", "--url", url)
    assert told.stderr == ""
    lines = told.stdout.splitlines()
    numbers = [int(found[1]) for line in lines if (found := re.match(r" *(\d+) ", line))]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert re.search(r"ann +trip +no\. 5 \[red\]", "".join(lines))
    assert [line for line in lines if "deleted with its thread" in line] == [lines[4]]
    assert "older" not in "".join(lines)


def test_show_on_a_narrow_terminal(url: str) -> None:
    shown = keel("show", "--url", url, COLUMNS="50").stdout
    assert re.search(r"^6  .*approved  ann  trip$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 50


@pytest.mark.parametrize(
    ("options", "numbers", "more"),
    [
        ((), [1, 2, 3, 4, 5, 6], False),
        (("--limit", "2"), [5, 6], True),
        (("-n", "6"), [1, 2, 3, 4, 5, 6], False),
        (("--thread", "trip"), [1, 4, 6], False),
        (("-t", EVIL, "-n", "1"), [5], True),
        (("--thread", "gone"), [], False),
    ],
)
def test_show_filters_events(url: str, options: tuple[str, ...], numbers: list[int], more: bool) -> None:
    told = keel_json("show", "--url", url, *options)
    assert ([event["number"] for event in told["events"]], told["more"]) == (numbers, more)
    shown = keel("show", "--url", url, *options).stdout
    assert ("older ones" in shown, "No events" in shown) == (more, not numbers)


def test_show_as_json(url: str) -> None:
    first, _, third, *_ = keel_json("show", "--url", url)["events"]
    assert first["content"] == {"by": "ann", "reason": "no. 0 [red]\x9b31m", "thread_id": "trip"}
    assert (first["kind"], first["at"]) == ("asked\x1b[2J", "2026-11-22T08:00:00+00:00")
    assert re.fullmatch("[0-9a-f]{64}", first["hash"])
    assert third["content"] is None


def test_verify_prints_the_head_to_note_down(url: str) -> None:
    told = keel("verify", "--url", url)
    assert "is unchanged: 6 events, 1 without content" in told.stdout
    noted = re.search(r"^6:[0-9a-f]{64}$", told.stdout, re.MULTILINE)  # a separate line, for copying at 80 columns
    assert noted
    assert told.stderr == ""
    verdict = keel_json("verify", "--url", url, "--expect", noted[0])
    assert verdict == {"ok": True, "events": 6, "removed": 1, "head": noted[0], "problems": []}


def test_verify_names_changed_events(url: str) -> None:
    tamper(url)
    lines = keel("verify", "--url", url, status=1).stdout.splitlines()
    assert lines[:2] == ["event 2 is missing", "event 4: its content was changed"]
    assert lines[2:] == [
        "The audit trail is not what was written: 5 events, 1 without content (deleted with their threads)"
    ]
    verdict = keel_json("verify", "--url", url, status=1)
    assert (verdict["ok"], verdict["problems"]) == (False, lines[:2])


def test_verify_compares_with_a_noted_head(url: str) -> None:
    told = keel("verify", "--url", url, "--expect", "4:" + "0" * 64, status=1).stdout
    assert told.startswith("event 4 is not the one that the expected head names")
    error = keel_json("verify", "--url", url, "--expect", "4", status=2)["error"]
    assert error["code"] == "invalid_input"


def test_an_empty_trail(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'empty.db'}"
    with open_saver(where) as saver:
        saver.setup()
    assert "No events" in keel("show", "--url", where).stdout
    assert f"0:{'0' * 64}" in keel("verify", "--url", where).stdout
    assert keel_json("verify", "--url", where)["events"] == 0


def test_a_missing_store_is_an_error(tmp_path: Path) -> None:
    for command in ("show", "verify"):
        assert "error" in keel_json(command, "--url", f"sqlite:///{tmp_path / 'no.db'}", status=1)
