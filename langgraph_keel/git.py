"""The git executable, called with care: no hooks, no prompts, and no variables of a git around this process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from langgraph_keel.errors import InvalidInput

# Inside a hook, git sets variables that lead every git below to the repository and the index of that hook.
_INHERITED = {
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"),
}
_OURS = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"}
NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
"""A hook that sets the working tree aside (as `pre-commit` does) would take stored lines from under running processes.
"""
LONGEST = 20.0
"""Seconds that one git may take, unless the caller allows more."""


class GitResult(NamedTuple):
    """The outcome of one run of git."""

    status: int
    output: bytes
    errors: str


def find_git(option: str) -> str:
    """Return the path of git, which an option needs."""
    git = shutil.which("git")
    if git is None:
        raise InvalidInput(f"{option} needs the git executable, and there is none on the PATH: install git")
    return git


def run_git(
    command: Sequence[str],
    directory: Path,
    stdin: bytes = b"",
    longest: float = LONGEST,
    handles: Sequence[int] = (),
    **variables: str,
) -> GitResult:
    """Run git in a directory; it inherits `handles`, and `variables` are added to its environment."""
    given = os.environ.items()
    environment = {name: value for name, value in given if not name.startswith("GIT_") or name in _INHERITED}
    # A session of its own: the Ctrl-C that ends a program must not kill its last commit half way.
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment | _OURS | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=handles,
    ) as process:
        try:
            output, errors = process.communicate(stdin, timeout=longest)
        except subprocess.TimeoutExpired:
            process.terminate()  # not kill(): git removes its lock files when it is told to end
            output, errors = b"", f"it took longer than {longest:.0f} seconds".encode()
    return GitResult(process.returncode, output, errors.decode(errors="backslashreplace").strip())
