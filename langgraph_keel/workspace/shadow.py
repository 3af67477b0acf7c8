"""Claims, saves and restores one directory with a shadow repository.

A snapshot takes two git processes if nothing has changed (`ls-files`, `write-tree`), otherwise one more. A restore
stores its plan in a file before its first change, and is repeated from there if it was interrupted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any

from langgraph_keel.engine import runs as live
from langgraph_keel.errors import InvalidInput, NotFound, StoreError, StoreFull, WorkspaceTaken
from langgraph_keel.git import find_git
from langgraph_keel.workspace.records import Workspace, WorkspaceRestore
from langgraph_keel.workspace.repository import Repository, write_whole

_log = logging.getLogger(__name__)
ASIDE = ".keel-aside"
"""The directory in the workspace for files that are set aside; it is never saved."""
_NESTED, _BEHIND = "in a nested repository", "behind a link"
_COMPANIONS = ("", "-wal", "-shm", "-journal", ".lock")
"""Suffixes of a database's files."""


class Shadow:
    """A saved directory, without the store and the repository; shared by all tenants."""

    def __init__(self, workspace: Workspace, repository: Repository, store: Path | None) -> None:
        find_git("workspace=")
        self.workspace, self.repository, self._store = workspace, repository, store
        self.root = Path(os.path.realpath(workspace.directory))
        self._bytes = os.fsencode(self.root)
        if self.root.exists() and not self.root.is_dir():
            raise InvalidInput(f"{self.root} is not a directory, so it cannot be a workspace")
        self._ignored = [*workspace.ignore, f"/{ASIDE}/"]
        for place in (Path(os.path.realpath(each)) for each in (store, repository.path) if each):
            if self.root.is_relative_to(place):
                raise InvalidInput(f"{self.root} is inside {place}, which belongs to Keel: use another directory")
            if place.is_relative_to(self.root):
                name = re.sub(r"([\\*?\[\]! #])", r"\\\1", str(place.relative_to(self.root)))
                self._ignored += [f"/{name}{end}" for end in _COMPANIONS]
        self.key = sha256(self._bytes).hexdigest()[:40]
        self.own = repository.own / self.key
        self._busy, self._handle, self._process = RLock(), -1, os.getpid()
        self._run: live.LiveRun | None = None  # the run that has claimed the directory
        self._thread = self._first = ""  # the run's thread, and the tree from before its first step
        self._told = set[str]()

    def at(self, directory: Any) -> Shadow:
        """Return the shadow of another directory, in the same repository."""
        asked = Workspace(directory, ignore=self.workspace.ignore, largest=self.workspace.largest)
        other = Shadow(asked, self.repository, self._store)
        if other.root == self.root:
            return self
        if other.root.is_relative_to(self.root) or self.root.is_relative_to(other.root):
            raise InvalidInput(f"one of {other.root} and {self.root} is inside the other: use separate directories")
        return other

    def begin(self, run: live.LiveRun | None, thread: str) -> None:
        """Claim the directory for a run, and save its current state."""
        with self._busy:
            self._check_free(thread)
            if run is not None:
                if self._handle < 0:
                    self._take()
                self._run, self._thread, then = run, thread, run.on_end

                def end(error: BaseException | None, later: bool) -> None:
                    self.end(run)
                    if then:
                        then(error, later)

                run.on_end = end
            try:
                tree = self.save(thread)
            except BaseException:
                if run is not None:
                    self.end(run)
                raise
            self._first = tree if run is not None else self._first

    def take_first(self, run: live.LiveRun | None) -> str:
        """Return the tree from before a run's first step, once; empty if unknown."""
        if run is None or run is not self._run:
            return ""
        tree, self._first = self._first, ""
        return tree

    def end(self, run: live.LiveRun | None = None) -> None:
        """Release the directory if this run (by default, any run) has claimed it."""
        with self._busy:
            if self._handle >= 0 and run in (None, self._run):
                self._run = None
                self._release()

    def _release(self) -> None:
        handle, self._handle = self._handle, -1
        if self._process == os.getpid():  # in a forked process, the lock still belongs to the parent
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def _take(self) -> None:
        self.repository.setup()
        self.own.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise WorkspaceTaken(str(self.root)) from error
        self._handle = handle

    def _check_free(self, thread: str) -> None:
        """Raise `WorkspaceTaken` if this process has claimed it for another thread's run."""
        if self._process != os.getpid():
            self.end()
            self._process = os.getpid()
        held = self._run
        if held and self._thread != thread and held in live.find_acting(held.store, held.thread_id):
            raise WorkspaceTaken(str(self.root))

    @contextmanager
    def _claimed(self, thread: str) -> Iterator[None]:
        """Hold the directory for an operation on a thread; finish an interrupted restore."""
        # A run of the same thread may have claimed it.
        with self._busy:
            self._check_free(thread)
            if not (is_held := self._handle >= 0):
                self._take()
            try:
                with self.repository.locked():
                    self.root.mkdir(parents=True, exist_ok=True)
                    if (self.own / "restoring").exists():
                        owner, wanted, checkpoint_id, name = json.loads((self.own / "restoring").read_bytes())
                        _log.warning("%s: finishing its interrupted restore to %s", self.root, checkpoint_id)
                        if self.repository.has(owner, wanted):
                            self._restore(owner, wanted, checkpoint_id, name)
                        else:  # the thread was deleted since
                            (self.own / "restoring").unlink()
                    yield
            finally:
                if not is_held:
                    self._release()

    def save(self, thread: str) -> str:
        """Save the directory for a thread, if it has changed; return its tree."""
        with self._claimed(thread):
            tree, not_saved = self._take_snapshot()
            self.repository.keep(thread, tree, self.key)
        for path in not_saved.keys() - self._told:
            _log.warning("%s: %r is not saved: %s", self.root, path, not_saved[path])
        self._told |= not_saved.keys()
        return tree

    def _take_snapshot(self) -> tuple[str, Mapping[str, str]]:
        """Return the tree of the directory, and unsaved paths with their reasons."""
        index, patterns = self.own / "index", "\n".join(self._ignored).encode(errors="surrogateescape")
        known = self.own / "patterns"
        if not known.exists() or known.read_bytes() != patterns:  # newly ignored paths must leave the index
            index.unlink(missing_ok=True)
            write_whole(known, patterns)
        try:
            return self._update_index()
        except StoreFull:
            raise
        except StoreError:
            # The index is a cache. A git that was killed may have left it locked, and a collection may have removed
            # objects that it names.
            for path in (index, self.own / "index.lock"):
                path.unlink(missing_ok=True)
            return self._update_index()

    def _update_index(self) -> tuple[str, Mapping[str, str]]:
        patterns = [f"--exclude={pattern}" for pattern in self._ignored]
        listed = self._run_git("ls-files", "-t", "-z", "-o", "-m", "--exclude-standard", *patterns)
        changed, gone, not_saved, folders = list[bytes](), list[bytes](), dict[str, str](), dict[bytes, str]()
        for entry in dict.fromkeys(listed.split(b"\0")[:-1]):
            path, is_known = entry[2:], not entry.startswith(b"?")
            reason = self._judge(path, folders)
            if not reason and not (is_known and self._is_folder(path)):
                changed.append(path)
            elif is_known:
                gone.append(path)
            if reason and reason != _BEHIND:
                not_saved[os.fsdecode(path)] = reason
        self._update("--force-remove", stdin=gone)
        self._update("-q", "--refresh", "--add", "--remove", "--replace", stdin=changed)
        return self._run_git("write-tree").decode().strip(), not_saved

    def _run_git(self, *arguments: str, stdin: Sequence[bytes] = (), index: str = "index") -> bytes:
        where = {"GIT_WORK_TREE": str(self.root), "GIT_INDEX_FILE": str(self.own / index)}
        return self.repository.run(*arguments, stdin=stdin, at=self.root, handle=self._handle, **where)

    def _update(self, *options: str, stdin: Sequence[bytes], index: str = "index") -> None:
        if stdin:
            self._run_git("update-index", *options, "-z", "--stdin", stdin=stdin, index=index)

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._bytes, path)

    def _is_folder(self, path: bytes) -> bool:
        return os.path.isdir(self._at(path)) and not os.path.islink(self._at(path))

    def _judge(self, path: bytes, folders: dict[bytes, str]) -> str:
        """Return why a path is not saved; empty if it is saved or no longer exists."""
        if path.endswith(b"/"):
            return "a nested repository"
        if b".git" in path.lower().split(b"/"):
            return "git does not save this name"
        if reason := self._judge_folder(os.path.dirname(path), folders):
            return reason
        with suppress(FileNotFoundError, NotADirectoryError):
            found = os.lstat(self._at(path))
            if not stat.S_ISREG(found.st_mode):
                is_known = stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)
                return "" if is_known else "neither a file nor a link"
            if found.st_size > self.workspace.largest:
                return f"over {self.workspace.largest:,} bytes"
            return "" if os.access(self._at(path), os.R_OK) else "this user may not read it"
        return ""

    def _judge_folder(self, folder: bytes, folders: dict[bytes, str]) -> str:
        if folder and folder not in folders:
            is_nested = os.path.lexists(self._at(folder + b"/.git"))
            reason = _BEHIND if os.path.islink(self._at(folder)) else _NESTED if is_nested else ""
            folders[folder] = self._judge_folder(os.path.dirname(folder), folders) or reason
        return folders.get(folder, "")

    def restore(self, thread: str, wanted: str, checkpoint_id: str, name: str) -> WorkspaceRestore:
        """Restore the directory to a tree of a thread; with an empty `name`, only preview."""
        # `name` is the directory for files that are set aside.
        if not self.repository.has(thread, wanted):
            where = f"{self.repository.path} has no files of checkpoint {checkpoint_id}"
            raise NotFound(f"{where}: name the repository to which they were saved, Workspace(repository=...)")
        with self._claimed(""):
            return self._restore(thread, wanted, checkpoint_id, name)

    def _restore(self, thread: str, wanted: str, checkpoint_id: str, name: str) -> WorkspaceRestore:
        tree, not_saved = self._take_snapshot()
        changed = {each.path: each for each in self.repository.compare(self.repository.last(thread, self.key), tree)}
        written, removed, left, skipped = list[bytes](), list[bytes](), list[bytes](), list[bytes]()
        aside, folders = dict[bytes, None](), dict[bytes, str]()
        differences = self.repository.compare(tree, wanted)
        for path, before, after in differences:
            since = changed.get(path)
            if not after and since is None:
                removed.append(path)
            elif not after and since and not since.before:
                left.append(path)
            elif not after or (before and since):
                aside[path] = None
            if after and self._judge_folder(os.path.dirname(path), folders) == _NESTED:
                skipped.append(path)
            elif after:
                written.append(path)
        going = {*removed, *aside}
        for path in [path for path, before, after in differences if after and not before and path not in skipped]:
            way, is_nested = self._find_way(path, going)
            if way and is_nested:
                written.remove(path)
                skipped.append(path)
            elif way:
                aside[way] = None
        left = [path for path in left if not any((path + b"/").startswith(each + b"/") for each in aside)]
        report = {"written": written, "removed": removed, "set_aside": aside, "left": left, "skipped": skipped}
        if name:
            write_whole(self.own / "restoring", json.dumps([thread, wanted, checkpoint_id, name]).encode())
            if skipped:
                self._run_git("read-tree", wanted, index="partial")
                self._update("--force-remove", stdin=skipped, index="partial")
            target = self._run_git("write-tree", index="partial").decode().strip() if skipped else wanted
            try:
                for path in sorted(aside):
                    self._set_aside(path, name)
            except OSError as error:
                reason = f"the restore failed, and the next snapshot or restore will finish it: {error}"
                raise StoreError(f"{self.root}: {reason}") from error
            self._update("--force-remove", stdin=left)
            self._run_git("read-tree", "--reset", "-u", target)
            tree, not_saved = self._take_snapshot()
            if wrong := {each.path for each in self.repository.compare(tree, wanted)}.difference(left, skipped):
                (self.own / "restoring").unlink()
                names = ", ".join(repr(os.fsdecode(path)) for path in sorted(wrong)[:5])
                raise StoreError(
                    f"{self.root} differs from checkpoint {checkpoint_id} after its restore ({names}): another program "
                    "may write there, or the disk may not support these names. Check them, and restore again"
                )
            if self.repository.has(thread):  # the thread may have been deleted since
                self.repository.keep(thread, wanted, self.key)
            (self.own / "restoring").unlink()
        shown: Any = {kind: tuple(map(os.fsdecode, paths)) for kind, paths in report.items()}
        where = str(self.root / ASIDE / name) if name and aside else ""
        return WorkspaceRestore(
            str(self.root), checkpoint_id, **shown, not_saved=not_saved, aside=where, is_done=bool(name)
        )

    def _find_way(self, path: bytes, going: Collection[bytes]) -> tuple[bytes | None, bool]:
        """Return a path that blocks a new one, and whether it has a nested repository."""
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            way = b"/".join(parts[:depth])
            if way in going or not os.path.lexists(self._at(way)):
                return None, False
            if not self._is_folder(way):
                return way, False
        walked = list(os.walk(self._at(path)))
        inner = {os.path.relpath(os.path.join(at, name), self._bytes) for at, _, names in walked for name in names}
        is_nested = any(b".git" in (*names, *files) for _, names, files in walked)
        return (None if inner <= set(going) else path), is_nested

    def _set_aside(self, path: bytes, name: str) -> None:
        place = os.fsencode(f"{ASIDE}/{name}/") + path
        if _BEHIND in (self._judge_folder(os.path.dirname(each), {}) for each in (path, place)):
            raise StoreError(f"{self.root}: a link leads out of {os.fsdecode(path)!r} or {ASIDE}: move it away")
        if not os.path.lexists(self._at(path)):
            return  # already moved with its directory
        free, number = self._at(place), 1
        os.makedirs(os.path.dirname(free), exist_ok=True)
        while os.path.lexists(free):
            number += 1
            free = self._at(place) + b"~%d" % number
        os.rename(self._at(path), free)
