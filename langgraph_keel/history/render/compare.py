"""Two branches side by side in notebooks and terminals, newest moments on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from langgraph_keel.display.html import FAINT, PAGE, SMALL, cell, code, head, table, tag, text
from langgraph_keel.display.text import count_of, format_money
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.html import happened_html
from langgraph_keel.history.render.rows import TimelineRow, heading, timeline_rows
from langgraph_keel.history.render.terminal import Parts, happened_parts

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Moments: TypeAlias = Sequence[MomentRecord]
Pair: TypeAlias = tuple[MomentRecord | None, MomentRecord | None]
_HALF = "width:50%;min-width:150px;overflow-wrap:anywhere"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of both branches: pairs, newest first, and the last common row."""

    names: tuple[str, str]
    pairs: Sequence[tuple[TimelineRow | None, TimelineRow | None]]
    common: TimelineRow | None
    note: str


def _rows_of(common: Moments, pairs: Sequence[Pair], ends: Pair) -> _Rows:
    left, right = ([moment for pair in pairs if (moment := pair[side])] for side in (0, 1))
    every = [*common, *left, *right]
    rows = [{row.moment: row for row in timeline_rows([*common, *side], every)} for side in (left, right)]
    more = len(common) - 1
    return _Rows(
        (_name_of(ends[0], left), _name_of(ends[1], right)),
        [(rows[0][one] if one else None, rows[1][other] if other else None) for one, other in reversed(pairs)],
        rows[0][common[-1]] if common else None,
        f"in both, as {count_of(more, 'moment')} before it" if more > 0 else "in both",
    )


def _name_of(end: MomentRecord | None, moments: Moments) -> str:
    if end is None:
        return "nothing"
    tokens = sum(sum(moment.tokens) for moment in moments)
    costs = [moment.cost for moment in moments if moment.cost is not None]
    parts = [count_of(len(moments), "moment")]
    parts += [f"{tokens:,} tokens"] if tokens else []
    parts += [f"cost {format_money(sum(costs))}"] if costs else []
    return f"{heading([end])[0]} to #{end.position}: {', '.join(parts)}"


def comparison_html(common: Moments, pairs: Sequence[Pair], ends: Pair) -> str:
    """Return two branches as HTML."""
    rows = _rows_of(common, pairs, ends)
    body = []
    for pair in rows.pairs:
        cells = (cell(*(_cell_html(row) if row else ()), style=_HALF) for row in pair)
        body.append(tag("tr", cell(text(_step_of(*pair)), style="text-align:right"), *cells))
    if rows.common is None:
        body.append(tag("tr", cell(), tag("td", "nothing in common", colspan="2", style=FAINT)))
    else:
        style = "text-align:left;padding:5px 8px;border:0;border-top:2px solid rgba(127,127,127,.6)"
        inner = [*_cell_html(rows.common), tag("span", text(rows.note), style=FAINT)]
        both = tag("td", *inner, colspan="2", style=style)
        body.append(tag("tr", cell(text(rows.common.step), style="text-align:right"), both))
    return tag("div", table(head(("step", *rows.names)), tag("tbody", *body)), style=PAGE)


def _cell_html(row: TimelineRow) -> Iterator[str]:
    yield tag("span", text(f"#{row.place} "), style=FAINT)
    yield from happened_html(row)
    yield tag("div", code(row.id, title=row.moment.id), f" {text(row.model)}", style=f"{SMALL};{FAINT}")


def _step_of(left: TimelineRow | None, right: TimelineRow | None) -> str:
    row = left or right
    return row.step if row else ""


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """Two branches for a rich console."""

    common: Moments
    pairs: Sequence[Pair]
    ends: Pair

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a column for each branch, and below them their last common moment."""
        from rich.box import MINIMAL
        from rich.rule import Rule
        from rich.table import Table
        from rich.text import Text

        rows = _rows_of(self.common, self.pairs, self.ends)
        both = Table(box=MINIMAL, show_edge=False, pad_edge=False, header_style="dim", expand=True)
        both.add_column("step", justify="right", width=4)
        for name in rows.names:
            both.add_column(Text(name), overflow="fold", ratio=1)
        for pair in rows.pairs:
            both.add_row(Text(_step_of(*pair)), *(Text.assemble(*_cell_parts(row)) for row in pair))
        yield both
        yield Rule(style="dim")
        if rows.common is None:
            yield Text("nothing in common", "dim")
            return
        last = Table.grid(padding=(0, 3, 0, 0))
        last.add_column(justify="right", width=4)
        last.add_column(overflow="fold")
        last.add_row(Text(rows.common.step), Text.assemble(*_cell_parts(rows.common), (f" · {rows.note}", "dim")))
        yield last


def _cell_parts(row: TimelineRow | None) -> Parts:
    return [(f"#{row.place} ", "dim"), *happened_parts(row)] if row else []
