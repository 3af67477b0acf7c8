"""Which checkpoints of subgraphs belong to steps that go on, or that a kept checkpoint must be read with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.engine.config import is_task
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.lineage import Moment
from langgraph_keel.engine.records import Stamp


def find_open_heads(moments: Sequence[Moment], others: Collection[str | None] = ()) -> set[Stamp]:
    """Return the latest checkpoint of every namespace, except those of subgraph calls that are over.

    Args:
        moments: The checkpoints of a thread, in the order they were put.
        others: The ids of checkpoints beside the heads whose steps are not over.
    """
    return _Heads(moments, others).find_open()


def find_called_from(moments: Sequence[Moment], ids: Collection[str | None]) -> set[Stamp]:
    """Return what subgraphs have put in the steps of these root checkpoints, however deep they are nested."""
    inner = [each for each in moments if each[0].address.checkpoint_ns] if ids else []
    return {node.stamp for node, header in inner if _parents(header).get("") in ids}


def _parents(header: Header) -> Mapping[str, Any]:
    parents = header.metadata.get("parents")
    return parents if isinstance(parents, Mapping) else {}


class _Heads:
    """The latest checkpoint of every namespace, and whether the calls that they belong to are over."""

    def __init__(self, moments: Sequence[Moment], others: Collection[str | None]) -> None:
        self._known = {(node.address.checkpoint_ns, node.address.checkpoint_id) for node, _ in moments}
        self._heads = {
            node.address.checkpoint_ns: (place, node, header)
            for place, (node, header) in enumerate(moments)
            if node.is_head
        }
        self._ids = {node.address.checkpoint_id for _, node, _ in self._heads.values()} | set(others)

    def find_open(self) -> set[Stamp]:
        return {node.stamp for namespace, (_, node, _) in self._heads.items() if not self._is_over(namespace)}

    def _is_over(self, namespace: str) -> bool:
        """Return whether a namespace belongs to a subgraph call whose parent step is no longer the latest."""
        outer, _, call = namespace.rpartition(NS_SEP)
        if not is_task(call.partition(NS_END)[2]):
            return False
        place, _, header = self._heads[namespace]
        parents = _parents(header)
        if self._is_left(outer, parents.get(outer), place):
            return True
        if outer in self._heads:
            return bool(outer) and self._is_over(outer)
        return self._is_left("", parents.get(""), place)

    def _is_left(self, outer: str, parent: Any, place: int) -> bool:
        """Return whether a graph went on from the checkpoint that a subgraph was called from.

        One that is not there is gone, or not stored yet: with `durability="async"` a subgraph's checkpoints overtake
        that of the step they belong to. It is yet to come if the subgraph has put since the graph's latest, or if its
        id is a later one: ids are made of times, so clocks that differ keep too much rather than too little.
        """
        if parent is None or parent in self._ids:
            return False
        if (outer, parent) in self._known:
            return True
        if outer not in self._heads:
            return False
        latest, node, _ = self._heads[outer]
        return latest > place and str(parent) <= str(node.address.checkpoint_id)
