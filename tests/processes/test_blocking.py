"""A saver never blocks a running loop, on any backend, from its constructor on.

blockbuster checks this, in a separate process, because some work is done only once per process. The other asynchronous
tests run under blockbuster, too (`no_blocking` in tests/conftest.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.places import KINDS

CHILD = Path(__file__).parents[1] / "support" / "processes" / "blocking.py"


OPENING = """
import asyncio, sys
import langgraph.graph
from langgraph_keel import open_saver
from blockbuster import blockbuster_ctx

async def main():
    with blockbuster_ctx():
        open_saver(sys.argv[1])

asyncio.run(main())
"""


def run(directory: Path, url: str, *options: str) -> None:
    done = subprocess.run([sys.executable, CHILD, url, *options], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", *KINDS, "files in git"])
def test_nothing_blocks_a_running_loop(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    match kind:
        case "memory":
            run(tmp_path, "memory:")
        case "sqlite":  # relative: the system is asked for the working directory
            run(tmp_path, "sqlite:///agent.db")
            assert (tmp_path / "agent.db").exists()
        case "files":
            run(tmp_path, "files:agents")
            assert (tmp_path / "agents").exists()
        case "files in git":  # git is asked for the repository before the store is first used
            subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
            for name in ("name", "email"):
                subprocess.run(["git", "config", f"user.{name}", "agent"], cwd=tmp_path, check=True)
            run(tmp_path, "files:agents", "git=yes")
            log = subprocess.run(["git", "log", "--oneline"], cwd=tmp_path, capture_output=True, text=True, check=True)
            assert "erased" in log.stdout or len(log.stdout.splitlines()) > 3
        case "postgres":
            run(tmp_path, request.getfixturevalue("postgres_url"))
        case "redis":
            prefix = request.getfixturevalue("redis_prefix")
            run(tmp_path, request.getfixturevalue("redis_url"), f"prefix={prefix}", "durability=any")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["memory:", "sqlite:///agent.db", "files:agents"])
def test_a_backend_can_be_imported_in_a_running_loop(url: str, tmp_path: Path) -> None:
    """The import only reads files that Python reads as modules, which is inevitable."""
    done = subprocess.run([sys.executable, "-c", OPENING, url], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
