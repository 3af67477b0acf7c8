"""Summaries of summaries: the archive has every message, even after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from support.process_children import exit_code, forked
from support.summaries.conversations import Noting, orphans, talk
from support.summaries.graphs import chat
from support.tool_graphs import BACKENDS, FACES, run, thread

from langgraph_keel import KeelSaver, MemorySaver, SqliteSaver, SummarizationNode
from langgraph_keel.summaries import summarizer
from langgraph_keel.summaries.archive.storage import archive_messages

ROUNDS = 5
SAID = [f"summary {number}" for number in range(9)]


def node(model: Any = None, **options: Any) -> SummarizationNode:
    return SummarizationNode(model or Noting(said=SAID), trigger=("messages", 12), keep=("messages", 4), **options)


def turn(number: int) -> list[Any]:
    """One turn: two questions with parallel calls, and a message with an image."""
    picture = {"type": "image", "base64": "AAAA" * 50, "mime_type": "image/png"}
    odd = HumanMessage([f"look at {number}", picture], id=f"odd-{number}", additional_kwargs={"n": {"at": 1.5}})
    return [odd, *talk(2, 1 + number % 3, start=2 * number)]


def everything(rounds: int) -> list[BaseMessage]:
    said: list[Any] = []
    for number in range(rounds):
        last = turn(number)[-1]
        said += [*turn(number), AIMessage(f"answer to {last.text}", id=f"answer-{last.id}")]
    return said


def stored(saver: KeelSaver, messages: Any) -> list[Any]:
    return [saver.serde.dumps_typed(message) for message in messages]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_rolling_summaries_are_restored_byte_by_byte(stores: Any, backend: str, face: str) -> None:
    stores[backend].wipe()
    saver: KeelSaver = stores[backend].open()
    graph = chat(node(model := Noting(said=SAID)), saver)
    for number in range(ROUNDS):
        state = await run(graph, face, {"messages": turn(number)}, thread("1"))
        assert orphans(state["messages"]) == []
    assert len(model.seen) == 4
    for number, seen in enumerate(model.seen[1:]):
        assert f"<previous_summary>\nsummary {number}\n" in seen
    saver.prune(["1"], strategy="keep_latest")
    fresh: KeelSaver = stores[backend].open()
    archive = fresh.archive("1")
    entries = await archive.aentries()
    assert [entry.summary for entry in entries] == SAID[:4]
    assert [entry.previous for entry in entries] == [None, *[entry.id for entry in entries[:-1]]]
    wanted = everything(ROUNDS)
    gone, summary, kept = await archive.amessages(), state["messages"][0], state["messages"][1:]
    assert summary.additional_kwargs["keel_summary"]["archive"] == entries[-1].id
    assert [*gone, *kept] == wanted
    assert stored(saver, [*gone, *kept]) == stored(saver, wanted)
    graph = chat(node(), fresh)
    await archive.arestore(graph)
    back = (await graph.aget_state(thread("1"))).values["messages"]
    assert back == wanted
    assert stored(saver, back) == stored(saver, wanted)
    state = await run(graph, face, {"messages": turn(ROUNDS)}, thread("1"))  # and the run continues from there
    assert [*await archive.amessages(), *state["messages"][1:]] == everything(ROUNDS + 1)


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_the_savers_rule_archives_nothing_more(durability: Any) -> None:
    saver = MemorySaver(archive_removed=True)
    graph = chat(node(), saver)
    for number in range(3):
        graph.invoke({"messages": turn(number)}, thread("1"), durability=durability)
    assert [entry.by for entry in saver.archive("1")] == ["summary", "summary"]


# -- killed ------------------------------------------------------------------------------------------------------------


def killed_while_summarizing(path: Path, durability: Any, is_before: bool) -> None:
    """Kill the process before or after the removal is archived."""

    def archive(session: Any, removal: Any) -> Any:
        if not is_before:
            yield from archive_messages(session, removal)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(summarizer, "archive_messages", archive)  # noqa: B010 - where the summarizer looks it up
    with SqliteSaver(str(path)) as saver:
        chat(node(), saver).invoke({"messages": turn(1)}, thread("1"), durability=durability)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_kill_between_archive_and_commit_loses_no_messages(tmp_path: Path, is_before: bool, durability: Any) -> None:
    path = tmp_path / "agent.db"
    with SqliteSaver(str(path)) as saver:
        chat(node(), saver).invoke({"messages": turn(0)}, thread("1"), durability=durability)
    child = forked(killed_while_summarizing, path, durability, is_before)
    assert exit_code(child) == -signal.SIGKILL
    with SqliteSaver(str(path)) as saver:
        graph = chat(node(Noting(said=["another summary"])), saver)
        began = graph.get_state(thread("1"))
        assert stored(saver, began.values["messages"][:10]) == stored(saver, everything(1))
        before = [entry.id for entry in saver.archive("1")]
        assert len(before) == (0 if is_before else 1)
        state = graph.invoke(None if began.next else {"messages": turn(1)}, thread("1"), durability=durability)
        (entry,) = saver.archive("1")
        assert before in ([], [entry.id])
        assert entry.summary == "another summary"
        assert "another summary" in state["messages"][0].text
        assert [*saver.archive("1").messages(), *state["messages"][1:]] == everything(2)
