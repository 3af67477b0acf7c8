"""Paths of stores on the local disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from langgraph_keel.backends.registry import find_backend
from langgraph_keel.engine.plan import is_in_loop
from langgraph_keel.errors import InvalidInput

SQLITE_ID = 0x4B65656C
"""The `application_id` in the header of Keel's SQLite databases: `Keel` in ASCII."""


def find_sqlite_store(paths: Iterable[str | os.PathLike[str]]) -> str | None:
    """Return the first path that is a SQLite database of Keel's."""
    for path in (os.fspath(each) for each in paths):
        with suppress(OSError):
            if os.path.isfile(path):  # opening a pipe would block
                with open(path, "rb") as file:
                    header = file.read(100)
                # While the database is open, the id may be in its log only.
                is_marked = header[68:72] == SQLITE_ID.to_bytes(4, "big") or all(
                    os.path.exists(f"{path}{end}") for end in (".lock", "-wal")
                )
                if header.startswith(b"SQLite format 3\0") and is_marked:
                    return path
    return None


def checked_path(path: object, scheme: str) -> str:
    """Return the absolute path of an argument; unchanged in a running loop.

    A running loop must not wait for a disk.
    """
    if not isinstance(path, str | os.PathLike):
        kind = f"{type(path).__module__}.{type(path).__qualname__}"
        raise InvalidInput(f"a {kind} is not a path: Keel opens its files itself, so pass the path alone")
    text = os.fsdecode(path)
    if text.startswith(f"{scheme}:"):
        raise InvalidInput(f"{path!r} is a URL: use open_saver(url), or pass the path alone")
    if other := find_backend(text):
        # The rest of the URL may contain a password.
        url = f"{text.partition(':')[0]}:..."
        raise InvalidInput(f"{url!r} is a URL, not a path: use open_saver(url), or {other.saver}")
    return text if text == ":memory:" or is_in_loop() else os.path.abspath(text)
