"""The stored form of a checkpoint: header, inheritance, pending writes, status.

*Header*: the metadata, and all parts of a checkpoint that are not in items, including keys that Keel does not know.

*Inherited values*: LangGraph passes the snapshot of a `DeltaChannel` to `put` only once. Until the channel is written
again, later checkpoints name it at the same version without a value. Such a checkpoint refers to the value of its
parent. As in LangGraph's PostgresSaver, small scalars are not inherited.

*Pending writes*: a store only appends them. A write is identified by its task and index (`WRITES_IDX_MAP` assigns fixed
negative indexes to special channels). If a write is repeated, the last special write counts, but the first regular
write. LangGraph repeats a task's writes after a crash, and answers an interrupt again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import field
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from types import NoneType
from typing import Any, Literal, TypeAlias, cast

import xxhash
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, PendingWrite, writes_sort_key
from langgraph.constants import START

from langgraph_keel._langgraph import (
    BRANCH_TO,
    ERROR,
    ERROR_SOURCE_NODE,
    INTERRUPT,
    JOIN,
    NO_WRITES,
    NULL_TASK_ID,
    RESUME,
    TASKS,
)
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import HEAD, RAW, array_header
from langgraph_keel.engine.encoding.values import Known
from langgraph_keel.engine.memo import KnownEntry
from langgraph_keel.engine.plan import Q, R, StorePlan
from langgraph_keel.engine.records import Batch, Entry, Node, record
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.serde.unread import is_lost
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore, InvalidInput, NewerState, ValueRefused

_log = logging.getLogger(__name__)

_PARTS = ("checkpoint", "metadata", "inline", "about")

STATE = "state"
"""Key of the application's state version, in `about` and with writes; default 1."""

TREE = "tree"
"""Key in `Header.about` of the tree of files (`workspace`), 20 bytes."""

MARK, MARK_BYTES = "by", 8
"""Key in `Header.about` of a process's mark (`runs.marks`), and its size in bytes.

The mark is a 64-bit number with the first bit set. Bytes would make the serializer check every value of a header."""
_ONLY_MARK = b"\x92\x00\x81\xa2by\xcf"
"""The bytes before the mark in a packed `about` that contains only a mark.

Within another dict, it is two bytes shorter.
"""

REWOUND_TO = "keel_rewound_to"
"""Metadata key of a rewind's twin: the id of the original."""
BRANCHED_FROM = "keel_branched_from"
"""Metadata key of a twin on a branch: the id of the original."""
FORKED_FROM = "keel_forked_from"
"""Metadata key of a fork's first checkpoint: the origin's thread and checkpoint."""

HIDDEN = "~hidden"
"""Suffix that turns the id of a checkpoint into that of its hidden checkpoint."""

LOST = "__keel_lost__"
"""The channel of placeholders for writes in lost objects, in read-only views."""
BESIDE, _BESIDE_AT = "__keel_calls__", -100
"""Channel and index of hooks' items in a batch. LangGraph uses indexes from -1."""
_NO_RESULT = frozenset({INTERRUPT, RESUME, ERROR, ERROR_SOURCE_NODE, BESIDE})

# -- the header --------------------------------------------------------------------------------------------------------


@record
class Header:
    """A decoded header.

    Attributes:
        checkpoint: The checkpoint without `id` and `channel_values`.
        metadata: Its metadata; after a read, tuples have become lists (`as_lists`).
        inline: Small channel values.
        about: Items that hooks add, each under its own keys, such as model calls or the owner. Not metadata. If empty,
            it is not stored.
    """

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    inline: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)


def state_of(about: Mapping[str, Any]) -> int:
    """Return the version of the application's state in an `about`."""
    version = about.get(STATE, 1)
    return version if type(version) is int else 1


def state_beside(stored: Any) -> int:
    """Return the version of the application's state next to the writes of one call."""
    marks = [part for part in stored if type(part) is dict] if isinstance(stored, list) else []
    return max(map(state_of, marks), default=1)


def check_state(where: Address, about: Mapping[str, Any], beside: Iterable[Any], known: int) -> None:
    """Refuse a checkpoint or writes stored by a newer version of the application."""
    newest = max([state_of(about), *map(state_beside, beside)])
    if newest > known:
        raise NewerState(str(where), newest, known)


class UnreadHeader(Header):
    """A header decoded on first access. A prune needs only a few of a thousand."""

    __slots__ = ("_codec", "_node")
    _node: Node
    _codec: Codec

    def __init__(self, node: Node, codec: Codec) -> None:
        put = object.__setattr__  # as a frozen dataclass does
        put(self, "_node", node)
        put(self, "_codec", codec)
        if not node.header.startswith(RAW):
            return
        # An uncompressed header with three parts has no `about` part.
        if node.header.startswith(array_header(3), HEAD):
            put(self, "about", {})
        elif node.header.startswith(_ONLY_MARK, len(node.header) - MARK_BYTES - len(_ONLY_MARK)):
            put(self, "about", {MARK: int.from_bytes(node.header[-MARK_BYTES:])})

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(name)
        read = unpack_header(self._node.header, self._codec, self._node.address)
        for part in _PARTS:
            object.__setattr__(self, part, getattr(read, part))
        return getattr(read, name)


def check_header(header: Header, where: Address) -> None:
    """Refuse a checkpoint that no reader would accept."""
    if wrong := _find_misfit(header.checkpoint, header.metadata):
        raise InvalidInput(f"{where}: {wrong}, as in LangGraph; nothing was stored")


def pack_header(header: Header, codec: Codec, where: Address) -> bytes:
    """Return the framed bytes of a header."""
    try:
        about = [header.about] if header.about else []
        return codec.encode([header.checkpoint, header.metadata, header.inline, *about])
    except ValueRefused as error:
        raise error.at(f"{where}, metadata") from error


def unpack_header(body: bytes, codec: Codec, where: Address) -> Header:
    """Return a header from its framed bytes, with fresh objects."""
    try:
        checkpoint, metadata, inline, *rest = codec.decode(body)
        about = rest[0] if rest else {}
    except ValueRefused as error:
        raise error.at(f"{where}, metadata") from error
    except (CorruptStore, TypeError, ValueError) as error:
        raise CorruptStore(f"{where}: its header does not decode: {error}") from error
    is_header = type(checkpoint) is type(metadata) is type(inline) is type(about) is dict and len(rest) < 2
    if wrong := _find_misfit(checkpoint, metadata) if is_header else "its parts must be dicts":
        raise CorruptStore(f"{where}: its header has a part of the wrong type: {wrong}")
    return Header(checkpoint, as_lists(metadata), inline, about)


def _find_misfit(checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return which part has the wrong type for LangGraph and Keel, and the right type."""
    seen = checkpoint.get("versions_seen") or {}
    parents = metadata.get("parents") or {}
    counters = metadata.get("counters_since_delta_snapshot") or {}
    if not isinstance(checkpoint.get("v", 4), (int, float)):
        return "'v' must be a number"
    if not isinstance(checkpoint.get("ts"), (str, NoneType)):
        return "'ts' must be a str"
    if not isinstance(checkpoint.get("channel_versions") or {}, dict):
        return "'channel_versions' must be a dict"
    if not (isinstance(seen, dict) and all(isinstance(each, dict) for each in seen.values())):
        return "'versions_seen' must be a dict of dicts"
    if not isinstance(metadata.get("source"), (str, NoneType)):
        return "'source' must be a str"
    if not isinstance(metadata.get("step"), (int, NoneType)):
        return "'step' must be an int"
    if not (isinstance(parents, dict) and all(isinstance(each, str) for each in parents.values())):
        return "'parents' must be a dict of ids"
    for mark in (REWOUND_TO, BRANCHED_FROM):
        if not isinstance(metadata.get(mark), (str, NoneType)):
            return f"{mark!r} must be a str"
    if not isinstance(metadata.get(FORKED_FROM, {}), dict):
        return f"{FORKED_FROM!r} must be a dict"
    is_paired = isinstance(counters, dict) and all(
        isinstance(each, (list, tuple)) and len(each) == 2 for each in counters.values()
    )
    return None if is_paired else "'counters_since_delta_snapshot' must be a dict of pairs"


def as_lists(value: Any) -> Any:
    """Return a metadata value with lists for tuples, as all LangGraph savers do."""
    if type(value) is dict:
        return {key: as_lists(part) for key, part in value.items()}
    return [as_lists(part) for part in value] if type(value) in (list, tuple) else value


def rest_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a checkpoint that are stored in the header."""
    return {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}


def without_channels(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """Return a copy of a checkpoint without some channels. The run keeps the original."""
    kept: dict[str, Any] = {**checkpoint}
    for part in ("channel_values", "channel_versions"):
        kept[part] = dict(_without(kept[part].items(), names))
    kept["versions_seen"] = {node: dict(_without(seen.items(), names)) for node, seen in kept["versions_seen"].items()}
    if updated := kept.get("updated_channels"):
        kept["updated_channels"] = [name for name in updated if name not in names]
    return cast(Checkpoint, kept)


def without_writes(writes: Sequence[tuple[str, Any]], names: Collection[str]) -> Sequence[tuple[str, Any]]:
    """Return a task's writes without some channels, or the "no writes" mark if none."""
    return [*_without(writes, names)] or [(NO_WRITES, None)]


def _without(values: Iterable[tuple[str, Any]], names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield values without some channels, also in inputs and `Send` arguments."""
    for channel, value in values:
        if channel == START and isinstance(value, dict):
            value = dict(_without(value.items(), names))
        elif channel == TASKS and isinstance(value, list):
            value = [each for _, each in _without([(TASKS, each) for each in value], names)]
        elif channel == TASKS and isinstance(getattr(value, "arg", None), dict):  # a `Send`
            value = copy(value)
            value.arg = dict(_without(value.arg.items(), names))
        if channel not in names:
            yield channel, value


def next_version_of(current: str | int | float | None) -> str | int | float:
    """Return the version after `current`, in the form that the thread already uses.

    New threads get ints: entries refer to their values directly, so versions need no random part to distinguish
    branches. A thread from one of LangGraph's savers keeps its strings (32 digits, a dot, a fraction).
    """
    if current is None:
        return 1
    if isinstance(current, str):
        return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
    return current + 1


# -- inherited values --------------------------------------------------------------------------------------------------


@record
class Inheritance:
    """The channel values that a checkpoint inherits from its parent."""

    parent: str | None  # the id
    versions: Mapping[str, Any]  # all versions that the checkpoint names
    new: Collection[str]  # the channels whose versions are new, which inherit nothing
    is_asked: bool  # whether a value must be inherited: a snapshot without writes since

    def values(self, base: KnownEntry | None, own: Collection[str]) -> dict[str, Known]:
        """Return the inherited values if `base` is the memory of the parent; else none."""
        if base is None or base.checkpoint_id != self.parent:
            return {}
        return self.among(base.channels, base.versions, own)

    def among(self, there: Mapping[str, Any], before: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
        """Return the parent's values that are inherited: of channels without `own` values."""
        now, new = self.versions, self.new
        others = [(name, value) for name, value in there.items() if name not in own and name in now and name not in new]
        return {name: value for name, value in others if before.get(name) == now[name]}


def inheritance_of(
    parent: str | None, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any], new_versions: Collection[str]
) -> Inheritance:
    """Return a checkpoint's inheritance, with copies of versions that may change."""
    versions, new, is_asked = versions_of(checkpoint), {*new_versions}, False
    counters = metadata.get("counters_since_delta_snapshot")
    if counters and parent is not None:
        left = versions.keys() - checkpoint["channel_values"].keys() - new
        is_asked = any(name in left and not updates for name, (updates, _) in counters.items())
    return Inheritance(parent, versions, new, is_asked)


def versions_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the versions of a checkpoint's channels."""
    return dict(checkpoint.get("channel_versions") or {})


def rebuilt_channels(metadata: Mapping[str, Any], stored: Collection[str]) -> set[str]:
    """Return the delta channels of a checkpoint that are not `stored` in it."""
    return {channel for channel in metadata.get("counters_since_delta_snapshot") or () if channel not in stored}


def is_hidden(address: Address) -> bool:
    """Return whether an address names a hidden checkpoint."""
    return address.checkpoint_id is not None and address.checkpoint_id.endswith(HIDDEN)


def hidden_parent(entry: Entry, metadata: Mapping[str, Any]) -> str | None:
    """Return the id of the hidden checkpoint that an entry needs, or `None`."""
    # A channel that was updated since its snapshot, and is not in the entry, was updated in earlier steps.
    counters = metadata.get("counters_since_delta_snapshot") or {}
    if not any(counters[channel][0] for channel in rebuilt_channels(metadata, entry.refs)):
        return None
    return f"{entry.address.checkpoint_id}{HIDDEN}"


# -- next nodes and status ---------------------------------------------------------------------------------------------


@lru_cache(4096)
def is_trigger(channel: str) -> bool:
    """Return whether the value of a channel decides which nodes run."""
    return channel.startswith((BRANCH_TO, JOIN)) or channel in (TASKS, START)


def next_nodes(checkpoint: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the nodes that run next, derived from the channels of a `StateGraph`."""
    targets = (_target(checkpoint, channel, value) for channel, value in values.items())
    return tuple(sorted({*nodes_sent_to(values), *(node for node in targets if node)}))


def _target(checkpoint: Mapping[str, Any], channel: str, value: Any) -> str | None:
    """Return the node that a trigger channel starts, unless it has seen this version."""
    node = _addressee(channel, value)
    versions: Mapping[str, Any] = checkpoint.get("channel_versions") or {}
    if node is None or channel not in versions:
        return None
    seen = (checkpoint.get("versions_seen") or {}).get(node, {}).get(channel)
    try:
        return node if seen is None or versions[channel] > seen else None
    except TypeError:  # versions of two types cannot be compared, and `put` must not fail for that
        return node


def _addressee(channel: str, value: Any) -> str | None:
    if type(value) is tuple and len(value) == 2 and channel != START:  # of a deferred node
        value, is_finished = value
        if not is_finished:
            return None
    if channel.startswith(BRANCH_TO):
        return channel.removeprefix(BRANCH_TO)
    if channel.startswith(JOIN):
        starts, _, node = channel.removeprefix(JOIN).partition(":")
        return node if isinstance(value, set) and value >= set(starts.split("+")) else None
    return channel if channel == START else None


def sent_tasks(values: Mapping[str, Any]) -> Sequence[Any]:
    """Return the pending `Send` tasks; none if the channel contains something else."""
    sent = values.get(TASKS)
    return sent if isinstance(sent, list | tuple) else ()


def nodes_sent_to(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the nodes that tasks are sent to."""
    if sent := sent_tasks(values):
        from langgraph.types import Send

        yield from (send.node for send in sent if isinstance(send, Send) and isinstance(send.node, str))


Status: TypeAlias = Literal["incomplete", "waiting", "failed", "done", "idle"]
"""The status of a thread: see `ThreadInfo.status`."""


def status_of(source: object, nodes: Sequence[str], asks: bool = False, errors: Sequence[str] = ()) -> Status:
    """Return a thread's status, given its head's source, next nodes and writes."""
    if asks:
        return "waiting"
    if errors:
        return "failed"
    if nodes:
        return "incomplete"
    return "done" if source == "loop" else "idle"


def error_class(error: object) -> str:
    """Return the class of a task's error: the beginning of `ValueError('no ...')`."""
    return error.partition("(")[0] if isinstance(error, str) else type(error).__name__


def terms_of_entry(checkpoint: Mapping[str, Any], source: object) -> list[str]:
    """Return the terms by which a checkpoint's thread is found: its status.

    The next nodes are not included, as these terms would change with every checkpoint.
    """
    values = checkpoint["channel_values"].items()
    triggers = {name: value for name, value in values if isinstance(name, str) and is_trigger(name)}
    nodes = next_nodes(checkpoint, triggers) if triggers else ()
    return [f"status:{status_of(source, nodes)}"]


def terms_of_writes(writes: Iterable[tuple[str, Any]], codec: Codec) -> list[str]:
    """Return more terms for a task's thread: it waits for an answer, or has failed."""
    terms = []
    for channel, value in writes:
        if channel == INTERRUPT:
            terms.append("status:waiting")
        elif channel == ERROR:
            terms += ["status:failed", f"error:{error_class(codec.plain_error(value))}"]
    return terms


def marks_of(terms: Collection[str]) -> tuple[str, ...]:
    """Return terms as a store keeps them: hashes of eight hexadecimal digits.

    A collision does no harm, as a list of threads checks each result.
    """
    return _marks_of(tuple(terms))


@lru_cache(4096)
def _marks_of(terms: tuple[str, ...]) -> tuple[str, ...]:
    hashes = [blake2b(term.encode(errors="surrogatepass"), digest_size=4) for term in dict.fromkeys(terms)]
    return tuple([each.hexdigest() for each in hashes])


# -- pending writes ----------------------------------------------------------------------------------------------------


def pack_batch(
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    codec: Codec,
    where: Address,
    beside: Sequence[Any] = (),
    places: Iterable[int] | None = None,
) -> Batch:
    """Return the batch of one call, with the items of hooks."""
    heads = [
        [name, WRITES_IDX_MAP.get(name, place)] for place, (name, _) in zip(places or count(), writes, strict=False)
    ]
    values = [codec.plain_error(value) if channel == ERROR else value for channel, value in writes]
    if beside:
        heads.append([BESIDE, _BESIDE_AT])
    try:
        parts = [_task_check(task_id, task_path), heads, *values, *([list(beside)] if beside else [])]
        return Batch(task_id, task_path, codec.encode(parts))
    except ValueRefused as error:
        channels = [channel for channel, _ in writes]
        refused = [channel for channel, value in zip(channels, values, strict=True) if not _is_storable(value, codec)]
        raise error.at(f"{where}, writes of task {task_id} to {refused or channels}") from error


def _is_storable(value: Any, codec: Codec) -> bool:
    try:
        codec.encode([value])
    except ValueRefused:
        return False
    return True


def _task_check(task_id: str, task_path: str) -> int:
    # Stores keep both in plain text next to the body, without a checksum: a changed one would assign a write to another
    # task.
    return xxhash.xxh32_intdigest(f"{task_id}\0{task_path}".encode(errors="surrogatepass"))


def unpack_batch(batch: Batch, codec: Codec, where: Address) -> Sequence[tuple[str, int, Any]]:
    """Return channel, index and value of each write of a call, with hooks' items."""
    try:
        check, *parts = codec.decode(batch.body)
        if codec.shows and is_lost(check):
            return [(LOST, 0, check)]
        heads, *values = parts
        if check != _task_check(batch.task_id, batch.task_path):
            raise CorruptStore("they were written by another task: the stored task id or path has changed")
        if not all(type(channel) is str and type(index) is int for channel, index in heads):
            raise CorruptStore("a write has an invalid channel or index")
        return [(channel, index, value) for (channel, index), value in zip(heads, values, strict=True)]
    except ValueRefused as error:
        raise error.at(f"{where}, writes of task {batch.task_id}") from error
    except (CorruptStore, TypeError, ValueError) as error:
        kind = type(error) if isinstance(error, CorruptStore) else CorruptStore
        raise kind(f"{where}: writes of task {batch.task_id} do not decode: {error}") from error


def pending_writes(batches: Sequence[Batch], codec: Codec, where: Address) -> list[PendingWrite]:
    """Return the effective writes, in the order in which LangGraph applies them."""
    return unpack_batches(batches, codec, where)[0]


def unpack_batches(batches: Sequence[Batch], codec: Codec, where: Address) -> tuple[list[PendingWrite], list[Any]]:
    """Return the effective writes, and the items of hooks: one per call, as stored."""
    if not batches:
        return [], []
    writes, beside = merge_batches(batches, codec, where)
    return [write for _, write in writes], [each for _, each in beside]


Numbered: TypeAlias = tuple[int, Any]
"""The number of a batch among those of its checkpoint, and an item of it."""


def merge_batches(
    batches: Sequence[Batch], codec: Codec, where: Address
) -> tuple[list[tuple[int, PendingWrite]], list[Numbered]]:
    """As `unpack_batches`, each with the number of its batch."""
    kept: dict[tuple[str, int], tuple[str, int, PendingWrite]] = {}
    beside: list[Numbered] = []
    for number, batch in enumerate(batches):
        for channel, index, value in unpack_batch(batch, codec, where):
            key = (batch.task_id, index)
            if index == _BESIDE_AT and channel == BESIDE:
                beside.append((number, value))
            elif index < 0 or key not in kept:
                kept[key] = batch.task_path, number, (batch.task_id, channel, value)
    order = sorted(kept, key=lambda key: writes_sort_key(kept[key][0], *key))
    return [kept[key][1:] for key in order], beside


def waiting_tasks(writes: Iterable[PendingWrite]) -> Set[str]:
    """Return the tasks of a checkpoint that wait for an answer and have no result.

    Agrees with LangGraph's `get_state().interrupts` in each of 23 cases.
    """
    channels: dict[str, set[str]] = {}
    for task_id, channel, _ in writes:
        channels.setdefault(task_id, set()).add(channel)
    return {task_id for task_id, seen in channels.items() if INTERRUPT in seen and not has_result(seen)}


def has_result(channels: Iterable[str]) -> bool:
    """Return whether a task that has written to these channels has finished."""
    return not _NO_RESULT.issuperset(channels)


def without_failed(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return a task's writes, without results if it failed and has no error handler.

    If a router fails, LangGraph stores the results of its node next to the error. It treats a task with results as
    done, so the next run would silently skip the routing (seen with 1.2.22).
    """
    channels = {channel for channel, _ in writes}
    if ERROR not in channels or ERROR_SOURCE_NODE in channels:
        return writes
    return [write for write in writes if write[0] in _NO_RESULT]


def without_stray(
    store: Store[Q, R], codec: Codec, address: Address, writes: Sequence[tuple[str, Any]], task_id: str
) -> StorePlan[Q, R, Sequence[tuple[str, Any]] | None]:
    """Return writes without an answer that has no question; `None` if none are left.

    One trip if there is an answer, else none. If it were stored, the answer would apply to the next question there. In
    the functional API it approved another request without asking (seen with langgraph 1.2.22).
    """
    if task_id != NULL_TASK_ID or all(channel != RESUME for channel, _ in writes):
        return writes
    found = yield from store.read_entry(address)
    there = pending_writes(found.batches, codec, address) if found is not None else []
    if waiting_tasks(there):
        return writes
    if not _was_taken(writes, there, codec):
        _log.warning(
            "thread %r: an answer was ignored, as checkpoint %s has no open question. saver.status(%r) shows the "
            "state of the thread",
            *(address.thread_id, address.checkpoint_id, address.thread_id),
        )
    return [write for write in writes if write[0] != RESUME] or None


def _was_taken(writes: Sequence[tuple[str, Any]], there: Sequence[PendingWrite], codec: Codec) -> bool:
    """Return whether a task has already received the answer. Writes come in any order."""
    given = [codec.encode([value]) for channel, value in writes if channel == RESUME]
    tasks: dict[str, dict[str, Any]] = {}
    for task_id, channel, value in there:
        tasks.setdefault(task_id, {})[channel] = value
    for seen in [seen for task_id, seen in tasks.items() if task_id != NULL_TASK_ID and INTERRUPT in seen]:
        answers = seen.get(RESUME)  # if a task has none, the subgraph that it called has
        if (
            answers is None
            or codec.encode([answers[-1] if isinstance(answers, list) and answers else answers]) in given
        ):
            return True
    return False
