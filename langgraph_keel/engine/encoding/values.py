"""Channel value ↔ stored form: which form a value takes, and how it comes back.

* Small scalars stand in the entry's header.
* A list is a piece table (`lists.py`); any other large value that has parts, a snapshot with edits (`trees.py`).
* Anything else is one item, written again when its fingerprint changes.

What comes back equals what was put, whatever form it took: `test_encoding.py` holds this against a store of
whole values over random histories with edits, removals and in-place mutation.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, TypeAlias

from langgraph_keel.engine.encoding.bodies import (
    MOST_MEMORY,
    array_header,
    content_of,
    memory_of,
    number_rows,
    resolve,
    row_index,
    rows_in,
    rows_of,
    split_array,
    weight_of,
)
from langgraph_keel.engine.encoding.lists import KnownList, learn_list, next_list, rebase_list
from langgraph_keel.engine.encoding.trees import (
    KnownTree,
    first_tree,
    follow,
    is_settled,
    learn_tree,
    next_tree,
    replay,
)
from langgraph_keel.engine.records import NEW, Address, Kind, Ref, Row, Run, record
from langgraph_keel.engine.serde.codec import Codec, digest
from langgraph_keel.engine.serde.serializer import too_large
from langgraph_keel.errors import CorruptStore, UnstorableValue, ValueRefused

_first_of = attrgetter("lo")
TRIES = 3
"""How often a value is looked at that another thread changes meanwhile, before it is stored as a whole."""
SHORT = 64
"""Longest text that stands in the header."""


@record
class KnownWhole:
    """What a process remembers of a value stored as one item.

    Attributes:
        ref: Its number.
        rows: The row that holds it, unless it is new.
        proof: The digest of its fingerprint.
        weight: Bytes this takes in memory, about.
        fresh: The row that holds it, if it is new.
    """

    ref: Ref
    rows: Sequence[Row]
    proof: int
    weight: int
    fresh: tuple[Row, ...] = ()

    def with_number(self, first: int) -> KnownWhole:
        """Return itself after its item got its number, `first`."""
        ref = Ref(Kind.WHOLE, resolve(self.ref.runs, first))
        return KnownWhole(ref, number_rows(self.fresh, first), self.proof, self.weight)


@record
class KnownRows:
    """A value that was read, and that nobody has looked at yet to find out what the next one changes.

    Attributes:
        ref: The numbers of its items.
        rows: The rows that hold them.
        weight: Bytes this takes in memory, about.
        fresh: Nothing in it is new.
    """

    ref: Ref
    rows: Sequence[Row]
    weight: int
    fresh: tuple[Row, ...] = ()

    def with_number(self, first: int) -> KnownRows:
        """Return itself."""
        return self


Known: TypeAlias = KnownWhole | KnownList | KnownTree | KnownRows


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
    if isinstance(known, KnownRows):
        known = _look_at(known, codec)
    if type(value) is list:
        return next_list(value, known if isinstance(known, KnownList) else None, codec)
    try:
        return _next_other(value, known, codec)
    except UnstorableValue:
        codec.pack_item(value)  # says where in the whole of it
        raise
    except RecursionError:  # a deep value, below many other calls: packing it takes none of Python's
        return _next_whole(value, None, codec), ()


def _next_other(value: Any, known: Known | None, codec: Codec) -> tuple[Known, tuple[Row, ...]]:
    for _ in range(TRIES):
        if (found := _next_tree(value, known, codec)) is None:
            break
        tree, repacks = found
        if is_settled(tree.tree, known.tree if isinstance(known, KnownTree) else None, value, codec):
            return tree, repacks
    # It has no parts, or another thread changes it all the time: what is packed in one go is of one moment.
    return _next_whole(value, known, codec), ()


def _next_tree(value: Any, known: Known | None, codec: Codec) -> tuple[KnownTree, tuple[Row, ...]] | None:
    if isinstance(known, KnownTree) and (found := next_tree(value, known, codec)) is not None:
        return found
    tree = follow(value, codec)
    return None if tree is None else (first_tree(value, tree, codec), ())


def _next_whole(value: Any, known: Known | None, codec: Codec) -> KnownWhole:
    mark = codec.fingerprint(value)
    proof = digest(mark)
    if isinstance(known, KnownWhole) and known.proof == proof:
        return known
    fresh = rows_of((codec.pack_marked(value, mark),))
    return KnownWhole(Ref(Kind.WHOLE, ((NEW, NEW + 1),)), (), proof, 300 + weight_of(fresh), fresh)


def rebase(whole: Known, known: Known | None, codec: Codec) -> Known:
    """Return what was encoded without a base as the version after `known`, using what both have."""
    if isinstance(known, KnownRows):
        known = _look_at(known, codec)
    if isinstance(whole, KnownList) and isinstance(known, KnownList):
        return rebase_list(whole, known)
    if isinstance(whole, KnownTree) and isinstance(known, KnownTree):
        return known if whole.tree.mark == known.tree.mark else whole
    if isinstance(whole, KnownWhole) and isinstance(known, KnownWhole):
        return known if whole.proof == known.proof else whole
    return whole


# -- reading -----------------------------------------------------------------------------------------------------


Opener: TypeAlias = Callable[[bytes], bytes]


class Unpacker:
    """Turns rows into items. One unpacker serves several versions: a row they share is decompressed once.

    Args:
        codec: What decodes the items.
        remember: What is asked for the content of a frame, if not the codec: it is given both.
    """

    def __init__(self, codec: Codec, remember: Callable[[bytes, Opener], bytes] | None = None) -> None:
        self._codec = codec
        self._opener: Opener = (lambda body: remember(body, codec.open)) if remember else codec.open
        self._contents: dict[int, bytes] = {}

    def items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        """Return fresh objects for the items in `runs`, in order.

        Raises:
            CorruptStore: A row is missing or damaged.
            RefusedType: An item names a type that may not be revived here.
        """
        if _overlap(runs):
            self._check_repeats(runs, rows)
            # An item shown twice must be two objects, or changing one would change the other.
            return [item for run in runs for item in self._items([run], rows)]
        return self._items(runs, rows)

    def _check_repeats(self, runs: Sequence[Run], rows: Sequence[Row]) -> None:
        """Raise an error if items, some of them shown more than once, would take more memory than a value may."""
        limit, shown = self._codec.limit, [(run, rows_in(rows, [run])) for run in runs]
        if sum([len(self._content(row)) for _, each in shown for row in each]) * MOST_MEMORY <= limit:
            return
        sums: dict[int, Sequence[int]] = {}
        taken = 0
        for (lo, hi), each in shown:
            for row in each:
                if row.lo not in sums:
                    items = split_array(array_header(row.count) + self._content(row))
                    sums[row.lo] = [*accumulate([memory_of(item, limit) for item in items], initial=0)]
                until = sums[row.lo]
                taken += until[min(hi - row.lo, row.count)] - until[max(lo - row.lo, 0)]
        if taken > limit:
            raise CorruptStore(f"a list that shows items {len(runs)} times is {too_large(limit)}")

    def _items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        used = rows_in(rows, runs)
        opened, starts, items = self._open(used), [0], []
        for row in used:
            starts.append(starts[-1] + row.count)
        for lo, hi in runs:
            while lo < hi:
                at = row_index(used, lo)
                row, start = used[at], starts[at]
                stop = min(hi, row.lo + row.count)
                items += opened[start + lo - row.lo : start + stop - row.lo]
                lo = stop
        return items

    def _open(self, rows: Sequence[Row]) -> list[Any]:
        """Return fresh objects for all items of rows, decoded in one go."""
        count = sum([row.count for row in rows])
        return self._codec.unpack_items(array_header(count) + b"".join(map(self._content, rows)))

    def _content(self, row: Row) -> bytes:
        content = self._contents.get(id(row))
        if content is None:
            content = self._contents[id(row)] = content_of(row, self._opener)
        return content

    def value(self, ref: Ref, rows: Sequence[Row]) -> Any:
        """Return the fresh value that `ref` names. Inline values are not in rows: see the header."""
        items = self.items(ref.runs, rows)
        if ref.kind is Kind.LIST:
            return items
        return replay(items) if ref.kind is Kind.TREE else items[0]

    def values(self, refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]], where: Address) -> dict[str, Any]:
        """Return the values of the channels that have items.

        Raises:
            CorruptStore: As `items`, naming the channel too.
            RefusedType: Likewise.
        """
        stored = {channel: ref for channel, ref in refs.items() if ref.kind is not Kind.INLINE}
        with _no_collection():
            found = self._single_items(stored, rows)
            for channel, ref in stored.items():
                if channel not in found:
                    found[channel] = self._channel(channel, ref, rows.get(channel, ()), where)
        return found

    def _single_items(self, refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
        """Return the values of the channels that have a row and an item each, decoded in one go.

        Of a state of 50 channels, by themselves they took 890 µs instead of 150.
        """
        single = {}
        for channel, ref in refs.items():
            of = rows.get(channel)
            if of and len(ref.runs) == 1 and ref.kind is not Kind.LIST:
                ((lo, hi),) = ref.runs
                row = of[max(0, bisect_right(of, lo, key=_first_of) - 1)]
                if row.count == 1 and row.lo == lo == hi - 1:
                    single[channel] = row
        if len(single) < 2:
            return {}
        try:
            contents = [*map(self._content, single.values())]
            values = self._codec.unpack_items(array_header(len(contents)) + b"".join(contents))
            return dict(zip(single, values, strict=True))
        except (ValueRefused, CorruptStore):
            return {}  # one by one, to say which

    def _channel(self, channel: str, ref: Ref, rows: Sequence[Row], where: Address) -> Any:
        try:
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
    if len(runs) < 2:
        return False
    ordered = sorted(runs)
    return any(before[1] > after[0] for before, after in pairwise(ordered))


def learn(value: Any, ref: Ref, rows: Sequence[Row], codec: Codec) -> Known:
    """Return what there is to know of a value just read, before anybody can change it."""
    if ref.kind is Kind.LIST:
        return learn_list(value, ref, rows, codec)
    if ref.kind is Kind.TREE and (known := learn_tree(value, ref, rows, codec)) is not None:
        return known
    return KnownWhole(ref, rows, digest(codec.fingerprint(value)), 300 + weight_of(rows))


def remember(ref: Ref, rows: Sequence[Row]) -> KnownRows:
    """Return what was read, to be looked at when there is a next version."""
    return KnownRows(ref, rows, 200 + weight_of(rows))


def _look_at(known: KnownRows, codec: Codec) -> Known | None:
    """Return what there is to know of a value that was read before; `None` if it cannot be read."""
    try:
        return learn(Unpacker(codec).value(known.ref, known.rows), known.ref, known.rows, codec)
    except (ValueRefused, CorruptStore):
        return None
