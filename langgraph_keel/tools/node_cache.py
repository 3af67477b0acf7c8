"""KeelCache: LangGraph's node cache (`compile(cache=...)`) in a saver's store."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from langgraph.cache.base import BaseCache, FullKey, Namespace

from langgraph_keel._langgraph import ERROR, INTERRUPT, RESUME
from langgraph_keel.engine.engine import Engine, EngineSaver, engine_of
from langgraph_keel.engine.faces import faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.tables import NODE_CACHE, Cells
from langgraph_keel.errors import InvalidInput, ValueRefused

_log = logging.getLogger(__name__)
_ASKED = {RESUME, INTERRUPT, ERROR}
"""Channels of writes that show that a result depends on a person's answer or an error."""


@publish
class KeelCache(BaseCache[Any]):
    """Caches results of nodes and tasks for all threads and processes.

        graph = builder.compile(checkpointer=saver, cache=KeelCache(saver))

    Values are written by the saver's serializer, with the same restrictions on revived classes. Results that used a
    person's answer are not kept; LangGraph's own caches would return them to the next person. (Do not set a
    `cache_policy` on a node that is a graph and asks a person: such results cannot be recognized.) Entries have no
    thread, so `delete_thread` does not remove them: use `ttl` or `clear`. `erase` empties the cache.

    Args:
        saver: The saver whose store keeps the results.

    Raises:
        InvalidInput: If `saver` is not one of Keel's.
    """

    def __init__(self, saver: EngineSaver) -> None:
        if engine_of(saver) is None:
            raise InvalidInput(f"KeelCache needs a saver of Keel, not a {type(saver).__name__}")
        super().__init__(serde=saver.serde)
        self._saver = saver

    @property
    def engine(self) -> Engine:
        """The engine that runs its plans."""
        return self._saver.engine

    def _get(self, keys: Sequence[FullKey]) -> Plan[dict[FullKey, Any]]:
        """Return the unexpired values of these keys. One round trip."""
        if not keys:
            return {}
        by_name = {_name(key): key for key in keys}
        cells = yield from self._cells.read_raw(by_name)
        now = _now()
        live = {name: cell for name, cell in cells.items() if cell.is_live(now)}
        found: dict[FullKey, Any] = {}
        for name, cell in live.items():
            try:
                (found[by_name[name]],) = self.engine.session.codec.decode(cell.body)
            except ValueRefused as error:  # the node runs again and overwrites it
                _log.warning("a cached result is not used: %s", error)
        return found

    get, aget = faces(_get)

    def _set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> Plan[None]:
        """Store values, each with its time to live in seconds (`None`: no expiry)."""
        for key, (value, ttl) in pairs.items():
            # LangGraph passes a deque of writes.
            writes = value if isinstance(value, (list, tuple, deque)) else ()
            firsts = [each[0] for each in writes if isinstance(each, (list, tuple)) and each]
            if not any(isinstance(first, str) and first in _ASKED for first in firsts):
                until = None if ttl is None else _now() + int(ttl * 1000)
                body = self.engine.session.codec.encode([value])
                cell = self._cells.cell(list(key[0]), body=body, expires_at=until)
                yield from self._cells.overwrite_raw(_name(key), cell)

    set, aset = faces(_set)

    def _clear(self, namespaces: Sequence[Namespace] | None = None) -> Plan[None]:
        """Delete the values of these namespaces; of all if none are given."""
        for prefix in [""] if namespaces is None else [_prefix(namespace) for namespace in namespaces]:
            yield from self._cells.clear(prefix)

    clear, aclear = faces(_clear)

    @property
    def _cells(self) -> Cells[Sequence[str]]:
        return Cells(self.engine.session, NODE_CACHE, None)


def _prefix(namespace: Namespace) -> str:
    # With the length of each part: ("a", "bc") and ("ab", "c") differ.
    parts = [part.encode(errors="surrogatepass") for part in namespace]
    return sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()[:32] + "-"


def _name(key: FullKey) -> str:
    namespace, name = key
    return _prefix(namespace) + sha256(name.encode(errors="surrogatepass")).hexdigest()


def _now() -> int:
    return time.time_ns() // 1_000_000
