"""Maps items of the source's logs to the target's, using entries that both have."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from langgraph_keel.engine.encoding.bodies import array_header, contents_of, frame, rows_in
from langgraph_keel.engine.records import NEW, Row, Run
from langgraph_keel.errors import CorruptStore


def pairs_of(theirs: Sequence[Run], ours: Sequence[Run]) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of items at the same places: both first numbers, and the count."""
    there, here = list(reversed(theirs)), list(reversed(ours))
    while there and here:
        (lo, hi), (to, upto) = there.pop(), here.pop()
        count = min(hi - lo, upto - to)
        yield lo, to, count
        if lo + count < hi:
            there.append((lo + count, hi))
        if to + count < upto:
            here.append((to + count, upto))
    if there or here:
        raise CorruptStore("two values that should be equal differ in their number of items")


class Numbers:
    """The numbers in the target of the items of one source log."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int, int]] = []  # (lo, hi, number of the first item in the target), in order

    def add(self, lo: int, hi: int, to: int) -> None:
        """Note a stretch; known items keep their numbers."""
        for first, last in list(self.missing(((lo, hi),))):
            at = bisect_right(self._known, (first,))
            before = self._known[at - 1] if at else None
            if before is not None and before[1] == first and before[2] + first - before[0] == to + first - lo:
                self._known[at - 1] = before[0], last, before[2]
            else:
                insort(self._known, (first, last, to + first - lo))

    def missing(self, runs: Sequence[Run]) -> Iterator[Run]:
        """Yield the stretches of runs without numbers, in the order of the runs."""
        for lo, hi in runs:
            at = max(0, bisect_right(self._known, (lo, NEW)) - 1)
            for first, last, _ in self._known[at : bisect_right(self._known, (hi,))]:
                if lo < first and lo < hi:
                    yield lo, min(first, hi)
                lo = max(lo, last)
            if lo < hi:
                yield lo, hi

    def runs_of(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Return runs of the source in the target's numbers, with neighbours joined."""
        joined: list[Run] = []
        for lo, hi in runs:
            while lo < hi:
                first, last, to = self._known[bisect_right(self._known, (lo, NEW)) - 1]
                stop, begin = min(hi, last), to + lo - first
                if joined and joined[-1][1] == begin:
                    begin = joined.pop()[0]
                joined.append((begin, to + stop - first))
                lo = stop
        return tuple(joined)

    def take(self, runs: Sequence[Run], rows: Sequence[Row]) -> tuple[Row, ...]:
        """Return rows with the missing items, numbered from `NEW`, and note their numbers."""
        taken: list[Row] = []
        at = NEW
        for gap in list(self.missing(runs)):
            for row in rows_in(rows, [gap]):  # a row without known items is taken whole, otherwise its missing items
                whole = row.lo, row.lo + row.count
                is_new = list(self.missing([whole])) == [whole]
                within = max(gap[0], whole[0]), min(gap[1], whole[1])
                for lo, hi in [whole] if is_new else list(self.missing([within])):
                    taken.append(Row(at, hi - lo, row.body) if is_new else Row(at, hi - lo, _cut(row, lo, hi)))
                    self.add(lo, hi, at)
                    at += hi - lo
        for lo, _ in self.missing(runs):
            raise CorruptStore(f"item {lo} is missing from the item log")
        return tuple(taken)

    def settle(self, first: int) -> None:
        """Replace the numbers from `NEW` with the stored ones, which start at `first`."""
        known, self._known = self._known, []
        for lo, hi, to in known:
            self.add(lo, hi, to - NEW + first if to >= NEW else to)


class Compared:
    """The items of one log that were compared between source and target."""

    def __init__(self) -> None:
        self._by_distance: dict[int, Numbers] = {}

    def take(self, lo: int, to: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the parts of a stretch not compared yet, and mark them as compared."""
        done = self._by_distance.setdefault(to - lo, Numbers())
        for first, last in list(done.missing([(lo, lo + count)])):
            done.add(first, last, first)
            yield first, first + to - lo, last - first


def _cut(row: Row, lo: int, hi: int) -> bytes:
    return frame(array_header(hi - lo) + b"".join(contents_of([(lo, hi)], [row])))
