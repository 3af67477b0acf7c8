"""Ancestry of checkpoints, and the state of subgraph memories at each of them.

A subgraph with `checkpointer=True` has one namespace for all its calls, and each call begins with the latest checkpoint
there (its *memory*). If the root graph is rewound, the memory must be, too: to a checkpoint of a call from an ancestor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.engine.config import Address, is_task
from langgraph_keel.engine.entries import BRANCHED_FROM, REWOUND_TO, Header, unpack_header
from langgraph_keel.engine.records import Graph, Node, Stamp
from langgraph_keel.engine.serde.serializer import Codec

NodeAndHeader: TypeAlias = tuple[Node, Header]
"""A visible checkpoint, without its values."""


def instant(ts: object) -> float | None:
    """Return an ISO time (default UTC) in ms since 1970; `None` if it is invalid."""
    try:
        at = datetime.fromisoformat(str(ts))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000


def made_at(header: Header) -> float | None:
    """Return a checkpoint's creation time, in ms since 1970; `None` if unknown."""
    return instant(header.checkpoint.get("ts"))


def roots_in(moments: Sequence[NodeAndHeader]) -> list[NodeAndHeader]:
    """Return the checkpoints of the root graph."""
    return [each for each in moments if not each[0].address.checkpoint_ns]


def leaves(moments: Sequence[NodeAndHeader], but: Collection[Stamp] = ()) -> list[NodeAndHeader]:
    """Return the checkpoints without a child and without a twin from a rewind."""
    continued = {(node.address.checkpoint_ns, node.parent) for node, _ in moments}
    ends = [each for each in moments if _place(each) not in continued and each[0].stamp not in but]
    if not ends:  # the common case, in which no header needs to be decoded
        return []
    twins = {(node.address.checkpoint_ns, header.metadata.get(REWOUND_TO)) for node, header in moments}
    return [each for each in ends if _place(each) not in twins]


def _place(moment: NodeAndHeader) -> tuple[str, str | None]:
    return moment[0].address.checkpoint_ns, moment[0].address.checkpoint_id


def step_of(header: Header) -> int | None:
    """Return the number of the superstep that made a checkpoint; `None` if unknown."""
    step = header.metadata.get("step")
    return step if type(step) is int else None


class Ancestry:
    """The ancestors of the checkpoints of a thread, given in the order of storage.

    At a pruned parent, `way` ends, and `likely_way` continues with a guess.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(nodes)
        addresses = (node.address for node in self._nodes)
        self._places = {(at.checkpoint_ns, at.checkpoint_id): place for place, at in enumerate(addresses)}

    def parent(self, node: Node) -> Node | None:
        """Return the parent of a checkpoint; `None` if it has none or it was removed."""
        place = None if node.parent is None else self._places.get((node.address.checkpoint_ns, node.parent))
        return None if place is None else self._nodes[place]

    def way(self, *nodes: Node) -> Iterator[Node]:
        """Yield checkpoints and their ancestors up to a removed parent, each one once."""
        return _walk(nodes, self.parent)

    def likely_parent(self, node: Node, header_of: Callable[[Node], Header]) -> Node | None:
        """Return the likely parent of a checkpoint.

        If the parent was pruned (some stores then return `None`), it is the last checkpoint of the namespace stored
        before with a lower step. Checkpoints with higher steps were abandoned by a rewind.
        """
        parent = self.parent(node)
        if parent is not None:
            return parent
        namespace = node.address.checkpoint_ns
        step = step_of(header_of(node))
        if step is None and node.parent is None:
            return None
        for place in range(self._places.get((namespace, node.address.checkpoint_id), 0) - 1, -1, -1):
            earlier = self._nodes[place]
            if earlier.address.checkpoint_ns == namespace:
                other = step_of(header_of(earlier))
                if step is None or other is None or other < step:
                    return earlier
        return None

    def likely_way(self, node: Node, header_of: Callable[[Node], Header]) -> Iterator[Node]:
        """Yield a checkpoint and its likely ancestors, the latest first."""
        return _walk([node], lambda each: self.likely_parent(each, header_of))


def _walk(nodes: Iterable[Node], before: Callable[[Node], Node | None]) -> Iterator[Node]:
    seen: set[Stamp] = set()
    for start in nodes:
        node: Node | None = start
        while node is not None and node.stamp not in seen:  # stored parents may form a cycle
            seen.add(node.stamp)
            yield node
            node = before(node)


def find_steps_behind(moments: Sequence[NodeAndHeader], kept: Collection[Stamp]) -> Iterator[str | None]:
    """Yield the ids of the checkpoints whose steps led to all of the kept ones.

    The results of tools called in these steps are part of every kept state. A call from another checkpoint may be
    repeated, because that checkpoint is on an abandoned branch, or was abandoned by a rewind.
    """
    roots = roots_in(moments)
    ancestry = Ancestry(node for node, _ in roots)
    # An update or a copy continues without the results of the step.
    steps = {node.stamp for node, header in roots if header.metadata.get("source") == "loop"}
    ways = [
        {each.parent for each in ancestry.way(node) if each.stamp in steps} for node, _ in roots if node.stamp in kept
    ]
    led = set.intersection(*ways) if ways else set()
    yield from led
    for node, header in moments:
        parents = header.metadata.get("parents")
        if node.address.checkpoint_ns and isinstance(parents, Mapping) and parents.get("") in led:
            yield node.address.checkpoint_id


def origin_of(parent: str | None, metadata: Mapping[str, Any], known: Container[object]) -> str | None:
    """Return the checkpoint before this one; for a twin, the original."""
    originals = (metadata.get(mark) for mark in (REWOUND_TO, BRANCHED_FROM))
    return next((each for each in originals if isinstance(each, str) and each in known), parent)


def walk_back(start: str | None, origins: Mapping[str | None, str | None]) -> Iterator[str | None]:
    """Yield a root checkpoint and its origins, nearest first, until one is missing."""
    seen: set[str | None] = set()
    while start in origins and start not in seen:  # stored origins may form a cycle
        seen.add(start)
        yield start
        start = origins[start]


def root_of(address: Address, metadata: Mapping[str, Any]) -> Any:
    """Return the id of the root checkpoint: itself, or the caller of a subgraph."""
    parents = metadata.get("parents")
    outer = parents.get("") if isinstance(parents, Mapping) else None
    return outer if address.checkpoint_ns else address.checkpoint_id


class Memory(NamedTuple):
    """A checkpoint of a subgraph with a memory."""

    node: Node
    header: Header
    # The root checkpoint that called it. If that was removed or never stored (`durability="exit"`): the last root
    # checkpoint stored before it; empty if there was none.
    caller: str

    @property
    def is_twin(self) -> bool:
        """Whether a rewind added it as a copy of an earlier one."""
        return REWOUND_TO in self.header.metadata

    @property
    def is_empty(self) -> bool:
        """Whether it marks that there was no memory (`forks`)."""
        return not self.header.checkpoint.get("channel_versions")


class Memories:
    """The memories of a thread's subgraphs at moments of its root graph."""

    def __init__(self, graph: Graph, header_of: Callable[[Node], Header]) -> None:
        self._header_of = header_of
        self._roots = [node for node in graph.nodes if not node.address.checkpoint_ns]
        self._ids = {node.address.checkpoint_id for node in self._roots}
        self._ancestry = Ancestry(self._roots)
        self._found: dict[str, list[Memory]] = {}
        latest = ""
        for node in graph.nodes:
            namespace = node.address.checkpoint_ns
            if not namespace:
                latest = str(node.address.checkpoint_id)
            elif not node.is_ghost and not any(is_task(part.partition(NS_END)[2]) for part in namespace.split(NS_SEP)):
                header = header_of(node)
                caller = (header.metadata.get("parents") or {}).get("")
                memory = Memory(node, header, str(caller) if caller in self._ids else latest)
                self._found.setdefault(namespace, []).append(memory)

    def find_moves_back(self, moment: Node) -> dict[str, Node | None]:
        """Return the memories to return to with the root, except those already current."""
        way = self._way(moment) if self._found else {}
        back = {namespace: _choose_memory(found, way) for namespace, found in sorted(self._found.items())}
        return {namespace: node for namespace, (node, is_there) in back.items() if not is_there}

    def has(self, node: Node) -> bool:
        """Return whether an entry is a memory."""
        return node.address.checkpoint_ns in self._found

    def _way(self, moment: Node) -> dict[str, int]:
        """Return the root checkpoints whose steps led to a moment, numbered by step."""
        way = list(self._ancestry.likely_way(moment, self._header_of))
        led = [str(before.address.checkpoint_id) for node, before in pairwise(way) if not self._is_copy(node, before)]
        # Before all of these: calls from a removed root checkpoint.
        return {checkpoint_id: place for place, checkpoint_id in enumerate(reversed(led))} | {"": -1}

    def _is_copy(self, node: Node, before: Node) -> bool:
        """Return whether LangGraph copied the parent, to run its step again."""
        metadata = self._header_of(node).metadata
        is_same_step = metadata.get("step") == self._header_of(before).metadata.get("step")
        return node.parent == before.address.checkpoint_id and metadata.get("source") == "fork" and is_same_step


def find_moves_back(graph: Graph, moment: Node, codec: Codec) -> dict[str, Node | None]:
    """As `Memories.find_moves_back`, for one moment of a thread."""
    return Memories(graph, lambda node: unpack_header(node.header, codec, node.address)).find_moves_back(moment)


def _choose_memory(found: list[Memory], way: Mapping[str, int]) -> tuple[Node | None, bool]:
    """Return the memory that belongs to a way, and whether it is the latest.

    Choose the memory called last on the way, of several the one stored last. A twin is the last resort.
    """
    on_way = [memory for memory in found if memory.caller in way and not memory.is_empty]
    best = max(
        enumerate(on_way), key=lambda each: (not each[1].is_twin, way[each[1].caller], each[0]), default=(0, None)
    )[1]
    head = next((memory for memory in found if memory.node.is_head), None)
    if best is None:
        return None, head is None or head.is_empty
    is_twin = head is not None and head.header.metadata.get(REWOUND_TO) == best.node.address.checkpoint_id
    return best.node, head is best or is_twin
