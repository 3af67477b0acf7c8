"""The commands of `keel`, on databases written by real graphs."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.cli_threads import COMMANDS, EVIL, RAW, Work, _builder, _config, keel, keel_json, made_store
from support.log_graphs import CONFIG, graph, say
from typer.testing import CliRunner

from langgraph_keel import ThreadInfo, open_saver
from langgraph_keel.cli import app
from langgraph_keel.engine.entries import Header
from langgraph_keel.retention.owners import OwnerHook

# ---- the commands, as documented


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    shown = keel(*name.split(), "--help").stdout
    assert "Example:" in shown
    assert all(getattr(option, "help", None) for option in COMMANDS[name].params)
    assert "--json" in shown or name == "web"
    # `keys new` needs no store, and `copy` takes two.
    assert "--url" in shown or name in ("keys new", "copy")


def test_the_set_of_commands_is_unchanged() -> None:
    looking = {
        "threads",
        "usage",
        "status",
        "history",
        "show",
        "provenance",
        "export",
        "archive",
        "tools",
        "cache stats",
    }
    travelling = {"timeline", "diff", "rewind", "fork", "label", "unlabel"}
    deciding = {
        "approvals",
        "approval",
        "approve",
        "reject",
        "edit",
        "answer",
        "revise",
        "sweep",
        "audit show",
        "audit verify",
    }
    others = {"demo", "settle", "cache clear", "schema", "tenants", "info", "check", "repair"}
    keeping = {"prune", "erase", "hold", "delete", "reclaim", "retention show", "retention set", "retention clear"}
    keys = {"keys new", "keys show", "keys rotate", "keys renew", "keys migrate"}
    moving = {"copy", "import", "stats"}
    upgrading = {"doctor", "upgrade", "work"}
    handing = {"handoff", "journal", "note", "notes", "outcome", "workspace ls", "workspace diff", "workspace restore"}
    watching = {"tail", "web"}
    remembering = {f"store {each}" for each in ("ls", "search", "get", "put", "rm", "export", "import")}
    known = (
        *looking,
        *travelling,
        *deciding,
        *others,
        *keeping,
        *keys,
        *moving,
        *upgrading,
        *handing,
        *watching,
        *remembering,
    )
    assert set(COMMANDS) == set(known)


def test_version_and_a_call_without_arguments() -> None:
    assert keel("--version").stdout.startswith("langgraph-keel")
    assert "keel demo" in CliRunner().invoke(app, []).output


# ---- threads


def test_threads_lists_the_most_recently_active_thread_first(url: str) -> None:
    found = keel_json("threads", "--url", url)
    assert [info["thread_id"] for info in found["threads"]] == [EVIL, "trip"]
    assert found["more"] is False
    trip = found["threads"][1]
    assert trip["step"] == 3
    assert trip["checkpoints"] >= 6
    assert "trip" in keel("threads", "--url", url).stdout


def test_a_fact_of_a_feature_is_a_column_of_threads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(hook: OwnerHook, info: ThreadInfo, header: Header) -> ThreadInfo:
        return replace(info, facts=(*info.facts, ("plan", "gold"))) if info.thread_id == "trip" else info

    monkeypatch.setattr(OwnerHook, "describe_thread", describe)
    shown = keel("threads", "--url", url, COLUMNS="120").stdout
    assert re.search(r"thread +status +next +plan +checkpoints", shown)
    assert re.search(r"trip +waiting for a person +\w+ +gold +\d", shown)
    facts = [info["facts"] for info in keel_json("threads", "--url", url)["threads"]]
    assert facts == [{"waits": "for a person"}, {"plan": "gold", "waits": "for a person"}]


def test_threads_with_limit_reports_that_more_exist(url: str) -> None:
    assert keel_json("threads", "--url", url, "--limit", "1")["more"] is True
    assert "older ones" in keel("threads", "--url", url, "--limit", "1").stdout


def test_threads_unfinished_lists_threads_that_are_not_idle(url: str) -> None:
    found = {each["thread_id"]: each for each in keel_json("threads", "--unfinished", "--url", url)["threads"]}
    assert found[EVIL]["state"] == "waits"
    shown = keel("threads", "--unfinished", "--url", url).stdout
    assert "waits for a person" in shown
    assert not RAW.search(shown)
    assert keel_json("threads", "--unfinished", "--model", "m", "--url", url)["threads"] == []


def test_the_url_comes_from_the_environment(url: str) -> None:
    assert "trip" in keel("threads", KEEL_URL=url).stdout


# ---- history


def test_history_lists_completed_and_next_nodes(url: str) -> None:
    found = keel_json("history", "trip", "--url", url)["checkpoints"]
    steps = {row["step"]: row for row in found if row["source"] != "fork" and row["follows_previous"]}
    assert steps[-1]["source"] == "input"
    assert steps[1]["ran"] == ["plan"]
    assert steps[1]["next"] == ["also", "work"]
    assert steps[2]["ran"] == ["also", "work"]
    assert steps[3]["ran"] == ["ask"]
    assert steps[3]["next"] == []


def test_next_nodes_agree_with_langgraph(url: str) -> None:
    with open_saver(url) as saver:
        graph = _builder().compile(checkpointer=saver)
        for thread in ("trip", EVIL):
            told = [sorted(set(state.next)) for state in graph.get_state_history(_config(thread))]
            assert [row["next"] for row in keel_json("history", thread, "--url", url)["checkpoints"]] == told


def test_exactly_one_checkpoint_of_a_history_is_the_head(url: str) -> None:
    """The tips of branches are leaves; `keel timeline` agrees on both words."""
    found = keel_json("history", "trip", "--url", url)["checkpoints"]
    moments = {each["checkpoint_id"]: each for each in keel_json("timeline", "trip", "--url", url)["moments"]}
    assert [row["checkpoint_id"] for row in found if row["head"]] == [found[0]["checkpoint_id"]]
    assert sum(row["leaf"] for row in found) > 1
    for row in found:
        moment = moments[row["checkpoint_id"]]
        assert [row[name] for name in ("position", "head", "leaf")] == [
            moment[name] for name in ("position", "head", "leaf")
        ]


def test_every_command_accepts_the_same_names_of_a_moment(tmp_path: Path) -> None:
    """Its position, a label, its whole id, or the beginning or end of the id."""
    url = made_store(tmp_path)
    *_, oldest = keel_json("history", "trip", "--url", url)["checkpoints"]
    keel("label", "trip", str(oldest["position"]), "the first", "--url", url)
    told = [each["checkpoint_id"] for each in keel_json("history", "trip", "--url", url)["checkpoints"]]
    id_ = oldest["checkpoint_id"]
    start = next(id_[:size] for size in range(4, 36) if sum(each.startswith(id_[:size]) for each in told) == 1)
    for word in (str(oldest["position"]), "the first", id_, start, id_[-8:]):
        shown = keel_json("show", "trip", word, "--url", url)
        assert (shown["checkpoint_id"], shown["position"]) == (id_, oldest["position"])
        assert keel_json("provenance", "trip", "--checkpoint", word, "--url", url)["calls"] == []
        keel("diff", "trip", word, word, "--url", url)
        fork = keel_json("fork", "trip", word, f"fork at {word}", "--url", url)
        assert fork["checkpoint_id"] == id_
        keel("label", "trip", word, f"again {word}", "--url", url)
    assert f"#{oldest['position']}" in keel("show", "trip", "the first", "--url", url).stdout


def test_history_marks_a_fork_and_its_parent(url: str) -> None:
    newest, *older = keel_json("history", "trip", "--url", url)["checkpoints"]
    assert (newest["source"], newest["follows_previous"], newest["head"]) == ("fork", False, True)
    assert newest["parent_checkpoint_id"] in {row["checkpoint_id"] for row in older}
    (parent,) = [row["position"] for row in older if row["checkpoint_id"] == newest["parent_checkpoint_id"]]
    assert f"continues #{parent}" in _unwrapped("history", "trip", "--url", url)


def test_history_names_the_target_of_a_rewind(tmp_path: Path) -> None:
    url = made_store(tmp_path)
    rows = keel_json("history", "trip", "--url", url)["checkpoints"]
    # Only of the root graph: a subgraph's checkpoint may be stored before its parent's.
    for wanted in [row for row in rows if not row["checkpoint_ns"]][:-3:-1]:
        keel("rewind", "trip", wanted["checkpoint_id"], "--url", url)
        assert f"fork (rewound to #{wanted['position']})" in _unwrapped("history", "trip", "--url", url)
    assert "nothing" not in _unwrapped("history", "trip", "--url", url)


def test_history_shows_an_open_question(url: str) -> None:
    newest = keel_json("history", EVIL, "--url", url)["checkpoints"][0]
    assert newest["interrupts"][0]["value"] == {"question": "Pay [bold]100[/bold] EUR?\x1b[2J"}
    assert "waits:" in _unwrapped("history", EVIL, "--url", url)


def test_an_answered_question_no_longer_waits(url: str) -> None:
    rows = keel_json("history", "trip", "--url", url)["checkpoints"]
    assert [bool(row["interrupts"]) for row in rows] == [True] + [False] * (len(rows) - 1)


def _sulk(state: Work) -> dict[str, Any]:
    time.sleep(0.2)
    raise ValueError("no \x1b[31mluck")


def test_history_shows_errors_and_pending_writes(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'failed.db'}"
    builder = StateGraph(Work)
    builder.add_node("good", lambda state: {"log": ["good"]})
    builder.add_node("bad", _sulk)
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    start: Any = {"messages": []}
    with open_saver(where) as saver, pytest.raises(ValueError, match="luck"):
        builder.compile(checkpointer=saver).invoke(start, _config("t"))
    head, *_ = keel_json("history", "t", "--url", where)["checkpoints"]
    assert head["next"] == ["bad", "good"]
    assert head["pending_writes"] == ["log"]
    assert "luck" in head["errors"][0]
    shown = _unwrapped("history", "t", "--url", where)
    assert "failed: ValueError" in shown
    assert not RAW.search(shown)
    assert "__error__" in keel("show", "t", "--url", where).stdout


def test_history_with_limit_reports_that_more_exist(url: str) -> None:
    every = keel_json("history", "trip", "--url", url)["checkpoints"]
    some = keel_json("history", "trip", "--url", url, "--limit", "2")
    assert some["more"] is True
    assert some["checkpoints"] == every[:2]


def test_history_lists_namespaces_of_subgraphs(url: str) -> None:
    rows = keel_json("history", "trip", "--url", url, "--ns", "*")["checkpoints"]
    inner = next(row["checkpoint_ns"] for row in rows if row["checkpoint_ns"])
    assert inner.startswith("also:")
    only = keel_json("history", "trip", "--url", url, "--ns", inner)["checkpoints"]
    assert {row["checkpoint_ns"] for row in only} == {inner}
    assert "in also:" in _unwrapped("history", "trip", "--url", url, "--ns", "*")


def test_full_prints_whole_ids(url: str) -> None:
    newest = keel_json("history", "trip", "--url", url)["checkpoints"][0]["checkpoint_id"]
    assert newest not in keel("history", "trip", "--url", url).stdout
    assert newest in keel("history", "trip", "--url", url, "--full", COLUMNS="120").stdout


def _unwrapped(*arguments: str) -> str:
    return str(keel(*arguments, COLUMNS="250").stdout)


# ---- show


def test_show_prints_the_latest_state(url: str) -> None:
    shown = keel("show", EVIL, "--url", url).stdout
    assert "hello [link=x]there[/link]" in shown
    assert "Let me look." in shown
    assert "search(q='tide\\x07s', k=3)" in shown
    assert "found [red]42[/red]" in shown
    asked = shown.partition("waits for an answer\n")[2].splitlines()
    assert asked[0].rstrip() == r"  question: Pay [bold]100[/bold] EUR?\x1b[2J"
    assert "'source': 'loop'" in shown


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            {"pay": {"to": "bob", "for": [{"sku": 1, "n": 2}, "tip"]}, "ok": None, "says": "one\ntwo"},
            [
                "pay:",
                "  to: bob",
                "  for:",
                "    - sku: 1",
                "      n: 2",
                "    - tip",
                "ok: null",
                "says: one",
                "  two",
            ],
        ),
        ([1, {"a": []}], ["- 1", "- a: []"]),
        ({}, ["{}"]),
        ({"action": "pay", "args": {"n": 3}}, ["action: pay", "args:", "  n: 3"]),
    ],
)
def test_show_prints_a_structured_question_in_lines(tmp_path: Path, value: Any, lines: list[str]) -> None:
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver:
        ask = StateGraph(Work).add_node("ask", lambda state: {"log": [interrupt(value)]}).add_edge(START, "ask")
        ask.compile(checkpointer=saver).invoke({"log": []}, _config("t"))  # type: ignore[call-overload]
    shown = keel("show", "t", "--url", where).stdout.partition("waits for an answer\n")[2]
    assert [line.removeprefix("  ").rstrip() for line in shown.splitlines()] == lines


def test_show_json_contains_everything(url: str) -> None:
    found = keel_json("show", EVIL, "--url", url)
    messages = found["values"]["messages"]
    assert [message["type"] for message in messages] == ["human", "system", "ai", "tool"]
    assert messages[2]["tool_calls"][0]["args"] == {"q": "tide\x07s", "k": 3}
    assert found["values"]["notes"] == {"deep": {"list": [1, 2]}, "raw": repr(b"\xff"), "set": [1]}
    assert found["interrupts"][0]["value"]["question"].startswith("Pay")
    assert found["pending_writes"][0]["channel"] == "__interrupt__"
    assert found["next"] == ["ask"]


def test_show_accepts_an_id_or_its_beginning_or_end(url: str) -> None:
    wanted = keel_json("history", "trip", "--url", url)["checkpoints"][2]["checkpoint_id"]
    for given in (wanted, wanted[-8:], wanted[:-2]):
        assert keel_json("show", "trip", given, "--url", url)["checkpoint_id"] == wanted


def test_show_shortens_long_states_without_full(tmp_path: Path) -> None:
    where = f"sqlite:///{tmp_path / 'long.db'}"
    many: Any = {"messages": [HumanMessage(f"number {n} {'x' * 3000}") for n in range(60)]}
    with open_saver(where) as saver:
        _builder().compile(checkpointer=saver, interrupt_before=["plan"]).invoke(many, _config("long"))
    short, full = (keel("show", "long", "--url", where, *extra).stdout for extra in ([], ["--full"]))
    assert "20 earlier messages" in short
    assert "more characters" in short
    assert "number 0" not in short
    assert "number 0" in full
    assert full.count("x") > 60 * 3000


def test_a_pruned_parent_does_not_start_a_branch(tmp_path: Path) -> None:
    """Neither the two remaining checkpoints nor a second input start a branch."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        made = graph(saver, say("a"))
        for _ in range(3):
            made.invoke({"log": []}, CONFIG)
        inputs = [each for each in saver.timeline("t") if each.source == "input"]
        for name, moment in zip(("first", "second"), inputs[:2], strict=True):
            saver.labels.set(moment.config, name)
        saver.prune(["t"])
        assert len(saver.timeline("t")) == 3
        drawn = str(saver.timeline("t"))
    shown = _unwrapped("history", "t", "--url", url)
    assert shown.count("(its parent was pruned)") == 2
    assert "branch from" not in shown
    assert drawn.count("its parent was pruned") == 2
    assert "starts over" not in drawn
