"""`keel approvals`, `approval` and `sweep`, on the questions of real graphs."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.approvals.resuming import CONFIG, book, graph_of
from support.cli.waiting_threads import ARGS, LONG, Trip, config, graph, id_of, waiting
from support.cli_threads import EVIL, RAW, keel, keel_json
from typer.testing import CliRunner

from langgraph_keel import StoreUnavailable, open_saver
from langgraph_keel.cli import app
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Session


@pytest.fixture
def url(asked_url: str) -> str:
    return asked_url


# ---- many


def test_waiting_requests_are_listed_oldest_first(url: str) -> None:
    trip, evil = waiting(url)
    assert [(trip["thread_id"], trip["action"], trip["args"]), evil["thread_id"]] == [("trip", "book", ARGS), EVIL]
    assert (trip["facts"]["price"], trip["before"]["price"], trip["status"]) == (1500, 1200, "waiting")
    assert (evil["action"], evil["value"]) == ("", {"question": f"How? {EVIL}"})
    shown = keel("approvals", "--url", url, COLUMNS="200").stdout
    # The question was asked before the first test of this module: on a busy machine, more than a minute ago.
    assert re.search(
        rf'{trip["id"][:14]} .* (s|min) ago .*trip .*book {{"flight": "LH 1".*waiting .*in [56]\d min', shown
    )
    assert "price: 1500 (was 1200), branch:to" in shown
    assert shown.index(trip["id"][:14]) < shown.index(evil["id"][:14])
    assert trip["id"] not in shown
    assert trip["id"] in keel("approvals", "--full", "--url", url, COLUMNS="60").stdout


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["trip", EVIL]),
        (("trip",), ["trip"]),
        (("--owner", "eve"), [EVIL]),
        (("--action", "book"), ["trip"]),
        (("--older-than", "3600"), []),
        (("--older-than", "0"), ["trip", EVIL]),
        (("--status", "superseded"), ["trip"]),
        (("--status", "superseded", "--status", "waiting"), ["trip", "trip", EVIL]),
        (("--all",), ["trip", "trip", EVIL]),
        (("--all", "--status", "superseded"), ["trip"]),
        (("--all", "--limit", "2"), ["trip", "trip"]),
        (("done",), []),
    ],
    ids=" ".join,
)
def test_approvals_filters_requests(url: str, options: tuple[str, ...], found: list[str]) -> None:
    with open_saver(url) as saver:
        StateGraph(Trip).add_node("go", lambda state: {}).set_entry_point("go").compile(checkpointer=saver).invoke(
            {"told": None}, config("done")
        )
    told = keel_json("approvals", "--url", url, *options)
    assert [request["thread_id"] for request in told["approvals"]] == found
    shown = keel("approvals", "--url", url, *options).stdout
    assert ("--limit shows more" in shown) is told["more"] is ("--limit" in options)
    assert ("No request waits" in shown, "No approval request matches" in shown) == (
        options == ("done",),
        options == ("--older-than", "3600"),
    )


def test_a_misspelt_thread_id_is_an_error(url: str) -> None:
    assert (
        "there is no thread 'tirp': `keel threads` lists all threads"
        in keel("approvals", "tirp", "--url", url, status=1).stderr
    )
    assert keel_json("approvals", "nobody", "--url", url, status=1)["error"]["code"] == "not_found"


def test_closed_and_claimed_requests_show_their_reviewer(url: str) -> None:
    assert "superseded, approve by ann" in keel("approvals", "--all", "--url", url, COLUMNS="200").stdout
    with open_saver(url) as saver:
        saver.approvals.claim(id_of(url, "trip"), by="bob")
    assert "claimed by bob" in keel("approvals", "--url", url, COLUMNS="200").stdout


def test_an_unknown_status_is_refused(url: str) -> None:
    assert "unknown status 'gone'" in keel("approvals", "--status", "gone", "--url", url, status=2).stderr


@pytest.mark.parametrize("thread", ["trip", EVIL], ids=["trip", "evil"])
def test_suggested_commands_can_be_run_in_a_shell(url: str, thread: str) -> None:
    name = id_of(url, thread)[:14]
    lines = re.findall(r"^  (keel appro.*)$", keel("approvals", thread, "--url", url, COLUMNS="40").stdout, re.M)
    words = [subprocess.run(["bash", "-c", f"printf '%s\n' {line}"], capture_output=True, text=True) for line in lines]
    assert [each.stdout.splitlines() for each in words] == [
        ["keel", "approval", name, "--url", url],
        ["keel", "approve", name, "--url", url, "--by", "NAME"],
    ]
    assert "--url" not in keel("approvals", KEEL_URL=url).stdout
    assert "keel approve" not in keel("approvals", "--status", "superseded", "--url", url).stdout


# ---- one


def test_a_request_is_shown_in_full(url: str) -> None:
    name = id_of(url, "trip")
    shown = keel("approval", name[:14], "--url", url, COLUMNS="120").stdout
    told = [
        f"approval {name}  waiting",
        "thread trip · asked",
        "owner ada · expires in ",
        '"flight": "LH 1"',
        '"price": 1500',
        "~ price: 1200 → 1500",
        "ann, bob: approve, reject, edit",
        "asked",
    ]
    assert [each for each in told if each not in shown] == []
    assert shown.count("x") >= len(LONG)
    assert "more characters" not in shown
    over = keel_json("approvals", "--status", "superseded", "--url", url)["approvals"][0]["id"]
    assert "by ann" in keel("approval", over, "--url", url).stdout


def test_a_request_as_json(url: str) -> None:
    found = keel_json("approval", id_of(url, "trip"), "--url", url)
    assert (found["approvers"], found["decision"], found["interrupt_id"]) == (
        ["ann", "bob"],
        None,
        found["interrupt_ids"][-1],
    )
    assert [event["kind"] for event in found["history"]] == ["asked"]


def test_an_unknown_request_id_is_an_error(url: str) -> None:
    for command in (("approval", "0123456789ab"), ("approve", "0123456789ab", "--by", "ann")):
        told = keel(*command, "--url", url, status=1).stderr
        assert "no request for approval has an id that begins with '0123456789ab'" in told
    assert url in told


def test_a_prefix_shared_by_several_requests_names_the_waiting_one(url: str) -> None:
    """Ids of one thread begin in the same way; the second request of `trip` is closed."""
    name = id_of(url, "trip")
    assert keel_json("approval", name[:8], "--url", url)["id"] == name
    assert keel_json("approve", name[:6], "--by", "ann", "--url", url)["id"] == name
    told = keel("approve", name[:8], "--by", "ann", "--url", url, status=1).stderr
    assert f"no pending but several closed requests have ids that begin with '{name[:8]}'" in told
    assert f"{name} (approved: book, thread 'trip')" in told
    assert told.count("thread 'trip'") == 2


def test_an_ambiguous_prefix_lists_the_waiting_requests(url: str) -> None:
    def ask(state: Trip) -> dict[str, Any]:
        return {"told": interrupt("Which way?")}

    with open_saver(url) as saver:
        both = StateGraph(Trip).add_node("left", ask).add_node("right", ask)
        both.add_edge(START, "left").add_edge(START, "right").compile(checkpointer=saver).invoke(
            {"told": None}, config("both")
        )
    ids = [each["id"] for each in waiting(url, "both")]
    told = keel("approve", ids[0][:8], "--by", "ann", "--url", url, status=1).stderr
    assert "several pending requests have ids that begin with" in told
    assert [f"{each} (waiting: Which way?, thread 'both')" in told for each in ids] == [True, True]
    assert keel_json("approve", ids[0][:14], "--by", "ann", "--url", url)["id"] == ids[0]
    assert keel_json("approve", ids[0][:8], "--by", "ann", "--url", url)["id"] == ids[1]


@pytest.mark.parametrize("name", ["", "e", "e3b98"])
def test_an_empty_or_short_request_id_is_refused(url: str, name: str) -> None:
    assert f"{name!r} is not a request id" in keel("approve", name, "--by", "ann", "--url", url, status=2).stderr
    assert len(waiting(url)) == 2


# ---- sweep


def test_a_sweep_expires_and_reminds(url: str) -> None:
    with open_saver(url) as saver:
        graph(saver, expires_in=1.5).invoke({"told": None}, config("late"))
    time.sleep(1.6)
    assert "1 of them due for" not in keel("sweep", "--url", url).stdout
    late = keel_json("approvals", "late", "--status", "expired", "--url", url)["approvals"][0]
    assert [event["kind"] for event in late["history"]] == ["asked", "expired"]
    assert (
        "and was not decided in time. Your approval was not recorded."
        in keel("approve", late["id"], "--by", "ann", "--url", url, status=1).stderr
    )
    told = keel_json("sweep", "--remind-after", "0", "--url", url)
    assert (told["waiting"], [each["thread_id"] for each in told["reminders"]]) == (2, ["trip", EVIL])
    shown = keel("sweep", "--remind-after", "0", "--url", url, COLUMNS="200").stdout
    assert "Waiting for a decision: 2 requests, 2 of them due for a reminder" in shown
    assert "trip" in shown
    assert keel_json("sweep", "--remind-after", "60", "--url", url)["reminders"] == []


# ---- what is written by others


@pytest.mark.parametrize("columns", ["30", "80", "200"])
def test_control_characters_are_escaped(url: str, columns: str) -> None:
    trip, evil = id_of(url, "trip"), id_of(url, EVIL)
    commands: list[tuple[str, ...]] = [("approvals", "--all", "--full"), ("approvals",), ("approval", trip)]
    commands += [("approval", evil), ("sweep", "--remind-after", "0")]
    commands += [
        ("edit", trip, "--args", '{"flight": "\\u202e"}', "--by", "ann", "--unchecked", "--reason", EVIL, "--yes")
    ]
    commands += [("answer", evil, "--value", EVIL, "--by", EVIL, "--yes"), ("approval", trip), ("approval", evil)]
    commands += [("approvals", EVIL, "--status", "expired"), ("approve", evil, "--by", EVIL)]
    for command in commands:
        result = keel(*command, "--url", url, COLUMNS=columns, status=int(command[0] == "approve"))
        assert not RAW.search(result.output), command
        assert "x1b" in result.output.replace("\n", "") or "u001b" in result.output.replace("\n", ""), command


def test_control_characters_are_escaped_in_colour(url: str) -> None:
    given = ["approval", id_of(url, "trip"), "--url", url]
    result = CliRunner().invoke(app, given, env={"FORCE_COLOR": "1", "TERM": "xterm"}, color=True)
    assert "\x1b[31m1200" in result.stdout
    assert "\x1b[32m1500" in result.stdout
    assert not RAW.search(re.sub(r"\x1b\[[\d;]*m", "", result.stdout))
    assert "[red]" in result.stdout


@pytest.mark.parametrize("scheme", ["sqlite:///", "files:"])
def test_a_missing_store_is_not_created(scheme: str, tmp_path: Path) -> None:
    commands: list[tuple[str, ...]] = [("approvals",), ("approvals", "trip"), ("approval", "0123456789ab"), ("sweep",)]
    commands += [("approve", "0123456789ab", "--by", "ann"), ("edit", "0123456789ab", "--args", "{}", "--by", "ann")]
    for command in commands:
        told = keel(*command, "--url", f"{scheme}{tmp_path / 'missing'}", status=1).stderr
        assert "there is no Keel store" in told
    assert list(tmp_path.iterdir()) == []


def test_listing_changes_nothing(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    before = path.read_bytes()
    keel("approvals", "--all", "--url", url)
    keel("approval", waiting(url)[0]["id"], "--url", url)
    assert path.read_bytes() == before


# ---- asked at a checkpoint that never came


class Unlucky(Hook):
    def before_put(self, session: Session, put: Put) -> None:
        if put.metadata["step"] == 0:
            raise StoreUnavailable("the server is away")


def test_a_request_without_a_checkpoint_is_not_listed_or_decided(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url, extra_hooks=[Unlucky()]) as saver, pytest.raises(StoreUnavailable):
        graph_of(saver, book).invoke({}, CONFIG)
    assert "No request waits for a decision" in keel("approvals", "--url", url).stdout
    (request,) = keel_json("approvals", "--status", "superseded", "--url", url)["approvals"]
    assert "superseded" in keel("approval", request["id"], "--url", url).stdout
    told = keel("approve", request["id"], "--by", "ann", "--yes", "--url", url, status=1)
    assert "it is superseded: " in told.stderr
    assert keel_json("sweep", "--url", url)["waiting"] == 0
