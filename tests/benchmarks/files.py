"""Files: a directory of logs, compared with LangGraph's SqliteSaver, which needs no server either."""

from importlib import import_module
from pathlib import Path
from typing import Any

from . import sqlite
from .backend import Backend, Pair
from .targets import FILES


def opened(root: Path) -> Any:
    return import_module("langgraph_keel").FileSaver(root)


PAIR = Pair(
    ours=Backend("keel-files", opened, opened),
    theirs=sqlite.THEIRS,
    targets=FILES,
    measures=(
        "chat",
        "cells",
        "turns",
        "service",
        "processes",
        "growth",
        "bytes",
        "fork",
        "threads",
        "lists",
        "tenants",
        "log",
        "ledger",
        "provenance",
        "diff",
        "travel",
    ),
)
