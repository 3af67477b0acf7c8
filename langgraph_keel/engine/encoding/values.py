"""Channel value ↔ stored form: which form a value takes, and how it comes back.

* Small scalars stand in the entry's header.
* A list is a piece table (`lists.py`); any other large value that has parts, a snapshot with edits (`trees.py`).
* Anything else is one item, written again when its fingerprint changes.

What comes back equals what was put, whatever form it took: `test_encoding.py` holds this against a store of
whole values over random histories with edits, removals and in-place mutation.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from langgraph_keel.engine.encoding.frames import content_size, unframe
from langgraph_keel.engine.encoding.lists import KnownList, hashes_of, next_list, rebased_list
from langgraph_keel.engine.encoding.rows import Loose, row_index, rows_of
from langgraph_keel.engine.encoding.trees import KnownTree, first_tree, follow, learned_tree, next_tree, replay
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, Run, resolve
from langgraph_keel.engine.serde.codec import Codec, digest
from langgraph_keel.errors import CorruptStore, ValueRefused

SHORT = 64
"""Longest text that stands in the header."""


@dataclass(frozen=True, slots=True)
class KnownWhole:
    """What a process remembers of a value stored as one item: its number and the digest of its fingerprint."""

    runs: tuple[Run, ...]
    proof: int
    fresh: tuple[bytes, ...] = ()

    @property
    def ref(self) -> Ref:
        """Where this version lives."""
        return Ref(Kind.WHOLE, self.runs)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 200

    def appends(self) -> tuple[Row, ...]:
        """Rows to append to the log for this version."""
        return rows_of(self.fresh)

    def with_number(self, first: int) -> KnownWhole:
        """Return itself after its item got its number, `first`."""
        return replace(self, runs=resolve(self.runs, first), fresh=())


Known: TypeAlias = KnownWhole | KnownList | KnownTree


def is_inline(value: Any) -> bool:
    """Return whether a value is so small that it stands in the header of every entry that has it."""
    kind = type(value)
    if kind is str:
        return len(value) <= SHORT
    return value is None or kind in (bool, float) or (kind is int and -(1 << 63) <= value < 1 << 63)


def next_version(value: Any, known: Known | None, codec: Codec) -> tuple[Known, tuple[Row, ...]]:
    """Return a channel's value as the version after `known`, and packed rows that should replace small ones.

    Raises:
        UnstorableValue: The serializer cannot store it; nothing was changed.
    """
    if type(value) is list:
        return next_list(value, known if isinstance(known, KnownList) else None, codec)
    if isinstance(known, KnownTree) and (found := next_tree(value, known, codec)) is not None:
        return found
    if (tree := follow(value, codec)) is not None:
        return first_tree(value, tree, codec), ()
    proof = digest(codec.fingerprint(value))
    if isinstance(known, KnownWhole) and known.proof == proof:
        return known, ()
    return KnownWhole(((NEW, NEW + 1),), proof, (codec.pack_item(value),)), ()


def rebase(whole: Known, known: Known | None) -> Known:
    """Return what was encoded without a base as the version after `known`, using what both have."""
    if isinstance(whole, KnownList) and isinstance(known, KnownList):
        return rebased_list(whole, known)
    if isinstance(whole, KnownTree) and isinstance(known, KnownTree):
        return known if whole.tree.mark == known.tree.mark else whole
    if isinstance(whole, KnownWhole) and isinstance(known, KnownWhole):
        return known if whole.proof == known.proof else whole
    return whole


class Unpacker:
    """Turns rows into items. One unpacker serves several versions: a row they share is decompressed once."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._bodies: dict[int, bytes] = {}

    def items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        """Return fresh objects for the items in `runs`, in order.

        Raises:
            CorruptStore: A row is missing or damaged.
            RefusedType: An item names a type that may not be revived here.
        """
        opened: dict[int, list[Any]] = {}
        # An item shown twice must be two objects, or changing one would change the other.
        reuse = not _overlap(runs)
        return [item for lo, hi in runs for item in self._run(lo, hi, rows, opened if reuse else {})]

    def _run(self, lo: int, hi: int, rows: Sequence[Row], opened: dict[int, list[Any]]) -> Iterator[Any]:
        while lo < hi:
            row = rows[row_index(rows, lo)]
            if row.lo not in opened:
                opened[row.lo] = self._codec.unpack_items(self._body(row))
            stop = min(hi, row.lo + row.count)
            yield from opened[row.lo][lo - row.lo : stop - row.lo]
            lo = stop

    def _body(self, row: Row) -> bytes:
        if id(row) not in self._bodies:
            self._bodies[id(row)] = unframe(row.body)
        return self._bodies[id(row)]

    def value(self, ref: Ref, rows: Sequence[Row]) -> Any:
        """Return the fresh value that `ref` names. Inline values are not in rows: see the header."""
        items = self.items(ref.runs, rows)
        if ref.kind is Kind.LIST:
            return items
        return replay(items) if ref.kind is Kind.TREE else items[0]

    def values(self, refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]], where: str) -> dict[str, Any]:
        """Return the values of the channels that have items.

        Raises:
            CorruptStore: As `items`, naming the channel too.
            RefusedType: Likewise.
        """
        return {
            channel: self._channel(channel, ref, rows.get(channel, ()), where)
            for channel, ref in refs.items()
            if ref.kind is not Kind.INLINE
        }

    def _channel(self, channel: str, ref: Ref, rows: Sequence[Row], where: str) -> Any:
        try:
            with _no_collection():
                return self.value(ref, rows)
        except ValueRefused as error:
            raise error.at(f"{where}, channel {channel!r}") from error
        except CorruptStore as error:
            raise CorruptStore(f"{where}, channel {channel!r}: {error}") from error


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the cyclic collector from running while thousands of fresh objects appear at once.

    None of them is garbage, but by their number they make it walk the whole heap of the program again and again: that
    was 18 of 45 ms for ten versions of 1000 messages. If two threads are in here, the first to leave switches it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _overlap(runs: Sequence[Run]) -> bool:
    ordered = sorted(runs)
    return any(before[1] > after[0] for before, after in pairwise(ordered))


def learn(value: Any, ref: Ref, rows: Sequence[Row], codec: Codec) -> Known | None:
    """Return what there is to know of a value just read, before anybody can change it."""
    if ref.kind is Kind.LIST:
        marks = codec.marks(value)
        stream = b"".join(marks)
        loose = _loose_end(value, ref.runs, rows, codec)
        return KnownList(ref.runs, len(stream), digest(stream), hashes_of(marks), loose)
    if ref.kind is Kind.TREE:
        return learned_tree(value, ref.runs, _sizes(ref.runs, rows), codec)
    return KnownWhole(ref.runs, digest(codec.fingerprint(value)))


def _sizes(runs: Sequence[Run], rows: Sequence[Row]) -> list[int]:
    sizes = []
    for lo, hi in runs:
        for number in range(lo, hi):
            row = rows[row_index(rows, number)]
            sizes.append(content_size(row.body) // row.count)
    return sizes


def _loose_end(value: list[Any], runs: Sequence[Run], rows: Sequence[Row], codec: Codec) -> Loose:
    """Find the small rows at the end of the log that this list ends in, so that they get packed in due time."""
    if not runs:
        return Loose()
    start, end = runs[-1]
    lo = end
    for row in reversed(rows[: row_index(rows, end - 1) + 1]):
        if row.count > 1 or row.lo < start:
            break
        lo = row.lo
    count = end - lo
    return Loose(lo, tuple(map(codec.pack_item, value[len(value) - count :]))) if count else Loose()
