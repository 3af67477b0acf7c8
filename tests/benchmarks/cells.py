"""Measure 2, `cells`: each call of a saver on each shape of state, sync and async, compared with LangGraph's saver.

The savers are warm, as in a running server, and alternate. A step makes the calls of a run: `put` with the changes of
the shape, `put_writes` with the same changes, and `get_tuple` of the latest checkpoint. "cold" is the first `get_tuple`
of a saver that was just opened, with a warm disk cache. `list` reads ten checkpoints. "stored" is the growth of the
saver's files in a step, with the saver closed before and after. The size of a JSON Patch of the change, printed with
it, is about the minimum to store.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

from .backend import Backend
from .graphs import thread
from .plan import Plan
from .report import Row, Target
from .shapes import NESTED, SHAPES, Shape, Values
from .steps import AsyncCalls, Calls, Sequence
from .timing import Times, interleaved

STEPS = 60
"""Number of steps whose bytes are counted."""


class Subject:
    """An open saver with threads of one shape, called sync or async. Each step uses the next thread."""

    def __init__(self, calls: Calls, shape: Shape) -> None:
        self.calls, self.shape = calls, shape
        self.sequences = [Sequence(calls.saver, f"thread-{nth}", calls) for nth in range(shape.threads)]
        self.listed = Sequence(calls.saver, "listed", calls)
        self.turn = 0
        if self.listed.step == 0:
            for sequence in [self.listed, *self.sequences]:
                sequence.put(shape.first())
            for _ in range(10):  # so that list(limit=10) finds ten
                self.listed.put(self._updates(self.listed))

    @property
    def sequence(self) -> Sequence:
        return self.sequences[self.turn % len(self.sequences)]

    def _updates(self, sequence: Sequence) -> Values:
        updates, _ = self.shape.change(sequence.values, sequence.step)
        return updates

    def put(self) -> float:
        self.turn += 1
        return self.sequence.put(self._updates(self.sequence))

    def put_writes(self) -> float:
        """Store the writes of a step's task; of a list of messages, only the new one."""
        self.listed.step += 1  # so that each call writes something else
        updates = self._updates(self.listed)
        writes = [(name, value[-1:] if name == "messages" else value) for name, value in updates.items()]
        return self.calls.put_writes(self.listed.config, writes)[0]

    def get_tuple(self) -> float:
        self.turn += 1
        return self.calls.get_tuple(self.sequence.latest)[0]

    def list(self) -> float:
        return self.calls.list(self.listed.latest)[0]


CALLS: dict[str, tuple[Callable[[Subject], float], int]] = {
    "put": (Subject.put, 41),
    "get_tuple": (Subject.get_tuple, 31),
    "list(limit=10)": (Subject.list, 7),
    "put_writes": (Subject.put_writes, 41),  # last: later reads would include the writes
}
"""Each call, and its number of rounds."""


def measure_shape(plan: Plan, shape: Shape) -> list[Row]:
    places = {side: plan.directory(f"{shape.name}-{side}") for side in plan.sides}
    with ExitStack() as stack:
        subjects = _open(plan, shape, places, stack)
        rows = [_row(plan, shape, name, _taken(plan, name, subjects)) for name in CALLS]
    cold = {side: partial(_cold, plan.sides[side], place) for side, place in places.items()}
    rows.append(_row(plan, shape, "get_tuple, cold", interleaved(plan.rounds(15), cold)))
    before = {side: plan.sides[side].stored(place) for side, place in places.items()}
    with ExitStack() as stack:
        patches = [_steps(each, plan.count(STEPS)) for each in _open(plan, shape, places, stack).values()]
    grown = {
        side: (plan.sides[side].stored(place) - before[side]) / plan.count(STEPS) for side, place in places.items()
    }
    rows.append(_stored(plan, shape, grown, patches[0]))
    return rows + _measure_async(plan, shape)


def _open(plan: Plan, shape: Shape, places: Mapping[str, Path], stack: ExitStack) -> dict[str, Subject]:
    savers = {side: stack.enter_context(plan.sides[side].open(place)) for side, place in places.items()}
    return {side: Subject(Calls(saver), shape) for side, saver in savers.items()}


def _taken(plan: Plan, name: str, subjects: Mapping[str, Subject]) -> Times:
    run, rounds = CALLS[name]
    return interleaved(plan.rounds(rounds), {side: partial(run, subject) for side, subject in subjects.items()})


def _cold(backend: Backend, place: Path) -> float:
    with backend.open(place) as saver:
        return Calls(saver).get_tuple(thread("thread-0"))[0]


def _steps(subject: Subject, count: int) -> float:
    """Take steps; return the average bytes of a step's patch."""
    nbytes, sequence = 0, subject.sequences[0]
    for _ in range(count):
        updates, patch = subject.shape.change(sequence.values, sequence.step)
        nbytes += len(json.dumps(patch, default=str))
        sequence.put(updates)
    return nbytes / count


def _measure_async(plan: Plan, shape: Shape) -> list[Row]:
    with asyncio.Runner() as runner:
        stack, subjects = AsyncExitStack(), {}
        try:
            for side, backend in plan.sides.items():
                assert backend.aopen, f"{backend.name} has no async interface"
                place = plan.directory(f"{shape.name}-{side}-async")
                saver = runner.run(stack.enter_async_context(backend.aopen(place)))
                subjects[side] = Subject(AsyncCalls(saver, runner), shape)
            return [_row(plan, shape, name, _taken(plan, name, subjects), "async") for name in CALLS]
        finally:
            runner.run(stack.aclose())


def _row(plan: Plan, shape: Shape, call: str, took: Times, face: str = "") -> Row:
    label = f"{shape.label}: {call}" + (f", {face}" if face else "")
    target = plan.target(f"{shape.name}: {call}") or plan.target("any cell")
    return Row("cells", label, took.get("theirs"), took["ours"], "ms", target, took.spread())


def _stored(plan: Plan, shape: Shape, grown: Mapping[str, float], patch: float) -> Row:
    label = f"{shape.label}: stored a step (a JSON Patch: {patch:.0f} B)"
    target = plan.target(f"{shape.name}: stored")
    if target is None and shape in NESTED:
        target = Target(3 * patch + 300, f"≤ {3 * patch + 300:.0f} B", "figure")  # 3 patches and a step's overhead
    return Row("cells", label, grown.get("theirs"), grown["ours"], "B", target)


def measure(plan: Plan) -> list[Row]:
    rows = [row for shape in plan.shapes or SHAPES.values() for row in measure_shape(plan, shape)]
    ratios = [row.ratio for row in rows if row.unit == "ms" and row.ratio]
    level = sum(round(ratio, 2) <= 1 for ratio in ratios)
    target = None if plan.shapes else plan.target("cells")
    return [*rows, Row("cells", f"cells of at most 1.0, of {len(ratios)}", None, level, " cells", target)]
