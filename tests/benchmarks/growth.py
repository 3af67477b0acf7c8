"""Measure 17, `growth`: what is stored after 10, 20, 50, ... 2000 steps, of each shape.

The store is closed before it is counted; what the first checkpoint takes is left out. Stored bytes are linear in what
is new if a step takes no more late than early: the last row is the bytes of a step from half of the steps on, over
those of the first half.
"""

from .plan import Plan
from .report import Row
from .shapes import SHAPES, Shape
from .steps import Calls, Sequence

POINTS = (10, 20, 50, 100, 200, 500, 1000, 2000)


def _stored(plan: Plan, shape: Shape, points: tuple[int, ...]) -> dict[int, int]:
    """The bytes that a store has grown by after so many steps."""
    place, stored, taken = plan.directory(f"growth-{shape.name}"), {}, 0
    for point in (0, *points):
        with plan.ours.open(place) as saver:
            sequence = Sequence(saver, "thread", Calls(saver))
            if not point:
                sequence.put(shape.first())
            for _ in range(point - taken):
                sequence.put(shape.change(sequence.values, sequence.step)[0])
        stored[point], taken = plan.ours.stored(place), point
    return {point: stored[point] - stored[0] for point in points}


def measure(plan: Plan) -> list[Row]:
    points = tuple(point for point in POINTS if point <= plan.count(POINTS[-1]))
    rows = []
    for shape in plan.shapes or SHAPES.values():
        stored = _stored(plan, shape, points)
        half, most = points[-2], points[-1]
        late, early = (stored[most] - stored[half]) / (most - half), stored[half] / half
        rows += [Row("growth", f"{shape.label}: stored after {n} steps", None, stored[n], "B") for n in points]
        rows.append(Row("growth", f"{shape.label}: a late step over an early one", None, late / early, "×"))
    return rows
