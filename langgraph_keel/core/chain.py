"""The cells of the audit trail: how links, contents and the head are written, read and hashed. See `core.audit`.

The hashes can be computed without Keel:

* `hash` of a link: SHA-256 of the JSON list `[number, previous, at, kind, digest]`, in ASCII, without spaces.
* `digest` of a content: SHA-256 of the salt, followed by the content's JSON text as it is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from hashlib import sha256
from typing import Any

from langgraph_keel.core.cells import Cell, Shelf
from langgraph_keel.core.codec import Codec
from langgraph_keel.core.plan import T
from langgraph_keel.errors import CorruptStore, InvalidInput

LINKS, CONTENTS, HEADS = Shelf(None, "audit"), Shelf(None, "trail"), Shelf(None, "audithead")
HEAD = "head"
"""The key of the only cell of `HEADS`."""
BEGIN = "0" * 64
"""What stands for the hash of a link before the first one."""
START = (0, BEGIN)
"""Number and hash of the end of an empty chain."""

_MOST = 10**15
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the chain.

    Attributes:
        number: Its place, from 1.
        previous: The hash of the link before it.
        at: ISO time.
        kind: What has happened.
        digest: Of the content.
        hash: Of all that.
    """

    number: int
    previous: str
    at: str
    kind: str
    digest: str
    hash: str


def key_of(number: int) -> str:
    """Return the key of a link: in the order of their keys, links are in the order of their numbers."""
    return f"{number:016d}"


def number_in(key: str) -> int:
    """Return the number of a link with this key; 0 if none has it."""
    return int(key) if key.isdigit() else 0


def sha(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def text_of(content: Mapping[str, Any]) -> str:
    """Return a content as JSON, always the same for the same content.

    Raises:
        InvalidInput: JSON cannot hold it.
    """
    try:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"an audit event must be about what JSON can hold: {error}") from error


def linked(number: int, previous: str, at: str, kind: str, digest: str) -> Link:
    """Return the link that comes after link `number`, whose hash is `previous`."""
    said = [number + 1, previous, at, kind, digest]
    return Link(number + 1, previous, at, kind, digest, sha(json.dumps(said, separators=(",", ":"))))


def cell_of(codec: Codec, token: str, link: Link) -> Cell:
    """Return the cell of a link: it belongs to no thread, so it stays when threads are deleted."""
    return Cell(token, header_of(codec, *astuple(link)))


def link_in(codec: Codec, key: str, cell: Cell) -> Link:
    """Return the link in a cell.

    Raises:
        CorruptStore: It cannot be read, or is not the one with this key.
    """
    stored = _values_in(codec, cell, f"event {number_in(key) or key}")
    if [type(part) for part in stored] == [int, str, str, str, str, str]:
        link = Link(*stored)
        hashes = (link.previous, link.digest, link.hash)
        if link.number > 0 and key_of(link.number) == key and all(map(_HASH.fullmatch, hashes)):
            return link
    raise CorruptStore(
        f"event {number_in(key) or key} of the audit trail was changed: what stands there is not that event"
    )


def content_in(codec: Codec, link: Link, cell: Cell) -> tuple[str, dict[str, Any]]:
    """Return the digest of a content, and what it says.

    Raises:
        CorruptStore: It cannot be read.
    """
    what = f"the content of event {link.number}"
    stored = _values_in(codec, cell, what)
    try:
        salt, text = stored
        digest, content = sha(salt + text), json.loads(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptStore(f"{what} of the audit trail was changed: it is none") from error
    if not isinstance(content, dict):
        raise CorruptStore(f"{what} of the audit trail was changed: it is none")
    return digest, content


def end_by(codec: Codec, head: Cell, default: T) -> tuple[int, str] | T:
    """Return number and hash of the last link, as the head says; the default if it cannot be read."""
    try:
        number, previous = _values_in(codec, head, "the head")
    except (CorruptStore, ValueError):
        return default
    is_one = type(number) is int and 0 <= number < _MOST and type(previous) is str and _HASH.fullmatch(previous)
    return (number, previous) if is_one else default


def header_of(codec: Codec, *values: int | str) -> bytes:
    """Return the header of a cell: one list, which a store of files shows as such."""
    return codec.encode([list(values)])


def _values_in(codec: Codec, cell: Cell, what: str) -> list[Any]:
    try:
        (values,) = codec.decode(cell.header)
    except Exception as error:  # a serializer of the user's raises what it likes
        raise CorruptStore(f"{what} of the audit trail cannot be read: {error}") from error
    if type(values) is not list:
        raise CorruptStore(f"{what} of the audit trail was changed: it is no list")
    return values
