"""Git repositories for tests, and stores in them.

They are made with the real git, independently of this machine's configuration.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from langgraph_keel.backends.files import FileSaver
from langgraph_keel.backends.files.disk import directory_of


class Repository:
    """A repository with a user; `git("add", ".")` runs git in it.

    It returns the output.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def made(cls, path: Path) -> Repository:
        path.mkdir(parents=True, exist_ok=True)
        repository = cls(path)
        repository("init", "--quiet", "--initial-branch=main")
        repository.introduce()
        return repository

    def introduce(self) -> None:
        self("config", "user.name", "A Person")
        self("config", "user.email", "person@example.org")

    def __call__(self, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, capture_output=True, encoding="utf-8")
        assert (done.returncode != 0) == fails, f"git {arguments}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr * fails

    def commit(self, message: str = "by hand") -> str:
        self("add", "--all")
        self("commit", "--quiet", "--message", message)
        return self("rev-parse", "HEAD").strip()

    def titles(self, expected: int = 0) -> list[str]:
        """Return the subjects of all commits, oldest first.

        Waits until there are as many as expected.
        """
        give_up = time.monotonic() + 10
        while len(titles := self._titles()) < expected and time.monotonic() < give_up:
            time.sleep(0.02)
        return titles

    def _titles(self) -> list[str]:
        head = self.path / ".git" / "refs" / "heads" / "main"
        return self("log", "--reverse", "--format=%s").splitlines() if head.exists() else []


def isolate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate git from this machine's configuration, and from a surrounding hook."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


SETTINGS = ("keel.json", "threads/.gitattributes", "threads/.gitignore")
LINE = '{"k":"item","ch":"messages","n":%d,"v":{"$role":"human","content":"größer"},"crc":"00000000"}\n'


def made_root(root: Path) -> Path:
    """Create a store without threads."""
    with FileSaver(root) as saver:
        saver.setup()
    return root


def settings_of(root: Path) -> list[str]:
    """Return the files of a store outside its threads."""
    return [name for name in sorted(SETTINGS) if (root / name).exists()]


def log_of(root: Path, thread: str) -> Path:
    return root / "threads" / directory_of(thread) / "log.jsonl"


def append(root: Path, thread: str, number: int = 0) -> None:
    log = log_of(root, thread)
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as file:
        file.write((LINE % number).encode())
