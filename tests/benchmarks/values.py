"""Measures 3 and 4, `dict` and `channels`: large state of which one small thing changes a step.

Stored a step is what the saver's files grew by over the steps, the saver closed before and after; `put`'s
median is taken over the same steps, the two savers taking turns. A dict is copied each step, at every level.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .backend import Backend
from .graphs import text
from .plan import Plan
from .report import Row, Unit
from .steps import Sequence
from .timing import Clocked, interleaved

Values = dict[str, Any]
STEPS = 100


@dataclass(frozen=True)
class Case:
    """Channels to begin with, and what a step changes of them."""

    name: str
    label: str
    first: Callable[[], Values]
    change: Callable[[Values, int], Values]


def _groups() -> Values:
    return {"state": {f"group-{group}": _leaves(100, group) for group in range(100)}}


def _leaves(count: int, group: int) -> Values:
    return {f"leaf-{leaf}": text(100 * group + leaf, 100) for leaf in range(count)}


def _change_group(values: Values, step: int) -> Values:
    state = {name: dict(group) for name, group in values["state"].items()}
    state[f"group-{37 * step % 100}"][f"leaf-{53 * step % 100}"] = text(f"step {step}", 100)
    return {"state": state}


def _flat() -> Values:
    return {"state": _leaves(10_000, 0)}


def _change_flat(values: Values, step: int) -> Values:
    return {"state": {**values["state"], f"leaf-{3737 * step % 10_000}": text(f"step {step}", 100)}}


def _channels() -> Values:
    return {f"channel-{index}": text(index, 2000) for index in range(50)}


def _change_channel(_: Values, step: int) -> Values:
    return {f"channel-{step % 50}": text(f"step {step}", 2000)}


GROUPS = Case("dict", "1 MB dict of 100 × 100, one leaf a step", _groups, _change_group)
FLAT = Case("dict", "1 MB dict of 10,000, one leaf a step", _flat, _change_flat)
CHANNELS = Case("channels", "50 channels of 2 KB, one a step", _channels, _change_channel)


def seeded(plan: Plan, backend: Backend, case: Case) -> Path:
    """A new directory with a thread that has the first values."""
    directory = plan.directory(f"{case.name}-{backend.name}")
    with backend.open(directory) as saver:
        Sequence(saver, "thread").put(case.first())
    return directory


@contextmanager
def steps(backend: Backend, directory: Path, case: Case) -> Iterator[Clocked]:
    """A call that takes one more step and returns the seconds of its `put`."""
    with backend.open(directory) as saver:
        sequence = Sequence(saver, "thread")
        yield lambda: sequence.put(case.change(sequence.values, sequence.step))


def _measure(plan: Plan, case: Case) -> list[Row]:
    places = {side: seeded(plan, backend, case) for side, backend in plan.sides.items()}
    before = _sizes(plan, places)
    count = plan.rounds(STEPS)
    with ExitStack() as stack:
        opened = {side: stack.enter_context(steps(plan.sides[side], place, case)) for side, place in places.items()}
        took = interleaved(count - 1, opened)
    grown = {side: (size - before[side]) / count for side, size in _sizes(plan, places).items()}
    return [
        _row(plan, case, "stored", grown, "B"),
        _row(plan, case, "put", took, "ms"),
    ]


def _sizes(plan: Plan, places: dict[str, Path]) -> dict[str, int]:
    return {side: plan.sides[side].stored(place) for side, place in places.items()}


def _row(plan: Plan, case: Case, what: str, figures: Mapping[str, float], unit: Unit) -> Row:
    target = plan.target(f"{case.name}: {what}")
    return Row(case.name, f"{case.label}: {what}", figures.get("theirs"), figures["ours"], unit, target)


def measure_dict(plan: Plan) -> list[Row]:
    return _measure(plan, GROUPS) + _measure(plan, FLAT)


def measure_channels(plan: Plan) -> list[Row]:
    return _measure(plan, CHANNELS)
