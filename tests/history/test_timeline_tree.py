"""The tree of a timeline: lines from moments to their predecessors, and few lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.history.moments import CALL, Thread, bushy, calls, chain, hostile, shuffled, story, wide

from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.rows import MOST_LANES, TreeRow, lane_count, tree_rows
from langgraph_keel.history.render.terminal import draw_tree

PARENTS = st.lists(st.integers(0, 40), max_size=40).map(lambda backs: [at - back for at, back in enumerate(backs)])


def picture(moments: Sequence[Moment]) -> list[str]:
    rows = tree_rows(moments)[::-1]
    lanes = lane_count(rows)
    return ["".join(text for text, _ in draw_tree(row, lanes)).rstrip() for row in rows]


def above(row: TreeRow) -> set[int]:
    """Return the lanes whose lines leave a row towards newer rows."""
    own = [row.line] if row.is_newer else []
    return {line.lane for line in (*own, *row.through, *row.joins, *row.cuts)}


def below(row: TreeRow) -> set[int]:
    own = [row.line] if row.is_older else []
    return {line.lane for line in (*own, *row.through)}


def followed(rows: Sequence[TreeRow], place: int) -> int | None:
    """Return the place to which the line below a moment leads, if any."""
    lane = rows[place].line.lane
    for at in range(place - 1, -1, -1) if rows[place].is_older else ():
        row = rows[at]
        if row.line.lane == lane or lane in {line.lane for line in row.joins}:
            return at
        if lane in {line.lane for line in row.cuts}:
            return None
        assert lane in {line.lane for line in row.through}
    return None


def test_moments_in_sequence_are_one_lane() -> None:
    assert picture(chain(3)) == ["◉", "●", "●"]


def test_a_tree_with_forks_and_subgraphs() -> None:
    assert picture(story()) == [
        "◉",
        "●",
        "│     ●",
        "●     │",
        "│ ●   │",
        "│ ●   │",
        "│ │ ○ │",
        "│ │ ○ │",
        "│ │ ○ │",
        "│ ●─┴─╯",
        "●─╯",
        "●",
        "●",
        "●",
        "●",
    ]


def test_lines_to_hidden_moments_are_cut() -> None:
    rows = tree_rows(story()[-6:])
    assert picture(story()[-6:]) == ["◉", "●", "│ ●", "● ┊", "┊ ●", "  ●"]
    assert [len(row.cuts) for row in rows] == [0, 1, 1, 0, 0, 0]
    assert rows[0].is_older


def test_the_first_moment_has_no_line_below() -> None:
    assert not tree_rows(chain(2))[0].is_older


def test_the_path_to_the_head_is_always_the_first_lane() -> None:
    thread = Thread()
    first = thread.add()
    head = thread.add("agent")
    thread.add("agent", after=first, is_branch=True)
    lanes = {row.moment: row.line.lane for row in tree_rows(thread.finished())}
    assert [lanes[head], *(lane for moment, lane in lanes.items() if moment != head)] == [0, 0, 1]


def test_a_crossing_is_drawn() -> None:
    assert picture(hostile()) == ["  ●", "  │ ○", "◉─┼─╯", "●─╯"]


def test_the_order_of_moments_does_not_matter() -> None:
    moments = story()
    assert tree_rows(moments[::-1]) == tree_rows(moments)[::-1]


def test_a_stateful_subgraph_is_drawn_below_each_call() -> None:
    thread = Thread()
    for _ in range(2):
        caller = thread.add("agent")
        for _ in range(2):
            thread.add("inner", ns="sub", caller=caller)
    moments = thread.finished()
    assert moments[4].parent == moments[2].id
    assert picture(moments) == ["  ○", "  ○", "◉─╯", "│ ○", "│ ○", "●─╯"]


def test_nested_subgraphs_are_drawn_in_further_lanes() -> None:
    thread = Thread()
    outer = thread.add("agent")
    middle = thread.add("copy", ns=CALL, caller=outer)
    thread.add("row", ns=f"{CALL}|rows:1", caller=middle)
    assert [row.line.lane for row in tree_rows(thread.finished())] == [0, 1, 2]
    assert [row.line.is_call for row in tree_rows(thread.finished())] == [False, True, True]


def test_a_tree_of_only_subgraph_moments() -> None:
    moments = [moment for moment in story() if moment.namespace]
    assert picture(moments) == ["○", "○", "○"]


def test_branches_beyond_the_last_lane_are_drawn_unconnected() -> None:
    rows = tree_rows(wide(30))
    assert lane_count(rows) == MOST_LANES + 1
    assert sum(row.line.lane == MOST_LANES for row in rows) == 30 - MOST_LANES
    apart = next(row for row in rows if row.line.lane == MOST_LANES)
    assert not apart.is_newer
    assert not apart.is_older


def test_an_empty_tree() -> None:
    assert tree_rows([]) == []
    assert lane_count([]) == 0


@given(PARENTS)
def test_lines_meet_between_rows(parents: list[int]) -> None:
    rows = tree_rows(shuffled(parents))
    assert all(above(older) == below(newer) for older, newer in pairwise(rows))
    assert not rows or above(rows[-1]) == set()


@given(PARENTS)
def test_lines_lead_to_parents(parents: list[int]) -> None:
    moments = shuffled(parents)
    rows = tree_rows(moments)
    for place, row in enumerate(rows):
        shown = parents[place] if 0 <= parents[place] < place else None
        if row.line.lane < MOST_LANES:
            assert followed(rows, place) == shown


@given(PARENTS)
def test_no_two_lines_share_a_lane(parents: list[int]) -> None:
    for row in tree_rows(shuffled(parents)):
        lanes = [line.lane for line in (row.line, *row.through)]
        ends = [line.lane for line in (*row.joins, *row.cuts)]
        assert len(set(lanes)) == len(lanes)
        assert len(set(ends)) == len(ends)
        assert not set(ends) & set(lanes)


@pytest.mark.parametrize("parents", ["text", ["x"], {"": 1}, {1: "x"}, None], ids=repr)
def test_malformed_metadata_is_ignored(parents: Any) -> None:
    moment = replace(chain(1)[0], metadata={"parents": parents})
    assert tree_rows([replace(moment, address=replace(moment.address, checkpoint_ns="a:1"))])[0].line.lane == 0


@pytest.mark.parametrize("made", [chain, wide, bushy])
def test_the_work_grows_linearly(made: Callable[[int], list[Moment]]) -> None:
    few, many = made(300), made(3000)
    assert calls(lambda: tree_rows(many)) < 12 * calls(lambda: tree_rows(few))
    assert max(len(row.through) for row in tree_rows(many)) <= MOST_LANES
