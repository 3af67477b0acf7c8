"""Delta channels: values that a checkpoint does not hold, and that LangGraph rebuilds from the writes of its ancestors.

LangGraph asks the saver for those writes (`get_delta_channel_history`). Whoever wraps a saver without knowing that
verb, as LangGraph's API server does, walks along the parents instead, by `get_tuple`. A prune leaves ancestors that
nobody sees, ghosts (`removal.py`). So that such a walk finds the writes, too, one *hidden* checkpoint stands for all of
them: it is named as the parent of a checkpoint that needs them, and no run can begin from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
)

from langgraph_keel.engine.config import Address, config_of
from langgraph_keel.engine.encoding.values import Unpacker
from langgraph_keel.engine.headers import unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Entry, Found, Kind
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.writes import pending_writes

_HIDDEN = "~hidden"
"""Ends the id by which a hidden checkpoint is found; before it stands the id of the one that needs it."""


def rebuilt_channels(metadata: Mapping[str, Any], stored: Collection[str]) -> set[str]:
    """Return the delta channels of a checkpoint that are not among those `stored` in it."""
    return {channel for channel in metadata.get("counters_since_delta_snapshot") or () if channel not in stored}


def delta_history(
    session: Session, address: Address, channels: Sequence[str]
) -> Plan[Mapping[str, DeltaChannelHistory]]:
    """Walk the ancestors of a checkpoint once for all channels; see `KeelSaver.get_delta_channel_history`."""
    ancestors = yield from session.store.read_history(address, set(channels))
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    for found in ancestors:
        remaining = {channel for channel in channels if "seed" not in histories[channel]}
        writes = pending_writes(found.batches, session.codec, found.entry.address)
        for channel in remaining:
            _step_back(histories[channel], channel, writes, found, session.codec)
    return histories


def _step_back(
    history: DeltaChannelHistory, channel: str, writes: Sequence[PendingWrite], found: Found, codec: Codec
) -> None:
    """Put one ancestor's writes before those of its descendants; take its value as the seed if it has one.

    The seed is the value at the ancestor, before its own writes, which therefore count too.
    """
    history["writes"][:0] = [write for write in writes if write[1] == channel]
    ref = found.entry.refs.get(channel)
    if ref is None:
        return
    if ref.kind is Kind.INLINE:
        header = unpack_header(found.entry.header, codec, found.entry.address)
        history["seed"] = header.inline[channel]
    else:
        where = found.entry.address
        history["seed"] = Unpacker(codec).values({channel: ref}, found.rows, where)[channel]


# -- the hidden checkpoint -----------------------------------------------------------------------------------------


def is_hidden(address: Address) -> bool:
    """Return whether an address names a hidden checkpoint."""
    return address.checkpoint_id is not None and address.checkpoint_id.endswith(_HIDDEN)


def hidden_parent(entry: Entry, metadata: Mapping[str, Any]) -> Address | None:
    """Return what stands for the ancestors of an entry that has no parent any more; `None` if it needs none.

    A channel that has been updated since a snapshot, which stands nowhere in the entry, has got its updates before it.
    """
    counters = metadata.get("counters_since_delta_snapshot") or {}
    if not any(counters[channel][0] for channel in rebuilt_channels(metadata, entry.refs)):
        return None
    return entry.address.at(f"{entry.address.checkpoint_id}{_HIDDEN}")


def read_hidden(session: Session, address: Address) -> Plan[CheckpointTuple | None]:
    """Return a hidden checkpoint: in it, what a walk along the ancestors would have found. Two trips.

    The values are those that the farthest ancestors have; the writes are all since then, oldest first.
    """
    needs = address.at(cast(str, address.checkpoint_id).removesuffix(_HIDDEN))
    found = yield from session.store.read_entry(needs)
    if found is None:
        return None
    header = unpack_header(found.entry.header, session.codec, needs)
    if found.entry.parent or hidden_parent(found.entry, header.metadata) is None:
        return None
    histories = yield from delta_history(session, needs, [*rebuilt_channels(header.metadata, found.entry.refs)])
    checkpoint = {
        **header.checkpoint,
        "id": needs.checkpoint_id,  # LangGraph makes a UUID of it
        "channel_values": {channel: each["seed"] for channel, each in histories.items() if "seed" in each},
        "channel_versions": {},
        "versions_seen": {},
    }
    return CheckpointTuple(
        config_of(address, "named"),
        cast(Checkpoint, checkpoint),
        cast(CheckpointMetadata, {**header.metadata, "step": header.metadata.get("step", 0) - 1}),
        None,
        [write for each in histories.values() for write in each["writes"]],
    )
