"""Values by their parts: a snapshot, then what changed in it, place by place.

A value is followed as a tree. Dicts with text keys, lists, and objects whose fields stand in their `__dict__` are its
nodes, as deep as they go. Long texts are kept by reference, since they cannot change. Everything else is a leaf. A
delta is a list of edits, applied one after the other:

* `[path, value]` sets what stands at a path; `[path]` deletes it;
* `[path, start, stop, content]` replaces a stretch of a list, or of a text.

A path is keys, names of fields and places in lists. Python's dicts are ordered and users see that order, so a change
that no edit can reproduce (keys moved, a value of another type) replaces the node above it.

That a part is unchanged is proved by what it would be stored as: neighbouring leaves are packed in one go, and one
digest stands for all of them; only where it differs, they are looked at one by one. So each byte of an unchanged value
is packed once. A new snapshot is written when the deltas weigh more than half of the last one, or are too many to read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

from langgraph_keel.engine.encoding.rows import NOTHING, Loose, rows_of
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, Run, resolve
from langgraph_keel.engine.serde.codec import Codec, digest, short_digest
from langgraph_keel.engine.serde.types import Record, shape_of
from langgraph_keel.errors import CorruptStore

SPLIT = 512
"""Bytes below which a value is a leaf: naming a path in it would save nothing."""
LONG = 1024
"""Characters from which on a text is kept, to store an edit as what stands in between."""
SPAN = 64
"""Neighbouring leaves that one digest stands for."""
SNAPSHOT_EVERY = 2048
"""A delta may be read for each so many bytes of the snapshot; at least `FEW`."""
FEW = 64

Path: TypeAlias = list[str | int]
Edits: TypeAlias = list[list[Any]]


class Text:
    """A long text or bytes, by reference."""

    __slots__ = ("mark", "value")

    def __init__(self, value: str | bytes) -> None:
        self.value = value
        self.mark: int = hash(value)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 60 + len(self.value)


class Node:
    """What is known of a container.

    Attributes:
        kind: Its class.
        names: The keys of a dict, the fields of an object; of a list whose elements all have one, their `id`s.
        shell: A digest of what an object has besides fields; 0 for others.
        spans: Where stretches of leaves begin and end, and the digest of each.
        digests: A digest of each leaf, by its place; 0 where a node or a text stands.
        parts: Nodes and texts, by their places.
        nbytes: What it weighs when it is packed, about.
        mark: Tells it from other nodes of this process.
    """

    __slots__ = ("digests", "kind", "mark", "names", "nbytes", "parts", "shell", "spans")

    def __init__(
        self,
        kind: type,
        names: tuple[str, ...] | None,
        shell: int,
        spans: list[tuple[int, int, int]],
        digests: Sequence[int],
        parts: dict[int, Part],
        nbytes: int,
    ) -> None:
        self.kind, self.names, self.shell, self.spans = kind, names, shell, spans
        self.digests, self.parts, self.nbytes = digests, parts, nbytes
        places = [(place, part.mark) for place, part in parts.items()]
        self.mark: int = hash((kind, names if kind is not list else None, shell, tuple(spans), tuple(places)))

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 300 + 8 * len(self.digests) + 60 * len(self.spans) + sum(part.weight for part in self.parts.values())


Part: TypeAlias = Node | Text


# -- looking at values -----------------------------------------------------------------------------------------


def is_text(value: Any) -> bool:
    """Return whether a value is a text that is worth following."""
    return type(value) in (str, bytes) and len(value) >= LONG


def parts_of(value: Any, codec: Codec) -> tuple[tuple[str, ...] | None, Sequence[Any], int] | None:
    """Return the names, the parts and the shell of a container; `None` for a value that has no parts to follow."""
    kind = type(value)
    if kind is list:
        return _ids_of(value), value, 0
    if kind is dict:
        return (tuple(value), list(value.values()), 0) if all(type(key) is str for key in value) else None
    return _fields_of(value, codec)


def _ids_of(elements: list[Any]) -> tuple[str, ...] | None:
    """Return the ids of elements that are dicts with one each, all different."""
    if not elements or any(type(element) is not dict or type(element.get("id")) is not str for element in elements):
        return None
    ids = tuple(element["id"] for element in elements)
    return ids if len(set(ids)) == len(ids) else None


def _fields_of(value: Any, codec: Codec) -> tuple[tuple[str, ...], list[Any], int] | None:
    family = shape_of(type(value)).family
    if family not in (Record.MODEL, Record.DATACLASS):
        return None
    state = getattr(value, "__dict__", None)
    if type(state) is not dict or set(state) != shape_of(type(value)).fields:
        return None
    shell: list[Any] = []
    if family is Record.MODEL:
        shell = [sorted(value.__pydantic_fields_set__), value.__pydantic_extra__, value.__pydantic_private__]
    return tuple(state), list(state.values()), short_digest(codec.fingerprint(shell)) or 1


def follow(value: Any, codec: Codec) -> Part | None:
    """Return what there is to know of a value, before anybody can change it; `None` if it is a leaf."""
    if is_text(value):
        return Text(value)
    found = parts_of(value, codec)
    if found is None:
        return None
    names, values, shell = found
    parts = {place: part for place, each in enumerate(values) if (part := _follow_part(each, codec)) is not None}
    node = _node(type(value), names, shell, values, parts, codec)
    return node if node.nbytes >= SPLIT else None


_ATOMS = frozenset({int, float, bool, type(None)})


def _follow_part(value: Any, codec: Codec) -> Part | None:
    return None if type(value) in _ATOMS else follow(value, codec)


def _node(
    kind: type,
    names: tuple[str, ...] | None,
    shell: int,
    values: Sequence[Any],
    parts: dict[int, Part],
    codec: Codec,
    digests: array[int] | None = None,
) -> Node:
    """Return a node; `digests` has those of the leaves, if they are known."""
    is_known = digests is not None
    digests = array("Q", bytes(8 * len(values))) if digests is None else digests
    spans, nbytes = [], sum(part.nbytes if isinstance(part, Node) else len(part.value) for part in parts.values())
    for start, stop in _stretches(len(values), parts):
        packed = codec.fingerprint(list(values[start:stop]))
        nbytes += len(packed)
        spans.append((start, stop, digest(packed)))
        if not is_known:
            digests[start:stop] = array("Q", map(short_digest, codec.marks(list(values[start:stop]))))
    if kind is not list and names:
        nbytes += sum(map(len, names))
    return Node(kind, names, shell, spans, digests, parts, nbytes)


def _stretches(count: int, parts: Mapping[int, Part]) -> Iterator[tuple[int, int]]:
    """Yield where stretches of leaves begin and end, between the nodes, none longer than a span."""
    start = 0
    for end in (*sorted(parts), count):
        for at in range(start, end, SPAN):
            yield at, min(end, at + SPAN)
        start = end + 1


# -- comparing -------------------------------------------------------------------------------------------------


class Replaced(Exception):
    """No edit of a container can say what has become of it: it is to be set as a whole."""


def compare(part: Part, value: Any, path: Path, edits: Edits, codec: Codec) -> Part:
    """Add what makes `value` of what a part was to `edits`; return what there is to know of the value.

    Raises:
        Replaced: Nothing but the whole value says it.
    """
    if isinstance(part, Text):
        return _compare_texts(part, value, path, edits)
    found = parts_of(value, codec) if type(value) is part.kind else None
    if found is None:
        raise Replaced
    names, values, shell = found
    if shell != part.shell:
        raise Replaced
    if part.kind is list:
        return _compare_lists(part, names, values, path, edits, codec)
    if names != part.names:
        return _compare_keys(part, names or (), values, path, edits, codec)
    return _compare_places(part, names, values, names or (), path, edits, codec)


def _compare_texts(part: Text, value: Any, path: Path, edits: Edits) -> Text:
    was = part.value
    if value is was:
        return part
    if type(value) is not type(was) or not is_text(value):
        raise Replaced
    if value == was:
        return Text(value)
    start = _common(was, value)
    end = _common(was[start:][::-1], value[start:][::-1])
    content = value[start : len(value) - end]
    if len(content) > 0.7 * len(value):
        raise Replaced
    edits.append([path, start, len(was) - end, content])
    return Text(value)


def _common(one: Any, other: Any) -> int:
    """Return how long the common beginning of two texts is."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _compare_places(
    node: Node,
    names: tuple[str, ...] | None,
    values: Sequence[Any],
    steps: Sequence[str | int],
    path: Path,
    edits: Edits,
    codec: Codec,
) -> Node:
    """Compare parts place by place; `steps` are what stands for the places in a path."""
    parts: dict[int, Part] = {}
    digests: array[int] | None = None
    is_same = True
    for start, stop, known in node.spans:
        leaves = list(values[start:stop])
        if digest(codec.fingerprint(leaves)) == known:
            continue
        digests = array("Q", node.digests) if digests is None else digests
        for place, mark in zip(range(start, stop), codec.marks(leaves), strict=True):
            new = short_digest(mark)
            if new != digests[place]:
                digests[place] = new
                edits.append([[*path, steps[place]], values[place]])
                if (part := _follow_part(values[place], codec)) is not None:
                    parts[place], digests[place] = part, 0
    for place, part in node.parts.items():
        new_part = _compare_part(part, values[place], [*path, steps[place]], edits, codec)
        if new_part is None:
            digests = array("Q", node.digests) if digests is None else digests
            digests[place] = short_digest(codec.fingerprint(values[place]))
        else:
            parts[place] = new_part
            is_same = is_same and new_part is part
    if digests is None and is_same:
        return node
    return _node(node.kind, names, node.shell, values, parts, codec, digests or array("Q", node.digests))


def _compare_part(part: Part, value: Any, path: Path, edits: Edits, codec: Codec) -> Part | None:
    """Compare one part, or set it as a whole; return what there is to know of it now, `None` if it is a leaf."""
    within: Edits = []
    try:
        found: Part | None = compare(part, value, path, within, codec)
    except Replaced:
        found, within = follow(value, codec), [[path, value]]
    edits += within
    return found


def _compare_keys(
    node: Node, names: tuple[str, ...], values: Sequence[Any], path: Path, edits: Edits, codec: Codec
) -> Node:
    """Compare dicts of which keys have gone or come. New ones stand at the end, or it is another dict."""
    if node.kind is not dict or node.names is None:
        raise Replaced
    here, old = set(names), {name: place for place, name in enumerate(node.names)}
    if names != (*(name for name in node.names if name in here), *(name for name in names if name not in old)):
        raise Replaced
    edits += [[[*path, name]] for name in node.names if name not in here]
    parts: dict[int, Part] = {}
    digests = array("Q", bytes(8 * len(names)))
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        _compare_one(node, old.get(name), value, place, [*path, name], edits, parts, digests, codec)
    return _node(dict, names, 0, values, parts, codec, digests)


def _compare_one(
    node: Node,
    was: int | None,
    value: Any,
    place: int,
    path: Path,
    edits: Edits,
    parts: dict[int, Part],
    digests: array[int],
    codec: Codec,
) -> None:
    """Compare the part that was at a place, if it was there, with a value; note what there is to know of that."""
    if was is not None and was in node.parts:
        part = _compare_part(node.parts[was], value, path, edits, codec)
    else:
        part = _follow_part(value, codec)
        mark = 0 if part is not None else short_digest(codec.fingerprint(value))
        if was is None or part is not None or mark != node.digests[was]:
            edits.append([path, value])
    if part is not None:
        parts[place] = part
    else:
        digests[place] = short_digest(codec.fingerprint(value))


# -- lists: which element is which -------------------------------------------------------------------------------


def _compare_lists(
    node: Node, ids: tuple[str, ...] | None, values: Sequence[Any], path: Path, edits: Edits, codec: Codec
) -> Node:
    count = len(node.digests)
    if len(values) == count and (ids is None or ids == node.names):
        within: Edits = []
        found = _compare_places(node, ids, values, range(count), path, within, codec)
        # Of a list that has moved by an element, every place is another one.
        if len(within) <= max(1, count // 4):
            edits += within
            return found
    pairs = _pairs(node, ids, values, codec)
    _splice(pairs, count, values, path, edits)
    parts: dict[int, Part] = {}
    digests = array("Q", bytes(8 * len(values)))
    was_at = {new: old for old, new in pairs}
    for place, value in enumerate(values):
        kept = was_at.get(place)
        within = edits if kept is not None else []  # what is new was spliced in
        _compare_one(node, kept, value, place, [*path, place], within, parts, digests, codec)
    return _node(list, ids, 0, values, parts, codec, digests)


def _pairs(node: Node, ids: tuple[str, ...] | None, values: Sequence[Any], codec: Codec) -> list[tuple[int, int]]:
    """Return which element was where, for those that kept their order: by their ids, or else by their content."""
    if ids is not None and node.names is not None:
        old: Sequence[Any] = node.names
        new: Sequence[Any] = ids
    else:
        old = [node.parts[place].mark if place in node.parts else mark for place, mark in enumerate(node.digests)]
        new = [_mark_of(value, codec) for value in values]
    places: dict[Any, list[int]] = {}
    for place in range(len(old) - 1, -1, -1):
        places.setdefault(old[place], []).append(place)
    found = [(places[name].pop(), at) for at, name in enumerate(new) if places.get(name)]
    return _ascending(found)


def _mark_of(value: Any, codec: Codec) -> int:
    part = _follow_part(value, codec)
    return short_digest(codec.fingerprint(value)) if part is None else part.mark


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of pairs, ascending on both sides (patience sorting); they ascend by the second one."""
    ends: list[int] = []  # of the ascending runs of each length so far, the lowest end
    last: list[int] = []  # the pair that ends them
    before: list[int] = []
    for at, (place, _) in enumerate(pairs):
        length = bisect_left(ends, place)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        last[length : length + 1] = [at]
    found, at = [], last[-1] if last else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _splice(pairs: list[tuple[int, int]], count: int, values: Sequence[Any], path: Path, edits: Edits) -> None:
    """Add what makes the places of the new list of those of the old one: from the end, so that no place moves."""
    ends = [(-1, -1), *pairs, (count, len(values))]
    for (old, new), (old_end, new_end) in zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True):
        if old_end - old > 1 or new_end - new > 1:
            edits.append([path, old + 1, old_end, list(values[new + 1 : new_end])])


# -- versions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownTree:
    """What a process remembers of a value that it follows by its parts.

    Attributes:
        runs: The numbers of its snapshot and of its deltas, in order.
        tree: What is known of its parts.
        snapshot_bytes: What the snapshot weighs.
        delta_bytes: What the deltas weigh together.
        deltas: How many they are.
        loose: Its deltas that are not packed yet.
        fresh: Payload of the item being appended, until it has a number.
    """

    runs: tuple[Run, ...]
    tree: Part
    snapshot_bytes: int
    delta_bytes: int = 0
    deltas: int = 0
    loose: Loose = NOTHING
    fresh: tuple[bytes, ...] = ()

    @property
    def ref(self) -> Ref:
        """Where this version lives."""
        return Ref(Kind.TREE, self.runs)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 300 + self.tree.weight + self.loose.nbytes

    def appends(self) -> tuple[Row, ...]:
        """Rows to append to the log for this version."""
        return rows_of(self.fresh)

    def with_number(self, first: int) -> KnownTree:
        """Return itself after its new item got its number, `first`."""
        loose = self.loose.extend(first, self.fresh) if self.deltas else NOTHING
        return replace(self, runs=resolve(self.runs, first), loose=loose, fresh=())


def first_tree(value: Any, tree: Part, codec: Codec) -> KnownTree:
    """Return `value` as a version that builds on nothing."""
    payload = codec.pack_item(value)
    return KnownTree(((NEW, NEW + 1),), tree, len(payload), fresh=(payload,))


def next_tree(value: Any, known: KnownTree, codec: Codec) -> tuple[KnownTree, tuple[Row, ...]] | None:
    """Return `value` as the version after `known`, and rows that replace small ones; `None` if it is another value."""
    edits: Edits = []
    try:
        tree = compare(known.tree, value, [], edits, codec)
    except Replaced:
        return None
    if not edits:
        return known, ()
    payload = codec.pack_item(edits)
    weight, most = known.delta_bytes + len(payload), max(FEW, known.snapshot_bytes // SNAPSHOT_EVERY)
    if weight > known.snapshot_bytes / 2 or known.deltas >= most:
        return first_tree(value, tree, codec), ()
    repacks = known.loose.pack()
    loose = NOTHING if repacks else known.loose
    runs = (*known.runs, (NEW, NEW + 1))
    return KnownTree(runs, tree, known.snapshot_bytes, weight, known.deltas + 1, loose, (payload,)), repacks


def learned_tree(value: Any, runs: tuple[Run, ...], sizes: Sequence[int], codec: Codec) -> KnownTree | None:
    """Return what is known of a value just read; `sizes` are what its items weigh. `None` if it cannot be followed."""
    tree = follow(value, codec)
    return None if tree is None else KnownTree(runs, tree, sizes[0], sum(sizes[1:]), len(sizes) - 1)


def replay(items: Sequence[Any]) -> Any:
    """Return the value that a snapshot and its deltas make. The snapshot is changed in place.

    Raises:
        CorruptStore: A delta does not fit.
    """
    root = {"": items[0]}
    try:
        for edits in items[1:]:
            for path, *edit in edits:
                _apply(root, path, edit)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptStore(f"a delta does not fit the value it was made for: {error!r}") from error
    return root[""]


def _apply(root: dict[str, Any], path: Any, edit: Sequence[Any]) -> None:
    if type(path) is not list:
        raise TypeError(f"{path!r:.60} stands where a path should")
    *way, name = ["", *path]
    holder: Any = root
    for step in way:
        holder = _slots_of(holder)[step]
    slots = _slots_of(holder)
    if not edit:
        del slots[name]
    elif len(edit) == 1:
        if type(slots) is dict or 0 <= name < len(slots):  # a negative place is none that was written
            slots[name] = edit[0]
        else:
            raise IndexError(name)
    else:
        start, stop, content = edit
        part = slots[name]
        if not 0 <= start <= stop <= len(part):
            raise IndexError(stop)
        if type(part) is list:
            part[start:stop] = [*content] if type(content) is list else _refuse(content)
        else:
            slots[name] = part[:start] + content + part[stop:]


def _refuse(content: Any) -> NoReturn:
    raise TypeError(f"{content!r:.60} stands where a list should")


def _slots_of(holder: Any) -> Any:
    """Return what holds the parts of a container by their steps."""
    return holder if type(holder) in (dict, list) else holder.__dict__
