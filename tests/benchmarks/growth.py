"""Measures 4 and 26, `growth` and `bytes`: calls while a thread and a store grow, and the stored bytes of many steps.

`growth`: one store has threads with 100 to 30,000 checkpoints, whose state is the last 20 messages. Other stores have
100 to 100,000 threads with one checkpoint each, and each call uses another thread. All sizes alternate. On PostgreSQL
the tables have no statistics, because a query plan that needs them is slow in every new store. "open" includes opening
a saver.

`bytes`: the bytes that a step of each shape stores, without those of the first checkpoint. Storage is linear in the new
data if a step of the second half stores no more than one of the first half. The store is closed before it is counted.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from . import lists
from .backend import Backend, Saver
from .graphs import chances, message, thread
from .plan import Plan
from .report import Row
from .shapes import SHAPES, Shape
from .steps import Calls, Sequence
from .timing import interleaved, timed

STEPS, WINDOW = 2000, 20
CHECKPOINTS, THREADS = (100, 1000, 10_000, 30_000), (100, 1000, 10_000, 100_000)
"""Sizes of a thread and of a store. A quick run omits the last size of a thread, and the last two of a store."""
TARGETED = 10_000
"""The size to compare with the smallest."""


class Long:
    """A thread with `size` checkpoints."""

    def __init__(self, backend: Backend, directory: Path, saver: Saver, size: int) -> None:
        self._open, self._calls = partial(_opened, backend, directory), Calls(saver)
        self._sequence = Sequence(saver, f"thread-{size}")

    def put(self) -> float:
        return _step(self._sequence)

    def get_tuple(self) -> float:
        return self._calls.get_tuple(self._sequence.latest)[0]

    def list(self) -> float:
        return self._calls.list(self._sequence.latest)[0]

    def open(self) -> float:
        return self._open(self._sequence.latest)


class Many:
    """A store with `size` threads."""

    def __init__(self, backend: Backend, directory: Path, saver: Saver, size: int) -> None:
        self._open, self._saver = partial(_opened, backend, directory), saver
        self._new, self._names = count(size), iter(chances("many").sample(range(size), THREADS[0]))

    def first_put(self) -> float:
        return self._put(next(self._new))

    def put(self) -> float:
        return self._put(next(self._names))

    def get_tuple(self) -> float:
        return Calls(self._saver).get_tuple(thread(lists.name_of(next(self._names))))[0]

    def open(self) -> float:
        return self._open(thread(lists.name_of(next(self._names))))

    def _put(self, number: int) -> float:
        return Sequence(self._saver, lists.name_of(number)).put({"messages": [message(0)]})


def _step(sequence: Sequence) -> float:
    said = sequence.values.get("messages", [])
    return sequence.put({"messages": [*said, message(sequence.step % 500)][-WINDOW:]})


def _opened(backend: Backend, directory: Path, config: Any) -> float:
    """Return the seconds to open a saver and read a thread."""
    with ExitStack() as stack:
        return timed(lambda: stack.enter_context(backend.open(directory)).get_tuple(config))[0]


Grown = TypeVar("Grown", Long, Many)
LONG: Mapping[str, Callable[[Long], float]] = {
    "put": Long.put,
    "get_tuple": Long.get_tuple,
    "list(limit=10)": Long.list,
    "open and get_tuple": Long.open,
}
MANY: Mapping[str, Callable[[Many], float]] = {
    "first put": Many.first_put,
    "put": Many.put,
    "get_tuple": Many.get_tuple,
    "open and get_tuple": Many.open,
}


def measure(plan: Plan) -> list[Row]:
    return _long(plan) + _many(plan)


def _long(plan: Plan) -> list[Row]:
    sizes = CHECKPOINTS[:-1] if plan.quick else CHECKPOINTS

    def fill(backend: Backend, saver: Saver) -> None:
        for size in sizes:
            sequence = Sequence(saver, f"thread-{size}")
            for _ in range(size):
                _step(sequence)
            _tell(f"{backend.name}, a thread of {size:,} checkpoints")

    with ExitStack() as stack:
        subjects = dict[str, Long]()
        for side, backend in plan.sides.items():
            directory, saver = _made(plan, stack, backend, partial(fill, backend))
            subjects |= {f"{side} {size}": Long(backend, directory, saver, size) for size in sizes}
        return [row for name, call in LONG.items() for row in _rows(plan, "checkpoints", name, call, subjects)]


def _many(plan: Plan) -> list[Row]:
    sizes = THREADS[:-2] if plan.quick else THREADS
    with ExitStack() as stack:
        subjects = dict[str, Many]()
        for side, backend in plan.sides.items():
            for size in sizes:
                directory, saver = _made(plan, stack, backend, partial(lists.fill, threads=size))
                subjects[f"{side} {size}"] = Many(backend, directory, saver, size)
                _tell(f"{backend.name}, {size:,} threads")
        return [row for name, call in MANY.items() for row in _rows(plan, "threads", name, call, subjects)]


def _made(plan: Plan, stack: ExitStack, backend: Backend, fill: Callable[[Saver], object]) -> tuple[Path, Saver]:
    """Create and fill a store; return its directory, and a saver that is opened afterwards."""
    directory = plan.directory(f"growth-{backend.name}")
    backend.prepare(backend.open, directory)
    with backend.filled(directory) as place, backend.open(place) as saver:
        fill(saver)
    return directory, stack.enter_context(backend.open(directory))


def _tell(progress: str) -> None:
    print(f"growth: {progress}", file=sys.stderr, flush=True)


def _rows(plan: Plan, what: str, name: str, call: Callable[[Grown], float], subjects: Mapping[str, Grown]) -> list[Row]:
    """Compare the sides at each size, and each side at a large size with itself at the smallest."""
    rounds = plan.rounds(9 if name.startswith("open") else 41)
    took = interleaved(rounds, {key: partial(call, subject) for key, subject in subjects.items()})
    rows: list[Row] = []
    small, *_ = sizes = [int(key.removeprefix("ours ")) for key in subjects if key.startswith("ours")]
    for size in sizes:
        theirs, ours = f"theirs {size}", f"ours {size}"
        spread = took.spread(ours, theirs)
        rows.append(Row("growth", f"{name}, {size:,} {what}", took.get(theirs), took[ours], "ms", None, spread))
    large = min(sizes[-1], TARGETED)
    grown = {side: took[f"{side} {large}"] / took[f"{side} {small}"] for side in plan.sides}
    label, target = f"{name}, {large:,} {what} over {small}", plan.target(f"{name}, {what}")
    return [*rows, Row("growth", label, grown.get("theirs"), grown["ours"], "×", target)]


def _stored(plan: Plan, shape: Shape, points: tuple[int, ...]) -> list[int]:
    """Return the growth of a store, in bytes, after each number of steps in `points`."""
    place, stored, taken = plan.directory(f"bytes-{shape.name}"), [], 0
    for point in (0, *points):
        with plan.ours.open(place) as saver:
            sequence = Sequence(saver, "thread", Calls(saver))
            if not point:
                sequence.put(shape.first())
            for _ in range(point - taken):
                sequence.put(shape.change(sequence.values, sequence.step)[0])
        stored.append(plan.ours.stored(place))
        taken = point
    return [nbytes - stored[0] for nbytes in stored[1:]]


def measure_bytes(plan: Plan) -> list[Row]:
    steps, rows = plan.count(STEPS), []
    for shape in plan.shapes or SHAPES.values():
        half, most = _stored(plan, shape, (steps // 2, steps))
        target = plan.target(f"{shape.name}: bytes")
        rows += [
            Row("bytes", f"{shape.label}: stored a step, of {steps}", None, most / steps, "B", target),
            Row("bytes", f"{shape.label}: a late step over an early one", None, (most - half) / half, "×"),
        ]
    return rows
