"""The plans of the saver interface: put, get_tuple, list, put_writes, delta history, delete and copy.

`put`, `put_writes` and `get_tuple` are one round trip each. The exceptions are stated where they are made: a base that
another process pruned, a large state (or a snapshot that stays) on a thread that this process has forgotten, and
questions to a person.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, get_checkpoint_metadata
from langgraph.checkpoint.serde.types import TASKS

from langgraph_keel.core.address import Origin, address_of, config_of, must_follow_head, text_of
from langgraph_keel.core.answers import without_stray
from langgraph_keel.core.approvals import Noticing
from langgraph_keel.core.archive_rule import ArchiveRule, Step, as_of_now
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.encoding import Known, Unpacker, is_inline, learn, next_version, rebased
from langgraph_keel.core.filters import matches
from langgraph_keel.core.headers import Header, pack_header, rest_of, unpack_header
from langgraph_keel.core.memo import Base, Memo
from langgraph_keel.core.owners import USER, Owner, owner_in, owner_of
from langgraph_keel.core.plan import Plan, Q, R, T
from langgraph_keel.core.recorder import Account, Learn, Recorder, known_models, models_of
from langgraph_keel.core.records import (
    NEW,
    Address,
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
    Stored,
    ThreadInfo,
)
from langgraph_keel.core.store import Store
from langgraph_keel.core.unnamed import unnamed, versions_of
from langgraph_keel.core.waiting import run_of
from langgraph_keel.core.writes import pack_batch, pending_writes, unpack_batches
from langgraph_keel.errors import (
    CheckpointConflict,
    CorruptStore,
    InvalidConfig,
    InvalidInput,
    ThreadExists,
    ValueRefused,
)

LARGE = 1 << 16
"""Bytes of state above which it is cheaper to read the parent than to write all of it again."""


def where_is(address: Address) -> str:
    """Return how errors name a checkpoint."""
    namespace = f", namespace {address.checkpoint_ns!r}" if address.checkpoint_ns else ""
    return f"thread {address.thread_id!r}{namespace}, checkpoint {address.checkpoint_id or 'latest'}"


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry ready to be sent, and what the process will know once it is stored."""

    entry: NewEntry
    channels: Mapping[str, Known]

    @property
    def weight(self) -> int:
        """Bytes of items to write."""
        return sum(len(row.body) for rows in self.entry.appends.values() for row in rows)

    def base(self, stored: Stored) -> Base:
        """Return what is known now that the entry is stored."""
        settled = {name: known.settled(stored.first.get(name, 0)) for name, known in self.channels.items()}
        return Base(stored.stamp, settled, self.entry.address.checkpoint_id)


class Checkpoints(Generic[Q, R]):
    """The saver interface as plans over one store. Holds no state but the memo, and what the recorder has captured."""

    def __init__(
        self,
        store: Store[Q, R],
        memo: Memo,
        on_conflict: str = "raise",
        recorder: Recorder | None = None,
        questions: Noticing | None = None,
        rule: ArchiveRule | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.store = store
        self.memo = memo
        self.on_conflict = on_conflict
        self.recorder = recorder
        self.questions = questions
        self.rule = rule
        self.owner = owner

    # -- put ---------------------------------------------------------------------------------------------------

    def put(
        self,
        codec: Codec,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Collection[str] = (),
    ) -> Plan[Q, R, RunnableConfig]:
        """Store a checkpoint; see `KeelSaver.put`."""
        parent = address_of(config)
        name = text_of(checkpoint.get("id"), "the id of a checkpoint", empty=False)
        address = replace(parent, checkpoint_id=name)
        key = address.thread_id, address.checkpoint_ns
        account = self._account(address, parent.checkpoint_id, config, metadata)
        entry, header = self._entry(address, parent.checkpoint_id, config, checkpoint, metadata)
        header.metadata.update(account.marks)
        header.about.update(account.about)
        values, rest = checkpoint["channel_values"], unnamed(parent.checkpoint_id, checkpoint, metadata, new_versions)
        base = rest.usable(self.memo.get(key))
        if not owner_in(header.metadata) and (owner := self.memo.owner(key, parent.checkpoint_id)):
            # A run that names nobody goes on with a thread of somebody's, of which a prune may leave this alone.
            header.metadata[USER] = owner
        draft = _draft(entry, header, values, base, codec)
        # Before the first trip: they are the program's own, which may go on meanwhile (durability="async").
        seen = as_of_now(values) if self.rule else values
        if base is None and parent.checkpoint_id and (rest.is_asked or draft.weight > LARGE):
            # All values are serialized by now (rule 3 of plan.py); what the parent has of them is left out again.
            base = yield from self._recall(codec, parent)
            draft = _rebased(draft, base)
        if stays := rest.staying(base):
            draft = _assembled(draft.entry, {**draft.channels, **stays}, base)
        if self.rule:
            deltas = metadata.get("counters_since_delta_snapshot") or ()
            step = Step(parent, metadata.get("step"), base, draft.entry.refs, seen, deltas)
            yield from self.rule.archive(self.store, codec, step)
        outcome = yield from self.store.write_entry(draft.entry)
        if isinstance(outcome, BaseGone):
            # Another process pruned what our differences build on: the second trip, with whole values.
            self.memo.forget(key)
            draft = _draft(entry, header, values, None, codec)
            outcome = yield from self.store.write_entry(draft.entry)
        stored = draft.base(_accepted(outcome, entry))
        self.memo.set(key, replace(stored, owner=owner_in(header.metadata), versions=rest.versions))
        if self.recorder:
            self.recorder.stored(address, account)
        if self.questions:
            yield from self.questions.stepped(codec, address, parent.checkpoint_id, metadata.get("source"))
        return config_of(address, "head")

    def _account(
        self, address: Address, parent: str | None, config: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Account:
        if self.recorder is None:
            return Account()
        source = metadata.get("source")
        account = self.recorder.of_entry(address, parent, source, run_of(config))
        self.recorder.judge(account, source)
        return account

    def _entry(
        self,
        address: Address,
        parent: str | None,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
    ) -> tuple[NewEntry, Header]:
        header = Header(rest_of(checkpoint), dict(get_checkpoint_metadata(config, metadata)), {})
        if not owner_in(header.metadata) and (owner := owner_of(config, self.owner)):
            header.metadata[USER] = owner
        run_id = header.metadata.get("run_id")
        entry = NewEntry(
            address,
            parent,
            b"",
            {},
            checked=must_follow_head(config, metadata),
            on_conflict=self.on_conflict,
            run_id=None if run_id is None else text_of(str(run_id), "run_id"),
            updated_at=text_of(str(checkpoint.get("ts", "")), "ts"),
        )
        return entry, header

    def _recall(self, codec: Codec, parent: Address) -> Plan[Q, R, Base | None]:
        """Learn the parent of a large state that this process has forgotten: one trip more, but not all of it again."""
        try:
            yield from self.get_tuple(codec, config_of(parent, "named"))
        except (ValueRefused, CorruptStore):
            return None
        return self.memo.get((parent.thread_id, parent.checkpoint_ns))

    # -- get_tuple ---------------------------------------------------------------------------------------------

    def get_tuple(self, codec: Codec, config: Mapping[str, Any]) -> Plan[Q, R, CheckpointTuple | None]:
        """Read one checkpoint; see `KeelSaver.get_tuple`."""
        address = address_of(config)
        learn = self.recorder.begin_run(address.thread_id, run_of(config)) if self.recorder else None
        found = yield from self.store.read_entry(address)
        if found is None:
            return None
        origin: Origin = "named" if address.checkpoint_id else "head"
        result = yield from self.revive(codec, found, Unpacker(codec), origin, learn)
        self._learn(found, result, codec)
        if self.questions:
            self.questions.seen(result)
        return result

    def _learn(self, found: Found, result: CheckpointTuple, codec: Codec) -> None:
        values = result.checkpoint["channel_values"]
        key = found.entry.address.thread_id, found.entry.address.checkpoint_ns
        base = self.memo.get(key)
        if base is not None and base.stamp == found.entry.stamp:
            return
        known = {
            channel: learn(values[channel], ref, found.rows.get(channel, ()), codec)
            for channel, ref in found.entry.refs.items()
            if ref.kind is not Kind.INLINE
        }
        channels = {channel: known for channel, known in known.items() if known is not None}
        said = owner_in(result.metadata), versions_of(result.checkpoint)
        self.memo.set(key, Base(found.entry.stamp, channels, found.entry.address.checkpoint_id, *said))

    def revive(
        self, codec: Codec, found: Found, unpacker: Unpacker, origin: Origin, learn: Learn | None = None
    ) -> Plan[Q, R, CheckpointTuple]:
        """Make the tuple of an entry, from which a run may begin. No trip, but for formats before 4 (LangGraph 0.5)."""
        entry = found.entry
        where = where_is(entry.address)
        header = unpack_header(entry.header, codec, where)
        # In the order in which they were put: refs keep it.
        values = dict.fromkeys(entry.refs) | header.inline | unpacker.values(entry.refs, found.rows, where)
        checkpoint: dict[str, Any] = {**header.checkpoint, "id": entry.address.checkpoint_id}
        checkpoint["channel_values"] = values
        if checkpoint.get("v", 4) < 4 and entry.parent:
            yield from self._adopt_sends(codec, entry, checkpoint)
        parent = replace(entry.address, checkpoint_id=entry.parent)
        writes, calls = unpack_batches(found.batches, codec, where)
        if learn and (calls or header.about):
            learn(entry.address, header.about, calls)
        return CheckpointTuple(
            config_of(entry.address, origin),
            cast(Checkpoint, checkpoint),
            cast(CheckpointMetadata, header.metadata),
            config_of(parent, "named") if entry.parent else None,
            writes,
        )

    def _adopt_sends(self, codec: Codec, entry: Entry, checkpoint: dict[str, Any]) -> Plan[Q, R, None]:
        """Move the Sends that formats below 4 left among the parent's writes to where format 4 has them."""
        found = yield from self.store.read_entry(replace(entry.address, checkpoint_id=entry.parent))
        writes = pending_writes(found.batches, codec, where_is(entry.address)) if found else []
        sends = [value for _, channel, value in writes if channel == TASKS]
        if sends:
            versions = checkpoint["channel_versions"]
            checkpoint["channel_values"][TASKS] = sends
            versions[TASKS] = max(versions.values()) if versions else 1

    # -- list --------------------------------------------------------------------------------------------------

    def page(
        self, codec: Codec, query: Query, filter: Mapping[str, Any] | None
    ) -> Plan[Q, R, tuple[Sequence[Entry], Query | None]]:
        """Read one page of headers; return the entries that match and the query for the next page, if there is one."""
        entries = yield from self.store.scan(query)
        wanted = [entry for entry in entries if not filter or _passes(entry, filter, codec)]
        more = len(entries) >= query.limit
        return wanted, replace(query, after=entries[-1]) if more else None

    def load(self, codec: Codec, entries: Sequence[Entry]) -> Plan[Q, R, Sequence[Found]]:
        """Read the values and writes of entries from `page`. No trip if there are none."""
        if not entries:
            return ()
        found = yield from self.store.read_values(entries)
        return found

    # -- writes ------------------------------------------------------------------------------------------------

    def put_writes(
        self,
        codec: Codec,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Plan[Q, R, None]:
        """Store pending writes; see `KeelSaver.put_writes`."""
        address = address_of(config)
        if address.checkpoint_id is None:
            raise InvalidConfig("put_writes needs a checkpoint_id: the writes belong to one checkpoint")
        task = text_of(task_id, "task_id"), text_of(task_path, "task_path")
        kept = yield from without_stray(self.store, codec, address, writes, task_id)
        if kept is None:
            return
        captured = self.recorder.of_task(address.thread_id, task_id, run_of(config), kept) if self.recorder else ()
        calls = [each.record for each in captured]
        batch = pack_batch(kept, *task, codec, where_is(address), calls)
        if self.questions:
            yield from self.questions.written(codec, address, config, writes, task_id)
        yield from self.store.write_batch(address, batch)
        if self.recorder:
            self.recorder.waits.written(captured)

    # -- threads -----------------------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> Plan[Q, R, None]:
        """Delete everything of a thread."""
        self.memo.forget_thread(thread_id)
        if self.recorder:
            self.recorder.forget_thread(thread_id)
        yield from self.store.delete_thread(thread_id)

    def copy_thread(self, source: str, target: str) -> Plan[Q, R, None]:
        """Copy everything of a thread to a new one."""
        if source == target:
            raise InvalidInput(f"cannot copy thread {source!r} to itself")
        if isinstance((yield from self.store.copy_thread(source, target)), Occupied):
            raise ThreadExists(
                f"thread {target!r} already holds checkpoints: copy to a new thread id, or delete it first"
            )

    def copied(self, thread_id: str, what: str) -> Plan[Q, R, None]:
        """Be told that a thread is there, copied from another one; `what` says which. No trip."""
        yield from ()

    def travel(self, thread_id: str, what: str, plan: Plan[Q, R, T]) -> Plan[Q, R, T]:
        """Carry out a plan that makes another checkpoint of a thread the one to go on from; `what` says which."""
        return (yield from plan)

    def threads(self, codec: Codec, after: tuple[str, str] | None, limit: int) -> Plan[Q, R, Sequence[ThreadInfo]]:
        """Read a page of threads, last activity first."""
        page = yield from self.store.read_threads(after, limit)
        return [_described(info, header, codec) for info, header in page]


def _draft(entry: NewEntry, header: Header, values: Mapping[str, Any], base: Base | None, codec: Codec) -> Draft:
    channels: dict[str, Known] = {}
    repacks: dict[str, tuple[Row, ...]] = {}
    where = where_is(entry.address)
    inline = {text_of(name, "a channel"): value for name, value in values.items() if is_inline(value)}
    for channel in [text_of(name, "a channel") for name in values if name not in inline]:
        before = base.channels.get(channel) if base else None
        try:
            channels[channel], repacks[channel] = next_version(values[channel], before, codec)
        except ValueRefused as error:
            raise error.at(f"{where}, channel {channel!r}") from error
    packed = pack_header(replace(header, inline=inline), codec, where)
    entry = replace(entry, header=packed, refs=dict.fromkeys(values, Ref(Kind.INLINE)), repacks=repacks)
    return _assembled(entry, channels, base)


def _rebased(draft: Draft, base: Base | None) -> Draft:
    if base is None:
        return draft
    channels = {name: rebased(known, base.channels.get(name)) for name, known in draft.channels.items()}
    return _assembled(draft.entry, channels, base)


def _assembled(entry: NewEntry, channels: Mapping[str, Known], base: Base | None) -> Draft:
    refs = {**entry.refs, **{name: known.ref for name, known in channels.items()}}
    repacks = {name: rows for name, rows in entry.repacks.items() if rows}
    uses_base = repacks or any(lo < NEW for ref in refs.values() for lo, _ in ref.runs)
    appends = {name: known.appends() for name, known in channels.items() if known.fresh}
    stamp = base.stamp if base and uses_base else None
    return Draft(replace(entry, refs=refs, appends=appends, repacks=repacks, base=stamp), channels)


def _accepted(outcome: Outcome, entry: NewEntry) -> Stored:
    if isinstance(outcome, Moved):
        address = entry.address
        raise CheckpointConflict(
            address.thread_id,
            address.checkpoint_ns,
            entry.parent,
            outcome.head,
            str(address.checkpoint_id),
        )
    assert isinstance(outcome, Stored), "a store answered BaseGone to an entry without a base"
    return outcome


def _passes(entry: Entry, filter: Mapping[str, Any], codec: Codec) -> bool:
    header = unpack_header(entry.header, codec, where_is(entry.address))
    return matches(header.metadata, filter, models_of(header.about))


def _described(info: ThreadInfo, header: bytes, codec: Codec) -> ThreadInfo:
    if not header:
        return info
    head = unpack_header(header, codec, f"thread {info.thread_id!r}")
    return replace(info, step=head.metadata.get("step"), models=tuple(sorted(known_models(head.about))))
