"""A cell as text: one line of JSON that ends with a checksum, as those of a log do. FORMAT.md is the specification.

What the core has packed is shown as JSON; a frame that would not come back to the very bytes is shown as base64.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from typing import Any

import orjson

from langgraph_keel.core.cells import Cell, key_of_cell
from langgraph_keel.core.frames import unframe
from langgraph_keel.core.rows import body_of
from langgraph_keel.errors import CorruptStore, InvalidInput
from langgraph_keel.files.lines import line_of, unsealed
from langgraph_keel.files.names import directory_of, thread_of
from langgraph_keel.files.shapes import checked_cell
from langgraph_keel.files.values import packed_item, shown_items

SUFFIX = ".json"


def name_of(key: str) -> str:
    """Return the name of a cell's file: its key, escaped where Windows would take it for a device."""
    return directory_of(key) + SUFFIX


def key_in(name: str) -> str | None:
    """Return the key of the cell in a file of this name; `None` if no cell has it."""
    try:
        key = thread_of(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
        return key_of_cell(key) if key else None
    except (CorruptStore, InvalidInput):
        return None


def text_of(key: str, cell: Cell) -> bytes:
    """Return the content of a cell's file."""
    fields = {
        "k": "cell",
        "key": key,
        "token": cell.token,
        "origin": cell.origin or None,
        "expires": cell.expires_at,
        "head": _shown(cell.header),
        "body": _shown(cell.body) if cell.body else None,
    }
    return line_of(fields)


def cell_of(text: bytes, key: str, has_body: bool = True) -> Cell:
    """Return the cell that a file holds.

    Args:
        text: The content of the file.
        key: The key that its name says.
        has_body: Whether to make the body too.

    Raises:
        ValueError: It is damaged.
        CorruptStore: It holds what stands for no value.
    """
    fields = checked_cell(unsealed(text.removesuffix(b"\n")))
    if fields["key"] != key:
        raise ValueError(f"it is the cell {fields['key']!r:.140}")
    body = _framed(fields["body"]) if has_body and "body" in fields else b""
    return Cell(fields["token"], _framed(fields["head"]), body, fields.get("origin", ""), fields.get("expires"))


def _shown(framed: bytes) -> Any:
    try:
        [shown] = shown_items(unframe(framed))
        text = orjson.dumps(shown)
        if _framed(orjson.loads(text)) == framed:
            return orjson.Fragment(text)
    except (CorruptStore, ValueError, TypeError):
        pass  # no frame, not one item in it, or one that JSON does not hold
    return {"$frame": b2a_base64(framed, newline=False).decode()}


def _framed(shown: Any) -> bytes:
    if type(shown) is dict and "$frame" in shown:
        return a2b_base64(shown["$frame"], strict_mode=True)
    return body_of([packed_item(shown)])
