"""Measure 25, `vectors`: a search by meaning over all items of a namespace, in memory and on SQLite, warm and cold.

With 10,000 items, it is compared with LangGraph's `InMemoryStore`, which also compares all vectors.
"""

from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from .plan import Plan
from .report import Row
from .sqlite import url_of
from .timing import interleaved, timed

DIMS = 384
SIZES = {10_000: "vectors: 10,000", 50_000: "vectors: 50,000"}
"""Items, and the names of the targets."""


class Searches:
    """A store of items with random vectors, with a few different queries."""

    def __init__(self, store: Any, items: int) -> None:
        self._store, self._questions = store, count()
        for start in range(0, items, 1000):
            numbers = range(start, min(items, start + 1000))
            store.batch([PutOp(("memories", "ada"), f"k{n}", {"text": f"{n}"}) for n in numbers])

    def search(self) -> float:
        question = f"question {next(self._questions) % 3}"  # few, because the cost of embedding is not measured
        took, found = timed(self._store.search, ("memories", "ada"), query=question, limit=10)
        assert len(found) == 10
        return took


def embed(texts: list[str]) -> list[list[float]]:
    chance = np.random.default_rng([*map(ord, texts[0])])
    found: list[list[float]] = chance.standard_normal((len(texts), DIMS)).tolist()
    return found


def measure(plan: Plan) -> list[Row]:
    keel, rows = import_module("langgraph_keel"), []
    index: Any = {"dims": DIMS, "embed": embed, "fields": ["text"]}
    for items, name in SIZES.items():
        with ExitStack() as stack:
            size = plan.count(items)
            savers = {"memory": stack.enter_context(keel.MemorySaver())}
            savers["SQLite"] = stack.enter_context(keel.open_saver(url_of(plan.directory(f"vectors-{items}"))))
            sides = {side: Searches(saver.store(index=index), size) for side, saver in savers.items()}
            cold = {side: each.search() for side, each in sides.items()}
            theirs = {"theirs": Searches(InMemoryStore(index=index), size)} if items == min(SIZES) else {}
            took = interleaved(plan.rounds(15), {side: partial(each.search) for side, each in (sides | theirs).items()})
        for side, seconds in cold.items():
            target = plan.target(name)
            rows.append(Row("vectors", f"{size:,} x {DIMS}, {side}", took.get("theirs"), took[side], "ms", target))
            rows.append(Row("vectors", f"{size:,} x {DIMS}, {side}, the first", None, 1000 * seconds, "ms"))
    return rows
