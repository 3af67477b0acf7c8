"""The check that refuses an encrypted store to savers without keys."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from langgraph_keel.engine.engine import AsyncGatedDriver, GatedDriver
from langgraph_keel.engine.plan import AsyncDriver, Driver, Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import AccessDenied, KeyMissing
from langgraph_keel.keys.datakeys import KEY, STORE

_REFUSED = (
    "this store is encrypted: open it with encryption=Keyring(...); for `keel`, set KEEL_KEYS_FILE. Nothing was read "
    "or written"
)


class Gate:
    """Refuses an encrypted store to the drivers of a saver without keys."""

    def __init__(self, store: Store[Any, Any], driver: Driver[Any, Any], async_driver: AsyncDriver[Any, Any]) -> None:
        self._store = store
        self._drivers = driver, async_driver
        self._passed: set[str] = set()

    def drivers(self, tenant: str) -> tuple[Driver[Any, Any], AsyncDriver[Any, Any]]:
        """Return the drivers for a tenant's threads; the empty name means no tenant."""
        driver, async_driver = self._drivers
        if tenant in self._passed:  # tenant views are created often
            return driver, async_driver
        return GatedDriver(driver, lambda: self._check(tenant)), AsyncGatedDriver(
            async_driver, lambda: self._check(tenant)
        )

    def _check(self, tenant: str) -> Plan[None]:
        if tenant in self._passed:  # by the other driver, sync or async
            return
        for store in (self._store, *([self._store.of_tenant(tenant)] if tenant else [])):
            with suppress(AccessDenied):  # a tenant's role may not read shared records
                if KEY in (yield from store.read_cells(STORE, [KEY])):
                    raise KeyMissing(_REFUSED)
        self._passed.add(tenant)
