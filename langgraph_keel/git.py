"""Running the git executable without hooks, prompts, or variables of a surrounding git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_keel.errors import InvalidInput

# Inside a hook, git sets variables that direct every child git to the repository and index of that hook.
_INHERITED = {f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_INHERITED |= {"GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"}
_OURS = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"}
NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""A hook that moves the working tree away (as `pre-commit` does) would take stored lines from running processes."""
LONGEST = 20.0
"""Timeout of one git command in seconds, unless the caller passes another."""


class GitResult(NamedTuple):
    """The outcome of one run of git."""

    status: int
    output: bytes
    errors: str


def find_git(option: str) -> str:
    """Return the path of git, which an option needs."""
    git = shutil.which("git")
    if git is None:
        raise InvalidInput(f"{option} needs the git executable, which is not on the PATH: install git")
    return git


def run_git(
    command: Sequence[str], directory: Path, stdin: bytes = b"", longest: float = LONGEST, handle: int = -1, **more: str
) -> GitResult:
    """Run git in a directory; it inherits `handle` and gets `more` as environment variables."""
    given = os.environ.items()
    environment = {name: value for name, value in given if not name.startswith("GIT_") or name in _INHERITED}
    # A new session: the Ctrl-C that ends a program must not interrupt its last commit.
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options: dict[str, Any] = {**pipes, "start_new_session": True, "pass_fds": (handle,) if handle >= 0 else ()}
    with subprocess.Popen(command, cwd=directory, env=environment | _OURS | more, **options) as process:
        try:
            output, errors = process.communicate(stdin, timeout=longest)
        except subprocess.TimeoutExpired:
            process.terminate()  # not kill(): git removes its lock files before it ends
            output, errors = b"", f"it took longer than {longest:.0f} seconds".encode()
    return GitResult(process.returncode, output, errors.decode(errors="backslashreplace").strip())
