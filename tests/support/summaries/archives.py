"""An archive of messages of every kind, used by either face of a saver."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_keel import Archived, KeelSaver, MemorySaver
from langgraph_keel.engine.cells import Cell
from langgraph_keel.summaries.archive.parts import Removal, archive_of
from langgraph_keel.summaries.archive.storage import archive_messages
from langgraph_keel.summaries.channels import removal

NAMES = ("memory", "sqlite", "files", "postgres", "redis")
CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Box:
    """A saver whose methods are called by one of its faces."""

    def __init__(self, saver: KeelSaver, face: str = "sync") -> None:
        self.saver = saver
        self.face = face

    def run(self, plan: Generator[Any, Any, Any]) -> Any:
        return self.saver.engine.run(plan) if self.face == "sync" else asyncio.run(self.saver.engine.arun(plan))

    def call(self, name: str, *args: Any, thread: str = "t", **options: Any) -> Any:
        """Call a method of the archive."""
        archive = self.saver.archive(thread)
        if self.face == "sync":
            return getattr(archive, name)(*args, **options)
        return asyncio.run(getattr(archive, f"a{name}")(*args, **options))

    def put(self, taken: Removal) -> Archived:
        found: Archived = self.run(archive_messages(self.saver.engine.session, taken))
        return found

    def begin(self, thread: str = "t") -> None:
        """Store the first checkpoint of a thread."""
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self.saver.put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})

    def keep(self, messages: Sequence[BaseMessage], thread: str = "t", **said: Any) -> Archived:
        return self.put(taking(messages, thread, **said))

    def cells(self, thread: str = "t") -> dict[str, Cell]:
        """Return all cells of an archive, with their bodies."""
        engine = self.saver.engine
        archive = archive_of(engine.session, thread)
        keys = [key for key, _ in engine.run(archive.every_raw())]
        return dict(engine.run(archive.read_raw(keys))) if keys else {}

    def set_cell(self, key: str, cell: Cell | None, thread: str = "t") -> None:
        held, engine = self.cells(thread).get(key), self.saver.engine
        swap = archive_of(engine.session, thread).swap_raw(key, held.token if held else None, cell)
        assert engine.run(swap).done

    def bytes_of(self, messages: Sequence[BaseMessage]) -> list[bytes]:
        return [self.saver.engine.session.codec.pack_item(message) for message in messages]


@pytest.fixture(params=[f"{name} {face}" for name in NAMES for face in ("sync", "async")])
def box(request: pytest.FixtureRequest, stores: Any) -> Iterator[Box]:
    """An empty store of each kind, by each face."""
    name, face = request.param.split()
    stores[name].wipe()
    with stores[name].open(archive_removed=True) as saver:
        yield Box(saver, face)


@pytest.fixture(params=["sync", "async"])
def memory_box(request: pytest.FixtureRequest) -> Iterator[Box]:
    """An empty store in memory, by each face."""
    with MemorySaver(archive_removed=True) as saver:
        yield Box(saver, request.param)


def taking(messages: Sequence[BaseMessage], thread: str = "t", **said: Any) -> Removal:
    config: Any = {
        "configurable": {"thread_id": thread, "checkpoint_ns": "n:task", "checkpoint_map": {"": "1f0"}},
        "metadata": {"langgraph_step": 3, "langgraph_node": "n"},
    }
    return removal(config, messages, **{"channel": "messages", "by": "window", **said})


def turns(first: int, end: int) -> list[BaseMessage]:
    """Return a plain conversation, starting at its message `first`."""
    kinds = (HumanMessage, AIMessage)
    return [kinds[n % 2](f"said {n}", id=f"m{n}") for n in range(first, end)]


def of_every_kind() -> list[BaseMessage]:
    call = {"name": "find", "args": {"q": "ü \x00", "n": [1, 2.5, None]}, "id": "call 1", "type": "tool_call"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    audio = {"type": "audio", "source_type": "base64", "data": "UklGRg==", "mime_type": "audio/wav"}
    usage: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    return [
        SystemMessage("be brief", id="s"),
        HumanMessage([{"type": "text", "text": "what is this?"}, image, audio], id="h", name="ann"),
        AIMessage("", id="a", tool_calls=[call], usage_metadata=usage, response_metadata={"model_name": "m-1"}),
        AIMessage("", id="bad", invalid_tool_calls=[{"name": "f", "args": "{", "id": "c", "error": "no JSON"}]),
        ToolMessage("found", id="t", tool_call_id="call 1", artifact={"rows": [(1, b"\x00\xff")]}, status="error"),
        ChatMessage(content="as a critic", id="c", role="critic"),
        FunctionMessage(content="42", id="f", name="answer"),
        AIMessageChunk(content="half", id="ac"),
        HumanMessageChunk(content="more", id="hc"),
        HumanMessage("without an id, \ud800 and a surrogate", additional_kwargs={"x": {"y": {1, 2}}}),
        HumanMessage("", id="empty"),
    ]
