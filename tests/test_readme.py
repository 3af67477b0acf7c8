"""The README's Python blocks run, in order, as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "\n".join(blocks("python"))
    assert "SqliteSaver" in program
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert (tmp_path / "agent.db").exists()


def test_the_two_commands_are_the_ones_that_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    first, second = (block.strip() for block in blocks("bash") if "pip install" in block)
    for command in (*first.split(" && "), *second.split(" && ")):
        assert command.removeprefix("pip install ").strip() in script


def test_the_files_it_links_to_are_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
