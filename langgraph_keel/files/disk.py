"""The disk: what must be done for a write to be there after a power cut, and the errors of the system by name.

Linux drops the pages that it could not write when fsync fails, and the next fsync succeeds: a failed one is never
repeated as if it could still help (https://wiki.postgresql.org/wiki/Fsync_Errors).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from secrets import token_hex

from langgraph_keel.errors import CorruptStore, KeelError, ReadOnlyStore, StoreBusy, StoreError, StoreFull

try:
    import fcntl
except ImportError:  # pragma: no cover: Windows, where nothing keeps two processes apart
    fcntl = None  # type: ignore[assignment]

POLL = 0.001
"""Seconds between two looks at a lock that somebody else holds: a put takes about as long."""
MODE = 0o666
BEGUN = 0.5
"""Seconds that somebody else may take to write the first line of a log."""


@contextmanager
def named_errors(where: Path) -> Iterator[None]:
    """Raise the system's errors by Keel's names."""
    try:
        yield
    except KeelError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(f"{where}: no space left; nothing was written ({error.strerror})") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ReadOnlyStore(f"{where}: this user may not do that there ({error.strerror})") from error
        raise StoreError(f"{where}: the disk failed: {error}") from error


def opened(path: Path, mode: str, folder: int | None = None) -> FileIO:
    """Open a file that nobody has put a link or a pipe in the place of.

    Args:
        path: Its path.
        mode: As `open` has it.
        folder: Its directory, if that is open: it counts, wherever the path leads by now.

    Raises:
        FileNotFoundError: There is none.
        CorruptStore: It is something else: a root may come from a repository of others.
    """
    try:
        file = FileIO(path if folder is None else path.name, mode, opener=partial(_open, folder))
    except (IsADirectoryError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptStore(f"{path}: a link or a pipe, and no file") from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CorruptStore(f"{path}: this is no file")
    return file


def _open(folder: int | None, path: str, flags: int) -> int:
    # Of a pipe, without O_NONBLOCK, it would wait for a writer for ever.
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), MODE, dir_fd=folder)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(handle: int, at: int) -> bytes:
    """Return what an open file holds from a place on."""
    parts, size = [], max(os.fstat(handle).st_size - at, 0)
    while size > 0 and (part := os.pread(handle, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)


def read_begun(handle: int) -> bytes:
    """Return all of a file of lines. Git makes an empty one first: wait for its first line."""
    deadline = time.monotonic() + BEGUN
    while b"\n" not in (data := read(handle, 0)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return data


def remove_all_but(kept: Collection[str], directory: Path) -> None:
    """Remove what is in a directory but what somebody may be making there now; then itself, if it is empty."""
    with suppress(OSError):
        for path in [path for path in directory.iterdir() if path.name not in kept]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        directory.rmdir()


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write at a place; one call, unless the system takes less."""
    while data:
        written = os.pwrite(handle, data, at)
        data, at = data[written:], at + written


def write_durably(path: Path, data: bytes) -> None:
    """Make a file, or replace it as a whole; its name is durable only after `sync_directory`."""
    temporary = path.with_name(f"{path.name}.{token_hex(4)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        write_all(handle, data, 0)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)


def lock(handle: int, deadline: float, where: Path) -> None:
    """Wait for the lock of an open file.

    Raises:
        StoreBusy: Somebody else held it until `deadline`.
    """
    while fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StoreBusy(f"{where}: another process or thread holds it; nothing was written") from None
        time.sleep(POLL)


def locked(
    opening: Callable[[], FileIO], is_current: Callable[[int], bool], timeout: float, where: Path
) -> FileIO | None:
    """Open a file and wait for its lock, again while another one takes its place; `None` if there is none.

    Raises:
        StoreBusy: Others held it for longer than `timeout`.
    """
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
            give_back(file)
            raise
        give_back(file)


def give_back(file: FileIO) -> None:
    """Give back the lock of a file, and close it.

    Closing alone would not do: a process that was forked meanwhile has the same open file, and would keep the lock.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
    finally:
        file.close()


def is_at(handle: int, path: Path) -> bool:
    """Return whether a path still leads to an open file: git and compaction put another one there."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False
