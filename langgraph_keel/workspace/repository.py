"""The shadow repository: its trees, their refs, and garbage collection.

A ref `keel/THREAD/TREE` keeps a tree for a thread, and `keel/THREAD/last-DIRECTORY` names its last tree in a directory.
Refs are never packed: each is a file, so storing a checkpoint starts no process for it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from langgraph_keel.errors import InvalidInput, StoreError, StoreFull
from langgraph_keel.git import NO_HOOKS, find_git, run_git

_LONGEST = 3600.0
"""Timeout of a git process, in seconds; first snapshots and collections are slow."""
_LAST = "last-"
_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The empty tree, which git knows without an object."""
_TREE = re.compile(r"[0-9a-f]{40}")
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large")
# Bytes are stored unchanged, regardless of the user's `.gitattributes` and configuration.
_ATTRIBUTES = "* -text -filter -ident !working-tree-encoding !diff !merge\n"
_SETTINGS = {
    **{"core.autocrlf": "false", "core.ignorecase": "false", "core.precomposeunicode": "false"},
    **{"core.symlinks": "true", "core.fileMode": "true", "core.protectNTFS": "false", "core.protectHFS": "false"},
    **{"core.excludesFile": os.devnull, "core.attributesFile": os.devnull, "core.fsmonitor": "false"},
    **{"core.fsync": "objects", "core.fsyncMethod": "batch", "gc.packRefs": "false", "gc.auto": "0"},
}
_OPTIONS = [*NO_HOOKS, *(part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}"))]


class Difference(NamedTuple):
    """A path that differs between two trees, and whether each of them has it."""

    path: bytes
    before: bool
    after: bool


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file durably."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Repository:
    """A shadow repository; raises `InvalidInput` if the directory is not Keel's."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.own = self.path / "keel"
        if not self.own.is_dir() and self.path.exists() and any(self.path.iterdir()):
            raise InvalidInput(f"{self.path} is not a shadow repository of Keel: use an empty or missing directory")

    def setup(self) -> None:
        """Create the repository, if it is missing."""
        if not (self.own / "ready").exists():
            self.own.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.run("init", "--quiet", "--bare", "--template=", str(self.path))
            write_whole(self.path / "info" / "attributes", _ATTRIBUTES.encode())
            write_whole(self.own / "ready", b"")

    def run(
        self, *arguments: str, stdin: Sequence[bytes] = (), at: Path | None = None, handle: int = -1, **variables: str
    ) -> bytes:
        """Run git and return its output."""
        # Git inherits the lock `handle`, so the lock stays held if this process dies first.
        ours = {"GIT_DIR": str(self.path), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **variables}
        command, given = [find_git("workspace="), *_OPTIONS, *arguments], b"".join(each + b"\0" for each in stdin)
        done = run_git(command, at or self.own, given, _LONGEST, handle, **ours)
        if done.status == 0:
            return done.output
        kind = StoreFull if _FULL.search(done.errors) else StoreError
        raise kind(f"{self.path}: git {arguments[0]} failed; fix the cause and try again: {done.errors}")

    def _ref(self, thread: str, name: str = "") -> Path:
        return self.path / "refs" / "keel" / thread / name

    def has(self, thread: str, tree: str = "") -> bool:
        """Return whether a tree (by default, any) is kept for a thread."""
        return self._ref(thread, tree).exists()

    def keep(self, thread: str, tree: str, directory: str = "") -> None:
        """Keep a tree for a thread, and note it as the last one of a directory."""
        # Writes only missing or different refs.
        for name in (tree, _LAST + directory) if directory else (tree,):
            if _read_ref(self._ref(thread, name)) != tree:
                write_whole(self._ref(thread, name), f"{tree}\n".encode())

    def last(self, thread: str, directory: str) -> str:
        """Return the last tree of a thread in a directory; the empty tree if it has none."""
        return _read_ref(self._ref(thread, _LAST + directory)) or _EMPTY

    def drop(self, thread: str, trees: Collection[str] | None = None) -> None:
        """Drop the refs of the given trees of a thread, or of all."""
        if trees is None:
            shutil.rmtree(self._ref(thread), ignore_errors=True)
        for tree in trees or ():
            self._ref(thread, tree).unlink(missing_ok=True)

    def copy(self, source: str, target: str, trees: Collection[str] | None = None) -> None:
        """Copy the refs of the given trees of a thread, or of all, and its last trees."""
        for ref in sorted(self._ref(source).iterdir()) if self.has(source) else ():
            if (tree := _read_ref(ref)) and (trees is None or tree in trees or ref.name.startswith(_LAST)):
                write_whole(self._ref(target, ref.name), f"{tree}\n".encode())

    def compare(self, before: str, after: str) -> Sequence[Difference]:
        """Return the paths that differ between two trees."""
        options = ("-r", "-z", "--name-status", "--no-renames")
        parts = self.run("diff-tree", *options, before, after, "--").split(b"\0")[:-1]
        sides = zip(parts[::2], parts[1::2], strict=True)  # "A", "D", or another letter if both trees have it
        return [Difference(path, status != b"A", status != b"D") for status, path in sides]

    def patch(self, before: str, after: str) -> str:
        """Return the difference of two trees as text."""
        options = ("-p", "-M", "--no-color", "--no-ext-diff", "--no-textconv")
        return self.run("diff-tree", *options, before, after, "--").decode(errors="replace")

    def files(self, tree: str) -> dict[bytes, int]:
        """Return the files of a tree, with their sizes."""
        lines = (line.partition(b"\t") for line in self.run("ls-tree", "-r", "-l", "-z", tree).split(b"\0")[:-1])
        return {path: int(head.split()[3]) for head, _, path in lines}

    @contextmanager
    def locked(self, *, alone: bool = False) -> Iterator[None]:
        """Lock out a collection, which could remove objects without a ref yet."""
        # The collection itself locks with `alone`.
        handle = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(handle)

    def collect(self, *, now: bool) -> str:
        """Remove unreferenced objects (`git gc`), by default only after two weeks."""
        if not (self.own / "ready").exists():
            return ""
        with self.locked(alone=True):
            self.run("gc", "--quiet", f"--prune={'now' if now else '2.weeks.ago'}")
        return "files that no checkpoint uses were removed (git gc)"


def _read_ref(path: Path) -> str:
    with suppress(OSError, ValueError):
        text = path.read_text("ascii").strip()
        return text if _TREE.fullmatch(text) else ""
    return ""
