"""`saver.tenants`: which tenants there are, and the deletion of one. A tenant's saver is `saver.for_tenant(name)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias

from langgraph_keel.engine.engine import Engine, shared_engine
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.removal import check_objects
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tenants import check_tenant, read_tenants
from langgraph_keel.errors import InvalidInput
from langgraph_keel.retention.methods import (
    Progress,
    RetentionSaver,
    check_flags,
    delete_and_scrub,
    ignore_progress,
)

if TYPE_CHECKING:
    from langgraph_keel.tenants.deletion import TenantReceipt

Tenants: TypeAlias = Literal["allowed", "required"]


class TenantMethods(Component):
    """`saver.tenants`: the customers that share a store, and see nothing of each other."""

    _saver: RetentionSaver

    @property
    def _shared(self) -> Engine:
        return shared_engine(self._saver)

    def _list(self) -> Plan[Sequence[str]]:
        """Return the names of the tenants that have something in the store, in order.

        It may look at the names of all that tenants have: for who operates the store.

        Raises:
            InvalidInput: This saver is a tenant's; or it was made with `tenants="required"`.
        """
        session = self.engine.session
        if session.tenant:
            raise InvalidInput(f"this saver is tenant {session.tenant!r}'s, who does not see which others there are")
        return (yield from read_tenants(session.store))

    list, alist = faces(_list)

    def _delete(
        self,
        name: str,
        *,
        dry_run: bool = False,
        reclaim: bool | Literal["full"] = True,
        on_progress: Progress | None = None,
    ) -> Plan[TenantReceipt]:
        """Delete all that a tenant has: threads with all that is theirs, and what they share.

        Approvals and the audit trail, results of tools, policies, and the key, if the store is encrypted: a tenant who
        comes again gets another one. What others have stays as it is. That it was done stands in the audit trail of no
        tenant, with counts and a hash of the name. Damaged threads go as well.

        Stop what runs for the tenant first. If it breaks off, or a process dies, delete again: that finishes it.
        At a time a hundred threads go, each request atomic; of files, the whole directory.

        Args:
            name: The tenant.
            dry_run: Only say how much would go; nothing is written.
            reclaim: As for `erase`.
            on_progress: Called with how many threads were counted (`None` in all), then how many of how many deleted.

        Returns:
            What went: `receipt.complete` says whether nothing is left. Of a tenant who has nothing, nothing went.

        Raises:
            InvalidInput: It cannot be a tenant's name; this saver is a tenant's itself; or an argument cannot be meant.
            OnHold: A person of the tenant is on hold (`retention.hold`). Nothing was deleted.
            ReadOnlyStore: This saver only reads, and it is no `dry_run`.
            StoreError: The store cannot be asked; what was deleted by then is, and the next call goes on.
        """
        check_flags(dry_run=dry_run)
        if reclaim not in (True, False, "full"):
            raise InvalidInput(f"reclaim must be True, False or 'full', not {reclaim!r}")
        theirs = self._saver.for_tenant(check_tenant(name)).engine.session
        delete = partial(self._delete_all, theirs, dry_run, on_progress or ignore_progress)
        receipt: TenantReceipt = yield from delete_and_scrub(self._saver, delete, dry_run=dry_run, reclaim=reclaim)
        return receipt

    delete, adelete = faces(_delete, on="_shared")

    def _delete_all(
        self, theirs: Session, dry_run: bool, tell: Progress, elsewhere: Sequence[str]
    ) -> Plan[TenantReceipt]:
        from langgraph_keel.tenants.deletion import delete_tenant

        yield from check_objects(theirs, "would stay")
        return (yield from delete_tenant(self._shared.session, theirs, elsewhere, dry_run, tell))
