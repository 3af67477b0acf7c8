"""Export and import of items as files, one readable JSON file per item."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias

from langgraph_keel.engine.cells import Swap
from langgraph_keel.engine.plan import Plan
from langgraph_keel.errors import InvalidInput
from langgraph_keel.store.checks import check_place, check_ttl, check_value
from langgraph_keel.store.items import PAGE, Items
from langgraph_keel.store.records import ITEMS, StoredItem, cell_key, prefix_of

_EPOCH = datetime.fromtimestamp(0, UTC)
Brought: TypeAlias = Literal["made", "changed", "same", "kept"]
"""The result of an import for an item; `kept` if it changed in the store since."""
_READABLE = 40
"""Maximum characters of a namespace and key in the name of a file."""


def iso_of(at: int) -> str:
    """Return microseconds since 1970 in ISO form."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds")


def name_of_file(item: StoredItem) -> str:
    """Return a file name for an item, safe on any file system."""
    words = re.findall("[a-z0-9]+", "-".join([*item.namespace, item.key]).lower()[: 4 * _READABLE])
    digest = blake2b(cell_key(item.namespace, item.key).encode(), digest_size=16).hexdigest()
    return f"{'-'.join(words)[:_READABLE].rstrip('-') or 'item'}-{digest}.json"


def write_item(item: StoredItem, changed: int) -> bytes:
    """Return the content of an item's file; `changed` identifies its version.

    `changed` is in microseconds since 1970.
    """
    fields = dict(zip(StoredItem._fields, ITEMS.pack(item), strict=True))
    del fields["fences"]  # they belong to the locks of this store
    shown = {**fields, "created": iso_of(item.created), "changed": iso_of(changed)}
    # UTF-8 cannot encode surrogates: they become JSON escapes.
    return f"{json.dumps(shown, indent=2, ensure_ascii=False)}\n".encode(errors="backslashreplace")


def read_items(directory: Path) -> list[tuple[StoredItem, int]]:
    """Return the items in the files of a directory, each with the time of its version.

    Raises:
        InvalidInput: If a file is not an item, two files are the same item, or the directory cannot be read.
    """
    found: dict[str, tuple[StoredItem, int]] = {}
    origin: dict[str, Path] = {}
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be read: {error.strerror}") from error
    for path in paths:
        try:
            item, changed = _read_item(json.loads(path.read_bytes()), str(path))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"{path} is not an exported item: {error}. Nothing was imported") from error
        key = cell_key(item.namespace, item.key)
        if key in found:
            raise InvalidInput(f"{path} and {origin[key]} are the same item: keep one. Nothing was imported")
        found[key], origin[key] = (item, changed), path
    return list(found.values())


def _read_item(shown: Mapping[str, Any], what: str) -> tuple[StoredItem, int]:
    created, changed = (_microseconds(shown[name]) for name in ("created", "changed"))
    known = {**shown, "created": created, "fences": {}}
    item = ITEMS.unpack([known.get(name) for name in StoredItem._fields])
    check_place(item.namespace, item.key)
    check_ttl(item.ttl, what)
    return item._replace(value=check_value(item.value, what)), changed


def _microseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


class ItemFiles(Items):
    """The plans of exports and imports."""

    def page(self, namespace: tuple[str, ...], after: str) -> Plan[tuple[list[tuple[StoredItem, int]], str | None]]:
        """Return a page of items below a namespace, and a cursor. One trip.

        Each item comes with the time of its last change. Pages are in the order of the keys of cells. A key never
        changes, so an item that changes between two pages is not missed.
        """
        page = yield from self._cells.page(prefix_of(namespace), after or None, PAGE)
        live = [(kept.record, kept.cell.rank or 0) for _, kept in page if self._lives(kept.cell)]
        found = [each for each in live if each[0].namespace[: len(namespace)] == namespace]
        return found, page[-1][0] if len(page) == PAGE else None

    def bring(self, items: Sequence[tuple[StoredItem, int]]) -> Plan[list[Brought]]:
        """Write exported items, except those that changed in the store. Two trips.

        Args:
            items: Each item with the time of its exported version, in microseconds since 1970.

        Returns:
            The result for each item.
        """
        now = int(self._session.clock().timestamp() * 1_000_000)
        done: dict[str, Brought] = {}
        swaps: list[Swap] = []
        held = yield from self._cells.read([cell_key(item.namespace, item.key) for item, _ in items])
        for item, changed in items:
            key = cell_key(item.namespace, item.key)
            kept, rank = held.get(key), min(changed, now)
            if kept is None or not self._lives(kept.cell):
                done[key] = "made"
            elif _content(kept.record) == _content(item):
                done[key] = "same"
                continue
            elif (kept.record.created, kept.cell.rank) != (item.created, changed):
                done[key] = "kept"
                continue
            else:
                done[key], rank = "changed", max(now, changed + 1)
                item = item._replace(fences=kept.record.fences)
            swaps.append((key, None if kept is None else kept.token, self._cell(item, rank)))
        replies = (yield from self._cells.swap_each_raw(swaps)) if swaps else []
        for (key, _, _), reply in zip(swaps, replies, strict=True):
            if not reply.done:
                done[key] = "kept"
        return list(done.values())


def _content(item: StoredItem) -> str:
    """Return an item without times and fences as JSON, where 1 and 1.0 differ."""
    return json.dumps(item._replace(created=0, fences=()), sort_keys=True)
