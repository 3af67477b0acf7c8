"""Objects as files in a directory.

This does not use obstore (0.12), which never calls `fsync`, lets other users read its files, and hangs in a forked
process.
"""

from __future__ import annotations

import errno
import os
import stat
from asyncio import to_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Any

from langgraph_keel.blobs.objects import (
    CopyObjects,
    Fetch,
    Listed,
    ListObjects,
    MakeFolder,
    ObjectRequest,
    Remove,
    Upload,
)
from langgraph_keel.errors import (
    AccessDenied,
    CorruptStore,
    InvalidInput,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

_DEPTH = 3
"""Number of parts of an object's name: the store's folder, the thread's, the file."""
_TRIES = 10
"""Attempts to create a folder that other processes remove while it is empty."""


class DirectoryObjects:
    """Keeps objects in a directory, created with the first object.

    Only its owner may read it.
    """

    exempt: Sequence[str] = ("Backups and copies of the directory of objects (blobs=).",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path).absolute()
        self.place = f"file:{self._root}"
        if self._root.exists() and not self._root.is_dir():
            raise InvalidInput(f"blobs: {self._root} is not a directory")

    def send(self, request: ObjectRequest) -> Any:
        """See `Objects.send`."""
        with self._named_errors():
            match request:
                case MakeFolder(folder):
                    self._make_folder(self._root / folder)
                case Upload(bodies):
                    return self._upload(bodies)
                case Fetch(sizes):
                    return {name: body for name, size in sizes.items() if (body := self._read(name, size)) is not None}
                case CopyObjects(names):
                    return self._copy(names)
                case ListObjects(folder):
                    return list(self._list(folder))
                case Remove(names):
                    for name in names:
                        self._remove(name)
        return None

    async def send_async(self, request: ObjectRequest) -> Any:
        """See `Objects.send_async`."""
        return await to_thread(self.send, request)

    def close(self) -> None:
        """See `Objects.close`."""

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            kind: type[StoreError] = StoreError
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                kind = StoreFull
            elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                kind = AccessDenied
            elif error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
                raise CorruptStore(
                    f"{self.place}: a directory or a link is in place of an object or its folder, where Keel creates "
                    f"none: inspect it, and remove it by hand ({error})"
                ) from error
            raise kind(f"{self.place}: {error.strerror or error}") from error

    def _upload(self, bodies: Mapping[str, bytes]) -> None:
        made: set[str] = set()
        for name, body in bodies.items():

            def write(new: str, folder: int, body: bytes = body) -> None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as written:
                    written.write(body)
                    written.flush()
                    os.fsync(written.fileno())

            self._make_file(name, write, made)
        self._sync(made)

    def _copy(self, names: Mapping[str, str]) -> list[str]:
        made: set[str] = set()
        lost: list[str] = []
        for name, other in names.items():

            def link(new: str, folder: int, name: str = name) -> None:
                source, _, file = name.rpartition("/")
                with self._open(source) as inside:
                    # A hard link is enough, because the content of a file never changes.
                    os.link(file, new, src_dir_fd=inside, dst_dir_fd=folder, follow_symlinks=False)
                os.utime(new, dir_fd=folder, follow_symlinks=False)

            try:
                self._make_file(other, link, made)
            except FileNotFoundError:
                lost.append(name)
        self._sync(made)
        return lost

    def _make_file(self, name: str, write: Callable[[str, int], None], made: set[str]) -> None:
        """Create a file under a temporary name, and rename it; `made` gets directories to sync."""
        within, _, file = name.rpartition("/")
        above, _, last = within.rpartition("/")
        for _ in range(_TRIES):
            if not self._is_there(within):
                self._check_folder(within)
                with self._open(above) as folder, suppress(FileExistsError):
                    os.mkdir(last, 0o700, dir_fd=folder)
                made.add(above)
            new = f"{file}~{token_hex(4)}"  # if the process dies, it is listed and swept
            try:
                with self._open(within) as folder:
                    try:
                        write(new, folder)
                        os.rename(new, file, src_dir_fd=folder, dst_dir_fd=folder)
                    finally:
                        with suppress(OSError):
                            os.unlink(new, dir_fd=folder)  # renaming to another hard link of the same file does nothing
            except FileNotFoundError:
                if self._is_there(within):
                    raise
                continue
            made.add(within)
            return
        raise StoreBusy(f"{self.place}: {within} was removed {_TRIES} times before a file was written to it")

    def _make_folder(self, folder: Path) -> None:
        """Create the folder of a store, and its parents."""
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(0o700, exist_ok=True)
        for each in {each.parent for each in missing}:
            _sync(os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def _check_folder(self, name: str) -> None:
        """Check that the folder of a store exists. It stays even if empty, unless the disk is not mounted."""
        store = name.partition("/")[0]
        if not self._is_there(store):
            raise StoreUnavailable(
                f"{self.place}: {self._root / store}, the folder of this store's objects, is not there, or is a link: "
                "is the directory mounted, and the one that the store used before? If the objects are gone for good, "
                "create that folder, and they count as lost"
            )

    @contextmanager
    def _open(self, name: str) -> Iterator[int]:
        """Open a folder. Links below the directory are not followed: they would lead to unrelated files."""
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in name.split("/") if name else ():
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    def _is_there(self, name: str) -> bool:
        try:
            with self._open(name):
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _read(self, name: str, size: int) -> bytes | None:
        """Return an object's content; empty if the size differs, `None` if it is missing."""
        within, _, file = name.rpartition("/")
        try:
            with self._open(within) as folder:
                # Non-blocking, as it may be a pipe.
                handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            self._check_folder(name)
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):  # a link, or a socket
                self._check_folder(name)
                return b""
            raise
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return b""
            with open(handle, "rb", closefd=False) as opened:
                return opened.read()
        finally:
            os.close(handle)

    def _list(self, name: str) -> Iterator[Listed]:
        self._check_folder(name)
        with suppress(FileNotFoundError, NotADirectoryError), self._open(name) as folder:
            for where, _, files, inside in os.fwalk(".", dir_fd=folder):
                for path, file in ((PurePosixPath(name, where, file), file) for file in files):
                    if len(path.parts) == _DEPTH:  # a directory in place of an object is not Keel's
                        with suppress(FileNotFoundError):
                            found = os.stat(file, dir_fd=inside, follow_symlinks=False)
                            yield Listed(str(path), found.st_mtime_ns // 1_000_000)

    def _remove(self, name: str) -> None:
        within, _, file = name.rpartition("/")
        above, _, last = within.rpartition("/")
        with suppress(FileNotFoundError, NotADirectoryError), self._open(within) as folder:
            os.unlink(file, dir_fd=folder)
        with suppress(OSError), self._open(above) as folder:  # it is not empty
            os.rmdir(last, dir_fd=folder)

    def _sync(self, folders: set[str]) -> None:
        """Sync directories, so that the names of new files are on disk."""
        for each in folders:
            with suppress(FileNotFoundError), self._open(each) as folder:
                os.fsync(folder)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
