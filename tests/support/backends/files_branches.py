"""A file store in a Git repository whose branches tests change by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_keel import open_saver
from langgraph_keel.backends.files.git import Side
from langgraph_keel.saver import KeelSaver
from support.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.made(tmp_path / "project")


@pytest.fixture
def store(repository: Repository) -> Path:
    """A store with two threads of two turns each, committed."""
    store = repository.path / "store"
    with opened(store) as saver:
        for thread in ("a", "b"):
            turn(saver, thread, "one")
            turn(saver, thread, "two")
    repository.commit()
    return store


def opened(store: Path) -> KeelSaver:
    return open_saver(f"files:{store}")


def turn(saver: KeelSaver, thread: str, text: str) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [AIMessage(f"{text}, yes. " + "so " * 200)]})
    builder.add_edge(START, "agent")
    config: Any = {"configurable": {"thread_id": thread}}
    builder.compile(checkpointer=saver).invoke({"messages": [HumanMessage(text)]}, config)


def said(saver: KeelSaver, thread: str) -> list[str]:
    """Return the texts of the human messages in the latest checkpoint."""
    found = saver.get_tuple({"configurable": {"thread_id": thread}})
    messages = found.checkpoint["channel_values"]["messages"] if found else []
    return [message.content for message in messages if message.type == "human"]


def everything(saver: KeelSaver) -> dict[str, list[Any]]:
    """Return all checkpoints of each thread, with their writes."""
    threads = [info.thread_id for info in saver.threads()]
    return {thread: list(saver.list({"configurable": {"thread_id": thread}})) for thread in threads}


def branch(repository: Repository, store: Path, name: str, thread: str, *texts: str) -> dict[str, list[Any]]:
    """Commit turns on a new branch; return its checkpoints. Ends on main."""
    repository("checkout", "--quiet", "-b", name)
    with opened(store) as saver:
        for text in texts:
            turn(saver, thread, text)
        held = everything(saver)
    repository.commit()
    repository("checkout", "--quiet", "main")
    return held


def held(states: dict[str, Any], thread: str, shared: int) -> list[Side]:
    """Return the checkpoints that ours and theirs have stored since they diverged."""
    found = [states[side][thread] for side in ("ours", "theirs")]
    return [Side(len(each) - shared, each[0].checkpoint["ts"]) for each in found]
