"""Lists as piece tables: elements are appended once to the item log, a version is the runs of numbers it shows.

An append costs one run whatever the list's length; an edit, a trimmed window, a summary or a move costs as many runs
as it has pieces. What is unchanged is proved, not assumed: a node may mutate a message in place, which identity and
`==` on the same objects miss. A fingerprint of every element (1 ms for 1000 messages) caught every mutation tried.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph_keel.engine.encoding.rows import NOTHING, Loose, rows_of
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, Run, resolve
from langgraph_keel.engine.serde.codec import Codec, digest, short_digest
from langgraph_keel.errors import ValueRefused

RUN_COST = 6
"""Bytes that a run takes in an entry, about."""


@dataclass(frozen=True, slots=True)
class KnownList:
    """What a process remembers of a list it stored or read: enough to store the next version as a difference.

    Attributes:
        runs: The item numbers of its elements.
        nbytes: Length of the elements' fingerprints, end to end.
        proof: Digest of those.
        hashes: Short digest of each element's fingerprint.
        loose: Its items that are not packed yet.
        debt: Bytes of runs written since the list was last written whole.
        fresh: Payloads of elements being appended, until they have numbers.
    """

    runs: tuple[Run, ...]
    nbytes: int
    proof: int
    hashes: Sequence[int]
    loose: Loose = NOTHING
    debt: int = 0
    fresh: tuple[bytes, ...] = ()

    @property
    def ref(self) -> Ref:
        """Where this version lives."""
        return Ref(Kind.LIST, self.runs)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 300 + 8 * len(self.hashes) + self.loose.nbytes + 120 * len(self.runs)

    def appends(self) -> tuple[Row, ...]:
        """Rows to append to the log for this version."""
        return rows_of(self.fresh)

    def with_number(self, first: int) -> KnownList:
        """Return itself after its new elements got their numbers, the first of them `first`."""
        loose = self.loose.extend(first, self.fresh)
        return replace(self, runs=resolve(self.runs, first), loose=loose, fresh=())


def next_list(value: list[Any], known: KnownList | None, codec: Codec) -> tuple[KnownList, tuple[Row, ...]]:
    """Return `value` as the version after `known`, and the packed rows that should replace small ones."""
    marks = codec.marks(value)
    stream = b"".join(marks)
    if known is None:
        return _written_whole(value, marks, stream, codec), ()
    if _extends(stream, known):
        return _append(value, marks, stream, known, codec)
    return _rearrange(value, marks, stream, known, codec)


def _extends(stream: bytes, known: KnownList) -> bool:
    return len(stream) >= known.nbytes and digest(memoryview(stream)[: known.nbytes]) == known.proof


def _pack(value: list[Any], positions: Sequence[int], codec: Codec) -> tuple[bytes, ...]:
    payloads = []
    for position in positions:
        try:
            payloads.append(codec.pack_item(value[position]))
        except ValueRefused as error:
            raise error.under(f"[{position}]") from error
    return tuple(payloads)


def hashes_of(marks: Sequence[bytes]) -> array[int]:
    """Return the short digest of each element's fingerprint."""
    return array("Q", map(short_digest, marks))


def _written_whole(value: list[Any], marks: list[bytes], stream: bytes, codec: Codec) -> KnownList:
    fresh = _pack(value, range(len(value)), codec)
    runs = ((NEW, NEW + len(fresh)),) if fresh else ()
    return KnownList(runs, len(stream), digest(stream), hashes_of(marks), fresh=fresh)


def _append(
    value: list[Any], marks: list[bytes], stream: bytes, known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    start = len(known.hashes)
    fresh = _pack(value, range(start, len(value)), codec)
    if not fresh:
        return replace(known, debt=known.debt + RUN_COST * len(known.runs)), ()
    repacks = known.loose.pack()
    return KnownList(
        (*known.runs, (NEW, NEW + len(fresh))),
        len(stream),
        digest(stream),
        array("Q", known.hashes) + hashes_of(marks[start:]),
        NOTHING if repacks else known.loose,
        known.debt + RUN_COST * (len(known.runs) + 1),
        fresh,
    ), repacks


def _rearrange(
    value: list[Any], marks: list[bytes], stream: bytes, known: KnownList, codec: Codec
) -> tuple[KnownList, tuple[Row, ...]]:
    hashes = hashes_of(marks)
    runs, changed = _pieces(hashes, known)
    debt = known.debt + RUN_COST * len(runs)
    if debt > len(stream) + 4096:
        # So many pieces that naming them has cost as much as the list itself: write it whole, once.
        return _written_whole(value, marks, stream, codec), ()
    loose = known.loose.within(runs)
    repacks = loose.pack()
    return KnownList(
        runs,
        len(stream),
        digest(stream),
        hashes,
        NOTHING if repacks else loose,
        debt,
        _pack(value, changed, codec),
    ), repacks


def rebased_list(whole: KnownList, known: KnownList) -> KnownList:
    """Return a list that was encoded without a base as the version after `known`."""
    runs, changed = _pieces(whole.hashes, known)
    fresh = tuple(whole.fresh[position] for position in changed)
    return replace(whole, runs=runs, loose=known.loose.within(runs), fresh=fresh)


def _numbers(runs: Sequence[Run]) -> Iterator[int]:
    for lo, hi in runs:
        yield from range(lo, hi)


def _pieces(hashes: Sequence[int], known: KnownList) -> tuple[tuple[Run, ...], list[int]]:
    """Find each element among the known ones; return the runs and the positions of those not found."""
    numbers = list(_numbers(known.runs))
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
