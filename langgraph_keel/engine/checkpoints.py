"""The plans behind the methods of the saver.

`put`, `put_writes` and `get_tuple` take one round trip each; comments name the exceptions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)

from langgraph_keel._langgraph import CONFIG_KEY_RUNTIME, TASKS
from langgraph_keel.engine.config import (
    Address,
    Origin,
    address_of,
    begins_run,
    config_of,
    configurable,
    must_follow_head,
    run_of,
    text_of,
)
from langgraph_keel.engine.encoding.values import (
    COPIED,
    Known,
    Unpacker,
    Version,
    is_inline,
    known_values,
    learn,
    next_version,
    rebase,
    remember,
)
from langgraph_keel.engine.entries import (
    HIDDEN,
    STATE,
    Header,
    Inheritance,
    UnreadHeader,
    check_header,
    check_state,
    hidden_parent,
    inheritance_of,
    is_hidden,
    marks_of,
    pack_batch,
    pack_header,
    pending_writes,
    rebuilt_channels,
    rest_of,
    terms_of_entry,
    terms_of_writes,
    unpack_batches,
    unpack_header,
    versions_of,
    without_channels,
    without_failed,
    without_stray,
    without_writes,
)
from langgraph_keel.engine.events import Copy, Put, Reading, Revived, Writes
from langgraph_keel.engine.lineage import Ancestry
from langgraph_keel.engine.memo import KnownEntry
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.queries import matches
from langgraph_keel.engine.records import (
    BaseGone,
    Entry,
    Found,
    Kind,
    Moved,
    NewEntry,
    Occupied,
    Outcome,
    Query,
    Ref,
    Row,
    Stamp,
    Stored,
    ThreadInfo,
    Unchanged,
)
from langgraph_keel.engine.removal import check_objects, in_room
from langgraph_keel.engine.runs import check_run, find_run, refuse_run
from langgraph_keel.engine.serde.copies import Copies, Uncopied
from langgraph_keel.engine.session import Session, tell
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import (
    CheckpointConflict,
    CorruptStore,
    InvalidConfig,
    InvalidInput,
    NotFound,
    StoreError,
    ThreadExists,
    ValueRefused,
)

_log = logging.getLogger(__name__)
storing: dict[Put | Writes, tuple[Store[Any, Any], str]] = {}
"""Writes in progress, with store and thread, even if their run was cancelled."""
LARGE = 1 << 16
"""Bytes of state above which reading the parent is cheaper than storing it again."""

_INLINE = Ref(Kind.INLINE)  # one object, so that references of two versions are compared by identity


# -- put -------------------------------------------------------------------------------------------------------


def put(
    session: Session,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: Collection[str] = (),
) -> Plan[RunnableConfig]:
    """Store a checkpoint; see `KeelSaver.put`."""
    parent = address_of(config)
    if is_hidden(parent):
        raise _gone(parent)
    if session.ephemeral:
        checkpoint = without_channels(checkpoint, session.ephemeral)
    address = parent.at(text_of(checkpoint.get("id"), "the id of a checkpoint", empty=False))
    header = Header(rest_of(checkpoint), dict(get_checkpoint_metadata(config, metadata)), {})
    check_header(header, address)
    new = Put(config, checkpoint, metadata, metadata.get("source"), parent, address, header)
    inheritance = inheritance_of(parent.checkpoint_id, checkpoint, metadata, new_versions)
    for hear in session.hooks.draft_put:
        yield from hear(session, new) or ()
    new.terms = [] if address.checkpoint_ns else [*terms_of_entry(checkpoint, new.source), *new.terms]
    base = session.memo.get(_key(address))
    if inheritance.is_asked and base and base.checkpoint_id != parent.checkpoint_id:
        base = None  # the values of the parent itself are required
    entry = _encode(session, new, inheritance, base)
    if base is None and parent.checkpoint_id:
        weight = sum(len(row.body) for rows in entry.appends.values() for row in rows)
        if inheritance.is_asked or weight > LARGE:
            base, entry = yield from _recall(session, new, inheritance, entry)
    new.base, new.entry = base, entry
    storing[new] = session.store, address.thread_id
    try:
        # `update_state` looks like this if it has not found the checkpoint, or for the first checkpoint of a thread.
        may_be_gone = parent.checkpoint_id and metadata.get("step") == 0 and new.source == "update"
        if may_be_gone and (yield from session.store.read_entry(parent)) is None:
            raise _gone(parent)
        for hear in session.hooks.before_put:
            yield from hear(session, new) or ()
        outcome = yield from session.store.write_entry(entry)
        if not isinstance(outcome, Stored):
            entry, outcome = yield from _store_again(session, new, inheritance, entry, outcome)
    except BaseException as error:
        yield from tell(session.hooks.put_failed, session, new, error)
        raise
    finally:
        storing.pop(new, None)
    session.memo.set(_key(address), _known_entry(entry, outcome, inheritance.versions, base))
    for hear in session.hooks.after_put:
        yield from hear(session, new) or ()
    return config_of(address, "head")


def _known_entry(entry: NewEntry, stored: Stored, versions: Mapping[str, Any], base: KnownEntry | None) -> KnownEntry:
    """Return the memory of a stored entry that was encoded as the successor of `base`."""
    channels, refs = {**entry.known}, {**entry.refs}
    for name, first in stored.first.items():
        channels[name] = known = channels[name].with_number(first)
        refs[name] = known.ref
    kept = Entry(entry.address, entry.parent, stored.stamp, entry.header, refs, entry.run_id)
    # If the store has verified the base, item numbers mean the same. In a thread that was deleted, they may not.
    seen = base if entry.base is not None else None
    found = KnownEntry(kept, channels, versions, seen.version or None if seen else None)
    found.is_whole = seen is None or seen.is_whole
    return found


def _store_again(
    session: Session, new: Put, inheritance: Inheritance, entry: NewEntry, refused: BaseGone | Moved
) -> Plan[tuple[NewEntry, Stored]]:
    """Store whole values if another process pruned the base entry. One more trip."""
    is_resent, outcome = refused.is_resent, cast(Outcome, refused)
    if isinstance(refused, BaseGone):
        session.memo.forget(_key(new.address))
        entry = _encode(session, new, inheritance, None)
        outcome = yield from session.store.write_entry(entry)
    if isinstance(outcome, Moved):
        is_resent = is_resent or outcome.is_resent
        may_be_stored = is_resent and (yield from _may_be_stored(session, new, outcome))
        raise (yield from _refuse(session, new, outcome, may_be_stored))
    assert isinstance(outcome, Stored), "a store answered BaseGone to an entry without a base"
    return entry, outcome


def _may_be_stored(session: Session, new: Put, moved: Moved) -> Plan[bool]:
    """Return whether the head may descend from a refused, removed checkpoint.

    One trip. It does not if the entries show a way from the head to the parent of that checkpoint without that
    checkpoint.
    """
    try:
        graph = yield from session.store.read_graph(new.address.thread_id)
    except StoreError:
        return True  # report the refusal in any case
    here = [node for node in graph.nodes if node.address.checkpoint_ns == new.address.checkpoint_ns]
    way = Ancestry(here).way(*(node for node in here if node.address.checkpoint_id == moved.head))
    parents = {node.parent for node in way} - {None}  # a store may return `None` for a pruned parent
    return new.address.checkpoint_id in parents or new.parent.checkpoint_id not in parents


def _refuse(session: Session, new: Put, moved: Moved, may_be_stored: bool) -> Plan[CheckpointConflict]:
    """Return why a checkpoint is refused; stop its run if it is in this process.

    At most one trip.
    """
    address, parent = new.address, new.parent.checkpoint_id
    run, stored = find_run(new.config), None
    if run is not None and parent is not None and parent != run.began_at:
        try:
            stored = None if (yield from _is_replaced(session, new.parent)) else parent
        except StoreError:
            may_be_stored = True  # report the refusal in any case
    error = CheckpointConflict(
        address.thread_id, address.checkpoint_ns, parent, moved.head, str(address.checkpoint_id), stored, may_be_stored
    )
    if run is not None:
        refuse_run(run, error)
    return error


def _is_replaced(session: Session, stored: Address) -> Plan[bool]:
    """Return whether no state contains the input of a refused run. One trip.

    `stored` is the last checkpoint that the run has stored.
    """
    # Nodes see an input from the step after its checkpoint on. A run that begins there with new input replaces it.
    if stored.checkpoint_ns:
        return False
    graph = yield from session.store.read_graph(stored.thread_id)
    nodes = [node for node in graph.nodes if not node.address.checkpoint_ns]
    sources = {node.address.checkpoint_id: UnreadHeader(node, session.codec).metadata.get("source") for node in nodes}
    if stored.checkpoint_id not in sources:
        return False  # it was pruned, so the answer is unknown
    way = Ancestry(nodes).way(*(node for node in nodes if node.is_head))
    after = [sources[node.address.checkpoint_id] for node in way if node.parent == stored.checkpoint_id]
    return not after or (sources[stored.checkpoint_id] == "input" and after != ["loop"])


def _encode(session: Session, new: Put, inheritance: Inheritance, base: KnownEntry | None) -> NewEntry:
    """Encode a checkpoint as the successor of `base`. No trip."""
    before: Mapping[str, Known] = base.channels if base else {}
    refs: dict[str, Ref] = {}
    channels: dict[str, Known] = {}
    repacks: dict[str, tuple[Row, ...]] = {}
    for channel, value in new.checkpoint["channel_values"].items():
        name = channel if type(channel) is str and channel in before else text_of(channel, "a channel")
        refs[name] = _INLINE
        if is_inline(value):
            new.header.inline[name] = value
            continue
        try:
            channels[name], packed = next_version(value, before.get(name), session.codec)
        except ValueRefused as error:
            raise error.at(f"{new.address}, channel {name!r}") from error
        if packed:
            repacks[name] = packed
    channels.update(inheritance.values(base, refs))
    return _compose(session, new, pack_header(new.header, session.codec, new.address), refs, channels, repacks, base)


def _compose(
    session: Session,
    new: Put,
    header: bytes,
    refs: Mapping[str, Ref],
    channels: Mapping[str, Known],
    repacks: Mapping[str, tuple[Row, ...]],
    base: KnownEntry | None,
) -> NewEntry:
    """Return the entry of encoded values; `refs` has channels with own values."""
    refs, appends, uses_base = {**refs}, dict[str, tuple[Row, ...]](), bool(repacks)
    for name, known in channels.items():
        refs[name] = known.ref
        if known.fresh:
            appends[name] = known.fresh
        uses_base = uses_base or bool(known.rows)
    run_id = new.header.metadata.get("run_id")
    return NewEntry(
        new.address,
        new.parent.checkpoint_id,
        header,
        refs,
        appends,
        repacks,
        base=base.stamp if base and uses_base else None,
        checked=must_follow_head(new.config, new.metadata),
        on_conflict=session.on_conflict,
        run_id=None if run_id is None else text_of(str(run_id), "run_id"),
        updated_at=text_of(str(new.checkpoint.get("ts", "")), "ts"),
        known=channels,
        terms=marks_of(new.terms),
    )


def _recall(
    session: Session, new: Put, inheritance: Inheritance, entry: NewEntry
) -> Plan[tuple[KnownEntry | None, NewEntry]]:
    """Read the forgotten parent; return it, and the entry as its successor.

    One trip. All values are already serialized (rule 3 of plan.py); values that the parent has are left out again.
    """
    try:
        reading = Reading(config_of(new.parent, "named"), new.parent)
        base = yield from _read(session, reading, runs=True)
    except (ValueRefused, CorruptStore):
        return None, entry
    channels, repacks = {**entry.known}, dict[str, tuple[Row, ...]]()
    if base is not None:
        for name, known in entry.known.items():
            channels[name], packed = rebase(known, base.channels.get(name), session.codec)
            if packed:
                repacks[name] = packed
        channels.update(inheritance.values(base, entry.refs))
    elif reading.result is not None and session.hooks.revive:
        values = reading.result.checkpoint["channel_values"]
        others = inheritance.among(values, versions_of(reading.result.checkpoint), entry.refs)
        for name in [name for name, value in others.items() if not is_inline(value)]:
            channels[name], _ = next_version(others[name], None, session.codec)
    return base, _compose(session, new, entry.header, entry.refs, channels, repacks, base)


def _key(address: Address) -> tuple[str, str]:
    return address.thread_id, address.checkpoint_ns


# -- get_tuple -------------------------------------------------------------------------------------------------


def begin_run(session: Session, config: RunnableConfig, *, is_async: bool) -> Plan[CheckpointTuple | None]:
    """Read the checkpoint that a run begins from; see `KeelSaver.get_tuple`."""
    reading = Reading(config, address_of(config), is_async)
    if is_hidden(reading.address) and begins_run(config):
        raise _gone(reading.address)
    try:
        for hear in session.hooks.begin:
            yield from hear(session, reading) or ()
        yield from _read(session, reading, runs=CONFIG_KEY_RUNTIME in configurable(config))
    except BaseException as error:
        yield from tell(session.hooks.read_failed, session, reading, error)
        raise
    found = reading.result
    if found is None and reading.address.checkpoint_id and begins_run(config):
        raise _gone(reading.address)
    return found


def _gone(address: Address) -> NotFound:
    # LangGraph would begin again with an empty state, and store it after the latest checkpoint.
    return NotFound(
        f"{address}: there is no such checkpoint to continue from. It may have been pruned: omit checkpoint_id to "
        "continue from the latest"
    )


def get_tuple(session: Session, config: Mapping[str, Any]) -> Plan[CheckpointTuple | None]:
    """Read one checkpoint, not to begin a run from it."""
    reading = Reading(config, address_of(config))
    yield from _read(session, reading)
    return reading.result


def _read(session: Session, reading: Reading, *, runs: bool = False) -> Plan[KnownEntry | None]:
    """Read a checkpoint into `reading.result`; return its memory for the next `put`."""
    address, key = reading.address, _key(reading.address)
    if is_hidden(address):
        reading.result = yield from read_hidden(session, address)
        return None
    base = session.memo.get(key)
    if base is not None and (address.checkpoint_id not in (None, base.checkpoint_id) or not base.is_whole):
        base = None
    found = yield from session.store.read_entry(address, None if base is None else base.stamp)
    if base is not None and isinstance(found, Unchanged) and found.checkpoint_id not in (None, base.checkpoint_id):
        # The store was restored from a backup, and has since assigned the stamp to another entry.
        base, found = None, (yield from session.store.read_entry(address))
    if found is None:
        return None
    known = base if isinstance(found, Unchanged) else None
    if isinstance(found, Unchanged):
        assert base is not None, "a store answered Unchanged, but no stamp was passed"
        found = base.refresh(found, bool(session.hooks.revive))
    elif base is not None and base.stamp != found.entry.stamp:
        base = None
    origin: Origin = "named" if address.checkpoint_id else "head"
    reading.batches = found.batches
    reading.result = result = yield from revive(session, found, None, origin, reading, known)
    if base is None and not reading.is_revived:
        base = _base_of(session, found, result, runs)
        session.memo.set(key, base)
    for hear in session.hooks.read:
        reading.found = None if known else found
        yield from hear(session, reading) or ()
    return base


def _known_values(session: Session, known: KnownEntry, header: Header) -> dict[str, Any]:
    """Return fresh values of a known checkpoint; keep decoded values for copies."""
    entry, codec, version = known.entry, session.codec, known.version
    has_room = version is not False
    if not version or not version.is_as_decoded(codec):
        version, known.header = Version(codec), None
    if version.refs is not entry.refs:
        version = version.after(entry.refs, header.inline)
    elif not version.left:
        if known.header is None:
            known.header = _header_copies(session, entry)
            session.memo.weigh(_key(entry.address), known)
        return version.make()
    unpacker = Unpacker(codec, session.memo.open_frame)
    values, version = known_values(known.channels, version, unpacker, entry.address)
    if has_room:
        before, known.version = known.version, version
        if version.nbytes != (before.nbytes if before else 0):
            session.memo.weigh(_key(entry.address), known)
    return values


def _header_copies(session: Session, entry: Entry) -> Copies | Literal[False]:
    if not session.codec.is_own:
        return False
    header = unpack_header(entry.header, session.codec, entry.address)
    try:
        copies = Copies([header.checkpoint, header.metadata, header.inline, header.about], COPIED)
    except Uncopied:
        return False
    return False if copies.classes else copies  # its classes would have to be checked each time


def _base_of(session: Session, found: Found, result: CheckpointTuple, runs: bool) -> KnownEntry:
    """Return the memory of a checkpoint that was read.

    For a run, which will store the next checkpoint, fingerprint the values now. Other readers skip that.
    """
    values, refs = result.checkpoint["channel_values"], found.entry.refs
    channels: dict[str, Known] = {}
    for name, ref in refs.items():
        if ref.kind is not Kind.INLINE:
            rows = found.rows.get(name, ())
            channels[name] = (
                learn(values[name], ref, rows, session.codec) if runs else remember(values[name], ref, rows)
            )
    return KnownEntry(found.entry, channels, versions_of(result.checkpoint))


def revive(
    session: Session,
    found: Found,
    unpacker: Unpacker | None,
    origin: Origin,
    reading: Reading | None = None,
    known: KnownEntry | None = None,
) -> Plan[CheckpointTuple]:
    """Return the tuple of an entry. No trip except for formats before 4."""
    entry = found.entry
    where = entry.address
    if known and known.header and known.version and known.version.codec is session.codec:
        header = Header(*known.header.make())
    else:
        header = unpack_header(entry.header, session.codec, where)
    read = _ask_hooks(session, found, header, None) if session.hooks.revive else None
    if read is not None:
        values, writes, beside = read.values, read.writes, read.beside
    else:
        if STATE in header.about:
            _check_newer(session, where, header.about)
        if known is not None:
            values = _known_values(session, known, header)
        elif unpacker is not None:
            values = unpacker.version(entry.refs, header.inline, found.rows, where)
        else:
            # In the original order, which refs keep.
            values = dict.fromkeys(entry.refs) | header.inline
            values |= Unpacker(session.codec, session.memo.open_frame).values(entry.refs, found.rows, where)
        writes, beside = unpack_batches(found.batches, session.codec, where)
        if beside:
            _check_newer(session, where, {}, beside)
    checkpoint: dict[str, Any] = {**header.checkpoint, "id": entry.address.checkpoint_id}
    checkpoint["channel_values"] = values
    if checkpoint.get("v", 4) < 4 and entry.parent:
        yield from _adopt_sends(session, entry, checkpoint)
    parent = entry.parent or hidden_parent(entry, header.metadata)
    if reading is not None:
        reading.about, reading.beside, reading.is_revived = header.about, beside, read is not None
    return CheckpointTuple(
        config_of(entry.address, origin),
        cast(Checkpoint, checkpoint),
        cast(CheckpointMetadata, header.metadata),
        config_of(where, "named", parent) if parent else None,
        writes,
    )


def revive_other(session: Session, found: Found, channels: Collection[str] | None = None) -> Revived | None:
    """Return another application version's checkpoint as revived by a hook, if any."""
    if not session.hooks.revive:
        return None
    return _ask_hooks(session, found, unpack_header(found.entry.header, session.codec, found.entry.address), channels)


def _ask_hooks(session: Session, found: Found, header: Header, channels: Collection[str] | None) -> Revived | None:
    for hear in session.hooks.revive:
        revived: Revived | None = hear(session, found, header, channels)
        if revived is not None:
            return revived
    return None


def _check_newer(session: Session, where: Address, about: Mapping[str, Any], beside: Sequence[Any] = ()) -> None:
    """Refuse data of a newer application version, except in read-only views."""
    if not session.codec.shows:
        check_state(where, about, beside, session.state_version)


def _adopt_sends(session: Session, entry: Entry, checkpoint: dict[str, Any]) -> Plan[None]:
    """Move Sends from the parent's writes (formats before 4) into the checkpoint."""
    found = yield from session.store.read_entry(entry.address.at(entry.parent))
    writes = pending_writes(found.batches, session.codec, entry.address) if found else []
    sends = [value for _, channel, value in writes if channel == TASKS]
    if sends:
        versions = checkpoint["channel_versions"]
        checkpoint["channel_values"][TASKS] = sends
        versions[TASKS] = max(versions.values()) if versions else 1


# -- delta channels --------------------------------------------------------------------------------------------


# LangGraph rebuilds such a channel from writes (`get_delta_channel_history`). Wrappers of a saver without this method,
# such as LangGraph's API server, walk the parents with `get_tuple` instead. A prune turns needed ancestors into
# invisible ghosts (`removal.py`). So that such a walk finds their writes, one *hidden* checkpoint replaces all of them:
# it is the parent of a checkpoint that needs them, and no run can begin from it.


def delta_history(
    session: Session, address: Address, channels: Sequence[str]
) -> Plan[Mapping[str, DeltaChannelHistory]]:
    """Walk the ancestors once; see `KeelSaver.get_delta_channel_history`."""
    ancestors = yield from session.store.read_history(address, set(channels))
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    for found in ancestors:
        remaining = {channel for channel in channels if "seed" not in histories[channel]}
        other = revive_other(session, found, channels)
        writes = other.writes if other else pending_writes(found.batches, session.codec, found.entry.address)
        for channel in remaining:
            history, ref = histories[channel], found.entry.refs.get(channel)
            history["writes"][:0] = [write for write in writes if write[1] == channel]
            # The seed is the value at the ancestor, before its own writes, so these are included.
            if other is not None:
                if channel in other.values:
                    history["seed"] = other.values[channel]
            elif ref is not None and ref.kind is Kind.INLINE:
                header = unpack_header(found.entry.header, session.codec, found.entry.address)
                history["seed"] = header.inline[channel]
            elif ref is not None:
                values = Unpacker(session.codec).values({channel: ref}, found.rows, found.entry.address)
                history["seed"] = values[channel]
    return histories


def read_hidden(session: Session, address: Address) -> Plan[CheckpointTuple | None]:
    """Return a hidden checkpoint: the result of a walk of the ancestors. Two trips.

    It has the values of the farthest ancestors, and all writes since then, oldest first.
    """
    needs = address.at(cast(str, address.checkpoint_id).removesuffix(HIDDEN))
    found = yield from session.store.read_entry(needs)
    if found is None:
        return None
    header = unpack_header(found.entry.header, session.codec, needs)
    if found.entry.parent or hidden_parent(found.entry, header.metadata) is None:
        return None
    histories = yield from delta_history(session, needs, [*rebuilt_channels(header.metadata, found.entry.refs)])
    checkpoint = {
        **header.checkpoint,
        "id": needs.checkpoint_id,  # LangGraph parses it as a UUID
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


# -- list ------------------------------------------------------------------------------------------------------


def page(
    session: Session, query: Query, filter: Mapping[str, Any] | None
) -> Plan[tuple[Sequence[Entry], Query | None]]:
    """Read a page of headers; return matching entries and the query of the next page."""
    entries = yield from session.store.scan(query)
    wanted, codec, find_terms = entries, session.codec, session.hooks.find_terms
    if filter:
        headers = ((entry, unpack_header(entry.header, codec, entry.address)) for entry in entries)
        wanted = [entry for entry, header in headers if matches(header, filter, find_terms)]
    more = len(entries) >= query.limit
    return wanted, replace(query, after=entries[-1]) if more else None


def load(session: Session, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
    """Read the values and writes of entries from `page`. No trip if there are none."""
    if not entries:
        return ()
    found = yield from session.store.read_values(entries)
    return found


# -- writes ----------------------------------------------------------------------------------------------------


def put_writes(
    session: Session, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> Plan[None]:
    """Store pending writes; see `KeelSaver.put_writes`."""
    address = address_of(config)
    if address.checkpoint_id is None:
        raise InvalidConfig("put_writes needs a checkpoint_id: the writes belong to one checkpoint")
    task = text_of(task_id, "task_id"), text_of(task_path, "task_path")
    check_run(config)
    if run_of(config) is not None:
        writes = without_failed(writes)
    if session.ephemeral and writes:
        writes = without_writes(writes, session.ephemeral)
    kept = yield from without_stray(session.store, session.codec, address, writes, task_id)
    if kept is None:
        return
    new = Writes(config, address, kept, task_id)
    for hear in session.hooks.draft_writes:
        yield from hear(session, new) or ()
    batch = pack_batch(kept, *task, session.codec, address, new.beside)
    if not address.checkpoint_ns and (terms := [*terms_of_writes(kept, session.codec), *new.terms]):
        batch = replace(batch, terms=marks_of(terms))
    try:
        for hear in session.hooks.before_writes:
            yield from hear(session, new) or ()
        yield from session.store.write_batch(address, batch)
    except BaseException as error:
        yield from tell(session.hooks.writes_failed, session, new, error)
        raise
    for hear in session.hooks.after_writes:
        new.nbytes = len(batch.body)
        yield from hear(session, new) or ()


# -- threads ---------------------------------------------------------------------------------------------------


def delete_thread(session: Session, thread_id: str, last: Stamp | None = None) -> Plan[bool]:
    """Delete a thread, with `last` only if that is its newest entry; return success."""
    session.memo.forget_thread(thread_id)

    def delete() -> Plan[bool]:
        yield from tell(session.hooks.before_delete, session, thread_id)
        return (yield from session.store.delete_thread(thread_id, last))

    return (yield from in_room(delete))


def copy_thread(session: Session, source: str, target: str) -> Plan[None]:
    """Copy a thread, then features' records; see `KeelSaver.copy_thread`."""
    if source == target:
        raise InvalidInput(f"cannot copy thread {source!r} to itself")
    yield from check_objects(session, f"a copy of thread {source!r} would not have")
    if isinstance((yield from session.store.copy_thread(source, target)), Occupied):
        raise ThreadExists(f"thread {target!r} already holds checkpoints: copy to a new thread id, or delete it first")
    # Records are copied last: only now is the target known to be new.
    yield from tell(session.hooks.after_copy, session, Copy(source, target))


def describe_thread(session: Session, info: ThreadInfo, head: Entry | None) -> tuple[ThreadInfo, Mapping[str, Any]]:
    """Return a thread's facts and metadata from its head. No trip; damage is logged."""
    if head is None:
        return info, {}
    try:
        header = unpack_header(head.header, session.codec, head.address)
    except CorruptStore as error:
        _log.warning("thread %r is listed without the facts of its latest checkpoint: %s", info.thread_id, error)
        return info, {}
    info = replace(info, step=header.metadata.get("step"))
    for hear in session.hooks.describe_thread:
        info = hear(info, header)
    return info, header.metadata
