"""A store that hides names: of channels, of namespaces, of tasks and of their paths, which name nodes.

Below the store that seals, a name becomes a token: AES-SIV (RFC 5297) of the padded name, the same everywhere in a
store, in URL-safe base64. The root's namespace stays empty. Keys and tokens of cells that are hashes of a label, an
owner or a node, made without a key, could be guessed: each half of such a hash is encrypted.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

from langgraph_keel.engine.cells import Shelf
from langgraph_keel.engine.layers import Renaming
from langgraph_keel.engine.names import NameMap
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.verbs import Turn
from langgraph_keel.errors import SealBroken

_STEP = 16
"""Names are padded to multiples of so many bytes."""
_MOST = 20_000
"""Names that are remembered with their tokens."""
_HASHED = frozenset({"cache", "items", "labels", "locks", "owners"})
"""The kinds of cells whose keys, or tokens, are hashes of names, made without a key."""
_HASH = re.compile(r"[0-9a-f]{32}")
_IDLE: frozenset[Turn] = frozenset({NameMap.thread_of, NameMap.threads})
"""Threads have the same names below."""


class Names:
    """Hides names, and opens them."""

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
        self.maps = _map_of(self.hide, self.hide_key), _map_of(self.open, self.open_key)

    def hide(self, what: bytes, name: str) -> str:
        """Return what stands for a name."""
        if type(name) is not str:
            return name  # what stands in a store for a name that it does not know any more
        if (token := self._tokens.get((what, name))) is None:
            data = name.encode(errors="surrogatepass") + b"\x80"
            data += bytes(-len(data) % _STEP)
            token = urlsafe_b64encode(self._cipher.encrypt(data, [what])).rstrip(b"=").decode()
            self._learn(name, token, what)
        return token

    def open(self, what: bytes, token: str) -> str:
        """Return the name that a token stands for."""
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


class NamelessStore(Renaming):
    """Hides the names of channels, namespaces and tasks from the store below; `names` returns them, or `None`."""

    def __init__(self, store: Store[Any, Any], names: Callable[[bool], Plan[Names | None]]) -> None:
        def find_maps(to_write: bool) -> Plan[tuple[NameMap, NameMap] | None]:
            found = yield from names(to_write)  # a round trip only at the first call
            return None if found is None else found.maps

        super().__init__(store, find_maps, _IDLE)


def _map_of(turn: Callable[[bytes, str], str], turn_key: Callable[[str], str]) -> NameMap:
    def turn_cell(shelf: Shelf, key: str) -> str:
        return turn_key(key) if shelf.kind in _HASHED else key

    return NameMap(
        namespace=partial(turn, b"namespace"),
        channel=partial(turn, b"channel"),
        task=partial(turn, b"task"),
        path=partial(turn, b"task path"),
        key=turn_cell,
        token=turn_cell,
    )
