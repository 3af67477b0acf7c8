"""Two branches side by side, aligned step by step where they part."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from support.history.moments import Thread, branches, calls, chain, hostile, story
from support.pages import check_harmless

from langgraph_keel.history.comparison import Comparison, compare_branches
from langgraph_keel.history.moment import Moment


def positions(shown: Comparison) -> list[tuple[int | None, int | None]]:
    return [(left.position if left else None, right.position if right else None) for left, right in shown.pairs]


def test_steps_are_aligned_from_the_branch_point() -> None:
    shown = compare_branches(*branches())
    assert [moment.position for moment in shown.common] == [0, 1, 2, 3, 4]
    assert positions(shown) == [(5, 11), (6, None), (7, None), (8, None), (9, 13), (10, 14)]
    assert [moment.position for moment in shown.left] == [5, 6, 7, 8, 9, 10]
    assert [moment.position for moment in shown.right] == [11, 13, 14]


def test_a_step_of_one_branch_only_is_shown_alone() -> None:
    left, right = chain(5), chain(5)
    right = [*right[:3], replace(right[4], address=replace(right[4].address, checkpoint_id="other"))]
    assert positions(compare_branches(left, right)) == [(3, None), (4, 4)]


def test_a_fork_in_another_thread_shares_ids() -> None:
    thread = Thread("fork")
    for number in range(4):
        thread.add(*["agent"][: number > 0])
    copied = thread.finished()
    shown = compare_branches(chain(6), copied)
    assert (len(shown.common), positions(shown)) == (4, [(4, None), (5, None)])
    assert "support-42 to #5: 2 moments" in str(shown)
    assert "fork to #3: 0 moments" in str(shown)


def test_branches_without_common_moments() -> None:
    left = [replace(each, address=replace(each.address, checkpoint_id=f"x{each.position}")) for each in chain(3)]
    shown = compare_branches(left, chain(4))
    assert positions(shown) == [(0, 0), (1, 1), (2, 2), (None, 3)]
    assert "nothing in common" in str(shown)
    assert "nothing in common" in shown._repr_html_()


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 3), (3, 0)])
def test_a_branch_without_moments(left: int, right: int) -> None:
    shown = compare_branches(chain(left), chain(right))
    assert len(shown.left) + len(shown.right) == left + right
    check_harmless(shown._repr_html_())
    assert "nothing in common" in str(shown)


def test_moments_without_steps_are_aligned_by_order() -> None:
    left, right = ([replace(each, step=None) for each in chain(4)] for _ in range(2))
    right[2:] = [replace(each, address=replace(each.address, checkpoint_id=f"x{each.position}")) for each in right[2:]]
    assert positions(compare_branches(left, right)) == [(2, 2), (3, 3)]


@given(st.lists(st.booleans(), max_size=12), st.lists(st.booleans(), max_size=12))
def test_no_moment_is_omitted_and_order_is_kept(first: list[bool], second: list[bool]) -> None:
    def branch(name: str, inner: list[bool]) -> list[Moment]:
        moments = chain(len(inner))
        spaces = ["sub" if is_inner else "" for is_inner in inner]
        return [
            replace(each, address=replace(each.address, checkpoint_ns=ns, checkpoint_id=f"{name}{each.position}"))
            for each, ns in zip(moments, spaces, strict=True)
        ]

    left, right = branch("a", first), branch("b", second)
    shown = compare_branches(left, right)
    assert (shown.left, shown.right) == (left, right)


def test_a_comparison_as_text() -> None:
    lines = str(compare_branches(*branches())).split("\n")
    assert lines[0].startswith("     │ support-42 to #10: 6 moments, 572 tokens,")
    assert any("#5 plan" in line and "│ #11 fork · rewound to #5" in line for line in lines)
    assert lines[-2].startswith('   3   #4 agent · messages +1 ai: "The plan')
    assert "in both, as 4 moments before it" in " ".join(" ".join(lines[-2:]).split())


@pytest.mark.parametrize("width", [140, 80, 50])
def test_a_rich_comparison_fits_the_terminal(width: int) -> None:
    for shown in (compare_branches(*branches()), compare_branches(hostile()[:2], hostile()[::3])):
        out = io.StringIO()
        Console(file=out, width=width).print(shown)
        assert max(map(cell_len, out.getvalue().split("\n"))) <= width


def test_a_comparison_as_html() -> None:
    read = check_harmless(compare_branches(*branches())._repr_html_())
    rows = [[cell.text() for cell in row.all("td")] for row in read.all("tbody")[0].all("tr")]
    assert [row[0] for row in rows] == ["6", "5", "1", "0", "-1", "4", "3"]
    assert "#5 plan before migration" in rows[5][1]
    assert "rewound to #5" in rows[5][2]
    assert rows[-1][1].endswith("in both, as 4 moments before it")
    assert story()[4].id in {code.attributes.get("title") for code in read.all("code")}


def test_the_work_grows_linearly() -> None:
    def work(length: int) -> int:
        left, right = chain(length), chain(length)
        return calls(lambda: compare_branches(left, [*right[:5], *right[6:]])._repr_html_())

    assert work(600) < 12 * work(60)
