"""How a thread grew, step by step: the size of its state, tokens and cost. As a picture, and as lines of text.

The picture is one SVG: charts below each other over one axis, with units, in colours for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TypeAlias

from langgraph_keel._langgraph import NS_SEP
from langgraph_keel.display.html import LANES, text
from langgraph_keel.display.text import format_money, format_size
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.rows import tree_rows

Point: TypeAlias = tuple[float, float]
"""The number of a moment, from 0, and a value."""

WIDTH, _HEIGHT = 720, 96
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 64, 12, 22, 14, 34
_FILLS = (LANES[4], LANES[3])
_MOST_TICKS = 8

MOST_BARS = 180
"""Most bars of a chart; where there are more moments, several share a bar."""
_MOST_SPARKS = 60
_MOST_CURVES = 40
_SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Curve:
    """A line from left to right; the line of the trunk is thicker."""

    points: tuple[Point, ...]
    is_trunk: bool = True


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from left to right, each as wide as the moments that share it."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        name: What it shows.
        unit: The unit of its values.
        note: A summary in a few words and numbers.
        format: Writes a value as text.
        curves: Its lines.
        bars: Its bars; those of the second stand on those of the first.
    """

    name: str
    unit: str
    note: str
    format: Callable[[float], str]
    curves: tuple[Curve, ...] = ()
    bars: tuple[Bars, ...] = ()

    @property
    def heights(self) -> list[float]:
        """The heights of its bars."""
        return [sum(values) for values in zip(*(bars.values for bars in self.bars), strict=True)]

    @property
    def top(self) -> float:
        """The greatest value that it shows."""
        points = [value for curve in self.curves for _, value in curve.points]
        return max([*points, *self.heights], default=0.0)


def charts_svg(charts: Sequence[Chart], places: Sequence[int], share: int) -> str:
    """Return charts as one SVG."""
    height = (_TOP + _HEIGHT + _GAP) * len(charts) + _BOTTOM - _GAP
    scale = _Scale(len(places), share)
    body = "".join(_chart(chart, number * (_TOP + _HEIGHT + _GAP), scale) for number, chart in enumerate(charts))
    style = "max-width:100%;height:auto;font-family:system-ui,sans-serif;font-size:11px"
    title = "; ".join(f"{chart.name}: {chart.note}" for chart in charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" style="{style}" fill="currentColor"><title>{text(title)}</title>{body}'
        f"{''.join(_axis(places, height - _BOTTOM, scale))}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where moments stand from left to right, each in the middle of its bar."""

    count: int
    share: int

    def x(self, place: float) -> float:
        return _LEFT + (place + 0.5) * (WIDTH - _LEFT - _RIGHT) / max(1, self.count)

    def span(self, number: int) -> tuple[float, float]:
        """Return where a bar begins and how wide it is: there is a gap to the next, and no bar is very wide."""
        start = self.x(number * self.share - 0.5)
        end = self.x(min(self.count, (number + 1) * self.share) - 0.5)
        width = min(max(0.6, (end - start) * 0.8), 28)
        return (start + end - width) / 2, width


def _chart(chart: Chart, above: int, scale: _Scale) -> str:
    ticks = ticks_to(chart.top)
    base = above + _TOP + _HEIGHT
    unit = _HEIGHT / (ticks[-1] or 1)
    per = f" per {scale.share:,} moments" if scale.share > 1 else " per moment"
    name = text(chart.name) + (per if chart.bars else "")
    parts = [f'<text x="{_LEFT}" y="{above + 14}" font-weight="600">{name}{_legend(chart)}</text>']
    parts += [_label(WIDTH - _RIGHT, above + 14, chart.note, "end", ".65")]
    parts += (part for tick in ticks for part in _grid(base - tick * unit, chart.format(tick) if tick else "0"))
    parts += (_bar(chart, number, scale, base, unit) for number in range(len(chart.heights)))
    parts += (_curve(curve, scale, base, unit) for curve in chart.curves)
    return "".join(parts)


def _legend(chart: Chart) -> str:
    if len(chart.bars) < 2:
        return ""
    names = zip(chart.bars, _FILLS, strict=False)
    return "".join(
        f'<tspan fill="{fill}" dx="10">■</tspan><tspan font-weight="400" dx="3">{text(bars.name)}</tspan>'
        for bars, fill in names
    )


def _grid(y: float, label: str) -> Iterator[str]:
    line = 'stroke="currentColor" stroke-opacity=".15"'
    yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {line}/>'
    yield _label(_LEFT - 6, y + 4, label, "end", ".65")


def _bar(chart: Chart, number: int, scale: _Scale, base: float, unit: float) -> str:
    x, width = scale.span(number)
    parts, y = [], base
    for bars, fill in zip(chart.bars, _FILLS, strict=False):
        if (height := bars.values[number] * unit) > 0:
            y -= height
            size = f'width="{width:.1f}" height="{max(height, 0.5):.1f}"'
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}" fill-opacity=".85"/>')
    return "".join(parts)


def _curve(curve: Curve, scale: _Scale, base: float, unit: float) -> str:
    places = [(scale.x(place), base - value * unit) for place, value in curve.points]
    if len(places) == 1:
        (x, y), *_ = places
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{LANES[4]}"/>'
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    look = 'stroke-width="2"' if curve.is_trunk else 'stroke-width="1.5" stroke-dasharray="4 3" stroke-opacity=".7"'
    return f'<path d="M{path}" fill="none" stroke="{LANES[4]}" stroke-linejoin="round" {look}/>'


def _axis(places: Sequence[int], y: float, scale: _Scale) -> Iterator[str]:
    step = max(1, -(-len(places) // _MOST_TICKS))
    for place in range(0, len(places), step):
        yield _label(scale.x(place), y + 14, f"#{places[place]}", "middle", ".65")
    yield _label((_LEFT + WIDTH - _RIGHT) / 2, y + 29, "moment, by its position in the timeline", "middle", ".65")


def _label(x: float, y: float, label: str, anchor: str, opacity: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill-opacity="{opacity}">{text(label)}</text>'


def ticks_to(top: float) -> list[float]:
    """Return round values from 0 up to one that is not less than `top`: two to five of them."""
    if top <= 0:
        return [0.0]
    size = 10.0 ** floor(log10(top))
    step = next(size * part for part in (0.25, 0.5, 1.0, 2.5) if size * part * 4 >= top)
    return [step * number for number in range(int(-(-top // step)) + 1)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of some moments.

    Attributes:
        charts: Its charts, from top to bottom.
        places: The positions of the moments, from left to right.
        share: How many moments share a bar.
    """

    charts: tuple[Chart, ...]
    places: tuple[int, ...]
    share: int

    def _repr_svg_(self) -> str:
        return charts_svg(self.charts, self.places, self.share)

    def _repr_html_(self) -> str:
        return f'<div style="max-width:100%">{self._repr_svg_()}</div>' if self.charts else "<div>nothing to plot</div>"

    def __str__(self) -> str:
        """Return a line of text for each chart."""
        wide = max((len(chart.name) for chart in self.charts), default=0)
        lines = (f"{chart.name:<{wide}}  {sparks(chart)}  {chart.note}" for chart in self.charts)
        return "\n".join(lines) or "nothing to plot"

    __repr__ = __str__


def plot_moments(moments: Sequence[MomentRecord]) -> Plot:
    """Return a picture of moments, from the oldest on: size of the state, tokens and cost.

    A chart without values is left out. Sizes are those of the outermost graph; branches are lines of their own. Tokens
    and cost are those of all moments, also on branches that were left behind: they were paid for.
    """
    ordered = moments if len(moments) < 2 or moments[0].position <= moments[-1].position else moments[::-1]
    share = max(1, -(-len(ordered) // MOST_BARS))
    charts = (_sizes(ordered, share), _tokens(ordered, share), _costs(ordered, share))
    shown = tuple(chart for chart in charts if chart is not None)
    return Plot(shown, tuple(moment.position for moment in ordered), share)


# -- charts ----------------------------------------------------------------------------------------------------


def _sizes(moments: Sequence[MomentRecord], share: int) -> Chart | None:
    curves = list(_curves(moments, share))
    if not curves:
        return _plot_bytes(moments, share)
    trunk = next((curve for curve in curves if curve.is_trunk), curves[0])
    values = [point[1] for point in trunk.points]
    note = f"{format_size(int(values[0]))} → {format_size(int(values[-1]))}, at most {format_size(int(max(values)))}"
    return Chart("state", "bytes", note, _bytes, curves=tuple(curves))


def _plot_bytes(moments: Sequence[MomentRecord], share: int) -> Chart | None:
    values = [float(moment.bytes) for moment in moments]
    bars = Bars("stored", _sum_shares(values, share))
    return (
        Chart("stored", "bytes", f"{format_size(int(sum(values)))} in all", _bytes, bars=(bars,))
        if any(values)
        else None
    )


def _tokens(moments: Sequence[MomentRecord], share: int) -> Chart | None:
    read, written = ([float(moment.tokens[place]) for moment in moments] for place in (0, 1))
    if not any(read) and not any(written):
        return None
    bars = Bars("read", _sum_shares(read, share)), Bars("written", _sum_shares(written, share))
    return Chart("tokens", "tokens", f"{sum(read):,.0f} read, {sum(written):,.0f} written", _count, bars=bars)


def _costs(moments: Sequence[MomentRecord], share: int) -> Chart | None:
    if all(moment.cost is None for moment in moments):
        return None
    values = [moment.cost or 0.0 for moment in moments]
    return Chart(
        "cost",
        "cost",
        f"{format_money(sum(values))} in all",
        format_money,
        bars=(Bars("cost", _sum_shares(values, share)),),
    )


def _bytes(amount: float) -> str:
    return format_size(round(amount))


def _count(amount: float) -> str:
    return f"{amount:,.0f}"


def _sum_shares(values: Sequence[float], share: int) -> tuple[float, ...]:
    return tuple(sum(values[start : start + share]) for start in range(0, len(values), share))


def _curves(moments: Sequence[MomentRecord], share: int) -> Iterator[Curve]:
    """Yield a curve for the way to the head, and for each branch one from where it begins."""
    depth = min((moment.namespace.count(NS_SEP) + bool(moment.namespace) for moment in moments), default=0)
    ways: list[tuple[bool, list[Point]]] = []
    way_of: dict[tuple[str, str | None], int] = {}
    last: dict[tuple[str, str | None], Point] = {}
    for place, row in enumerate(tree_rows(moments)):
        moment = row.moment
        if moment.state_bytes is None or moment.namespace.count(NS_SEP) + bool(moment.namespace) != depth:
            continue
        key, parent = (moment.namespace, moment.id), (moment.namespace, moment.parent)
        last[key] = (float(place), float(moment.state_bytes))
        way_of[key] = len(ways) if row.begins else way_of.get(parent, len(ways))
        if way_of[key] == len(ways):
            ways.append((row.line.lane == 0, [last[parent]] if parent in last else []))
        ways[way_of[key]][1].append(last[key])
    found = [Curve(tuple(_thin(points, share)), is_trunk) for is_trunk, points in ways]
    yield from sorted(found, key=lambda curve: curve.is_trunk)[-_MOST_CURVES:]


def _thin(points: Sequence[Point], share: int) -> Iterator[Point]:
    """Yield as many points as a chart has room for: the first one, and the last of those that share a bar."""
    for number, point in enumerate(points):
        is_last = number + 1 == len(points) or points[number + 1][0] // share > point[0] // share
        if is_last or number == 0:
            yield point


# -- as text ---------------------------------------------------------------------------------------------------


def sparks(chart: Chart) -> str:
    """Return a chart as a line of blocks, each as high as its value; of several curves, only the trunk's."""
    trunk = next((curve for curve in chart.curves if curve.is_trunk), None)
    curve = trunk or next(iter(chart.curves), None)
    values = [value for _, value in curve.points] if curve else chart.heights
    share = max(1, -(-len(values) // _MOST_SPARKS))
    heights = [max(values[start : start + share]) for start in range(0, len(values), share)]
    top = max(heights, default=0) or 1
    return "".join(_SPARKS[min(7, int(height / top * 7.999))] if height > 0 else " " for height in heights)
