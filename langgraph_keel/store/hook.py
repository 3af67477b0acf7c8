"""What a saver does for items by itself: sweeps remove those that have expired, and `keel check` reads all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.store.items import Items
from langgraph_keel.store.records import INDEX, ITEMS


class ItemHook(Hook):
    """Sweeps items."""

    shared_tables = (ITEMS, INDEX)

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """Remove items that have expired. One trip, if there are none."""
        yield from Items(session, OrderedDict()).sweep()
        return ()
