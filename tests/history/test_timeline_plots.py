"""Plots of a timeline show the values of its moments, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.history.moments import bushy, calls, chain, long, story, wide

from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.plots import plot_moments


def test_plots_show_sums_of_tokens_and_cost() -> None:
    notes = [note for _, _, note in plot_moments(story()).lines]
    assert notes[1:] == ["1,639 read, 256 written", "0.00533 in all"]


def test_sizes_are_of_moments_on_the_path_to_the_head() -> None:
    moments = long(40)
    sizes = [moment.state_bytes for moment in moments]
    assert plot_moments(moments).lines[0][1] == [*sizes[:21], *sizes[30:]]


def test_sizes_of_subgraphs_are_excluded() -> None:
    inner = {moment.state_bytes for moment in story() if moment.namespace}
    assert inner
    assert inner.isdisjoint(plot_moments(story()).lines[0][1])


def test_tokens_of_subgraphs_are_included() -> None:
    assert plot_moments(story()).lines[1][1][7] == sum(story()[7].tokens)
    assert story()[7].namespace


def test_unknown_quantities_are_omitted() -> None:
    moments = [replace(moment, state_bytes=None) for moment in chain(3)]
    assert [name for name, _, _ in plot_moments(moments).lines] == ["stored"]
    assert [name for name, _, _ in plot_moments(chain(3)).lines] == ["state"]
    assert str(plot_moments([])) == "nothing to plot"


def test_a_line_has_a_bounded_length() -> None:
    assert max(map(len, str(plot_moments(long(2_000))).split("\n"))) < 110


def test_the_order_of_moments_does_not_matter() -> None:
    assert plot_moments(story()[::-1]) == plot_moments(story())


def test_plots_as_text() -> None:
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


@pytest.mark.parametrize("made", [long, wide, bushy], ids=["long", "wide", "bushy"])
def test_the_work_grows_linearly(made: Callable[[int], list[Moment]]) -> None:
    few, many = made(100), made(1000)
    assert calls(lambda: plot_moments(many)) < 12 * calls(lambda: plot_moments(few))
