"""The agent that `keel demo` kills: a LangGraph graph with a scripted model and tools that do real work.

It runs as a process of its own (`python -m langgraph_keel.cli.demo_agent`). With `--task` it starts the
thread; without, it resumes it, and then the thread's id is all it is told. Every model and tool call is a
line in `journal.jsonl` and on standard output, written before and after the call, and so is every answer
that the ledger of tool calls has stored, or has given instead of a tool.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest

from langgraph_keel import ToolCache, ToolPolicy, open_saver
from langgraph_keel.cli.demo_model import ScriptedModel
from langgraph_keel.cli.demo_tools import tools

JOURNAL = "journal.jsonl"
_STALL_SECONDS = 60.0
_LEASE = 2.0
"""Seconds for which the dead hold a claim where it cannot be seen that they are dead (other systems than Linux)."""
# Run again, the others read, or write the same file anew; this one acts, and knows an attempt by its key.
POLICIES = {"book_credit": ToolPolicy(unknown="retry", idempotency_argument="key")}
OTHERS = ToolPolicy(unknown="retry")


class Journal:
    """An append-only file of what the agent did: a line a fact, written at once, also to standard output."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Append one fact."""
        record = {"event": event, "pid": os.getpid(), "at": time.time(), **facts}
        line = json.dumps(record) + "\n"
        with self._lock, open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())
            print(line, end="", flush=True)


def build(cache: ToolCache, folder: Path, pace: float, stall_at: int | None) -> CompiledStateGraph[MessagesState]:
    """Return the agent: a model and its tools in a loop."""
    journal = Journal(folder / JOURNAL)
    known = tools(folder)
    model = ScriptedModel(journal=journal, pace=pace).bind_tools(known)

    def think(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    def at_work(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        facts = _facts(request)
        journal.write("tool_began", **facts)
        time.sleep(_STALL_SECONDS if facts["turn"] == stall_at and _is_last(request) else pace)
        result = execute(request)
        journal.write("tool_ended", **facts, result=str(result.content))
        return result

    def once(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        result = cache.wrap_tool_call(request, lambda asked: at_work(asked, execute))
        event = "tool_replayed" if "keel_replay" in result.response_metadata else "tool_kept"
        journal.write(event, **_facts(request), result=str(result.content))
        return result

    builder = StateGraph(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(known, wrap_tool_call=once, handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=cache.saver)


def _facts(request: ToolCallRequest) -> dict[str, Any]:
    call = request.tool_call
    turn = int(str(call["id"]).split("-")[1])
    return {"turn": turn, "call": call["id"], "name": call["name"], "args": call["args"]}


def _is_last(request: ToolCallRequest) -> bool:
    calls = request.state["messages"][-1].tool_calls
    return bool(calls[-1]["id"] == request.tool_call["id"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The agent of `keel demo`.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--thread", required=True)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--task", help="start the thread with this; without it, resume")
    parser.add_argument("--pace", type=float, default=0.2, help="seconds that every call takes at least")
    parser.add_argument("--stall-at", type=int, help="the last tool call of this turn hangs")
    return parser.parse_args()


def main() -> None:
    """Start the thread, or resume it."""
    given = _arguments()
    start: Any = None if given.task is None else {"messages": [HumanMessage(given.task)]}
    with (
        open_saver(given.url) as saver,
        ToolCache(saver, POLICIES, default=OTHERS, lease=_LEASE, store_arguments=True) as cache,
    ):
        graph = build(cache, given.dir, given.pace, given.stall_at)
        graph.invoke(start, {"configurable": {"thread_id": given.thread}}, durability="sync")


if __name__ == "__main__":
    main()
