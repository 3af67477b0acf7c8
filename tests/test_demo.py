"""`keel demo`, end to end: real processes, a real SIGKILL, and claims that must be able to fail."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langgraph_keel.cli.checkpoints import Row
from langgraph_keel.cli.demo_model import SCRIPT, TASK, answer
from langgraph_keel.cli.demo_proof import Evidence, claims
from langgraph_keel.cli.demo_run import Snapshot
from langgraph_keel.cli.demo_tools import calculate, search_notes

KILLED = 1 if os.name == "nt" else -signal.SIGKILL


def keel(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "langgraph_keel.cli", *arguments]
    settings = {name: value for name, value in os.environ.items() if name != "KEEL_URL"}
    return subprocess.run(command, capture_output=True, text=True, env=settings | env, timeout=120, encoding="utf-8")


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kill_at", [2, 5])
def test_the_demo_kills_and_resumes(tmp_path: Path, kill_at: int) -> None:
    found = _json(keel("demo", "--json", "--dir", str(tmp_path), "--pace", "0.02", "--kill-at", str(kill_at)))
    events = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    killed, resumed = found["killed"]["pid"], found["resumed"]["pid"]

    assert found["proved"] is True
    assert all(claim["holds"] for claim in found["claims"])
    assert found["killed"]["returncode"] == KILLED
    assert killed != resumed
    assert {event["pid"] for event in events} == {killed, resumed}
    # Seven model calls in all, each once, on both sides of the kill.
    paid = [event["turn"] for event in events if event["event"] == "model_paid"]
    assert sorted(paid) == list(range(1, len(SCRIPT) + 2))
    assert found["model_calls"] == {"before": kill_at, "after": len(SCRIPT) + 1 - kill_at, "twice": 0}
    # Every tool call ended once; only those that were cut began twice.
    ended = [event["call"] for event in events if event["event"] == "tool_ended"]
    began = [event["call"] for event in events if event["event"] == "tool_began"]
    assert len(ended) == len(set(ended)) == 11
    assert len(began) == len(ended) + found["tool_calls"]["cut"]
    assert found["tool_calls"]["finished_before"] + found["tool_calls"]["finished_after"] == len(ended)
    assert found["tool_calls"]["began_twice"] == sorted(found["killed"]["at_work"])
    # The side effect, and the work.
    assert (tmp_path / "ledger.csv").read_text(encoding="utf-8").split() == ["Harbor", "Foods,222.00"]
    assert "222.00 EUR" in (tmp_path / "report.md").read_text(encoding="utf-8")

    history = _json(keel("history", found["thread_id"], "--url", found["url"], "--json"))
    assert len(history["checkpoints"]) == found["checkpoints"]["final"]


def test_the_demo_tells_a_person_what_it_proved(tmp_path: Path) -> None:
    done = keel("demo", "--dir", str(tmp_path), "--pace", "0.02", COLUMNS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert f"exit status {KILLED}" in done.stdout
    assert "what it proved" in done.stdout
    assert "✗" not in done.stdout.partition("what it proved")[2]
    commands = re.findall(r"^  (?:export KEEL_URL=(\S+)|keel (.*))$", done.stdout, re.MULTILINE)
    url = commands[0][0]
    for _, command in commands[1:]:
        assert keel(*command.split(), KEEL_URL=url).returncode == 0


def test_a_store_of_ones_own_keeps_its_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    threads = [
        _json(keel("demo", "--json", "--url", url, "--dir", str(tmp_path / str(n)), "--pace", "0"))["thread_id"]
        for n in range(2)
    ]
    assert threads == ["demo", "demo-2"]
    assert _json(keel("history", "demo", "--url", url, "--json"))["checkpoints"][0]["next"] == []


def test_a_store_that_forgets_is_found_out(tmp_path: Path) -> None:
    done = keel("demo", "--json", "--url", "memory:", "--dir", str(tmp_path), "--pace", "0")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "not_found"


def test_an_earlier_demo_is_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("{}\n", encoding="utf-8")
    done = keel("demo", "--json", "--dir", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (1, "demo")


# ---- the claims can fail


def _event(event: str, turn: int, pid: int = 1, **facts: Any) -> dict[str, Any]:
    return {"event": event, "turn": turn, "pid": pid, "at": 0.0, **facts}


def _call(event: str, turn: int, name: str) -> dict[str, Any]:
    return _event(event, turn, call=f"call-{turn}-1", name=name, args={})


def _row(id_: str, follows: bool = True) -> Row:
    return Row(id_, None, "", 1, "loop", "", (), (), follows, False, (), (), ())


def _evidence() -> Evidence:
    messages = [HumanMessage("task", id="1"), AIMessage("", id="2")]
    result = ToolMessage("", tool_call_id="1", id="3")
    return Evidence(
        before=[
            _event("model_paid", 1), _call("tool_began", 1, "calculate"), _call("tool_ended", 1, "calculate"),
            _event("model_paid", 2), _call("tool_began", 2, "book_credit"),
        ],
        after=[
            _call("tool_began", 2, "book_credit"), _call("tool_ended", 2, "book_credit"),
            _event("model_paid", 3, read=3),
        ],
        kept=Snapshot([_row("b"), _row("a")], [*messages]),
        final=Snapshot([_row("c"), _row("b"), _row("a")], [*messages, result]),
        booked=["222.00"],
        report="222.00 EUR",
        status=KILLED,
    )  # fmt: skip


def _broken(**changes: Any) -> list[bool]:
    return [claim.holds for claim in claims(dataclasses.replace(_evidence(), **changes))]


def test_sound_evidence_proves_everything() -> None:
    assert all(_broken())


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (0, {"status": 0}),
        (1, {"final": Snapshot([_row("c"), _row("b"), _row("a")], [])}),
        (1, {"kept": Snapshot([_row("b"), _row("a")], [])}),
        (2, {"after": [*_evidence().after, _event("model_paid", 1)]}),
        (3, {"after": [*_evidence().after, _call("tool_began", 1, "calculate")]}),
        (4, {"after": _evidence().after[2:]}),
        (4, {"before": _evidence().before[:-1]}),
        (5, {"booked": ["222.00", "222.00"]}),
        (5, {"booked": []}),
        (6, {"final": Snapshot([_row("c"), _row("b")], _evidence().final.messages)}),
        (6, {"final": Snapshot([_row("c", False), _row("b"), _row("a")], _evidence().final.messages)}),
        (7, {"report": ""}),
    ],
)
def test_each_claim_fails_when_it_should(claim: int, changes: dict[str, Any]) -> None:
    assert not _broken(**changes)[claim]


# ---- the agent's parts


def test_the_tools_do_what_they_say() -> None:
    assert calculate("(ceil(41 / 30) + ceil(95 / 30)) * 2 / 100 * 1850.00") == "222.00"
    assert search_notes("outage Harbor Foods").split() == ["incident-0703", "incident-0719"]
    assert search_notes("xyzzy") == ""
    with pytest.raises(ValueError, match="not arithmetic"):
        calculate("__import__('os')")


def test_the_model_knows_only_the_messages() -> None:
    first = answer([HumanMessage(TASK)])
    assert first.tool_calls == answer([HumanMessage(TASK)]).tool_calls
    assert [call["name"] for call in first.tool_calls] == ["search_notes"] * 3
