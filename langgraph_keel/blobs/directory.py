"""Objects as files in a directory.

Of obstore's own way to keep files, three things would break what a saver promises (0.12, by strace): it never calls
`fsync`, so that a power cut takes what was acknowledged; all on the machine may read its files; and a process that was
forked after it was used waits for ever.
"""

from __future__ import annotations

import errno
import os
from asyncio import to_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
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
from langgraph_keel.errors import AccessDenied, InvalidInput, StoreBusy, StoreError, StoreFull, StoreUnavailable

_TRIES = 10
"""How often a folder is made that others remove, as it is empty, before there is a file in it."""


class DirectoryObjects:
    """Keeps objects in a directory, which is made when a store has its first one. Only its owner may read it.

    The folder of a store stays, though it be empty: where it is missing, a disk is not mounted, or is another one.

    A file is there as a whole or not at all: what a process that died has left of one is listed under a name that
    nothing refers to, so that it is swept.

    Args:
        path: The directory.

    Raises:
        InvalidInput: There is something else.
    """

    exempt: Sequence[str] = ("Backups and copies of the directory of objects (blobs=).",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._root = Path(path).absolute()
        self.place = f"file:{self._root}"
        if self._root.exists() and not self._root.is_dir():
            raise InvalidInput(f"blobs: {self._root} is no directory")

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
                    return list(self._list(self._root / folder))
                case Remove(names):
                    for name in names:
                        self._remove(self._root / name)
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
            raise kind(f"{self.place}: {error.strerror or error}") from error

    def _upload(self, bodies: Mapping[str, bytes]) -> None:
        made: set[Path] = set()
        for name, body in bodies.items():

            def write(new: Path, body: bytes = body) -> None:
                file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(file, "wb") as written:
                    written.write(body)
                    written.flush()
                    os.fsync(written.fileno())

            self._make_file(self._root / name, write, made)
        _sync(made)

    def _copy(self, names: Mapping[str, str]) -> list[str]:
        made: set[Path] = set()
        lost: list[str] = []
        for name, other in names.items():

            def link(new: Path, name: str = name) -> None:
                os.link(self._root / name, new)  # nothing ever changes what is in a file
                os.utime(new)

            try:
                self._make_file(self._root / other, link, made)
            except FileNotFoundError:
                lost.append(name)
        _sync(made)
        return lost

    def _make_file(self, path: Path, write: Callable[[Path], None], made: set[Path]) -> None:
        """Make a file under a name of its own, and rename it; add the directories that have to be synced."""
        for _ in range(_TRIES):
            if not path.parent.is_dir():
                self._check_folder(path)
                path.parent.mkdir(0o700, exist_ok=True)
                made.add(path.parent.parent)
            new = path.with_name(f"{path.name}~{token_hex(4)}")
            try:
                write(new)
                os.rename(new, path)
            except FileNotFoundError:
                if path.parent.is_dir():
                    raise
                continue
            finally:
                with suppress(OSError):
                    os.unlink(new)  # a rename to another name of the same file does nothing
            made.add(path.parent)
            return
        raise StoreBusy(f"{self.place}: {path.parent} was removed {_TRIES} times before there was a file in it")

    def _make_folder(self, folder: Path) -> None:
        """Make the folder of a store, and those that it is in."""
        missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
        for each in reversed(missing):
            each.mkdir(0o700, exist_ok=True)
        _sync({each.parent for each in missing})

    def _check_folder(self, path: Path) -> None:
        """See that the folder is there of the store that a path is of.

        Raises:
            StoreUnavailable: It is not. Were its objects lost then, the store would go on without them.
        """
        folder = self._root.joinpath(*path.relative_to(self._root).parts[:1])
        if not folder.is_dir():
            raise StoreUnavailable(
                f"{self.place}: {folder} is not there, where this store has its objects: is the directory mounted, and "
                "the one that it was opened with before? If they are gone for good, make that folder, and they count "
                "as lost"
            )

    def _read(self, name: str, size: int) -> bytes | None:
        try:
            with open(self._root / name, "rb") as file:
                return file.read() if os.fstat(file.fileno()).st_size == size else b""
        except FileNotFoundError:
            self._check_folder(self._root / name)
            return None

    def _list(self, folder: Path) -> Iterator[Listed]:
        self._check_folder(folder)
        for where, _, names in os.walk(folder):
            for name in names:
                path = Path(where, name)
                with suppress(FileNotFoundError):
                    yield Listed(path.relative_to(self._root).as_posix(), path.stat().st_mtime_ns // 1_000_000)

    def _remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        with suppress(OSError):  # there is something in it
            path.parent.rmdir()


def _sync(folders: set[Path]) -> None:
    """See that names of new files and directories are on the disk."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
