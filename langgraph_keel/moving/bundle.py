r"""One thread as one file, with all that is its: to attach to a report of a bug, and to read back into any store.

The file is not sealed, whatever the store is: who has it can read the whole conversation. It has

    keel bundle\n         12 bytes
    1                    the number of this form, 2 bytes, big endian
    records              one zstandard stream
    a SHA-256            32 bytes, of all before it

A record is its length (4 bytes, big endian) and a list in MessagePack: what it is, and its parts (`_records`). Of
headers, items, writes and cells it has what stands in frames, so that the same thread makes the same records,
whatever backend it comes from.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import ormsgpack
import zstandard

from langgraph_keel.display.text import count_of, format_size
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import MAX_BYTES, frame, open_frame
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Batch, Entry, Found, Graph, Kind, Node, Ref, Row, Writes
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, InvalidInput, NewerFormat, NotAKeelStore, NotFound
from langgraph_keel.moving.cells import CHAIN
from langgraph_keel.moving.items import Numbers
from langgraph_keel.moving.outline import WRITES, Shelves, place_of

_MAGIC = b"keel bundle\n"
_FORM = 1
_HEAD = len(_MAGIC) + 2
_DIGEST = 32
_PAGE = 16
"""Entries, and cells, that are read at once."""


@publish
@dataclass(frozen=True, slots=True)
class BundleInfo:
    """What a bundle has.

    Attributes:
        thread_id: The thread.
        checkpoints: How many there are, over all namespaces.
        writes: How many batches of pending writes.
        cells: How many records beside the checkpoints: labels, tool calls, requests for approval, archives.
        nbytes: Bytes of the file.
    """

    thread_id: str
    checkpoints: int
    writes: int
    cells: int
    nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "thread_id": self.thread_id,
            "checkpoints": self.checkpoints,
            "writes": self.writes,
            "cells": self.cells,
            "bytes": self.nbytes,
        }

    def __str__(self) -> str:
        """Say it in a line."""
        counts = (
            count_of(self.checkpoints, "checkpoint"),
            count_of(self.writes, "write"),
            f"{count_of(self.cells, 'record')} beside",
        )
        return f"{self.thread_id}: {', '.join(counts)}; {format_size(self.nbytes)}"


@dataclass(slots=True)
class Bundle:
    """A thread in memory, which is read as a store is (`moving.outline.Source`): without trips.

    Attributes:
        thread_id: The thread.
        nodes: Its entries, whose stamps are their places.
        rows: The rows of its item logs, by namespace and channel, by their first numbers.
        writes: All that was written, that of a checkpoint in the order of arrival; the stamps are their places.
        cells: Its cells, and those that it has shared.
    """

    thread_id: str
    nodes: list[Node] = field(default_factory=list)
    rows: defaultdict[tuple[str, str], dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    writes: list[Writes] = field(default_factory=list)
    cells: dict[Shelf, dict[str, Cell]] = field(default_factory=dict)

    def info(self, nbytes: int) -> BundleInfo:
        """Return what it has, in numbers."""
        cells = sum(map(len, self.cells.values()))
        return BundleInfo(self.thread_id, len(self.nodes), len(self.writes), cells, nbytes)

    # -- as a source -------------------------------------------------------------------------------------------

    def read_graph(self, thread_id: str) -> Plan[Graph]:
        """See `Store.read_graph`."""
        yield from ()
        return Graph(self.nodes if thread_id == self.thread_id else (), {}, 1)

    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`."""
        yield from ()
        return [
            Found(entry, {name: self._rows_of(entry.address.checkpoint_ns, name) for name in entry.refs})
            for entry in entries
        ]

    def _rows_of(self, namespace: str, channel: str) -> Sequence[Row]:
        rows = self.rows[namespace, channel]
        return [rows[lo] for lo in sorted(rows)]

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        yield from ()
        begin = 0 if after is None else int(after.stamp) + 1
        return self.writes[begin : begin + limit] if thread_id == self.thread_id else ()

    def list_kinds(self, thread_id: str | None) -> Plan[Sequence[str]]:
        """See `Store.list_kinds`."""
        yield from ()
        return [shelf.kind for shelf in self.cells if shelf.thread_id == thread_id]

    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> Plan[Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`."""
        yield from ()
        cells = self.cells.get(shelf, {})
        keys = sorted(key for key in cells if key.startswith(prefix) and key > (after or ""))
        return [(key, cells[key]) for key in keys[:limit]]

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        yield from ()
        return {key: cell for key, cell in self.cells.get(shelf, {}).items() if key in keys}


# -- from a store ------------------------------------------------------------------------------------------------------


def read_thread(store: Store[Any, Any], thread_id: str, without: Collection[str]) -> Plan[Bundle]:
    """Read all of a thread, and what it has shared, but for what is everybody's: the audit trail, and secrets.

    All of it is in memory then.

    Args:
        store: Where it is.
        thread_id: The thread.
        without: Kinds of cells that are left out.

    Raises:
        NotFound: There is none.
        CorruptStore: It was changed while it was read, so that something of it is missing.
    """
    bundle = Bundle(thread_id)
    graph: Graph = yield from store.read_graph(thread_id)
    seen: defaultdict[tuple[str, str], Numbers] = defaultdict(Numbers)
    for begin in range(0, len(graph.nodes), _PAGE):
        yield from _read_rows(store, graph.nodes[begin : begin + _PAGE], seen, bundle)
    bundle.nodes = [_as_stored(node, stamp) for stamp, node in enumerate(graph.nodes)]
    page: Sequence[Writes] | None = None
    while page is None or len(page) == WRITES:
        page = yield from store.list_writes(thread_id, page[-1] if page else None, WRITES)
        bundle.writes += page
    bundle.writes = [Writes(stamp, each.address, each.batch) for stamp, each in enumerate(bundle.writes)]
    for owner in (thread_id, None):
        for kind in sorted((yield from store.list_kinds(owner))):
            if kind not in without and not (owner is None and kind in CHAIN):
                yield from _read_shelf(store, Shelf(owner, kind), bundle)
    if not (bundle.nodes or bundle.writes or bundle.cells):
        raise NotFound(f"thread {thread_id!r}: there is none of that name")
    return bundle


def _as_stored(node: Node, stamp: int) -> Node:
    return Node(
        *(node.address, node.parent, stamp, node.header, dict(node.refs), node.run_id),
        *(node.is_head, node.is_ghost, node.updated_at, node.is_beside),
    )


def _read_rows(
    store: Store[Any, Any], page: Sequence[Node], seen: defaultdict[tuple[str, str], Numbers], bundle: Bundle
) -> Plan[None]:
    asked: list[Entry] = []
    for node in page:
        refs = {}
        for name, ref in node.refs.items():
            numbers = seen[node.address.checkpoint_ns, name]
            if missing := tuple(numbers.missing(ref.runs)):
                refs[name] = Ref(ref.kind, missing)
                for lo, hi in missing:
                    numbers.add(lo, hi, lo)
        if refs:
            asked.append(Entry(node.address, node.parent, node.stamp, node.header, refs, node.run_id))
    found: Sequence[Found] = (yield from store.read_values(asked)) if asked else ()
    if len(found) < len(asked):
        raise CorruptStore(f"{asked[0].address}: it was removed while the thread was read: read it again")
    for each in found:
        for name, rows in each.rows.items():
            bundle.rows[each.entry.address.checkpoint_ns, name].update({row.lo: row for row in rows})


def _read_shelf(store: Store[Any, Any], shelf: Shelf, bundle: Bundle) -> Plan[None]:
    walk, keys = Shelves(store, shelf), list[str]()
    while (found := (yield from walk.next())) is not None:
        if shelf.thread_id is not None or found[1].origin == bundle.thread_id:
            keys.append(found[0])
    for begin in range(0, len(keys), _PAGE):
        cells: Mapping[str, Cell] = yield from store.read_cells(shelf, keys[begin : begin + _PAGE])
        bundle.cells.setdefault(shelf, {}).update(cells)


# -- the file ----------------------------------------------------------------------------------------------------------


def write_bundle(bundle: Bundle, path: Path) -> BundleInfo:
    """Write a bundle to a new file, which only its owner may read.

    Raises:
        InvalidInput: There is a file of that name, or it cannot be written.
    """
    packed = BytesIO()
    with zstandard.ZstdCompressor(level=10).stream_writer(packed, closefd=False) as stream:
        for record in _records(bundle):
            data = ormsgpack.packb(record)
            stream.write(struct.pack(">I", len(data)) + data)
    content = _MAGIC + struct.pack(">H", _FORM) + packed.getvalue()
    content += hashlib.sha256(content).digest()
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(f"{path} is there already: name another file, or remove it") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    try:
        with open(made, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    return bundle.info(len(content))


def _records(bundle: Bundle) -> Iterator[list[Any]]:
    yield ["thread", bundle.thread_id]
    for (ns, channel), rows in sorted(bundle.rows.items()):
        for lo in sorted(rows):
            yield ["row", ns, channel, lo, rows[lo].count, open_frame(rows[lo].body)]
    for node in bundle.nodes:
        refs = [[name, int(ref.kind), [list(run) for run in ref.runs]] for name, ref in node.refs.items()]
        place = node.address.checkpoint_ns, node.address.checkpoint_id, node.parent, node.run_id, node.updated_at
        flags = node.is_head, node.is_ghost, node.is_beside
        yield ["entry", *place, *flags, refs, open_frame(node.header)]
    for each in bundle.writes:
        yield ["writes", *place_of(each), each.batch.task_id, each.batch.task_path, open_frame(each.batch.body)]
    for shelf, cells in sorted(bundle.cells.items(), key=lambda one: (one[0].thread_id is None, one[0].kind)):
        for key in sorted(cells):
            cell = cells[key]
            body = open_frame(cell.body) if cell.body else b""
            about = cell.token, cell.origin, cell.expires_at
            yield ["cell", shelf.thread_id is None, shelf.kind, key, *about, open_frame(cell.header), body]


def load_bundle(path: Path) -> tuple[Bundle, BundleInfo]:
    """Read a bundle from its file, and check it.

    Raises:
        NotFound: There is no such file.
        NotAKeelStore: It is no bundle.
        NewerFormat: A newer version of Keel has written it.
        CorruptStore: It was cut off, or changed.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if not content.startswith(_MAGIC):
        raise NotAKeelStore(f"{path} is no bundle of Keel's")
    if len(content) < _HEAD + _DIGEST or hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        raise CorruptStore(f"{path} was cut off, or changed: it does not match its checksum")
    (form,) = struct.unpack(">H", content[len(_MAGIC) : _HEAD])
    if form != _FORM:
        raise NewerFormat(f"{path} is a bundle of form {form}, and this version of Keel knows {_FORM}: upgrade Keel")
    try:
        bundle = _build(_read_records(content[_HEAD:-_DIGEST]))
    except (zstandard.ZstdError, struct.error, ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptStore(f"{path} holds what no version of Keel writes: {error}") from None
    return bundle, bundle.info(len(content))


def _read_records(packed: bytes) -> Iterator[list[Any]]:
    """Yield the records.

    Raises:
        CorruptStore: They would take more memory than a value may.
    """
    left = MAX_BYTES
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(packed) as stream:
        while head := stream.read(4):
            (size,) = struct.unpack(">I", head)
            left -= size
            if left < 0:
                raise CorruptStore(f"a bundle claims to hold more than {format_size(MAX_BYTES)}")
            yield ormsgpack.unpackb(stream.read(size))


def _build(records: Iterator[list[Any]]) -> Bundle:
    (what, name), bundle = next(records), Bundle("")
    if what != "thread" or type(name) is not str or not name:
        raise ValueError("it names no thread")
    bundle.thread_id = name
    for what, *parts in records:
        if what == "row":
            ns, channel, lo, count, body = parts
            _check((ns, channel, lo, count, body), str, str, int, int, bytes)
            bundle.rows[ns, channel][lo] = Row(lo, count, frame(body))
        elif what == "entry":
            bundle.nodes.append(_node(bundle, *parts))
        elif what == "writes":
            _check(parts, str, str, str, str, bytes)
            ns, checkpoint_id, task, task_path, body = parts
            address = Address(name, ns, checkpoint_id)
            bundle.writes.append(Writes(len(bundle.writes), address, Batch(task, task_path, frame(body))))
        elif what == "cell":
            is_shared, kind, key, token, origin, expires_at, header, body = parts
            _check((is_shared, kind, key, token, origin, header, body), bool, str, str, str, str, bytes, bytes)
            _check((expires_at,), int if expires_at is not None else type(None))
            shelf = Shelf(None if is_shared else name, kind)
            cell = Cell(token, frame(header), frame(body) if body else b"", origin, expires_at)
            bundle.cells.setdefault(shelf, {})[key] = cell
        else:
            raise ValueError(f"a record says that it is {what!r:.40}")
    return bundle


def _node(bundle: Bundle, ns: Any, checkpoint_id: Any, parent: Any, run: Any, at: Any, *parts: Any) -> Node:
    is_head, is_ghost, is_beside, refs, header = parts
    _check((ns, checkpoint_id, at, is_head, is_ghost, is_beside, header), str, str, str, bool, bool, bool, bytes)
    for each in (parent, run):
        _check((each,), str if each is not None else type(None))
    shown = {channel: Ref(Kind(kind), tuple((int(lo), int(hi)) for lo, hi in runs)) for channel, kind, runs in refs}
    address, stamp = Address(bundle.thread_id, ns, checkpoint_id), len(bundle.nodes)
    return Node(address, parent, stamp, frame(header), shown, run, is_head, is_ghost, at, is_beside)


def _check(parts: Sequence[Any], *types: type) -> None:
    if [type(part) for part in parts] != list(types):
        raise TypeError("a record does not hold what it should")
