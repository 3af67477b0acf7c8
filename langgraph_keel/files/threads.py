"""One thread on disk: its directory, read and written by this process among others.

Readers hold no lock: a log only grows, or is replaced as a whole. Writers hold the lock of the log file.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from io import FileIO
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TypeVar

from langgraph_keel.core.model import Thread
from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.disk import give_back, is_at, lock, sync_directory, write_all, write_durably
from langgraph_keel.files.lines import FORMAT, Draft, line_of
from langgraph_keel.files.log import Replica

T = TypeVar("T")
LOG = "log.jsonl"
BLOBS = "blobs"
Decide = Callable[[Replica, Draft], T]


def new_epoch() -> str:
    """Return the name of a new life of a thread: the time, so that they sort by age, and 32 random bits."""
    return f"{time.time_ns():016x}{token_hex(4)}"


def first_line(thread_id: str, epoch: str, seq: int = 0) -> bytes:
    """Return what a log begins with."""
    return line_of({"k": "thread", "format": FORMAT, "id": thread_id, "epoch": epoch, "seq": seq})


class ThreadFiles:
    """A thread's directory, and what this process has read of it.

    Args:
        directory: Where it is, or would be.
        thread_id: Its id.
        timeout: Seconds to wait for others.
    """

    def __init__(self, directory: Path, thread_id: str, timeout: float) -> None:
        self.directory = directory
        self.thread_id = thread_id
        self.log = directory / LOG
        self._timeout = timeout
        self._turn = Lock()
        self._replica: Replica | None = None
        self._file: tuple[int, int] | None = None
        # The log whose name this process has made durable: whoever made it may have died before that.
        self._named: tuple[int, int] | None = None
        self._has_failed = False

    @property
    def nbytes(self) -> int:
        """About what is kept of it in memory."""
        replica = self._replica
        return replica.nbytes if replica else 0

    def load(self, blob: str) -> bytes:
        """Return the content of a large value.

        Raises:
            CorruptStore: It is not there, or is not what it was.
        """
        path = self.directory / BLOBS / f"{blob}.json"
        if not (len(blob) == 64 and blob.isalnum()):
            raise CorruptStore(f"{self.log}: {blob!r} is no name of a blob")
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptStore(f"{path}: a value of this thread is missing") from error
        if sha256(data).hexdigest() != blob:
            raise CorruptStore(f"{path}: it does not hold what its name says")
        return data

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, look: Callable[[Thread | None], T]) -> T:
        """Return what `look` makes of the thread as it is now; of `None` if there is none."""
        with self._turn:
            replica = self._refreshed()
            try:
                return look(replica.thread if replica else None)
            except CorruptStore:
                # A blob may have gone since: compaction replaced the log.
                again = self._refreshed()
                if again is replica:
                    raise
                return look(again.thread if again else None)

    def _refreshed(self) -> Replica | None:
        try:
            with open(self.log, "rb", buffering=0) as log:
                return self.read_on(log.fileno())
        except (FileNotFoundError, NotADirectoryError):
            self._replica = None
            return None

    def read_on(self, handle: int) -> Replica:
        """Take in what is new in the log: all of it, if it is not the file that was read before."""
        status = os.fstat(handle)
        file = status.st_dev, status.st_ino
        replica = self._replica if self._file == file else None
        self._replica, self._file = None, file
        if replica is not None:
            back = len(replica.last) + replica.is_closed
            data = read(handle, replica.end - back)
            # The same inode may hold something else: what was written and taken back, or a file that git has made.
            is_same = data[: len(replica.last)] == replica.last and len(data) >= back
            replica, data = (replica, data[back:]) if is_same else (None, b"")
            if replica is not None and not replica.is_closed and data[:1] == b"\n":
                # Somebody else has ended the last line, and gone on.
                replica.is_closed, replica.end, data = True, replica.end + 1, data[1:]
        if replica is None:
            replica, data = Replica(self.thread_id), read(handle, 0)
        replica.read(data, str(self.log))
        self._replica = replica
        return replica

    # -- writing -------------------------------------------------------------------------------------------------

    def change(self, decide: Decide[T]) -> T:
        """Append what `decide` drafts, durably; make the thread if it is not there.

        Raises:
            StoreBusy: Others held the log for longer than the timeout; nothing was written.
        """
        while True:
            with self.writing() as handle:
                if handle is not None:
                    return self._append(handle, decide)
            replica, draft = self._unborn(), Draft()
            result = decide(replica, draft)
            if not draft.lines or self.create([replica.last + b"\n", *draft.lines], draft.blobs):
                return result

    def _unborn(self) -> Replica:
        replica = Replica(self.thread_id)
        replica.read(first_line(self.thread_id, new_epoch()), str(self.log))
        return replica

    @contextmanager
    def writing(self) -> Iterator[int | None]:
        """Hold the lock of the log, and keep out other threads of this process; `None` if there is no log.

        The lock first: who waits for another process keeps nobody of this one from reading.

        Raises:
            StoreBusy: Others held the log for longer than the timeout.
        """
        log = self._locked()
        if log is None:
            yield None
            return
        try:
            with self._turn:
                yield log.fileno()
        finally:
            give_back(log)

    def _locked(self) -> FileIO | None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                log = FileIO(self.log, "r+")
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                lock(log.fileno(), deadline, self.log)
                if is_at(log.fileno(), self.log):
                    return log
            except BaseException:
                give_back(log)
                raise
            give_back(log)

    def _append(self, handle: int, decide: Decide[T]) -> T:
        replica = self.read_on(handle)
        draft = Draft()
        result = decide(replica, draft)
        if draft.lines and self._has_failed:
            with self.replaced(read(handle, 0)[: replica.end]) as handle:
                self._write(handle, replica, draft)
        elif draft.lines:
            self._write(handle, replica, draft)
        return result

    def _write(self, handle: int, replica: Replica, draft: Draft) -> None:
        self._name()
        if os.fstat(handle).st_size > replica.end:
            # What an interrupted write has left. On disk before anything takes its place: else both could be there.
            os.ftruncate(handle, replica.end)
            os.fdatasync(handle)
        self.save(draft.blobs, self.directory)
        data = b"".join(draft.lines)
        try:
            write_all(handle, data if replica.is_closed else b"\n" + data, replica.end)
            os.fdatasync(handle)
        except BaseException:
            self._take_back(handle, replica.end)
            raise

    def _take_back(self, handle: int, end: int) -> None:
        """Undo a write that failed. If that fails too, the next write makes a new file of what is known to be there."""
        try:
            os.ftruncate(handle, end)
            os.fdatasync(handle)
        except OSError:
            self._has_failed = True

    @contextmanager
    def replaced(self, data: bytes) -> Iterator[int]:
        """Put a new log in the place of the old one, whose lock is held; hold the lock of the new one.

        Whoever has the old one open reads on in it unharmed.
        """
        temporary = self.log.with_name(f"{LOG}.{token_hex(4)}.tmp")
        log = FileIO(temporary, "x+")
        try:
            # Before it has its name: else somebody could write to it while it may still lose that.
            lock(log.fileno(), 0, temporary)
            write_all(log.fileno(), data, 0)
            os.fsync(log.fileno())
            os.rename(temporary, self.log)
            sync_directory(self.directory)
            self._has_failed = False
            yield log.fileno()
        finally:
            give_back(log)
            temporary.unlink(missing_ok=True)

    def _name(self) -> None:
        if self._named != self._file:
            sync_directory(self.directory)
            sync_directory(self.directory.parent)
            self._named = self._file
            # What others were making when they died: with the lock, nobody is making anything.
            for left in (*self.directory.glob(f"{LOG}.*.tmp"), *self.directory.glob(f"{BLOBS}/*.tmp")):
                left.unlink(missing_ok=True)

    def save(self, blobs: dict[str, bytes], directory: Path) -> None:
        """Make files of large values, durably, in a directory of a thread."""
        if not blobs:
            return
        folder = directory / BLOBS
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            sync_directory(directory)
        for name, data in blobs.items():
            write_durably(folder / f"{name}.json", data)
        sync_directory(folder)

    def create(self, lines: list[bytes], blobs: dict[str, bytes]) -> bool:
        """Make the thread as a whole. Returns whether it was made: `False` if somebody was faster."""
        threads = self.directory.parent
        if not threads.exists():  # git keeps no empty directories
            threads.mkdir(exist_ok=True)
            sync_directory(threads.parent)
        making = threads / f".new-{token_hex(8)}"
        making.mkdir()
        try:
            self.save(blobs, making)
            write_durably(making / LOG, b"".join(lines))
            sync_directory(making)
            return self._place(making)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise

    def _place(self, making: Path) -> bool:
        try:
            os.rename(making, self.directory)
        except OSError:
            shutil.rmtree(making, ignore_errors=True)
            if self.directory.exists() and not self.log.exists():
                # No thread: what git has left of one, where it ignores files.
                self._remove()
            elif not self.log.exists():
                raise
            return False
        sync_directory(self.directory.parent)
        return True

    # -- removing ------------------------------------------------------------------------------------------------

    def put_aside(self, data: bytes) -> Path:
        """Keep what is to be replaced beside it, durably; return where."""
        aside = self.log.with_name(f"{LOG}.damaged-{token_hex(4)}")
        write_durably(aside, data)
        sync_directory(self.directory)
        return aside

    def delete(self) -> None:
        """Delete the thread, if it is there: at once and durably by its name, and then what was in it."""
        with self.writing():
            self._replica = None
            if self.directory.exists():
                self._remove()

    def _remove(self) -> None:
        going = self.directory.parent / f".gone-{token_hex(8)}"
        os.rename(self.directory, going)
        sync_directory(self.directory.parent)
        shutil.rmtree(going, ignore_errors=True)


def read(handle: int, at: int) -> bytes:
    """Return what an open file holds from a place on."""
    parts, size = [], max(os.fstat(handle).st_size - at, 0)
    while size > 0 and (part := os.pread(handle, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)
