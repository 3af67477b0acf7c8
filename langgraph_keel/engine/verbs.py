"""The names in arguments and results of verbs, as data for `engine.layers`.

A new verb needs a method of `Store` and a line here; a new argument needs one more `SAME` in its line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from langgraph_keel.engine.names import NameMap

Turn: TypeAlias = Callable[[NameMap, Any, Any], Any]
"""Translates names in an argument or result, given the verb's first argument."""

_N = NameMap


def SAME(_: NameMap, value: Any, __: Any) -> Any:  # noqa: N802
    """Return a value without names unchanged."""
    return value


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb.

    Attributes:
        takes: Translates the names in each argument. An argument that is `None` or omitted is not translated.
        gives: Translates the names in the result.
        thread: Returns the id of the thread in the first argument; `None` if the verb does not concern one thread.
        writes: Whether it may store new names.
    """

    takes: tuple[Turn, ...]
    gives: Turn = SAME
    thread: Callable[[Any], str | None] | None = None
    writes: bool = False


def _itself(thread_id: Any) -> str | None:
    return thread_id  # type: ignore[no-any-return]


def _of_it(named: Any) -> str | None:
    return named.thread_id  # type: ignore[no-any-return]


VERBS: Mapping[str, Verb] = {
    "write_entry": Verb((_N.new,), _N.outcome, lambda new: new.address.thread_id, writes=True),
    "write_batch": Verb((_N.address, _N.batch), SAME, _of_it, writes=True),
    "read_entry": Verb((_N.address, SAME), _N.found, _of_it),
    "scan": Verb((_N.query,), _N.entries, _of_it),
    "read_values": Verb((_N.entries,), _N.founds),
    "read_stored": Verb((_N.entries,), _N.founds),
    "read_history": Verb((_N.address, _N.channel_set), _N.founds, _of_it),
    "read_graph": Verb((_N.thread_of,), _N.graph, _itself),
    "remove_entries": Verb((_N.thread_of, SAME, _N.ghosts), SAME, _itself),
    "remove_rows": Verb((_N.thread_of, _N.places, _N.graph), SAME, _itself),
    "delete_thread": Verb((_N.thread_of, SAME), SAME, _itself),
    "copy_thread": Verb((_N.thread_of, _N.thread_of, _N.entry), SAME, _itself),
    "find_runs": Verb((SAME,), _N.threads),
    "read_threads": Verb((_N.page,), _N.listed),
    "swap_cell": Verb((_N.shelf, _N.key_of, _N.token_of, _N.cell), _N.swapped, _of_it, writes=True),
    "swap_cells": Verb((_N.shelf, _N.swaps), _N.all_swapped, _of_it, writes=True),
    "read_cells": Verb((_N.shelf, _N.keys), _N.cells, _of_it),
    "list_cells": Verb((_N.shelf, _N.key_of, _N.key_of, SAME), _N.cell_page, _of_it),
    "find_cells": Verb((_N.shelf, _N.search), _N.cell_page, _of_it),
    "remove_cells": Verb((_N.shelf, _N.tokens), SAME, _of_it),
    "list_strays": Verb((_N.thread_of, SAME), _N.threads),
    "list_writes": Verb((_N.thread_of, _N.written, SAME), _N.writes, _itself),
    "list_kinds": Verb((_N.thread_of,), SAME, _itself),
    "replace_plain": Verb((_N.thread_of, _N.replacement), SAME, _itself),
    "delete_all": Verb((SAME,)),
    "list_tenants": Verb((SAME, SAME)),
}
