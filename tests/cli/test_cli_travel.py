"""`keel timeline`, `rewind`, `fork`, `label` and `unlabel`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from support.cli_threads import EVIL, RAW, keel, keel_json
from support.tool_graphs import Killed, calls, turn_of

from langgraph_keel import SqliteSaver, ToolCache


def said(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", f"{EVIL} {len(state['messages'])}")]}


def graph(saver: SqliteSaver) -> Any:
    return (
        StateGraph(MessagesState)
        .add_sequence([("say", said), ("say again", said)])
        .add_edge(START, "say")
        .compile(saver)
    )


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "keel.db")


@pytest.fixture
def url(path: str) -> str:
    """A store with a thread of four moments."""
    with SqliteSaver(path) as saver:
        graph(saver).invoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "t"}}, durability="sync")
    return f"sqlite:///{path}"


def test_timeline_lists_moments(url: str) -> None:
    shown = keel("timeline", "t", "--url", url).stdout
    assert shown.startswith("thread t · 4 moments")
    assert [line for line in shown.splitlines() if "say again" in line]
    assert "\\x1b[31m[red]" in shown
    assert not RAW.search(shown)
    assert "2 older moments" in keel("timeline", "t", "--limit", "2", "--url", url).stdout
    assert "older" not in keel("timeline", "t", "--limit", "2", "--all", "--url", url).stdout


def test_timeline_json(url: str) -> None:
    told = keel_json("timeline", "t", "--limit", "3", "--url", url)
    assert [moment["position"] for moment in told["moments"]] == [1, 2, 3]
    assert [moment["ran"] for moment in told["moments"]] == [["__start__"], ["say"], ["say again"]]
    assert [moment["head"] for moment in told["moments"]] == [False, False, True]
    assert told["older"] == 1


def test_rewind(url: str, path: str) -> None:
    shown = keel("rewind", "t", "-2", "--url", url).stdout
    assert shown.startswith("rewound t to #2\n")
    with SqliteSaver(path) as saver:
        tl = saver.timeline("t")
        assert [moment.position for moment in tl if moment.is_head] == [4]
        assert tl[4].values == tl[2].values
        state = graph(saver).invoke(None, {"configurable": {"thread_id": "t"}})
        assert len(state["messages"]) == 3
    told = keel_json("rewind", "t", "2", "--url", url)
    assert told["rewound_to"] == keel_json("timeline", "t", "--url", url)["moments"][2]["checkpoint_id"]


def test_fork(url: str) -> None:
    assert keel("fork", "t", "2", "other", "--url", url).stdout.startswith("forked t at #2 to thread other\n")
    assert len(keel_json("timeline", "other", "--url", url)["moments"]) == 3
    branch = keel_json("fork", "t", "2", "--url", url)
    assert branch["thread_id"] == "t"
    moments = keel_json("timeline", "t", "--url", url)["moments"]
    assert [moment["position"] for moment in moments if moment["head"]] == [3]
    assert moments[-1]["checkpoint_id"] == branch["checkpoint_id"]


def refunded(path: str) -> None:
    """A thread that asks, is approved, refunds, and dies in a second refund."""

    def refund(order: str) -> str:
        """Refund."""
        if order == "18":
            raise Killed
        return "refunded"

    script = [calls(("refund", {"order": order}, order)) for order in ("17", "18")]
    with SqliteSaver(path) as saver, ToolCache(saver) as cache:
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {"messages": [turn_of(script, state["messages"])]})
        builder.add_node("approve", lambda state: interrupt("Refund?") and {})
        builder.add_node("tools", ToolNode([refund], wrap_tool_call=cache.wrap_tool_call))
        builder.add_edge(START, "agent").add_edge("agent", "approve").add_edge("approve", "tools")
        builder.add_edge("tools", "agent")
        graph: Any = builder.compile(saver)
        config: Any = {"configurable": {"thread_id": "ada"}}
        graph.invoke({"messages": [("user", "hi")]}, config, durability="sync")
        for _ in range(2):
            (request,) = saver.approvals.pending("ada")
            saver.approvals.answer(request.id, value="yes", by="maria")
            with suppress(Killed):
                graph.invoke(saver.approvals.resume("ada"), config, durability="sync")


def test_fork_describes_the_next_run(path: str) -> None:
    refunded(path)
    moments = keel_json("timeline", "ada", "--all", "--url", path)["moments"]
    first, last = [moment["position"] for moment in moments if moment["next"] == ["tools"]]
    shown = keel("fork", "ada", str(first), "early", "--url", path, "--by", "ann").stdout
    assert "The next run continues with tools." in shown
    again = "calls again the tools that 'ada' called after this point: refund (`keel tools ada`)."
    assert again in " ".join(shown.split())
    assert "may act on an approval that was given in ada: Refund? by maria" in shown
    assert (
        "A run that names this checkpoint continues with tools."
        in keel("fork", "ada", str(first), "--url", path).stdout
    )
    said = "is a fork of thread 'ada' with steps left before tools, and has not run since: a run repeats these steps"
    assert said in keel("threads", "--unfinished", "--url", path).stdout
    told = keel_json("fork", "ada", str(last), "late", "--url", path)
    assert ([call["tool"] for call in told["doubts"]], told["calls_after"]) == (["refund"], [])
    shown = keel("fork", "ada", "-1", "now", "--url", path, COLUMNS="200").stdout
    assert "a run repeats these steps; no tool calls of 'ada' after this point are known." in shown
    assert "1 tool call with unknown outcome (refund " in shown
    shown = keel("tools", "--unknown", "--url", path, COLUMNS="200").stdout
    assert shown.count("keel settle") == shown.count("--thread ada") == 3
    assert shown.count("Shared with thread ada. Wait until it has ended there, or settle it there") == 2
    refused = keel_json("settle", told["doubts"][0]["key"], "retry", "--thread", "late", "--url", path, status=2)
    assert "is shared with thread 'ada', which may have made it" in refused["error"]["message"]
    events = keel_json("audit", "show", "--url", path)["events"]
    assert [event["content"]["by"] for event in events if event["kind"] == "forked"] == ["ann"]
    doubt = told["doubts"][0]["key"]
    shown = keel("settle", doubt, "done", "--thread", "late", "--url", path, COLUMNS="200").stdout
    assert "Resume" not in shown
    assert "uses the stored results of tool calls (refund); no tool calls of" in shown
    assert keel("delete", "ada", "--yes", "--url", path)
    shown = keel("status", "early", "--url", path, COLUMNS="200").stdout
    assert "that 'now' called after this point: refund" in shown
    assert "; 'ada' was deleted, so its tool calls after this point are unknown" in shown


def test_tools_unknown_names_the_command_that_shows_arguments(path: str) -> None:
    refunded(path)
    (line,) = [line for line in keel("tools", "--unknown", "--url", path).stdout.splitlines() if "arguments" in line]
    assert "refund(order='18')" in keel(*line.partition("): ")[2].split()[1:]).stdout


def test_rewind_describes_the_next_run(path: str) -> None:
    refunded(path)
    shown = keel("rewind", "ada", "-1", "--url", path).stdout
    assert "The next run continues with tools." in shown
    assert "answered from the ledger" in shown
    (doubt,) = [call for call in keel_json("tools", "ada", "--url", path)["calls"] if call["state"] == "unknown"]
    keel("settle", doubt["key"], "done", "--thread", "ada", "--by", "eve", "--url", path)
    *_, event = keel_json("audit", "show", "--url", path)["events"]
    assert (event["kind"], event["content"]["by"]) == ("settled", "eve")


def test_label_and_unlabel(url: str) -> None:
    assert keel("label", "t", "1", EVIL, "--url", url).stdout.startswith("t: #1 is now 'pay \\x1b")
    assert keel_json("timeline", "t", "--url", url)["moments"][1]["labels"] == [EVIL]
    assert keel_json("rewind", "t", EVIL, "--url", url)["thread_id"] == "t"
    assert keel("unlabel", "t", EVIL, "--url", url).stdout.startswith("t: removed the label 'pay \\x1b")
    assert [moment["labels"] for moment in keel_json("timeline", "t", "--url", url)["moments"]] == [[]] * 5


@pytest.mark.parametrize("command", ["show", "provenance"])
def test_a_negative_position_is_not_parsed_as_an_option(command: str, url: str) -> None:
    assert keel_json(command, "t", "-1", "--url", url) == keel_json(command, "t", "3", "--url", url)
    assert keel_json(command, "t", "-4", "--url", url) == keel_json(command, "t", "0", "--url", url)
    assert "has 4 moments" in keel(command, "t", "-5", "--url", url, status=1).stderr
    assert "No such option: --jsn" in keel(command, "t", "--jsn", "--url", url, status=2).stderr


def test_a_moment_given_twice_is_refused(url: str) -> None:
    assert "give one checkpoint" in keel("provenance", "t", "-1", "--checkpoint", "2", "--url", url, status=2).stderr
    assert keel_json("provenance", "t", "-c", "-1", "--url", url) == keel_json("provenance", "t", "3", "--url", url)


POSITIONS = [
    ["show", "t", "17"],
    ["rewind", "t", "17"],
    ["fork", "t", "17", "new"],
    ["label", "t", "17", "name"],
    ["diff", "t", "0", "17"],
    ["provenance", "t", "--checkpoint", "17"],
]
"""Commands with a position that does not exist: not found, like an unknown name or id."""


@pytest.mark.parametrize(
    ("words", "told", "status"),
    [
        (["timeline", "nobody"], "no thread 'nobody'", 1),
        *((words, "has 4 moments", 1) for words in POSITIONS),
        (["rewind", "t", "nothing"], "has no moment 'nothing'", 1),
        (["rewind", "t", "--jsn"], "No such option: --jsn", 2),
        (["diff", "t", "-2", "--jsn"], "no such option: --jsn", 2),
        (["show", "t", "1f1"], "at least 4 characters", 1),
        (["fork", "t", "1", "t"], "already holds", 2),
        (["label", "t", "1", "12"], "cannot be a label", 2),
        (["unlabel", "t", "gone"], "no label 'gone'", 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_requests_are_errors(words: list[str], told: str, status: int, url: str) -> None:
    result = keel(*words, "--url", url, status=status)
    assert told in result.stderr
