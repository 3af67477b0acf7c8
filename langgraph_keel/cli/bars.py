"""The bar that a person sees while a command works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TypeAlias, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from langgraph_keel.cli.terminal import console

T = TypeVar("T")
Tell: TypeAlias = Callable[[int, int | None], None]
"""Told how much is done, and of how much if that is known."""

PATIENCE = 0.5
"""Seconds that work may take without a word: a bar that is gone at once only flickers."""


@contextmanager
def bar(what: str, *, quiet: bool = False) -> Iterator[Tell]:
    """Show how far some work is, on standard error, if that is a terminal and the work takes longer than `PATIENCE`."""
    errors = console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=errors, transient=True)
    task, begun = shown.add_task(what, total=None), monotonic()

    def tell(done: int, total: int | None) -> None:
        shown.update(task, completed=done, total=total)
        if errors.is_terminal and not quiet and monotonic() - begun > PATIENCE:
            shown.start()

    try:
        yield tell
    finally:
        if shown.live.is_started:  # else it would print an empty line
            shown.stop()


def counted(items: Sequence[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """Yield the items; a bar shows how many of them are done."""
    with bar(what, quiet=quiet) as tell:
        for number, item in enumerate(items):
            tell(number, len(items))
            yield item
