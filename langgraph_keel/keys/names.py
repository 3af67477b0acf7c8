"""A store that hides names: of channels, of namespaces, of tasks and of their paths, which name nodes.

It stands below the one that seals (`store`), which binds records to names as they are, and above a backend, which knows
hidden ones only. A name becomes a token, the same one everywhere in a store (AES-SIV, RFC 5297), which the key of names
opens again: so what is asked for by a name is found, and nothing needs a list of names. Sizes are padded. The root's
namespace is empty, and stays so: a backend has to know the root.

Keys and tokens of cells that are a hash of a label, of an owner or of a node, made without a key, could be guessed.
They are permuted, so that they are hashes with one: of the same length, and with the same beginning where they had it.
"""

from __future__ import annotations

import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, TypeVar

from langgraph_keel.engine.cells import Cell, Shelf, Swapped
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import (
    Batch,
    CopyOutcome,
    Entry,
    Found,
    Graph,
    Listed,
    NewEntry,
    Node,
    Outcome,
    Query,
    Replacement,
    Run,
    Stamp,
    Stored,
    Unchanged,
    Writes,
)
from langgraph_keel.engine.store import OuterStore, Store
from langgraph_keel.errors import SealBroken

T = TypeVar("T")
_log = logging.getLogger(__name__)
_STEP = 16
"""Names are padded to multiples of so many bytes."""
_MOST = 20_000
"""Names that are remembered with their tokens."""
_HASHED = frozenset({"cache", "labels", "owners"})
"""The kinds of cells whose keys, or tokens, are hashes of names, made without a key."""
_HASH = re.compile(r"[0-9a-f]{32}")


class Names:
    """Hides names, and opens them.

    Args:
        secret: The key, 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        self.secret = secret
        self._cipher = AESSIV(blake2b(secret, digest_size=64, person=b"keel names").digest())
        # One block at a time, and each is a part of a hash: no two are alike but where the hashes are.
        self._blocks = Cipher(AES256(blake2b(secret, digest_size=32, person=b"keel keys").digest()), ECB())
        self._tokens: dict[tuple[bytes, str], str] = {}
        self._names: dict[tuple[bytes, str], str] = {}

    def hide(self, name: str, what: bytes) -> str:
        """Return what stands for a name.

        Args:
            name: The name.
            what: What it names: a channel and a namespace of one name have other tokens.
        """
        if type(name) is not str:
            return name  # what stands in a store for a name that it does not know any more
        if (token := self._tokens.get((what, name))) is None:
            data = name.encode(errors="surrogatepass") + b"\x80"
            data += bytes(-len(data) % _STEP)
            token = urlsafe_b64encode(self._cipher.encrypt(data, [what])).rstrip(b"=").decode()
            self._learn(name, token, what)
        return token

    def open(self, token: str, what: bytes) -> str:
        """Return the name that a token stands for.

        Raises:
            SealBroken: It stands for none.
        """
        from cryptography.exceptions import InvalidTag

        if type(token) is not str:
            return token
        if (name := self._names.get((what, token))) is None:
            try:
                sealed = urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
                name = self._cipher.decrypt(sealed, [what]).rstrip(b"\0")[:-1].decode(errors="surrogatepass")
            except (InvalidTag, NoBase64, ValueError):
                raise SealBroken(
                    f"{token!r:.80} stands for the name of no {what.decode()}: it was changed, or put there from "
                    "elsewhere"
                ) from None
            self._learn(name, token, what)
        return name

    def _learn(self, name: str, token: str, what: bytes) -> None:
        if len(self._tokens) >= _MOST:
            self._tokens.clear()
            self._names.clear()
        self._tokens[what, name], self._names[what, token] = token, name

    def hide_key(self, key: str) -> str:
        """Return what stands for a key of a cell: each hash in it, or half of one, is another one."""
        return _HASH.sub(lambda found: self._blocks.encryptor().update(bytes.fromhex(found[0])).hex(), key)

    def open_key(self, key: str) -> str:
        """Return what `hide_key` was given."""
        return _HASH.sub(lambda found: self._blocks.decryptor().update(bytes.fromhex(found[0])).hex(), key)


class _Veil:
    """Turns records with names into those with tokens, and back: which of both is `turn`."""

    __slots__ = ("_turn", "_turn_key")

    def __init__(self, turn: Callable[[str, bytes], str], turn_key: Callable[[str], str]) -> None:
        self._turn = turn
        self._turn_key = turn_key

    def channel(self, name: str) -> str:
        return self._turn(name, b"channel")

    def channels(self, by_channel: Mapping[str, T]) -> dict[str, T]:
        return {self._turn(name, b"channel"): value for name, value in by_channel.items()}

    def namespace(self, name: str) -> str:
        return self._turn(name, b"namespace") if name else ""

    def places(self, by_place: Mapping[tuple[str, str], T]) -> dict[tuple[str, str], T]:
        return {(self.namespace(ns), self.channel(name)): value for (ns, name), value in by_place.items()}

    def address(self, address: Address) -> Address:
        if not address.checkpoint_ns:
            return address
        return Address(address.thread_id, self.namespace(address.checkpoint_ns), address.checkpoint_id)

    def entry(self, entry: Entry) -> Entry:
        return replace(entry, address=self.address(entry.address), refs=self.channels(entry.refs))

    def node(self, node: Node) -> Node:
        return replace(node, address=self.address(node.address), refs=self.channels(node.refs))

    def graph(self, graph: Graph) -> Graph:
        return Graph([self.node(node) for node in graph.nodes], self.places(graph.ends), graph.epoch)

    def batch(self, batch: Batch) -> Batch:
        path = self._turn(batch.task_path, b"task path") if batch.task_path else ""
        return replace(batch, task_id=self._turn(batch.task_id, b"task"), task_path=path)

    def writes(self, writes: Writes) -> Writes:
        return replace(writes, address=self.address(writes.address), batch=self.batch(writes.batch))

    def checkpoint(self, found: Found) -> Found:
        return Found(self.entry(found.entry), self.channels(found.rows), [*map(self.batch, found.batches)])

    def key(self, shelf: Shelf, key: str) -> str:
        """Turn the key of a cell, or its token, which may be a part of one."""
        return self._turn_key(key) if shelf.kind in _HASHED else key

    def cell(self, shelf: Shelf, cell: Cell | None) -> Cell | None:
        return cell and replace(cell, token=self.key(shelf, cell.token)) if shelf.kind in _HASHED else cell

    def cells(self, shelf: Shelf, cells: Iterable[tuple[str, Cell]]) -> list[tuple[str, Cell]]:
        if shelf.kind not in _HASHED:
            return [*cells]
        return [(self._turn_key(key), replace(cell, token=self._turn_key(cell.token))) for key, cell in cells]


class NamelessStore(OuterStore):
    """Hides names from another store. What it hands on names no channel, namespace or task.

    Args:
        store: That store.
        names: Returns what hides them, by a plan that is told whether something is about to be written; `None` if the
            store hides none.
    """

    def __init__(self, store: Store[Any, Any], names: Callable[[bool], Plan[Names | None]]) -> None:
        super().__init__(store)
        self._find_names = names

    def _veils(self, *, to_write: bool = False) -> Plan[tuple[_Veil, _Veil]]:
        """Return what hides, and what opens. No trip, but for the first time."""
        names = yield from self._find_names(to_write)
        if names is None:
            return _AS_IT_IS, _AS_IT_IS
        return _Veil(names.hide, names.hide_key), _Veil(names.open, names.open_key)

    # -- checkpoints -------------------------------------------------------------------------------------------

    def write_entry(self, new: NewEntry) -> Plan[Outcome]:
        """See `Store.write_entry`."""
        hide, show = yield from self._veils(to_write=True)
        hidden = replace(
            new,
            address=hide.address(new.address),
            refs=hide.channels(new.refs),
            appends=hide.channels(new.appends),
            repacks=hide.channels(new.repacks),
            known=hide.channels(new.known),
        )
        outcome: Outcome = yield from self.inner.write_entry(hidden)
        return Stored(outcome.stamp, show.channels(outcome.first)) if isinstance(outcome, Stored) else outcome

    def write_batch(self, address: Address, batch: Batch) -> Plan[None]:
        """See `Store.write_batch`."""
        hide, _ = yield from self._veils(to_write=True)
        yield from self.inner.write_batch(hide.address(address), hide.batch(batch))

    def read_entry(self, address: Address) -> Plan[Found | None]:
        """See `Store.read_entry`."""
        hide, show = yield from self._veils()
        found: Found | None = yield from self.inner.read_entry(hide.address(address))
        return found and show.checkpoint(found)

    def read_known(self, address: Address, known: Stamp) -> Plan[Found | Unchanged | None]:
        """See `Store.read_known`."""
        hide, show = yield from self._veils()
        found: Found | Unchanged | None = yield from self.inner.read_known(hide.address(address), known)
        if isinstance(found, Unchanged):
            return replace(found, batches=[*map(show.batch, found.batches)])
        return found and show.checkpoint(found)

    def scan(self, query: Query) -> Plan[Sequence[Entry]]:
        """See `Store.scan`."""
        hide, show = yield from self._veils()
        ns, after = query.checkpoint_ns, query.after
        hidden = replace(query, checkpoint_ns=ns and hide.namespace(ns), after=after and hide.entry(after))
        entries: Sequence[Entry] = yield from self.inner.scan(hidden)
        return [show.entry(entry) for entry in entries]

    def read_values(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_values`."""
        return self._read_values(self.inner.read_values, entries)

    def read_stored(self, entries: Sequence[Entry]) -> Plan[Sequence[Found]]:
        """See `Store.read_stored`."""
        return self._read_values(self.inner.read_stored, entries)

    def _read_values(
        self, read: Callable[[Sequence[Entry]], Plan[Sequence[Found]]], entries: Sequence[Entry]
    ) -> Plan[Sequence[Found]]:
        hide, show = yield from self._veils()
        found = yield from read([hide.entry(entry) for entry in entries])
        return [show.checkpoint(each) for each in found]

    def read_history(self, address: Address, channels: Collection[str]) -> Plan[Sequence[Found]]:
        """See `Store.read_history`."""
        hide, show = yield from self._veils()
        hidden = {*map(hide.channel, channels)}
        found: Sequence[Found] = yield from self.inner.read_history(hide.address(address), hidden)
        return [show.checkpoint(each) for each in found]

    def read_graph(self, thread_id: str) -> Plan[Graph]:
        """See `Store.read_graph`."""
        _, show = yield from self._veils()
        return show.graph((yield from self.inner.read_graph(thread_id)))

    # -- threads -----------------------------------------------------------------------------------------------

    def remove_entries(
        self, thread_id: str, gone: Collection[Stamp], ghosts: Mapping[Stamp, Collection[str]]
    ) -> Plan[None]:
        """See `Store.remove_entries`."""
        hide, _ = yield from self._veils()
        hidden = {stamp: {*map(hide.channel, channels)} for stamp, channels in ghosts.items()}
        yield from self.inner.remove_entries(thread_id, gone, hidden)

    def remove_rows(self, thread_id: str, live: Mapping[tuple[str, str], Sequence[Run]], graph: Graph) -> Plan[int]:
        """See `Store.remove_rows`."""
        hide, _ = yield from self._veils()
        removed: int = yield from self.inner.remove_rows(thread_id, hide.places(live), hide.graph(graph))
        return removed

    def copy_thread(self, source: str, target: str, upto: Entry | None = None) -> Plan[CopyOutcome]:
        """See `Store.copy_thread`."""
        hide, _ = yield from self._veils()
        outcome: CopyOutcome = yield from self.inner.copy_thread(source, target, upto and hide.entry(upto))
        return outcome

    def read_threads(
        self, after: tuple[str, str] | None, limit: int, terms: Sequence[str] = ()
    ) -> Plan[Sequence[Listed]]:
        """See `Store.read_threads`."""
        _, show = yield from self._veils()
        page: Sequence[Listed] = yield from self.inner.read_threads(after, limit, terms)
        return [(info, head and show.entry(head)) for info, head in page]

    def show_threads(
        self, after: tuple[str, str] | None, limit: int, terms: Sequence[str] = (), oldest_first: bool = False
    ) -> Plan[Sequence[Listed]]:
        """See `Store.show_threads`. A thread whose names do not open is listed without its head, and logged."""
        _, show = yield from self._veils()
        page: Sequence[Listed] = yield from self.inner.show_threads(after, limit, terms, oldest_first)
        shown: list[Listed] = []
        for info, head in page:
            try:
                shown.append((info, head and show.entry(head)))
            except SealBroken as error:
                _log.warning("thread %r: %s", info.thread_id, error)
                shown.append((info, None))
        return shown

    def list_writes(self, thread_id: str, after: Writes | None, limit: int) -> Plan[Sequence[Writes]]:
        """See `Store.list_writes`."""
        hide, show = yield from self._veils()
        page: Sequence[Writes] = yield from self.inner.list_writes(thread_id, after and hide.writes(after), limit)
        return [show.writes(each) for each in page]

    def find_unproved(self, new: NewEntry) -> Collection[str]:
        """See `Store.find_unproved`: what proves stands above."""
        return ()

    def replace_plain(self, thread_id: str, new: Replacement) -> Plan[None]:
        """See `Store.replace_plain`."""
        hide, _ = yield from self._veils()
        writes = [hide.writes(each) for each in new.writes]
        yield from self.inner.replace_plain(thread_id, replace(new, rows=hide.places(new.rows), writes=writes))

    # -- cells -------------------------------------------------------------------------------------------------

    def swap_cell(self, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> Plan[Swapped]:
        """See `Store.swap_cell`."""
        hide, show = yield from self._veils(to_write=new is not None)
        expected = expected and hide.key(shelf, expected)
        swapped: Swapped
        swapped = yield from self.inner.swap_cell(shelf, hide.key(shelf, key), expected, hide.cell(shelf, new))
        return Swapped(swapped.done, show.cell(shelf, swapped.cell))

    def read_cells(self, shelf: Shelf, keys: Collection[str]) -> Plan[Mapping[str, Cell]]:
        """See `Store.read_cells`."""
        hide, show = yield from self._veils()
        cells: Mapping[str, Cell] = yield from self.inner.read_cells(shelf, [hide.key(shelf, key) for key in keys])
        return dict(show.cells(shelf, cells.items()))

    def list_cells(self, shelf: Shelf, prefix: str, after: str | None, limit: int) -> Plan[Sequence[tuple[str, Cell]]]:
        """See `Store.list_cells`. In the order of the keys as they are stored."""
        hide, show = yield from self._veils()
        place = after and hide.key(shelf, after)
        page: Sequence[tuple[str, Cell]]
        page = yield from self.inner.list_cells(shelf, hide.key(shelf, prefix), place, limit)
        return show.cells(shelf, page)

    def remove_cells(self, shelf: Shelf, tokens: Mapping[str, str]) -> Plan[int]:
        """See `Store.remove_cells`."""
        hide, _ = yield from self._veils()
        hidden = {hide.key(shelf, key): hide.key(shelf, token) for key, token in tokens.items()}
        removed: int = yield from self.inner.remove_cells(shelf, hidden)
        return removed


_AS_IT_IS = _Veil(lambda name, _: name, lambda key: key)
