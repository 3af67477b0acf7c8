"""`keel demo`, end to end: real processes, a real SIGKILL, claims that can fail."""

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
from langchain_core.utils.function_calling import convert_to_openai_tool

from langgraph_keel.cli.demo import CUSTOMER, TASK, Evidence, Snapshot, answer, claims, tools
from langgraph_keel.engine.config import Address
from langgraph_keel.history.moment import Moment

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "langgraph_keel" / "cli" / "README.md"
PLAY = ("demo", "--json", "--pace", "0")


def keel(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "langgraph_keel.cli", *arguments]
    settings = {name: value for name, value in os.environ.items() if name != "KEEL_URL"}
    return subprocess.run(command, capture_output=True, text=True, env=settings | env, timeout=120, encoding="utf-8")


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_demo_kills_resumes_and_approves(tmp_path: Path) -> None:
    found = _json(keel(*PLAY, "--dir", str(tmp_path)))
    events = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text(encoding="utf-8").splitlines()]
    killed, resumed, decided = found["pids"]

    assert all(claim["holds"] for claim in found["claims"])
    assert {event["pid"] for event in events} == {killed, resumed, decided}
    # Four model calls, each made once, before and after the kill and the approval.
    paid = [(event["pid"], event["turn"]) for event in events if event["event"] == "model_paid"]
    assert paid == [(killed, 1), (killed, 2), (resumed, 3), (decided, 4)]
    # Every tool call ended once; calls that were interrupted or asked a person began twice.
    ended = [event["name"] for event in events if event["event"] == "tool_ended"]
    began = [event["name"] for event in events if event["event"] == "tool_began"]
    assert sorted(ended) == ["book_credit", "find_outages", "send_letter", "write_letter"]
    assert sorted(began) == sorted([*ended, "send_letter", "write_letter"])
    replayed = [(event["pid"], event["name"]) for event in events if event["event"] == "tool_replayed"]
    assert replayed == [(resumed, "book_credit")]
    # The side effects and the results.
    (booked,) = (tmp_path / "credits.csv").read_text(encoding="utf-8").splitlines()
    assert booked.startswith(f"{CUSTOMER},222.00,")
    assert "222.00 EUR" in (tmp_path / "letter.md").read_text(encoding="utf-8")
    kept = _json(keel("tools", found["thread_id"], "--url", found["url"], "--json"))["calls"]
    assert {call["state"] for call in kept} == {"done"}
    assert sum(call["hits"] for call in kept) == 1


def test_the_page_shows_the_output_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = keel("demo", "--dir", "keel-demo", "--pace", "0", COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"## The demo\n.*?```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    assert _without_chance(done.stdout) == _without_chance(shown[1])
    commands = re.findall(r"^  (?:export KEEL_URL=(\S+)|keel (.*))$", done.stdout, re.MULTILINE)
    url = commands[0][0]
    for _, command in commands[1:]:
        assert keel(*command.split(), KEEL_URL=url).returncode == 0


def _without_chance(text: str) -> str:
    """Remove varying numbers, and sort the results of concurrent calls."""
    text = re.sub(r"process \d+", "process N", re.sub(r"\d+\.\d s", "N s", text)).strip()
    return re.sub(r"(?:^  ✓ .*\n)+", lambda calls: "".join(sorted(calls[0].splitlines(True))), text, flags=re.MULTILINE)


def test_a_store_of_the_users_keeps_its_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    threads = [_json(keel(*PLAY, "--url", url, "--dir", str(tmp_path / str(n))))["thread_id"] for n in range(2)]
    assert threads == ["demo", "demo-2"]
    assert _json(keel("history", "demo", "--url", url, "--json"))["checkpoints"][0]["next"] == []


def test_a_store_without_persistence_is_detected(tmp_path: Path) -> None:
    done = keel(*PLAY, "--url", "memory:", "--dir", str(tmp_path))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "not_found"


def test_a_directory_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("{}\n", encoding="utf-8")
    done = keel("demo", "--json", "--dir", str(tmp_path))
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (1, "demo")


# ---- the claims can fail


def _event(event: str, turn: int = 0, **facts: Any) -> dict[str, Any]:
    return {"event": event, "turn": turn, **facts}


def _call(event: str, name: str) -> dict[str, Any]:
    return _event(event, name=name, args={})


def _moment(id_: str, parent: str | None = None) -> Moment:
    return Moment(address=Address("demo", "", id_), position=0, parent=parent, step=1)


A, B, C = _moment("a"), _moment("b", "a"), _moment("c", "b")
FIRST = [
    _event("model_paid", 1),
    *(_call("tool_began", "book_credit"), _call("tool_ended", "book_credit"), _call("tool_began", "write_letter")),
]
SECOND = [
    *(_call("tool_replayed", "book_credit"), _call("tool_began", "write_letter"), _call("tool_ended", "write_letter")),
    _event("model_paid", 2, read=4),
    _call("tool_began", "send_letter"),
]
THIRD = [_call("tool_began", "send_letter"), _call("tool_ended", "send_letter"), _event("model_paid", 3, read=6)]


def _evidence() -> Evidence:
    messages = [HumanMessage("task", id="1"), AIMessage("", id="2")]
    results = [ToolMessage("", tool_call_id=each, id=each) for each in ("3", "4")]
    return Evidence(
        events={1: FIRST, 2: SECOND, 3: THIRD},
        status=-signal.SIGKILL,
        kept=Snapshot([A, B], [*messages]),
        final=Snapshot([A, B, C], [*messages, *results]),
        booked=[f"{CUSTOMER},222.00,key"],
        sent=[f"to {CUSTOMER}, approved by maria"],
    )


def _final(**changes: Any) -> dict[str, Snapshot]:
    return {"final": dataclasses.replace(_evidence().final, **changes)}


def _events(first: Any = FIRST, second: Any = SECOND, third: Any = THIRD) -> dict[str, Any]:
    return {"events": {1: first, 2: second, 3: third}}


def _proven(**changes: Any) -> list[bool]:
    return [holds for _, holds in claims(dataclasses.replace(_evidence(), **changes))]


def test_sound_evidence_proves_everything() -> None:
    assert all(_proven())


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (0, {"status": 0}),
        (1, _final(messages=[])),
        (1, {"kept": Snapshot([A, B], [])}),
        (1, _events(second=SECOND[1:])),
        (2, _events(third=[*THIRD, _event("model_paid", 1)])),
        (2, _events(first=FIRST[1:])),
        (3, _events(second=[*SECOND, _call("tool_began", "book_credit")])),
        (3, _events(second=SECOND[1:])),
        (3, _events(third=[*THIRD, _call("tool_ended", "book_credit")])),
        (4, _events(first=FIRST[:-1])),
        (4, _events(second=[SECOND[0], *SECOND[2:]])),
        (5, {"booked": ["222.00", "222.00"]}),
        (5, {"booked": []}),
        (6, {"sent": []}),
        (6, {"sent": [f"to {CUSTOMER}, approved by maria"] * 2}),
        (6, _events(third=THIRD[2:])),
        (7, _final(moments=[B, C])),
        (7, _final(moments=[A, B, _moment("c", "a")])),
    ],
)
def test_each_claim_fails_without_its_evidence(claim: int, changes: dict[str, Any]) -> None:
    assert not _proven(**changes)[claim]


# ---- the agent's parts


def test_a_credit_is_booked_once_per_key(tmp_path: Path) -> None:
    book = next(tool for tool in tools(tmp_path) if tool.name == "book_credit")

    def keys_booked(*keys: str) -> list[str]:
        for key in keys:
            assert book.func(customer="Ada", amount="1.00", key=key) == "booked 1.00 EUR for Ada"  # type: ignore[misc]
        return [line.split(",")[2] for line in (tmp_path / "credits.csv").read_text(encoding="utf-8").splitlines()]

    assert keys_booked("k1", "k1", "k2") == ["k1", "k2"]
    assert keys_booked("", "") == ["k1", "k2", "", ""]


def test_the_model_is_not_asked_for_the_key(tmp_path: Path) -> None:
    book_credit = next(tool for tool in tools(tmp_path) if tool.name == "book_credit")
    assert set(convert_to_openai_tool(book_credit)["function"]["parameters"]["properties"]) == {"customer", "amount"}


def test_the_model_answers_from_the_messages_alone() -> None:
    first = answer([HumanMessage(TASK)])
    assert first.tool_calls == answer([HumanMessage(TASK)]).tool_calls
    assert [call["name"] for call in first.tool_calls] == ["find_outages"]
