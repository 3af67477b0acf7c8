"""Search of items by meaning, exact over the vectors in bodies of cells.

A search lists the keys and tokens below a namespace, reads the vectors that this process has not cached, and reads the
items with the highest scores. Every change gives an item a new token, so cached vectors are never out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from sys import maxsize
from typing import Any

from langgraph.store.base import IndexConfig, get_text_at_path

from langgraph_keel.embedding import Embedder, VectorCache, Vectors, digest_of, pack_rows, unit_rows, unpack_rows
from langgraph_keel.engine.cells import Cell, Search
from langgraph_keel.engine.entries import marks_of
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells, Kept
from langgraph_keel.errors import CorruptStore, InvalidInput
from langgraph_keel.store.filters import fits
from langgraph_keel.store.items import Items, Seen, Write
from langgraph_keel.store.records import INDEX, StoredIndex, StoredItem, below, prefix_of

LISTED = 100_000
"""Maximum number of keys and tokens that are read in one trip."""
LOT = 500
"""Maximum number of cells whose vectors are read in one trip."""
MEMORY = 256 << 20
"""Default limit of cached vectors per process, in bytes."""


class KeelIndex(IndexConfig, total=False):
    """LangGraph's `IndexConfig` with Keel's additional keys.

    Attributes:
        model: The name of the model, which the store records. Default: the `model` of `embed`, or the name of its
            class or function.
        memory: Maximum bytes of vectors that a process caches; 256 MB by default.
    """

    model: str
    memory: int


class Index:
    """The `index=` of a store, with the embedder and the cache of this process."""

    def __init__(self, config: Any) -> None:
        known = KeelIndex.__annotations__
        if not isinstance(config, Mapping) or (unknown := [name for name in config if name not in known]):
            what = f"it has {unknown[0]!r:.60}" if isinstance(config, Mapping) else f"it is a {type(config).__name__}"
            raise InvalidInput(f"index= must be a dict with {', '.join(known)}, but {what}")
        dims: Any = config.get("dims")
        memory, fields = config.get("memory", MEMORY), config.get("fields") or ["$"]
        if not all(type(each) is int and each > 0 for each in (dims, memory)):
            raise InvalidInput(f"index=: dims={dims!r:.60}, memory={memory!r:.60}: use whole numbers greater than 0")
        if not (isinstance(fields, list | tuple) and all(isinstance(field, str) for field in fields)):
            raise InvalidInput(f"index=: fields={fields!r:.200} is not a list of paths")
        self.embedder = Embedder(config.get("embed"), dims)
        model = config.get("model") or self.embedder.model
        if not isinstance(model, str):
            raise InvalidInput(f"index=: model={model!r:.60} is not a name")
        self.said = StoredIndex(dims, model, (*fields,))
        self.cache = VectorCache(dims, memory)
        self.is_known = False

    @property
    def tag(self) -> bytes:
        """The tag of all vectors of the same model, whatever their fields."""
        return digest_of(f"{self.said.dims}:{self.said.model}")

    def items(self, session: Session, seen: OrderedDict[str, Seen]) -> Items:
        """Return the items of a store with this index."""
        return _IndexedItems(session, seen, self)

    def texts_of(self, write: Write) -> dict[str, str]:
        """Return the texts of an item to embed, by path."""
        paths = self.said.fields if write.fields is None else write.fields or ()
        found = {path: get_text_at_path(write.value, path) for path in paths if write.value is not None}
        return {
            path if len(texts) == 1 else f"{path}.{n}": text
            for path, texts in found.items()
            for n, text in enumerate(texts)
        }

    def read(self, session: Session, key: str, cell: Cell) -> tuple[Sequence[bytes], Vectors]:
        """Return the hashes of an item's texts, and their vectors."""
        try:
            tag, texts, numbers = session.codec.decode(cell.body) if cell.body else (self.tag, (), b"")
            digests, is_ours = [digest for _, digest in texts], tag == self.tag
            vectors = unpack_rows(numbers, len(texts), self.said.dims if is_ours else -1)
        except (CorruptStore, TypeError, ValueError) as error:
            raise CorruptStore(f"the vectors of an item of the store ({key}) do not decode: {error}") from error
        if not is_ours:
            raise InvalidInput(f"an item of the store ({key}) was embedded with another model: put it again")
        return digests, vectors


class _IndexedItems(Items):
    """The items of a store with `index=`."""

    def __init__(self, session: Session, seen: OrderedDict[str, Seen], index: Index) -> None:
        super().__init__(session, seen)
        self._index = index

    def _check(self, is_write: bool = False) -> Plan[None]:
        """Refuse an index that differs from the stored one.

        One trip until it is known; a write records it.
        """
        index = self._index
        if index.is_known:
            return
        cells = Cells(self._session, INDEX, None)
        held = (yield from cells.swap("index", None, index.said))[1] if is_write else (yield from cells.find("index"))
        if held is not None and held.record != index.said:
            raise InvalidInput(
                f"the items of this store were embedded with {held.record}, but index= has {index.said}: use the "
                "index of the items (with `model`, if its model has another name), or another store"
            )
        index.is_known = held is not None

    def add_vectors(self, writes: Mapping[str, Write]) -> Plan[Mapping[str, Write]]:
        """Return writes with the vectors of their texts, which are embedded in one call.

        No trip; one if a text is not cached and its item was read before, and two for the first write of a process.
        """
        index, session = self._index, self._session
        texts = {key: found for key, write in writes.items() if (found := index.texts_of(write))}
        bodies: dict[str, bytes] = {}
        if any(write.value is not None and write.fields is not False for write in writes.values()):
            yield from self._check()
        if texts:
            digests = {text: digest_of(text) for found in texts.values() for text in found.values()}
            unknown = {digest for digest in digests.values() if not index.embedder.knows(digest)}
            # The current version may have a vector of the same text: a trip is cheaper than an embedding.
            read = [key for key in texts if unknown and key in self._seen]
            for key, cell in (yield from self._cells.read_raw(read)).items() if read else ():
                with suppress(CorruptStore, InvalidInput):
                    for digest, vector in zip(*index.read(session, key, cell), strict=True):
                        if digest in unknown:
                            index.embedder.remember(digest, vector)
            vectors = yield from index.embedder.embed(digests)
            yield from self._check(is_write=True)
            for key, found in texts.items():
                numbers = pack_rows([vectors[text] for text in found.values()])
                named = [[path, digests[text]] for path, text in found.items()]
                bodies[key] = session.codec.encode([index.tag, named, numbers])
        return {key: write._replace(body=bodies.get(key, b"")) for key, write in writes.items()}

    # -- searching -----------------------------------------------------------------------------------------------

    def find(
        self, namespace: tuple[str, ...], wanted: Mapping[str, Any], query: str | None, limit: int, offset: int
    ) -> Plan[list[tuple[str, Kept[StoredItem], float | None]]]:
        """Return matching items below a namespace, closest to the query first.

        The closest vector of an item counts. Items without vectors come last, most recently changed first. Two trips,
        and one per 500 items whose vectors this process has not cached. With a filter, all matches are read.
        """
        if not query or not limit:
            return (yield from super().find(namespace, wanted, None, limit, offset))
        index = self._index
        yield from self._check()
        (vector,) = (yield from index.embedder.embed([query], is_query=True)).values()
        unit = unit_rows(vector[None])[0]
        kept = dict((yield from self.search(namespace, wanted, maxsize, 0))) if wanted else {}
        listed = {key: item.token for key, item in kept.items()} if wanted else (yield from self._list(namespace))
        apart: dict[str, tuple[str, float]] = {}

        def read(keys: Sequence[str]) -> Plan[dict[str, Kept[StoredItem]]]:
            """Read items again and score them; remove those that no longer match."""
            found = dict(self.decode((yield from self._cells.read_raw(keys)).items()))
            new: dict[str, tuple[str, Vectors]] = {}
            for key in keys:
                item = found.get(key)
                is_below = item is not None and item.record.namespace[: len(namespace)] == namespace
                if item is None or not (is_below and fits(item.record.value, wanted) and self._see(key, item)):
                    del listed[key]
                    continue
                rows = unit_rows(index.read(self._session, key, item.cell)[1])
                listed[key] = item.token
                apart[key] = item.token, float((rows @ unit).max(initial=-inf))
                new[key] = item.token, rows
            index.cache.add(new, listed)
            return found

        while True:
            missing, best = yield Call(partial(index.cache.rank, listed, apart, unit, offset + limit))
            for start in range(0, len(missing), LOT):
                yield from read(missing[start : start + LOT])
            shown = [(key, score) for key, score in best[offset:]]
            unread = {key: listed[key] for key, _ in shown if key not in kept or kept[key].token != listed[key]}
            kept |= (yield from read([*unread])) if unread else {}
            if not missing and unread.items() <= listed.items():
                return [(key, kept[key], None if score == -inf else score) for key, score in shown]

    def _list(self, namespace: tuple[str, ...]) -> Plan[dict[str, str]]:
        """Return tokens of items by key, most recently changed first.

        One trip per 100,000.
        """
        listed: dict[str, str] = {}
        search = Search(prefix_of(namespace), marks_of(below(namespace)), limit=LISTED, is_bare=True)
        now = self._session.milliseconds
        while True:
            page = yield from self._cells.search_raw(search)
            listed |= {key: cell.token for key, cell in page if cell.expires_at is None or cell.is_live(now)}
            if len(page) < LISTED:
                return listed
            search = replace(search, after=(page[-1][1].rank or 0, page[-1][0]))
