"""Deletion of a tenant's data, with a receipt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

from langgraph_keel.display import html
from langgraph_keel.display.text import count_of
from langgraph_keel.engine import audit
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Listed, Page
from langgraph_keel.engine.removal import in_room
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.session import tell as tell_hooks
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.errors import KeelError
from langgraph_keel.retention.erase import THREADS, Tell
from langgraph_keel.retention.holds import list_holds, refusal
from langgraph_keel.retention.reclaim import Reclaimed

AT_ONCE = 100
"""Threads deleted per request."""


@publish
@dataclass(frozen=True, slots=True)
class TenantReceipt:
    """Receipt of the deletion of a tenant.

    It is not stored; the audit trail keeps counts and the hash.

    Attributes:
        tenant: The tenant.
        at: ISO time of the end of the deletion.
        threads: Number of threads deleted, or with `dry_run`, to be deleted. After an interruption, only the rest.
        checkpoints: Number of readable checkpoints in them.
        left: Whether the tenant still has data: with `dry_run`, or because a run wrote concurrently.
        exempt: Sentences about data that this store cannot reach.
        reclaimed: The result of reclaiming space; `None` if that was not requested.
        dry_run: Whether nothing was written.
        problems: Sentences about other failures.
    """

    tenant: str
    at: str
    threads: int
    checkpoints: int
    left: bool
    exempt: Sequence[str] = ()
    reclaimed: Reclaimed | None = None
    dry_run: bool = False
    problems: Sequence[str] = ()

    @property
    def tenant_hash(self) -> str:
        """SHA-256 of the tenant's name, in hexadecimal, as in the audit trail."""
        return sha256(self.tenant.encode()).hexdigest()

    @property
    def complete(self) -> bool:
        """Whether no known data of the tenant is left in this store."""
        return not (self.left or self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of plain data."""
        return {**asdict(self), "tenant_hash": self.tenant_hash, "complete": self.complete}

    def __str__(self) -> str:
        """Describe the result, one fact a line."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return html.pre(str(self))

    def _lines(self) -> Iterator[str]:
        held = f"{count_of(self.threads, 'thread')} with {count_of(self.checkpoints, 'checkpoint')}"
        what = f"all data of tenant {self.tenant}: {held}, and shared records"
        if self.dry_run:
            yield f"Would be deleted: {what}" if self.left else f"Tenant {self.tenant} has nothing here"
            return
        yield f"Deleted: {what}, at {self.at}"
        if self.left:
            yield "Not done: a run wrote new data during the deletion: stop the tenant's runs, and delete again"
        yield from (f"Not done: {problem}" for problem in self.problems)
        if self.reclaimed:
            yield f"Reclaimed space: {self.reclaimed}"
        yield from (f"Not deleted: {sentence}" for sentence in self.exempt)


def delete_tenant(
    session: Session, theirs: Session, elsewhere: Sequence[str], dry_run: bool, tell: Tell
) -> Plan[TenantReceipt]:
    """Delete all data of a tenant, or count it. Resumes an interrupted deletion."""
    tenant = str(theirs.tenant)
    for hold in (yield from list_holds(theirs)):
        raise refusal(f"{hold.user_id!r} of tenant {tenant}", hold)
    was_there = tenant in (yield from read_tenants(session.store))
    threads, checkpoints = yield from _look_at(theirs, dry_run, tell)
    if dry_run:
        return TenantReceipt(tenant, session.now, threads, checkpoints, was_there, dry_run=True)
    deleted = 0
    while gone := (yield from in_room(partial(theirs.store.delete_all, AT_ONCE))):
        deleted += gone
        tell(deleted, max(deleted, threads))
    left = tenant in (yield from read_tenants(session.store))
    exempt = tuple(elsewhere) if was_there else ()
    receipt = TenantReceipt(tenant, session.now, deleted, checkpoints, left, exempt)
    if was_there:
        content = {"tenant": receipt.tenant_hash, "threads": deleted, "checkpoints": checkpoints}
        try:
            yield from audit.append(session, "", receipt.at, "tenant deleted", content)  # without a thread, so it stays
        except KeelError as error:
            return replace(receipt, problems=(f"the deletion could not be recorded in the audit trail: {error}",))
    return receipt


def _look_at(theirs: Session, dry_run: bool, tell: Tell) -> Plan[tuple[int, int]]:
    """Count threads and checkpoints, and let features forget threads to be deleted."""
    threads = checkpoints = 0
    size, after = THREADS, None
    while size == THREADS:
        page: Sequence[Listed] = yield from theirs.store.read_threads(Page(after, THREADS, tolerant=True))
        size = len(page)
        for info, _ in page:
            threads, checkpoints, after = threads + 1, checkpoints + info.checkpoints, (info.updated_at, info.thread_id)
            if not dry_run:
                theirs.memo.forget_thread(info.thread_id)
                yield from tell_hooks(theirs.hooks.before_delete, theirs, info.thread_id)
        tell(threads, None)
    return threads, checkpoints
