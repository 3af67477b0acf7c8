"""Puts to a store on files."""

from __future__ import annotations

from typing import Any

from langgraph_keel import FileSaver
from langgraph_keel.testing.rig import at, checkpoint_of


def put(saver: FileSaver, number: int, thread: str = "t", **values: Any) -> Any:
    checkpoint = checkpoint_of(f"{number:04}", {"list": [*range(number)], **values})
    return saver.put(at(thread), checkpoint, {}, {})  # type: ignore[arg-type]
