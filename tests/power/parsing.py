"""Parse lines of strace into events.

Calls that the model of a disk does not cover are errors; none is skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from .events import Acknowledged, Create, Event, Link, Mkdir, Remove, Rename, Sync, Truncate, Write

# -xx: every string in hexadecimal, so that no byte of a path or a value looks like strace's own punctuation.
OPTIONS = ("-y", "-xx", "-s", "100000000")
NAMES = {
    "rename": Rename,
    "renameat": Rename,
    "renameat2": Rename,
    "link": Link,
    "linkat": Link,
    "unlink": Remove,
    "unlinkat": Remove,
    "rmdir": Remove,
    "mkdir": Mkdir,
    "mkdirat": Mkdir,
}
REFUSED = (
    *("open", "creat", "openat2", "truncate", "fallocate", "pwritev", "pwritev2", "copy_file_range", "sendfile"),
    *("splice", "symlink", "symlinkat", "sync_file_range", "sync", "syncfs", "io_submit", "io_uring_enter"),
)
DATA = ("openat", "lseek", "write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync")
# A lock changes nothing, and may fail.
CALLS = (*DATA, *NAMES, *REFUSED, "flock")

CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)")
DESCRIPTOR = re.compile(r"(AT_FDCWD|\d+)<([^>]*)>(\(deleted\))?")
STRING = re.compile(r'"([^"]*)"')


class Unmodelled(AssertionError):
    """A process made a change to its files that the model of a disk does not cover."""


def parsed(lines: Iterable[str], root: str, ignored: tuple[str, ...] = ()) -> list[Event]:
    """Return the changes below `root` and the acknowledgements.

    Names with one of the endings `ignored` are skipped.

    Raises:
        Unmodelled: If any other change was made there.
    """
    parser = _Parser(root, ignored)
    return [event for call in _whole(lines) for event in parser.events(*call)]


def _whole(lines: Iterable[str]) -> Iterator[tuple[str, str, int, str]]:
    """Join calls that another thread's call split; drop those that never returned."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, text = line.strip().partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = begun.pop(process) + text.partition(" resumed>")[2]
        match = CALL.fullmatch(text)
        if match and match[3] != "?":
            yield match[1], match[2], int(match[3]), match[4]


class _Parser:
    def __init__(self, root: str, ignored: tuple[str, ...]) -> None:
        self._root = root
        self._ignored = ignored
        # The offset of the next `write` of each open file; `None`: its end.
        self._positions: dict[str, int | None] = {}

    def events(self, name: str, arguments: str, result: int, remark: str) -> Iterator[Event]:
        if name in REFUSED and (name in ("sync", "syncfs") or self._paths(arguments)):
            raise Unmodelled(f"{name}({arguments[:300]})")
        if name in ("fsync", "fdatasync"):
            yield from (Sync(path, failed=result < 0) for path in self._descriptor(arguments))
        elif result >= 0 and name in NAMES:
            yield from self._named(name, arguments)
        elif result >= 0 and name in DATA:
            handler: Callable[[str, int], Iterator[Event]] = getattr(self, f"_{name}")
            yield from handler(arguments, result)

    # -- the files of a call -------------------------------------------------------------------------------------

    def _below(self, path: str) -> str | None:
        """Return the path below the root, or `None` if it is outside or ignored."""
        if path.endswith(self._ignored) or not f"{path}/".startswith(f"{self._root}/"):
            return None
        return path[len(self._root) + 1 :]

    def _descriptor(self, arguments: str) -> list[str]:
        """Return the file of a call's first argument, unless it is foreign or was deleted."""
        match = DESCRIPTOR.match(arguments)
        path = self._below(_text(match[2]).decode()) if match and not match[3] else None
        return [] if path is None else [path]

    def _paths(self, arguments: str) -> list[str]:
        """Return the files that a call names, each relative to the preceding directory."""
        base, found = "", []
        for argument in arguments.split(", "):
            if match := DESCRIPTOR.match(argument):
                base = _text(match[2]).decode()
            elif match := STRING.match(argument):
                path = os.path.normpath(os.path.join(base, _text(match[1]).decode(errors="surrogateescape")))
                found.append(self._below(path))
        return [path for path in found if path is not None]

    # -- the calls -----------------------------------------------------------------------------------------------

    def _named(self, name: str, arguments: str) -> Iterator[Event]:
        kind, paths = NAMES[name], self._paths(arguments)
        count = 2 if kind in (Rename, Link) else 1
        if "RENAME_EXCHANGE" in arguments or (paths and len(paths) != count):
            raise Unmodelled(f"{name} of {paths}, in or out of the directory")
        if paths:
            yield kind(*paths)

    def _openat(self, arguments: str, result: int) -> Iterator[Event]:
        flags = arguments.split(", ")[2].split("|")
        for path in self._paths(arguments):
            if {"O_SYNC", "O_DSYNC", "O_TMPFILE", "O_DIRECT"} & set(flags):
                raise Unmodelled(f"{path} opened with {flags}")
            self._positions[str(result)] = None if "O_APPEND" in flags else 0
            if "O_CREAT" in flags:
                yield Create(path)
            if "O_TRUNC" in flags:
                yield Truncate(path, 0)

    def _lseek(self, arguments: str, result: int) -> Iterator[Event]:
        number = arguments.partition("<")[0]
        if self._positions.get(number) is not None:
            self._positions[number] = result
        yield from ()

    def _write(self, arguments: str, result: int) -> Iterator[Event]:
        data = b"".join(_text(text) for text in STRING.findall(arguments))[:result]
        number = arguments.partition("<")[0]
        paths = self._descriptor(arguments)
        if not paths and data.startswith(b"ack "):
            yield Acknowledged(int(data[4:]))
        for path in paths:
            offset = self._positions[number]
            self._positions[number] = None if offset is None else offset + result
            yield Write(path, offset, data)

    _writev = _write

    def _pwrite64(self, arguments: str, result: int) -> Iterator[Event]:
        data = b"".join(_text(text) for text in STRING.findall(arguments))[:result]
        for path in self._descriptor(arguments):
            yield Write(path, int(arguments.rpartition(", ")[2]), data)

    def _ftruncate(self, arguments: str, _: int) -> Iterator[Event]:
        for path in self._descriptor(arguments):
            yield Truncate(path, int(arguments.rpartition(", ")[2]))


def _text(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal.replace("\\x", ""))
