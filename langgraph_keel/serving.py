"""The checkpointer of LangGraph's API server (`langgraph dev`, Studio, Agent Server), by environment variables.

In langgraph.json:

    "checkpointer": {"path": "langgraph_keel.serving.checkpointer"}

The server imports this name itself, and splits it at its last dot: with a colon it finds nothing (langgraph-api 0.16).
"""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_keel.errors import InvalidInput
from langgraph_keel.opening import import_classes, open_saver
from langgraph_keel.saver import KeelSaver

IN_MEMORY = ("memory:", "sqlite:///:memory:")


@asynccontextmanager
async def checkpointer() -> AsyncIterator[KeelSaver]:
    """Open the store that `KEEL_URL` names, for the values of the modules that `KEEL_TYPES` lists.

    The server enters it once in each of its event loops, and leaves it when it ends.
    """
    saver = await to_thread(_open)  # imports, and looks at the disk
    async with saver:
        yield saver


def _open() -> KeelSaver:
    url = os.environ.get("KEEL_URL", "")
    if not url:
        raise InvalidInput("KEEL_URL is not set: name the store of the server, such as KEEL_URL=sqlite:///agent.db")
    if url.startswith(IN_MEMORY):
        raise InvalidInput(f"KEEL_URL={url}: each event loop of the server would have a store of its own")
    modules = [name.strip() for name in os.environ.get("KEEL_TYPES", "").split(",")]
    types = [cls for name in modules if name for cls in import_classes(name, "KEEL_TYPES:")]
    return open_saver(url, types=types or None)
