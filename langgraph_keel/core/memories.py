"""Where the memories of subgraphs were at a moment of their root graph.

A subgraph with `checkpointer=True` has one namespace for all its calls, and each call begins with the latest checkpoint
there. So when the root goes back, that must be the one the subgraph had come to. Its checkpoints say from which root
checkpoint they were called (`metadata["parents"][""]`); those called from where a way leads through belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from langgraph_keel.core.address import is_task
from langgraph_keel.core.checkpoints import where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.headers import Header, unpack_header
from langgraph_keel.core.records import Graph, Node
from langgraph_keel.core.twins import REWOUND_TO

BEFORE_ALL = -1
"""The place of what was called from a checkpoint that is gone, when no root checkpoint was there that still is."""


class Memory(NamedTuple):
    """A checkpoint of a subgraph with a memory.

    Attributes:
        node: Itself.
        header: Its header.
        caller: The root checkpoint that it was called from; of one that is not stored (`durability="exit"`) or is gone,
            the one that was put last before it; empty if there was none.
    """

    node: Node
    header: Header
    caller: str

    @property
    def is_twin(self) -> bool:
        """Whether it was added to go back to another one."""
        return REWOUND_TO in self.header.metadata

    @property
    def is_empty(self) -> bool:
        """Whether it stands for nothing (`forks`)."""
        return not self.header.checkpoint.get("channel_versions")


def moved_back(graph: Graph, moment: Node, codec: Codec) -> dict[str, Node | None]:
    """Return what the memories of subgraphs must go back to with the root, where that is not their latest already.

    Returns:
        Per namespace, outer ones first, the checkpoint; `None` if there was nothing yet.
    """
    memories: dict[str, list[Memory]] = {}
    for memory in _memories(graph, codec):
        memories.setdefault(memory.node.address.checkpoint_ns, []).append(memory)
    way = _way(graph, moment, codec) if memories else {}
    back = {namespace: _chosen(found, way) for namespace, found in sorted(memories.items())}
    return {namespace: node for namespace, (node, is_there) in back.items() if not is_there}


def _memories(graph: Graph, codec: Codec) -> Iterator[Memory]:
    roots = {node.address.checkpoint_id for node in graph.nodes if not node.address.checkpoint_ns}
    latest = ""
    for node in graph.nodes:
        if not node.address.checkpoint_ns:
            latest = str(node.address.checkpoint_id)
        elif not node.is_ghost and _has_memory(node.address.checkpoint_ns):
            header = unpack_header(node.header, codec, where_is(node.address))
            caller = (header.metadata.get("parents") or {}).get("")
            yield Memory(node, header, str(caller) if caller in roots else latest)


def _has_memory(namespace: str) -> bool:
    return not any(is_task(part.partition(":")[2]) for part in namespace.split("|"))


def _chosen(found: list[Memory], way: Mapping[str, int]) -> tuple[Node | None, bool]:
    """Return the memory that belongs to a way, and whether it is the latest.

    What was called later on the way counts more, and then what was put later. A twin is put later than what it is a
    twin of, whatever the way: it counts if nothing else is left.
    """
    on_way = [memory for memory in found if memory.caller in way and not memory.is_empty]
    best = max(
        enumerate(on_way), key=lambda each: (not each[1].is_twin, way[each[1].caller], each[0]), default=(0, None)
    )[1]
    head = next((memory for memory in found if memory.node.is_head), None)
    if best is None:
        return None, head is None or head.is_empty
    return best.node, head is not None and (head is best or _is_twin_of(head, best))


def _is_twin_of(head: Memory, best: Memory) -> bool:
    return head.header.metadata.get(REWOUND_TO) == best.node.address.checkpoint_id


def _way(graph: Graph, moment: Node, codec: Codec) -> dict[str, int]:
    """Return the root checkpoints whose steps led to a moment: the later the step, the greater the number."""
    roots = {node.address.checkpoint_id: node for node in graph.nodes if not node.address.checkpoint_ns}
    way: list[str] = []
    node, seen = moment, {moment.address.checkpoint_id}
    while node.parent in roots and node.parent not in seen:
        parent = roots[node.parent]
        if not _is_copy(_metadata(node, codec), parent, codec):
            way.append(str(parent.address.checkpoint_id))
        node = parent
        seen.add(node.address.checkpoint_id)
    return {checkpoint_id: place for place, checkpoint_id in enumerate(reversed(way))} | {"": BEFORE_ALL}


def _is_copy(metadata: Mapping[str, Any], parent: Node, codec: Codec) -> bool:
    """Return whether LangGraph made a checkpoint as a copy of its parent, to run that one's step again."""
    return metadata.get("source") == "fork" and metadata.get("step") == _metadata(parent, codec).get("step")


def _metadata(node: Node, codec: Codec) -> Mapping[str, Any]:
    return unpack_header(node.header, codec, where_is(node.address)).metadata
