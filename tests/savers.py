"""The savers that a test can be run with: a new backend is one more line."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_keel import MemorySaver, SqliteSaver

# Each opens a saver on a store of its own, in a directory of its own.
SAVERS: dict[str, Callable[[Path], AbstractContextManager[BaseCheckpointSaver[Any]]]] = {
    "memory": lambda _: MemorySaver(),
    "sqlite": lambda directory: SqliteSaver.from_conn_string(str(directory / "keel.db")),
    "sqlite-memory": lambda _: SqliteSaver.from_conn_string(":memory:"),
}
