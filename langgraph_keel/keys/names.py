"""A store layer that hides the names of channels, namespaces, tasks and task paths.

Below the sealing layer, a name becomes a token: AES-SIV (RFC 5297) of the padded name, in URL-safe base64, the same
everywhere in a store. The root's namespace stays empty. Some keys and tokens of cells are unkeyed hashes of a label, an
owner or a node, which could be guessed. Each half of such a hash is encrypted.
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
"""Block size, in bytes, to which names are padded."""
_MOST = 20_000
"""Maximum number of cached names and tokens."""
_HASHED = frozenset({"cache", "items", "labels", "locks", "owners"})
"""The kinds of cells whose keys or tokens are unkeyed hashes of names."""
_HASH = re.compile(r"[0-9a-f]{32}")
_IDLE: frozenset[Turn] = frozenset({NameMap.thread_of, NameMap.threads})
"""Operations that change nothing, because thread ids are not hidden."""


class Names:
    """Encrypts names to tokens, and back."""

    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        self.secret = secret
        self._cipher = AESSIV(blake2b(secret, digest_size=64, person=b"keel names").digest())
        # One block at a time, and each is part of a hash, so only equal hashes give equal blocks.
        self._blocks = Cipher(AES256(blake2b(secret, digest_size=32, person=b"keel keys").digest()), ECB())
        self._tokens: dict[tuple[bytes, str], str] = {}
        self._names: dict[tuple[bytes, str], str] = {}
        self.maps = _map_of(self.hide, self.hide_key), _map_of(self.open, self.open_key)

    def hide(self, what: bytes, name: str) -> str:
        """Return the token of a name."""
        if type(name) is not str:
            return name  # a store's placeholder for a name that it no longer knows
        if (token := self._tokens.get((what, name))) is None:
            data = name.encode(errors="surrogatepass") + b"\x80"
            data += bytes(-len(data) % _STEP)
            token = urlsafe_b64encode(self._cipher.encrypt(data, [what])).rstrip(b"=").decode()
            self._learn(name, token, what)
        return token

    def open(self, what: bytes, token: str) -> str:
        """Return the name of a token."""
        from cryptography.exceptions import InvalidTag

        if type(token) is not str:
            return token
        if (name := self._names.get((what, token))) is None:
            try:
                sealed = urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4))
                name = self._cipher.decrypt(sealed, [what]).rstrip(b"\0")[:-1].decode(errors="surrogatepass")
            except (InvalidTag, NoBase64, ValueError):
                raise SealBroken(
                    f"{token!r:.80} is not a token of a {what.decode()}: it was changed, or copied from another place "
                    "in the database"
                ) from None
            self._learn(name, token, what)
        return name

    def _learn(self, name: str, token: str, what: bytes) -> None:
        if len(self._tokens) >= _MOST:
            self._tokens.clear()
            self._names.clear()
        self._tokens[what, name], self._names[what, token] = token, name

    def hide_key(self, key: str) -> str:
        """Return a cell's key with each hash in it, or half of one, encrypted."""
        return _HASH.sub(lambda found: self._blocks.encryptor().update(bytes.fromhex(found[0])).hex(), key)

    def open_key(self, key: str) -> str:
        """Return the key that was passed to `hide_key`."""
        return _HASH.sub(lambda found: self._blocks.decryptor().update(bytes.fromhex(found[0])).hex(), key)


class NamelessStore(Renaming):
    """Hides the names of channels, namespaces and tasks from the store below.

    `names` returns the `Names` to use, or `None` if names are not hidden.
    """

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
