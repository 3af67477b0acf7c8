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
from langchain_core.utils.function_calling import convert_to_openai_tool
from tiers import sized

from langgraph_keel.cli.demo import Evidence, Snapshot, claims, hangs
from langgraph_keel.cli.demo_agent import TASK, TURNS, answer, bookings, calculate, search_notes, tools
from langgraph_keel.engine.config import Address
from langgraph_keel.history.moment import Moment
from langgraph_keel.tools.ledger import KeptCall

pytestmark = pytest.mark.slow

KILLED = 1 if os.name == "nt" else -signal.SIGKILL
CALLS = 12
# What had finished beside the call that hangs, by the turn of the kill.
SIBLINGS = {2: ["read_note"] * 3, 3: [], 4: ["book_credit"], 5: [], 6: []}


def keel(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "langgraph_keel.cli", *arguments]
    settings = {name: value for name, value in os.environ.items() if name != "KEEL_URL"}
    return subprocess.run(command, capture_output=True, text=True, env=settings | env, timeout=120, encoding="utf-8")


def _json(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kill_at", sized([4], [2, 4], list(SIBLINGS)))
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
    assert sorted(paid) == list(range(1, TURNS + 2))
    assert found["model_calls"] == {"before": kill_at, "after": TURNS + 1 - kill_at, "twice": 0}
    # Every tool call ended once; only those that were cut began twice.
    ended = [event["call"] for event in events if event["event"] == "tool_ended"]
    began = [event["call"] for event in events if event["event"] == "tool_began"]
    assert len(ended) == len(set(ended)) == CALLS
    assert found["tool_calls"]["cut"] == 1
    assert len(began) == len(ended) + 1
    assert found["tool_calls"]["finished_before"] + found["tool_calls"]["finished_after"] == len(ended)
    assert found["tool_calls"]["began_twice"] == sorted(found["killed"]["at_work"])
    # Those that finished beside it were answered from the ledger of tool calls.
    replayed = [event for event in events if event["event"] == "tool_replayed"]
    assert [event["name"] for event in replayed] == found["tool_calls"]["from_ledger"] == SIBLINGS[kill_at]
    assert {(event["pid"], event["turn"]) for event in replayed} <= {(resumed, kill_at)}
    hits = len(replayed)
    rate = round(hits / (hits + CALLS), 4)
    assert found["ledger"] == {"calls": CALLS, "hits": hits, "hit_rate": rate}
    # The side effect, and the work.
    assert [amount for _, amount, _ in bookings(tmp_path)] == ["222.00"]
    assert all("222.00 EUR" in (tmp_path / name).read_text(encoding="utf-8") for name in ("letter.md", "report.md"))

    history = _json(keel("history", found["thread_id"], "--url", found["url"], "--json"))
    assert len(history["checkpoints"]) == found["checkpoints"]["final"]
    kept = _json(keel("tools", found["thread_id"], "--url", found["url"], "--json"))["calls"]
    assert {call["state"] for call in kept} == {"done"}
    assert sum(call["hits"] for call in kept) == hits


def test_every_turn_can_be_the_last() -> None:
    assert list(SIBLINGS) == list(range(2, TURNS + 1))


def test_the_demo_tells_a_person_what_it_proved(tmp_path: Path) -> None:
    done = keel("demo", "--dir", str(tmp_path), "--pace", "0.02", COLUMNS="100")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert f"exit status {KILLED}" in done.stdout
    assert "what it proved" in done.stdout
    assert "✗" not in done.stdout.partition("what it proved")[2]
    assert "→ from the ledger: booked 222.00 EUR" in done.stdout
    # After the claims, what it means in a few lines; no figure of a cache, which says nothing of a crash.
    proof = done.stdout.partition("what it proved")[2].partition("╰")[0].splitlines()
    meaning = proof[proof.index(f"│{' ' * 98}│") + 1 :]
    assert "nothing that was paid for was lost or repeated" in meaning[0]
    assert len(meaning) <= 4
    assert "hit rate" not in done.stdout
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


def _call(event: str, turn: int, name: str, place: int = 1) -> dict[str, Any]:
    return _event(event, turn, call=f"call-{turn}-{place}", name=name, args={})


def _kept(call: str, hits: int = 0) -> KeptCall:
    return KeptCall("demo", call, "", "done", {}, "", "", hits, None, 0, True, None, "", "", "", call, "")


def _moment(id_: str, parent: str | None = None) -> Moment:
    return Moment(address=Address("demo", "", id_), position=0, parent=parent, step=1)


A, B, C = _moment("a"), _moment("b", "a"), _moment("c", "b")


def _evidence() -> Evidence:
    messages = [HumanMessage("task", id="1"), AIMessage("", id="2")]
    results = [ToolMessage("", tool_call_id=f"call-2-{place}", id=f"{place + 2}") for place in (1, 2)]
    return Evidence(
        before=[
            _event("model_paid", 1), _call("tool_began", 1, "calculate"), _call("tool_ended", 1, "calculate"),
            _event("model_paid", 2), _call("tool_began", 2, "book_credit"), _call("tool_ended", 2, "book_credit"),
            _call("tool_began", 2, "write_letter", 2),
        ],
        after=[
            _call("tool_replayed", 2, "book_credit"),
            _call("tool_began", 2, "write_letter", 2), _call("tool_ended", 2, "write_letter", 2),
            _event("model_paid", 3, read=4),
        ],
        kept=Snapshot([B, A], [*messages], [_kept("call-1-1"), _kept("call-2-1"), _kept("call-2-2")]),
        final=Snapshot(
            [C, B, A],
            [*messages, *results],
            [_kept("call-1-1"), _kept("call-2-1", hits=1), _kept("call-2-2")],
        ),
        booked=["222.00"],
        report="222.00 EUR",
        status=KILLED,
    )  # fmt: skip


def _final(**changes: Any) -> dict[str, Snapshot]:
    return {"final": dataclasses.replace(_evidence().final, **changes)}


def _broken(**changes: Any) -> list[bool]:
    return [claim.holds for claim in claims(dataclasses.replace(_evidence(), **changes))]


def test_sound_evidence_proves_everything() -> None:
    assert all(_broken())


@pytest.mark.parametrize(
    ("claim", "changes"),
    [
        (0, {"status": 0}),
        (1, _final(messages=[])),
        (1, {"kept": dataclasses.replace(_evidence().kept, messages=[])}),
        (1, {"after": _evidence().after[1:]}),
        (2, {"after": [*_evidence().after, _event("model_paid", 1)]}),
        (3, {"after": [*_evidence().after, _call("tool_began", 1, "calculate")]}),
        (4, {"after": _evidence().after[1:]}),
        (4, {"after": [*_evidence().after, _call("tool_replayed", 1, "calculate")]}),
        (4, {"after": [*_evidence().after, _call("tool_began", 2, "book_credit")]}),
        (4, _final(calls=[_kept("call-2-1")])),
        (4, _final(calls=[_kept("call-2-1", hits=2)])),
        (4, _final(calls=[_kept("call-2-1", hits=1), _kept("call-1-1", hits=1)])),
        (5, {"after": [_evidence().after[0], *_evidence().after[3:]]}),
        (5, {"before": _evidence().before[:-1]}),
        (6, {"booked": ["222.00", "222.00"]}),
        (6, {"booked": []}),
        (7, _final(moments=[C, B])),
        (7, _final(moments=[_moment("c", "a"), B, A])),
        (8, {"report": ""}),
    ],
)
def test_each_claim_fails_when_it_should(claim: int, changes: dict[str, Any]) -> None:
    assert not _broken(**changes)[claim]


def test_the_kill_waits_for_the_results_of_the_siblings() -> None:
    asked = _event("model_answered", 2, asks=["book_credit", "write_letter"])
    began = [_call("tool_began", 2, "book_credit"), _call("tool_began", 2, "write_letter", 2)]
    seen = [asked, *began, _call("tool_ended", 2, "book_credit")]
    kept = _call("tool_kept", 2, "book_credit")
    assert not hangs(seen, 2)
    assert hangs([*seen, kept], 2)
    assert hangs([asked, began[0], kept, began[1]], 2)
    assert not hangs([asked, began[0], kept], 2)
    assert not hangs([*seen, kept], 1)


# ---- the agent's parts


def test_the_tools_do_what_they_say() -> None:
    assert calculate("(ceil(41 / 30) + ceil(95 / 30)) * 2 / 100 * 1850.00") == "222.00"
    assert search_notes("outage Harbor Foods").split() == ["incident-0703", "incident-0719"]
    assert search_notes("xyzzy") == ""
    with pytest.raises(ValueError, match="not arithmetic"):
        calculate("__import__('os')")


def test_a_credit_is_booked_once_for_a_key(tmp_path: Path) -> None:
    book = next(tool for tool in tools(tmp_path) if tool.name == "book_credit")

    def keys_booked(*keys: str) -> list[str]:
        for key in keys:
            assert book.func(customer="Ada", amount="1.00", key=key) == "booked 1.00 EUR for Ada"  # type: ignore[attr-defined]
        return [key for _, _, key in bookings(tmp_path)]

    assert keys_booked("k1", "k1", "k2") == ["k1", "k2"]
    assert keys_booked("", "") == ["k1", "k2", "", ""]


def test_the_model_is_not_asked_for_the_key(tmp_path: Path) -> None:
    book_credit = next(tool for tool in tools(tmp_path) if tool.name == "book_credit")
    assert set(convert_to_openai_tool(book_credit)["function"]["parameters"]["properties"]) == {"customer", "amount"}


def test_the_model_knows_only_the_messages() -> None:
    first = answer([HumanMessage(TASK)])
    assert first.tool_calls == answer([HumanMessage(TASK)]).tool_calls
    assert [call["name"] for call in first.tool_calls] == ["search_notes"] * 3
