"""Numbered migrations from one format of a store to the next, each done once.

A store is made in format 1 and goes through all migrations, so each format is reached in one way. A migration is one
transaction that also sets the mark of the format. Without transactions, it consists of idempotent steps between two
marks: that it has started, which an older Keel refuses, and that it is complete. The next process continues an
interrupted migration.

A migration must change its data so that a process of the old format **cannot read them as before**. Such a process does
not read the mark at each request; its request must fail, so that it reads the mark and raises `NewerFormat`. In SQL, a
column is renamed; on Redis, the line of a thread gets another form; the first line of a file log contains its format.
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
    """A change of a backend's format: `what` describes it, `work` does it."""

    what: str
    work: Work


def newest(migrations: Mapping[int, object]) -> int:
    """Return the newest format; the keys of migrations are formats."""
    return max(migrations, default=1)


def find_due(migrations: Mapping[int, T], found: int, where: str) -> Sequence[tuple[int, T]]:
    """Return the migrations that a store lacks, in order, with their numbers."""
    known = newest(migrations)
    if found < 1:
        raise CorruptStore(f"{where}: the recorded format is {found}, but formats begin with 1: restore a backup")
    if found > known:
        raise NewerFormat(f"{where}: written in format {found} by a newer Keel; this one knows {known}: upgrade Keel")
    return [(number, migrations[number]) for number in range(found + 1, known + 1)]


def refuse_older(where: str, found: int, known: int, why: str) -> NotSetUp:
    """Return the error of a store that has an older format."""
    return NotSetUp(
        f"{where} has format {found}, this Keel needs {known}, and {why}: close every older Keel, then run "
        "`keel schema --upgrade --url ...` as a user with write access (--print shows the changes first)"
    )
