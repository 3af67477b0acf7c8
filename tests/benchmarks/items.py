"""Measure 24, `items`: a store of items, compared with LangGraph's store for the same database.

A namespace has 100, 1,000 or 10,000 items of about 130 bytes, and fifty others have one item each. `get` reads an
existing item, and `put` changes an item that this process has written before. "filter that equals" matches one item of
a hundred. Searches that no index narrows have no target.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore, PutOp

from .plan import Plan
from .postgres import database
from .report import Row
from .timing import interleaved, timed

SIZES = (100, 1_000, 10_000)
OTHERS, BATCH = 50, 100
ADA = ("memories", "ada")


@contextmanager
def _theirs(backend: str, directory: Path) -> Iterator[BaseStore]:
    module = import_module(f"langgraph.store.{backend}")
    kind, place = {
        "sqlite": ("SqliteStore", str(directory / "items.db")),
        "postgres": ("PostgresStore", backend == "postgres" and database(directory)),
    }[backend]
    with getattr(module, kind).from_conn_string(place) as store:
        store.setup()
        yield store


def value_of(number: int) -> dict[str, Any]:
    return {"kind": f"kind {number % 100}", "number": number, "text": f"{number} likes a window seat " * 3}


def _fill(store: BaseStore, size: int) -> None:
    puts = [PutOp(ADA, f"item-{number}", value_of(number)) for number in range(size)]
    puts += [PutOp(("memories", f"user {number}"), "seat", value_of(number)) for number in range(OTHERS)]
    for start in range(0, len(puts), BATCH):
        store.batch(puts[start : start + BATCH])


def _calls(store: BaseStore, size: int) -> Mapping[str, Callable[[], Any]]:
    numbers = count()

    def put() -> None:
        store.put(ADA, f"item-{next(numbers) % size}", value_of(next(numbers)))

    def put_new() -> None:
        store.put(ADA, f"new-{next(numbers)}", value_of(7))

    def put_batch() -> None:
        store.batch([PutOp(ADA, f"item-{number % size}", value_of(next(numbers))) for number in range(BATCH)])

    return {
        "get": lambda: store.get(ADA, f"item-{next(numbers) % size}"),
        "put": put,
        "put, new": put_new,
        f"batch of {BATCH} puts": put_batch,
        "newest 10": lambda: store.search(ADA, limit=10),
        "filter that equals": lambda: store.search(ADA, filter={"kind": "kind 7"}, limit=10),
        "list_namespaces": store.list_namespaces,
        "newest 10 of a prefix of one label": lambda: store.search(ADA[:1], limit=10),
        "filter $gt": lambda: store.search(ADA, filter={"number": {"$gt": size - 5}}, limit=10),
    }


FREE = ("newest 10 of a prefix of one label", "filter $gt")
"""Calls that no index narrows; they have no target."""


def _clocked(call: Callable[[], Any]) -> float:
    return timed(call)[0]


def measure(plan: Plan) -> list[Row]:
    rows = []
    for size in SIZES:
        directories = plan.directory("items-theirs"), plan.directory("items")
        with (
            _theirs(plan.ours.name.partition("-")[2], directories[0]) as theirs,
            plan.ours.open(directories[1]) as saver,
        ):
            stores = {"theirs": theirs, "ours": saver.store()}  # type: ignore[attr-defined]
            calls = {name: _calls(store, size) for name, store in stores.items()}
            for store in stores.values():
                _fill(store, size)
            for what in calls["ours"]:
                sides = {name: partial(_clocked, calls[name][what]) for name in stores}
                took = interleaved(plan.rounds(61), sides)
                target = None if what in FREE else plan.target("items")
                name = f"{what}, of {size:,} items"
                rows.append(Row("items", name, took["theirs"], took["ours"], "ms", target, took.spread()))
    return rows
