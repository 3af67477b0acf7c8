"""The serializer as the encoding needs it: items, and fingerprints that prove a value unchanged.

Keel's own serializer packs items directly. Any other (`serde=`) is used as it is, one call an element, and its bytes
are kept in items tagged as foreign; what an item was written with is in the item, so both may stand in one log.

Allowlists of types, handed through the layers of a serializer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from os import urandom
from typing import Any

import xxhash
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_keel.engine.encoding.bodies import (
    HUGE_ROW,
    MAX_BYTES,
    MOST_MEMORY,
    array_header,
    body_of,
    takes_more,
    unframe,
)
from langgraph_keel.engine.serde.policy import Note
from langgraph_keel.engine.serde.serializer import KeelSerializer, encode, pack_unchecked, too_large
from langgraph_keel.errors import CorruptStore, KeelError, UnstorableValue

_OWN = KeelSerializer()
# Secret and never stored: whoever writes messages cannot prepare two that collide in this process.
_SEED = int.from_bytes(urandom(8), "big")


def digest(data: bytes | memoryview) -> int:
    """Return a 128-bit hash of `data`, comparable within this process only."""
    return xxhash.xxh3_128_intdigest(data, seed=_SEED)


def short_digest(data: bytes) -> int:
    """Return a 64-bit hash of `data`, comparable within this process only."""
    return xxhash.xxh3_64_intdigest(data, seed=_SEED)


def prove(value: Any) -> int:
    """Return a digest of all of a value; 0 if it cannot be packed in one go."""
    packed = pack_unchecked(value)
    return 0 if packed is None else digest(packed)


class Codec:
    """Items and fingerprints by one serializer.

    Attributes:
        limit: Most bytes of memory, about, that a stored value may take.
    """

    __slots__ = ("_encode", "_serde", "limit")

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._encode: Callable[[Any], bytes] = serde.pack if isinstance(serde, KeelSerializer) else encode
        self.limit = serde.max_bytes if isinstance(serde, KeelSerializer) else MAX_BYTES

    @property
    def serde(self) -> SerializerProtocol:
        """The serializer."""
        return self._serde

    def uses(self, serde: SerializerProtocol) -> bool:
        """Return whether this is the serializer."""
        return self._serde is serde

    def with_placeholders(self, note: Note | None = None) -> Codec:
        """Return a codec for who only looks: an `Unread` stands for what may not be revived, and is compared."""
        codec = Codec(with_placeholders(self._serde, note))
        codec._encode = encode
        return codec

    def pack_item(self, value: Any) -> bytes:
        """Return `value` as one item.

        Raises:
            UnstorableValue: The serializer cannot store it.
        """
        if isinstance(self._serde, KeelSerializer):
            return self._serde.pack_item(value)
        return self._pack_foreign(value)

    def pack_marked(self, value: Any, mark: bytes) -> bytes:
        """Return `value` as one item, given its fingerprint, which Keel's own serializer need not make again.

        Raises:
            UnstorableValue: The serializer cannot store it.
        """
        if isinstance(self._serde, KeelSerializer):
            return self._serde.item_of(value, mark)
        return self._pack_foreign(value)

    def _pack_foreign(self, value: Any) -> bytes:
        try:
            kind, data = self._serde.dumps_typed(value)
        except KeelError:
            raise
        except Exception as error:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            reason = f"{type(self._serde).__name__} cannot store it: {type(error).__name__}: {error}"
            raise UnstorableValue(name, reason) from error
        return array_header(3) + _OWN.pack(2) + _OWN.pack(kind) + _OWN.pack(bytes(data))

    def unpack_items(self, data: bytes) -> list[Any]:
        """Return fresh objects for the items in an unframed row body.

        Raises:
            CorruptStore: The bytes are damaged.
            RefusedType: An item names a type that may not be revived here.
        """
        if isinstance(self._serde, KeelSerializer):
            return self._serde.unpack_items(data, loads=_refuse_foreign)
        return _OWN.unpack_items(data, loads=self._serde.loads_typed)

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return a framed body of these values.

        Raises:
            UnstorableValue: One of them cannot be stored, or together they are too large.
        """
        items = [self.pack_item(value) for value in values]
        if sum(map(len, items)) * MOST_MEMORY > self.limit and takes_more(b"".join(items), self.limit):
            raise UnstorableValue(f"{len(items)} values", too_large(self.limit))
        return body_of(items)

    def decode(self, body: bytes) -> list[Any]:
        """Return what `encode` was given.

        Raises:
            CorruptStore: As `open`, and `unpack_items`.
            RefusedType: As `unpack_items`.
        """
        return self.unpack_items(self.open(body))

    def open(self, body: bytes) -> bytes:
        """Return what was framed, packed items that take no more memory than they may.

        Raises:
            CorruptStore: It is damaged, or would take more: small bodies can hold large values.
        """
        most = (
            self.limit + HUGE_ROW * MOST_MEMORY
        )  # beside one that is as large as it may be, a row may hold small items
        content = unframe(body, most)
        if takes_more(content, most):
            raise CorruptStore(f"a stored body of {len(body)} bytes is {too_large(self.limit)}")
        return content

    def plain_error(self, error: Any) -> Any:
        """Return what stands for what a task failed with: text, as LangGraph's serializer has it.

        Another serializer is given the exception itself.
        """
        return repr(error) if isinstance(self._serde, KeelSerializer) and isinstance(error, BaseException) else error

    def fingerprint(self, value: Any) -> bytes:
        """Return bytes that differ whenever anything differs that would be stored.

        A value that Keel's own walk does not know (only possible with a foreign serializer) is serialized instead;
        if that is not deterministic, such as encryption with a random nonce, it always counts as changed.
        """
        try:
            return self._encode(value)
        except UnstorableValue:
            return self.pack_item(value)

    def marks(self, values: list[Any]) -> list[bytes]:
        """Return the fingerprint of each element; joined, a prefix of elements is a prefix of bytes."""
        try:
            return list(map(self._encode, values))
        except UnstorableValue:
            return [self._mark(place, value) for place, value in enumerate(values)]

    def _mark(self, place: int, value: Any) -> bytes:
        try:
            return self.fingerprint(value)
        except UnstorableValue as error:
            raise error.under(f"[{place}]") from error


def _refuse_foreign(data: tuple[str, bytes]) -> Any:
    raise CorruptStore(
        f"a value was written by another serializer (its type tag is {data[0]!r}): open the saver with the same serde="
    )


def with_allowlist_of(serde: SerializerProtocol, extra: Collection[tuple[str, ...]]) -> SerializerProtocol:
    """Hand an allowlist through the layers of a serializer; one that has no such notion stays as it is."""
    return _change_innermost(serde, "with_msgpack_allowlist", extra)


def with_placeholders(serde: SerializerProtocol, note: Note | None = None) -> SerializerProtocol:
    """Return a serializer that reads placeholders, through its layers; one of another kind stays as it is."""
    return _change_innermost(serde, "with_placeholders", note)


def _change_innermost(serde: SerializerProtocol, name: str, argument: Any) -> SerializerProtocol:
    """Return a serializer with a method of it, or of what it wraps, applied.

    A wrapper (encryption, compression) is known by the `serde` it wraps. LangGraph's own function knows one wrapper and
    only warns for others, and the graph's own models then come back as dicts.
    """
    change = getattr(serde, name, None)
    if callable(change):
        changed: SerializerProtocol = change(argument)
        return changed
    inner = getattr(serde, "serde", None)
    if not isinstance(inner, SerializerProtocol) or (changed := _change_innermost(inner, name, argument)) is inner:
        return serde
    clone: Any = copy.copy(serde)
    clone.serde = changed
    wrapper: SerializerProtocol = clone
    return wrapper
