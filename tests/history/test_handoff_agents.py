"""Agents that read and write hand-offs: the tools, and the middleware.

The middleware starts a thread with the owner's last hand-off.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from support.places import Place
from support.tool_graphs import Scripted, answers, calls, hello

from langgraph_keel import MemorySaver

KEY = "keel_handoff"


def config_of(thread: str, owner: str | None = "ada") -> Any:
    return {"configurable": {"thread_id": thread, **({"user_id": owner} if owner else {})}}


def handed(state: Any) -> list[str]:
    return [each.additional_kwargs[KEY] for each in state["messages"] if KEY in each.additional_kwargs]


def agent_of(saver: Any, *script: AIMessage, tools: Any = ()) -> Any:
    middleware = [saver.history.handoff_middleware()]
    return create_agent(Scripted(script=[*script]), list(tools), middleware=middleware, checkpointer=saver)


def test_a_new_thread_receives_the_last_handoff_of_its_owner(place: Place) -> None:
    with place.open() as saver:
        agent = agent_of(saver, AIMessage("I looked at the sensor."))
        first = agent.invoke(hello(), config_of("one"))
        assert handed(first) == []
        agent.invoke({"messages": [("user", "a secret of Bob")]}, config_of("his", "bob"))
        second = agent.invoke(hello(), config_of("two"))
        assert handed(second) == ["one"]
        assert isinstance(second["messages"][0], HumanMessage)
        text = second["messages"][0].text
        assert 'answered: "I looked at the sensor."' in text
        assert "secret" not in text
        assert len(second["messages"]) == 3
        again = agent.invoke(hello(), config_of("two"))  # the thread is not new
        assert handed(again) == ["one"]
        assert again["messages"][0] == second["messages"][0]
        assert handed(agent.invoke(hello(), config_of("nobody", None))) == []
        assert handed(agent.invoke(hello(), config_of("carl", "carl"))) == []
        assert handed(agent.invoke(hello(), config_of("three"))) == ["two"]


async def test_handoffs_of_async_agents() -> None:
    with MemorySaver() as saver:
        agent = agent_of(saver, AIMessage("done"))
        await agent.ainvoke(hello(), config_of("one"))
        assert handed(await agent.ainvoke(hello(), config_of("two"))) == ["one"]
        tools = saver.history.agent_tools()
        script = calls(("note", {"text": "wait", "kind": "next"}, "1"), ("handoff", {}, "2"))
        other: Any = create_agent(Scripted(script=[script, AIMessage("ok")]), tools, checkpointer=saver)
        said = answers(await other.ainvoke(hello(), config_of("three")))
        assert "Hand-off of thread two" in said["2"].text
        assert [note.text for note in saver.history.notes("three")] == ["wait"]


def test_a_resumed_run_receives_one_handoff() -> None:
    fails = [True]

    @tool
    def look(q: str) -> str:
        """Look."""
        if fails:
            raise OSError("no net")
        return "found"

    with MemorySaver() as saver:
        agent_of(saver, AIMessage("done")).invoke(hello(), config_of("one"))
        agent = agent_of(saver, calls(("look", {"q": "x"}, "1")), AIMessage("there"), tools=[look])
        with pytest.raises(OSError, match="no net"):
            agent.invoke(hello(), config_of("two"))
        agent_of(saver, AIMessage("done")).invoke(hello(), config_of("between"))
        fails.clear()
        state = agent.invoke(None, config_of("two"))
        assert handed(state) == ["one"]
        assert state["messages"][-1].text == "there"


def test_an_agent_can_write_notes_and_read_handoffs(place: Place) -> None:
    with place.open() as saver:
        tools = saver.history.agent_tools()
        assert [each.name for each in tools] == ["note", "handoff"]
        assert set(tools[0].args) == {"text", "kind", "because"}  # no thread, no owner
        assert tools[1].args == {}
        script = [
            calls(("note", {"text": "pay 3", "because": "it is due"}, "1"), ("handoff", {}, "2")),
            AIMessage("ok"),
        ]
        agent: Any = create_agent(Scripted(script=script), tools, checkpointer=saver)
        said = answers(agent.invoke(hello(), config_of("one")))
        (note,) = saver.history.notes(open=True)
        assert (note.thread_id, note.text, note.because) == ("one", "pay 3", "it is due")
        assert said["1"].text == f"Noted: {note.id}"
        assert said["2"].text == "There is no earlier conversation of this user."
        assert "decision: pay 3" in answers(agent.invoke(hello(), config_of("two")))["2"].text
        other = answers(agent.invoke(hello(), config_of("his", "bob")))["2"].text
        assert other == "There is no earlier conversation of this user."


def test_a_tenant_cannot_read_handoffs_of_another_tenant(place: Place) -> None:
    with place.open() as saver:
        acme, umbrella = saver.for_tenant("acme"), saver.for_tenant("umbrella")
        agent_of(acme, AIMessage("a secret of acme")).invoke(hello(), config_of("one"))
        assert handed(agent_of(umbrella, AIMessage("done")).invoke(hello(), config_of("two"))) == []
        assert umbrella.history.last_handoff("ada", but="two") is None
        assert "a secret" in str(acme.history.last_handoff("ada"))
