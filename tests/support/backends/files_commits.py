"""Steps that are committed to a Git repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langgraph_keel.backends.files.git import Commits
from langgraph_keel.engine.config import Address
from support.repositories import Repository, append, made_root


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.made(tmp_path / "project")


@pytest.fixture
def root(repository: Repository) -> Path:
    """A store's root in a subfolder of a repository; its path has glob characters."""
    return made_root(repository.path / "data [1]" / "store")


def put(
    commits: Commits,
    root: Path,
    thread: str,
    step: int,
    values: dict[str, Any] | None = None,
    ns: str = "",
    **more: Any,
) -> None:
    """Store a line and report it, as a saver would. Without values, the run has ended."""
    address, metadata = Address(thread, ns), {"source": "loop", "step": step, **more}
    if left := commits.left_before_put(address, metadata):
        commits.commit(thread, left)
    append(root, thread, step)
    commits.put(address, {"id": f"c{step}", "channel_values": values or {}}, metadata)
