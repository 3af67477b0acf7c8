"""Edits as a JSON Patch (RFC 6902): carried out one after the other on the older state as JSON, they give the newer.

An operation finds what those before it have left. So lists are put in order from the outermost in, each by removals
from its end on, then moves, then what was added from its beginning on; by then everything stands where it does in the
newer state, which is where the paths of all other edits point.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from langgraph_keel.timeline.edits import Edit, Step
from langgraph_keel.timeline.plain import as_json

Operation: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[Step, ...]


def operations(edits: Iterable[Edit]) -> list[Operation]:
    """Return the operations of a JSON Patch."""
    lists: defaultdict[_Path, list[Edit]] = defaultdict(list)
    others: list[Operation] = []
    for edit in edits:
        if edit.kind != "changed" and edit.path and isinstance(edit.path[-1], int):
            lists[edit.path[:-1]].append(edit)
        else:
            others.append(_of_one(edit))
    ordered = [step for path in sorted(lists, key=len) for step in _of_list(path, lists[path])]
    return [*ordered, *others]


def pointer(path: Iterable[Step]) -> str:
    """Return a path as a JSON Pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _of_one(edit: Edit) -> Operation:
    where = pointer(edit.path)
    if edit.kind == "removed":
        return {"op": "remove", "path": where}
    return {
        "op": "add" if edit.kind == "added" else "replace",
        "path": where,
        "value": as_json(edit.after, len(edit.path)),
    }


def _of_list(path: _Path, edits: Sequence[Edit]) -> Iterator[Operation]:
    removed = sorted((_place(edit) for edit in edits if edit.kind == "removed"), reverse=True)
    added = {_place(edit): edit for edit in edits if edit.kind == "added"}
    yield from ({"op": "remove", "path": pointer((*path, place))} for place in removed)
    moves = {edit.before: _place(edit) for edit in edits if edit.kind == "moved"}
    came = sorted(added)
    ranks = {before: after - bisect_left(came, after) for before, after in moves.items()}
    yield from _moves(path, ranks, set(removed))
    yield from (_of_one(added[place]) for place in came)


def _moves(path: _Path, moved: dict[int, int], removed: AbstractSet[int]) -> Iterator[Operation]:
    """Put each moved element behind the one that it follows.

    Args:
        path: The list.
        moved: Of each moved element, by its place before, its place among those that have stayed.
        removed: The places of those that are gone by now.
    """
    if not moved:
        return
    most = max(*moved, *moved.values(), *removed, 0) + len(moved) + len(removed) + 1
    now = [place for place in range(most) if place not in removed]
    ordered = [place for place in now if place not in moved]
    for place, rank in sorted(moved.items(), key=lambda each: each[1]):
        ordered.insert(rank, place)
    for place, rank in sorted(moved.items(), key=lambda each: each[1]):
        start = now.index(place)
        now.remove(place)
        stop = now.index(ordered[rank - 1]) + 1 if rank else 0
        now.insert(stop, place)
        yield {"op": "move", "from": pointer((*path, start)), "path": pointer((*path, stop))}


def _place(edit: Edit) -> int:
    return int(edit.path[-1])
