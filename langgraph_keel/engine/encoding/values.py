"""Stored forms of channel values: header, piece table, tree (`trees.py`), one item."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import (
    HUGE_ROW,
    MOST_MEMORY,
    NOTHING,
    PACK,
    Loose,
    are_all,
    array_header,
    content_of,
    loose_end,
    memory_of,
    number_rows,
    numbers_of,
    pack_rows,
    raw_item,
    resolve,
    rows_in,
    rows_of,
    split_array,
    weight_of,
)
from langgraph_keel.engine.encoding.trees import (
    KnownTree,
    first_tree,
    follow,
    is_same,
    is_settled,
    learn_tree,
    next_tree,
    replay,
    value_of,
)
from langgraph_keel.engine.records import NEW, Entry, Kind, Ref, Row, Run, record
from langgraph_keel.engine.serde.copies import Copier, Copies, Uncopied
from langgraph_keel.engine.serde.serializer import Codec, digest, join_plain, pack_elements, short_digest, too_large
from langgraph_keel.engine.serde.types import Shape
from langgraph_keel.engine.serde.unread import is_lost
from langgraph_keel.errors import CorruptStore, UnstorableValue, ValueRefused

TRIES = 3
"""Attempts to compare a value that another thread is changing. Then it is stored as a whole."""
SHORT = 64
"""Maximum length of a text in the header, in characters."""
PATIENCE = 2
"""Decodings of a value before copies are prepared, at up to four times the cost."""
SOON = 3
"""If this many later versions contain a value, copies are prepared immediately."""
COPIED = 1 << 19
"""Maximum memory, in bytes, of a value kept for copies. Copying a larger one takes as long as decoding."""


# -- lists -------------------------------------------------------------------------------------------------------------

# A list is a piece table: elements are appended once to the item log, and a version consists of runs of item numbers.
# An append costs one run for a list of any length. An edit, a trimmed window, a summary or a move costs as many runs as
# it has pieces. Unchanged elements are proved, not assumed: a node may mutate a message in place, which identity and
# `==` on the same objects miss. A fingerprint of every element (1.1 ms for 1000 messages) caught every mutation tried.
# One fingerprint per block of 32, packed in one pass, proves as much in 0.7 ms. Elements after the last whole block,
# which is most of a short thread, are compared by their bytes. From the first differing block on, elements are compared
# one by one.

RUN_COST = 6
"""Approximate size of a run in an entry, in bytes."""
BLOCK = 32
"""Elements packed in one pass, few enough to stay in the processor's cache."""
FEW = 8
"""Maximum number of elements searched one by one. For more, building a table is faster."""


@record
class KnownList:
    """The memo of a list, enough to store the next version as a difference."""

    ref: Ref
    rows: Sequence[Row]  # without new ones
    proofs: Sequence[int]  # digest of each whole block of elements; 0 if it contains bytes (see `join_plain`)
    tail: bytes | None  # the packed elements after the blocks; `None` if they contain bytes
    hashes: array[int]  # short digest of each element's fingerprint
    weight: int  # approximate memory in bytes
    loose: Loose = NOTHING
    debt: int = 0  # bytes of runs written since the list was last written whole
    payloads: Sequence[bytes] = ()  # elements being appended, until they have numbers
    fresh: tuple[Row, ...] = ()  # the rows of `payloads`

    def with_number(self, first: int) -> KnownList:
        """Return the memo once the new elements have numbers, starting with `first`."""
        fresh = number_rows(self.fresh, first)
        loose = self.loose.extend(fresh, self.payloads)
        rows, runs = (*self.rows, *fresh), resolve(self.ref.runs, first)
        ref = Ref(Kind.LIST, runs)
        return KnownList(ref, rows, self.proofs, self.tail, self.hashes, self.weight, loose, self.debt)


def next_list(value: list[Any], known: KnownList | None, codec: Codec) -> tuple[KnownList, tuple[Row, ...]]:
    """Return the version after `known`, and packed rows that should replace small ones."""
    if known is None:
        return _write_list(value, codec.marks(value), codec)
    same = _same_blocks(value, known)
    stop = _same_end(value, same, known)
    try:
        marks = codec.marks(value[same:stop])
    except UnstorableValue:
        codec.marks(value)  # raises the error with the place in the whole list
        raise
    hashes = _hashes_of(marks)
    if stop < len(value) and hashes != known.hashes[same:stop]:
        hashes = known.hashes[:same] + hashes + known.hashes[stop:]
        return _rearrange(value, same, stop, marks, hashes, known, codec)
    if stop < len(value):  # only blocks without a proof differ, as they contain bytes
        marks += codec.marks(value[stop:])
        hashes = _hashes_of(marks)
    rest = known.hashes[same:]
    if hashes[: len(rest)] == rest:
        return _append_elements(value, same, marks, hashes, known, codec)
    return _rearrange(value, same, len(value), marks, known.hashes[:same] + hashes, known, codec)


def _same_blocks(value: list[Any], known: KnownList) -> int:
    """Return the number of leading elements proved unchanged: whole blocks, or all."""
    same = 0
    for proof in known.proofs:
        packed = pack_elements(value[same : same + BLOCK]) if proof else None
        if packed is None or digest(packed) != proof:
            return same
        same += BLOCK
    end = len(known.hashes)
    return end if known.tail is not None and pack_elements(value[same:end]) == known.tail else same


def _same_end(value: list[Any], same: int, known: KnownList) -> int:
    """Return the start of trailing elements proved unchanged, if the length is equal."""
    stop, count = len(known.proofs) * BLOCK, len(value)
    if count != len(known.hashes) or same >= stop or known.tail is None or pack_elements(value[stop:]) != known.tail:
        return count
    for proof in reversed(known.proofs):
        packed = pack_elements(value[stop - BLOCK : stop]) if proof and stop - BLOCK > same else None
        if packed is None or digest(packed) != proof:
            break
        stop -= BLOCK
    return stop


def _prove_rest(
    value: list[Any], marks: Sequence[bytes], same: int = 0, proofs: Sequence[int] = (), tail: bytes | None = b""
) -> tuple[Sequence[int], bytes | None]:
    """Return the proofs and the tail of a list. The first `same` have `proofs` and `tail`, the others `marks`."""
    found, start = [*proofs], same
    while start < len(value):
        end = min((len(found) + 1) * BLOCK, len(value))
        # Computed from the stored bytes, because another thread may have changed the elements by now.
        packed = join_plain(value[start:end], marks[start - same : end - same])
        tail = None if tail is None or packed is None else tail + packed
        if end == (len(found) + 1) * BLOCK:
            found.append(0 if tail is None else digest(tail))
            tail = b""
        start = end
    return found, tail


def _pack_elements(
    value: list[Any], marks: list[bytes], first: int, positions: Sequence[int], codec: Codec
) -> list[bytes]:
    """Return the payloads of elements; `first` is the position of the first mark."""
    payloads = []
    for position in positions:
        try:
            payloads.append(codec.pack_marked(value[position], marks[position - first]))
        except ValueRefused as error:
            raise error.under(f"[{position}]") from error
    return payloads


def _hashes_of(marks: Sequence[bytes]) -> array[int]:
    return array("Q", map(short_digest, marks))


def _list_of(
    runs: tuple[Run, ...],
    rows: Sequence[Row],
    proofs: Sequence[int],
    tail: bytes | None,
    hashes: array[int],
    loose: Loose,
    debt: int,
    payloads: Sequence[bytes],
    codec: Codec,
) -> tuple[KnownList, tuple[Row, ...]]:
    rows, repacks = pack_rows(rows, loose)
    fresh, loose = rows_of(payloads, alone=codec.alone), NOTHING if repacks else loose
    weight = _weight(hashes, tail, runs) + weight_of((*rows, *fresh))
    return KnownList(Ref(Kind.LIST, runs), rows, proofs, tail, hashes, weight, loose, debt, payloads, fresh), repacks


def _weight(hashes: array[int], tail: bytes | None, runs: Sequence[Run]) -> int:
    return 400 + 8 * len(hashes) + len(tail or b"") + 120 * len(runs)


def _write_list(value: list[Any], marks: list[bytes], codec: Codec) -> tuple[KnownList, tuple[Row, ...]]:
    payloads = _pack_elements(value, marks, 0, range(len(value)), codec)
    runs = ((NEW, NEW + len(payloads)),) if payloads else ()
    return _list_of(runs, (), *_prove_rest(value, marks), _hashes_of(marks), NOTHING, 0, payloads, codec)


def _append_elements(
    value: list[Any], same: int, marks: list[bytes], hashes: array[int], known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    """Return the version that appends to `known`. `marks` and `hashes` are of the elements from `same` on."""
    start, runs = len(known.hashes), known.ref.runs
    if start == len(value) and len(runs) == 1:
        return known, ()
    payloads = _pack_elements(value, marks, same, range(start, len(value)), codec)
    if payloads:
        runs = (*runs, (NEW, NEW + len(payloads)))
    debt = known.debt + RUN_COST * len(runs)
    tail = known.tail if same == start else b""
    proofs, tail = _prove_rest(value, marks, same, known.proofs[: same // BLOCK], tail)
    hashes = known.hashes + hashes[start - same :]
    return _list_of(runs, known.rows, proofs, tail, hashes, known.loose, debt, payloads, codec)


def _rearrange(
    value: list[Any], same: int, stop: int, marks: list[bytes], hashes: array[int], known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    """Return the version in which elements from `same` to `stop` may have changed."""
    runs, changed = _pieces(hashes, known)
    debt = known.debt + RUN_COST * len(runs)
    if marks and debt > sum(map(len, marks)) * len(value) // len(marks) + 4096:
        # The runs have cost as much as the list itself: write the whole list once.
        return _write_list(value, codec.marks(value), codec)
    payloads = _pack_elements(value, marks, same, changed, codec)
    proofs, tail = _prove_rest(value[:stop], marks, same, known.proofs[: same // BLOCK])
    if stop < len(value):
        proofs, tail = [*proofs, *known.proofs[stop // BLOCK :]], known.tail
    rows, loose = rows_in(known.rows, runs), known.loose.within(runs)
    return _list_of(runs, rows, proofs, tail, hashes, loose, debt, payloads, codec)


def rebase_list(whole: KnownList, known: KnownList, codec: Codec) -> tuple[KnownList, tuple[Row, ...]]:
    """Turn `whole`, a list encoded without a base, into the version after `known`.

    Returns the same as `next_version`.
    """
    runs, changed = _pieces(whole.hashes, known)
    payloads = [whole.payloads[position] for position in changed]
    rows, loose = rows_in(known.rows, runs), known.loose.within(runs)
    return _list_of(runs, rows, whole.proofs, whole.tail, whole.hashes, loose, 0, payloads, codec)


def learn_list(value: list[Any], ref: Ref, rows: Sequence[Row], codec: Codec) -> KnownList:
    """Return the memo of a list that was just read."""
    marks = codec.marks(value)
    (proofs, tail), hashes = _prove_rest(value, marks), _hashes_of(marks)
    weight = _weight(hashes, tail, ref.runs) + weight_of(rows)
    return KnownList(ref, rows, proofs, tail, hashes, weight, loose_end(rows, ref.runs))


def _pieces(hashes: array[int], known: KnownList) -> tuple[tuple[Run, ...], list[int]]:
    """Find elements among known ones; return runs, and positions of new elements."""
    most = min(len(hashes), len(known.hashes))
    start = _count_equal(hashes, known.hashes, most)
    stop = len(hashes) - _count_equal(reversed(hashes), reversed(known.hashes), most - start)
    moved = len(known.hashes) - len(hashes)
    runs, changed = _find_pieces(hashes, range(start, stop), known) if start < stop else ([], [])
    pieces = [*_cut(known.ref.runs, 0, start), *runs, *_cut(known.ref.runs, stop + moved, len(known.hashes))]
    return resolve(pieces, NEW), changed


def _count_equal(ours: Iterable[int], theirs: Iterable[int], most: int) -> int:
    """Return the length of the common beginning, at most `most`."""
    for count, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if count == most or one != other:
            return count
    return most


def _cut(runs: Sequence[Run], start: int, stop: int) -> Iterator[Run]:
    """Return the runs of the elements from position `start` to `stop`."""
    at = 0
    for lo, hi in runs:
        first, last = max(start - at, 0), min(stop - at, hi - lo)
        if first < last:
            yield lo + first, lo + last
        at += hi - lo


def _find_pieces(hashes: array[int], positions: range, known: KnownList) -> tuple[list[Run], list[int]]:
    """Do the same as `_pieces` for the elements at these positions."""
    numbers: Sequence[int] = ()
    places: Mapping[int, int] | None = None
    if len(positions) > FEW:
        places = {mark: place for place, mark in reversed(list(enumerate(known.hashes)))}
    runs: list[Run] = []
    changed: list[int] = []
    after = positions.start
    for position in positions:
        mark = hashes[position]
        # Try the element after the one just found first, so that equal elements stay in one run.
        if after < len(known.hashes) and known.hashes[after] == mark:
            place: int | None = after
        elif places is None:
            place = known.hashes.index(mark) if mark in known.hashes else None
        else:
            place = places.get(mark)
        if place is None:
            number = NEW + len(changed)
            changed.append(position)
        else:
            numbers = numbers or numbers_of(known.ref.runs)
            number, after = numbers[place], place + 1
        runs.append((number, number + 1))
    return runs, changed


# -- all forms ---------------------------------------------------------------------------------------------------------


@record
class KnownWhole:
    """The memo of a value stored as one item."""

    ref: Ref
    rows: Sequence[Row]  # empty while it is new
    proof: int  # digest of its fingerprint
    weight: int
    fresh: tuple[Row, ...] = ()
    text: str | bytes | None = None  # the value itself, if it is text or bytes

    def with_number(self, first: int) -> KnownWhole:
        """Return the memo of the value once its item has the number `first`."""
        ref = Ref(Kind.WHOLE, resolve(self.ref.runs, first))
        return KnownWhole(ref, number_rows(self.fresh, first), self.proof, self.weight, text=self.text)


@record
class KnownRows:
    """The memo of a value that was read, without fingerprints to find changes."""

    ref: Ref
    rows: Sequence[Row]
    weight: int
    text: str | bytes | None = None
    fresh: tuple[Row, ...] = ()

    def with_number(self, first: int) -> KnownRows:
        """Return itself."""
        return self


Known: TypeAlias = KnownWhole | KnownList | KnownTree | KnownRows


def without_bodies(known: Known) -> Known | None:
    """Return the memo of a value without row bodies; `None` if nothing else is known.

    The next version only needs the bodies that will be packed with appended items. The packed tail of a list is not
    needed either, because its elements have hashes, too.
    """
    if isinstance(known, KnownRows):
        return None if any(len(row.body) >= HUGE_ROW for row in known.rows) else known
    loose = NOTHING if isinstance(known, KnownWhole) else known.loose
    rows = [row if loose.lo <= row.lo < loose.hi else Row(row.lo, row.count, b"") for row in known.rows]
    weight = known.weight - weight_of(known.rows) + weight_of(rows)
    if isinstance(known, KnownList) and len(known.tail or b"") >= HUGE_ROW:
        return replace(known, rows=rows, weight=weight - len(known.tail or b""), tail=None)
    return replace(known, rows=rows, weight=weight)


def is_inline(value: Any) -> bool:
    """Return whether a value is small enough to be stored in headers."""
    kind = type(value)
    if kind is str:
        return len(value) <= SHORT
    return value is None or kind in (bool, float) or (kind is int and -(1 << 63) <= value < 1 << 63)


def next_version(value: Any, known: Known | None, codec: Codec) -> tuple[Known, tuple[Row, ...]]:
    """Return the version after `known`, and packed rows that should replace small ones."""
    if type(value) in (str, bytes) and known is not None and _known_value(known) is value:
        return known, ()
    if isinstance(known, KnownRows):
        known = _look_at(known, codec)
    if isinstance(known, KnownTree) and is_same(known.tree, value):
        return known, ()
    if type(value) is list:
        return next_list(value, known if isinstance(known, KnownList) else None, codec)
    try:
        return _next_other(value, known, codec)
    except UnstorableValue:
        codec.pack_item(value)  # raises the error with the place in the whole value
        raise
    except RecursionError:  # deep value, deep call stack: packing does not use Python's stack
        return _next_whole(value, None, codec), ()


def _next_other(value: Any, known: Known | None, codec: Codec) -> tuple[Known, tuple[Row, ...]]:
    for _ in range(TRIES):
        found = next_tree(value, known, codec) if isinstance(known, KnownTree) else None
        if found is None:
            followed = follow(value, codec)
            if followed is None:
                break
            found = first_tree(value, followed, codec), ()
        tree, repacks = found
        if is_settled(tree.tree, known.tree if isinstance(known, KnownTree) else None, value, codec):
            return tree, repacks
    # It has no parts, or another thread keeps changing it. Packing it in one pass gives a consistent state.
    return _next_whole(value, known, codec), ()


def _next_whole(value: Any, known: Known | None, codec: Codec) -> KnownWhole:
    mark = codec.fingerprint(value)
    proof = digest(mark)
    if isinstance(known, KnownWhole) and known.proof == proof:
        return known
    fresh, text = rows_of((codec.pack_marked(value, mark),)), _text_of(value)
    weight = 300 + weight_of(fresh) + len(text or "")
    return KnownWhole(Ref(Kind.WHOLE, ((NEW, NEW + 1),)), (), proof, weight, fresh, text)


def _text_of(value: Any) -> str | bytes | None:
    return value if type(value) in (str, bytes) else None


def rebase(whole: Known, known: Known | None, codec: Codec) -> tuple[Known, tuple[Row, ...]]:
    """Return a value that was encoded without a base as the version after `known`.

    See `next_version`.
    """
    if isinstance(known, KnownRows):
        known = _look_at(known, codec)
    if isinstance(whole, KnownList) and isinstance(known, KnownList):
        return rebase_list(whole, known, codec)
    if isinstance(whole, KnownTree) and isinstance(known, KnownTree):
        return (known if whole.tree.mark == known.tree.mark else whole), ()
    if isinstance(whole, KnownWhole) and isinstance(known, KnownWhole):
        return (known if whole.proof == known.proof else whole), ()
    return whole, ()


# -- reading -----------------------------------------------------------------------------------------------------


Opener: TypeAlias = Callable[[bytes], bytes]


@record
class Version:
    """The values of a checkpoint, with copiers for channels that are read repeatedly.

    A version is immutable, so several threads may copy it.
    """

    codec: Codec
    refs: Mapping[str, Ref] = field(default_factory=dict)
    # All channels in order: immutable values, and placeholders for the others.
    fixed: dict[str, Any] = field(default_factory=dict)
    copiers: Mapping[str, Copier] = field(default_factory=dict)
    left: Mapping[str, Ref] = field(default_factory=dict)  # the channels without copies
    # By decoded channel: its copies, or the number of decodings; `None` for a text, which is immutable.
    seen: Mapping[str, Copies | int | None] = field(default_factory=dict)
    classes: Mapping[type, Shape] = field(default_factory=dict)  # of the objects in it
    nbytes: int = 0

    def is_as_decoded(self, codec: Codec) -> bool:
        """Return whether codec and classes are unchanged, so that decoding gives the same."""
        if codec is not self.codec:
            return False
        return not self.classes or all(codec.revives(*each) for each in self.classes.items())

    def make(self) -> dict[str, Any]:
        """Return copies of the values, and placeholders for channels without copies."""
        values = self.fixed.copy()
        for channel, (copy, part) in self.copiers.items():
            values[channel] = copy(part)
        return values

    def after(self, refs: Mapping[str, Ref], inline: dict[str, Any]) -> Version:
        """Return the version with other refs, keeping the values that both have."""
        before = self.refs
        if not any(refs.get(name) == before[name] for name in self.seen):
            left = {name: ref for name, ref in refs.items() if ref.kind is not Kind.INLINE}
            apart: dict[str, Any] = dict.fromkeys(refs)
            return Version(self.codec, refs, apart | inline, left=left)
        changed = [name for name, ref in refs.items() if (was := before.get(name)) is not ref and was != ref]
        seen, copiers, nbytes = {**self.seen}, {**self.copiers}, self.nbytes
        is_alike = [*refs] == [*before]
        for name in changed if is_alike else [*changed, *(before.keys() - refs.keys())]:
            copiers.pop(name, None)
            nbytes -= _nbytes_of(seen.pop(name, 0))
        left = {name: refs[name] for name in (*self.left, *changed) if name in refs}
        left = {name: ref for name, ref in left.items() if ref.kind is not Kind.INLINE}
        fixed = self.fixed.copy() if is_alike else {name: self.fixed.get(name) for name in refs}
        fixed.update(dict.fromkeys(changed))
        fixed.update(inline)
        return Version(self.codec, refs, fixed, copiers, left, seen, self.classes, nbytes)

    def keep(self, values: dict[str, Any], decoded: Mapping[str, Any], later: Mapping[str, Ref]) -> Version:
        """Add decoded values to `values`; return a version with copiers for frequent ones.

        A mutable value gets a copier when it is decoded for the third time, or if a version that is read `later` also
        contains it. So a single read of a thread does not pay for copiers. Values of third-party serializers get none,
        as these may return a different value each time.
        """
        values.update(decoded)
        if not decoded or not self.codec.is_own or self.codec.shows:
            return self
        found = {
            name: _prepare(value, PATIENCE if later.get(name) == self.refs[name] else self.seen.get(name, 0))
            for name, value in decoded.items()
        }
        seen, nbytes, classes = {**self.seen, **found}, self.nbytes, self.classes
        if {int}.issuperset(map(type, found.values())):
            return Version(self.codec, self.refs, self.fixed, self.copiers, self.left, seen, classes, nbytes)
        fixed, copiers = self.fixed.copy(), {**self.copiers}
        for name, copies in found.items():
            if isinstance(copies, Copies) and copies.copier is not None:
                copiers[name], values[name] = copies.copier, copies.make()
                classes = {**classes, **copies.classes} if copies.classes else classes
            elif not isinstance(copies, int):
                fixed[name] = decoded[name]
            nbytes += _nbytes_of(copies)
        left = {name: ref for name, ref in self.left.items() if isinstance(seen.get(name), int)}
        return Version(self.codec, self.refs, fixed, copiers, left, seen, classes, nbytes)


def _prepare(value: Any, times: Copies | int | None) -> Copies | int | None:
    """Return the entry of `Version.seen` for a value that was decoded `times` before.

    The count of a value that cannot be copied exceeds `PATIENCE`, so that this is not tried again.
    """
    if type(value) in (str, bytes):
        return None
    if isinstance(times, int) and times != PATIENCE:
        return times + 1
    try:
        return Copies(value, COPIED)
    except Uncopied:
        return PATIENCE + 1


def _nbytes_of(copies: Copies | int | None) -> int:
    return copies.nbytes if isinstance(copies, Copies) else 0


class Unpacker:
    """Decodes rows.

    Versions decoded by one unpacker share decompressed rows and copies of equal values.

    Args:
        codec: Decodes the items.
        remember: Returns the content of a frame, given the frame and the codec's own opener.
        shown: The entries of the versions, if known.
    """

    def __init__(
        self,
        codec: Codec,
        remember: Callable[[bytes, Opener], bytes] | None = None,
        shown: Sequence[Entry] = (),
    ) -> None:
        self._codec = codec
        self._opener: Opener = (lambda body: remember(body, codec.open)) if remember else codec.open
        self._contents: dict[int, bytes] = {}
        self._versions: dict[tuple[str, str], Version] = {}
        self._later: dict[tuple[str, str, str | None], Mapping[str, Ref]] = {}
        places: dict[tuple[str, str], list[Entry]] = {}
        for entry in shown:
            places.setdefault((entry.address.thread_id, entry.address.checkpoint_ns), []).append(entry)
        for place, entries in places.items():
            for entry, later in zip(entries, entries[SOON:], strict=False):
                self._later[*place, entry.address.checkpoint_id] = later.refs

    def items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        """Return fresh objects for the items in `runs`, in order."""
        if _overlap(runs):
            self._check_repeats(runs, rows)
            # An item shown twice must give two objects, or changing one would change the other.
            return [item for run in runs for item in self._items([run], rows)]
        return self._items(runs, rows)

    def _check_repeats(self, runs: Sequence[Run], rows: Sequence[Row]) -> None:
        """Raise an error if repeated items would exceed the memory limit of a value."""
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
            raise CorruptStore(f"a list that repeats items, in {len(runs)} runs, is {too_large(limit)}")

    def _items(self, runs: Sequence[Run], rows: Sequence[Row]) -> list[Any]:
        used = rows_in(rows, runs)
        return _pick(runs, used, self._decode(used, [self._content(row) for row in used]))

    def _decode(self, rows: Sequence[Row], contents: Sequence[bytes]) -> list[Any]:
        """Return the items of rows with these contents, decoding several rows at a time."""
        # Each message is decoded from temporary lists. Those of 1000 messages would fill the processor's cache (8.7 ms
        # instead of 5.5), and cause more full runs of the cyclic garbage collector.
        items: list[Any] = []
        start = count = 0
        for stop, row in enumerate(rows, 1):
            count += row.count
            if count >= PACK or stop == len(rows):
                items += self._codec.unpack_items(array_header(count) + b"".join(contents[start:stop]))
                start, count = stop, 0
        return items

    def _content(self, row: Row) -> bytes:
        content = self._contents.get(id(row))
        if content is None:
            content = self._contents[id(row)] = content_of(row, self._opener)
        return content

    def value(self, ref: Ref, rows: Sequence[Row]) -> Any:
        """Return the value of a ref as fresh objects.

        Inline values are in the header, not in rows.
        """
        return _value_of(ref.kind, self.items(ref.runs, rows))

    def version(
        self, refs: Mapping[str, Ref], inline: dict[str, Any], rows: Mapping[str, Sequence[Row]], where: Address
    ) -> dict[str, Any]:
        """Return all values of a checkpoint, in order, copying values of several versions."""
        place = where.thread_id, where.checkpoint_ns
        later, version = self._later.get((*place, where.checkpoint_id), {}), self._versions.get(place)
        if version is None and not any(later.get(name) == ref for name, ref in refs.items() if ref.runs):
            alone: dict[str, Any] = dict.fromkeys(refs)
            return alone | inline | self.values(refs, rows, where)
        version = (version or Version(self._codec)).after(refs, inline)
        values = version.make()
        self._versions[place] = version.keep(values, self.values(version.left, rows, where), later)
        return values

    def values(self, refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]], where: Address) -> dict[str, Any]:
        """Return the values of channels that have items."""
        found = self._decode_together(refs, rows)
        for channel, ref in refs.items():
            if channel not in found and ref.kind is not Kind.INLINE:
                found[channel] = self._channel(channel, ref, rows.get(channel, ()), where)
        return found

    def _decode_together(self, refs: Mapping[str, Ref], rows: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
        """Decode the values of channels together; return none if one is damaged.

        For a state of 50 channels, this takes 150 µs instead of 890. Most channels have one item in one row.
        """
        single: dict[str, Row] = {}
        several: dict[str, Sequence[Row]] = {}
        for channel, ref in refs.items():
            of, runs = rows.get(channel, ()), ref.runs
            if len(of) > len(runs) == 1:
                of = rows_in(of, runs)
            if len(of) == len(runs) == 1 and of[0].count == 1 and ref.kind is not Kind.LIST:
                if runs[0] == (of[0].lo, of[0].lo + 1):
                    single[channel] = of[0]
            elif ref.kind is not Kind.INLINE and not _overlap(runs):
                several[channel] = rows_in(of, runs)
        counts = {channel: sum([row.count for row in of]) for channel, of in several.items()}
        try:
            used, start = [*chain(single.values(), *several.values())], len(single)
            opened = self._decode(used, [raw_item(row) or self._content(row) for row in used])
            found: dict[str, Any] = dict(zip(single, opened, strict=False))
            for channel, of in several.items():
                ref, stop = refs[channel], start + counts[channel]
                found[channel] = _value_of(ref.kind, _pick(ref.runs, of, opened[start:stop]))
                start = stop
            return found
        except (ValueRefused, CorruptStore, LookupError):
            return {}

    def _channel(self, channel: str, ref: Ref, rows: Sequence[Row], where: Address) -> Any:
        try:
            return self.value(ref, rows)
        except ValueRefused as error:
            raise error.at(f"{where}, channel {channel!r}") from error
        except CorruptStore as error:
            raise type(error)(f"{where}, channel {channel!r}: {error}") from error


def _pick(runs: Sequence[Run], rows: Sequence[Row], opened: list[Any]) -> list[Any]:
    """Return the items in `runs`, in order, from the decoded items of `rows`."""
    if are_all(rows, runs):
        return opened
    numbered = dict(zip(chain.from_iterable([range(row.lo, row.lo + row.count) for row in rows]), opened, strict=True))
    try:
        return [numbered[number] for number in numbers_of(runs)]
    except KeyError as error:
        raise CorruptStore(f"item {error} is missing from the item log") from None


def _value_of(kind: Kind, items: list[Any]) -> Any:
    """Return the value of items."""
    if kind is Kind.LIST:
        return items
    if not items:
        raise CorruptStore("a value has no items")
    if kind is not Kind.TREE:
        return items[0]
    try:
        return replay(items)
    except CorruptStore:
        if (lost := next(filter(is_lost, items), None)) is None:
            raise
        return lost  # in read-only views: the value cannot be rebuilt from the other items


def _overlap(runs: Sequence[Run]) -> bool:
    if len(runs) < 2:
        return False
    ordered = sorted(runs)
    return any(before[1] > after[0] for before, after in pairwise(ordered))


def learn(value: Any, ref: Ref, rows: Sequence[Row], codec: Codec) -> Known:
    """Return the memo of a value that was just read and not yet passed to the caller."""
    if ref.kind is Kind.LIST:
        return learn_list(value, ref, rows, codec)
    if ref.kind is Kind.TREE and (known := learn_tree(value, ref, rows, codec)) is not None:
        return known
    text = _text_of(value)
    weight = 300 + weight_of(rows) + len(text or "")
    return KnownWhole(ref, rows, digest(codec.fingerprint(value)), weight, text=text)


def remember(value: Any, ref: Ref, rows: Sequence[Row]) -> KnownRows:
    """Return the memo of a value that was just read, without fingerprints."""
    text = _text_of(value)
    return KnownRows(ref, rows, 200 + weight_of(rows) + len(text or ""), text)


def known_values(
    channels: Mapping[str, Known], version: Version, unpacker: Unpacker, where: Address
) -> tuple[dict[str, Any], Version]:
    """Return fresh values from memos, and the version with additional copiers.

    Texts, and containers of only texts, are remembered themselves. Other values are decoded from rows, or copied.
    """
    values, texts, left = version.make(), dict[str, Any](), version.left
    if version.codec.is_own:
        found = {name: _known_value(channels[name]) for name in left}
        texts = {name: value for name, value in found.items() if value is not None}
        left = {name: ref for name, ref in left.items() if name not in texts}
    decoded = unpacker.values(left, {name: channels[name].rows for name in left}, where) if left else {}
    return values, version.keep(values, texts | decoded, {})


def _known_value(known: Known) -> Any:
    if isinstance(known, KnownTree):
        return value_of(known.tree)
    return None if isinstance(known, KnownList) else known.text


def _look_at(known: KnownRows, codec: Codec) -> Known | None:
    """Return the full memo of a value that was read; `None` if it cannot be decoded."""
    try:
        return learn(Unpacker(codec).value(known.ref, known.rows), known.ref, known.rows, codec)
    except (ValueRefused, CorruptStore):
        return None
