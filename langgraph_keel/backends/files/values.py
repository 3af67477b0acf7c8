"""Converts stored values to readable JSON and back to the same bytes.

A body is a msgpack array of items (`engine.serde`). Each item becomes one JSON value, and back. A value that JSON
cannot represent becomes an object with one key, its tag, which begins with `$` (`FORMAT.md` lists them); a message
becomes `{"$role": "ai", ...}`. Each item is packed back before its JSON is used. If the bytes differ, the item becomes
`{"$mp": "<base64>"}`, so this module does not have to know every case.

A message is written with its role, without fields that have their default (`engine.serde.types.MESSAGE_FORMS`). If its
fields are not exactly those of its form, in their order, it is written in full as `$message`.

The fields of records are checked here, too. Files are untrusted: nothing is imported or called by name, depth is
bounded, and anything else is a `CorruptStore`.
"""

from __future__ import annotations

import math
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import orjson
import ormsgpack
from ormsgpack import Ext

from langgraph_keel.engine.encoding.bodies import array_header, element_end, split_array
from langgraph_keel.engine.serde.pack import MARKS
from langgraph_keel.engine.serde.types import MESSAGE_FORMS, REQUIRED, Leaf, Record
from langgraph_keel.errors import CorruptStore

_WRITTEN = 254
"""Maximum levels that orjson writes."""
LEVELS = 100
"""Maximum levels of JSON in an item; a deeper item becomes `$mp`.

The line around an item needs some of orjson's levels.
"""

_VALUE = b"\x92\x00"
"""The first bytes of an item that is a value."""
# Tested before the recursive call: most parts have these types, and this halves the time.
_SAME = frozenset({str, int, bool, type(None)})
_PLAIN = _SAME | {float}
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
# Errors raised by damaged or unusual parts, in both directions.
_SHAPE_ERRORS = (TypeError, ValueError, LookupError, AttributeError)

_RECORDS = {int(record): record for record in Record}
# Leaves and records are tagged by their names, in lower case.
_TAGS: dict[Leaf | Record, str] = {each: f"${each.name.lower()}" for each in (*Leaf, *Record)}
_LEAVES_BY_TAG = {_TAGS[leaf]: leaf for leaf in Leaf}
_RECORDS_BY_TAG = {_TAGS[record]: record for record in Record}

# Functions that write and read a leaf without another form (`_LEAF_FORMS`).
_AS_TEXT: tuple[Callable[[bytes], Any], Callable[[Any], bytes]] = (bytes.decode, lambda text: (text + "").encode())

MOST = 1 << 53
"""Exclusive maximum of numbers in a log, exact in every JSON reader."""
_EPOCH = re.compile(r"[0-9a-f]{8,64}")


class MessageForm:
    """The JSON form of the messages of one class (see `MESSAGE_FORMS`)."""

    __slots__ = ("code", "defaults", "names", "role")

    def __init__(self, code: int, role: str, kind: str, more: dict[str, Any]) -> None:
        self.code = code
        self.role = role
        common = {"content": REQUIRED, "additional_kwargs": {}, "response_metadata": {}, "type": kind}
        self.defaults: dict[str, Any] = common | {"name": None, "id": None} | more
        self.names = list(self.defaults)

    def select_written(self, state: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Return the fields that the program has set, or that differ from defaults."""
        defaults = self.defaults
        return {name: part for name, part in state.items() if name in names or part != defaults[name]}

    @staticmethod
    def implied_names(fields: dict[str, Any], more: list[Any]) -> list[str]:
        """Return the fields that count as set without `$set`: all written ones."""
        if more and type(more[0]) is dict:
            return sorted({*fields, *more[0]})
        return sorted(fields)

    def complete(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Return all fields of a message; `None` if a written one is not in the form."""
        state = self.defaults | fields
        return state if len(state) == len(self.names) else None


FORMS = tuple(MessageForm(code, *form) for code, form in enumerate(MESSAGE_FORMS.values()))
BY_ROLE: dict[str, MessageForm] = {form.role: form for form in FORMS}


# --- To JSON ---


class _Ext(NamedTuple):
    """An unpacked Ext: a leaf, or one that no version of Keel writes."""

    code: int
    data: bytes


def items_to_json(content: bytes) -> list[Any]:
    """Return one object for `orjson` for each item."""
    try:
        items = ormsgpack.unpackb(content, ext_hook=_unpack_ext)
    except ValueError:  # not written by ormsgpack
        return [_opaque(part) for part in split_array(content)]
    plain = _plain_items(items, content)
    if plain is not None:
        return plain
    parts = split_array(content)
    return [_item_to_json(item, part) for item, part in zip(items, parts, strict=True)]


def _plain_items(items: Any, content: bytes) -> list[Any] | None:
    """Return the values of items as JSON; `None` if one may need a tag."""
    # Their parts are not examined one by one: that took 64 ms for a document of 1 MB; this takes 12.
    try:
        values = [value for _, value in items]
        text = orjson.dumps(values)
        # No item may have more levels than `LEVELS`. orjson 3.10 does not count an empty innermost list as a level, so
        # a value with the last allowed level is also converted part by part.
        if text.count(b"[") + text.count(b"{") >= LEVELS:
            nested = values
            for _ in range(_WRITTEN - LEVELS):
                nested = [nested]
            orjson.dumps(nested)
    except _SHAPE_ERRORS:
        return None
    if b'"$' in text:
        return None
    packed = [_VALUE + ormsgpack.packb(value) for value in orjson.loads(text)]
    return values if array_header(len(values)) + b"".join(packed) == content else None


def _unpack_ext(code: int, data: bytes) -> Any:
    return _RECORDS.get(code, _Ext(code, data)) if not data else _Ext(code, data)


def _item_to_json(item: Any, packed: bytes) -> Any:
    try:
        kind, *parts = item
        if kind == 1:
            shown = _message_to_json(item, LEVELS)
        elif kind == 0:
            [value] = parts
            shown = _to_json(value, LEVELS)
        else:  # of another serializer; as text if that calls it JSON
            name, data = parts
            shown = {"$foreign": [name, data.decode() if name == "json" else _to_json(data, LEVELS)]}
        if pack_item(shown) == packed:
            return shown
    except (*_SHAPE_ERRORS, CorruptStore):
        pass  # an item of another version, or too deep
    return _opaque(packed)


def _opaque(packed: bytes) -> Any:
    return {"$mp": _base64(packed)}


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def _to_json(value: Any, level: int) -> Any:
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in _SAME:
        return value
    if level <= 0:
        raise ValueError("nested too deeply for JSON")
    if kind is dict:
        if "$" in "".join(value) and _tags(value):
            return {"$map": [[key, _to_json(part, level - 3)] for key, part in value.items()]}
        return {key: part if type(part) in _SAME else _to_json(part, level - 1) for key, part in value.items()}
    if kind is list:
        if not value or type(value[0]) is not Record:
            return [part if type(part) in _SAME else _to_json(part, level - 1) for part in value]
        if value[0] is Record.MESSAGE:
            return _message_to_json(value, level)
        return {_TAGS[value[0]]: [_to_json(part, level - 2) for part in value[1:]]}
    if kind is bytes:
        return {"$bytes": _base64(value)}
    show, _ = _LEAF_FORMS.get(value.code, _AS_TEXT)
    return {_TAGS[value.code]: show(value.data)}


def _tags(value: Iterable[str]) -> list[str]:
    return [key for key in value if key[:1] == "$"]


def _message_to_json(item: list[Any], level: int) -> Any:
    """Return a message from `[mark, class code, fields, names set(, extra, private)]`."""
    _, code, state, names, *more = item
    form = FORMS[code] if 0 <= code < len(FORMS) else None
    if form is None or list(state) != form.names:
        return {"$message": [_to_json(part, level - 2) for part in item[1:]]}
    fields = form.select_written(state, names)
    shown: dict[str, Any] = {"$role": form.role}
    for name, part in fields.items():
        shown[name] = part if type(part) in _SAME else _to_json(part, level - 1)
    if names != form.implied_names(fields, more):
        shown["$set"] = names
    if more:
        shown["$extra"], shown["$private"] = (_to_json(part, level - 1) for part in more)
    return shown


# --- From JSON ---


def pack_items(values: Sequence[Any], text: bytes | None = None) -> bytes:
    """Reverse `items_to_json`: return the content."""
    plain = text is not None and _is_plain(values, text)
    return array_header(len(values)) + b"".join([_pack_item(value, plain) for value in values])


def pack_item(value: Any, text: bytes | None = None) -> bytes:
    """Return the bytes of one item, an element of the array; see `pack_items`."""
    return _pack_item(value, text is not None and _is_plain((value,), text))


def _is_plain(values: Iterable[Any], text: bytes) -> bool:
    """Return whether all tags in `text` belong to messages that are items.

    No tag is missed, because its key begins with `"$` or the escape of `$`. Text that only looks like a tag costs time.
    """
    known = 0
    for value in values:
        if type(value) is dict and "$role" in value:
            known += 1 + ("$set" in value) + ("$extra" in value) + ("$private" in value)
    return text.count(b'"$') == known and b"\\u0024" not in text


def _pack_item(value: Any, plain: bool) -> bytes:
    try:
        if type(value) is dict and not plain and len(value) == 1:
            special = _ITEMS.get(next(iter(value)))
            if special is not None:
                return special(*value.values())
        if type(value) is dict and "$role" in value:
            return ormsgpack.packb([1, *_message_from_json(value, LEVELS, plain)])
        return _VALUE + ormsgpack.packb(value if plain else _from_json(value, LEVELS))
    except _SHAPE_ERRORS as error:
        raise CorruptStore(f"a stored value is damaged: {type(error).__name__}: {error}") from error


def _pack_opaque(text: str) -> bytes:
    data = _bytes_from_json(text)
    if element_end(data, 0) != len(data):
        raise CorruptStore("stored bytes continue after the end of their value")
    return data


def _pack_foreign(parts: list[Any]) -> bytes:
    kind, data = parts
    packed = data.encode() if type(data) is str else _from_json(data, LEVELS)
    if type(kind) is not str or type(packed) is not bytes:
        raise CorruptStore("an item of another serializer is damaged")
    return ormsgpack.packb([2, kind, packed])


# Tags of items; inside items they do not exist, or have another meaning.
_ITEMS: dict[str, Callable[[Any], bytes]] = {
    "$mp": _pack_opaque,
    "$message": lambda parts: ormsgpack.packb([1, *_check_list(_from_json(parts, LEVELS - 1))]),
    "$foreign": _pack_foreign,
}


def _from_json(value: Any, level: int) -> Any:
    """Return the object to pack with msgpack for a JSON value."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if level <= 0:
        raise CorruptStore(f"a stored value is nested more than {LEVELS} levels deep")
    if kind is list:
        return [part if type(part) in _PLAIN else _from_json(part, level - 1) for part in value]
    if "$" in "".join(value) and _tags(value):
        return _from_tagged(value, level)
    return {key: part if type(part) in _PLAIN else _from_json(part, level - 1) for key, part in value.items()}


def _from_tagged(value: dict[str, Any], level: int) -> Any:
    if "$role" in value:
        return [MARKS[Record.MESSAGE], *_message_from_json(value, level, plain=False)]
    tag = _tags(value)[0]
    part = value[tag]
    if len(value) == 1:
        if tag == "$bytes":
            return _bytes_from_json(part)
        if tag == "$float":
            return _FLOATS[part]
        if tag == "$map":
            made = {key: _from_json(each, level - 3) for key, each in _check_list(part)}
            if len(made) != len(part) or any(type(key) is not str for key in made):
                raise CorruptStore("a stored map has a duplicate key, or a key that is not text")
            return made
        if tag in _RECORDS_BY_TAG:
            return [MARKS[_RECORDS_BY_TAG[tag]], *_check_list(_from_json(part, level - 1))]
        if tag in _LEAVES_BY_TAG:
            leaf = _LEAVES_BY_TAG[tag]
            _, read = _LEAF_FORMS.get(leaf, _AS_TEXT)
            return Ext(leaf, read(part))
    raise CorruptStore(f"a stored value has the unknown key {tag!r:.80}, or other keys next to it")


def _message_from_json(value: dict[str, Any], level: int, plain: bool) -> list[Any]:
    """Return `[class code, fields, names set(, extra, private)]`."""
    fields = value.copy()
    form = BY_ROLE[fields.pop("$role")]
    names = fields.pop("$set", None)
    more = [fields.pop("$extra"), fields.pop("$private")] if "$extra" in fields else []
    if not plain:
        fields = {name: _from_json(part, level - 1) for name, part in fields.items()}
        more = [_from_json(part, level - 1) for part in more]
    state = form.complete(fields)
    if state is None:
        raise CorruptStore(f"a stored message has fields that the role {form.role!r} does not have")
    return [form.code, state, form.implied_names(fields, more) if names is None else _check_names(names), *more]


def _check_names(names: Any) -> list[str]:
    if type(names) is not list or any(type(name) is not str for name in names):
        raise CorruptStore("the list of fields set in a stored message is damaged")
    return names


def _bytes_from_json(text: str) -> bytes:
    return a2b_base64(text, strict_mode=True)


def _check_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise CorruptStore("the parts of a stored value are not a list")
    return value


def _big_int_from_json(text: str) -> bytes:
    value = int(text + "")
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


_LEAF_FORMS: dict[int, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    Leaf.BIG_INT: (lambda data: str(int.from_bytes(data, "little", signed=True)), _big_int_from_json),
    Leaf.UUID: (lambda data: str(UUID(bytes=data)), lambda text: UUID(text).bytes),
    Leaf.ENUM: (
        lambda data: [None if part is None else str(part) for part in ormsgpack.unpackb(data)],
        lambda parts: ormsgpack.packb([None if part is None else part + "" for part in _check_list(parts)]),
    ),
    **dict.fromkeys((Leaf.SURROGATES, Leaf.BYTEARRAY, Leaf.COMPLEX), (_base64, _bytes_from_json)),
}


# --- The fields of records ---


Test = Callable[[Any], bool]


def _list_of(test: Test) -> Test:
    return lambda value: type(value) is list and all(map(test, value))


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < MOST


def _is_dict(value: Any) -> bool:
    return type(value) is dict


def _is_true(value: Any) -> bool:
    return value is True


def is_sealed(value: Any) -> bool:
    """Return whether a value of a line is sealed, or stored elsewhere."""
    return type(value) is dict and len(value) == 1 and _is_text(value.get("$sealed"))


def is_opaque(value: Any) -> bool:
    """Return whether a value of a line is the name of a blob, or sealed."""
    return is_sealed(value) or (type(value) is dict and len(value) == 1 and _is_text(value.get("$blob")))


def _is_head(value: Any) -> bool:
    return is_opaque(value) or (type(value) is list and len(value) in (3, 4) and all(map(_is_dict, value)))


def _is_value(value: Any) -> bool:
    return type(value) is not dict or not ("$blob" in value or "$sealed" in value) or is_opaque(value)


def _is_write(value: Any) -> bool:
    if not (type(value) is list and len(value) == 3):
        return False
    channel, index, written = value
    return _is_text(channel) and type(index) is int and _is_value(written)


def _are_ghosts(value: Any) -> bool:
    return _is_dict(value) and all(number.isdecimal() and type(names) is list for number, names in value.items())


REQUIRED_FIELDS: dict[str, dict[str, Test]] = {
    "thread": {
        "format": _is_number,
        "epoch": lambda value: _is_text(value) and _EPOCH.fullmatch(value) is not None,
        "seq": _is_number,
    },
    "item": {"ch": _is_text, "n": _is_number},
    "ckpt": {"id": _is_text, "seq": _is_number, "at": _is_text, "ch": _is_dict, "head": _is_head},
    "writes": {"id": _is_text, "task": _is_text, "path": _is_text},
    "gone": {"seq": _list_of(_is_number), "ghosts": _are_ghosts},
    "end": {"ch": _is_text, "n": _is_number},
    "index": {"at": _is_number, "most": _is_text},
}
# A record has one of these fields.
_ONE_OF: dict[str, set[str]] = {**{kind: {"k"} for kind in REQUIRED_FIELDS}, "item": {"v"}, "writes": {"w", "items"}}
OPTIONAL: dict[str, Test] = {
    "ns": _is_text,
    "v": _is_value,
    "c": lambda value: _is_number(value) and value > 0,
    "parent": _is_text,
    "run": _is_text,
    "fork": _is_true,
    "ghost": _is_true,
    "span": _is_number,
    "w": _list_of(_is_write),
    "items": lambda value: type(value) is list or is_opaque(value),
    "marks": _list_of(_is_text),
}


def check_record(fields: Any) -> dict[str, Any]:
    """Check and return the fields of a record."""
    kind = fields.get("k") if type(fields) is dict else None
    required = REQUIRED_FIELDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(kind, str) or required is None:
        raise ValueError(f"{kind!r:.40} is not a kind of record")
    wrong = [name for name, test in required.items() if name not in fields or not test(fields[name])]
    wrong += [name for name in fields if name in OPTIONAL and not OPTIONAL[name](fields[name])]
    wrong += [] if _ONE_OF[kind] & fields.keys() else sorted(_ONE_OF[kind])
    if wrong:
        raise ValueError(f"the field {wrong[0]!r} of a record {kind!r} is missing or invalid")
    record: dict[str, Any] = fields
    return record


_CELL: dict[str, Test] = {"key": _is_text, "token": _is_text}
_CELL_MAY: dict[str, Test] = {
    "origin": _is_text,
    "expires": lambda value: type(value) is int,
    "rank": lambda value: type(value) is int,
    "marks": _is_text,
}


def check_cell(fields: Any) -> dict[str, Any]:
    """Check and return the fields of a cell."""
    if type(fields) is not dict or fields.get("k") != "cell" or "head" not in fields:
        raise ValueError("it is not a cell")
    wrong = [name for name, test in _CELL.items() if not test(fields.get(name))]
    wrong += [name for name, test in _CELL_MAY.items() if name in fields and not test(fields[name])]
    if wrong:
        raise ValueError(f"the field {wrong[0]!r} of a cell is missing or invalid")
    return fields
