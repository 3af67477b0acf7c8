"""What tells which memory of a subgraph belongs to which moment, when most of the moments are gone.

`core.memories` finds that by the root checkpoints that called the subgraph, and by the way on which they lie. Where a
removal would make it find something else, those checkpoints stay as ghosts: seldom, for it takes branches, and
subgraphs with a memory. Of the latest moment it is no question: a run goes on from the latest memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from langgraph_keel.core.headers import Header
from langgraph_keel.core.memories import Memories
from langgraph_keel.core.records import Graph, Node, Stamp
from langgraph_keel.core.removing import Doomed, Survey
from langgraph_keel.core.twins import REWOUND_TO

_Found: TypeAlias = Mapping[Stamp, Mapping[str, str | None]]


def anchor(read: Survey, kept: Collection[Stamp], doom: Doomed) -> None:
    """Make ghosts of some that are doomed, so that each moment keeps its memories."""
    if not doom.gone:
        return
    others = [node for node, _ in read.seen if node.stamp in kept and not node.is_head]
    roots = [node for node in others if not node.address.checkpoint_ns]
    if not roots:
        return
    headers = {node.stamp: header for node, header in read.all}
    before = _found(read.graph, roots, headers)
    if not any(before.values()):
        return
    callers = {(header.metadata.get("parents") or {}).get("") for node, header in read.seen if node.stamp in kept}
    for is_last in (False, True):
        after = _found(_left(read.graph, doom), roots, headers)
        wrong = [root for root in roots if after[root.stamp] != before[root.stamp]]
        for node in _ways(read.graph, wrong) if is_last else _named(read.graph, callers if wrong else ()):
            if node.stamp in doom.gone:
                doom.gone.discard(node.stamp)
                doom.ghosts[node.stamp] = set()


def _found(graph: Graph, roots: Sequence[Node], headers: Mapping[Stamp, Header]) -> _Found:
    """Return, by root and namespace, the checkpoint that the subgraph would go on from; `None` is from nothing."""
    memories = Memories(graph, lambda node: headers[node.stamp])
    latest = {node.address.checkpoint_ns: node for node in graph.nodes if node.is_head and memories.has(node)}
    # In what a removal leaves, its parent may be another one.
    same = {node.stamp: node for node in graph.nodes}
    return {
        root.stamp: {
            ns: _meant(node, headers) for ns, node in {**latest, **memories.moved_back(same[root.stamp])}.items()
        }
        for root in roots
    }


def _meant(node: Node | None, headers: Mapping[Stamp, Header]) -> str | None:
    if node is None or not headers[node.stamp].checkpoint.get("channel_versions"):
        return None
    return str(headers[node.stamp].metadata.get(REWOUND_TO) or node.address.checkpoint_id)


def _left(graph: Graph, doom: Doomed) -> Graph:
    """Return what a removal leaves, as every store tells it."""
    nodes = [node for node in graph.nodes if node.stamp not in doom.gone]
    ids = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node in nodes}
    return Graph(
        [
            replace(
                node,
                is_ghost=node.is_ghost or node.stamp in doom.ghosts,
                parent=node.parent if (node.address.checkpoint_ns, node.parent) in ids else None,
            )
            for node in nodes
        ],
        {},
        None,
    )


def _named(graph: Graph, names: Collection[str | None]) -> Iterator[Node]:
    return (node for node in graph.nodes if not node.address.checkpoint_ns and node.address.checkpoint_id in names)


def _ways(graph: Graph, roots: Sequence[Node]) -> Iterator[Node]:
    """Yield all that root checkpoints came from."""
    by_id = {node.address.checkpoint_id: node for node in graph.nodes if not node.address.checkpoint_ns}
    seen: set[Stamp] = set()
    for root in roots:
        node: Node | None = root
        while node is not None and node.stamp not in seen:
            seen.add(node.stamp)
            yield node
            node = by_id.get(node.parent)
