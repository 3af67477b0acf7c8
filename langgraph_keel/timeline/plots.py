"""How a thread grew, step by step: the size of its state, tokens and cost. As a picture, and as a line of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from langgraph_keel.timeline.charts import Bars, Chart, Curve, Point, drawn
from langgraph_keel.timeline.columns import money, size
from langgraph_keel.timeline.moment import Moment
from langgraph_keel.timeline.tree import rows_of

MOST_BARS = 180
"""Bars of a chart; of more moments, as many as it takes share one."""
_MOST_SPARKS = 60
_MOST_CURVES = 40
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of some moments.

    Attributes:
        charts: What it shows, one below the other.
        places: The positions of the moments, from left to right.
        share: How many moments share a bar.
    """

    charts: tuple[Chart, ...]
    places: tuple[int, ...]
    share: int

    def _repr_svg_(self) -> str:
        return drawn(self.charts, self.places, self.share)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:100%">{self._repr_svg_()}</div>' if self.charts else "<div>nothing to plot</div>"

    def __str__(self) -> str:
        """Return a line of text for each chart."""
        wide = max((len(chart.name) for chart in self.charts), default=0)
        lines = (f"{chart.name:<{wide}}  {sparks(chart)}  {chart.note}" for chart in self.charts)
        return "\n".join(lines) or "nothing to plot"

    __repr__ = __str__


def plot(moments: Sequence[Moment]) -> Plot:
    """Return a picture of moments, from the oldest on: size of the state, tokens and cost.

    What none of them tells is left out. Sizes are of the outermost graph; branches are lines of their own. Tokens and
    cost are of all moments, each of a branch that was left behind, too: they were paid.
    """
    ordered = moments if len(moments) < 2 or moments[0].position <= moments[-1].position else moments[::-1]
    share = max(1, -(-len(ordered) // MOST_BARS))
    charts = (_sizes(ordered, share), _tokens(ordered, share), _costs(ordered, share))
    shown = tuple(chart for chart in charts if chart is not None)
    return Plot(shown, tuple(moment.position for moment in ordered), share)


# -- charts ----------------------------------------------------------------------------------------------------


def _sizes(moments: Sequence[Moment], share: int) -> Chart | None:
    curves = list(_curves(moments, share))
    if not curves:
        return _stored(moments, share)
    trunk = next((curve for curve in curves if curve.is_trunk), curves[0])
    values = [point[1] for point in trunk.points]
    note = f"{size(int(values[0]))} → {size(int(values[-1]))}, at most {size(int(max(values)))}"
    return Chart("state", "bytes", note, _bytes, curves=tuple(curves))


def _stored(moments: Sequence[Moment], share: int) -> Chart | None:
    values = [float(moment.bytes) for moment in moments]
    bars = Bars("stored", _shared(values, share))
    return Chart("stored", "bytes", f"{size(int(sum(values)))} in all", _bytes, bars=(bars,)) if any(values) else None


def _tokens(moments: Sequence[Moment], share: int) -> Chart | None:
    read, written = ([float(moment.tokens[place]) for moment in moments] for place in (0, 1))
    if not any(read) and not any(written):
        return None
    bars = Bars("read", _shared(read, share)), Bars("written", _shared(written, share))
    return Chart("tokens", "tokens", f"{sum(read):,.0f} read, {sum(written):,.0f} written", _count, bars=bars)


def _costs(moments: Sequence[Moment], share: int) -> Chart | None:
    if all(moment.cost is None for moment in moments):
        return None
    values = [moment.cost or 0.0 for moment in moments]
    return Chart("cost", "cost", f"{money(sum(values))} in all", money, bars=(Bars("cost", _shared(values, share)),))


def _bytes(amount: float) -> str:
    return size(round(amount))


def _count(amount: float) -> str:
    return f"{amount:,.0f}"


def _shared(values: Sequence[float], share: int) -> tuple[float, ...]:
    return tuple(sum(values[start : start + share]) for start in range(0, len(values), share))


def _curves(moments: Sequence[Moment], share: int) -> Iterator[Curve]:
    """Yield the way to the head, and each branch from where it leaves another."""
    depth = min((moment.namespace.count("|") + bool(moment.namespace) for moment in moments), default=0)
    ways: list[tuple[bool, list[Point]]] = []
    way_of: dict[tuple[str, str | None], int] = {}
    last: dict[tuple[str, str | None], Point] = {}
    for place, row in enumerate(rows_of(moments)):
        moment = row.moment
        if moment.state_bytes is None or moment.namespace.count("|") + bool(moment.namespace) != depth:
            continue
        key, parent = (moment.namespace, moment.id), (moment.namespace, moment.parent)
        last[key] = (float(place), float(moment.state_bytes))
        way_of[key] = len(ways) if row.begins else way_of.get(parent, len(ways))
        if way_of[key] == len(ways):
            ways.append((row.line.lane == 0, [last[parent]] if parent in last else []))
        ways[way_of[key]][1].append(last[key])
    found = [Curve(tuple(_thinned(points, share)), is_trunk) for is_trunk, points in ways]
    yield from sorted(found, key=lambda curve: curve.is_trunk)[-_MOST_CURVES:]


def _thinned(points: Sequence[Point], share: int) -> Iterator[Point]:
    """Yield as many points as a chart has room for: of those that share a place the last, and the first of all."""
    for number, point in enumerate(points):
        is_last = number + 1 == len(points) or points[number + 1][0] // share > point[0] // share
        if is_last or number == 0:
            yield point


# -- as text ---------------------------------------------------------------------------------------------------


def sparks(chart: Chart) -> str:
    """Return a chart as a line of blocks, each as high as its value; the trunk's alone, of several curves."""
    trunk = next((curve for curve in chart.curves if curve.is_trunk), None)
    curve = trunk or next(iter(chart.curves), None)
    values = [value for _, value in curve.points] if curve else chart.stacked
    share = max(1, -(-len(values) // _MOST_SPARKS))
    heights = [max(values[start : start + share]) for start in range(0, len(values), share)]
    top = max(heights, default=0) or 1
    return "".join(_SPARKS[min(7, int(height / top * 7.999))] if height > 0 else " " for height in heights)
