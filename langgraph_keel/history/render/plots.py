"""State size, tokens and cost of a thread, each as a line of blocks, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_keel.display.text import format_money, format_size
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.rows import tree_rows

_MOST_BLOCKS = 60
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of text that plot values, with the name and a summary of each."""

    lines: tuple[tuple[str, Sequence[float], str], ...]

    def __str__(self) -> str:
        """Return the lines."""
        wide = max((len(name) for name, _, _ in self.lines), default=0)
        lines = []
        for name, values, note in self.lines:
            share = max(1, -(-len(values) // _MOST_BLOCKS))  # each block shows the maximum of this many values
            heights = [max(values[start : start + share]) for start in range(0, len(values), share)]
            top = max(heights) or 1
            blocks = (_BLOCKS[min(7, int(height / top * 7.999))] if height > 0 else " " for height in heights)
            lines.append(f"{name:<{wide}}  {''.join(blocks)}  {note}")
        return "\n".join(lines) or "nothing to plot"

    __repr__ = __str__


def plot_moments(moments: Sequence[MomentRecord]) -> Plot:
    """Plot the state size up to the head, and tokens and cost of all moments."""
    if len(moments) > 1 and moments[0].position > moments[-1].position:
        moments = moments[::-1]
    trunk = [row.moment.state_bytes for row in tree_rows(moments) if row.line.lane == 0]
    sizes = [size for size in trunk if size is not None]
    stored, tokens = [moment.bytes for moment in moments], [moment.tokens for moment in moments]
    costs = [moment.cost or 0.0 for moment in moments]
    lines: list[tuple[str, Sequence[float], str]] = []
    if sizes:
        first, last, top = map(format_size, (sizes[0], sizes[-1], max(sizes)))
        lines.append(("state", sizes, f"{first} → {last}, at most {top}"))
    elif any(stored):
        lines.append(("stored", stored, f"{format_size(sum(stored))} in all"))
    if any(map(any, tokens)):
        read, written = map(sum, zip(*tokens, strict=True))
        lines.append(("tokens", [*map(sum, tokens)], f"{read:,} read, {written:,} written"))
    if any(moment.cost is not None for moment in moments):
        lines.append(("cost", costs, f"{format_money(sum(costs))} in all"))
    return Plot(tuple(lines))
