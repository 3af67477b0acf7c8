"""The saver's hook for items, for sweeps, erasure and `keel check`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.store.items import Items
from langgraph_keel.store.locks import LOCKS
from langgraph_keel.store.records import INDEX, ITEMS


class ItemHook(Hook):
    """Removes expired items, and erases the items of a person."""

    shared_tables = (ITEMS, INDEX, LOCKS)

    def before_sweep(self, session: Session, remind_after: float | None) -> Plan[Sequence[Any]]:
        """Remove expired items. One trip if there are none."""
        yield from Items(session, OrderedDict()).sweep()
        return ()

    def erase_items(
        self, session: Session, person: str, held: Collection[str], acts: bool
    ) -> Plan[tuple[int, Sequence[str]]]:
        """Remove the items of a person, or count them: see `Items.erase`."""
        return (yield from Items(session, OrderedDict()).erase(person, held, acts))
