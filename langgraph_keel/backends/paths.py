"""The path of a store on this machine, as a saver was given it."""

from __future__ import annotations

import asyncio
import os

from langgraph_keel.errors import InvalidInput


def checked_path(path: object, scheme: str) -> str:
    """Return the path that a saver was given: the one that it is now, whatever the working directory is later.

    In a running loop, which must not wait for a disk, it is as it was given: the driver asks when it opens the store.

    Raises:
        InvalidInput: It is a URL, or no path at all, such as a connection.
    """
    if not isinstance(path, str | os.PathLike):
        kind = f"{type(path).__module__}.{type(path).__qualname__}"
        raise InvalidInput(f"a {kind} is no path: Keel opens its files itself, so pass the path alone")
    text = os.fsdecode(path)
    if text.startswith(f"{scheme}:"):
        raise InvalidInput(f"{path!r} is a URL: use open_saver(url), or pass the path alone")
    return text if text == ":memory:" or asyncio._get_running_loop() else os.path.abspath(text)
