"""Where the memories of subgraphs were at a moment of their root graph.

A subgraph with `checkpointer=True` has one namespace for all its calls, and each call begins with the latest checkpoint
there. So when the root goes back, that must be the one the subgraph had come to. Its checkpoints say from which root
checkpoint they were called (`metadata["parents"][""]`); those called from where a way leads through belong to it.

How checkpoints say that they are another one again: what rewind, branch and fork leave in the metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.engine.checkpoints import where_is
from langgraph_keel.engine.config import is_task
from langgraph_keel.engine.headers import Header, unpack_header
from langgraph_keel.engine.records import Address, Graph, Node, Stamp
from langgraph_keel.engine.serde.codec import Codec

REWOUND_TO = "keel_rewound_to"
"""In the metadata of a twin that was made the latest: the id of the checkpoint it is a twin of."""
BRANCHED_FROM = "keel_branched_from"
"""In the metadata of a twin beside the trunk: the id of the checkpoint it is a twin of."""
FORKED_FROM = "keel_forked_from"
"""In the metadata of the checkpoint that a fork begins with: its `thread_id` and `checkpoint_id` in the source."""


Moment: TypeAlias = tuple[Node, Header]
"""A checkpoint that a reader sees, without its values."""


def instant(ts: object) -> float | None:
    """Return an ISO time in milliseconds since 1970; `None` where it is none. Without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(str(ts))
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000


def made_at(header: Header) -> float | None:
    """Return when a checkpoint was made, in milliseconds since 1970; `None` where it does not say so."""
    return instant(header.checkpoint.get("ts"))


def roots_in(moments: Sequence[Moment]) -> list[Moment]:
    """Return the checkpoints of the root graph."""
    return [each for each in moments if not each[0].address.checkpoint_ns]


def leaves(moments: Sequence[Moment], but: Collection[Stamp] = ()) -> list[Moment]:
    """Return the checkpoints that nothing goes on from: no child, and no twin that a rewind has made of them.

    Args:
        moments: The checkpoints of a thread.
        but: Without these.
    """
    continued = {(node.address.checkpoint_ns, node.parent) for node, _ in moments}
    ends = [each for each in moments if _place(each) not in continued and each[0].stamp not in but]
    if not ends:  # mostly: then no header needs to be decoded
        return []
    twins = {(node.address.checkpoint_ns, header.metadata.get(REWOUND_TO)) for node, header in moments}
    return [each for each in ends if _place(each) not in twins]


def _place(moment: Moment) -> tuple[str, str | None]:
    return moment[0].address.checkpoint_ns, moment[0].address.checkpoint_id


def led_on(moments: Sequence[Moment], kept: Collection[Stamp]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to all that stays: what tools returned there is part of its state.

    What was called from any other may be called again: on a branch that was left, on the way that a rewind gave up.
    """
    root = {node.address.checkpoint_id: (node, header) for node, header in roots_in(moments)}
    ways = [set(_way(name, root)) for name, (node, _) in root.items() if node.stamp in kept]
    led = set.intersection(*ways) if ways else set()
    yield from led
    for node, header in moments:
        parents = header.metadata.get("parents")
        if node.address.checkpoint_ns and isinstance(parents, Mapping) and parents.get("") in led:
            yield node.address.checkpoint_id


def _way(at: str | None, root: Mapping[str | None, Moment]) -> Iterator[str | None]:
    """Yield the ids of checkpoints whose steps led to one. An update or a copy goes on without the step's results."""
    for _ in root:  # what is stored may lead in a circle
        if at not in root:
            return
        node, header = root[at]
        if header.metadata.get("source") == "loop":
            yield node.parent
        at = node.parent


def came_from(parent: str | None, metadata: Mapping[str, Any], known: Container[object]) -> str | None:
    """Return from which checkpoint one came: of a twin that it is a twin of, for what led there led to the twin, too.

    Args:
        parent: The id of its parent.
        metadata: Its metadata.
        known: The ids of those that are there; without the one it is a twin of, the parent counts.
    """
    original = metadata.get(REWOUND_TO) or metadata.get(BRANCHED_FROM)
    return original if isinstance(original, str) and original in known else parent


def walk_back(start: str | None, origins: Mapping[str | None, str | None]) -> Iterator[str | None]:
    """Yield a root checkpoint and those it came from, the nearest first.

    The line ends where a checkpoint is not there: it was pruned, or there was none. What stands beside the checkpoints
    may say more (records of calls are carried to the first one that stays); no other checkpoint is put in its place.

    Args:
        start: The id of the checkpoint.
        origins: Per id of the root checkpoints that are there, the id of the one it came from (`came_from`).
    """
    seen: set[str | None] = set()
    while start in origins and start not in seen:  # what is stored may lead in a circle
        seen.add(start)
        yield start
        start = origins[start]


def root_of(address: Address, metadata: Mapping[str, Any]) -> Any:
    """Return the id of the root graph's checkpoint: of itself, or of the one that a subgraph's step began from."""
    parents = metadata.get("parents")
    outer = parents.get("") if isinstance(parents, Mapping) else None
    return outer if address.checkpoint_ns else address.checkpoint_id


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


class Memories:
    """The memories of a thread's subgraphs, and where they were at moments of its root graph.

    Args:
        graph: The thread.
        header_of: Decodes an entry's header.
    """

    def __init__(self, graph: Graph, header_of: Callable[[Node], Header]) -> None:
        self._header_of = header_of
        self._order = [node for node in graph.nodes if not node.address.checkpoint_ns]
        self._places = {node.address.checkpoint_id: place for place, node in enumerate(self._order)}
        self._found: dict[str, list[Memory]] = {}
        for memory in self._memories(graph):
            self._found.setdefault(memory.node.address.checkpoint_ns, []).append(memory)

    def moved_back(self, moment: Node) -> dict[str, Node | None]:
        """Return what the memories must go back to with the root, where that is not their latest already.

        Returns:
            Per namespace, outer ones first, the checkpoint; `None` if there was nothing yet.
        """
        way = self._way(moment) if self._found else {}
        back = {namespace: _chosen(found, way) for namespace, found in sorted(self._found.items())}
        return {namespace: node for namespace, (node, is_there) in back.items() if not is_there}

    def has(self, node: Node) -> bool:
        """Return whether an entry is a memory."""
        return node.address.checkpoint_ns in self._found

    def _memories(self, graph: Graph) -> Iterator[Memory]:
        latest = ""
        for node in graph.nodes:
            if not node.address.checkpoint_ns:
                latest = str(node.address.checkpoint_id)
            elif not node.is_ghost and _has_memory(node.address.checkpoint_ns):
                header = self._header_of(node)
                caller = (header.metadata.get("parents") or {}).get("")
                yield Memory(node, header, str(caller) if caller in self._places else latest)

    def _way(self, moment: Node) -> dict[str, int]:
        """Return the root checkpoints whose steps led to a moment: the later the step, the greater the number."""
        way: list[str] = []
        node: Node | None = moment
        seen: set[str | None] = set()
        while node is not None and node.address.checkpoint_id not in seen:
            seen.add(node.address.checkpoint_id)
            node, led = self._before(node)
            way += led
        return {checkpoint_id: place for place, checkpoint_id in enumerate(reversed(way))} | {"": BEFORE_ALL}

    def _before(self, node: Node) -> tuple[Node | None, list[str]]:
        """Return the root checkpoint that one came from, and the ids of those whose steps led from there."""
        if node.parent in self._places:
            parent = self._order[self._places[node.parent]]
            is_copy = _is_copy(self._header_of(node).metadata, self._header_of(parent).metadata)
            return parent, [] if is_copy else [str(node.parent)]
        # If it had one, it was pruned: what is left of the way is the one put last before, of a lower step.
        earlier = self._order[: self._places.get(node.address.checkpoint_id, 0)]
        step = self._header_of(node).metadata.get("step")
        found = next((each for each in reversed(earlier) if _is_lower(self._header_of(each), step)), None)
        return found, [str(found.address.checkpoint_id)] if found else []


def moved_back(graph: Graph, moment: Node, codec: Codec) -> dict[str, Node | None]:
    """As `Memories.moved_back`, for one moment of a thread."""
    return Memories(graph, lambda node: unpack_header(node.header, codec, where_is(node.address))).moved_back(moment)


def _is_lower(header: Header, step: object) -> bool:
    other = header.metadata.get("step")
    return isinstance(other, int) and isinstance(step, int) and other < step


def _has_memory(namespace: str) -> bool:
    return not any(is_task(part.partition(NS_END)[2]) for part in namespace.split(NS_SEP))


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


def _is_copy(metadata: Mapping[str, Any], of_parent: Mapping[str, Any]) -> bool:
    """Return whether LangGraph made a checkpoint as a copy of its parent, to run that one's step again."""
    return metadata.get("source") == "fork" and metadata.get("step") == of_parent.get("step")
