"""What is measured: a saver and how it is opened, and the pair of savers that stand beside each other."""

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
    """Every byte of every file a saver left, log and lock files included; not SQLite's shared memory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if not path.name.endswith("-shm"))


@contextmanager
def filled(directory: Path) -> Iterator[Path]:
    """Yield a directory in memory, if there is such a disk; the files of a saver are copied to their place."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else directory.parent) as place:
        yield Path(place)
        shutil.copytree(place, directory, dirs_exist_ok=True)


def no_server(_: Path) -> Sequence[int]:
    """The processes of a server, where there is none."""
    return ()


def nothing(_: Opener, __: Path) -> None:
    """What a saver needs before its bytes are counted, if it needs nothing."""


@dataclass(frozen=True)
class Backend:
    """One saver: how to open it on a directory of its own (both faces), and what it stores and writes there.

    A saver on a server takes the directory's name for that of a database or prefix of its own. `trip` makes what asks
    such a server for next to nothing, over a connection of its own; `pids` returns the server's processes that work for
    the saver. In `filled`, a large store is made by commits that do not wait for the disk.
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
    """What must run while a pair without a server is measured: nothing."""
    yield ""


@dataclass(frozen=True)
class Pair:
    """What is measured against what, what it must reach, and the server that both are on.

    `pooled` is LangGraph's saver as it serves many threads at once, if that is another; `serve` yields what the
    table's title says of the server.
    """

    ours: Backend
    theirs: Backend | None
    targets: Mapping[str, Target]
    measures: tuple[str, ...]
    pooled: Backend | None = None
    serve: Callable[[Path], AbstractContextManager[str]] = in_process
