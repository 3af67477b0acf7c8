"""Where archived messages stood: the order of a whole conversation, from what is left of it and what was taken out.

Removals are undone one after the other, the newest first: each part's messages stand between the neighbours that they
had; where those are not known, behind what the summary before them stood for, before what the next summary took, or
behind the summary that has taken their place. What was put back and taken out again stands in several parts: in the end
all of them are heard.

A message is named by its id; a summary of Keel's, which may have taken over the id of a message it stands for, by the
part that it stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise

from langchain_core.messages import BaseMessage, SystemMessage

from langgraph_keel.summaries.archive.parts import Archived, hosts_in, part_of


def keys_of(entry: Archived) -> list[str]:
    """Return what names each message of a part: its id; of one without, its place."""
    keys = [name or f"{entry.id} {place}" for place, name in enumerate(entry.message_ids)]
    for place, part in entry.inner:
        keys[place : place + 1] = [summary_key(part)] if 0 <= place < entry.count else []
    return keys


def key_in(message: BaseMessage, place: int) -> str:
    """Return what names a message of a state."""
    part = part_of(message)
    return summary_key(part) if part else message.id or f"now {place}"


def summary_key(part: str) -> str:
    """Return what names the summary that stands for a part."""
    return f"summary {part}"


def own_id(part: str) -> str:
    """Return the id of a summary that has none of a message it stands for."""
    return f"summary-{part}"


@dataclass(slots=True)
class Conversation:
    """A list of messages, as keys, into which archived parts are put back.

    Attributes:
        order: The keys: those of the list as it is, and of the messages that are put in.
        start: Where a conversation begins: after the instructions at the head of the list.
        firsts: Of each part that was put in, the key of its first message.
    """

    order: list[str]
    start: int = 0
    firsts: dict[str, str] = field(default_factory=dict)
    _placed: set[str] = field(default_factory=set)
    _summaries: dict[str, list[str]] = field(default_factory=dict)
    _parts: dict[str, Archived] = field(default_factory=dict)

    def put_in(self, entries: Sequence[Archived]) -> None:
        """Put all parts in; `entries` are in the order they were made."""
        current = list(self.order)
        self._placed.update(current)
        self._parts.update((entry.id, entry) for entry in entries)
        for entry in entries:
            for name in {entry.summary_id or "", own_id(entry.id)} - {""}:
                self._summaries.setdefault(name, []).append(entry.id)
        parts = {entry.id: entry for entry in entries}
        there = {
            entry.id: keys for entry in entries if (keys := [key for key in keys_of(entry) if key in self._placed])
        }
        following = {entry.previous: entry.id for entry in entries if entry.previous}
        for entry in reversed(entries):
            earlier = [] if entry.places else there.get(_nearest(entry, parts, there), [])
            last = max(earlier, key=self.order.index, default="")
            self._undo(entry, self.firsts.get(following.get(entry.id, ""), ""), last)
        self.order = _sort(self.order, [current, *(line for entry in reversed(entries) for line in _lines(entry))])

    def _undo(self, entry: Archived, following: str, last: str) -> None:
        keys, end = keys_of(entry), following
        for lo, hi, before, after in reversed(list(_groups(entry))):
            there = next((key for key in keys[lo:hi] if key in self._placed), None)
            at = self.order.index(there) if there else self._place(before or last, after, end, entry)
            for key in keys[lo:hi]:
                at = self._put(key, at)
            end = keys[lo]
        self.firsts[entry.id] = end

    def _put(self, key: str, at: int) -> int:
        """Put a key at a position, unless it is there already; return the position after it."""
        if key in self._placed:
            return self.order.index(key) + 1
        self._placed.add(key)
        self.order.insert(at, key)
        return at + 1

    def _place(self, before: str | None, after: str | None, end: str, entry: Archived) -> int:
        for key, offset in self._hints(before, after, end, entry):
            if key and key in self._placed:
                return self.order.index(key) + offset
        return min(self.start, len(self.order))

    def _hints(
        self, before: str | None, after: str | None, end: str, entry: Archived
    ) -> Iterator[tuple[str | None, int]]:
        """Yield what a place may be known by, the surest first: the key of a neighbour, and 1 if it comes before.

        An id may have been a message's first and a summary's later.
        """
        yield after, 0
        yield from ((key, 0) for key in self._find_summaries(after))
        yield from ((key, 1) for key in self._find_summaries(before))
        yield before, 1
        if after in self._summaries:
            yield self._first_of(after, entry), 0
        yield end, 0
        yield from ((key, 1) for key in self._find_summaries(entry.summary_id))
        yield entry.summary_id, 1

    def _find_summaries(self, message_id: str | None) -> list[str]:
        """Return the summaries that have, or had, an id; the last one first."""
        return [summary_key(part) for part in reversed(self._summaries.get(message_id or "", ()))]

    def _first_of(self, summary_id: str | None, entry: Archived) -> str | None:
        """Return what is there first of what a summary stood for, when a part was made that it stood behind."""
        made, now = self._summaries.get(summary_id or "", []), list(self._parts).index(entry.id)
        known = dict(list(self._parts.items())[:now])
        at, seen, keys = next((part for part in reversed(made) if part in known), ""), set[str](), set[str]()
        while at in known and at not in seen:
            seen.add(at)
            keys.update(keys_of(known[at]))
            at = known[at].previous or ""
        return next((key for key in self.order if key in keys), None)


def _lines(entry: Archived) -> Iterator[list[str]]:
    """Yield what stood one after the other, with neighbours. A summary has the place of the message whose id it has."""
    keys = keys_of(entry)
    for lo, hi, before, after in _groups(entry):
        yield [key for key in (before, *keys[lo:hi], after) if key]


def _sort(order: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    """Return keys in an order that agrees with all lines, and else with the one they are in."""
    places = {key: place for place, key in enumerate(order)}
    behind: list[set[int]] = [set() for _ in order]
    for line in lines:
        known = [places[key] for key in line if key in places]
        for first, second in pairwise(known):
            behind[first].add(second)
    waits = Counter(place for each in behind for place in each)
    free = [place for place in range(len(order)) if not waits[place]]
    left, found = dict.fromkeys(range(len(order))), list[str]()
    while left:
        at = heappop(free) if free else next(iter(left))  # lines that contradict each other: as it was
        if at not in left:
            continue
        del left[at]
        found.append(order[at])
        waits.subtract(behind[at])
        for place in behind[at]:
            if waits[place] == 0:
                heappush(free, place)
    return found


def _nearest(entry: Archived, parts: Mapping[str, Archived], there: Collection[str]) -> str:
    """Return the nearest of the parts that a part builds on, of which something is in the list already."""
    seen: set[str] = set()
    at = entry.previous or ""
    while at in parts and at not in there and at not in seen:
        seen.add(at)
        at = parts[at].previous or ""
    return at


def _groups(entry: Archived) -> Iterator[tuple[int, int, str | None, str | None]]:
    """Yield the runs of messages that stood together: from where to where, and what stood before and after them."""
    places = [place for place in entry.places if 0 <= place[0] < entry.count] or [(0, None, None)]
    ends = [start for start, _, _ in places[1:]] + [entry.count]
    starts = [0, *(start for start, _, _ in places[1:])]
    for start, end, (_, before, after) in zip(starts, ends, places, strict=True):
        if start < end:
            yield start, end, before, after


class Summaries:
    """What stands for what, in an archive.

    Args:
        entries: Its parts.
        messages: Messages by their keys: what repeats the summary of a part stands for the part, too. (Where there is
            a system message, langmem puts its summary into a list again and again.)
    """

    def __init__(self, entries: Sequence[Archived], messages: Mapping[str, BaseMessage]) -> None:
        self._parts = {entry.id: entry for entry in entries}
        self._of: dict[str, list[Archived]] = {}
        hosts = hosts_in(entries)
        for entry in entries:
            if entry.summary_id:
                self._of[summary_key(entry.id)] = [entry]
            if entry.summary_id and entry.summary_id not in hosts:
                self._of.setdefault(entry.summary_id, []).append(entry)
        texts = {entry.summary: entry for entry in entries if entry.by == "rule" and entry.summary}
        for key, message in messages.items():
            if isinstance(message, SystemMessage) and message.text in texts:
                self._of.setdefault(key, [texts[message.text]])

    @property
    def keys(self) -> Collection[str]:
        """What names the messages that stand for others."""
        return self._of.keys()

    def stands_for(self, summary: str, shown: Collection[str]) -> tuple[set[str], bool]:
        """Return the keys of all messages that a summary stands for, and whether the archive has them all.

        Of an earlier summary that was taken out in its turn, those that it stood for; unless that is shown again.
        """
        keys: set[str] = set()
        left, seen, is_whole = list(self._of.get(summary, ())), set[str](), True
        for entry in left:  # which grows
            if entry.id not in seen:
                seen.add(entry.id)
                keys |= {key for key in keys_of(entry) if key not in self._of}
                earlier, is_known = self._earlier(entry, shown)
                left += earlier
                is_whole = is_whole and is_known
        return keys, is_whole

    def _earlier(self, entry: Archived, shown: Collection[str]) -> tuple[list[Archived], bool]:
        """Return the parts that a summary stands for besides the one it was made of, and whether they are there."""
        inner = [key for key in keys_of(entry) if key in self._of]
        found = [each for key in inner if key not in shown for each in self._of[key]]
        before = self._parts.get(entry.previous or "")
        if before is None:
            return found, not entry.previous
        is_shown = summary_key(before.id) in shown or (before.summary_id in self._of and before.summary_id in shown)
        return [*found, *([] if is_shown else [before])], True


def with_summaries(order: Sequence[str], shown: Collection[str], summaries: Summaries) -> list[str]:
    """Return the keys that are to be shown, in order, with those summaries that still stand for something.

    A summary that stays stands where the first message is missing that it stands for, if that is known; one that
    stands only for messages that are shown goes.
    """
    missing = [key for key in order if key not in shown]
    before: dict[str, list[str]] = {}
    gone: set[str] = set()
    for summary in (key for key in order if key in shown and key in summaries.keys):
        keys, is_whole = summaries.stands_for(summary, shown)
        first = next((key for key in missing if key in keys), None)
        if first is not None:
            before.setdefault(first, []).append(summary)
        elif is_whole and keys <= set(shown):
            gone.add(summary)
    moved = {summary for several in before.values() for summary in several}
    return list(_laid_out(order, set(shown) - gone - moved, before))


def _laid_out(order: Sequence[str], shown: Collection[str], before: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for key in order:
        yield from before.get(key, ())
        if key in shown:
            yield key
