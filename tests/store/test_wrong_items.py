"""The machine of items is tested: it fails on stores that are wrong on purpose, at the operation that shows it."""

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


class ShowsExpired(Items):
    """Takes no item for expired."""

    def _lives(self, cell: Cell) -> bool:
        return True


class NeverRenews(Items):
    """Forgets that a read gives an item its time to live again."""

    def refresh(self, keys: Collection[str]) -> Plan[None]:
        return
        yield


class BeginsAgain(Items):
    """Takes each change of an item for its making."""

    def _draft(self, write: Write, held: Seen | None, now: int) -> tuple[Cell | None, Seen | None]:
        return super()._draft(write, held and held._replace(created=now), now)


class StaysInPlace(Items):
    """Leaves an item where it was in the order when it is changed."""

    def _draft(self, write: Write, held: Seen | None, now: int) -> tuple[Cell | None, Seen | None]:
        return super()._draft(write, held, now if held is None else held.rank)


class KnowsOnlyWhatItSaw(Items):
    """Takes a version that another has changed for a removed item."""

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
def test_a_wrong_store_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
