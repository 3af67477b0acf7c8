"""Allowlists of types, handed through the layers of a serializer."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol


def allowing(serde: SerializerProtocol, extra: Collection[tuple[str, ...]]) -> SerializerProtocol:
    """Hand an allowlist through the layers of a serializer; one that has no such notion stays as it is.

    A wrapper (encryption, compression) is known by the `serde` it wraps. LangGraph's own function knows one wrapper and
    only warns for others, and the graph's own models then come back as dicts.
    """
    allow = getattr(serde, "with_msgpack_allowlist", None)
    if callable(allow):
        allowed: SerializerProtocol = allow(extra)
        return allowed
    inner = getattr(serde, "serde", None)
    if not isinstance(inner, SerializerProtocol) or (allowed := allowing(inner, extra)) is inner:
        return serde
    clone: Any = copy.copy(serde)
    clone.serde = allowed
    wrapper: SerializerProtocol = clone
    return wrapper
