"""A timeline for terminals, newest moment on top: a tree next to a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeAlias

from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.rows import (
    Line,
    Note,
    TimelineRow,
    TreeRow,
    footing,
    heading,
    lane_count,
    timeline_rows,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

Parts: TypeAlias = list[tuple[str, str]]
"""Pieces of text, each with its style."""

JOINED = "\ufdd0"
"""A non-breaking space: a noncharacter, so no text contains it."""
WIDTH = 100
"""Width of plain text in columns."""
TONES = {
    "label": "bold yellow",
    "origin": "magenta",
    "tool": "cyan",
    "replayed": "dim cyan",
    "pending": "yellow",
    "waits": "bold yellow",
    "asked": "dim yellow",
    "failed": "bold red",
    "drift": "yellow",
    "not read": "yellow",
    "next": "dim",
}
_WIDE, _STACKED = 96, 64
_COLOURS = ("", "magenta", "cyan", "yellow", "blue", "green", "red", "bright_magenta", "dim")

_UP, _LEFT, _RIGHT = 1, 2, 4
_BOXES = {_UP | _LEFT: "╯", _UP | _RIGHT: "╰", _UP | _LEFT | _RIGHT: "┴", _LEFT | _RIGHT: "─"}


def page_text(page: Any, width: int = WIDTH) -> str:
    """Return rich's output for a page as plain text, the same for every output."""
    from rich.console import Console

    out = StringIO()
    console = Console(
        file=out, width=width, height=100, color_system=None, force_terminal=False, force_jupyter=False,
        legacy_windows=False, markup=False, emoji=False, highlight=False,
    )  # fmt: skip
    console.print(page)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")[:-1])


@cache
def _console() -> Console:
    from rich.console import Console

    return Console(file=StringIO())


def wrap_parts(parts: Iterable[tuple[str, str]], width: int) -> list[Text]:
    """Return pieces of text as lines of at most `width` columns."""
    from rich.text import Text

    lines = list(Text.assemble(*parts).wrap(_console(), width, overflow="fold"))
    for line in lines:
        line.plain = line.plain.replace(JOINED, " ")
    return lines


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """A timeline for a rich console; `older` is the number of older moments, if known."""

    moments: Sequence[MomentRecord]
    older: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, newest moment first."""
        from rich.text import Text

        if not self.moments:
            yield Text("no moments", "dim")
            return
        name, shown = heading(self.moments)
        yield Text.assemble("thread ", (name, "bold"), (f" · {shown}", "dim"), overflow="fold")
        rows = timeline_rows(self.moments)
        lanes = lane_count(row.tree for row in rows)
        table = _Table.fit(rows, options.max_width - 2 * lanes)
        if not table.is_stacked:
            yield from _beside(table.head(), [("  " * lanes, "")])
        for row in rows:
            own = (row.tree.line,) if row.tree.is_older else ()
            below: _Cells = {line.lane: ("│", _colour(line)) for line in (*row.tree.through, *own)}
            yield from _beside(table.lines(row), draw_tree(row.tree, lanes), _lay(below, lanes, {}))
        if note := footing(self.moments, self.older):
            end = _lay({row.tree.line.lane: ("┊", _colour(row.tree.line))} if row.tree.is_older else {}, lanes, {})
            yield from _beside(wrap_parts([(note, "dim")], table.width), end)


def _beside(lines: Iterable[Text], tree: Parts, tree_below: Parts | None = None) -> Iterator[Text]:
    """Yield lines of text, the first next to `tree`, the others next to `tree_below`."""
    from rich.text import Text

    for number, line in enumerate(lines):
        yield Text.assemble(*(tree_below or tree if number else tree), line, no_wrap=True, overflow="ignore")


_Cells: TypeAlias = dict[int, tuple[str, str]]
"""A character of the tree and its style, by lane."""


def draw_tree(row: TreeRow, lanes: int) -> Parts:
    """Return the tree left of a moment's first line: two columns for each lane."""
    cells: _Cells = {line.lane: ("│", _colour(line)) for line in row.through}
    cells |= {line.lane: ("┊", _colour(line)) for line in row.cuts}
    own, ends = row.line.lane, {line.lane: line for line in row.joins}
    low, high = min((own, *ends)), max((own, *ends))
    for lane in range(low, high + 1):
        if lane in cells:
            cells[lane] = "┼", cells[lane][1]
        elif lane != own:
            line = ends.get(lane) or ends[high if lane > own else low]
            ways = _UP * (lane in ends) | _LEFT * (lane > low) | _RIGHT * (lane < high)
            cells[lane] = _BOXES[ways], _colour(line)
    if row.moment.is_head and not row.line.is_call:
        cells[own] = "◉", f"bold {_colour(row.line) or 'green'}"
    else:
        cells[own] = "○" if row.line.is_call else "●", _colour(row.line)
    bridge = _colour(ends.get(high, row.line))
    return _lay(cells, lanes, dict.fromkeys(range(low, high), ("─", bridge)))


def _lay(cells: _Cells, lanes: int, bridges: _Cells) -> Parts:
    blank = (" ", "")
    return [part for lane in range(lanes) for part in (cells.get(lane, blank), bridges.get(lane, blank))]


def _colour(line: Line) -> str:
    return _COLOURS[line.lane]


@dataclass(frozen=True, slots=True)
class _Table:
    """The columns that fit: with nodes, model and size if wide; stacked if narrow."""

    widths: dict[str, int]
    is_wide: bool
    is_stacked: bool
    width: int

    @classmethod
    def fit(cls, rows: Sequence[TimelineRow], width: int) -> _Table:
        """Return the table for some rows; the column of events gets the remaining width."""
        from rich.cells import cell_len

        is_wide = width >= _WIDE
        most = {"nodes": 24, "model": 20, "what happened": 0}
        widths = {name: len(name) for name in _cells(rows[0], is_wide=is_wide)}
        for row in rows:
            for name, parts in _cells(row, is_wide=is_wide).items():
                widths[name] = max(widths[name], sum(cell_len(text) for text, _ in parts))
        widths = {name: min(size, most.get(name, 40)) for name, size in widths.items()}
        left = width - sum(widths.values()) - 2 * (len(widths) - 1)
        return cls(widths | {"what happened": max(left, 16)}, is_wide, width < _STACKED, max(width, 16))

    def head(self) -> Iterator[Text]:
        return self._lines({name: [(name, "dim")] for name in self.widths})

    def lines(self, row: TimelineRow) -> Iterator[Text]:
        cells = _cells(row, is_wide=self.is_wide)
        if not self.is_stacked:
            yield from self._lines(cells)
            return
        *facts, happened = cells.values()
        yield from wrap_parts([part for fact in facts for part in (*fact, ("  ", "")) if fact[0][0]], self.width)
        yield from wrap_parts(happened, self.width)

    def _lines(self, cells: dict[str, Parts]) -> Iterator[Text]:
        from rich.text import Text

        blocks = [(name, wrap_parts(parts, self.widths[name])) for name, parts in cells.items()]
        for number in range(max(len(block) for _, block in blocks)):
            line = Text()
            for name, block in blocks:
                text = block[number] if number < len(block) else Text()
                text.rstrip()
                text.align("right" if name in ("#", "stored") else "left", self.widths[name])
                line.append("  " if line else "").append_text(text)
            yield line


def _cells(row: TimelineRow, *, is_wide: bool) -> dict[str, Parts]:
    mark = "bold green" if row.is_head else "green"
    cells: dict[str, Parts] = {"#": [(row.place, "dim")], "checkpoint": [(row.id, mark)], "time": [(row.time, "dim")]}
    if not is_wide:
        return cells | {"what happened": [*happened_parts(row), (" · ", "dim"), (row.size.replace(" ", JOINED), "dim")]}
    return cells | {
        "nodes": _nodes(row),
        "what happened": _join(map(_note, row.notes)),
        "model": [(row.model, "cyan")],
        "stored": [(row.size, "dim")],
    }


def happened_parts(row: TimelineRow) -> Parts:
    """Return the events of a row as one text."""
    model: list[Parts] = [[(row.model, "dim")]] if row.model else []
    return _join([_nodes(row), *map(_note, row.notes), *model])


def _nodes(row: TimelineRow) -> Parts:
    return [(f"{row.where} › ", "dim"), (row.nodes, "bold")] if row.where else [(row.nodes, "bold")]


def _note(note: Note) -> Parts:
    return [(f"[{note.text}]" if note.tone == "label" else note.text, TONES.get(note.tone, ""))]


def _join(groups: Iterable[Parts]) -> Parts:
    """Return groups of parts as one, with a dot between them."""
    parts: Parts = []
    for group in groups:
        parts += [*([(" · ", "dim")] if parts else []), *group]
    return parts
