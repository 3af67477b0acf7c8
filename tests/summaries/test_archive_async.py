"""The saver's rule while the program still uses the values (durability="async")."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langgraph_keel import SqliteSaver
from langgraph_keel.testing import SyncFace
from langgraph_keel.testing.rig import Author, at

SMALL, LARGE = "1", os.urandom(60_000).hex()


@pytest.mark.parametrize("text", [SMALL, LARGE], ids=["small", "large"])
def test_concurrent_changes_by_the_program_do_not_affect_the_archive(tmp_path: Path, text: str) -> None:
    messages = [HumanMessage(f"{n}{text}", id=str(n)) for n in range(3)]
    with SqliteSaver(tmp_path / "keel.db") as saver:
        first = Author(SyncFace(lambda: saver), at(), iter("1")).put({"messages": messages})
    with SqliteSaver(tmp_path / "keel.db", archive_removed=True) as saver:
        values: dict[str, Any] = {"messages": messages[2:], "kept": {"a": text}}
        driver: Any = saver.engine.driver
        send = driver.send

        def meddling(request: Any) -> Any:
            values["messages"] += messages[:2]
            values["kept"] = {"b": 1}
            values[f"new{len(values)}"] = [messages[0]]
            return send(request)

        driver.send = meddling
        author = Author(Passing(saver, values), first, iter("2"))
        author.put(values)
        driver.send = send
        assert [message.id for message in saver.archive("t").messages()] == ["0", "1"]


class Passing(SyncFace):
    """A face that passes the program's own values, as LangGraph does."""

    def __init__(self, saver: SqliteSaver, values: Mapping[str, Any]) -> None:
        super().__init__(lambda: saver)
        self._values = values

    def put(self, config: Any, checkpoint: Any, metadata: Any = None, new_versions: Any = None) -> Any:
        return super().put(config, {**checkpoint, "channel_values": self._values}, metadata, new_versions)
