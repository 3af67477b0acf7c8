"""The item machine fails on deliberately wrong stores, at the right operation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from broken.cells import SearchesNarrowTooMuch, SearchesSortByKey, SeveralSwapsForgetWhatIsExpected
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.stores import MemoryUnderTest
from test_item_machine import ItemMachine

from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.engine.cells import Cell
from langgraph_keel.engine.plan import Plan
from langgraph_keel.store import keel_store
from langgraph_keel.store.items import Items, Seen, Write
from langgraph_keel.store.records import Fences


class ShowsExpired(Items):
    """Never treats an item as expired."""

    def _lives(self, cell: Cell) -> bool:
        return True


class NeverRenews(Items):
    """Does not renew an item's time to live when it is read."""

    def refresh(self, keys: Collection[str]) -> Plan[None]:
        return
        yield


class BeginsAgain(Items):
    """Sets the creation time again at each change of an item."""

    def _draft(self, write: Write, held: Seen | None, now: int, *fences: Fences) -> tuple[Cell | None, Seen | None]:
        return super()._draft(write, held and held._replace(created=now), now, *fences)


class StaysInPlace(Items):
    """Keeps an item's place in the order when it changes."""

    def _draft(self, write: Write, held: Seen | None, now: int, *fences: Fences) -> tuple[Cell | None, Seen | None]:
        return super()._draft(write, held, now if held is None else held.rank, *fences)


class KnowsOnlyWhatItSaw(Items):
    """Treats a version that another store has changed as a removed item."""

    def _seen_of(self, kept: Any) -> Seen:
        return super()._seen_of(kept)._replace(created=0)


WRONG: dict[str, tuple[Callable[[], MemoryStore], type[Items], str]] = {
    "forgets what is expected": (SeveralSwapsForgetWhatIsExpected, Items, "GetOp|SearchOp"),
    "shows expired": (MemoryStore, ShowsExpired, "GetOp|SearchOp|ListNamespacesOp|sweep"),
    "narrows too much": (SearchesNarrowTooMuch, Items, "SearchOp|sweep"),
    "sorts by key": (SearchesSortByKey, Items, "SearchOp"),
    "never renews": (MemoryStore, NeverRenews, "GetOp|SearchOp|ListNamespacesOp|sweep"),
    "begins again": (MemoryStore, BeginsAgain, "GetOp|SearchOp"),
    "stays in place": (MemoryStore, StaysInPlace, "GetOp|SearchOp"),
    "knows only what it saw": (MemoryStore, KnowsOnlyWhatItSaw, "GetOp|SearchOp"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_store_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, items, operation = WRONG[name]
    monkeypatch.setattr(keel_store, "Items", items)
    machine = type("Machine", (ItemMachine,), {"place": MemoryUnderTest(store())})
    asked = settings(
        max_examples=200,
        stateful_step_count=30,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=[*HealthCheck],
    )
    with pytest.raises(AssertionError, match=operation):
        run_state_machine_as_test(machine, settings=asked)
