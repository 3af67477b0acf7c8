"""The view of a store that a tenant has, and the names of the tenants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self, TypeAlias

from langgraph_keel.engine.engine import Engine, EngineSaver
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.tenants import check_tenant, read_tenants
from langgraph_keel.errors import InvalidInput

Tenants: TypeAlias = Literal["allowed", "required"]


class TenantMethods(EngineSaver):
    """The methods for tenants: customers that share a store, and see nothing of each other."""

    def engine_of(self, tenant: str) -> Engine:
        """See `EngineSaver.engine_of`."""
        return self.for_tenant(tenant).engine if tenant else self.engine

    def list_engines(self) -> Iterator[Engine]:
        """See `EngineSaver.list_engines`."""
        if self._engine.session.tenant is not None:
            yield self.engine
        for tenant in () if self.tenant else self._engine.run(self._list_tenants()):
            yield self.engine_of(tenant)

    @property
    def tenant(self) -> str | None:
        """The tenant whose threads this saver has; `None` for those of no tenant."""
        return self._engine.session.tenant or None

    def for_tenant(self, name: str) -> Self:
        """Return a saver on the same store and connections in which only one tenant's threads exist. No round trip.

        It has all methods, and all that they find is the tenant's: threads, approvals, tool calls, policies, labels,
        archives, the audit trail. What others have is not there, under whatever name; and the saver that this was
        called on has nothing of any tenant. With `encryption`, each tenant has a key of its own. The same object is
        returned for the same name, while somebody holds it. Closing it gives back nothing that others use; closing this
        saver closes all.

        Args:
            name: 1 to 64 letters, digits, `.`, `_`, `@`, `+` and `-`; the first one a letter or digit.

        Raises:
            InvalidInput: It cannot be a tenant's name; this saver is a tenant's itself; or the backend has no tenants.
        """
        if self.tenant is not None:
            raise InvalidInput(f"this saver is tenant {self.tenant!r}'s: call for_tenant on the one that it came from")
        return self._view(check_tenant(name))

    def _view(self, tenant: str) -> Self:
        """Return the saver of a tenant."""
        raise NotImplementedError

    def tenants(self) -> Sequence[str]:
        """Return the names of the tenants that have something in the store, in order.

        It may look at the names of all that tenants have: for who operates the store.

        Raises:
            InvalidInput: This saver is a tenant's; or it was made with `tenants="required"`.
        """
        return self.engine.run(self._list_tenants())

    async def atenants(self) -> Sequence[str]:
        """As `tenants`, asynchronously."""
        return await self.engine.arun(self._list_tenants())

    def _list_tenants(self) -> Plan[Sequence[str]]:
        if self.tenant is not None:
            raise InvalidInput(f"this saver is tenant {self.tenant!r}'s, who does not see which others there are")
        return (yield from read_tenants(self._engine.session.store))
