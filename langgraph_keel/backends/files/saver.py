"""FileSaver: a directory of text files that people can read, diff and keep in git."""

from __future__ import annotations

import os
from asyncio import to_thread
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from langgraph_keel.backends.files.disk import named_errors
from langgraph_keel.backends.files.driver import AsyncFileDriver, FileDriver
from langgraph_keel.backends.files.git import Commits, CommittingStore, GitHook
from langgraph_keel.backends.files.index import INDEX
from langgraph_keel.backends.files.log import MIGRATIONS
from langgraph_keel.backends.files.store import FileStore
from langgraph_keel.backends.paths import checked_path
from langgraph_keel.backends.registry import path_in, refuse_url
from langgraph_keel.engine.plan import is_in_loop
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.options import FileOptions, split_options, takes
from langgraph_keel.saver import KeelSaver

if TYPE_CHECKING:
    from langgraph_keel.retention.check import Finding
    from langgraph_keel.retention.info import StoreFacts
    from langgraph_keel.retention.reclaim import Reclaimed

MADE = 60.0
"""Seconds after which an unfinished new thread counts as abandoned.

Making one takes milliseconds; a process that is slower than this gets an error."""


def reclaim(driver: FileDriver) -> Reclaimed:
    """Remove leftovers of interrupted writes, of threads and of cells."""
    from langgraph_keel.retention.reclaim import Reclaimed

    driver.prepare(writes=True)
    before = size(driver.root)
    driver.clean(MADE)
    cells = driver.cells(None)
    for kind in cells.kinds():
        with suppress(FileNotFoundError), cells.open(kind) as folder:
            folder.clear()
    return Reclaimed(
        before,
        size(driver.root),
        "no leftovers of interrupted writes; the space of deleted threads is freed immediately",
    )


def size(root: Path) -> int:
    """Return the total size of a store's files, in bytes."""
    total = 0
    for at, _, names in os.walk(root):
        for name in names:
            with suppress(FileNotFoundError):  # removed at this moment
                total += Path(at, name).stat(follow_symlinks=False).st_size
    return total


@publish
class FileSaver(KeelSaver):
    """A checkpointer on a directory, for any number of processes of one machine.

    A thread is a directory with an append-only log of JSON lines, so `cat`, `grep`, `jq` and `git diff` show the
    agent's steps (`files/FORMAT.md`). Acknowledged means on disk (`fdatasync`, and `fsync` of new directories), also
    after a power cut. The store is made on first use.

    Args:
        root: The directory: empty, missing, or a store.
        **options: `FileOptions` lists and documents them, with those of every saver.

    Raises:
        InvalidInput: If `root` is a URL. Also, with `git=True`, if git is not installed or `root` is not inside a
            working tree; a saver made in a running loop raises this at its first use.
    """

    _registry = MIGRATIONS

    @takes(FileOptions)
    def __init__(self, root: str | os.PathLike[str], **options: Unpack[FileOptions]) -> None:
        own, shared = split_options(type(self), FileOptions, options)
        path = Path(checked_path(root, "files"))
        self._commits = Commits(path, later=is_in_loop()) if own.pop("git") else None
        find_git = self._commits.find if self._commits else None
        self._files = FileDriver(path, **own, migrations=self._registry, prepare=find_git)
        store = CommittingStore(self._commits) if self._commits else FileStore()
        if self._commits:
            shared["extra_hooks"] = [GitHook(self._commits), *shared.get("extra_hooks", ())]
        super().__init__(store, self._files, AsyncFileDriver(self._files), own["read_only"], **shared)

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Unpack[FileOptions]) -> Self:
        """Return a saver for a path, under the name that LangGraph's savers use."""
        return cls(conn_string, **options)

    def _setup(self) -> None:
        self._files.setup()

    def _migrations(self) -> list[str]:
        return self._files.migrations()

    def _place(self) -> str:
        return str(self._files.root)

    def _beside(self) -> Path:
        return self._files.root

    def _facts(self) -> StoreFacts:
        from langgraph_keel.retention.info import StoreFacts

        root = self._files.root
        return StoreFacts("files", str(root.absolute()), self._files.format, "on disk (fdatasync)", size(root))

    def _check(self) -> Iterator[Finding]:
        """Read every file; return damage, leftovers and git conflicts."""
        return self._files.open_check(writes=False, tenant=self.tenant or "").findings()

    def _index_advice(self, thread_id: str) -> str:
        return f"remove {self._files.root / 'threads' / INDEX}; the next list reads the logs"

    def repair(self) -> Iterator[Finding]:
        """Rewrite damaged logs with their readable lines; empty damaged cells.

        Old files are kept.

        Returns:
            The findings of `check` before the repair; each is yielded after it was repaired.

        Raises:
            NotFound: If there is no store.
            ReadOnlyStore: If this saver is read-only.
        """
        return self._files.open_check(writes=True, tenant=self.tenant or "").repair()

    async def arepair(self) -> AsyncIterator[Finding]:
        """As `repair`, asynchronously."""
        findings = self.repair()
        while (finding := await to_thread(next, findings, None)) is not None:
            yield finding

    def _reclaim(self, *, full: bool, scrub: bool) -> Reclaimed:
        with named_errors(self._files.root):
            return reclaim(self._files)

    def _weight(self) -> int | None:
        return size(self._files.root)

    def _elsewhere(self) -> Sequence[str]:
        root = self._files.root
        places = ["Backups and copies of the directory."]
        for directory in (root, *root.parents):
            if (directory / ".git").exists():
                places.append(
                    f"The history of the git repository at {directory}: it keeps every committed version, in every "
                    "clone, until it is rewritten (git filter-repo) and collected (git gc --prune=now)."
                )
                break
        if damaged := next(root.glob("shared/*/*.damaged-*"), None):
            places.append(
                f"Damaged cells that a repair has moved aside, such as {damaged}: read them, and remove them by hand."
            )
        return places

    def _close(self) -> None:
        """Wait for running calls, commit remaining changes, and refuse later calls."""
        self._files.close()
        if self._commits:
            self._commits.close()


def open_url(url: str, *, read_only: bool = False, **options: Any) -> FileSaver:
    """Open the directory in a URL: `files:relative` or `files:/absolute`.

    As `registry.OpenUrl`; options are those of `FileSaver`.
    """
    path = path_in(url, "files:")
    if not path.strip("/"):
        raise refuse_url(url)
    return FileSaver(path, read_only=read_only, **options)
