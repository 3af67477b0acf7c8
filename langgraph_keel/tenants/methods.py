"""`saver.tenants`: list and delete tenants.

A tenant's saver is `saver.for_tenant(name)`.
"""

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
    """`saver.tenants`: the tenants that share a store in isolation."""

    _saver: RetentionSaver

    @property
    def _shared(self) -> Engine:
        return shared_engine(self._saver)

    def _list(self) -> Plan[Sequence[str]]:
        """Return the names of tenants with data in the store, in order.

        It may read the names of all records of tenants, and is meant for operators of the store.

        Raises:
            InvalidInput: If this saver is a tenant's, or was created with `tenants="required"`.
        """
        session = self.engine.session
        if session.tenant:
            raise InvalidInput(f"this saver is tenant {session.tenant!r}'s, and a tenant cannot see other tenants")
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
        """Delete all data of a tenant: its threads, and the records that they share.

        This includes approvals and the audit trail, tool results, policies, damaged threads, and, in an encrypted
        store, the tenant's key: if the tenant returns, it gets a new one. Other tenants' data is not changed. The
        deletion is recorded in the store's own audit trail (without a tenant), with counts and a hash of the name.

        Stop the tenant's runs first. If the deletion is interrupted, call it again: it resumes. Each request deletes a
        hundred threads atomically; in a files store, the whole directory.

        Args:
            name: The tenant.
            dry_run: Whether to only count the data; nothing is written.
            reclaim: As for `erase`.
            on_progress: Called with the number of threads counted and `None`, then with the number deleted and the
                total.

        Returns:
            The receipt. `receipt.complete` states whether nothing is left. For an unknown tenant, nothing was deleted.

        Raises:
            InvalidInput: If `name` is not a valid name of a tenant, an argument is invalid, or this saver is a
                tenant's.
            OnHold: If a person of the tenant is on hold (`retention.hold`). Nothing was deleted.
            ReadOnlyStore: If this saver is read-only, unless `dry_run` is set.
            StoreError: If the store fails. Threads deleted until then stay deleted, and the next call resumes.
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
