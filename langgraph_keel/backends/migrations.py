"""Numbered migrations from one format of a store to the next. Each is done once, when a store is opened.

A store is made in format 1 and carried through all migrations, so that there is one way to a format: in one transaction
with the mark of the format; or, without transactions, in steps that are harmless a second time, between a mark that the
migration has begun, which an older Keel refuses, and one that it is complete. The next process continues a migration
that was cut off.

A migration must change its data so that a process of the former format **cannot read them as before**, since that does
not look at the mark at each request: its request must fail; then it looks, and raises `NewerFormat`. In SQL, a column
gets another name; on Redis, the line of a thread another form; the first line of a log of files contains its format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from langgraph_keel.errors import CorruptStore, NewerFormat, NotSetUp

Work = TypeVar("Work")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Migration(Generic[Work]):
    """A change of a backend's format: its description, and its work (see the backend's `MIGRATIONS`)."""

    what: str
    work: Work


def newest(migrations: Mapping[int, object]) -> int:
    """Return the format to which migrations lead; their keys are formats."""
    return max(migrations, default=1)


def find_due(migrations: Mapping[int, T], found: int, where: str) -> Sequence[tuple[int, T]]:
    """Return the migrations that a store lacks, in their order, with their numbers."""
    known = newest(migrations)
    if found < 1:
        raise CorruptStore(f"{where}: says that it has format {found}, and formats begin with 1: bring a backup back")
    if found > known:
        raise NewerFormat(f"{where}: written in format {found} by a newer Keel; this one knows {known}: upgrade")
    return [(number, migrations[number]) for number in range(found + 1, known + 1)]


def refuse_older(where: str, found: int, known: int, why: str) -> NotSetUp:
    """Return the error of a store that has an older format."""
    return NotSetUp(
        f"{where} has format {found}, this Keel needs {known}, and {why}: let whoever may write the store run "
        "`keel schema --upgrade --url ...`, once no older Keel has it open (with --print, it says what that does)"
    )
