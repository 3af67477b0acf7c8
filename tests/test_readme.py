"""The README's Python blocks run, in order, as one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from langgraph_keel import open_saver

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks("python"))
    assert "SqliteSaver" in program
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert (tmp_path / "agent.db").exists()


TOOLS = TEXT[TEXT.index("## Never pay twice") : TEXT.index("## Types")]


def test_the_example_of_tools_needs_the_first_block_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile("\n".join([blocks("python")[0], *blocks("python", TOOLS)]), "README.md", "exec"), names)
    assert names["ran"].count("search") == 1


OPENING = re.compile(r"^\| ([^|]+?) \|[^|]*\| `(with \w+\.from_conn_string\(.*\) as saver:)` \|$", re.MULTILINE)
LINES = dict(OPENING.findall(TEXT))
HEADINGS = {f"#{title.lower().replace(' ', '-')}" for title in re.findall(r"^#+ ([\w ]+)$", TEXT, re.MULTILINE)}
QUICK_START = TEXT[TEXT.index("## Quick start") : TEXT.index("## Two requests")]


@pytest.mark.parametrize("backend", ["files", "PostgreSQL", "Redis, Valkey", "Redis Cluster"])
def test_the_quick_start_runs_on_another_backend_by_one_line(
    backend: str, postgres_url: str, redis_url: str, redis_cluster_url: str, redis_prefix: str, tmp_path: Path
) -> None:
    urls = {"PostgreSQL": postgres_url, "Redis, Valkey": redis_url, "Redis Cluster": redis_cluster_url}
    urls["files"] = f"{tmp_path}/agents"
    line = re.sub(r'"[^"]*"', repr(urls[backend]), LINES[backend])
    name = line.split()[1].partition(".")[0]
    program = "\n".join(blocks("python", QUICK_START)).replace(LINES["SQLite"], line).replace("SqliteSaver", name)
    assert program.count(line) == 2
    # A thread of its own on the shared server, and gone afterwards.
    program = program.replace('"ada"', repr(redis_prefix))
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(program, "README.md", "exec"), names)
    names["saver"].close()
    with open_saver(f"files:{urls[backend]}" if backend == "files" else urls[backend]) as saver:
        assert saver.get_tuple(names["config"])
        saver.delete_thread(redis_prefix)


FILES = TEXT[TEXT.index("## State you can read") : TEXT.index("## Two requests")]


def test_the_demonstration_of_files_runs(tmp_path: Path) -> None:
    names = {f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "\n".join(["set -e", *blocks("bash", FILES)])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    shown = "killed, as it should be\n".join(blocks("text", FILES))
    assert done.stdout == shown


def test_the_two_commands_are_the_ones_that_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    first, second = (block.strip() for block in blocks("bash") if "pip install" in block)
    for command in (*first.split(" && "), *second.split(" && ")):
        assert command.removeprefix("pip install ").strip() in script


def test_the_files_it_links_to_are_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (link in HEADINGS or (ROOT / link).exists())] == []
