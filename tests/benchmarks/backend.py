"""A saver under test, how to open it, and the pair of savers to compare."""

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from .report import Target
from .timing import bytes_written

Saver = BaseCheckpointSaver[Any]
Opener = Callable[[Path], AbstractContextManager[Saver]]
AsyncOpener = Callable[[Path], AbstractAsyncContextManager[Saver]]
Opened = Iterator[Saver]
AsyncOpened = AsyncIterator[Saver]


def directory_bytes(directory: Path) -> int:
    """Return the bytes of all files of a saver, log and lock files included, without SQLite's shared memory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if not path.name.endswith("-shm"))


@contextmanager
def filled(directory: Path) -> Iterator[Path]:
    """Yield a directory, in memory if possible; afterwards, copy its files to `directory`."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else directory.parent) as place:
        yield Path(place)
        shutil.copytree(place, directory, dirs_exist_ok=True)


def no_server(_: Path) -> Sequence[int]:
    """Return no processes: the saver has no server."""
    return ()


def nothing(_: Opener, __: Path) -> None:
    """Prepare nothing before bytes are counted."""


@dataclass(frozen=True)
class Backend:
    """One saver: how to open it in its own directory (sync and async), and how to count its stored and written bytes.

    A saver on a server uses the directory's name as its database or prefix. `trip` returns a function that makes a bare
    round trip to the server over its own connection. `pids` returns the server's processes that work for the saver. In
    `filled`, commits do not wait for the disk, so that a large store is filled quickly.
    """

    name: str
    open: Opener
    aopen: AsyncOpener | None = None
    stored: Callable[[Path], int] = directory_bytes
    written: Callable[[], int | None] = bytes_written
    prepare: Callable[[Opener, Path], None] = nothing
    trip: Callable[[ExitStack, Path], Callable[[], object]] | None = None
    pids: Callable[[Path], Sequence[int]] = no_server
    filled: Callable[[Path], AbstractContextManager[Path]] = filled


@contextmanager
def in_process(_: Path) -> Iterator[str]:
    """Measure a pair without a server."""
    yield ""


@dataclass(frozen=True)
class Pair:
    """Two savers to compare, their targets, and their server.

    `pooled` is LangGraph's saver for many concurrent threads, if it differs from `theirs`. `serve` yields the
    description of the server for the table's title.
    """

    ours: Backend
    theirs: Backend | None
    targets: Mapping[str, Target]
    measures: tuple[str, ...]
    pooled: Backend | None = None
    serve: Callable[[Path], AbstractContextManager[str]] = in_process
