"""Directories that are held open: what is done in one is done there, wherever its name leads by now.

So nothing that was meant for a thread lands in the next one of the same id, and no link leads out of the store.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Self

from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.disk import MODE, is_at, opened, write_all

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_OWN = _DIRECTORY | getattr(os, "O_NOFOLLOW", 0)


class Folder:
    """An open directory.

    Attributes:
        path: Where it was opened.
        is_new: Whether it, or one above it, was made for this.
    """

    def __init__(self, path: Path, handle: int, is_new: bool = False) -> None:
        self.path = path
        self.is_new = is_new
        self._handle = handle

    @classmethod
    def at(cls, root: Path, names: Sequence[str], *, make: bool = False) -> Self:
        """Open a directory below another one.

        Args:
            root: A directory that is there.
            names: The way from it.
            make: Whether to make what is missing. Its names are not durable.

        Raises:
            FileNotFoundError: It is not there; or is removed at this moment.
            CorruptStore: There is a link or a file on the way.
        """
        folder = cls(root, os.open(root, _DIRECTORY))
        for name in names:
            with folder:
                folder = folder._below(name, make)
        return folder

    def _below(self, name: str, make: bool) -> Self:
        path, is_new = self.path / name, False
        try:
            if make and not self._has(name):
                os.mkdir(name, dir_fd=self._handle)
                is_new = True
        except FileExistsError:
            pass  # somebody else has made it at this moment
        try:
            return type(self)(path, os.open(name, _OWN, dir_fd=self._handle), self.is_new or is_new)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise CorruptStore(f"{path}: a link or a file, and no directory") from error
            raise

    def _has(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(os.stat(name, dir_fd=self._handle, follow_symlinks=False))
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self._handle)

    @property
    def identity(self) -> tuple[int, int]:
        """Tells it from other directories that are there."""
        status = os.fstat(self._handle)
        return status.st_dev, status.st_ino

    def is_in_place(self) -> bool:
        """Return whether its path still leads to it."""
        return is_at(self._handle, self.path)

    def names(self) -> list[str]:
        """Return the names in it."""
        return os.listdir(self._handle)

    def opened(self, name: str, mode: str) -> FileIO:
        """Open a file in it: see `disk.opened`."""
        try:
            return opened(self.path / name, mode, self._handle)
        except IsADirectoryError as error:
            raise CorruptStore(f"{self.path / name}: a directory, and no file") from error

    def holds(self, name: str, handle: int) -> bool:
        """Return whether a name in it still leads to an open file."""
        try:
            status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(handle), status)

    def put(self, name: str, data: bytes, *, replaces: bool) -> None:
        """Make a file as a whole, durably.

        Args:
            name: Its name.
            data: What it holds.
            replaces: Whether to put it in the place of another one, whose lock the caller holds.

        Raises:
            FileExistsError: There is one, and it was not to be replaced.
            FileNotFoundError: Somebody has removed it while it was written: see `clear`.
        """
        temporary = f"{name}.{token_hex(4)}.tmp"
        try:
            self._write(temporary, data)
            if replaces:
                os.rename(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            else:
                os.link(temporary, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        finally:
            self.remove(temporary)
        self.sync()

    def _write(self, name: str, data: bytes) -> None:
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE, dir_fd=self._handle)
        try:
            write_all(handle, data, 0)
            os.fsync(handle)
        finally:
            os.close(handle)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def clear(self) -> None:
        """Remove what others were making when they died. Who is still at it finds out, and begins again."""
        for name in self.names():
            if name.endswith(".tmp"):
                self.remove(name)

    def move(self, old: str, new: str) -> None:
        """Give a file another name, durably."""
        os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def sync(self) -> None:
        """Make the names in it durable."""
        os.fsync(self._handle)
