"""The difference between two checkpoints, also as a JSON Patch.

Equal values are recognized by their item numbers and not decoded. Item numbers of different threads are not comparable,
so both values are decoded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeAlias

from langgraph_keel.display.jsonable import as_json
from langgraph_keel.engine.checkpoints import revive, revive_other
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.entries import unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Kind, Ref, Row, Run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import NotFound
from langgraph_keel.history.changes import delta_channels
from langgraph_keel.history.deltas import rebuild_messages
from langgraph_keel.history.edits import NOTHING, Edit, Step, aligned_edits, edits, ids_of, named_edits
from langgraph_keel.history.labels import find_entry
from langgraph_keel.history.records import DiffRecord

Operation: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[Step, ...]


def operations(edits: Iterable[Edit]) -> list[Operation]:
    """Return the operations of a JSON Patch (RFC 6902)."""
    # Each operation applies to the result of the previous ones. So lists are reordered first, from the outermost one
    # inwards; then the paths of all other edits point into the newer state.
    lists: defaultdict[_Path, list[Edit]] = defaultdict(list)
    others: list[Operation] = []
    for edit in edits:
        if edit.kind != "changed" and edit.path and isinstance(edit.path[-1], int):
            lists[edit.path[:-1]].append(edit)
        else:
            others.append(_operation(edit))
    ordered = [step for path in sorted(lists, key=len) for step in _list_operations(path, lists[path])]
    return [*ordered, *others]


def pointer(path: Iterable[Step]) -> str:
    """Return a path as a JSON Pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _operation(edit: Edit) -> Operation:
    where = pointer(edit.path)
    if edit.kind == "removed":
        return {"op": "remove", "path": where}
    return {
        "op": "add" if edit.kind == "added" else "replace",
        "path": where,
        "value": as_json(edit.after, len(edit.path)),
    }


def _list_operations(path: _Path, edits: Sequence[Edit]) -> Iterator[Operation]:
    """Yield removals from a list's end, then moves, then additions from its start."""
    removed = sorted((_place(edit) for edit in edits if edit.kind == "removed"), reverse=True)
    added = {_place(edit): edit for edit in edits if edit.kind == "added"}
    moves: dict[int, int] = {edit.before: _place(edit) for edit in edits if edit.kind == "moved"}
    came = sorted(added)
    yield from ({"op": "remove", "path": pointer((*path, place))} for place in removed)
    gone = set(removed)
    ranks = sorted((after - bisect_left(came, after), before) for before, after in moves.items())
    most = max([*moves, *moves.values(), *removed], default=0) + len(moves) + len(removed) + 1
    now = [place for place in range(most) if place not in gone] if moves else []
    ordered = [place for place in now if place not in moves]
    for rank, place in ranks:
        ordered.insert(rank, place)
    for rank, place in ranks:  # each moved element is inserted after its predecessor
        start = now.index(place)
        now.remove(place)
        stop = now.index(ordered[rank - 1]) + 1 if rank else 0
        now.insert(stop, place)
        yield {"op": "move", "from": pointer((*path, start)), "path": pointer((*path, stop))}
    yield from (_operation(added[place]) for place in came)


def _place(edit: Edit) -> int:
    return int(edit.path[-1])


@publish
@dataclass(frozen=True, slots=True, repr=False)
class StateDiff(DiffRecord):
    """The changes between two checkpoints: a sequence of edits, false if empty.

    Attributes:
        before: The older checkpoint, or the first argument.
        after: The other one.
        edits: The changes; the first step of each path is the channel.
        deltas: Delta channels that were written and do not contain messages: only a graph can compute their values.
    """

    def plain(self) -> dict[str, Any]:
        """Return JSON data: `before`, `after`, `channels`, `edits` and `deltas`."""
        shown = []
        for edit in self.edits:
            sides = {"before": edit.before, "after": edit.after}
            values = {name: as_json(value) for name, value in sides.items() if value is not NOTHING}
            shown.append({"kind": edit.kind, "path": list(edit.path), **values})
        return {
            "before": as_json(self.before),
            "after": as_json(self.after),
            "channels": self.channels,
            "edits": shown,
            "deltas": list(self.deltas),
        }

    def to_patch(self) -> list[Operation]:
        """Return a JSON Patch (RFC 6902) that turns the older state into the newer one.

        It does not contain the channels in `deltas`.
        """
        return operations(self.edits)

    def to_text(self, *, full: bool = False) -> str:
        """Return plain text by channel, with `[-removed-]` and `{+added+}` words.

        Args:
            full: Whether to show long values in full, and LangGraph's own channels, too.
        """
        from langgraph_keel.history.render.diff import diff_text

        return diff_text(self, full=full)

    def to_html(self) -> str:
        """Return HTML with its own styles, for light and dark pages."""
        from langgraph_keel.history.render.diff import diff_html

        return diff_html(self)

    def __str__(self) -> str:
        """Return plain text with long values shortened."""
        return self.to_text()

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return it in the colours of a terminal."""
        from langgraph_keel.history.render.diff import DiffPage

        return DiffPage(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.to_text(), "text/html": self.to_html()}


class _Side:
    """One of the two checkpoints, with lazily decoded values."""

    def __init__(self, entry: Entry, codec: Codec, unpacker: Unpacker) -> None:
        self._where = entry.address
        self._header = unpack_header(entry.header, codec, self._where)
        self._unpacker = unpacker
        self.entry = entry
        self.refs: Mapping[str, Ref] = entry.refs
        self.rows: Mapping[str, Sequence[Row]] = {}

    @property
    def deltas(self) -> Mapping[str, Any]:
        """The versions of the delta channels whose values are not stored here."""
        # LangGraph counts the writes to each delta channel that is not stored whole.
        return {each: self.version(each) for each in delta_channels(self.metadata)}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._header.metadata

    def version(self, channel: str) -> Any:
        return (self._header.checkpoint.get("channel_versions") or {}).get(channel)

    def value(self, channel: str) -> Any:
        """Return the value of a channel; `NOTHING` if there is none."""
        ref = self.refs.get(channel)
        if ref is None:
            return NOTHING
        return self._header.inline[channel] if ref.kind is Kind.INLINE else self._decode(channel, ref)

    def elements(self, channel: str, numbers: Sequence[int]) -> list[Any]:
        elements: list[Any] = self._decode(channel, Ref(Kind.LIST, tuple(_runs(numbers))))
        return elements

    def _decode(self, channel: str, ref: Ref) -> Any:
        return self._unpacker.values({channel: ref}, self.rows, self._where)[channel]


def diff_checkpoints(session: Session, before: Address, after: Address) -> Plan[StateDiff]:
    """Return the changes between two checkpoints.

    Three trips, or two if only small channels changed; two more for messages in delta channels.
    """
    codec = session.codec.with_placeholders()
    unpacker = Unpacker(codec)
    older, newer = (yield from find_entry(session, before)), (yield from find_entry(session, after))
    sides = _Side(older, codec, unpacker), _Side(newer, codec, unpacker)
    is_one_log = older.address.at(None) == newer.address.at(None)
    # The delta channels without a value on one side or both, and whether they were written in between.
    deltas = {
        channel: not is_one_log or sides[0].version(channel) != sides[1].version(channel)
        for channel in dict.fromkeys([*sides[0].deltas, *sides[1].deltas])
    }
    looking = replace(session, codec=codec)
    bare = [Found(replace(each, refs={}), {}) for each in (older, newer)] if session.hooks.revive else []
    if any(revive_other(looking, each) for each in bare):
        return (yield from _diff_revived(looking, older, newer, deltas))
    stored = older.refs.items() if is_one_log else ()
    same = {channel for channel, ref in stored if ref.kind is not Kind.INLINE and newer.refs.get(channel) == ref}
    channels = [each for each in dict.fromkeys([*older.refs, *newer.refs]) if each not in deltas and each not in same]
    if not (yield from _read_rows(session.store, sides, channels)):
        return (yield from diff_checkpoints(session, before, after))
    found = [edit for channel in channels for edit in _channel_edits(channel, *sides, codec, is_one_log)]
    written = [channel for channel, is_written in deltas.items() if is_written]
    rebuilt: list[Mapping[str, Any]] = []
    for side in sides if written else ():
        at, metadata = side.entry.address, side.metadata
        rebuilt.append((yield from rebuild_messages(looking, at, metadata, side.refs)))
    for channel in written[:]:
        if all(channel in each for each in rebuilt):
            was, now = (each[channel] for each in rebuilt)
            found += edits(was, now, codec.fingerprint, (channel,))
            written.remove(channel)
    return StateDiff(older.address, newer.address, found, written)


def _diff_revived(session: Session, older: Entry, newer: Entry, deltas: Mapping[str, bool]) -> Plan[StateDiff]:
    """Compare all values, as another version of the application stored one side."""
    found: Sequence[Found] = yield from session.store.read_values([older, newer])
    there = {each.entry.address: each for each in found}
    sides: list[Mapping[str, Any]] = []
    for entry in (older, newer):
        if entry.address not in there:
            raise NotFound(f"{entry.address}: there is no such checkpoint")
        read = yield from revive(session, there[entry.address], Unpacker(session.codec), "named")
        sides.append(read.checkpoint["channel_values"])
    before, after = sides
    names = [name for name in dict.fromkeys([*before, *after]) if name not in deltas]
    pairs = ((name, before.get(name, NOTHING), after.get(name, NOTHING)) for name in names)
    changed = [edit for name, was, now in pairs for edit in edits(was, now, session.codec.fingerprint, (name,))]
    return StateDiff(older.address, newer.address, changed, [name for name, is_written in deltas.items() if is_written])


def _read_rows(store: Store[Any, Any], sides: Sequence[_Side], channels: Collection[str]) -> Plan[bool]:
    """Read the rows of some channels of both checkpoints, in one trip."""
    refs = [{name: ref for name, ref in side.refs.items() if name in channels} for side in sides]
    if all(ref.kind is Kind.INLINE for each in refs for ref in each.values()):
        return True
    entries = [replace(side.entry, refs=each) for side, each in zip(sides, refs, strict=True)]
    found: Sequence[Found] = yield from store.read_values(entries)
    if len(found) == len(sides):
        for side, each in zip(sides, found, strict=True):
            side.rows = each.rows
    return len(found) == len(sides)


class _Elements:
    """The elements of one version of a list; shared elements are decoded lazily."""

    def __init__(self, side: _Side, channel: str, numbers: Sequence[int], others: Sequence[int]) -> None:
        self._side = side
        self._channel = channel
        self.numbers = numbers
        known = set(others)
        own = [number for number in numbers if number not in known]
        self.own = dict(zip(own, side.elements(channel, own), strict=True))

    def __getitem__(self, place: int) -> Any:
        number = self.numbers[place]
        if number not in self.own:
            return self._side.elements(self._channel, [number])[0]
        return self.own[number]

    @property
    def sample(self) -> list[Any]:
        """Some elements, to find out the kind of the list."""
        return list(self.own.values()) or [self[0]] if self.numbers else []

    def names(self, name: Callable[[Any], Hashable]) -> list[Hashable]:
        """Return a name for each element; for shared elements, their numbers."""
        return [name(self.own[number]) if number in self.own else number for number in self.numbers]


def _channel_edits(channel: str, before: _Side, after: _Side, codec: Codec, is_one_log: bool) -> Iterator[Edit]:
    refs = before.refs.get(channel), after.refs.get(channel)
    lists = [ref.runs for ref in refs if is_one_log and ref and ref.kind is Kind.LIST]
    numbers = [[number for lo, hi in runs for number in range(lo, hi)] for runs in lists]
    if len(numbers) < 2 or any(len(set(each)) < len(each) for each in numbers):
        return edits(before.value(channel), after.value(channel), codec.fingerprint, (channel,))
    old, new = _Elements(before, channel, *numbers), _Elements(after, channel, *numbers[::-1])

    def inner(place: int, other: int) -> Iterator[Edit]:
        if old.numbers[place] == new.numbers[other]:
            return iter(())
        return edits(old[place], new[other], codec.fingerprint, (channel, other))

    is_named = all(ids_of(side.sample) is not None for side in (old, new))
    names, compare = (attrgetter("id"), named_edits) if is_named else (codec.fingerprint, aligned_edits)
    return compare((old.names(names), old), (new.names(names), new), inner, (channel,))


def _runs(numbers: Sequence[int]) -> list[Run]:
    runs: list[Run] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return runs
