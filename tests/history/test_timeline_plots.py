"""Plots of a timeline: what they show is what the moments say, however many there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moments import bushy, calls, chain, long, story, wide
from pages import check_harmless, page

from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.plots import MOST_BARS, WIDTH, plot_moments, ticks_to


def texts(moments: list[Moment]) -> list[str]:
    return [each.text() for each in page(plot_moments(moments)._repr_svg_()).all("text")]


def heights(moments: list[Moment], fill: int) -> list[float]:
    """The heights of the bars of one colour, from left to right."""
    fills = list(
        dict.fromkeys(each.attributes["fill"] for each in page(plot_moments(moments)._repr_svg_()).all("rect"))
    )
    bars = [each.attributes for each in page(plot_moments(moments)._repr_svg_()).all("rect")]
    return [float(bar["height"]) for bar in bars if bar["fill"] == fills[fill]]


def test_axes_units_and_sums() -> None:
    said = texts(story())
    assert [line for line in said if "per moment" in line] == ["tokens per moment■read■written", "cost per moment"]
    assert {"state", "7.5 kB", "1,639 read, 256 written", "0.00533 in all", "0.0015"} <= set(said)
    assert said[-1] == "moment, by its position in the timeline"
    assert [line for line in said if line.startswith("#")] == [f"#{number}" for number in range(0, 15, 2)]


def test_bars_are_as_high_as_the_tokens() -> None:
    moments = [replace(moment, tokens=(100 * moment.position, 0)) for moment in chain(5)]
    found = heights(moments, 0)
    assert [round(height / found[0]) for height in found] == [1, 2, 3, 4]


def test_a_branch_is_a_line_of_its_own_that_begins_where_it_left() -> None:
    moments = long(40)
    trunk, branch = sorted(plot_moments(moments).charts[0].curves, key=lambda curve: not curve.is_trunk)
    assert [place for place, _ in trunk.points] == [*range(21), *range(30, 40)]
    assert [place for place, _ in branch.points] == [*range(20, 30)]
    assert trunk.points[20] == branch.points[0]
    dashed = ["stroke-dasharray" in path.attributes for path in page(plot_moments(moments)._repr_svg_()).all("path")]
    assert dashed == [not curve.is_trunk for curve in plot_moments(moments).charts[0].curves]


def test_sizes_of_subgraphs_are_not_mixed_with_those_of_the_graph() -> None:
    places = {place for curve in plot_moments(story()).charts[0].curves for place, _ in curve.points}
    assert places == {*range(15)} - {6, 7, 8}


def test_tokens_of_subgraphs_count() -> None:
    assert plot_moments(story()).charts[1].bars[0].values[7] == 120


def test_what_no_moment_tells_is_left_out() -> None:
    moments = [replace(moment, state_bytes=None) for moment in chain(3)]
    assert [chart.name for chart in plot_moments(moments).charts] == ["stored"]
    assert [chart.name for chart in plot_moments(chain(3)).charts] == ["state"]
    assert plot_moments([])._repr_html_() == "<div>nothing to plot</div>"
    assert str(plot_moments([])) == "nothing to plot"


def test_of_very_many_moments_several_share_a_bar() -> None:
    moments = long(2_000)
    found = plot_moments(moments)
    assert found.share == 12
    assert len(found.charts[1].bars[0].values) <= MOST_BARS
    assert sum(found.charts[1].bars[0].values) == sum(moment.tokens[0] for moment in moments)
    assert "tokens per 12 moments■read■written" in texts(moments)
    assert max(len(curve.points) for curve in found.charts[0].curves) <= MOST_BARS + 2
    assert max(map(len, str(found).split("\n"))) < 110


def test_a_picture_has_a_bounded_size() -> None:
    assert len(plot_moments(long(4_000))._repr_svg_()) < 1.1 * len(plot_moments(long(1_000))._repr_svg_()) < 60_000
    assert len(plot_moments(wide(1_000))._repr_svg_()) < 60_000


def test_nothing_stands_outside() -> None:
    svg = plot_moments(long(500))._repr_svg_()
    check_harmless(svg)
    frame = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
    assert frame
    right, bottom = map(int, frame.groups())
    assert right == WIDTH
    for each in page(svg).all("rect"):
        given = {name: float(each.attributes[name]) for name in ("x", "y", "width", "height")}
        assert 0 <= given["x"] <= given["x"] + given["width"] <= right
        assert 0 <= given["y"] <= given["y"] + given["height"] <= bottom


def test_a_single_moment() -> None:
    assert page(plot_moments(chain(1))._repr_svg_()).all("circle")


def test_the_order_does_not_matter() -> None:
    assert plot_moments(story()[::-1]) == plot_moments(story())


def test_as_text() -> None:
    moments = [replace(moment, tokens=(2**moment.position, 0), cost=0.5) for moment in chain(4)]
    assert str(plot_moments(moments)).split("\n") == [
        "state   ▄▆▇█  1.0 kB → 2.2 kB, at most 2.2 kB",
        "tokens  ▁▂▄█  15 read, 0 written",
        "cost    ████  2.00 in all",
    ]


def test_moments_without_tokens_are_blank() -> None:
    assert "tokens    █   5 read" in str(
        plot_moments([replace(each, tokens=(5 * (each.position == 2), 0)) for each in chain(4)])
    )


@given(st.floats(1e-9, 1e15))
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    ticks = ticks_to(top)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 6
    assert ticks[-1] >= top * (1 - 1e-9)
    assert ticks[-2] < top


@pytest.mark.parametrize("made", [long, wide, bushy], ids=["long", "wide", "bushy"])
def test_the_work_grows_with_the_moments(made: Callable[[int], list[Moment]]) -> None:
    few, many = made(100), made(1000)
    assert calls(lambda: plot_moments(many)._repr_svg_()) < 12 * calls(lambda: plot_moments(few)._repr_svg_())
