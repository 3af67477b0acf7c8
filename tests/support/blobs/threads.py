"""Threads with images, and their stored parts in objects and in rows."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from langgraph_keel import KeelSaver
from langgraph_keel.blobs.store import BlobStore
from langgraph_keel.engine.encoding.bodies import BLOB
from langgraph_keel.engine.records import Entry, Query
from langgraph_keel.keys.store import SealedStore
from langgraph_keel.testing.rig import Author, Face, SyncFace, at

IMAGE = 150_000
"""Size of an image in bytes: over the limit, and small enough for many tests."""


def image(number: int, size: int = IMAGE) -> HumanMessage:
    """Return a message with an image, as chat models accept it. It does not compress."""
    data = base64.b64encode(random.Random(number).randbytes(size)).decode()
    url = {"url": f"data:image/png;base64,{data}"}
    return HumanMessage([{"type": "image_url", "image_url": url}], id=f"image {number}")


def put_images(
    face: Face | KeelSaver, images: int, thread: str = "t", *, size: int = IMAGE, writes: bool = True
) -> list[HumanMessage]:
    """Store one checkpoint per added image, and the writes of the task that added it."""
    through = face if isinstance(face, Face) else SyncFace(lambda saver=face: saver)  # type: ignore[misc]
    author = Author(through, at(thread), (f"{number:08}" for number in count(1)))
    messages: list[HumanMessage] = []
    for number in range(images):
        messages.append(image(number, size))
        author.put({"messages": list(messages), "note": f"small {number}"})
        if writes:
            through.put_writes(author.config, [("messages", [messages[-1]])], f"task {number}")
    return messages


def messages_of(saver: KeelSaver, thread: str = "t", checkpoint_id: str | None = None) -> Any:
    """Return the messages of a checkpoint, by default the latest."""
    found = saver.get_tuple(at(thread, "", checkpoint_id))
    return found and found.checkpoint["channel_values"].get("messages")


def objects_in(directory: Path) -> list[str]:
    """Return the names of all files below a directory."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def lose_objects(directory: Path) -> None:
    """Delete all files below a directory, and keep the folders."""
    for name in objects_in(directory):
        (directory / name).unlink()


def backend_of(saver: KeelSaver) -> Any:
    """Return the backend's store, below all layers around it."""
    store = saver.engine.session.store
    while isinstance(store, BlobStore | SealedStore):
        store = store.inner
    return store


def bodies_of(saver: KeelSaver, thread: str = "t") -> Iterator[bytes]:
    """Yield all headers, rows and writes of a thread, as the backend stores them."""
    store, engine = backend_of(saver), saver.engine
    entries: list[Entry] = [*engine.run(store.scan(Query(thread, limit=10_000)))]
    for found in engine.run(store.read_values(entries)):
        yield found.entry.header
        yield from (row.body for rows in found.rows.values() for row in rows)
        yield from (batch.body for batch in found.batches)


def moved_bodies(saver: KeelSaver, thread: str = "t") -> set[bytes]:
    """Return the bodies that name the object to which their value was moved."""
    return {body for body in bodies_of(saver, thread) if body.startswith(BLOB)}
