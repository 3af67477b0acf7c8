"""Stored values as JSON that a person can read, and back to the very bytes.

The core hands a store bodies: msgpack arrays of items (`core.serde`). Here each item becomes one JSON value and back.
What JSON has stands for itself; the rest is an object with one key that begins with `$`, its tag (`FORMAT.md` lists
them), or a message, `{"$role": "ai", ...}`. Each item is packed back before it is shown to anybody, and where the bytes
differ it is shown as `{"$mp": "<base64>"}`: nothing depends on this module thinking of every case.

What comes from a file is untrusted: nothing is imported or called by name, depth is bounded, and what is no value is
`CorruptStore`. What the packed bytes mean is for the core to judge, as with any other store.
"""

from __future__ import annotations

import math
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import ormsgpack
from ormsgpack import Ext

from langgraph_keel.core.pack import MARKS
from langgraph_keel.core.serde import array_header
from langgraph_keel.core.types import Leaf, Record
from langgraph_keel.errors import CorruptStore
from langgraph_keel.files.elements import element_end, splits
from langgraph_keel.files.messages import BY_ROLE, FORMS

__all__ = ["packed_item", "packed_items", "shown_items", "splits"]

LEVELS = 100
"""Levels of JSON to an item; what is deeper is shown as `$mp`. orjson writes 254, of which a line takes some."""

# Tested for before the walk calls itself, because most parts are one of these: it halves the time.
_SAME = frozenset({str, int, bool, type(None)})
_PLAIN = _SAME | {float}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# What damaged or unusual parts raise on the way, in both directions.
_SHAPE_ERRORS = (TypeError, ValueError, LookupError, AttributeError)


# --- To JSON ---


class _Ext(NamedTuple):
    """An Ext as it was unpacked: a leaf, or something no version of Keel writes."""

    code: int
    data: bytes


def shown_items(content: bytes) -> list[Any]:
    """Return one object for `orjson` for each item.

    Args:
        content: An unframed body: a msgpack array of items.

    Raises:
        CorruptStore: The content is not one msgpack array.
    """
    parts = splits(content)
    try:
        items = ormsgpack.unpackb(content, ext_hook=_hook)
    except ValueError:  # what ormsgpack does not read it did not write
        return [_opaque(part) for part in parts]
    return [_shown_item(item, part) for item, part in zip(items, parts, strict=True)]


def _hook(code: int, data: bytes) -> Any:
    return _RECORDS.get(code, _Ext(code, data)) if not data else _Ext(code, data)


_RECORDS = {int(record): record for record in Record}


def _shown_item(item: Any, packed: bytes) -> Any:
    try:
        shown = _ITEM_KINDS[item[0]](item)
        if packed_item(shown) == packed:
            return shown
    except (*_SHAPE_ERRORS, CorruptStore):
        pass  # an item of another version, or too deep
    return _opaque(packed)


def _opaque(packed: bytes) -> Any:
    return {"$mp": _base64(packed)}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _shown_value(item: list[Any]) -> Any:
    _, value = item
    return _shown(value, LEVELS)


def _shown_message_item(item: list[Any]) -> Any:
    return _shown_message(item, LEVELS)


def _shown_foreign(item: list[Any]) -> Any:
    """Return an item of another serializer; what that calls JSON as text."""
    _, kind, data = item
    return {"$foreign": [kind, data.decode() if kind == "json" else _shown(data, LEVELS)]}


_ITEM_KINDS = (_shown_value, _shown_message_item, _shown_foreign)


def _shown(value: Any, level: int) -> Any:
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in _SAME:
        return value
    if level <= 0:
        raise ValueError("nested too deep to be read as JSON")
    if kind is dict:
        return _shown_dict(value, level)
    if kind is list:
        if value and type(value[0]) is Record:
            return _shown_record(value, level)
        return [part if type(part) in _SAME else _shown(part, level - 1) for part in value]
    return {"$bytes": _base64(value)} if kind is bytes else _shown_leaf(value)


def _shown_dict(value: dict[str, Any], level: int) -> Any:
    if "$" in "".join(value) and _tags(value):
        return {"$map": [[key, _shown(part, level - 3)] for key, part in value.items()]}
    return {key: part if type(part) in _SAME else _shown(part, level - 1) for key, part in value.items()}


def _tags(value: Iterable[str]) -> list[str]:
    return [key for key in value if key[:1] == "$"]


def _shown_record(record: list[Any], level: int) -> Any:
    if record[0] is Record.MESSAGE:
        return _shown_message(record, level)
    return {_RECORD_TAGS[record[0]]: [_shown(part, level - 2) for part in record[1:]]}


def _shown_leaf(leaf: _Ext) -> Any:
    tag, show, _ = _LEAVES[leaf.code]
    return {tag: show(leaf.data)}


def _shown_message(item: list[Any], level: int) -> Any:
    """Return a message from `[mark or tag, class code, fields, names set(, extra, private)]`."""
    _, code, state, names, *more = item
    form = FORMS[code] if 0 <= code < len(FORMS) else None
    if form is None or list(state) != form.names:
        return {"$message": [_shown(part, level - 2) for part in item[1:]]}
    fields = form.written(state, names)
    shown: dict[str, Any] = {"$role": form.role}
    for name, part in fields.items():
        shown[name] = part if type(part) in _SAME else _shown(part, level - 1)
    if names != form.implied(fields, more):
        shown["$set"] = names
    if more:
        shown["$extra"], shown["$private"] = (_shown(part, level - 1) for part in more)
    return shown


# --- From JSON ---


def packed_items(values: Sequence[Any], text: bytes | None = None) -> bytes:
    """Return the content that `shown_items` was given.

    Args:
        values: What `orjson.loads` returned for each item.
        text: JSON text in which all of them stand, such as their line of the log. Where it has no tags but those of
            messages, the values are packed as they are, without a look at each of their parts.

    Raises:
        CorruptStore: One of them stands for no item.
    """
    plain = text is not None and _is_plain(values, text)
    return array_header(len(values)) + b"".join([_packed_item(value, plain) for value in values])


def packed_item(value: Any, text: bytes | None = None) -> bytes:
    """Return the bytes of one item, an element of the array; see `packed_items`.

    Raises:
        CorruptStore: The value stands for no item.
    """
    return _packed_item(value, text is not None and _is_plain((value,), text))


def _is_plain(values: Iterable[Any], text: bytes) -> bool:
    """Say whether all tags in `text` are those of messages that are items themselves.

    A tag cannot hide: its key begins with `"$`, or with an escape that nobody needs. Text that merely looks like a tag
    only costs time.
    """
    known = 0
    for value in values:
        if type(value) is dict and "$role" in value:
            known += 1 + ("$set" in value) + ("$extra" in value) + ("$private" in value)
    return text.count(b'"$') == known and b"\\u0024" not in text


def _packed_item(value: Any, plain: bool) -> bytes:
    try:
        if type(value) is dict and not plain and len(value) == 1:
            special = _ITEMS.get(next(iter(value)))
            if special is not None:
                return special(*value.values())
        if type(value) is dict and "$role" in value:
            return ormsgpack.packb([1, *_message(value, LEVELS, plain)])
        return b"\x92\x00" + ormsgpack.packb(value if plain else _stored(value, LEVELS))
    except _SHAPE_ERRORS as error:
        raise CorruptStore(f"a stored value is damaged: {type(error).__name__}: {error}") from error


def _packed_opaque(text: str) -> bytes:
    data = _bytes(text)
    if element_end(data, 0) != len(data):
        raise CorruptStore("stored bytes go on after the value they should hold")
    return data


def _packed_message_in_full(parts: Any) -> bytes:
    return ormsgpack.packb([1, *_list(_stored(parts, LEVELS - 1))])


def _packed_foreign(parts: list[Any]) -> bytes:
    kind, data = parts
    packed = data.encode() if type(data) is str else _stored(data, LEVELS)
    if type(kind) is not str or type(packed) is not bytes:
        raise CorruptStore("an item of another serializer is damaged")
    return ormsgpack.packb([2, kind, packed])


# Tags that an item has and a part of one has not, or not with the same meaning.
_ITEMS: dict[str, Callable[[Any], bytes]] = {
    "$mp": _packed_opaque,
    "$message": _packed_message_in_full,
    "$foreign": _packed_foreign,
}


def _stored(value: Any, level: int) -> Any:
    """Return what msgpack packs for a JSON value."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if level <= 0:
        raise CorruptStore(f"a stored value is nested more than {LEVELS} levels deep")
    if kind is list:
        return [part if type(part) in _PLAIN else _stored(part, level - 1) for part in value]
    if "$" in "".join(value) and _tags(value):
        return _untagged(value, level)
    return {key: part if type(part) in _PLAIN else _stored(part, level - 1) for key, part in value.items()}


def _untagged(value: dict[str, Any], level: int) -> Any:
    if "$role" in value:
        return [MARKS[Record.MESSAGE], *_message(value, level, plain=False)]
    tag = _tags(value)[0]
    if tag not in _TAGS or len(value) != 1:
        raise CorruptStore(f"no value is written with the key {tag!r:.80}, or not with others beside it")
    return _TAGS[tag](value[tag], level - 1)


def _message(value: dict[str, Any], level: int, plain: bool) -> list[Any]:
    """Return `[class code, fields, names set(, extra, private)]`."""
    fields = value.copy()
    form = BY_ROLE[fields.pop("$role")]
    names = fields.pop("$set", None)
    more = [fields.pop("$extra"), fields.pop("$private")] if "$extra" in fields else []
    if not plain:
        fields = {name: _stored(part, level - 1) for name, part in fields.items()}
        more = [_stored(part, level - 1) for part in more]
    state = form.completed(fields)
    if state is None:
        raise CorruptStore(f"a stored message has fields that one of role {form.role!r} has not")
    return [form.code, state, form.implied(fields, more) if names is None else _names(names), *more]


def _names(names: Any) -> list[str]:
    if type(names) is not list or any(type(name) is not str for name in names):
        raise CorruptStore("the names of the fields that were set in a message are damaged")
    return names


def _bytes(text: str) -> bytes:
    return a2b_base64(text, strict_mode=True)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise CorruptStore("the parts of a stored value are not a list")
    return value


def _map(pairs: Any, level: int) -> dict[str, Any]:
    made = {key: _stored(part, level - 2) for key, part in _list(pairs)}
    if len(made) != len(pairs) or any(type(key) is not str for key in made):
        raise CorruptStore("a stored map has a key twice, or one that is no text")
    return made


def _record(mark: Ext) -> Callable[[Any, int], Any]:
    return lambda parts, level: [mark, *_list(_stored(parts, level))]


def _leaf(code: Leaf, read: Callable[[Any], bytes]) -> Callable[[Any, int], Any]:
    return lambda payload, _: Ext(code, read(payload))


# --- The tables: leaves and records are tagged by their names in `core.types`, in lower case ---


def _shown_enum(data: bytes) -> Any:
    return [None if part is None else str(part) for part in ormsgpack.unpackb(data)]


def _enum(parts: Any) -> bytes:
    return ormsgpack.packb([None if part is None else part + "" for part in _list(parts)])


def _shown_big_int(data: bytes) -> str:
    return str(int.from_bytes(data, "little", signed=True))


def _big_int(text: str) -> bytes:
    value = int(text + "")
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _text(data: bytes) -> str:
    return data.decode()


_AS_TEXT: tuple[Callable[[bytes], Any], Callable[[Any], bytes]] = (_text, lambda text: (text + "").encode())
_FORMS: dict[Leaf, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    Leaf.BIG_INT: (_shown_big_int, _big_int),
    Leaf.UUID: (lambda data: str(UUID(bytes=data)), lambda text: UUID(text).bytes),
    Leaf.ENUM: (_shown_enum, _enum),
    **dict.fromkeys((Leaf.SURROGATES, Leaf.BYTEARRAY, Leaf.COMPLEX), (_base64, _bytes)),
}
_LEAVES = {int(leaf): (f"${leaf.name.lower()}", *_FORMS.get(leaf, _AS_TEXT)) for leaf in Leaf}
_RECORD_TAGS = {record: f"${record.name.lower()}" for record in Record}
_TAGS: dict[str, Callable[[Any, int], Any]] = {
    "$bytes": lambda text, _: _bytes(text),
    "$float": lambda name, _: _FLOATS[name],
    "$map": _map,
    **{tag: _record(MARKS[record]) for record, tag in _RECORD_TAGS.items()},
    **{tag: _leaf(Leaf(code), read) for code, (tag, _, read) in _LEAVES.items()},
}
