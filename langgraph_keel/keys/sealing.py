"""Sealing of a record with AES-256-GCM and a random nonce, bound to its place.

A sealed record is a frame of the kind `engine.encoding.bodies.SEALED`: the kind, four bytes that name the data key, a
nonce of twelve bytes, and the ciphertext with its tag. The *place* of a record is authenticated but not stored in it,
so a moved record does not open. Frames are compressed before they are sealed. Sizes are padded (`padded_size`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import ormsgpack

from langgraph_keel.engine.encoding.bodies import HEAD, SEALED
from langgraph_keel.errors import CorruptStore, InvalidInput, SealBroken

KEY_BYTES = 32
_NONCE = 12
_TAG = 16
_VERSION = "keel 1"
_END = b"\x80"
"""First byte of the padding; the others are NUL (ISO/IEC 7816-4)."""


class Sealer:
    """Seals and opens data with one key."""

    __slots__ = ("_decrypt", "_encrypt", "secret")

    def __init__(self, secret: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise InvalidInput(
                "encryption= needs the package cryptography: pip install 'cryptography>=43' (Keel's extra 'crypto')"
            ) from None
        cipher = AESGCM(secret)
        self._encrypt, self._decrypt, self.secret = cipher.encrypt, cipher.decrypt, secret

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Return the nonce, the ciphertext and its tag."""
        nonce = os.urandom(_NONCE)  # a key seals at most 2**32 records with random nonces (NIST SP 800-38D)
        return nonce + self._encrypt(nonce, data, place)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Return the data that was sealed."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) < _NONCE + _TAG:
            raise SealBroken("it was truncated")
        try:
            return self._decrypt(sealed[:_NONCE], sealed[_NONCE:], place)
        except InvalidTag:
            raise SealBroken("it was changed, or copied from another place in the database") from None

    def hide(self, mark: str) -> str:
        """Return a keyed hash of a mark by which threads are found."""
        return blake2b(mark.encode(), digest_size=4, key=self.secret, person=b"keel threads").hexdigest()


def place_of(*parts: Any) -> bytes:
    """Return the place of a record as unique bytes, as each part includes its length."""
    return ormsgpack.packb([_VERSION, *parts])


def seal_frame(frame: bytes, key_id: bytes, sealer: Sealer, place: bytes) -> bytes:
    """Return the sealed frame."""
    padded = frame + _END
    padded += b"\0" * (padded_size(len(padded)) - len(padded))
    return SEALED + key_id + sealer.seal(padded, place)


def key_in(body: bytes) -> bytes | None:
    """Return the id of a sealed record's data key; `None` if it is not sealed."""
    return body[1:HEAD] if body[:1] == SEALED and len(body) > HEAD else None


def open_sealed(body: bytes, sealer: Sealer, place: bytes) -> bytes:
    """Return the frame that was sealed."""
    padded = sealer.open(body[HEAD:], place)
    end = padded.rstrip(b"\0")
    if not end.endswith(_END):
        raise CorruptStore("the padding of a sealed record has no start marker")
    return end[:-1]


def padded_size(size: int) -> int:
    """Return the padded size (Padmé, PoPETs 2019): at most 1/8 more, from 64 bytes on."""
    if size <= 64:
        return 64
    exponent = size.bit_length() - 1
    low = exponent - exponent.bit_length()
    mask = (1 << low) - 1
    return (size + mask) & ~mask


def pack(parts: Sequence[Any]) -> bytes:
    """Return plain data as bytes."""
    return ormsgpack.packb(list(parts))


def unpack(data: bytes) -> Any:
    """Return the data that was passed to `pack`."""
    try:
        return ormsgpack.unpackb(data)
    except ValueError as error:
        raise CorruptStore(f"a record of keys cannot be decoded: {error}") from None
