"""Stores that do not isolate tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langgraph_keel.backends.memory.store import MemoryStore, Request
from langgraph_keel.backends.tenants import TenantStore
from langgraph_keel.engine.plan import StorePlan


class TenantsShareAll(MemoryStore):
    """Gives each tenant the data of all."""

    def of_tenant(self, tenant: str) -> MemoryStore:
        return self


class ListingsNameAllTenants(MemoryStore):
    """Renames threads, and filters no listing."""

    def of_tenant(self, tenant: str) -> Any:
        return TenantStore(self, tenant)


class TenantsOfOneBeginning(MemoryStore):
    """Identifies a tenant by the first three letters of its name."""

    def of_tenant(self, tenant: str) -> MemoryStore:
        return super().of_tenant(tenant[:3])


class NoTenantIsListed(MemoryStore):
    """Does not know which tenants have data."""

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        yield lambda state: None
        return []


class TenantsBeginAnew(MemoryStore):
    """Starts every page with the first tenant."""

    def list_tenants(self, after: str | None, limit: int) -> StorePlan[Request, Any, Sequence[str]]:
        return (yield from super().list_tenants(None, limit))


class WhoLeavesTakesOthersAlong(MemoryStore):
    """Deletes the data of all tenants."""

    def delete_all(self, limit: int) -> StorePlan[Request, Any, int]:
        if self._tenant:
            yield lambda state: [state.tenants.pop(name) for name in list(state.tenants)]
        return 0


class WhoLeavesLeavesCells(MemoryStore):
    """Deletes the threads of a tenant, not its shared cells."""

    def delete_all(self, limit: int) -> StorePlan[Request, Any, int]:
        if not self._tenant:
            return (yield from super().delete_all(limit))
        names: list[str] = yield lambda state: list(state.tenants[self._tenant])
        yield lambda state: [state.tenants[self._tenant].pop(name) for name in names]
        return len(names)


TENANTS: Mapping[str, Callable[[], MemoryStore]] = {
    store.__name__: store
    for store in (
        TenantsShareAll,
        ListingsNameAllTenants,
        TenantsOfOneBeginning,
        NoTenantIsListed,
        TenantsBeginAnew,
        WhoLeavesTakesOthersAlong,
        WhoLeavesLeavesCells,
    )
}
