"""A whole thread as retention sees it, and what it wants removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph_keel.core.records import Graph, Node, Ref, Run
from langgraph_keel.postgres.keys import by_key, key, name_of
from langgraph_keel.postgres.rows import Line, parts_of, refs_of

GHOST = 2


def graph_of(lines: Sequence[Line]) -> Graph:
    """Return the graph in the lines of a reply."""
    entries = sorted((line for line in lines if line.what == 0), key=lambda line: line.seq)
    heads = _heads(entries)
    names = by_key(name for line in entries for name in line.names or ())
    ends = {(name_of(line.ns, names), name_of(line.id, names)): line.n for line in lines if line.what == 1}
    epoch = next((line.epoch for line in lines if line.what == 3), None)
    return Graph([_node(line, line.seq in heads) for line in entries], ends, epoch)


def _heads(entries: Sequence[Line]) -> set[int]:
    """Return where the heads are: per namespace the newest on the trunk, or of all if no trunk is left."""
    heads: dict[str, Line] = {}
    for line in entries:
        best = heads.get(line.ns)
        if line.n != GHOST and (best is None or line.n <= best.n):
            heads[line.ns] = line
    return {line.seq for line in heads.values()}


def _node(line: Line, is_head: bool) -> Node:
    address, parent, stamp, header, run = parts_of(line)
    return Node(address, parent, stamp, header, LateRefs(line), run, is_head, line.n == GHOST)


class LateRefs(Mapping[str, Ref]):
    """The refs of an entry, made when they are asked for: of a thousand entries, a prune asks those that stay."""

    __slots__ = ("_line", "_made")

    def __init__(self, line: Line) -> None:
        self._line: Line | None = line
        self._made: Mapping[str, Ref] = {}

    def _refs(self) -> Mapping[str, Ref]:
        if (line := self._line) is not None:
            owners, los, his = map(_numbers, (line.owners, line.los, line.his))
            self._made, self._line = refs_of(line._replace(owners=owners, los=los, his=his)), None
        return self._made

    def __getitem__(self, channel: str) -> Ref:
        return self._refs()[channel]

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs())

    def __len__(self) -> int:
        return len(self._refs())


def _numbers(array: Any) -> list[int]:
    """Return the numbers of an array that was sent as text."""
    return [int(number) for number in array[1:-1].split(",") if number]


def removal_parameters(
    thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph
) -> dict[str, list[Any] | Any]:
    """Return the parameters of `Store.remove_rows`."""
    ends = [(key(ns), key(channel), end) for (ns, channel), end in graph.ends.items()]
    runs = [(key(ns), key(channel), lo, hi) for (ns, channel), shown in live.items() for lo, hi in shown]
    return {
        "thread": key(thread_id),
        "epoch": graph.epoch or 0,
        "nss": [ns for ns, _, _ in ends],
        "channels": [channel for _, channel, _ in ends],
        "ends": [end for _, _, end in ends],
        "live_nss": [ns for ns, _, _, _ in runs],
        "live_channels": [channel for _, channel, _, _ in runs],
        "los": [lo for _, _, lo, _ in runs],
        "his": [hi for _, _, _, hi in runs],
    }
