"""The header of an entry: all of a checkpoint that does not stand in items, and its metadata.

Keys that Keel does not know are kept: LangGraph adds some from time to time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.encoding.bodies import HEAD, RAW, array_header
from langgraph_keel.engine.records import Node, record
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.errors import CorruptStore, ValueRefused


@record
class Header:
    """A decoded header.

    Attributes:
        checkpoint: The checkpoint without `id` and `channel_values`.
        metadata: Its metadata; as read, tuples are lists in it (`as_lists`).
        inline: Small channel values.
        about: What hooks have added that is no metadata, each under keys of its own: which models led to it, whose it
            is. Empty, and then not stored, if that is nothing.
    """

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    inline: dict[str, Any]
    about: dict[str, Any] = field(default_factory=dict)


_PARTS = ("checkpoint", "metadata", "inline", "about")


class UnreadHeader(Header):
    """A header that is decoded when something of it is asked for: of a thousand, a prune needs a few.

    Args:
        node: The entry. Errors are those of `unpack_header`, and come then.
        codec: What decodes it.
    """

    __slots__ = ("_codec", "_node")
    _node: Node
    _codec: Codec

    def __init__(self, node: Node, codec: Codec) -> None:
        put = object.__setattr__  # as a frozen dataclass does it
        put(self, "_node", node)
        put(self, "_codec", codec)
        if node.header.startswith(RAW) and node.header.startswith(_THREE, HEAD):
            put(self, "about", {})

    def __getattr__(self, name: str) -> Any:
        if name not in _PARTS:
            raise AttributeError(name)
        read = unpack_header(self._node.header, self._codec, self._node.address)
        for part in _PARTS:
            object.__setattr__(self, part, getattr(read, part))
        return getattr(read, name)


_THREE = array_header(3)
"""Where a header that is not compressed has three parts, nothing stands there about models."""


def pack_header(header: Header, codec: Codec, where: Address) -> bytes:
    """Return the framed bytes of a header.

    Raises:
        UnstorableValue: The metadata holds something the serializer cannot store.
    """
    try:
        about = [header.about] if header.about else []
        return codec.encode([header.checkpoint, header.metadata, header.inline, *about])
    except ValueRefused as error:
        raise error.at(f"{where}, metadata") from error


def unpack_header(body: bytes, codec: Codec, where: Address) -> Header:
    """Return a header from its framed bytes, with fresh objects.

    Raises:
        CorruptStore: The bytes are damaged or written with another serializer.
        RefusedType: The metadata names a type that may not be revived here.
    """
    try:
        checkpoint, metadata, inline, *rest = codec.decode(body)
        about = rest[0] if rest else {}
    except ValueRefused as error:
        raise error.at(f"{where}, metadata") from error
    except (CorruptStore, TypeError, ValueError) as error:
        raise CorruptStore(f"{where}: its header does not decode: {error}") from error
    if not type(checkpoint) is type(metadata) is type(inline) is type(about) is dict or len(rest) > 1:
        raise CorruptStore(f"{where}: its header does not hold what it should")
    return Header(checkpoint, as_lists(metadata), inline, about)


def as_lists(value: Any) -> Any:
    """Return a value of metadata with lists where it has tuples, as all of LangGraph's savers give metadata back."""
    if type(value) is dict:
        return {key: as_lists(part) for key, part in value.items()}
    return [as_lists(part) for part in value] if type(value) in (list, tuple) else value


def rest_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a checkpoint goes to the header."""
    return {key: value for key, value in checkpoint.items() if key not in ("id", "channel_values")}


def next_version_of(current: str | int | float | None) -> str | int | float:
    """Return the version after `current`, in the form that the thread already uses.

    New threads get ints: entries name their values themselves, so versions need no random part to tell branches apart.
    A thread that began on one of LangGraph's savers keeps its strings (32 digits, a dot, a fraction).
    """
    if current is None:
        return 1
    if isinstance(current, str):
        return f"{int(current.split('.')[0]) + 1:032}.{0:016}"
    return current + 1
