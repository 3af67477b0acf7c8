"""From one format of a store to the next: numbered migrations, each done once, by whoever comes first.

A store is made in format 1 and carried through all migrations that there are, so that there is one way to a format.
Each backend has its `MIGRATIONS`, and one place that carries them out, when a store is opened: in one transaction with
the mark that says the format. Where there are no transactions, in steps: the mark says first that the way to a format
has begun (an older Keel refuses the store from then on), then each step changes one thing at once, and is harmless a
second time, and at last the mark says that it is over. Whoever finds a way that was begun goes on with it.

The other half is the duty of who writes a migration: **what it changes must not be readable as what it was.** A process
of the former format that has the store open does not look at the mark at each request, as that would cost each put
something. It must fail; then it looks, and says `NewerFormat`. In SQL, a column that holds something else gets another
name; on Redis, the line of a thread another form; the first line of a log of files says its format by itself.
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
    """A change of a backend's format.

    Attributes:
        what: What it changes, in a few words, for whoever is to run it by hand.
        work: How: see the backend's `MIGRATIONS`.
    """

    what: str
    work: Work


def newest(migrations: Mapping[int, object]) -> int:
    """Return the format to which migrations lead; each stands under the number of its own."""
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
    """Return the error that says that a store has an older format, and who can change that."""
    return NotSetUp(
        f"{where} has format {found}, this Keel needs {known}, and {why}: let whoever may write the store run "
        "`keel schema --upgrade --url ...`, once no older Keel has it open (with --print, it says what that does)"
    )
