"""A hot store before a cold one, for the contract, opened as by two processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ormsgpack

from langgraph_keel.backends.tiered.chains import LOG
from langgraph_keel.backends.tiered.driver import Absence, AsyncTieredDriver, TieredDriver
from langgraph_keel.backends.tiered.store import TieredStore
from langgraph_keel.engine.encoding.bodies import open_frame, restore_frame
from langgraph_keel.engine.engine import bare
from langgraph_keel.engine.plan import run
from langgraph_keel.engine.records import Query
from langgraph_keel.engine.tenants import read_tenants
from langgraph_keel.saver import KeelSaver


class TieredUnderTest:
    """Two stores under test as one; each opened saver starts without known chains.

    Args:
        hot: The store with copies.
        cold: The store with all data.
        store: Creates the combined store.
        light: Maximum bytes that are left to the cold store; by default all goes to the hot one.
    """

    def __init__(self, hot: Any, cold: Any, store: type[TieredStore] = TieredStore, light: int = 0) -> None:
        self.hot = hot
        self.cold = cold
        self._store = store
        self.light = light

    def open(self, **options: Any) -> KeelSaver:
        hot, cold, absence = self.hot.open().engine, self.cold.open().engine, Absence()
        return KeelSaver(
            self._store(cold.session.store, hot.session.store, self.light),
            TieredDriver(bare(cold.driver), bare(hot.driver), absence),
            AsyncTieredDriver(bare(cold.async_driver), bare(hot.async_driver), absence),
            **options,
        )

    def wipe(self) -> None:
        self.hot.wipe()
        self.cold.wipe()

    def raw(self) -> bytes:
        """Return the bytes of the cold store, and those that only the hot one has.

        A copy adds no bytes, but a remnant does.
        """
        cold: bytes = self.cold.raw()
        return b"\n".join([cold, *(part for part in self.copies() if part not in cold)])

    def copies(self) -> Iterator[bytes]:
        """Yield all headers and bodies of rows in the hot store."""
        with self.open() as saver:
            store: Any = saver.engine.session.store
            engine = self.hot.open().engine
            for hot in [
                store.hot,
                *(store.of_tenant(name).hot for name in run(read_tenants(store), bare(saver.engine.driver))),
            ]:
                entries = engine.run(hot.scan(Query(limit=10_000)))
                for found in engine.run(hot.read_values(entries)):
                    for row in found.rows[LOG]:
                        *_, header, _, kept = ormsgpack.unpackb(open_frame(row.body))
                        yield restore_frame(header)
                        yield from (restore_frame(body) for _, rows in kept for _, _, body in rows)

    def close(self) -> None:
        self.hot.close()
        self.cold.close()
