"""Values stored by parts: a snapshot, followed by deltas.

A value is compared as a tree. Its nodes are dicts with text keys, lists, and objects with their fields in `__dict__`,
at any depth. Long texts are kept by reference, because they are immutable. Everything else is a leaf. A delta is a list
of edits, applied in order:

* `[path, value]` sets the part at a path; `[path]` deletes it;
* `[path, start, stop, content]` replaces a slice of a list or a text.

A path consists of keys, field names and list indexes. Python's dicts are ordered, and users see the order. So a change
that edits cannot reproduce (moved keys, a value of another type) replaces the node above it.

A part is proved unchanged by a digest of its stored form. One digest covers a node with all nodes in it, unless it is
large. In large nodes, and in nodes that differ, one digest covers neighbouring leaves. So each byte of an unchanged
value is packed once. A new snapshot is written when the deltas exceed half the size of the last one (and 4 KB), or are
too many to read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, NoReturn, TypeAlias

from langgraph_keel.engine.encoding.bodies import (
    NOTHING,
    Loose,
    content_size,
    loose_end,
    number_rows,
    numbers_of,
    pack_rows,
    resolve,
    row_index,
    rows_of,
    weight_of,
)
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, record
from langgraph_keel.engine.serde.serializer import Codec, digest, pack_plain, prove, short_digest
from langgraph_keel.engine.serde.types import Record, attributes_of, shape_of
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.errors import CorruptStore

SPLIT = 512
"""Size in bytes below which a value is a leaf, as a path into it saves nothing."""
LONG = 1024
"""Length from which a text is kept, so that only the changed slice is stored."""
DEEPEST = 32
"""Maximum depth of the tree; deeper values are leaves."""
SPAN = 64
"""Maximum number of neighbouring leaves covered by one digest."""
PROVED = 1 << 16
"""Maximum size, in bytes, of a node covered by one digest, to fit in the CPU cache."""
SNAPSHOT_EVERY = 2048
"""Bytes of a snapshot per delta that may be read; at least `FEW` deltas."""
FEW = 64
LIGHT = 4096
"""Size of deltas, in bytes, that never causes a new snapshot."""

Path: TypeAlias = list[str | int]
Edits: TypeAlias = list[list[Any]]

_TEXT = {str}
_LARGE = bytes(SPLIT)
_ATOMS = frozenset({int, float, bool, type(None)})


class Text:
    """A long text or bytes, by reference."""

    __slots__ = ("is_plain", "mark", "nbytes", "value", "weight")

    def __init__(self, value: str | bytes) -> None:
        self.value = value
        self.nbytes: int = len(value)
        self.mark: int = hash(value)
        self.is_plain: bool = type(value) is str
        self.weight: int = 60 + self.nbytes


class Span(NamedTuple):
    """Neighbouring leaves, with their digest and their size."""

    start: int
    stop: int
    mark: int
    nbytes: int
    is_plain: bool


class Node:
    """The memo of a container: its class, and its parts by position."""

    __slots__ = ("digests", "is_plain", "kind", "mark", "names", "nbytes", "parts", "proof", "shell", "spans", "weight")

    def __init__(
        self,
        kind: type,
        names: tuple[str, ...] | None,  # keys of a dict, fields of an object, `id`s of a list's elements
        shell: int,  # digest of an object's state other than fields; 0 for others
        spans: Sequence[Span],
        digests: Sequence[int],  # of each leaf, by position; 0 at the positions of `parts`
        parts: dict[int, Part],
        value: Any,
    ) -> None:
        self.kind, self.names, self.shell, self.spans = kind, names, shell, spans
        self.digests, self.parts = digests, parts
        self.nbytes: int = sum([span.nbytes for span in spans]) + sum([part.nbytes for part in parts.values()])
        if kind is not list and names:
            self.nbytes += sum(map(len, names))
        # Plain: without bytes. ormsgpack packs bytes and bytearrays to equal bytes, so their digests prove nothing.
        self.is_plain: bool = all(each.is_plain for each in (*spans, *parts.values()))
        self.is_plain = self.is_plain and (not shell or pack_plain(_shell_of(value)) is not None)
        # Digest of the whole packed node; 0 if it is too large, or not plain.
        self.proof = prove(value) if self.is_plain and self.nbytes <= PROVED else 0
        places = [(place, part.mark) for place, part in parts.items()]
        marks = [span[:3] for span in spans]
        self.mark: int = hash((kind, names if kind is not list else None, shell, *marks, *places))
        self.weight: int = 300 + 8 * len(digests) + 150 * len(spans) + sum([part.weight for part in parts.values()])


Part: TypeAlias = Node | Text


# -- inspecting values -----------------------------------------------------------------------------------------


def is_text(value: Any) -> bool:
    """Return whether a value is a text that is long enough to be compared."""
    return type(value) in (str, bytes) and len(value) >= LONG


def parts_of(value: Any, codec: Codec) -> tuple[tuple[str, ...] | None, Sequence[Any], int] | None:
    """Return the names, parts and shell of a container; `None` if it is a leaf."""
    kind = type(value)
    if kind is list:
        return None, value, 0
    if kind is dict:
        return (tuple(value), list(value.values()), 0) if set(map(type, value)) <= _TEXT else None
    return _fields_of(value, codec)


def _ids_of(elements: Sequence[Any]) -> tuple[str, ...] | None:
    """Return the ids of elements if all are dicts with distinct ids."""
    if set(map(type, elements)) != {dict}:
        return None
    ids = tuple([element.get("id") for element in elements])
    return ids if set(map(type, ids)) == _TEXT and len(set(ids)) == len(ids) else None


def _fields_of(value: Any, codec: Codec) -> tuple[tuple[str, ...], list[Any], int] | None:
    family = shape_of(type(value)).family
    if family not in (Record.MODEL, Record.DATACLASS):
        return None
    state = getattr(value, "__dict__", None)
    if type(state) is not dict or set(state) != shape_of(type(value)).fields:
        return None
    return tuple(state), list(state.values()), short_digest(codec.fingerprint(_shell_of(value))) or 1


def _shell_of(value: Any) -> list[Any]:
    """Return an object's state other than keys, elements or fields."""
    if shape_of(type(value)).family is not Record.MODEL:
        return []
    return [sorted(value.__pydantic_fields_set__), value.__pydantic_extra__, value.__pydantic_private__]


def follow(value: Any, codec: Codec, above: tuple[int, ...] = ()) -> Part | None:
    """Return the tree of a value, before it can be changed; `None` if it is a leaf."""
    if is_text(value):
        return Text(value)
    if len(above) >= DEEPEST or id(value) in above:
        return None
    if type(value) in (list, dict) and len(value) < SPLIT and len(pack_plain(value) or _LARGE) < SPLIT:
        return None  # a fast path: following it gives the same result ten times as slowly
    found = parts_of(value, codec)
    if found is None:
        return None
    names, values, shell = found
    parts, above = {}, (*above, id(value))
    for place, each in enumerate(values):
        if (part := _follow_part(each, codec, above)) is not None:
            parts[place] = part
    return _node(value, names, shell, values, parts, codec)


def _follow_part(value: Any, codec: Codec, above: tuple[int, ...] = ()) -> Part | None:
    return None if type(value) in _ATOMS else follow(value, codec, above)


def _node(
    value: Any,
    names: tuple[str, ...] | None,
    shell: int,
    values: Sequence[Any],
    parts: dict[int, Part],
    codec: Codec,
) -> Node | None:
    """Return a new node with these parts; `None` if it is small enough to be a leaf."""
    digests = array("Q", bytes(8 * len(values)))
    spans = []
    for start, stop in _stretches(len(values), parts):
        leaves = list(values[start:stop])
        marks = codec.marks(leaves)
        digests[start:stop] = array("Q", map(short_digest, marks))
        spans.append(_span(start, leaves, marks))
    if not parts and sum([span.nbytes for span in spans]) + sum(map(len, names or ())) < SPLIT:
        return None
    if type(value) is list:
        names = _ids_of(values)
    return Node(type(value), names, shell, spans, digests, parts, value)


def _span(start: int, leaves: list[Any], marks: Sequence[bytes]) -> Span:
    plain = pack_plain(leaves)
    packed = b"".join(marks) if plain is None else plain
    return Span(start, start + len(marks), digest(packed), len(packed), plain is not None)


def _stretches(count: int, parts: Mapping[int, Part]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of the leaves between nodes, at most `SPAN` at a time."""
    start = 0
    for end in (*sorted(parts), count):
        for at in range(start, end, SPAN):
            yield at, min(end, at + SPAN)
        start = end + 1


def value_of(part: Part) -> Any:
    """Return the value of a part that has only long texts, copied; else `None`."""
    if isinstance(part, Text):
        return part.value
    if part.spans or part.kind not in (dict, list):
        return None
    values = [value_of(part.parts[place]) for place in range(len(part.digests))]
    if None in values:
        return None
    return values if part.kind is list else dict(zip(part.names or (), values, strict=True))


# -- comparing -------------------------------------------------------------------------------------------------


def is_same(part: Part, value: Any) -> bool:
    """Return whether one digest proves that a value has not changed."""
    return type(part) is Node and part.proof != 0 and type(value) is part.kind and prove(value) == part.proof


class Replaced(Exception):
    """Raised if edits cannot express a change, so that the container must be set."""


def compare(part: Part, value: Any, path: Path, edits: Edits, codec: Codec) -> Part:
    """Add the edits that change a part to `value`; return the part of that value."""
    if isinstance(part, Text):
        return _compare_texts(part, value, path, edits)
    if type(value) is not part.kind:
        raise Replaced
    found = parts_of(value, codec)
    if found is None or found[2] != part.shell:
        raise Replaced
    names, values, _ = found
    if type(value) is list:
        return _compare_lists(part, value, path, edits, codec)
    if names is None or names != part.names:
        return _compare_keys(part, value, names or (), values, path, edits, codec)
    return _compare_places(part, value, values, names, path, edits, codec)


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
    """Return the length of the common beginning of two texts."""
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
    value: Any,
    values: Sequence[Any],
    steps: Sequence[str | int],
    path: Path,
    edits: Edits,
    codec: Codec,
) -> Node:
    """Compare parts by position. `steps` are the path elements of the positions."""
    parts: dict[int, Part] = {}
    digests = array("Q", node.digests)
    spans = [_compare_span(span, digests, values, steps, path, edits, parts, codec) for span in node.spans]
    for place, part in node.parts.items():
        new = _compare_part(part, values[place], [*path, steps[place]], edits, codec)
        if new is not None:
            parts[place] = new
    if parts.keys() != node.parts.keys():
        # A leaf has become a node, or a node a leaf, so the spans of leaves differ.
        found = _node(value, node.names, node.shell, values, parts, codec)
        if found is None:
            raise Replaced
        return found
    if all(map(is_, spans, node.spans)) and all(parts[place] is part for place, part in node.parts.items()):
        return node
    names = _ids_of(values) if node.kind is list and node.names is not None else node.names
    return Node(node.kind, names, node.shell, spans, digests, parts, value)


def _compare_span(
    span: Span,
    digests: array[int],
    values: Sequence[Any],
    steps: Sequence[str | int],
    path: Path,
    edits: Edits,
    parts: dict[int, Part],
    codec: Codec,
) -> Span:
    """Compare neighbouring leaves; return the span itself if nothing has changed.

    Otherwise the digests are updated, and leaves that have become nodes are added to `parts`.
    """
    leaves = list(values[span.start : span.stop])
    if span.is_plain and prove(leaves) == span.mark:
        return span
    marks = codec.marks(leaves)
    new = _span(span.start, leaves, marks)
    if new == span:
        return span
    for place, mark in zip(range(span.start, span.stop), marks, strict=True):
        if (now := short_digest(mark)) != digests[place]:
            digests[place] = now
            edits.append([[*path, steps[place]], values[place]])
            if (part := _follow_part(values[place], codec)) is not None:
                parts[place] = part
    return new


def _compare_part(part: Part, value: Any, path: Path, edits: Edits, codec: Codec) -> Part | None:
    """Compare one part, or set it; return the new part, `None` if it is a leaf."""
    if is_same(part, value):
        return part
    within: Edits = []
    try:
        found: Part | None = compare(part, value, path, within, codec)
    except Replaced:
        found, within = follow(value, codec), [[path, value]]
    edits += within
    return found


def _compare_keys(
    node: Node, value: Any, names: tuple[str, ...], values: Sequence[Any], path: Path, edits: Edits, codec: Codec
) -> Node:
    """Compare dicts with removed or added keys. Added keys must be at the end."""
    if node.kind is not dict or node.names is None:
        raise Replaced
    here, old = set(names), {name: place for place, name in enumerate(node.names)}
    if names != (*(name for name in node.names if name in here), *(name for name in names if name not in old)):
        raise Replaced
    edits += [[[*path, name]] for name in node.names if name not in here]
    parts: dict[int, Part] = {}
    for place, (name, each) in enumerate(zip(names, values, strict=True)):
        _compare_one(node, old.get(name), each, place, [*path, name], edits, parts, codec)
    return _rebuilt(value, names, values, parts, codec)


def _rebuilt(value: Any, names: Any, values: Sequence[Any], parts: dict[int, Part], codec: Codec) -> Node:
    found = _node(value, names, 0, values, parts, codec)
    if found is None:
        raise Replaced  # it has become small enough to be a leaf
    return found


def _compare_one(
    node: Node,
    was: int | None,
    value: Any,
    place: int,
    path: Path,
    edits: Edits,
    parts: dict[int, Part],
    codec: Codec,
) -> None:
    """Compare the old part at a position, if any, with a value; add the new part."""
    if was is not None and was in node.parts:
        part = _compare_part(node.parts[was], value, path, edits, codec)
    else:
        part = _follow_part(value, codec)
        if was is None or part is not None or short_digest(codec.fingerprint(value)) != node.digests[was]:
            edits.append([path, value])
    if part is not None:
        parts[place] = part


# -- lists: matching elements -------------------------------------------------------------------------------


def _compare_lists(node: Node, value: list[Any], path: Path, edits: Edits, codec: Codec) -> Node:
    count = len(node.digests)
    if len(value) == count:
        within: Edits = []
        found = _compare_places(node, value, value, range(count), path, within, codec)
        # If elements have shifted by one, every position differs.
        if len(within) <= max(1, count // 4):
            edits += within
            return found
    pairs = _pairs(node, _ids_of(value), value, codec)
    # Turn the positions of the old list into those of the new one, from the end, so that no position shifts.
    ends = [(-1, -1), *pairs, (count, len(value))]
    for (old, new), (old_end, new_end) in zip(reversed(ends[:-1]), reversed(ends[1:]), strict=True):
        if old_end - old > 1 or new_end - new > 1:
            edits.append([path, old + 1, old_end, list(value[new + 1 : new_end])])
    parts: dict[int, Part] = {}
    was_at = {new: old for old, new in pairs}
    for place, each in enumerate(value):
        kept = was_at.get(place)
        within = edits if kept is not None else []  # new elements were inserted by the edits above
        _compare_one(node, kept, each, place, [*path, place], within, parts, codec)
    return _rebuilt(value, None, value, parts, codec)


def _pairs(node: Node, ids: tuple[str, ...] | None, values: Sequence[Any], codec: Codec) -> list[tuple[int, int]]:
    """Match elements by id or content; return old and new positions, both ascending."""
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
    return _find_ascending(found)


def _mark_of(value: Any, codec: Codec) -> int:
    part = _follow_part(value, codec)
    return short_digest(codec.fingerprint(value)) if part is None else part.mark


def _find_ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest ascending subsequence of pairs (patience sorting)."""
    ends: list[int] = []  # the lowest end of the subsequences of each length
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


# -- versions --------------------------------------------------------------------------------------------------


@record
class KnownTree:
    """The memo of a value that is stored by parts: a snapshot, and deltas after it."""

    ref: Ref
    rows: Sequence[Row]  # without a new one
    tree: Part
    weight: int  # approximate memory in bytes
    snapshot_bytes: int
    delta_bytes: int = 0
    deltas: int = 0
    loose: Loose = NOTHING
    payloads: Sequence[bytes] = ()  # the item being appended, until it has a number
    fresh: tuple[Row, ...] = ()  # its row

    def with_number(self, first: int) -> KnownTree:
        """Return the memo of the value once the new item has the number `first`."""
        fresh = number_rows(self.fresh, first)
        loose = self.loose.extend(fresh, self.payloads) if self.deltas else NOTHING
        ref, rows = Ref(Kind.TREE, resolve(self.ref.runs, first)), (*self.rows, *fresh)
        return KnownTree(ref, rows, self.tree, self.weight, self.snapshot_bytes, self.delta_bytes, self.deltas, loose)


def first_tree(value: Any, tree: Part, codec: Codec) -> KnownTree:
    """Return `value` as a new snapshot."""
    payload = codec.pack_item(value)
    fresh = rows_of((payload,))
    weight = 400 + tree.weight + weight_of(fresh)
    ref = Ref(Kind.TREE, ((NEW, NEW + 1),))
    return KnownTree(ref, (), tree, weight, len(payload), payloads=(payload,), fresh=fresh)


def next_tree(value: Any, known: KnownTree, codec: Codec) -> tuple[KnownTree, tuple[Row, ...]] | None:
    """Return `value` as the version after `known`, and rows that replace small ones.

    `None` if edits cannot express the change.
    """
    edits: Edits = []
    try:
        tree = compare(known.tree, value, [], edits, codec)
    except Replaced:
        return None
    if not edits:
        return known, ()
    payload = codec.pack_item(edits)
    nbytes, most = known.delta_bytes + len(payload), max(FEW, known.snapshot_bytes // SNAPSHOT_EVERY)
    if nbytes > max(LIGHT, known.snapshot_bytes / 2) or known.deltas >= most:
        return first_tree(value, tree, codec), ()
    rows, repacks = pack_rows(known.rows, known.loose)
    loose, fresh = NOTHING if repacks else known.loose, rows_of((payload,))
    weight = 400 + tree.weight + weight_of(rows) + weight_of(fresh)
    ref = Ref(Kind.TREE, (*known.ref.runs, (NEW, NEW + 1)))
    deltas = known.deltas + 1
    return KnownTree(ref, rows, tree, weight, known.snapshot_bytes, nbytes, deltas, loose, (payload,), fresh), repacks


def is_settled(part: Part, was: Part | None, value: Any, codec: Codec) -> bool:
    """Return whether the new parts of a tree still match the value.

    Another thread may change a value while it is compared and packed. Then the tree and the stored bytes would differ,
    and a later change would be missed.
    """
    if part is was:
        return True
    if isinstance(part, Text):
        return type(value) is type(part.value) and bool(value == part.value)
    if type(value) is not part.kind:
        return False
    if part.proof:
        return prove(value) == part.proof
    found = parts_of(value, codec)
    if found is None or found[2] != part.shell or len(found[1]) != len(part.digests):
        return False
    names, values, _ = found
    if type(value) is not list and names != part.names:
        return False
    before = was if isinstance(was, Node) else None
    known = set(map(id, before.spans)) if before else ()
    for span in [span for span in part.spans if id(span) not in known]:
        leaves = list(values[span.start : span.stop])
        if _span(span.start, leaves, codec.marks(leaves)) != span:
            return False
    return all(
        is_settled(each, before.parts.get(place) if before else None, values[place], codec)
        for place, each in part.parts.items()
    )


def learn_tree(value: Any, ref: Ref, rows: Sequence[Row], codec: Codec) -> KnownTree | None:
    """Return the memo of a value that was just read; `None` if it is a leaf."""
    tree = follow(value, codec)
    if tree is None:
        return None
    holders = [rows[row_index(rows, number)] for number in numbers_of(ref.runs)]
    sizes = [content_size(row.body) // row.count for row in holders]
    weight = 400 + tree.weight + weight_of(rows)
    return KnownTree(ref, rows, tree, weight, sizes[0], sum(sizes[1:]), len(sizes) - 1, loose_end(rows, ref.runs))


def replay(items: Sequence[Any]) -> Any:
    """Apply deltas to a snapshot, in place, and return the value."""
    root = {"": items[0]}
    texts: dict[tuple[Any, ...], list[Sequence[Any]]] = {}
    try:
        for path, *edit in chain.from_iterable(items[1:]):
            if type(path) is not list:
                raise TypeError(f"found {path!r:.60} instead of a path")
            if len(edit) == 3 and type(edit[2]) in (str, bytes):
                texts.setdefault(tuple(path), []).append(edit)
            else:
                _splice_texts(root, texts)
                _edit(*_place_of(root, path), edit)
        _splice_texts(root, texts)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptStore(f"a delta does not match its value: {error!r}") from error
    return root[""]


def _place_of(root: dict[str, Any], path: Sequence[Any]) -> tuple[Any, Any]:
    """Return the container of the part at a path, and its name in the container."""
    *way, name = ["", *path]
    holder: Any = root
    for step in way:
        holder = _slots_of(holder)[step]
    return holder, name


def _edit(holder: Any, name: Any, edit: Sequence[Any]) -> None:
    slots = _slots_of(holder)
    if slots is not holder and (not edit or name not in slots):
        raise KeyError(name)  # edits cannot add or remove fields
    if not edit:
        del slots[name]
    elif len(edit) == 1:
        if type(slots) is dict or 0 <= name < len(slots):  # negative positions are never written
            slots[name] = edit[0]
        else:
            raise IndexError(name)
    else:
        start, stop, content = edit
        part = slots[name]
        if type(part) is not list or type(content) is not list:
            _refuse(content)
        if not 0 <= start <= stop <= len(part):
            raise IndexError(stop)
        part[start:stop] = content


def _splice_texts(root: dict[str, Any], texts: dict[tuple[Any, ...], list[Sequence[Any]]]) -> None:
    """Replace slices of texts, all slices of a text together, and clear `texts`."""
    for path, splices in texts.items():
        holder, name = _place_of(root, path)
        slots = _slots_of(holder)
        if slots is not holder and name not in slots:
            raise KeyError(name)
        text = slots[name]
        pieces = [text]  # building each of 52 versions of a text of 200 KB took two milliseconds
        for start, stop, content in splices:
            if type(content) is not type(text):
                _refuse(content)
            if not 0 <= start <= stop:
                raise IndexError(stop)
            first, begin = _piece_at(pieces, start)
            last, end = _piece_at(pieces, stop)
            pieces[first : last + 1] = [pieces[first][:begin], content, pieces[last][end:]]
        slots[name] = type(text)().join(pieces)
    texts.clear()


def _piece_at(pieces: Sequence[Any], place: int) -> tuple[int, int]:
    """Return the piece that contains or ends at a position, and the position in it."""
    for nth, piece in enumerate(pieces):
        if place <= len(piece):
            return nth, place
        place -= len(piece)
    raise IndexError(place)


def _refuse(content: Any) -> NoReturn:
    raise TypeError(f"found {content!r:.60} instead of a part of the same type")


def _slots_of(holder: Any) -> Any:
    """Return the mapping or list of a container's parts."""
    if type(holder) in (dict, list):
        return holder
    return holder.slots if type(holder) is Unread else attributes_of(holder, shape_of(type(holder)))
