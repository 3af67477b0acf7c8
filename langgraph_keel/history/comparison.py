"""Two branches side by side, step by step from their last common moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph_keel.history.moment import Moment

Pair: TypeAlias = tuple[Moment | None, Moment | None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two branches, aligned.

    Attributes:
        common: The common moments, oldest first.
        pairs: The moments after them, oldest first, paired by step.
        ends: The last moments of the branches; `None` for a branch without moments.
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
        from langgraph_keel.history.render.terminal import page_text

        return page_text(self.__rich__())

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return them in two columns for a terminal."""
        from langgraph_keel.history.render.compare import ComparisonPage

        return ComparisonPage(self.common, self.pairs, self.ends)

    def _repr_html_(self) -> str:
        from langgraph_keel.history.render.compare import comparison_html

        return comparison_html(self.common, self.pairs, self.ends)


def compare_branches(left: Sequence[Moment], right: Sequence[Moment]) -> Comparison:
    """Return two branches, aligned at their last common moment."""
    places = {_key(moment): place for place, moment in enumerate(right)}
    last = next((place for place in reversed(range(len(left))) if _key(left[place]) in places), -1)
    start = places[_key(left[last])] + 1 if last >= 0 else 0
    common = [moment for moment in left[: last + 1] if places.get(_key(moment), start) < start]
    ends = (left[-1] if left else None, right[-1] if right else None)
    was, now = deque(_steps(left[last + 1 :])), deque(_steps(right[start:]))
    pairs: list[Pair] = []
    while was and now:
        first, second = was[0][0], now[0][0]
        ours = was.popleft()[1] if first <= second else []
        theirs = now.popleft()[1] if second <= first else []
        # Align the last moments of both, which are those of the outermost graph.
        more = len(ours) - len(theirs)
        pairs += zip((*[None] * -more, *ours), (*[None] * more, *theirs), strict=True)
    pairs += [(moment, None) for _, moments in was for moment in moments]
    pairs += [(None, moment) for _, moments in now for moment in moments]
    return Comparison(common, pairs, ends)


def _key(moment: Moment) -> tuple[str, str]:
    return moment.namespace, moment.id


def _steps(moments: Sequence[Moment]) -> Iterator[tuple[float, list[Moment]]]:
    """Yield the moments of each step, those of called subgraphs first."""
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
