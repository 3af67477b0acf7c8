"""Threads that the tests of the command line look at, and ways to call it."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

from langgraph_keel import open_saver
from langgraph_keel.cli import app
from langgraph_keel.cli.commands import COMMANDS as SUMMARIES
from langgraph_keel.cli.commands import load_command

ROOT = Path(__file__).parents[2]


def _commands() -> Iterator[tuple[str, Any]]:
    """Return all commands, those of groups by both names."""
    for name, command in ((name, load_command(name)) for name in SUMMARIES):
        if hasattr(command, "commands"):
            yield from ((f"{name} {each}", inner) for each, inner in command.commands.items())
        else:
            yield name, command


COMMANDS = dict(_commands())
EVIL = "pay \x1b[31m[red]\u202e1"
# C0 except newline, DEL, C1, and the marks that reorder text.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Work(MessagesState):
    notes: dict[str, Any]
    log: Annotated[list[str], operator.add]


def _plan(state: Work) -> dict[str, Any]:
    call = {"name": "search", "args": {"q": "tide\x07s", "k": 3}, "id": "c1", "type": "tool_call"}
    text: list[str | dict[Any, Any]] = [{"type": "text", "text": "Let me look."}]
    messages = [SystemMessage("Be [bold]terse[/bold] \x1b[31m\x9b31mred"), AIMessage(text, tool_calls=[call])]
    return {
        "messages": messages,
        "notes": {"deep": {"list": [1, 2]}, "raw": b"\xff", "set": {1}},
        "log": ["plan"],
    }


def _work(state: Work) -> dict[str, Any]:
    return {"messages": [ToolMessage("found [red]42[/red]\r\nline two", tool_call_id="c1", name="search")]}


def _ask(state: Work) -> dict[str, Any]:
    return {"log": [str(interrupt({"question": "Pay [bold]100[/bold] EUR?\x1b[2J"}))]}


def _sub() -> Any:
    inner = StateGraph(Work)
    inner.add_node("inside", lambda state: {"log": ["inside"]})
    inner.add_edge(START, "inside")
    return inner.compile()


def _builder() -> StateGraph[Work]:
    builder = StateGraph(Work)
    builder.add_node("plan", _plan)
    builder.add_node("work", _work)
    builder.add_node("also", _sub())
    builder.add_node("ask", _ask)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", state)], ["work"])
    builder.add_edge("plan", "also")
    builder.add_edge(["work", "also"], "ask")
    return builder


def _config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def made_store(directory: Path) -> str:
    """Return a store with a waiting thread, and one that was resumed and then forked.

    The waiting thread has a hostile name.
    """
    where = f"sqlite:///{directory / 'agent.db'}"
    start: Any = {"messages": [HumanMessage("hello [link=x]there[/link]")]}
    with open_saver(where) as saver:
        graph = _builder().compile(checkpointer=saver)
        graph.invoke(start, _config("trip"))
        graph.invoke(Command(resume="yes"), _config("trip"))
        old = next(state for state in graph.get_state_history(_config("trip")) if state.next == ("ask",))
        graph.invoke(None, old.config)
        graph.invoke(start, _config(EVIL))
    return where


def keel(*arguments: str, status: int = 0, **env: str) -> Any:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "NO_COLOR": "1", **env})
    assert result.exit_code == status, result.output
    return result


def keel_json(*arguments: str, status: int = 0) -> Any:
    result = keel(*arguments, "--json", status=status)
    assert result.stderr == ""
    return json.loads(result.stdout)
