"""One thread on disk: its directory, which several processes may read and write.

Readers take no lock, because a log only grows or is replaced as a whole. Writers hold the lock of the log file.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TypeVar

from langgraph_keel.backends.files.cells import Shelves
from langgraph_keel.backends.files.disk import (
    FOLDER_MODE,
    is_at,
    lock,
    open_file,
    open_locked,
    read,
    remove_all_but,
    sync_directory,
    unlock,
    write_all,
    write_durably,
)
from langgraph_keel.backends.files.index import CHANGED, changing
from langgraph_keel.backends.files.log import Draft, Newest, Replica, Unknown, line_of, lines_in, read_end
from langgraph_keel.backends.files.mark import Mark
from langgraph_keel.backends.migrations import newest
from langgraph_keel.engine.records import Stamp
from langgraph_keel.engine.thread import Thread, is_last
from langgraph_keel.errors import CorruptStore, NewerFormat, StoreError

T = TypeVar("T")
_log = logging.getLogger(__name__)
LOG = "log.jsonl"
BLOBS = "blobs"
CELLS = "cells"
Decide = Callable[[Replica, Draft], T]


def new_epoch() -> str:
    """Return a new epoch: the time, so that epochs sort by age, and 32 random bits."""
    return f"{time.time_ns():016x}{token_hex(4)}"


class ThreadFiles:
    """A thread's directory, which may not exist, and the part of its log read so far."""

    def __init__(self, directory: Path, thread_id: str, timeout: float, mark: Mark) -> None:
        self.mark = mark
        self.directory = directory
        self.thread_id = thread_id
        self.log = directory / LOG
        self._changed = str(directory.parent / CHANGED)
        self.cells = Shelves(directory.parent.parent, (directory.parent.name, directory.name, CELLS), timeout)
        self._timeout = timeout
        self._turn = Lock()
        self._replica: Replica | None = None
        self._file: tuple[int, int] | None = None
        self._state = (0, 0)  # its size and the time of its last change
        # The log whose name this process has synced; the process that made the log may have died before that.
        self._synced_name: tuple[int, int] | None = None
        self._has_failed = False
        # The log, and the offset up to which this process knows that it is synced.
        self._synced: tuple[tuple[int, int] | None, int] | None = None

    @property
    def nbytes(self) -> int:
        """Its approximate size in memory."""
        replica = self._replica
        return replica.nbytes if replica else 0

    def load(self, blob: str) -> bytes:
        """Return the content of a large value."""
        path = self.directory / BLOBS / f"{blob}.json"
        if not (len(blob) == 64 and blob.isalnum()):
            raise CorruptStore(f"{self.log}: {blob!r} is not the name of a blob")
        try:
            with open_file(path, "r") as file:
                data = file.readall() or b""
        except FileNotFoundError as error:
            raise CorruptStore(f"{path}: a value of this thread is missing") from error
        if sha256(data).hexdigest() != blob:
            raise CorruptStore(f"{path}: its content does not match its name, a SHA-256 checksum")
        return data

    def first_line(self, epoch: str, seq: int = 0) -> bytes:
        """Return the first line of its log."""
        known = newest(self.mark.migrations)
        return line_of({"k": "thread", "format": known, "id": self.thread_id, "epoch": epoch, "seq": seq})

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, look: Callable[[Thread | None], T]) -> T:
        """Return the result of `look` for the present thread, or `None`."""
        try:
            with self._turn:
                with suppress(Unknown):
                    return self._look(look, whole=False)
                return self._look(look)
        except CorruptStore:
            # Another process may have replaced the rest of an interrupted write at the same time, or removed a blob
            # with the last line that refers to it. Under the lock, that cannot happen.
            with self.writing("r"):
                return self._look(look)

    def _look(self, look: Callable[[Thread | None], T], whole: bool = True) -> T:
        thread = None
        try:
            with self._open_log("r") as log:
                thread = self.read_on(log.fileno(), whole).thread
        except FileNotFoundError:
            self._replica = None
        return look(thread)

    def _open_log(self, mode: str) -> FileIO:
        if self.directory.is_symlink():
            raise CorruptStore(f"{self.directory}: a link, not the directory of a thread")
        return open_file(self.log, mode)

    def read_on(self, handle: int, whole: bool = True) -> Replica:
        """Apply new lines of the log; all, or those of `Newest`, if it was replaced."""
        status = os.fstat(handle)
        file, state = (status.st_dev, status.st_ino), (status.st_size, status.st_ctime_ns)
        replica = self._replica if self._file == file else None
        if replica is not None and whole and isinstance(replica.thread, Newest):
            replica = None
        if replica is not None and self._state == state:
            return replica
        if replica is not None and status.st_size == replica.end:
            replica = None  # it was changed at the same length
        self._replica, self._file, self._state = None, file, state
        if replica is not None:
            last = replica.last + b"\n"
            data = read(handle, replica.end - len(last))
            # The same inode may have other content: after a write that was undone, or in a file made by git.
            is_same = replica.is_closed and data.startswith(last)
            replica, data = (replica, data[len(last) :]) if is_same else (None, b"")
        if replica is None:
            replica, (at, data) = Replica(self.thread_id, self.mark.migrations), read_end(handle, whole)
            if at:
                replica.begin(handle, at, next(lines_in(data)), str(self.log))
        replica.read(data, str(self.log))
        self._replica = replica
        return replica

    # -- writing -------------------------------------------------------------------------------------------------

    def change(self, decide: Decide[T]) -> T:
        """Append the draft of `decide` durably; make the thread if it does not exist."""
        while True:
            with self.writing() as handle:
                if handle is not None:
                    with suppress(Unknown):
                        return self._append(handle, decide, whole=False)
                    return self._append(handle, decide)
            begin = self.first_line(new_epoch())
            replica, draft = Replica(self.thread_id, self.mark.migrations), Draft()
            replica.read(begin, str(self.log))
            result = decide(replica, draft)
            if not draft.lines or self.create([begin, *draft.lines], draft.blobs):
                return result

    @contextmanager
    def writing(self, mode: str = "r+") -> Iterator[int | None]:
        """Hold the locks of the log and of this process; yield `None` if there is no log."""
        # The log's lock first, so that a thread that waits for another process blocks no readers in this one.
        log = open_locked(lambda: self._open_log(mode), lambda handle: is_at(handle, self.log), self._timeout, self.log)
        if log is None:
            yield None
            return
        try:
            with self._turn, changing(self._changed, self.directory.name) if mode == "r+" else nullcontext():
                yield log.fileno()
        finally:
            unlock(log)

    def _append(self, handle: int, decide: Decide[T], whole: bool = True) -> T:
        replica = self.read_on(handle, whole)
        draft = Draft()
        result = decide(replica, draft)
        if draft.lines and self._has_failed:
            with self.replace_log(handle, read(handle, 0)[: replica.end]) as handle:
                self._write(handle, replica, draft)
        elif draft.lines:
            self._write(handle, replica, draft)
        return result

    def _write(self, handle: int, replica: Replica, draft: Draft) -> None:
        self._sync_names()
        self._settle(handle, replica.end)
        self.save(draft.blobs, self.directory)
        data = b"".join(draft.lines) if replica.is_closed else b"".join([b"\n", *draft.lines])
        try:
            write_all(handle, data, replica.end)
        except BaseException:
            self._take_back(handle, replica.end)
            raise
        try:
            os.fdatasync(handle)
        except BaseException:
            self._begin_anew(handle, replica.end)
            raise
        self._synced = self._file, replica.end + len(data)
        if not is_at(handle, self.log):
            raise StoreError(f"{self.log}: another file took its place (git?) during the write: nothing was stored")

    def _settle(self, handle: int, end: int) -> None:
        """Sync the log, and cut off the rest of an interrupted write."""
        # Otherwise a power cut could keep some sectors of that rest (or of the last write of a killed process) and some
        # of the lines appended now, which would look like damage.
        has_rest = os.fstat(handle).st_size > end
        if has_rest:
            _log.warning("%s: cut off the rest of an interrupted write at byte %d", self.log, end)
            os.ftruncate(handle, end)
        if has_rest or self._synced != (self._file, end):
            os.fdatasync(handle)

    def _take_back(self, handle: int, end: int) -> None:
        """Undo a write that failed."""
        try:
            os.ftruncate(handle, end)
            os.fdatasync(handle)
        except OSError:
            self._begin_anew(handle, end)

    def _begin_anew(self, handle: int, end: int) -> None:
        """Replace the log after a failed sync, because its file cannot be trusted."""
        # Other processes may have read unacknowledged lines; they notice the new file.
        self._has_failed = True  # if this fails too, the next write does it
        try:
            with self.replace_log(handle, read(handle, 0)[:end]):
                self._has_failed = False
        except (OSError, StoreError):
            with suppress(OSError):
                os.ftruncate(handle, end)

    @contextmanager
    def replace_log(self, old: int, data: bytes) -> Iterator[int]:
        """Replace the log, whose lock the caller holds, and hold the new one's lock."""
        temporary = self.log.with_name(f"{LOG}.{token_hex(4)}.tmp")
        log = FileIO(temporary, "x+")
        try:
            # Locked before the rename, so that no process writes to it before its name is durable.
            lock(log.fileno(), 0, temporary)
            write_all(log.fileno(), data, 0)
            os.fsync(log.fileno())
            if not is_at(old, self.log):
                raise StoreError(f"{self.log}: another file took its place (git?): nothing was changed")
            os.rename(temporary, self.log)
            sync_directory(self.directory)
            self._has_failed = False
            yield log.fileno()
        finally:
            unlock(log)
            temporary.unlink(missing_ok=True)

    def _sync_names(self) -> None:
        if self._synced_name != self._file:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
            self._synced_name = self._file
            # Unfinished files of dead processes: while this process holds the lock, no other process writes any.
            for left in (*self.directory.glob(f"{LOG}.*.tmp"), *self.directory.glob(f"{BLOBS}/*.tmp")):
                left.unlink(missing_ok=True)

    def save(self, blobs: dict[str, bytes], directory: Path) -> None:
        """Write the files of large values durably, in the directory of a thread."""
        if not blobs:
            return
        folder = directory / BLOBS
        if folder.is_symlink():
            raise CorruptStore(f"{folder}: a link, not a directory")
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        sync_directory(directory)
        for name, data in blobs.items():
            write_durably(folder / f"{name}.json", data)
        sync_directory(folder)

    def create(self, lines: list[bytes], blobs: dict[str, bytes]) -> bool:
        """Make the thread as a whole; return `False` if another process was faster."""
        threads = self.directory.parent
        if not threads.exists():  # git keeps no empty directories
            threads.mkdir(FOLDER_MODE, exist_ok=True)
            sync_directory(threads.parent)
        making = threads / f".new-{token_hex(8)}"
        making.mkdir(FOLDER_MODE)
        try:
            self.save(blobs, making)
            write_durably(making / LOG, b"".join(lines))
            sync_directory(making)
            with changing(self._changed, self.directory.name):
                is_made = self._move_in_place(making)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        self._refuse_newer(is_made)
        return is_made

    def _refuse_newer(self, is_made: bool) -> None:
        """Raise if a newer Keel has migrated the store; remove a new thread it may miss."""
        try:
            self.mark.read()
        except NewerFormat:
            if is_made:
                self._remove(self.directory)
            raise

    def _move_in_place(self, making: Path) -> bool:
        try:
            os.rename(making, self.directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            is_made = self.directory.exists() and not self.log.exists() and self._fill(making)
            shutil.rmtree(making, ignore_errors=True)
            return is_made
        sync_directory(self.directory.parent)
        return True

    def _fill(self, making: Path) -> bool:
        """Make the thread in a directory without a log.

        Git leaves such a directory if it ignores a file in it.
        """
        try:
            for blob in making.glob(f"{BLOBS}/*"):
                (self.directory / BLOBS).mkdir(FOLDER_MODE, exist_ok=True)
                os.replace(blob, self.directory / BLOBS / blob.name)
                sync_directory(self.directory / BLOBS)
            os.link(making / LOG, self.log)
        except (FileExistsError, FileNotFoundError):
            return False  # another process has made the thread, or removed the directory
        sync_directory(self.directory)
        sync_directory(self.directory.parent)
        return True

    # -- removing ------------------------------------------------------------------------------------------------

    def put_aside(self, data: bytes) -> Path:
        """Write `data` durably to a file next to the log; return its path."""
        aside = self.log.with_name(f"{LOG}.damaged-{token_hex(4)}")
        write_durably(aside, data)
        sync_directory(self.directory)
        return aside

    def delete(self, last: Stamp | None = None) -> bool:
        """Delete the thread if it exists: first its name, atomically, then its content."""
        while True:
            with self.writing() as handle:
                if last is not None and (handle is None or not is_last(self.read_on(handle).thread, last)):
                    return False
                self._replica = None
                if handle is not None:
                    self._remove(self.directory)
                    return True
            if not self.log.exists():
                # Files that appear in either after this belong to a new epoch of the thread.
                self._remove(self.directory / CELLS)
                remove_all_but((LOG, CELLS), self.directory)
                return True

    def _remove(self, path: Path) -> None:
        going = self.directory.parent / f".gone-{token_hex(8)}"
        with suppress(FileNotFoundError):
            os.rename(path, going)
        # Sync even if it no longer exists: the process that removed it may have died before it synced.
        for parent in (path.parent, self.directory.parent):
            with suppress(FileNotFoundError):
                sync_directory(parent)
        shutil.rmtree(going, ignore_errors=True)
