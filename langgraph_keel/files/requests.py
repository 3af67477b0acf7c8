"""Requests: a function of the store's directory, which the driver calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from langgraph_keel.files.shelves import Shelves
from langgraph_keel.files.threads import ThreadFiles


class Root(Protocol):
    """What a request is given."""

    def thread(self, thread_id: str) -> ThreadFiles:
        """Return the files of a thread, which need not be there."""
        ...

    def cells(self, thread_id: str | None) -> Shelves:
        """Return the cells of a thread; of `None`, those that all share."""
        ...

    def threads(self) -> Iterator[ThreadFiles]:
        """Return the files of every thread that is there."""
        ...

    def strays(self, after: str | None) -> Iterator[str]:
        """Name the threads that are after one in the order of their directories, and show no checkpoint."""
        ...

    def newest(self, after: tuple[str, str] | None) -> Iterator[tuple[tuple[str, str], ThreadFiles]]:
        """Return the threads that come after a place in the listing, last activity first, with their places."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """One request, atomic by itself: it reads, or changes, one thread; or it reads one after the other."""

    run: Callable[[Root], Any]
    writes: bool = False
