"""Charts as SVG, one below the other over one axis: labelled, with units, in colours for light pages and dark ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import TypeAlias

from langgraph_keel.timeline.markup import LANES, text

Point: TypeAlias = tuple[float, float]
"""Which of the moments, from 0, and a value."""

WIDTH, _HEIGHT = 720, 96
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 64, 12, 22, 14, 34
_FILLS = (LANES[4], LANES[3])
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """A line from left to right; that of the trunk stands out."""

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
        unit: In what.
        note: The same in a few words and numbers.
        shown: Writes a value.
        curves: Lines.
        bars: Bars; those of the second stand on those of the first.
    """

    name: str
    unit: str
    note: str
    shown: Callable[[float], str]
    curves: tuple[Curve, ...] = ()
    bars: tuple[Bars, ...] = ()

    @property
    def stacked(self) -> list[float]:
        """The heights of its bars."""
        return [sum(values) for values in zip(*(bars.values for bars in self.bars), strict=True)]

    @property
    def top(self) -> float:
        """The greatest value that it shows."""
        points = [value for curve in self.curves for _, value in curve.points]
        return max([*points, *self.stacked], default=0.0)


def drawn(charts: Sequence[Chart], places: Sequence[int], share: int) -> str:
    """Return charts as one SVG.

    Args:
        charts: They.
        places: The positions of the moments, from left to right.
        share: How many moments share a bar.
    """
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
    """Where moments stand from left to right: each in the middle of its bar."""

    count: int
    share: int

    def x(self, place: float) -> float:
        return _LEFT + (place + 0.5) * (WIDTH - _LEFT - _RIGHT) / max(1, self.count)

    def span(self, number: int) -> tuple[float, float]:
        """Return where a bar begins, and how wide it is: with a gap to the next, and not wider than a finger."""
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
    parts += [_said(WIDTH - _RIGHT, above + 14, chart.note, "end", ".65")]
    parts += (part for tick in ticks for part in _grid(base - tick * unit, chart.shown(tick) if tick else "0"))
    parts += (_bar(chart, number, scale, base, unit) for number in range(len(chart.stacked)))
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


def _grid(y: float, said: str) -> Iterator[str]:
    line = 'stroke="currentColor" stroke-opacity=".15"'
    yield f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {line}/>'
    yield _said(_LEFT - 6, y + 4, said, "end", ".65")


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
        yield _said(scale.x(place), y + 14, f"#{places[place]}", "middle", ".65")
    yield _said((_LEFT + WIDTH - _RIGHT) / 2, y + 29, "moment, by its position in the timeline", "middle", ".65")


def _said(x: float, y: float, said: str, anchor: str, opacity: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill-opacity="{opacity}">{text(said)}</text>'


def ticks_to(top: float) -> list[float]:
    """Return round values from 0 up to one that is not less than `top`: two to five of them."""
    if top <= 0:
        return [0.0]
    size = 10.0 ** floor(log10(top))
    step = next(size * part for part in (0.25, 0.5, 1.0, 2.5) if size * part * 4 >= top)
    return [step * number for number in range(int(-(-top // step)) + 1)]
