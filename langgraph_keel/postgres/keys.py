"""Names as PostgreSQL can keep and index them.

Text there holds no NUL, and a row of an index no more than 2704 bytes. A NUL is escaped, in the same order as before; a
name that is too long for three of its kind in one key becomes its beginning and a hash, longer than any other key,
and the row that it stands in keeps the name itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TypeAlias

LONGEST = 255
"""Bytes of a name that is its own key."""

Names: TypeAlias = Mapping[str, str]
"""Keys, where they are not the names themselves, to names."""


class Key(str):
    """A key whose name is not known any more; it is its own key."""

    __slots__ = ()


def escape(text: str) -> str:
    """Return text without NUL, from which `unescape` makes it again."""
    if "\0" not in text and "\1" not in text:
        return text
    return text.replace("\1", "\0011").replace("\0", "\0010")


def unescape(text: str) -> str:
    """Return what `escape` was given."""
    return text.replace("\0010", "\0").replace("\0011", "\1") if "\1" in text else text


def key(name: str) -> str:
    """Return what a name is indexed by."""
    if isinstance(name, Key):
        return str(name)
    escaped = escape(name)
    if len(escaped) * 4 <= LONGEST or len(data := escaped.encode()) <= LONGEST:
        return escaped
    return data[:LONGEST].decode(errors="ignore") + "~" + sha256(data).hexdigest()


def is_hashed(stored: str) -> bool:
    """Return whether a key is not the escaped name itself."""
    return len(stored) * 4 > LONGEST and len(stored.encode()) > LONGEST


def long_names(names: Iterable[str | None]) -> list[str] | None:
    """Return those names, escaped, that their keys do not tell; `None` if there are none."""
    return [escape(name) for name in names if name and is_hashed(key(name))] or None


def by_key(stored: Iterable[str] | None) -> Names:
    """Return the names that `long_names` kept, by their keys."""
    return {key(name): name for name in map(unescape, stored)} if stored else {}


def name_of(stored: str, names: Names) -> str:
    """Return the name that a key stands for."""
    if len(stored) * 4 <= LONGEST and "\1" not in stored:
        return stored
    if not is_hashed(stored):
        return unescape(stored)
    return names.get(stored) or Key(stored)
