"""What delta channels are rebuilt from: the writes since their nearest stored value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite

from langgraph_keel.core.checkpoints import where_is
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.encoding import Unpacker
from langgraph_keel.core.headers import unpack_header
from langgraph_keel.core.plan import Plan, Q, R
from langgraph_keel.core.records import Address, Found, Kind
from langgraph_keel.core.store import Store
from langgraph_keel.core.writes import pending_writes


def delta_history(
    store: Store[Q, R], codec: Codec, address: Address, channels: Sequence[str]
) -> Plan[Q, R, Mapping[str, DeltaChannelHistory]]:
    """Walk the ancestors of a checkpoint once for all channels; see `KeelSaver.get_delta_channel_history`."""
    ancestors = yield from store.read_history(address, set(channels))
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    for found in ancestors:
        remaining = {channel for channel in channels if "seed" not in histories[channel]}
        writes = pending_writes(found.batches, codec, where_is(found.entry.address))
        for channel in remaining:
            _step_back(histories[channel], channel, writes, found, codec)
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
        header = unpack_header(found.entry.header, codec, where_is(found.entry.address))
        history["seed"] = header.inline[channel]
    else:
        where = where_is(found.entry.address)
        history["seed"] = Unpacker(codec).values({channel: ref}, found.rows, where)[channel]
