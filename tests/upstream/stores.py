"""A pytest plugin that runs LangGraph's own tests of stores on Keel's.

It is loaded next to `upstream.plugin`, and opens a store on its saver for each store that a test creates.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

from langgraph_keel.store.keel_store import KeelStore
from upstream import plugin, stand_in

MODULES = {
    "langgraph.store.memory": ("InMemoryStore",),  # of deepagents, too
    "langgraph.store.sqlite": ("SqliteStore", "AsyncSqliteStore"),
    "langgraph.store.sqlite.aio": ("AsyncSqliteStore",),
    "langgraph.store.postgres": ("PostgresStore", "AsyncPostgresStore"),
}
OWN_SQL = "reads or changes LangGraph's tables, or its statements"
NO_PATHS = "takes a dot in the field of a filter for a path; for ours and InMemoryStore it is part of the name"
EXCLUDED = {
    r"tests/.*::test_(nonnull_migrations|escape_|namespace_match_pattern)": OWN_SQL,
    r"tests/.*::test_list_namespaces_prefix_uses_indexable_condition": OWN_SQL,
    r"tests/test_store.py::test_vector_store_initialization$": OWN_SQL,
    r"tests/.*::test_abatch_uses_single_pool_checkout": OWN_SQL,
    r"tests/.*::test_omit_expired_disabled": "demands that items are shown that have expired",
    r"tests/.*::test_omit_expired_": OWN_SQL,
    r"tests/.*::test_no_running_loop": "wants an error of blocking methods in a loop; ours has both faces",
    r"tests/.*::test_sql_injection_vulnerability": "wants an error of a filter's odd field; ours finds nothing",
    r"tests/.*::test_filter_keys_with_hyphens_and_digits": NO_PATHS,
    r"tests/.*::test_ttl_override_default": "wants a read not to renew an item, which is LangGraph's own default",
    r"tests/test_store.py::test_batch_list_namespaces_ops\[(default|pool)": "has a text for a path; ours refuses it",
    # Here, each is a separate task and trip: it took minutes, and gigabytes of memory.
    r"tests/test_async_store.py::test_large_batches_async\[(default|pool)": "awaits 60,000 operations at once",
    r"tests/test_store.py::test_scores\[.*-l2\]": "LangGraph's option `distance_type`, which Keel refuses",
    r"tests/.*\[pipe": "LangGraph's option `pipe`, which Keel has not",
}


def known(index: Any) -> Any:
    """Return the options of an index that Keel knows.

    The others concern LangGraph's tables.
    """
    fields = index and (index.get("fields") or index.get("text_fields"))  # their SQL stores have another name
    return index and {"dims": index["dims"], "embed": index["embed"], "fields": fields}


class Store(KeelStore):
    """A separate store for each one that is created, at any place that the test names."""

    MIGRATIONS: ClassVar[list[str]] = []

    def __init__(self, *, index: Any = None, ttl: Any = None) -> None:
        backend, place = stand_in.BACKENDS[plugin.NAME]
        saver = backend(**plugin.STORES.place(place))
        plugin.STORES.close_later(saver)
        super().__init__(saver, ttl, index=known(index))
        self.index_config = index

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None, **_: Any) -> Iterator[Store]:
        yield cls(index=index, ttl=ttl)

    def setup(self) -> None:
        self.get(("any",), "key")

    def _cursor(self) -> Any:
        """Return a cursor with which a fixture drops a table of LangGraph's."""
        return nullcontext(SimpleNamespace(execute=lambda _: None))


class AsyncStore(KeelStore):
    """As `Store`; its sweeper is started in a coroutine."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, conn_string: str, *, index: Any = None, ttl: Any = None, **_: Any
    ) -> AsyncIterator[Any]:
        made = Store(ttl=ttl)
        # private: a second store on the saver of the first
        yield cls(made._saver, ttl, index=known(index))

    MIGRATIONS: ClassVar[list[str]] = []

    async def setup(self) -> None:
        await self.aget(("any",), "key")

    async def start_ttl_sweeper(self) -> None:  # type: ignore[override]
        super().start_ttl_sweeper()

    async def stop_ttl_sweeper(self) -> bool:  # type: ignore[override]
        return super().stop_ttl_sweeper()

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await self.asweep_ttl()

    def _cursor(self) -> Any:
        """Return a cursor with which a fixture drops a table of LangGraph's."""

        async def execute(_: str) -> None: ...

        return nullcontext(SimpleNamespace(execute=execute))


for _module, _names in MODULES.items():
    for _name in _names:
        if plugin.NAME in stand_in.BACKENDS:
            setattr(importlib.import_module(_module), _name, AsyncStore if _name.startswith("Async") else Store)
        stand_in.NAMES.add(_name)
plugin.EXCLUDED.update(EXCLUDED)


def pytest_configure(config: Any) -> None:
    # A plugin that is not installed here retries their time-dependent tests.
    config.addinivalue_line("markers", "flaky: tried again")
