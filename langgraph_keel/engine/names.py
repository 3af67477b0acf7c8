"""Translation of names in records: threads, tasks, namespaces, channels, keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from langgraph_keel.engine.cells import Cell, Search, Shelf, Swap, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.records import (
    Batch,
    Entry,
    Found,
    Graph,
    Listed,
    NewEntry,
    Page,
    Query,
    Replacement,
    Stored,
    Unchanged,
    Writes,
)
from langgraph_keel.errors import CorruptStore

T = TypeVar("T")
_log = logging.getLogger(__name__)


def _same(name: str) -> str:
    return name


def _same_key(_: Shelf, key: str) -> str:
    return key


class NameMap:
    """Translates names in one direction; each method handles one class of record.

    The constructor takes a function for each kind of name. Names without a function do not change. `namespace` and
    `path` are not called for empty names (such as the root namespace); `key` may be called with a prefix of a key.
    """

    __slots__ = ("_by_channel", "_key", "_task", "_token", "channel", "namespace", "path", "thread")

    def __init__(
        self,
        *,
        thread: Callable[[str], str] = _same,
        namespace: Callable[[str], str] = _same,
        channel: Callable[[str], str] | None = None,
        task: Callable[[str], str] | None = None,
        path: Callable[[str], str] = _same,
        key: Callable[[Shelf, str], str] = _same_key,
        token: Callable[[Shelf, str], str] = _same_key,
    ) -> None:
        self.thread, self.namespace, self.path = thread, namespace, path
        self.channel, self._by_channel = channel or _same, channel is not None
        self._task, self._key, self._token = task, key, token

    # -- names alone -------------------------------------------------------------------------------------------

    def thread_of(self, thread_id: str, _: Any = None) -> str:
        return self.thread(thread_id)

    def threads(self, names: Iterable[str], _: Any = None) -> list[str]:
        return [self.thread(name) for name in names]

    def channels(self, by_channel: Mapping[str, T]) -> Mapping[str, T]:
        return {self.channel(name): value for name, value in by_channel.items()} if self._by_channel else by_channel

    def channel_set(self, channels: Collection[str], _: Any = None) -> Collection[str]:
        return {self.channel(name) for name in channels} if self._by_channel else channels

    def ghosts(self, ghosts: Mapping[Any, Collection[str]], _: Any = None) -> Mapping[Any, Collection[str]]:
        return {stamp: self.channel_set(channels) for stamp, channels in ghosts.items()}

    def places(self, by_place: Mapping[tuple[str, str], T], _: Any = None) -> Mapping[tuple[str, str], T]:
        if not self._by_channel:
            return by_place
        return {(ns and self.namespace(ns), self.channel(name)): value for (ns, name), value in by_place.items()}

    # -- checkpoints -------------------------------------------------------------------------------------------

    def address(self, address: Address, _: Any = None) -> Address:
        ns = address.checkpoint_ns
        if not ns and self.thread is _same:
            return address
        return Address(self.thread(address.thread_id), ns and self.namespace(ns), address.checkpoint_id)

    def entry(self, entry: Any, _: Any = None) -> Any:
        """Translate an `Entry` or a `Node`."""
        return replace(entry, address=self.address(entry.address), refs=self.channels(entry.refs))

    def entries(self, entries: Iterable[Entry], _: Any = None) -> list[Entry]:
        return [self.entry(entry) for entry in entries]

    def new(self, new: NewEntry, _: Any = None) -> NewEntry:
        address = self.address(new.address)
        if not self._by_channel:
            return replace(new, address=address)
        turn = self.channels
        appends, repacks, known = turn(new.appends), turn(new.repacks), turn(new.known)
        return replace(new, address=address, refs=turn(new.refs), appends=appends, repacks=repacks, known=known)

    def outcome(self, outcome: Any, _: Any = None) -> Any:
        return Stored(outcome.stamp, self.channels(outcome.first)) if type(outcome) is Stored else outcome

    def batch(self, batch: Batch, _: Any = None) -> Batch:
        if self._task is None:
            return batch
        return replace(
            batch, task_id=self._task(batch.task_id), task_path=batch.task_path and self.path(batch.task_path)
        )

    def batches(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        return batches if self._task is None else [self.batch(batch) for batch in batches]

    def found(self, found: Found | Unchanged, _: Any = None) -> Found | Unchanged:
        if isinstance(found, Unchanged):
            return replace(found, batches=self.batches(found.batches)) if found.batches else found
        return Found(self.entry(found.entry), self.channels(found.rows), self.batches(found.batches))

    def founds(self, found: Iterable[Found], _: Any = None) -> list[Any]:
        return [self.found(each) for each in found]

    def graph(self, graph: Graph, _: Any = None) -> Graph:
        return Graph([self.entry(node) for node in graph.nodes], self.places(graph.ends), graph.epoch)

    def query(self, query: Query, _: Any = None) -> Query:
        thread_id, ns, after = query.thread_id, query.checkpoint_ns, query.after
        return replace(
            query,
            thread_id=None if thread_id is None else self.thread(thread_id),
            checkpoint_ns=ns and self.namespace(ns),
            after=after and self.entry(after),
        )

    def written(self, writes: Writes, _: Any = None) -> Writes:
        return replace(writes, address=self.address(writes.address), batch=self.batch(writes.batch))

    def writes(self, page: Iterable[Writes], _: Any = None) -> list[Writes]:
        return [self.written(each) for each in page]

    def replacement(self, new: Replacement, _: Any = None) -> Replacement:
        return replace(new, rows=self.places(new.rows), writes=self.writes(new.writes))

    # -- lists of threads --------------------------------------------------------------------------------------

    def page(self, page: Page, _: Any = None) -> Page:
        return page if page.after is None else replace(page, after=(page.after[0], self.thread(page.after[1])))

    def listed(self, listed: Iterable[Listed], page: Page) -> list[Listed]:
        """Translate a list of threads.

        With a tolerant page, log threads whose names cannot be translated, and list them without their head.
        """
        threads: list[Listed] = []
        for info, head in listed:
            try:
                turned = head and self.entry(head)
            except CorruptStore as error:
                if not page.tolerant:
                    raise
                _log.warning("thread %r: %s", info.thread_id, error)
                turned = None
            if self.thread is not _same:
                info = replace(info, thread_id=self.thread(info.thread_id))
            threads.append((info, turned))
        return threads

    # -- cells -------------------------------------------------------------------------------------------------

    def shelf(self, shelf: Shelf, _: Any = None) -> Shelf:
        if shelf.thread_id is None or (name := self.thread(shelf.thread_id)) == shelf.thread_id:
            return shelf
        return Shelf(name, shelf.kind)

    def key_of(self, key: str, shelf: Shelf) -> str:
        return self._key(shelf, key)

    def token_of(self, token: str, shelf: Shelf) -> str:
        return self._token(shelf, token)

    def keys(self, keys: Iterable[str], shelf: Shelf) -> list[str]:
        return [self._key(shelf, key) for key in keys]

    def tokens(self, tokens: Mapping[str, str], shelf: Shelf) -> dict[str, str]:
        return {self._key(shelf, key): self._token(shelf, token) for key, token in tokens.items()}

    def cell(self, cell: Cell, shelf: Shelf) -> Cell:
        token, origin = self._token(shelf, cell.token), cell.origin and self.thread(cell.origin)
        is_same = token == cell.token and origin == cell.origin
        return cell if is_same else replace(cell, token=token, origin=origin)

    def swapped(self, swapped: Swapped, shelf: Shelf) -> Swapped:
        return swapped if swapped.cell is None else Swapped(swapped.done, self.cell(swapped.cell, shelf))

    def swaps(self, swaps: Iterable[Swap], shelf: Shelf) -> list[Swap]:
        return [
            (self._key(shelf, key), expected and self._token(shelf, expected), new and self.cell(new, shelf))
            for key, expected, new in swaps
        ]

    def all_swapped(self, replies: Iterable[Swapped], shelf: Shelf) -> list[Swapped]:
        return [self.swapped(reply, shelf) for reply in replies]

    def search(self, search: Search, shelf: Shelf) -> Search:
        after = search.after and (search.after[0], self._key(shelf, search.after[1]))
        return replace(search, prefix=self._key(shelf, search.prefix), after=after)

    def cells(self, cells: Mapping[str, Cell], shelf: Shelf) -> dict[str, Cell]:
        return dict(self.cell_page(cells.items(), shelf))

    def cell_page(self, page: Iterable[tuple[str, Cell]], shelf: Shelf) -> list[tuple[str, Cell]]:
        return [(self._key(shelf, key), self.cell(cell, shelf)) for key, cell in page]
