"""The git repository that a store's root is in, and how the git executable is called.

Hooks and signing are off: a hook that sets the working tree aside while it looks at what is staged (as `pre-commit`
does) would take stored lines from under running processes, and a signature might ask somebody for a passphrase.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from random import uniform
from time import monotonic, sleep
from typing import NamedTuple

from langgraph_keel.errors import InvalidInput, StoreBusy
from langgraph_keel.files.disk import MODE, give_back, lock
from langgraph_keel.files.shelves import SHARED

_SETTINGS = ("keel.json", "threads/.gitattributes", "threads/.gitignore")
# Inside a hook, git sets variables that lead every git below to the repository and the index of that hook.
_INHERITED = {
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH"),
}
_OURS = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"}
_NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")
_PATIENCE = 2.0
"""Seconds to wait for another git that holds a lock; none after it was in vain, until a commit works again."""
_LONGEST = 20.0
"""Seconds that one git may take, and that a process of ours waits for its turn."""
_TURN = "keel.lock"


class Done(NamedTuple):
    """What a git that has ended leaves."""

    status: int
    output: bytes
    errors: str


class Repository:
    """Commits paths of a store, one call at a time.

    Processes of ours take turns by a lock beside git's own. Those are not enough (git 2.39): a commit of some paths
    reads the index before it locks it, and writes back what it has read, so what another process adds meanwhile is
    lost. The first commits of 2 threads in 80 were.

    Args:
        root: The store's directory; it need not exist yet.

    Raises:
        InvalidInput: git is not installed, or `root` is not in a working tree.
    """

    def __init__(self, root: Path) -> None:
        git = shutil.which("git")
        if git is None:
            raise InvalidInput("git=True needs the git executable, and there is none on the PATH")
        self._root, self._git = root, git
        self._patience = _PATIENCE
        self._new_settings: tuple[str, ...] | None = None
        self._check()

    def _check(self) -> None:
        existing = next(path for path in (self._root, *self._root.absolute().parents) if path.is_dir())
        found = _run([self._git, "rev-parse", "--is-inside-work-tree", "--git-path", _TURN], existing)
        is_inside, _, path = os.fsdecode(found.output).partition("\n")
        if is_inside != "true":
            reason = found.errors or "it is inside a repository's own directory"
            where = f"a git repository around {str(self._root)!r} (`git init` makes one)"
            raise InvalidInput(f"git=True needs {where}: {reason}")
        self._turn = (existing / path.removesuffix("\n")).absolute()

    def commit(self, path: str, message: str) -> str:
        """Commit what is new below a path of the root and in shared cells, and nothing else that is changed or staged.

        Waits up to 20 seconds for other processes' commits, and 2 for another git that holds a lock.

        Returns:
            What git has against it; empty when it is done, or there was nothing to commit.
        """
        try:
            with self._our_turn():
                refusal = self._refusal(path, message)
        except (OSError, StoreBusy) as error:
            refusal = str(error)
        self._patience = 0.0 if refusal else _PATIENCE
        return refusal

    @contextmanager
    def _our_turn(self) -> Iterator[None]:
        if not self._turn.parent.exists():  # git will say what has become of its repository
            yield
            return
        file = FileIO(os.open(self._turn, os.O_RDWR | os.O_CREAT, MODE), "r+")
        try:
            lock(file.fileno(), monotonic() + _LONGEST, self._turn)
            yield
        finally:
            give_back(file)

    def _refusal(self, path: str, message: str) -> str:
        paths = (path, *self._shared(), *self._settings())
        added = self._patiently("add", "--all", "--", *paths)
        if added.status:
            return _reason(added)
        options = ("--quiet", "--only", "--no-gpg-sign", "--cleanup=verbatim", "--file=-")
        done = self._patiently("commit", *options, "--", *paths, stdin=message)
        if done.status == 0:
            self._new_settings = ()
        return _reason(done)

    def _shared(self) -> Iterable[str]:
        """Return where shared cells are, if there are any. They may be left out of git: then they are only a cache."""
        is_there = (self._root / SHARED / ".gitattributes").exists()
        if is_there and _run([self._git, "check-ignore", "--quiet", "--", SHARED], self._root).status != 0:
            return (SHARED,)
        return ()

    def _settings(self) -> Iterable[str]:
        """Return those files of the root that git does not know yet; changes to known ones are the user's to commit."""
        if self._new_settings is None:
            known = _run([self._git, "ls-files", "--", *_SETTINGS], self._root).output.decode().splitlines()
            there = [name for name in _SETTINGS if (self._root / name).exists()]
            self._new_settings = tuple(name for name in there if name not in known)
        return self._new_settings

    def _patiently(self, *arguments: str, stdin: str = "") -> Done:
        """Run git, again and again while another one holds a lock."""
        give_up = monotonic() + self._patience
        while True:
            done = _run([self._git, *_NO_HOOKS, *arguments], self._root, stdin)
            if done.status == 0 or "lock" not in done.errors or monotonic() >= give_up:
                return done
            sleep(uniform(0.01, 0.05))


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that two branches have both changed, and a merge, a rebase or a stash left to be decided.

    Attributes:
        path: The file's path from the store's root, such as `threads/user-1/log.jsonl`. What is there now is `ours`.
        ours: Its bytes on the branch that is checked out; `None` where it was deleted.
        theirs: Its bytes on the other one.
    """

    path: str
    ours: bytes | None
    theirs: bytes | None


def conflicts(root: Path) -> list[Conflict]:
    """Return the files of a store that git holds in conflict; none if git or a repository is missing."""
    git = shutil.which("git")
    if git is None or not root.is_dir():
        return []
    listed = _run([git, "ls-files", "--unmerged", "-z", "--", "."], root).output.decode(errors="surrogateescape")
    sides: dict[str, dict[str, str]] = {}
    for line in listed.split("\0")[:-1]:  # "<mode> <object> <stage>\t<path>"; stages: 1 base, 2 ours, 3 theirs
        fields, _, path = line.partition("\t")
        _, name, stage = fields.split(" ")
        sides.setdefault(path, {})[stage] = name
    blobs = {path: [_blob(git, root, stages.get(stage)) for stage in "23"] for path, stages in sides.items()}
    return [Conflict(path, *both) for path, both in blobs.items()]


def _blob(git: str, root: Path, name: str | None) -> bytes | None:
    return None if name is None else _run([git, "cat-file", "blob", name], root).output


def _run(command: list[str], directory: Path, stdin: str = "") -> Done:
    # A session of its own: the Ctrl-C that ends a program must not kill its last commit half way.
    with subprocess.Popen(
        command,
        cwd=directory,
        env=_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(stdin.encode(errors="backslashreplace"), timeout=_LONGEST)
        except subprocess.TimeoutExpired:
            process.terminate()  # not kill(): git removes its lock files when it is told to end
            output, errors = b"", f"it took longer than {_LONGEST:.0f} seconds".encode()
    return Done(process.returncode, output, errors.decode(errors="backslashreplace").strip())


def _environment() -> dict[str, str]:
    given = os.environ.items()
    return {name: value for name, value in given if not name.startswith("GIT_") or name in _INHERITED} | _OURS


def _reason(done: Done) -> str:
    """Return why git refused; nothing if all is committed already, or gone and was never known to git."""
    is_unknown = "did not match any file" in done.errors
    return "" if done.status == 0 or is_unknown else done.errors
