"""The store of one tenant in shared tables (`engine.tenants`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.layers import Renaming
from langgraph_keel.engine.names import NameMap
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.tenants import prefix_of
from langgraph_keel.engine.verbs import Turn

_IDLE: frozenset[Turn] = frozenset(
    {NameMap.outcome, NameMap.batch, NameMap.channel_set, NameMap.ghosts, NameMap.places}
)
"""The name maps that do nothing; only threads and shared cells are renamed."""


class TenantStore(Renaming):
    """A tenant's data in a shared store; its names have a prefix there."""

    def __init__(self, shared: Store[Any, Any], tenant: str) -> None:
        prefix = prefix_of(tenant)
        size = len(prefix)
        both = (
            NameMap(
                thread=lambda name: _like(name, prefix + name),
                key=lambda shelf, key: prefix + key if shelf.thread_id is None else key,
            ),
            NameMap(
                thread=lambda name: _like(name, name[size:]),
                key=lambda shelf, key: key[size:] if shelf.thread_id is None else key,
            ),
        )

        def find_names(_: bool) -> Plan[tuple[NameMap, NameMap]]:
            yield from ()
            return both

        super().__init__(shared, find_names, _IDLE)

    def list_tenants(self, after: str | None, limit: int) -> Plan[Sequence[str]]:
        """Like `Store.list_tenants`; a tenant sees no other tenants."""
        return Store.list_tenants(self, after, limit)


def _like(name: str, text: str) -> str:
    # A store may use its own type for the key of a name that is no longer stored.
    return text if type(name) is str else type(name)(text)
