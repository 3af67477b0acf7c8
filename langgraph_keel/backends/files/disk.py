"""The disk: durable writes, locks, errors and names of directories.

When fsync fails, Linux drops the pages that it could not write, and the next fsync succeeds. So Keel never relies on a
second fsync after a failure (https://wiki.postgresql.org/wiki/Fsync_Errors).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Self

from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, ReadOnlyStore, StoreBusy, StoreError, StoreFull

try:
    import fcntl
except ImportError:  # pragma: no cover: Windows, where no lock separates two processes
    fcntl = None  # type: ignore[assignment]

POLL = 0.001
"""Polling interval, in seconds, of a busy lock; a write takes about as long."""
MODE, FOLDER_MODE = 0o600, 0o700
# Without O_NONBLOCK, opening a pipe would wait forever for a writer.
_ALWAYS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
_FLAGS = {
    "r": os.O_RDONLY | _ALWAYS,
    "r+": os.O_RDWR | _ALWAYS,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ALWAYS,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL | _ALWAYS,
}
"""Flags of `os.open`, by mode."""
BEGUN = 0.5
"""Maximum seconds to wait for another process to write the first line of a log."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_OWN = _DIRECTORY | getattr(os, "O_NOFOLLOW", 0)

LONGEST = 200
KEPT = 150
DIGITS = 40

_EMPTY = "%"
_CUT = "%%"
_OTHER = re.compile(r"[^a-z0-9._-]")
# The dots at either end, and the first letter of a device's name, also if a dot follows the name.
_MISREAD = re.compile(r"^\.|\.$|^(con|prn|aux|nul|com[0-9]|lpt[0-9])(?=\.|$)")
_HALF_ESCAPE = re.compile(r"(%.?|\+)$")
_ESCAPES = re.compile(r"\+([a-z])|((?:%[0-9a-f]{2})+)")
_LONG = re.compile(rf"(?!\.)((?:[a-z0-9._-]|\+[a-z]|%[0-9a-f]{{2}})+){_CUT}[0-9a-f]{{{DIGITS}}}")


@contextmanager
def named_errors(where: Path) -> Iterator[None]:
    """Raise system errors as errors of Keel."""
    try:
        yield
    except KeelError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(
                f"{where}: no space left; nothing was written: free disk space, or delete threads, which needs no "
                f"space (a prune does) ({error.strerror})"
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyStore(f"{where}: this user lacks the permission ({error.strerror})") from error
        raise StoreError(f"{where}: the disk failed: {error}") from error


def open_handle(path: str | Path, flags: int, folder: int | None = None) -> int:
    """As `os.open`, but a Ctrl-C does not lose the handle.

    After a call of `os.open`, Python checks for signals before it stores the result: of 15,000 signals during writes,
    142 left a log open. `map` calls `os.open` without that check.
    """
    (handle,) = map(partial(os.open, dir_fd=folder), [path], [flags], [MODE])
    return handle


def open_file(path: Path, mode: str, folder: int | None = None) -> FileIO:
    """Open a regular file, not a link or a pipe."""
    handle = None
    try:
        handle = open_handle(path if folder is None else path.name, _FLAGS[mode], folder)
        file = FileIO(handle, mode)
    except IsADirectoryError:
        if handle is not None:
            os.close(handle)
        raise
    except NotADirectoryError:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptStore(f"{path}: a link or a pipe, not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CorruptStore(f"{path}: not a regular file")
    return file


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = open_handle(path, _DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(handle: int, at: int) -> bytes:
    """Return the bytes of an open file from an offset on."""
    parts, size = [], max(os.fstat(handle).st_size - at, 0)
    try:
        while size > 0 and (part := os.pread(handle, size, at)):
            parts.append(part)
            at, size = at + len(part), size - len(part)
        return b"".join(parts)
    except (MemoryError, OverflowError) as error:  # a sparse file can be larger than the disk
        raise CorruptStore(f"a file of {size:,} bytes does not fit in memory") from error


def read_lines(handle: int) -> bytes:
    """Return all bytes of a file of lines, once its first line is complete.

    Git makes an empty file before it writes.
    """
    deadline = time.monotonic() + BEGUN
    while b"\n" not in (data := read(handle, 0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return data


def remove_all_but(kept: Collection[str], directory: Path) -> None:
    """Empty a directory except for some names; then remove it if it is empty.

    Another process may be making the excepted files.
    """
    with suppress(OSError):
        for path in [path for path in directory.iterdir() if path.name not in kept]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        directory.rmdir()


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write at an offset, in one call unless the system writes less."""
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def write_durably(path: Path, data: bytes) -> None:
    """Make or replace a file as a whole; `sync_directory` makes its name durable."""
    temporary = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
    _write_new(temporary, data)
    os.replace(temporary, path)


def _write_new(path: str | Path, data: bytes, folder: int | None = None) -> None:
    handle = open_handle(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)


def lock(handle: int, deadline: float, where: Path) -> None:
    """Wait for the lock of an open file."""
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StoreBusy(f"{where}: locked by another process or thread; nothing was written") from None
        time.sleep(POLL)


def open_locked(
    opening: Callable[[], FileIO], is_current: Callable[[int], bool], timeout: float, where: Path
) -> FileIO | None:
    """Open and lock a file, again if it was replaced; `None` if it does not exist."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            file = opening()
        except FileNotFoundError:
            return None
        try:
            lock(file.fileno(), deadline, where)
            if is_current(file.fileno()):
                return file
        except BaseException:
            unlock(file)
            raise
        unlock(file)


def unlock(file: FileIO) -> None:
    """Release the lock of a file, and close it."""
    try:
        if fcntl is not None:  # closing alone does not release it if a forked process has inherited the open file
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    finally:
        file.close()


def is_at(handle: int, path: Path) -> bool:
    """Return whether a path still leads to an open file.

    Git and compaction replace files.
    """
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


class Folder:
    """A directory that is kept open, and changed even if its path leads elsewhere.

    So a file of a thread never gets into a new thread of the same id, and no link leads out of the store.
    """

    def __init__(self, path: Path, handle: int, is_new: bool = False) -> None:
        self.path = path  # the path at which it was opened
        self.is_new = is_new  # whether it, or a parent, was just made
        self._handle = handle

    @classmethod
    def at(cls, root: Path, names: Sequence[str], *, make: bool = False) -> Self:
        """Open a directory below `root`."""
        folder = cls(root, os.open(root, _DIRECTORY))
        for name in names:
            with folder:
                folder = folder._below(name, make)
        return folder

    def _below(self, name: str, make: bool) -> Self:
        path, is_new = self.path / name, False
        if make:
            try:
                os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            except FileNotFoundError:
                with suppress(FileExistsError):  # made by another process at this moment
                    os.mkdir(name, FOLDER_MODE, dir_fd=self._handle)
                    is_new = True
        try:
            return type(self)(path, os.open(name, _OWN, dir_fd=self._handle), self.is_new or is_new)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise CorruptStore(f"{path}: a link or a file, not a directory") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self._handle)

    @property
    def identity(self) -> tuple[int, int]:
        """The device and inode, which distinguish it from all other existing directories."""
        status = os.fstat(self._handle)
        return status.st_dev, status.st_ino

    def is_in_place(self) -> bool:
        """Return whether its path still leads to this directory."""
        return is_at(self._handle, self.path)

    def names(self) -> list[str]:
        """Return the names in it."""
        return os.listdir(self._handle)

    def statuses(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the names in it with their status, except those removed during the call."""
        with os.scandir(self._handle) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    yield entry.name, entry.stat(follow_symlinks=False)

    def open_file(self, name: str, mode: str) -> FileIO:
        """Open a regular file in it."""
        try:
            return open_file(self.path / name, mode, self._handle)
        except IsADirectoryError as error:
            raise CorruptStore(f"{self.path / name}: a directory, not a regular file") from error

    def holds(self, name: str, handle: int) -> bool:
        """Return whether a name in it still leads to the open file `handle`."""
        try:
            status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(handle), status)

    def put(self, name: str, data: bytes, *, replaces: bool) -> None:
        """Make a file as a whole, durably."""
        temporary = f"{name}.{token_hex(4)}.tmp"
        try:
            _write_new(temporary, data, self._handle)
            if replaces:
                os.rename(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            else:
                os.link(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        finally:
            self.remove(temporary)
        self.sync()

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def clear(self) -> None:
        """Remove unfinished files; a process that still writes one retries."""
        for name in self.names():
            if name.endswith(".tmp"):
                self.remove(name)

    def move(self, old: str, new: str) -> None:
        """Rename a file durably."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def sync(self) -> None:
        """Make the names in it durable."""
        os.fsync(self._handle)


class DirectoryName(str):
    """The name of a directory, instead of a long thread id that no log contains."""

    __slots__ = ()


def directory_of(thread_id: str) -> str:
    """Return the name of a thread's directory."""
    if isinstance(thread_id, DirectoryName):
        return str(thread_id)
    try:
        name = _OTHER.sub(_escape, thread_id)
        name = _MISREAD.sub(lambda found: f"%{ord(found[0][0]):02x}{found[0][1:]}", name) or _EMPTY
    except UnicodeEncodeError as error:
        raise InvalidInput(f"thread_id {thread_id!r:.80} cannot be written as UTF-8") from error
    if len(name) <= LONGEST:
        return name
    return _HALF_ESCAPE.sub("", name[:KEPT]) + _CUT + sha256(thread_id.encode()).hexdigest()[:DIGITS]


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if "A" <= character <= "Z":
        return "+" + character.lower()
    return "".join(f"%{byte:02x}" for byte in character.encode())


def thread_of(directory: str) -> str | None:
    """Return the id of the thread in a directory; `None` if only the log contains it."""
    long = _LONG.fullmatch(directory)
    if long and KEPT - 2 <= len(long[1]) <= KEPT:
        return None
    try:
        thread_id = "" if directory == _EMPTY else _ESCAPES.sub(_unescape, directory)
        # An id has only one name; another name would be a second directory of the same thread.
        if directory_of(thread_id) == directory:
            return thread_id
    except (UnicodeDecodeError, InvalidInput):
        pass
    raise CorruptStore(f"the directory {directory!r:.300} does not belong to a thread: no thread id has this name")


def _unescape(found: re.Match[str]) -> str:
    return found[1].upper() if found[1] else bytes.fromhex(found[2].replace("%", "")).decode()
