"""Upgrades all threads of a store, with a new checkpoint after each latest one.

An interrupted upgrade can be run again. If a run writes to a thread concurrently, the run wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from langgraph_keel._langgraph import NS_END
from langgraph_keel.engine.checkpoints import get_tuple, put
from langgraph_keel.engine.config import Address, config_of
from langgraph_keel.engine.engine import EngineSaver
from langgraph_keel.engine.entries import next_nodes, state_of, unpack_header
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.session import Session
from langgraph_keel.errors import CheckpointConflict, InvalidInput, KeelError, StoreError
from langgraph_keel.upgrades.hook import UpgradeHook

Outcome: TypeAlias = Literal["upgraded", "present", "waits", "busy", "failed"]
"""The outcome for a thread; one that waits is upgraded when it resumes."""
UPGRADED = "keel_upgraded"
"""The metadata key of the old and the new version, in the added checkpoint."""
_PAGE = 100


@dataclass(slots=True)
class UpgradeReport:
    """The result of `keel upgrade`."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)  # why threads could not be upgraded; the first thousand


def upgrade_threads(
    saver: EngineSaver,
    threads: Iterable[str],
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int | None], None] = lambda done, total: None,
) -> UpgradeReport:
    """Upgrade threads one after the other."""
    hook = saver.engine.session.hooks.find(UpgradeHook)
    if hook is None:
        raise InvalidInput("the saver has no upgrades: open it with upgrades=[...]")
    report = UpgradeReport()
    for done, thread_id in enumerate(threads, 1):
        try:
            outcome = saver.engine.run(upgrade_thread(saver.engine.session, thread_id, hook.chain.version, dry_run))
        except CheckpointConflict:
            outcome = "busy"
        except KeelError as error:
            if isinstance(error, StoreError) and error.code not in ("corrupt_store", "seal_broken"):
                raise
            outcome = "failed"
            if len(report.failed) < 1_000:
                report.failed[thread_id] = str(error)
        report.counts[outcome] += 1
        on_progress(done, None)
    return report


def upgrade_thread(session: Session, thread_id: str, version: int, dry_run: bool) -> Plan[Outcome]:
    """Upgrade a thread and its subgraphs' memory. One trip, and two for each graph."""
    entries = yield from session.store.scan(Query(thread_id, limit=_PAGE))
    places = dict.fromkeys(["", *(each.address.checkpoint_ns for each in entries)])
    done: Outcome = "present"
    for place in [place for place in places if NS_END not in place]:
        found = yield from session.store.read_entry(Address(thread_id, place, None))
        header = unpack_header(found.entry.header, session.codec, found.entry.address) if found else None
        if header is None or state_of(header.about) >= version:
            continue
        read = yield from get_tuple(session, config_of(Address(thread_id, place, None), "head"))
        if read is None:
            continue
        if next_nodes(read.checkpoint, read.checkpoint["channel_values"]) or read.pending_writes:
            return "waits"  # a request for approval refers to the checkpoint at which it waits
        if not dry_run:
            checkpoint: Any = {**read.checkpoint, "id": session.new_id(read.metadata.get("step", 0))}
            marks: Any = {**read.metadata, UPGRADED: [state_of(header.about), version]}
            yield from put(session, read.config, checkpoint, marks)
        done = "upgraded"
    return done
