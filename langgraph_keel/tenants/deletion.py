"""A tenant who leaves: all that one has in the store goes, and a receipt says what that was."""

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
"""Threads that are deleted in one request."""


@publish
@dataclass(frozen=True, slots=True)
class TenantReceipt:
    """What the deletion of a tenant has done. It is returned and not stored; the audit trail keeps counts and the hash.

    Attributes:
        tenant: The tenant.
        at: ISO time when the deletion ended.
        threads: How many threads were deleted; with `dry_run`, how many would be. After one that was cut off, the rest.
        checkpoints: How many checkpoints could be seen in them.
        left: Whether there is still something: with `dry_run`, or what a run has put meanwhile.
        exempt: What this store cannot reach: a sentence each.
        reclaimed: What became of the space; `None` if that was not asked for.
        dry_run: Whether nothing was written.
        problems: What else went wrong, in words.
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
        """SHA-256 of the tenant's name, in hexadecimal digits, as the audit trail has it."""
        return sha256(self.tenant.encode()).hexdigest()

    @property
    def complete(self) -> bool:
        """Whether nothing of the tenant is left in this store that Keel knows of."""
        return not (self.left or self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "tenant_hash": self.tenant_hash, "complete": self.complete}

    def __str__(self) -> str:
        """Return it in words, a line each."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return html.pre(str(self))

    def _lines(self) -> Iterator[str]:
        held = f"{count_of(self.threads, 'thread')} with {count_of(self.checkpoints, 'checkpoint')}"
        what = f"all that tenant {self.tenant} has: {held}, and what they share"
        if self.dry_run:
            yield f"Would be deleted: {what}" if self.left else f"Tenant {self.tenant} has nothing here"
            return
        yield f"Deleted: {what}, at {self.at}"
        if self.left:
            yield "Not done: something was put meanwhile: stop what runs for the tenant, and delete again"
        yield from (f"Not done: {problem}" for problem in self.problems)
        if self.reclaimed:
            yield f"Space after that: {self.reclaimed}"
        yield from (f"Not deleted: {sentence}" for sentence in self.exempt)


def delete_tenant(
    session: Session, theirs: Session, elsewhere: Sequence[str], dry_run: bool, tell: Tell
) -> Plan[TenantReceipt]:
    """Delete all that a tenant has; or look how much it is. One that broke off is finished by the next one."""
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
            yield from audit.append(session, "", receipt.at, "tenant deleted", content)  # of no thread, so it stays
        except KeelError as error:
            return replace(receipt, problems=(f"the audit trail does not say it: {error}",))
    return receipt


def _look_at(theirs: Session, dry_run: bool, tell: Tell) -> Plan[tuple[int, int]]:
    """Count threads and checkpoints; features forget what they remember of threads that are about to go."""
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
