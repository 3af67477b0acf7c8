"""Lists as piece tables: elements are appended once to the item log, a version is the runs of numbers it shows.

An append costs one run whatever the list's length; an edit, a trimmed window, a summary or a move costs as many runs
as it has pieces. What is unchanged is proved, not assumed: a node may mutate a message in place, which identity and
`==` on the same objects miss. A fingerprint of every element (1 ms for 1000 messages) caught every mutation tried.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.encoding.rows import (
    NOTHING,
    Loose,
    loose_end,
    number_rows,
    pack_rows,
    rows_in,
    rows_of,
    weight_of,
)
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, Run, numbers_of, record, resolve
from langgraph_keel.engine.serde.codec import Codec, digest, short_digest
from langgraph_keel.errors import ValueRefused

RUN_COST = 6
"""Bytes that a run takes in an entry, about."""


@record
class KnownList:
    """What a process remembers of a list it stored or read: enough to store the next version as a difference.

    Attributes:
        ref: The item numbers of its elements.
        rows: The rows that hold them, but for new ones.
        nbytes: Length of the elements' fingerprints, end to end.
        proof: Digest of those.
        hashes: Short digest of each element's fingerprint.
        weight: Bytes this takes in memory, about.
        loose: Its items that are not packed yet.
        debt: Bytes of runs written since the list was last written whole.
        payloads: Elements being appended, until they have numbers.
        fresh: The rows that hold those.
    """

    ref: Ref
    rows: Sequence[Row]
    nbytes: int
    proof: int
    hashes: array[int]
    weight: int
    loose: Loose = NOTHING
    debt: int = 0
    payloads: Sequence[bytes] = ()
    fresh: tuple[Row, ...] = ()

    def with_number(self, first: int) -> KnownList:
        """Return itself after its new elements got their numbers, the first of them `first`."""
        fresh = number_rows(self.fresh, first)
        loose = self.loose.extend(fresh, self.payloads)
        rows, runs = (*self.rows, *fresh), resolve(self.ref.runs, first)
        return KnownList(
            Ref(Kind.LIST, runs), rows, self.nbytes, self.proof, self.hashes, self.weight, loose, self.debt
        )


def next_list(value: list[Any], known: KnownList | None, codec: Codec) -> tuple[KnownList, tuple[Row, ...]]:
    """Return `value` as the version after `known`, and the packed rows that should replace small ones."""
    marks = codec.marks(value)
    stream = b"".join(marks)
    if known is None:
        return _write_whole(value, marks, stream, codec), ()
    if len(stream) >= known.nbytes and digest(memoryview(stream)[: known.nbytes]) == known.proof:
        return _append(value, marks, stream, known, codec)
    return _rearrange(value, marks, stream, known, codec)


def _pack(value: list[Any], marks: list[bytes], positions: Sequence[int], codec: Codec) -> list[bytes]:
    payloads = []
    for position in positions:
        try:
            payloads.append(codec.pack_marked(value[position], marks[position]))
        except ValueRefused as error:
            raise error.under(f"[{position}]") from error
    return payloads


def _hashes_of(marks: Sequence[bytes]) -> array[int]:
    """Return the short digest of each element's fingerprint."""
    return array("Q", map(short_digest, marks))


def _version(
    runs: tuple[Run, ...],
    rows: Sequence[Row],
    stream: bytes,
    hashes: array[int],
    loose: Loose,
    debt: int,
    payloads: Sequence[bytes],
) -> KnownList:
    fresh = rows_of(payloads)
    weight = 400 + 8 * len(hashes) + 120 * len(runs) + weight_of(rows) + weight_of(fresh)
    ref, proof = Ref(Kind.LIST, runs), digest(stream)
    return KnownList(ref, rows, len(stream), proof, hashes, weight, loose, debt, payloads, fresh)


def _write_whole(value: list[Any], marks: list[bytes], stream: bytes, codec: Codec) -> KnownList:
    payloads = _pack(value, marks, range(len(value)), codec)
    runs = ((NEW, NEW + len(payloads)),) if payloads else ()
    return _version(runs, (), stream, _hashes_of(marks), NOTHING, 0, payloads)


def _append(
    value: list[Any], marks: list[bytes], stream: bytes, known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    start, runs = len(known.hashes), known.ref.runs
    if start == len(value) and len(runs) == 1:
        return known, ()
    payloads = _pack(value, marks, range(start, len(value)), codec)
    rows, repacks = pack_rows(known.rows, known.loose) if payloads else (known.rows, ())
    loose = NOTHING if repacks else known.loose
    if payloads:
        runs = (*runs, (NEW, NEW + len(payloads)))
    debt = known.debt + RUN_COST * len(runs)
    hashes = known.hashes + _hashes_of(marks[start:])
    return _version(runs, rows, stream, hashes, loose, debt, payloads), repacks


def _rearrange(
    value: list[Any], marks: list[bytes], stream: bytes, known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    hashes = _hashes_of(marks)
    runs, changed = _pieces(hashes, known)
    debt = known.debt + RUN_COST * len(runs)
    if debt > len(stream) + 4096:
        # So many pieces that naming them has cost as much as the list itself: write it whole, once.
        return _write_whole(value, marks, stream, codec), ()
    loose = known.loose.within(runs)
    rows, repacks = pack_rows(rows_in(known.rows, runs), loose)
    payloads = _pack(value, marks, changed, codec)
    return _version(runs, rows, stream, hashes, NOTHING if repacks else loose, debt, payloads), repacks


def rebase_list(whole: KnownList, known: KnownList) -> KnownList:
    """Return a list that was encoded without a base as the version after `known`."""
    runs, changed = _pieces(whole.hashes, known)
    payloads = [whole.payloads[position] for position in changed]
    rows, loose, fresh = rows_in(known.rows, runs), known.loose.within(runs), rows_of(payloads)
    return KnownList(
        Ref(Kind.LIST, runs), rows, whole.nbytes, whole.proof, whole.hashes, whole.weight, loose, 0, payloads, fresh
    )


def learn_list(value: list[Any], ref: Ref, rows: Sequence[Row], codec: Codec) -> KnownList:
    """Return what there is to know of a list that was just read."""
    marks = codec.marks(value)
    stream = b"".join(marks)
    weight = 400 + 8 * len(marks) + 120 * len(ref.runs) + weight_of(rows)
    return KnownList(ref, rows, len(stream), digest(stream), _hashes_of(marks), weight, loose_end(rows, ref.runs))


def _pieces(hashes: Sequence[int], known: KnownList) -> tuple[tuple[Run, ...], list[int]]:
    """Find each element among the known ones; return the runs and the positions of those not found."""
    numbers = numbers_of(known.ref.runs)
    places = {mark: place for place, mark in reversed(list(enumerate(known.hashes)))}
    runs: list[Run] = []
    changed: list[int] = []
    follow = 0
    for position, mark in enumerate(hashes):
        # The element after the one just found comes first: equal elements then stay in one run.
        place = follow if follow < len(numbers) and known.hashes[follow] == mark else places.get(mark)
        if place is None:
            number = NEW + len(changed)
            changed.append(position)
        else:
            number, follow = numbers[place], place + 1
        runs.append((number, number + 1))
    return resolve(runs, NEW), changed
