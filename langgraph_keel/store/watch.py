"""Changes of items below a namespace (`store.watch`), found by polling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from langgraph_keel.approvals.notices import SILENT
from langgraph_keel.engine.cells import Search
from langgraph_keel.engine.engine import Engine
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.feed import Follower
from langgraph_keel.runs.worker import PollTimer
from langgraph_keel.store.records import ITEMS, below, cell_key, prefix_of

MOST = 10_000
"""Maximum number of watched items below a namespace."""
_PAGE = 500
"""Maximum number of items that are read in one trip."""


@publish
@dataclass(frozen=True, slots=True)
class ItemChange:
    """An item that was created, changed, deleted or has expired.

    Attributes:
        namespace: The namespace of the item.
        key: The key of the item.
        value: The current value; `None` if the item was deleted or has expired.
    """

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any] | None


_Step: TypeAlias = tuple[str, str | None, ItemChange]
"""The key of a cell, its token if the item exists, and the change."""


@publish
class ItemFeed(Follower[_Step, ItemChange]):
    """Changes of items (`store.watch`), to iterate with `for` or `async for`."""

    def __init__(self, engine: Engine, namespace: tuple[str, ...], timer: PollTimer, since: str | None) -> None:
        super().__init__(engine, SILENT, timer)
        self._namespace, self._cells = namespace, Cells(engine.session, ITEMS, None)
        self._known: dict[str, tuple[str, tuple[str, ...], str]] = {}  # tokens and names of items, by cell key
        self._others: dict[str, str] = {}  # tokens of items that a store returned but that are not below it
        try:
            version, labels, items = (1, [*namespace], []) if since is None else json.loads(since)
            for rest, key, token in items:
                self._known[cell_key((*namespace, *rest), key)] = str(token), (*namespace, *rest), key
        except (TypeError, ValueError, AttributeError):
            raise InvalidInput(f"since must be the cursor of an earlier watch, not {since!r:.100}") from None
        if (version, labels) != (1, [*namespace]):
            raise InvalidInput("since is the cursor of a watch of another namespace, or of a newer Keel")

    @property
    def cursor(self) -> str:
        """The position, as JSON for `since`: at the current change in a loop, and at the end after it."""
        items = [[name[len(self._namespace) :], key, token] for token, name, key in self._known.values()]
        return json.dumps([1, self._namespace, items], separators=(",", ":"))

    def _take(self, steps: Sequence[_Step]) -> Iterator[ItemChange]:
        for cell, token, change in steps:
            # Without a token, a follower that is killed while it handles the change gets it again: also as a deletion,
            # if the item no longer exists.
            self._known.pop(cell, None)
            self._known[cell] = "", change.namespace, change.key
            self._is_news = True
            yield change
            if token is None:
                del self._known[cell]
            else:
                self._known[cell] = token, change.namespace, change.key

    def _begin(self) -> None:
        self._todo.append(self._look)

    def _look(self) -> Plan[None]:
        """Find the items that have changed, most recently changed last. One trip."""
        search = Search(prefix_of(self._namespace), marks_of(below(self._namespace)), limit=MOST + 1, is_bare=True)
        page = yield from self._cells.search_raw(search)
        if len(page) > MOST:
            raise InvalidInput(f"{self._namespace} has more than {MOST:,} items below it: watch longer namespaces")
        now = self._engine.session.milliseconds
        tokens = {cell: each.token for cell, each in reversed(page) if each.is_live(now)}
        self._others = {cell: token for cell, token in self._others.items() if tokens.get(cell) == token}
        known = {cell: token for cell, (token, _, _) in self._known.items()}
        changed = [cell for cell, token in tokens.items() if token not in (self._others.get(cell), known.get(cell))]
        changed += [cell for cell in known if cell not in tokens]
        self._todo += [partial(self._read, changed[n : n + _PAGE]) for n in range(0, len(changed), _PAGE)]
        self._todo.append(self._end)

    def _end(self) -> Plan[None]:
        yield from ()
        self._looks += 1

    def _read(self, cells: Sequence[str]) -> Plan[Sequence[_Step]]:
        """Return the changes in some cells. One trip."""
        found, steps = (yield from self._cells.read(cells)), list[_Step]()
        for cell in cells:
            kept, known = found.get(cell), self._known.get(cell)
            if kept is None or not kept.cell.is_live(self._engine.session.milliseconds):
                if known is not None:
                    steps.append((cell, None, ItemChange(*known[1:], None)))
            elif kept.record.namespace[: len(self._namespace)] == self._namespace:
                item = kept.record
                steps.append((cell, kept.token, ItemChange(item.namespace, item.key, item.value)))
            else:
                self._others[cell] = kept.token
        return steps
