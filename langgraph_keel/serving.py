"""The checkpointer and the store of LangGraph's API server (`langgraph dev`, Agent Server), by environment variables.

In langgraph.json:

    "checkpointer": {"path": "langgraph_keel.serving.checkpointer"},
    "store": {"path": "langgraph_keel.serving.store"}

The server imports these names itself, and splits them at the last dot: with a colon it finds nothing (langgraph-api
0.16).
"""

from __future__ import annotations

import json
import os
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from langgraph_keel.errors import InvalidInput
from langgraph_keel.opening import import_classes, open_saver
from langgraph_keel.saver import KeelSaver
from langgraph_keel.store.keel_store import KeelStore

IN_MEMORY = ("memory:", "sqlite:///:memory:")


@asynccontextmanager
async def checkpointer() -> AsyncIterator[KeelSaver]:
    """Open the store that `KEEL_URL` names, for the values of the modules that `KEEL_TYPES` lists.

    The server enters it once in each of its event loops, and leaves it when it ends.
    """
    saver = await to_thread(_open)  # imports, and looks at the disk
    async with saver:
        yield saver


@asynccontextmanager
async def store() -> AsyncIterator[KeelStore]:
    """Open the store of items that is in the same place as the checkpoints.

    `ttl` and `index` are those of `"store"` in langgraph.json. With `ttl`, a thread removes items that have expired.
    """
    try:
        config = json.loads(os.environ.get("LANGGRAPH_STORE") or "{}")  # where the server has it from, too
        wanted = {name: config[name] for name in ("ttl", "index") if config.get(name)}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"LANGGRAPH_STORE is not the store of a langgraph.json: {error}") from error
    async with checkpointer() as saver:
        items = saver.store(**wanted)
        if "ttl" in wanted:
            items.start_ttl_sweeper()
        try:
            yield items
        finally:
            await to_thread(items.stop_ttl_sweeper)


def _open() -> KeelSaver:
    url = os.environ.get("KEEL_URL", "")
    if not url:
        raise InvalidInput("KEEL_URL is not set: name the store of the server, such as KEEL_URL=sqlite:///agent.db")
    if url.startswith(IN_MEMORY):
        raise InvalidInput(f"KEEL_URL={url}: each event loop of the server would have a store of its own")
    modules = [name.strip() for name in os.environ.get("KEEL_TYPES", "").split(",")]
    types = [cls for name in modules if name for cls in import_classes(name, "KEEL_TYPES:")]
    return open_saver(url, types=types or None)
