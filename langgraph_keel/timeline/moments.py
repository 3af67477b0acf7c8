"""Some moments of a thread, oldest first, with what there is to see of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

from langgraph_keel.timeline.moment import Moment

MOST_SHOWN = 500
"""Moments of a long list that a page shows, the newest: 10,000 would be 17 MB of HTML."""


class Moments(Sequence[Moment]):
    """A part of a timeline: a list of moments that shows itself.

    Args:
        moments: They, oldest first.
        older: How many come before them in the thread; `None` if that is not known.
        measure: Returns them with `state_bytes`, as far as a picture needs it.
        drawn: They as they are drawn, where not each continues one that is among them.
    """

    def __init__(
        self,
        moments: Sequence[Moment],
        older: int | None = 0,
        measure: Callable[[Sequence[Moment]], Sequence[Moment]] | None = None,
        drawn: Sequence[Moment] | None = None,
    ) -> None:
        self._moments = tuple(moments)
        self._drawn = self._moments if drawn is None else tuple(drawn)
        self._measure = measure
        self.older = older

    def __len__(self) -> int:
        """Count them."""
        return len(self._moments)

    @overload
    def __getitem__(self, which: int) -> Moment: ...
    @overload
    def __getitem__(self, which: slice) -> Moments: ...
    def __getitem__(self, which: int | slice) -> Moment | Moments:
        """Return one of them, or some."""
        if isinstance(which, slice):
            return Moments(self._moments[which], None, self._measure, self._drawn[which])
        return self._moments[which]

    def plot(self) -> Any:
        """Return a picture: size of the state, tokens and cost, step by step."""
        from langgraph_keel.timeline.plots import plot

        return plot(self._measure(self._moments) if self._measure else self._moments)

    def _shown(self) -> tuple[Sequence[Moment], int | None]:
        """Return those that fit a page, and how many come before them."""
        over = max(len(self._moments) - MOST_SHOWN, 0)
        return self._drawn[over:], None if self.older is None else self.older + over

    def __str__(self) -> str:
        """Return them as a table in plain text."""
        from langgraph_keel.timeline.text import as_text

        return as_text(*self._shown())

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return them as a table for a terminal: all of them."""
        from langgraph_keel.timeline.text import as_rich

        return as_rich(self._drawn, self.older)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        from langgraph_keel.timeline.html import as_html

        return as_html(*self._shown())
