"""The help, completion, and `python -m langgraph_keel`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli_threads import COMMANDS, keel

from langgraph_keel.cli.commands import PANELS


def test_commands_are_in_groups() -> None:
    shown = keel("--help").stdout
    assert "<bool>" not in shown
    places = [shown.index(f" {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    for panel, following in zip(PANELS, [*list(PANELS)[1:], None], strict=True):
        end = shown.index(f" {following} ─") if following else len(shown)
        part = shown[shown.index(f" {panel} ─") : end]
        assert all(f"│ {name} " in part for name in PANELS[panel])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example(name: str) -> None:
    assert "Example:" in (COMMANDS[name].epilog or "")
    shown = keel(*name.split(), "--help", COLUMNS="200").stdout
    assert shown.count("Example:") == 1
    assert shown.index("Example:") > shown.index("╰")
    for ugly in ("[[", "int range", "list[str]", "{decision}", "<bool>", "<str>"):
        assert ugly not in shown


def complete(words: str, place: int) -> list[str]:
    env = {**os.environ, "_KEEL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    code = "from langgraph_keel.cli import app; app(prog_name='keel')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_an_option_before_its_command_is_explained() -> None:
    told = keel("--url", "sqlite:///agent.db", "threads", status=2, COLUMNS="200").stderr
    assert "No such option: --url before the command" in told
    assert "keel threads --url URL" in told


def test_a_misspelling_suggests_no_destructive_command() -> None:
    assert "Did you mean 'threads'" in keel("tread", status=2).stderr
    for word in ("delet", "eraze", "prun", "reclame"):
        told = keel(word, status=2).stderr
        assert "No such command" in told
        assert not any(name in told for name in ("'delete'", "'erase'", "'prune'", "'reclaim'"))


@pytest.mark.slow
def test_a_shell_completes_commands_and_options() -> None:
    assert complete("keel thr", 1) == ["threads"]
    assert complete("keel threads --wai", 2) == ["--waiting"]
    assert complete("keel cache ", 2) == ["stats", "clear"]


def test_completion_is_installed(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    words = [sys.executable, "-m", "langgraph_keel", "--install-completion", "bash"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ".bash_completions" in (tmp_path / ".bashrc").read_text()


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "langgraph_keel", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("langgraph-keel")
