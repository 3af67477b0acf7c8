"""Cells on disk: a file for each, in a directory for each kind.

Every change writes a whole new file. Readers need no lock, because a file is complete before it gets its name. To fill
an empty cell, a process links a file to its name, which only one process can do. To replace or empty a cell, a process
holds the lock of its file. Calls of different tools therefore do not wait for each other, and no lock files are needed.

A cell is one line of JSON that ends with a checksum, like a line of a log; FORMAT.md specifies it. The engine's frames
are stored as JSON, or as base64 if JSON would not restore the same bytes.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from time import time_ns
from typing import Any

import orjson

from langgraph_keel.backends.files.disk import (
    Folder,
    directory_of,
    open_locked,
    read_lines,
    sync_directory,
    thread_of,
    unlock,
    write_durably,
)
from langgraph_keel.backends.files.log import line_of, unseal
from langgraph_keel.backends.files.values import check_cell, items_to_json, pack_item
from langgraph_keel.engine.cells import Cell, Search, Shelf, Swapped, key_of_cell, ruling, select_cells
from langgraph_keel.engine.encoding.bodies import body_of, open_frame
from langgraph_keel.errors import CorruptStore, InvalidInput, KeyMissing

SUFFIX = ".json"

SHARED = "shared"
"""The directory of shared cells, in the store's root."""
KNOWN = 50_000
"""Maximum number of cells per directory that are cached for searches."""
SETTLED = 2_000_000_000
"""Minimum age of a file, in nanoseconds, before its cell is cached.

A younger file may be changed again without a change of its time.
"""
NO_SETTINGS: Mapping[str, str] = {}


def name_of(key: str) -> str:
    """Return the name of a cell's file: its key, escaped if Windows reserves the name."""
    return directory_of(key) + SUFFIX


def key_in(name: str) -> str | None:
    """Return the key of the cell in a file; `None` if the name is not that of a cell."""
    try:
        key = thread_of(name.removesuffix(SUFFIX)) if name.endswith(SUFFIX) else None
        return key_of_cell(key) if key else None
    except (CorruptStore, InvalidInput):
        return None


def text_of(key: str, cell: Cell) -> bytes:
    """Return the content of a cell's file."""
    fields = {
        "k": "cell",
        "key": key,
        "token": cell.token,
        "origin": cell.origin or None,
        "expires": cell.expires_at,
        "rank": cell.rank,
        "marks": " ".join(cell.marks) or None,
        "head": _to_json(cell.header),
        "body": _to_json(cell.body) if cell.body else None,
    }
    return line_of(fields)


def cell_of(text: bytes, key: str, has_body: bool = True) -> Cell:
    """Return the cell in the content of a file."""
    fields = check_cell(unseal(text.removesuffix(b"\n")))
    if fields["key"] != key:
        raise ValueError(f"it contains the cell {fields['key']!r:.140}")
    body = _frame_of(fields["body"]) if has_body and "body" in fields else b""
    ranked = fields.get("rank"), tuple(fields.get("marks", "").split())
    head, expires_at = _frame_of(fields["head"]), fields.get("expires")
    return Cell(fields["token"], head, body, fields.get("origin", ""), expires_at, *ranked)


def _to_json(framed: bytes) -> Any:
    try:
        [shown] = items_to_json(open_frame(framed))
        text = orjson.dumps(shown)
        if _frame_of(orjson.loads(text)) == framed:
            return orjson.Fragment(text)
    except (CorruptStore, KeyMissing, ValueError, TypeError):
        pass  # not a frame, a sealed frame, not exactly one item, or an item that JSON cannot represent
    return {"$frame": b2a_base64(framed, newline=False).decode()}


def _frame_of(shown: Any) -> bytes:
    if type(shown) is dict and "$frame" in shown:
        return a2b_base64(shown["$frame"], strict_mode=True)
    return body_of([pack_item(shown)])


class Shelves:
    """The cells of a thread, or the shared cells: a directory for each kind.

    `names` is the path from `root` to the directory of the kinds; `settings` are git's files next to them, by name.
    """

    def __init__(
        self, root: Path, names: tuple[str, ...], timeout: float, settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        self.directory = root.joinpath(*names)
        self._root = root
        self._names = names
        self._timeout = timeout
        self._settings = settings
        # Directories whose names this process has synced; the process that made them may have died before that.
        self._synced: set[tuple[int, int]] = set()
        # By kind and key: the state of a file when it was read, and its cell.
        self._known: dict[str, dict[str, tuple[Any, Cell]]] = {}

    def kinds(self) -> list[str]:
        """Return the kinds that may have cells."""
        with suppress(FileNotFoundError), Folder.at(self._root, self._names) as folder:
            kinds = []
            for name in folder.names():
                if not name.startswith("."):
                    with suppress(CorruptStore, InvalidInput):  # not the name of a kind
                        kinds.append(Shelf(None, thread_of(name) or "").kind)
            return sorted(kinds)
        return []

    def open(self, kind: str, *, make: bool = False) -> Folder:
        """Open the directory of a kind."""
        return Folder.at(self._root, (*self._names, directory_of(kind)), make=make)

    # -- reading -------------------------------------------------------------------------------------------------

    def read(self, kind: str, keys: Collection[str]) -> dict[str, Cell]:
        """See `Store.read_cells`."""
        with suppress(FileNotFoundError), self.open(kind) as folder:
            cells = {key: read_cell(folder, key) for key in keys}
            return {key: cell for key, cell in cells.items() if cell}
        return {}

    def page(self, kind: str, prefix: str, after: str | None, limit: int) -> list[tuple[str, Cell]]:
        """See `Store.list_cells`."""
        with suppress(FileNotFoundError), self.open(kind) as folder:
            keys = (key for key in keys_in(folder) if key.startswith(prefix) and key > (after or ""))
            cells = ((key, read_cell(folder, key, has_body=False)) for key in keys)
            return [*islice(((key, cell) for key, cell in cells if cell), limit)]
        return []

    def find(self, kind: str, search: Search) -> list[tuple[str, Cell]]:
        """See `Store.find_cells`. Lists all names of the kind; reads changed files."""
        with suppress(FileNotFoundError), self.open(kind) as folder:
            return select_cells(self._look(kind, folder, search.prefix), search)
        return []

    def _look(self, kind: str, folder: Folder, prefix: str) -> Iterator[tuple[str, Cell]]:
        known, settled = self._known.setdefault(kind, {}), time_ns() - SETTLED
        if len(known) > KNOWN:
            known.clear()
        for name, status in folder.statuses():
            key = key_in(name)
            if key is None or not key.startswith(prefix):
                continue
            mark = status.st_ino, status.st_mtime_ns, status.st_size
            was, cell = known.get(key, (None, None))
            if was != mark or cell is None:
                cell = read_cell(folder, key, has_body=False)
                if cell is not None and status.st_mtime_ns < settled:
                    known[key] = mark, cell
            if cell is not None:
                yield key, cell

    # -- changing ------------------------------------------------------------------------------------------------

    def swap(self, kind: str, key: str, expected: str | None, new: Cell | None) -> Swapped:
        """See `Store.swap_cell`.

        A refusal may return a cell that is not on disk yet, and that a power cut may lose.
        """
        fills = expected is None and new is not None
        while True:  # repeated while other processes are faster
            try:
                with self.open(kind, make=fills) as folder:
                    reply = self._swap_in(folder, key, expected, new)
                    if folder.is_in_place():
                        return reply
            except FileExistsError:
                pass
            except FileNotFoundError:
                if not self._root.exists():
                    raise
                if not fills and not (self.directory / directory_of(kind)).exists():
                    return Swapped(new is None)

    def _swap_in(self, folder: Folder, key: str, expected: str | None, new: Cell | None) -> Swapped:
        seen = read_cell(folder, key)
        if ruling(seen, expected, new) == "refuse":
            return Swapped(False, seen)
        with self._lock(folder, key) as file:
            current = None if file is None else _parse_cell(file, folder, key)
            decision = ruling(current, expected, new)
            if decision == "refuse":
                return Swapped(False, current)
            # Write also if the same request is repeated: the first one may have failed before it was durable.
            kept = new if decision == "write" else current
            self._sync_names(folder)
            if kept is not None:
                folder.put(name_of(key), text_of(key, kept), replaces=current is not None)
            else:
                folder.remove(name_of(key))
                folder.sync()
            return Swapped(True)

    @contextmanager
    def _lock(self, folder: Folder, key: str) -> Iterator[FileIO | None]:
        """Hold the lock of a cell's file; `None` if there is none."""
        name = name_of(key)
        opening, is_current = partial(folder.open_file, name, "r+"), partial(folder.holds, name)
        file = open_locked(opening, is_current, self._timeout, folder.path / name)
        try:
            yield file
        finally:
            if file is not None:
                unlock(file)

    def _sync_names(self, folder: Folder) -> None:
        """Sync the path to a directory, and remove leftovers of other processes in it."""
        identity = folder.identity
        if identity in self._synced and not folder.is_new:
            return
        for name, text in self._settings.items():
            if not (self.directory / name).exists():
                write_durably(self.directory / name, text.encode())
        for path in folder.path.parents:
            sync_directory(path)
            if path == self._root:
                break
        folder.clear()
        self._synced.add(identity)

    def remove(self, kind: str, tokens: Mapping[str, str]) -> int:
        """See `Store.remove_cells`. A power cut may come between two removals."""
        with suppress(FileNotFoundError), self.open(kind) as folder:
            removed = sum(self._remove_one(folder, key, token) for key, token in tokens.items())
            folder.sync()  # even if none was removed, because an earlier removal may have failed here
            return removed
        return 0

    def _remove_one(self, folder: Folder, key: str, token: str) -> bool:
        with self._lock(folder, key) as file:
            if file is None or _parse_cell(file, folder, key).token != token:
                return False
            folder.remove(name_of(key))
            return True

    def carry_over(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        """Change the fields of each undamaged cell; `change` returns `None` to remove it."""
        for kind in self.kinds():
            with suppress(FileNotFoundError), self.open(kind) as folder:
                for key in keys_in(folder):
                    with suppress(ValueError), self._lock(folder, key) as file:
                        if file is None:
                            continue
                        text = read_lines(file.fileno())
                        fields = unseal(text.removesuffix(b"\n"))
                        changed = change({name: each for name, each in fields.items() if name != "crc"})
                        if changed is None:
                            folder.remove(name_of(key))
                        elif (data := line_of(changed)) != text:
                            folder.put(name_of(key), data, replaces=True)
                folder.sync()

    def origins(self) -> set[str]:
        """Return the threads that have written shared cells, from all undamaged cells."""
        return {cell.origin for kind in self.kinds() for _, cell in self._sound_cells(kind, []) if cell.origin}

    def _sound_cells(self, kind: str, damaged: list[CorruptStore]) -> Iterator[tuple[str, Cell]]:
        """Return the cells of a kind without bodies; collect the errors of damaged ones."""
        with suppress(FileNotFoundError), self.open(kind) as folder:
            for key in keys_in(folder):
                try:
                    if cell := read_cell(folder, key, has_body=False):
                        yield key, cell
                except CorruptStore as error:
                    damaged.append(error)

    def remove_shared_by(self, origin: str) -> None:
        """Remove the shared cells that a thread has written. Reads every cell."""
        damaged: list[CorruptStore] = []
        for kind in self.kinds():
            with suppress(FileNotFoundError), self.open(kind) as folder:
                folder.clear()
            written = {key: cell.token for key, cell in self._sound_cells(kind, damaged) if cell.origin == origin}
            self.remove(kind, written)
        if damaged:
            raise damaged[0]


def keys_in(folder: Folder) -> list[str]:
    """Return the sorted keys of the cells in a directory."""
    return sorted(key for name in folder.names() if (key := key_in(name)))


def read_cell(folder: Folder, key: str, has_body: bool = True) -> Cell | None:
    """Return a cell; `None` if it is empty."""
    try:
        with folder.open_file(name_of(key), "r") as file:
            return _parse_cell(file, folder, key, has_body)
    except FileNotFoundError:
        return None


def _parse_cell(file: FileIO, folder: Folder, key: str, has_body: bool = True) -> Cell:
    try:
        return cell_of(read_lines(file.fileno()), key, has_body)
    except (CorruptStore, ValueError, TypeError, LookupError, AttributeError) as error:
        where = folder.path / name_of(key)
        raise CorruptStore(f"{where}: this cell is damaged: {error}. Run `keel check` for details") from error
