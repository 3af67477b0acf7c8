"""KeelCache: LangGraph's cache of nodes (`compile(cache=...)`) in a saver's store."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace

from langgraph_keel._langgraph import ERROR, INTERRUPT, RESUME
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.engine import EngineSaver, engine_of
from langgraph_keel.engine.plan import Plan, arun, run
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.engine.tables import NODE_CACHE, Cells
from langgraph_keel.errors import InvalidInput, ValueRefused

_log = logging.getLogger(__name__)
_ASKED = {RESUME, INTERRUPT, ERROR}
"""Channels whose writes say that a person or an error had a part in a result: it is not the node's alone."""


@publish
class KeelCache(BaseCache[Any]):
    """Results of nodes and tasks with a `cache_policy`, on any backend, shared by all threads and processes.

        graph = builder.compile(checkpointer=saver, cache=KeelCache(saver))

    Values are written by the saver's serializer: what it may not revive is not revived here either. Results that used a
    person's answer are not kept; LangGraph's own caches would give them to the next person. (A node that is a graph, in
    which somebody was asked, cannot be told from others: give it no `cache_policy`.) No thread is known here, so what
    `delete_thread` deletes stays in this cache: use `ttl`, or `clear`; `erase` empties it.

    Args:
        saver: Where the results are.

    Raises:
        InvalidInput: `saver` is none of Keel's.
    """

    def __init__(self, saver: EngineSaver) -> None:
        if engine_of(saver) is None:
            raise InvalidInput(f"KeelCache needs a saver of Keel, not a {type(saver).__name__}")
        super().__init__(serde=saver.serde)
        self._saver = saver

    @property
    def _codec(self) -> Codec:
        return self._saver.engine.session.codec

    def _run(self, plan: Plan[Any]) -> Any:
        return run(plan, self._saver.engine.driver)

    async def _arun(self, plan: Plan[Any]) -> Any:
        return await arun(plan, self._saver.engine.async_driver)

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """Return what is stored under these keys and has not expired. One round trip."""
        found: dict[FullKey, Any] = self._run(self._get(keys))
        return found

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """As `get`, asynchronously."""
        found: dict[FullKey, Any] = await self._arun(self._get(keys))
        return found

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Store values, each with the seconds it lives (`None` is for ever)."""
        self._run(self._set(pairs))

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """As `set`, asynchronously."""
        await self._arun(self._set(pairs))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Forget what is stored in these namespaces; in all of them if none are given."""
        self._run(self._clear(namespaces))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """As `clear`, asynchronously."""
        await self._arun(self._clear(namespaces))

    def _get(self, keys: Sequence[FullKey]) -> Plan[dict[FullKey, Any]]:
        if not keys:
            return {}
        by_name = {_name(key): key for key in keys}
        cells = yield from self._cells.read_raw(by_name)
        now = _now()
        live = {name: cell for name, cell in cells.items() if cell.is_live(now)}
        values = ((by_name[name], self._revive(cell)) for name, cell in live.items())
        return {key: value[0] for key, value in values if value}

    def _revive(self, cell: Cell) -> list[Any]:
        """Return a stored value in a list; none if it may not be revived here: it is made again, and written over."""
        try:
            return self._codec.decode(cell.body)
        except ValueRefused as error:
            _log.warning("a cached result is not used: %s", error)
            return []

    def _set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> Plan[None]:
        for key, (value, ttl) in pairs.items():
            if _is_the_nodes_own(value):
                until = None if ttl is None else _now() + int(ttl * 1000)
                cell = self._cells.cell(list(key[0]), body=self._codec.encode([value]), expires_at=until)
                yield from self._cells.overwrite_raw(_name(key), cell)

    def _clear(self, namespaces: Sequence[Namespace] | None) -> Plan[None]:
        for prefix in [""] if namespaces is None else [_prefix(namespace) for namespace in namespaces]:
            yield from self._cells.clear(prefix)

    @property
    def _cells(self) -> Cells[Sequence[str]]:
        return Cells(self._saver.engine.session, NODE_CACHE, None)


def _prefix(namespace: Namespace) -> str:
    # With the length of each part: ("a", "bc") and ("ab", "c") are two.
    parts = [part.encode(errors="surrogatepass") for part in namespace]
    return sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()[:32] + "-"


def _name(key: FullKey) -> str:
    namespace, name = key
    return _prefix(namespace) + sha256(name.encode(errors="surrogatepass")).hexdigest()


def _is_the_nodes_own(value: Any) -> bool:
    if not isinstance(value, (list, tuple, deque)):  # LangGraph gives a deque
        return True
    channels = {write[0] for write in value if isinstance(write, (list, tuple)) and write and isinstance(write[0], str)}
    return not channels & _ASKED


def _now() -> int:
    return time.time_ns() // 1_000_000
