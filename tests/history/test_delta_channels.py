"""A list in a delta channel is shown like any other list.

The writes of each step are its changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from support.cli_threads import keel, keel_json

from langgraph_keel import KeelSaver, SqliteSaver


def merged(state: Any, writes: Sequence[Any]) -> Any:
    for write in writes:
        state = add_messages(state or [], write)
    return state


class Seldom(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(merged)]


class Often(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(merged, snapshot_frequency=3)]


def chat(saver: KeelSaver, thread_id: str, state: Any) -> None:
    """Two turns with tools, one of which fails; a rewind, and another turn."""

    def ask(state: Any) -> Any:
        n = len(state["messages"])
        return {
            "messages": [AIMessage("", id=f"ask {n}", tool_calls=[{"name": "look", "args": {"n": n}, "id": f"{n}"}])]
        }

    def look(state: Any) -> Any:
        n = len(state["messages"]) - 1
        status: Any = "error" if n == 1 else "success"
        return {"messages": ToolMessage(f"found {n}", tool_call_id=f"{n}", name="look", id=f"look {n}", status=status)}

    def answer(state: Any) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}", id=f"answer {len(state['messages'])}")]}

    config: Any = {"configurable": {"thread_id": thread_id}}
    graph: Any = StateGraph(state).add_sequence([ask, look, answer]).add_edge(START, "ask").compile(checkpointer=saver)
    for question in (("user", "first"), {"role": "user", "content": "second"}):
        graph.invoke({"messages": [question]}, config)
    saver.rewind(saver.timeline(thread_id)[4])
    graph.invoke({"messages": [("user", "third")]}, config)


@pytest.mark.parametrize("state", [Seldom, Often])
def test_a_delta_channel_is_shown_like_a_list(saver: KeelSaver, state: Any) -> None:
    shown, handed = [], []
    for thread_id, kind in (("plain", MessagesState), ("delta", state)):
        chat(saver, thread_id, kind)
        moments = list(saver.timeline(thread_id))
        shown.append([(each.nodes, each.summary, each.tools) for each in moments])
        assert [each.summary for each in saver.history.follow(thread_id, timeout=0) if hasattr(each, "summary")] == [
            each.summary for each in moments
        ]
        handed.append(
            re.sub(rf"\(\w+\)|thread '?{thread_id}'?|checkpoint \w+", "", str(saver.history.handoff(thread_id)))
        )
    assert shown[0] == shown[1]
    assert shown[1][1][1] == "messages +1: human: first"
    assert [each.name for each in shown[1][3][2]] == ["look"]
    assert handed[0] == handed[1]
    assert 'look(n=1) failed: "found 1"' in handed[1]


def text_of(saver: KeelSaver, thread_id: str) -> tuple[list[Any], list[str]]:
    """Return the messages at each moment and their changes, without random ids.

    The changes are those over each three steps.
    """
    moments = list(saver.timeline(thread_id))
    states = [[(each.type, each.text) for each in moment.values.get("messages", ())] for moment in moments]
    pairs = zip(moments, moments[3:], strict=False)
    return states, [saver.timeline(thread_id).diff(*pair).to_text().partition("\n")[2] for pair in pairs]


def test_messages_of_a_delta_channel_are_read_and_compared(saver: KeelSaver) -> None:
    for thread_id, kind in (("plain", MessagesState), ("seldom", Seldom), ("often", Often)):
        chat(saver, thread_id, kind)
    (states, changes), (seldom, between), (often, _) = (text_of(saver, each) for each in ("plain", "seldom", "often"))
    assert states == seldom == often
    assert ("human", "third") in states[-1]
    assert [re.sub(r"branch:.*|__.*", "", each) for each in changes] == [
        re.sub(r"branch:.*|__.*", "", each) for each in between
    ]
    assert all("messages" in each for each in between)


def test_keel_show_prints_messages_of_a_delta_channel(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "agent.db") as saver:
        chat(saver, "t", Often)
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    shown = keel("show", "t", "--url", url).stdout
    assert re.findall(r"first|found 1|third|DeltaSnapshot", shown) == ["first", "found 1", "third"]
    first, *_ = keel_json("show", "t", "--url", url)["values"]["messages"]
    assert "first" in str(first)


def test_elements_that_are_not_messages_stay_unchanged(saver: KeelSaver) -> None:
    class Log(TypedDict):
        log: Annotated[
            list[Any], DeltaChannel(lambda state, writes: [*(state or []), *(each for w in writes for each in w)])
        ]

    odd = [("oracle", "said"), {"role": "no role", "content": 3}, ("user", "hi"), 7]
    graph: Any = (
        StateGraph(Log).add_node("a", lambda state: {"log": odd}).add_edge(START, "a").compile(checkpointer=saver)
    )
    graph.invoke({"log": []}, {"configurable": {"thread_id": "t"}})
    (change,) = saver.timeline("t")[-1].changes
    assert (change.new[0], change.new[1], change.new[2].content, change.new[3]) == (odd[0], odd[1], "hi", 7)
    assert change.text.startswith("+4: …")
