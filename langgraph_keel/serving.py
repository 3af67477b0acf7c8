"""Checkpointer and store for LangGraph's API server, configured by environment variables.

In langgraph.json:

    "checkpointer": {"path": "langgraph_keel.serving.checkpointer"},
    "store": {"path": "langgraph_keel.serving.store"}

The server splits these names at the last dot; a colon does not work (langgraph-api 0.16).
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
    """Open the store of `KEEL_URL`, and allow the classes of the modules in `KEEL_TYPES`.

    The server enters it once in each of its event loops, and leaves it at its end.
    """
    saver = await to_thread(_open)  # imports modules and reads the disk
    async with saver:
        yield saver


@asynccontextmanager
async def store() -> AsyncIterator[KeelStore]:
    """Open the store of items, in the same place as the checkpoints.

    `ttl` and `index` come from `"store"` in langgraph.json. With `ttl`, a thread removes expired items.
    """
    try:
        config = json.loads(os.environ.get("LANGGRAPH_STORE") or "{}")  # the server reads it from there as well
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
        raise InvalidInput("KEEL_URL is not set: set it to the URL of the store, such as KEEL_URL=sqlite:///agent.db")
    if url.startswith(IN_MEMORY):
        raise InvalidInput(f"KEEL_URL={url}: each event loop of the server would have its own store")
    modules = [name.strip() for name in os.environ.get("KEEL_TYPES", "").split(",")]
    types = [cls for name in modules if name for cls in import_classes(name, "KEEL_TYPES:")]
    return open_saver(url, types=types or None)
