"""Two branches side by side, step by step from where they part: in a notebook, in a terminal, as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from langgraph_keel.display.html import FAINT, PAGE, SMALL, cell, code, head, table, tag, text
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.html import happened
from langgraph_keel.history.render.rows import Told, counted, heading, money, told
from langgraph_keel.history.render.terminal import WIDTH, Parts, filled, plain_lines, rich_line, said, wrapped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


Pair: TypeAlias = tuple[Moment | None, Moment | None]
_HALF = "width:50%;min-width:150px;overflow-wrap:anywhere"


@dataclass(frozen=True, slots=True)
class Beside:
    """Two branches, aligned.

    Attributes:
        common: The moments that are in both, oldest first; the last of them is where they part.
        pairs: What came after it, oldest first: moments of the same step stand side by side.
        ends: The moments to which the branches lead; `None` for one without moments.
    """

    common: Sequence[Moment]
    pairs: Sequence[Pair]
    ends: Pair

    @property
    def left(self) -> list[Moment]:
        """The moments of the first branch alone."""
        return [moment for moment, _ in self.pairs if moment is not None]

    @property
    def right(self) -> list[Moment]:
        """The moments of the second branch alone."""
        return [moment for _, moment in self.pairs if moment is not None]

    def __str__(self) -> str:
        """Return them in two columns of plain text."""
        return plain_lines(_lines(self, WIDTH))

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        yield from map(rich_line, _lines(self, options.max_width))

    def _repr_html_(self) -> str:
        return _html(self)


def side_by_side(left: Sequence[Moment], right: Sequence[Moment]) -> Beside:
    """Return two branches, aligned at the last moment that is in both.

    Args:
        left: The moments of one branch, oldest first; they may begin with what it has in common with the other.
        right: Those of the other, which may be of another thread: a fork has the ids of what it was copied from.
    """
    places = {_key(moment): place for place, moment in enumerate(right)}
    last = next((place for place in reversed(range(len(left))) if _key(left[place]) in places), -1)
    start = places[_key(left[last])] + 1 if last >= 0 else 0
    common = [moment for moment in left[: last + 1] if places.get(_key(moment), start) < start]
    ends = (left[-1] if left else None, right[-1] if right else None)
    return Beside(common, list(_aligned(left[last + 1 :], right[start:])), ends)


# -- alignment -------------------------------------------------------------------------------------------------


def _key(moment: Moment) -> tuple[str, str]:
    return moment.namespace, moment.id


def _aligned(left: Sequence[Moment], right: Sequence[Moment]) -> Iterator[Pair]:
    """Yield pairs; where one branch has no such step, the other stands alone."""
    was, now = deque(_steps(left)), deque(_steps(right))
    while was and now:
        first, second = was[0][0], now[0][0]
        yield from _paired(was.popleft()[1] if first <= second else [], now.popleft()[1] if second <= first else [])
    yield from ((moment, None) for _, moments in was for moment in moments)
    yield from ((None, moment) for _, moments in now for moment in moments)


def _paired(left: Sequence[Moment], right: Sequence[Moment]) -> Iterator[Pair]:
    """Yield pairs of one step: the last ones, those of the outermost graph, stand side by side."""
    more = len(left) - len(right)
    return zip((*[None] * -more, *left), (*[None] * more, *right), strict=True)


def _steps(moments: Sequence[Moment]) -> Iterator[tuple[float, list[Moment]]]:
    """Yield the moments of each step of the outermost graph: those of the subgraphs that led to it, then it."""
    called: list[Moment] = []
    least = float("-inf")
    for moment in moments:
        if moment.namespace:
            called.append(moment)
            continue
        least = max(least, moment.step if isinstance(moment.step, int) else least + 1)
        yield least, [*called, moment]
        called = []
    if called:
        yield float("inf"), called


# -- as HTML ---------------------------------------------------------------------------------------------------


def _html(shown: Beside) -> str:
    rows = _told(shown)
    body = (_html_row(*pair) for pair in _pairs(shown, rows))
    names = head(("step", *_names(shown)))
    return tag("div", table(names, tag("tbody", *body, *_html_common(shown, rows[0]))), style=PAGE)


def _html_row(left: Told | None, right: Told | None) -> str:
    cells = (cell(*([] if row is None else _html_cell(row)), style=_HALF) for row in (left, right))
    return tag("tr", cell(text(_step(left, right)), style="text-align:right"), *cells)


def _html_cell(row: Told) -> Iterator[str]:
    place = f"#{row.place} "
    yield tag("span", text(place), style=FAINT)
    yield from happened(row)
    yield tag("div", code(row.id, title=row.moment.id), f" {text(row.model)}", style=f"{SMALL};{FAINT}")


def _html_common(shown: Beside, rows: dict[Moment, Told]) -> Iterator[str]:
    """Yield the row of the moment at which they part, and how many there are before it."""
    if not shown.common:
        yield tag("tr", cell(), f'<td colspan="2" style="{FAINT}">nothing in common</td>')
        return
    row = rows[shown.common[-1]]
    style = "text-align:left;padding:5px 8px;border:0;border-top:2px solid rgba(127,127,127,.6)"
    body = tag("span", text(_in_both(shown)), style=FAINT)
    inner = "".join([*_html_cell(row), body])
    yield tag("tr", cell(text(row.step), style="text-align:right"), f'<td colspan="2" style="{style}">{inner}</td>')


# -- as text ---------------------------------------------------------------------------------------------------


def _lines(shown: Beside, width: int) -> Iterator[Parts]:
    half = max(16, (width - 9) // 2)
    rows = _told(shown)
    left, right = _names(shown)
    yield from _columns("step", [(left, "dim")], [(right, "dim")], half)
    for first, second in _pairs(shown, rows):
        yield from _columns(_step(first, second), _cell(first), _cell(second), half)
    yield [(f"{'─' * (half + 6)}┴{'─' * (half + 1)}", "dim")]
    if not shown.common:
        yield [("nothing in common", "dim")]
        return
    row = rows[0][shown.common[-1]]
    for number, line in enumerate(wrapped([*_cell(row), (f" · {_in_both(shown)}", "dim")], 2 * half)):
        yield [(f"{'' if number else row.step:>4}  ", ""), *line]


def _columns(step: str, left: Parts, right: Parts, half: int) -> Iterator[Parts]:
    empty: Parts = []
    pairs = zip_longest(wrapped(left, half), wrapped(right, half), fillvalue=empty)
    for number, (first, second) in enumerate(pairs):
        yield [(f"{'' if number else step:>4}  ", ""), *filled(first, half), ("│ ", "dim"), *second]


def _cell(row: Told | None) -> Parts:
    if row is None:
        return []
    return [(f"#{row.place} ", "dim"), *said(row)]


# -- both ------------------------------------------------------------------------------------------------------


Rows: TypeAlias = tuple[dict[Moment, Told], dict[Moment, Told]]
"""What is said of the moments of either side."""


def _told(shown: Beside) -> Rows:
    everything = [*shown.common, *shown.left, *shown.right]
    left, right = (told([*shown.common, *side], everything) for side in (shown.left, shown.right))
    return {row.moment: row for row in left}, {row.moment: row for row in right}


def _pairs(shown: Beside, rows: Rows) -> Iterator[tuple[Told | None, Told | None]]:
    """Yield what is said of each pair, the newest first."""
    for left, right in reversed(shown.pairs):
        yield rows[0][left] if left else None, rows[1][right] if right else None


def _step(left: Told | None, right: Told | None) -> str:
    row = left or right
    return row.step if row else ""


def _names(shown: Beside) -> Iterator[str]:
    """Yield what the branches are called: where each leads, and what it took."""
    for end, moments in zip(shown.ends, (shown.left, shown.right), strict=True):
        yield f"{heading([end])[0]} to #{end.position}: {_sum(moments)}" if end else "nothing"


def _sum(moments: Sequence[Moment]) -> str:
    """Return how much there is of a branch, and what it took."""
    tokens = sum(sum(moment.tokens) for moment in moments)
    costs = [moment.cost for moment in moments if moment.cost is not None]
    spent = ([f"{tokens:,} tokens"] if tokens else []) + ([f"cost {money(sum(costs))}"] if costs else [])
    return ", ".join([counted(len(moments), "moment"), *spent])


def _in_both(shown: Beside) -> str:
    more = len(shown.common) - 1
    return f"in both, as {counted(more, 'moment')} before it" if more else "in both"
