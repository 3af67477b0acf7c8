"""Output of commands: consoles, JSON, tables, safe text, the progress bar."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from time import monotonic
from typing import Any, Protocol, TypeVar, cast

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from langgraph_keel.display.text import UNSAFE, format_size, plain
from langgraph_keel.errors import KeelError

_CREDENTIALS = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")
_LONGEST_ID = 120
_PASSWORD = re.compile(r"\b(password=)[^&\s]*")

_ANY_WIDTH = 10_000
_UNBROKEN = ("#", "id", "checkpoint", "time", "last activity", "took")

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds of work before a progress bar appears."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console without markup, emoji codes or highlighting."""
    return Console(markup=False, emoji=False, highlight=False, stderr=stderr, quiet=quiet)


def shell_word(text: str) -> str:
    """Return `text` as one word for a shell, with control characters escaped."""
    if plain(text) == text:
        return shlex.quote(text)
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", inner) + "'"


def block(text: str, limit: int | None = None) -> Text:
    """Return `text` as lines, cut after `limit` characters with a note."""
    shown = Text(plain(text if limit is None else text[:limit], keep="\n\t"), overflow="fold")
    if limit is not None and len(text) > limit:
        shown.append(f" … {len(text) - limit:,} more characters (--full)", "dim")
    return shown


def local_time(timestamp: str) -> str:
    """Return an ISO timestamp in local time, without the date if it is today."""
    try:
        moment = datetime.fromisoformat(timestamp).astimezone()
    except ValueError:
        return plain(timestamp)
    return f"{moment:%H:%M:%S}" if moment.date() == datetime.now().astimezone().date() else f"{moment:%Y-%m-%d %H:%M}"


def thread_name(thread_id: str, style: str = "") -> Text:
    """Return the id of a thread for a table, shortened if it is very long."""
    shown = thread_id if len(thread_id) <= _LONGEST_ID else thread_id[: _LONGEST_ID - 1] + "…"
    return Text(plain(shown), style, overflow="fold")


def without_password(url: str) -> str:
    """Return `url` without its password, safe to print."""
    return plain(_PASSWORD.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", url)))


def print_json(value: Any) -> None:
    """Print `value` as JSON in ASCII, which every pipe and terminal supports."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def print_answer(data: Any, page: RenderableType, *, as_json: bool) -> None:
    """Print the answer of a command: data as JSON, or a page. Text is not wrapped."""
    if as_json:
        print_json(data)
    else:
        console().print(page, soft_wrap=isinstance(page, Text))


def print_lines(lines: Iterable[Text]) -> None:
    """Print lines without wrapping them, such as commands to copy."""
    for line in lines:
        console().print(line, soft_wrap=True)


def report_error(error: KeelError, *, as_json: bool) -> None:
    """Print an error: a red line on standard error, or JSON on standard output."""
    if as_json:
        print_json({"error": {"code": error.code, "message": str(error)}})
        return
    console(stderr=True).print(error_line(error), soft_wrap=True)


def error_line(error: KeelError) -> Text:
    """Return the line that reports an error."""
    return Text.assemble(("error: ", "bold red"), plain(str(error)), style="red")


def print_failures(failed: Mapping[str, str]) -> None:
    """Print the threads that failed, and why."""
    marks = ("! ", "red")
    print_lines(Text.assemble(marks, (plain(name), "bold"), f"  {plain(why)}") for name, why in failed.items())


@dataclass(frozen=True)
class Rows:
    """A table of non-empty columns, or a paragraph per row if it does not fit."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text] | Text]  # the cells of each, or a `Text` across all columns
    heads: int = 1  # number of cells in the first line of a paragraph
    at: int = 0  # width below which there is no table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render a table or paragraphs, depending on the width."""
        rows = [row for row in self.rows if not isinstance(row, Text)]
        used = [place for place in range(len(self.columns)) if any(row[place] for row in rows)]
        whole = self._table(used, rows)
        if not used or options.max_width < self.at or not _fit_columns(whole, console, options.max_width):
            for row in self.rows:
                yield from [row] if isinstance(row, Text) else self._paragraph(row)
            return
        has_head = True
        for is_note, group in groupby(self.rows, lambda row: isinstance(row, Text)):
            if is_note:
                yield from cast(Iterator[Text], group)
                continue
            table = self._table(used, group)
            for column, like in zip(table.columns, whole.columns, strict=True):
                column.width = like.width
            table.show_header, has_head = has_head, False
            yield table

    def _table(self, used: Sequence[int], rows: Iterable[Sequence[str | Text] | Text]) -> Table:
        table = table_of(*(self.columns[place] for place in used))
        for row in rows:
            table.add_row(*(row[place] for place in used))
        return table

    def _paragraph(self, row: Sequence[str | Text]) -> RenderResult:
        yield Text("  ").join(Text.assemble(cell) for cell in row[: self.heads] if cell)
        named = zip(self.columns[self.heads :], row[self.heads :], strict=True)
        dot = Text(" · ", "dim")
        below = [
            Text.assemble((f"{name.removeprefix('>')} ", "dim"), dot.join(Text.assemble(cell).split("\n")))
            for name, cell in named
            if cell
        ]
        yield Indented(dot.join(below))


def _fit_columns(table: Table, console: Console, available: int) -> bool:
    """Set column widths that break no word; return whether that is possible."""
    widths, least = zip(*(_sizes(column, console, available) for column in table.columns), strict=True)
    for column in table.columns:
        column.width = 1
    between = console.measure(table).maximum - len(widths)
    found = list(widths)
    while sum(found) + between > available:
        slack, place = max((found[place] - least[place], place) for place in range(len(found)))
        if not slack:
            return False
        found[place] -= 1
    for column, width in zip(table.columns, found, strict=True):
        column.width = width
    return True


def _sizes(column: Column, console: Console, available: int) -> tuple[int, int]:
    """Return the preferred and the minimum width of a column."""
    options = console.options.update_width(_ANY_WIDTH)
    cells = [console.measure(cell, options=options) for cell in (column.header, *column.cells)]
    least = max(cell.maximum if column.no_wrap else cell.minimum for cell in cells)
    return max(least, min(available, max(cell.maximum for cell in cells))), least


def table_of(*columns: str) -> Table:
    """Return an empty table. `>` marks a column of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    table.padding = (0, 1, 0, 0) if len(columns) > 6 else (0, 1)
    for column in columns:
        name = column.removeprefix(">")
        justify: JustifyMethod = "right" if name != column else "left"
        table.add_column(name, overflow="fold", no_wrap=name in _UNBROKEN, justify=justify)
    return table


@dataclass(frozen=True)
class Indented:
    """A text that is indented by two columns, without blanks at the ends of its lines."""

    text: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Wrap the text."""
        for line in self.text.wrap(console, max(1, options.max_width - 2), overflow="fold"):
            line.rstrip()
            yield Text.assemble("  " if line else "", line)


class Tell(Protocol):
    """Shows progress: the number done, the total if it is known, and the bytes moved."""

    def __call__(self, done: int, total: int | None, nbytes: int = 0) -> None:
        """Update the progress."""


@contextmanager
def bar(
    what: str, *, quiet: bool = False, speed: bool = False, keeps: bool = False, then: str | None = None
) -> Iterator[Tell]:
    """Show progress on standard error after `PATIENCE`; Ctrl-C prints `then`."""
    from rich import progress as rich

    class Speed(rich.ProgressColumn):
        def render(self, task: rich.Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "", "dim")

    errors = console(stderr=True, quiet=quiet)
    columns = [rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()]
    columns += [rich.TimeElapsedColumn()]
    if speed:
        columns += [rich.TextColumn("[dim]{task.fields[moved]}"), Speed()]
        columns += [rich.TextColumn("[dim]left"), rich.TimeRemainingColumn()]
    shown = rich.Progress(*columns, console=errors, transient=True)
    task, begun, counts = shown.add_task(what, total=None, moved=""), monotonic(), "0"

    def tell(done: int, total: int | None, nbytes: int = 0) -> None:
        nonlocal counts
        counts = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        rate = format_size(int(nbytes / max(monotonic() - begun, 0.001)))
        shown.update(task, completed=done, total=total, moved=f"{format_size(nbytes)}, {rate}/s" if nbytes else "")
        if errors.is_terminal and not quiet and monotonic() - begun > PATIENCE:
            shown.start()

    if then is None:
        then = "Finished work is kept: run the same command again to continue." if keeps else "Nothing was changed."
    try:
        try:
            yield tell
        finally:
            if shown.live.is_started:  # else it would print an empty line
                shown.stop()
    except KeyboardInterrupt:
        console(stderr=True).print(Text(f"interrupted: {what}, {counts} done. {plain(then)}", "yellow"), soft_wrap=True)
        raise


def with_bar(items: Iterable[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """Yield the items, and show their number in a progress bar."""
    with bar(what, quiet=quiet) as tell:
        for number, item in enumerate(items):
            tell(number, len(items) if isinstance(items, Sized) else None)
            yield item
