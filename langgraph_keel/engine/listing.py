"""The ids of all threads of a store, read while other processes write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Listed, Page
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CorruptStore

_PAGE = 200
_ROUNDS = 20
"""Maximum number of reads of the list, as other processes may write continuously."""


def read_names(store: Store[Any, Any], *, passes: bool = False) -> Plan[list[str]]:
    """Return the ids of all threads and strays, even while threads are updated.

    Three trips, and one more for each 200 threads or strays.
    """
    names: dict[str, None] = {}
    newest: tuple[str, str] | None = None
    for _ in range(_ROUNDS):
        count, upto = len(names), newest
        newest = yield from _read_list(store, upto, names, passes)
        if len(names) == count:
            break
    after: str | None = None
    while True:
        strays: Sequence[str] = yield from store.list_strays(after, _PAGE)
        if not all(isinstance(name, str) for name in strays):
            raise CorruptStore(f"the name of a thread is not text: {[*strays]!r:.300}; `keel check` finds which")
        names.update(dict.fromkeys(strays))
        if len(strays) < _PAGE:
            return list(names)
        after = strays[-1]


def _read_list(
    store: Store[Any, Any], upto: tuple[str, str] | None, names: dict[str, None], passes: bool
) -> Plan[tuple[str, str] | None]:
    """Read the list of threads down to a position; return that of the first thread."""
    first: tuple[str, str] | None = None
    place: tuple[str, str] | None = None
    while True:
        page: Sequence[Listed] = yield from store.read_threads(Page(place, _PAGE, tolerant=passes))
        for info, _ in page:
            place = info.updated_at, info.thread_id
            first = first or place
            names[info.thread_id] = None
        if len(page) < _PAGE or (upto is not None and place is not None and place < upto):
            return first
