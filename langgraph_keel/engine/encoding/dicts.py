"""Dicts as path deltas: a snapshot, then what changed in it, path by path.

A delta is `[[[path, value], ...], [path, ...]]`: what to set, in order, and what to delete. Python dicts are ordered
and users see that order, so a change that a delta cannot reproduce (keys moved) replaces the subtree. A new snapshot is
written when the deltas weigh more than half of the last one, in bytes, not in count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from langgraph_keel.engine.encoding.rows import NOTHING, Loose, rows_of
from langgraph_keel.engine.records import NEW, Kind, Ref, Row, Run, resolve
from langgraph_keel.engine.serde.codec import Codec, digest, short_digest
from langgraph_keel.errors import CorruptStore

SPLIT = 512
"""A dict whose fingerprint is shorter is a leaf: naming a path in it would save nothing."""
BUCKET = 64
"""Keys whose values are fingerprinted in one go; only the buckets that differ are looked at key by key."""


@dataclass(slots=True)
class Delta:
    """The changes from one version of a dict to the next."""

    sets: list[list[Any]] = field(default_factory=list)
    deletes: list[list[str]] = field(default_factory=list)

    def record(self) -> list[list[Any]]:
        """Return what is stored."""
        return [self.sets, self.deletes]


@dataclass(frozen=True, slots=True)
class Tree:
    """Digests of a dict's values: per bucket of keys, per key, and the same again for large dicts inside."""

    keys: tuple[str, ...]
    buckets: Sequence[int]
    digests: Sequence[int]
    subtrees: dict[str, Tree]

    def shows(self, other: Tree) -> bool:
        """Return whether both are of equal dicts."""
        return self.keys == other.keys and self.buckets == other.buckets

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 120 + 100 * len(self.keys) + sum(tree.weight for tree in self.subtrees.values())


@dataclass(frozen=True, slots=True)
class KnownDict:
    """What a process remembers of a dict it stored or read.

    Attributes:
        runs: The numbers of its snapshot and of its deltas, in order.
        tree: Digests of its parts.
        snapshot_bytes: What the snapshot weighs.
        delta_bytes: What the deltas weigh together.
        loose: Its deltas that are not packed yet.
        fresh: Payload of the item being appended, until it has a number.
    """

    runs: tuple[Run, ...]
    tree: Tree
    snapshot_bytes: int
    delta_bytes: int = 0
    loose: Loose = NOTHING
    fresh: tuple[bytes, ...] = ()

    @property
    def ref(self) -> Ref:
        """Where this version lives."""
        return Ref(Kind.DICT, self.runs)

    @property
    def weight(self) -> int:
        """Bytes this takes in memory, about."""
        return 300 + self.tree.weight + self.loose.nbytes

    def appends(self) -> tuple[Row, ...]:
        """Rows to append to the log for this version."""
        return rows_of(self.fresh)

    def with_number(self, first: int) -> KnownDict:
        """Return itself after its new item got its number, `first`."""
        is_delta = len(self.runs) > 1 or self.runs[0][1] - self.runs[0][0] > 1
        loose = self.loose.extend(first, self.fresh) if is_delta else NOTHING
        return replace(self, runs=resolve(self.runs, first), loose=loose, fresh=())


def has_text_keys(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a plain dict whose keys can be parts of a path."""
    return type(value) is dict and all(type(key) is str for key in value)


def is_splittable(value: Any, nbytes: int) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a dict that is worth following path by path."""
    return nbytes >= SPLIT and has_text_keys(value)


def first_dict(value: dict[str, Any], codec: Codec) -> KnownDict:
    """Return `value` as a version that builds on nothing."""
    payload = codec.pack_item(value)
    return KnownDict(((NEW, NEW + 1),), tree_of(value, codec), len(payload), fresh=(payload,))


def next_dict(value: dict[str, Any], known: KnownDict, codec: Codec) -> tuple[KnownDict, tuple[Row, ...]]:
    """Return `value` as the version after `known`, and rows that replace small ones."""
    delta = Delta()
    tree = _compare(known.tree, value, [], delta, codec)
    if tree is None:
        return first_dict(value, codec), ()
    if not (delta.sets or delta.deletes):
        return known, ()
    payload = codec.pack_item(delta.record())
    weight = known.delta_bytes + len(payload)
    if weight > known.snapshot_bytes / 2:
        return first_dict(value, codec), ()
    repacks = known.loose.pack()
    loose = NOTHING if repacks else known.loose
    runs = (*known.runs, (NEW, NEW + 1))
    return KnownDict(runs, tree, known.snapshot_bytes, weight, loose, (payload,)), repacks


def tree_of(value: dict[str, Any], codec: Codec) -> Tree:
    """Return the digests of a dict's parts."""
    values = list(value.values())
    marks = [codec.fingerprint(part) for part in values]
    subtrees = {
        key: tree_of(part, codec)
        for (key, part), mark in zip(value.items(), marks, strict=True)
        if is_splittable(part, len(mark))
    }
    return Tree(tuple(value), _buckets(values, codec), [short_digest(mark) for mark in marks], subtrees)


def _buckets(values: list[Any], codec: Codec) -> list[int]:
    return [digest(codec.fingerprint(values[at : at + BUCKET])) for at in range(0, len(values), BUCKET)]


def _compare(tree: Tree, value: dict[str, Any], path: list[str], delta: Delta, codec: Codec) -> Tree | None:
    """Add what changed in `value` to `delta`; return its new tree, or `None` if a delta cannot say it."""
    keys = tuple(value)
    values = list(value.values())
    buckets = _buckets(values, codec)
    suspects: Sequence[int]
    if keys == tree.keys:
        suspects = _suspects(tree, buckets, len(keys))
    else:
        old = set(tree.keys)
        if keys != (*(k for k in tree.keys if k in value), *(k for k in keys if k not in old)):
            return None
        suspects = range(len(keys))
        delta.deletes.extend([*path, key] for key in tree.keys if key not in value)
    return _compare_keys(tree, keys, values, buckets, suspects, path, delta, codec)


def _suspects(tree: Tree, buckets: list[int], count: int) -> list[int]:
    return [
        position
        for at, (new, old) in enumerate(zip(buckets, tree.buckets, strict=True))
        if new != old
        for position in range(at * BUCKET, min(count, (at + 1) * BUCKET))
    ]


def _compare_keys(
    tree: Tree,
    keys: tuple[str, ...],
    values: list[Any],
    buckets: list[int],
    suspects: Sequence[int],
    path: list[str],
    delta: Delta,
    codec: Codec,
) -> Tree:
    places = {key: place for place, key in enumerate(tree.keys)} if keys != tree.keys else None
    digests = list(tree.digests) if places is None else [0] * len(keys)
    subtrees = {key: sub for key, sub in tree.subtrees.items() if places is None or key in keys}
    for position in suspects:
        key, part = keys[position], values[position]
        mark = codec.fingerprint(part)
        digests[position] = short_digest(mark)
        place = position if places is None else places.get(key)
        if place is None or digests[position] != tree.digests[place]:
            _replace(key, part, mark, subtrees, path, delta, codec)
    return Tree(keys, buckets, digests, subtrees)


def _replace(
    key: str,
    part: Any,
    mark: bytes,
    subtrees: dict[str, Tree],
    path: list[str],
    delta: Delta,
    codec: Codec,
) -> None:
    known = subtrees.pop(key, None)
    if is_splittable(part, len(mark)):
        within = Delta()
        tree = _compare(known, part, [*path, key], within, codec) if known else None
        subtrees[key] = tree if tree is not None else tree_of(part, codec)
        if tree is not None:
            delta.sets += within.sets
            delta.deletes += within.deletes
            return
    delta.sets.append([[*path, key], part])


def replay(items: Sequence[Any]) -> dict[str, Any]:
    """Return the dict that a snapshot and its deltas make. The snapshot is changed in place.

    Raises:
        CorruptStore: A delta does not fit.
    """
    value: dict[str, Any] = items[0]
    try:
        for sets, deletes in items[1:]:
            for path in deletes:
                del _at(value, path)[path[-1]]
            for path, part in sets:
                _at(value, path)[path[-1]] = part
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptStore(f"a delta does not fit the dict it was made for: {error!r}") from error
    return value


def _at(value: dict[str, Any], path: list[str]) -> dict[str, Any]:
    for key in path[:-1]:
        value = value[key]
    return value


def learned_dict(value: dict[str, Any], runs: tuple[Run, ...], sizes: Sequence[int], codec: Codec) -> KnownDict | None:
    """Return what is known of a dict just read, `sizes` being what its items weigh; `None` if it cannot be followed."""
    if not has_text_keys(value):
        return None
    return KnownDict(runs, tree_of(value, codec), sizes[0], sum(sizes[1:]))
