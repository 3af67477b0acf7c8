"""Keel's serializer, which reads values back exactly, or refuses them by type.

Packing runs in C if msgpack supports the value; `pack.describe` handles all other values. ormsgpack does not support
three kinds of data, and does not call the describer for them: dict keys that are not plain str, lone surrogates, and
bytearrays, which it packs as bytes. The first two raise an error, and the third is found by looking for a bytes mark in
the result. Only then is the value walked in Python (`_rewrite`). Both methods give equal bytes for values that both
support, so the bytes of a value do not depend on its neighbours.

A `Codec` adapts a serializer to the encoding, with items and fingerprints. Bytes of third-party serializers (`serde=`)
are stored in items tagged as foreign, so a log may contain both kinds.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from operator import itemgetter
from os import urandom
from reprlib import Repr
from typing import Any

import ormsgpack
import xxhash
from langgraph.checkpoint.serde.base import SerializerProtocol
from ormsgpack import Ext, Fragment

from langgraph_keel._langgraph import is_strict_msgpack
from langgraph_keel.engine.encoding.bodies import (
    HUGE_ROW,
    MAX_BYTES,
    MOST_ITEMS,
    MOST_MEMORY,
    Absent,
    array_header,
    body_of,
    frame,
    open_frame,
    read_absent,
    takes_more,
)
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.pack import MARKS, Describer, Form, describe, flat, name_of
from langgraph_keel.engine.serde.policy import Named, OnUnread, TypePolicy
from langgraph_keel.engine.serde.types import MESSAGE_CODES, Leaf, Record, Shape, shape_of, state_of
from langgraph_keel.engine.serde.unpack import LEAVES, RECORDS, Mark, leaf_or_unread, message_of, message_or_unread
from langgraph_keel.engine.serde.unread import LOST, Unread
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, RefusedType, UnstorableValue

_TAG = "keel"
LEAST_BYTES = 1 << 26
"""Minimum of `max_bytes`. A lower limit could affect rows of many values."""
_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
)
# Levels that ormsgpack packs; it unpacks up to 1023.
_MAX_DEPTH = 255
_TOO_DEEP = f"nested more than {_MAX_DEPTH} levels deep, or contains itself: store ids instead of objects"

_MESSAGE_MARK = ormsgpack.packb(MARKS[Record.MESSAGE])
_ATOMS = frozenset({str, int, float, bool, type(None), bytes, Ext, Fragment})
_BUFFERS = frozenset({bytearray, memoryview})
_BYTES = _BUFFERS | {bytes}
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})

_WRITERS = dict.fromkeys(("msgpack", "json", "null", "bytes", "bytearray", "pickle"), "LangGraph's JsonPlusSerializer")

# ormsgpack ignores bytes after the first element. An array of a number, the element and this number shows whether
# the element ended at the right place.
_HEAD = b"\x93\x00"
_END = 0xB7E1_5162_8AED_2A6B
_TAIL = ormsgpack.packb(_END)

_SHAPE_ERRORS = (TypeError, ValueError, LookupError, AttributeError)

# Secret and never stored, so that authors of messages cannot prepare two that collide in this process.
_SEED = int.from_bytes(urandom(8), "big")


@publish
class KeelSerializer:
    """A LangGraph serializer that keeps every type and runs no code on load.

    These classes may be revived: plain data of Python, LangGraph, LangChain and Keel; classes in the state annotations
    of graphs in this process; and classes whose values this process has stored.

    Args:
        types: More classes that may be revived, as classes or as `(module, name)`. With a list, having been stored by
            this process does not suffice, and unnamed classes are refused on writing, too. Secrets (`SecretStr`,
            `SecretBytes`) must be listed here, and are stored in plain text.
        strict: Whether to allow only plain data, `types`, and classes that LangGraph adds for the graph's own schemas.
            `None` follows `LANGGRAPH_STRICT_MSGPACK`.
        max_bytes: Approximate memory that a stored value may take, in bytes; 1 GiB by default. Larger values are
            neither written nor read.
    """

    __slots__ = ("_encode", "_policy", "max_bytes")

    def __init__(
        self, *, types: Collection[Named] | None = None, strict: bool | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        if (
            not isinstance(types, Collection | None)
            or isinstance(types, str)
            or any(isinstance(each, str) for each in types or ())
        ):
            raise InvalidInput(f'types= must be a list of classes, or of ("module", "Name"), not {types!r}')
        strict = is_strict_msgpack() if strict is None else strict
        if max_bytes < LEAST_BYTES:
            raise InvalidInput(f"max_bytes must be at least {LEAST_BYTES}, not {max_bytes}")
        self._use(TypePolicy(types, strict))
        self.max_bytes = max_bytes

    def _use(self, policy: TypePolicy) -> None:
        self._policy = policy
        self._encode = build_encoder(Describer(policy.admit).describe)

    def allows(self, module: str, qualname: str) -> bool:
        """Return whether values of a class may be revived."""
        return self._policy.allows(module, qualname)

    def with_msgpack_allowlist(self, extra: Iterable[Named]) -> KeelSerializer:
        """Return a serializer that also allows `extra`; itself if it already does."""
        merged = self._policy.merge(extra)
        if merged is self._policy:
            return self
        return self._with(merged)

    def with_placeholders(self, note: OnUnread | None = None) -> KeelSerializer:
        """Return a read-only serializer that replaces refused values by `Unread`.

        Args:
            note: Called with each `Unread`; returns it, or a value to use instead.
        """
        return self._with(self._policy.showing(note))

    def with_moved_classes(self, moved: Mapping[tuple[str, str], Named]) -> KeelSerializer:
        """Return a serializer that revives values stored under other class names.

        Args:
            moved: Stored module and name to the current class, which is allowed.
        """
        return self._with(self._policy.moving(moved))

    def _with(self, policy: TypePolicy) -> KeelSerializer:
        clone = KeelSerializer(max_bytes=self.max_bytes)
        clone._use(policy)
        return clone

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the type tag and the bytes of `obj`.

        Raises:
            UnstorableValue: If a part of `obj` would not be equal to the original when it is read back; or if `types`
                is given, and the type of a part is not allowed. The size is not checked here: a saver checks each value
                that it stores.
        """
        return _TAG, self.pack(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Return the object that was passed to `dumps_typed`.

        Raises:
            CorruptStore: If the bytes are damaged, were written by another serializer, or contain a value larger than
                `max_bytes`.
            RefusedType: If a type in it is unknown or not allowed.
        """
        tag, packed = data
        if tag != _TAG:
            writer = _WRITERS.get(tag, "another serializer")
            raise CorruptStore(
                f"the value has the type tag {tag!r}, written by {writer}: open the saver with that serde="
            )
        return self.unpack(packed)

    def pack(self, value: Any) -> bytes:
        """Return `value` as one self-delimiting msgpack element.

        Raises like `dumps_typed`.
        """
        return self._encode(value)

    def unpack(self, data: bytes) -> Any:
        """Return the value of one packed element. Raises like `loads_typed`."""
        if takes_more(data, self.max_bytes):
            raise CorruptStore(f"a stored value is {too_large(self.max_bytes)}")
        return _Decoding(self._policy).run(data)

    def pack_item(self, value: Any) -> bytes:
        """Return an item: `[1, class, fields, …]` for a LangChain message, else `[0, value]`."""
        return self.item_of(value, self.pack(value))

    def item_of(self, value: Any, data: bytes) -> bytes:
        """Return the item of a value whose packed form is `data`."""
        if len(data) * MOST_MEMORY > self.max_bytes and takes_more(data, self.max_bytes):
            raise UnstorableValue(name_of(type(value)), too_large(self.max_bytes))
        if type(value) in MESSAGE_CODES and data[1:4] == _MESSAGE_MARK:
            return data[:1] + b"\x01" + data[4:]
        return b"\x92\x00" + data

    def unpack_items(self, body: bytes, loads: Callable[[tuple[str, bytes]], Any] | None = None) -> list[Any]:
        """Return fresh objects for a packed array of items.

        `loads` reads foreign items, `[2, type, bytes]`.
        """
        policy, items = self._policy, _Decoding(self._policy).run(body)
        if type(items) is not list:
            raise CorruptStore("stored items are not an array")
        try:
            # A damaged item may be a record, which has become another object.
            if not ({list}.issuperset(map(type, items)) and {int}.issuperset(map(type, map(_first, items)))):
                raise CorruptStore("a stored item is damaged")
            # Much of the time is spent in the cyclic garbage collector, because many containers are created. It is not
            # switched off, as that would affect every thread of the program.
            if policy.shows:
                return [message_or_unread(item, policy) if item[0] == 1 else _item(item, loads) for item in items]
            return [
                message_of(item) if item[0] == 1 else item[1] if item[0] == 0 and len(item) == 2 else _item(item, loads)
                for item in items
            ]
        except _SHAPE_ERRORS as error:
            raise _translate(error) from error


def too_large(limit: int) -> str:
    """Return the text for an error about a value that is too large."""
    return f"larger in memory than about {limit} bytes, the limit of KeelSerializer(max_bytes=...)"


def build_encoder(describe: Form) -> Callable[[Any], bytes]:
    """Return a function that packs a value as one element, or raises `UnstorableValue`."""

    def encode(value: Any) -> bytes:
        try:
            data: bytes = ormsgpack.packb(value, describe, _OPTIONS)
        except TypeError:  # it has no cause attached; the second method finds it
            return _encode_rewritten(value, describe)
        if _may_hold_bytes(data) and _holds(value, _BUFFERS):
            return _encode_rewritten(value, describe)
        return data

    return encode


encode = build_encoder(describe)
"""Packs a value of any class as one msgpack element, only for comparing values."""


def pack_unchecked(value: Any) -> bytes | None:
    """Pack a value in one pass; `None` if that fails.

    Differs from `encode` for values with bytearrays.
    """
    try:
        data: bytes = ormsgpack.packb(value, describe, _OPTIONS)
    except TypeError:
        return None
    return data


def pack_plain(value: Any) -> bytes | None:
    """Pack a value like `pack_unchecked`; `None` also if it contains bytes or buffers."""
    data = pack_unchecked(value)
    return None if data is None or (_may_hold_bytes(data) and _holds(value, _BYTES)) else data


def pack_elements(values: list[Any]) -> bytes | None:
    """Pack and join the elements of a list; `None` as from `pack_unchecked`."""
    data = pack_unchecked(values)
    return None if data is None else data[len(array_header(len(values))) :]


def join_plain(values: Sequence[Any], packed: Sequence[bytes]) -> bytes | None:
    """Join packed values like `pack_elements`; `None` if they contain bytes."""
    data = b"".join(packed)
    return None if _may_hold_bytes(data) and _holds(values, _BYTES) else data


def _may_hold_bytes(data: bytes) -> bool:
    # Each bytes object begins with one of these. Other data may contain them, too, so check exactly then.
    return 0xC4 in data or 0xC5 in data or 0xC6 in data


# --- The Python walk: only for data that ormsgpack would lose, and to locate unstorable values ---


def _encode_rewritten(value: Any, describe: Form) -> bytes:
    try:
        return ormsgpack.packb(_rewrite(value, describe, 0), describe, _OPTIONS)
    except UnstorableValue as error:
        raise _locate(value, error, describe) from None
    except (TypeError, RecursionError):
        raise UnstorableValue(name_of(type(value)), _TOO_DEEP) from None


def _rewrite(value: Any, describe: Form, depth: int) -> Any:
    """Return a value in terms that ormsgpack packs without loss, including records."""
    kind = type(value)
    if depth > _MAX_DEPTH:
        raise UnstorableValue(name_of(kind), _TOO_DEEP)
    if kind is str:
        return value if _is_utf8(value) else Ext(Leaf.SURROGATES, value.encode(errors="surrogatepass"))
    if kind in _ATOMS:
        return value
    if kind is list:
        return [_rewrite(part, describe, depth + 1) for part in value]
    if kind is dict and all(type(key) is str and _is_utf8(key) for key in value):
        return {key: _rewrite(part, describe, depth + 1) for key, part in value.items()}
    if kind is bytearray:
        return Ext(Leaf.BYTEARRAY, bytes(value))
    try:
        described = [MARKS[Record.DICT], *flat(value)] if kind is dict else describe(value)
    except UnstorableValue:
        raise
    except Exception as error:
        reason = f"its attributes cannot be read: {type(error).__name__}: {error}"
        raise UnstorableValue(name_of(kind), reason) from error
    return _rewrite(described, describe, depth)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _holds(value: Any, wanted: frozenset[type]) -> bool:
    """Return whether a packable value contains values of the wanted types."""
    level = [value]  # by levels, because a separate search of each of 500 records took longer than packing them
    while True:
        kinds = set(map(type, level))
        if kinds & wanted:
            return True
        if kinds <= _ATOMS:
            return False
        parts = [part for part in level if type(part) not in _ATOMS]
        level = []
        for part in parts:
            kind = type(part)
            level += part.values() if kind is dict else part if kind in _CONTAINERS else (describe(part),)


def _locate(value: Any, error: UnstorableValue, describe: Form) -> UnstorableValue:
    """Return the error with the path to the part that cannot be stored."""
    if error.reason == _TOO_DEEP:
        return error
    place, encode = "", build_encoder(describe)
    try:
        if type(value) not in (dict, list):
            describe(value)
    except Exception:  # the value itself is unstorable
        return error
    try:
        for label, part in _parts(value):
            place = label
            encode(part)
    except UnstorableValue as inner:
        return UnstorableValue(inner.type_name, inner.reason, place + inner.path)
    except Exception:  # its parts cannot be read
        return error
    return error


class _ShortRepr(Repr):
    """Also supports integers with more digits than Python prints (4,300)."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"{hex(x)[:30]}..."


short_repr = _ShortRepr().repr


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value as users see them, each with its Python expression."""
    if isinstance(value, dict):
        yield from ((f"[{short_repr(key)}]", part) for key, part in dict.items(value))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{short_repr(part)}}}", part) for part in value)
    if shape_of(type(value)).family is not None:
        extras = getattr(value, "__pydantic_extra__", None) or {}
        private = getattr(value, "__pydantic_private__", None) or {}
        if isinstance(value, BaseException):
            yield from ((f".args[{index}]", part) for index, part in enumerate(value.args))
            yield ".__cause__", value.__cause__
        state = state_of(value, shape_of(type(value)))
        yield from ((f".{name}", part) for name, part in (state | extras | private).items())
    if isinstance(value, dict):
        yield from ((f" key {short_repr(key)}", key) for key in dict.keys(value))


def find_unread(value: Any) -> Iterator[Unread]:
    """Yield the placeholders in a value, including nested ones."""
    left, seen = [value], set[int]()
    while left:
        part = left.pop()
        if type(part) in _ATOMS or id(part) in seen:
            continue
        seen.add(id(part))  # shared parts are searched once
        if type(part) is Unread:
            yield part
            part = part.stored
        left += reversed([each for _, each in _parts(part)])


# --- Back to values: unpacked in C, then each record is replaced by its object ---


class _Decoding:
    """One run of ormsgpack: its Ext hook, and the state that the hook collects."""

    __slots__ = ("error", "policy", "records")

    def __init__(self, policy: TypePolicy) -> None:
        self.policy = policy
        self.records = False
        self.error: BaseException | None = None

    def run(self, data: bytes) -> Any:
        """Return the value of one packed element."""
        try:
            root = ormsgpack.unpackb(b"".join((_HEAD, data, _TAIL)), ext_hook=self._ext)
            if len(root) != 3 or root[2] != _END:
                raise CorruptStore("stored bytes continue after the end of the value")
            if self.records:
                _replace_records(root, self.policy)
        except Exception as error:
            raise _translate(self.error or error) from error
        return root[1]

    def _ext(self, code: int, data: bytes) -> Any:
        record = RECORDS.get(code)
        if record is not None:
            self.records = True
            return record
        try:
            return leaf_or_unread(code, data, self.policy) if self.policy.shows else LEAVES[code](data, self.policy)
        except BaseException as error:  # ormsgpack replaces any error raised here by its own
            self.error = error
            raise


_first = itemgetter(0)


def _item(item: Any, loads: Callable[[tuple[str, bytes]], Any] | None) -> Any:
    if item[0] == 0 and len(item) == 2:  # the most frequent case
        return item[1]
    if item[0] != 2 or len(item) != 3 or type(item[1]) is not str or type(item[2]) is not bytes:
        raise CorruptStore(f"unknown kind of stored item: {short_repr(item[0])}")
    if loads is None:
        raise CorruptStore(
            f"a value was written by another serializer (its type tag is {item[1]!r}): "
            "open the saver with the same serde="
        )
    return loads((item[1], item[2]))


def _translate(error: BaseException) -> BaseException:
    if isinstance(error, (CorruptStore, RefusedType)) or not isinstance(error, Exception):
        return error
    try:
        reason = f"{type(error).__name__}: {error}"
    except ValueError:  # a number with more digits than Python prints
        reason = type(error).__name__
    return CorruptStore(f"stored bytes are damaged: {reason}")


def _replace_records(root: list[Any], policy: TypePolicy) -> None:
    """Replace every record under `root` by its object, in place.

    Without recursion, so that the depth of damaged or hostile bytes does not matter.
    """
    records: list[tuple[Any, Any, Any]] = []
    containers: list[Any] = [root]
    for parent in containers:  # grows during the loop, so that parents precede children
        for key, part in parent.items() if type(parent) is dict else enumerate(parent):
            kind = type(part)
            if kind is list and part:
                if type(part[0]) is Mark:
                    records.append((parent, key, part))
                containers.append(part)
            elif kind is dict and part:
                containers.append(part)
            elif kind is Mark and key != 0:
                raise CorruptStore("found the mark of a record instead of a value")
    shows = policy.shows
    for parent, key, record in reversed(records):
        mark = record[0]
        parent[key] = mark.build_or_show(record, policy) if shows else mark.build(record, policy)


# --- Adapter for the encoding: items, and fingerprints that prove a value unchanged ---

_OWN = KeelSerializer()


def digest(data: bytes | memoryview) -> int:
    """Return a 128-bit hash of `data`, comparable within this process only."""
    return xxhash.xxh3_128_intdigest(data, seed=_SEED)


def short_digest(data: bytes) -> int:
    """Return a 64-bit hash of `data`, comparable within this process only."""
    return xxhash.xxh3_64_intdigest(data, seed=_SEED)


def prove(value: Any) -> int:
    """Return a digest of a whole value; 0 if it cannot be packed in one pass."""
    packed = pack_unchecked(value)
    return 0 if packed is None else digest(packed)


class Codec:
    """Creates items and fingerprints with one serializer."""

    __slots__ = ("_encode", "alone", "is_own", "limit", "serde", "shows")

    def __init__(self, serde: SerializerProtocol, alone: float = inf) -> None:
        self.serde = serde
        self.alone = alone  # bytes above which a list item has its own row
        self.is_own = type(serde) is KeelSerializer
        self.shows = False  # whether refused values are shown as placeholders
        self._encode: Callable[[Any], bytes] = serde.pack if isinstance(serde, KeelSerializer) else encode
        self.limit = serde.max_bytes if isinstance(serde, KeelSerializer) else MAX_BYTES

    def with_placeholders(self, note: OnUnread | None = None) -> Codec:
        """Return a codec that replaces refused values by placeholders (`Unread`)."""
        codec = Codec(with_placeholders(self.serde, note))
        codec._encode, codec.shows = encode, True
        return codec

    def pack_item(self, value: Any) -> bytes:
        """Return `value` as one item."""
        if isinstance(self.serde, KeelSerializer):
            return self.serde.pack_item(value)
        return self._pack_foreign(value)

    def pack_marked(self, value: Any, mark: bytes) -> bytes:
        """Return `value` as one item, reusing its fingerprint with Keel's serializer."""
        if isinstance(self.serde, KeelSerializer):
            return self.serde.item_of(value, mark)
        return self._pack_foreign(value)

    def _pack_foreign(self, value: Any) -> bytes:
        try:
            kind, data = self.serde.dumps_typed(value)
        except KeelError:
            raise
        except Exception as error:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            reason = f"{type(self.serde).__name__} cannot store it: {type(error).__name__}: {error}"
            raise UnstorableValue(name, reason) from error
        return array_header(3) + _OWN.pack(2) + _OWN.pack(kind) + _OWN.pack(bytes(data))

    def unpack_items(self, data: bytes) -> list[Any]:
        """Return fresh objects for the items in an unframed row body."""
        if isinstance(self.serde, KeelSerializer):
            return self.serde.unpack_items(data)
        return _OWN.unpack_items(data, loads=self.serde.loads_typed)

    def encode(self, values: Sequence[Any]) -> bytes:
        """Return a framed body of values."""
        if self.is_own:  # in one pass if possible
            try:
                if len(data := self._encode([_form_of(value) for value in values])) * MOST_MEMORY <= self.limit:
                    return frame(data)
            except UnstorableValue:
                pass  # raised again below, with the place
        items = [self.pack_item(value) for value in values]
        if sum(map(len, items)) * MOST_MEMORY > self.limit and takes_more(b"".join(items), self.limit):
            raise UnstorableValue(f"{len(items)} values", too_large(self.limit))
        return body_of(items)

    def decode(self, body: bytes) -> list[Any]:
        """Return the values that were passed to `encode`."""
        return self.unpack_items(self.open(body))

    def open(self, body: bytes) -> bytes:
        """Return the packed items of a frame, within the memory limit."""
        if self.shows and (absent := read_absent(body)):
            return _show_absent(absent)
        most = self.limit + HUGE_ROW * MOST_MEMORY  # a row may contain small items next to one of maximum size
        content = open_frame(body, most)
        if takes_more(content, most):
            raise CorruptStore(f"a stored body of {len(body)} bytes is {too_large(self.limit)}")
        return content

    def revives(self, cls: type, shape: Shape) -> bool:
        """Return whether stored values of a class would be revived as this same class."""
        return isinstance(self.serde, KeelSerializer) and self.serde._policy.revives(cls, shape)

    def plain_error(self, error: Any) -> Any:
        """Return the stored form of an error: text, or the error for a foreign serializer."""
        return repr(error) if isinstance(self.serde, KeelSerializer) and isinstance(error, BaseException) else error

    def fingerprint(self, value: Any) -> bytes:
        """Return bytes that differ whenever the stored form differs."""
        try:
            return self._encode(value)
        except UnstorableValue:
            # Only a foreign serializer supports it. If its bytes are random (a nonce), the value counts as changed.
            return self.pack_item(value)

    def marks(self, values: list[Any]) -> list[bytes]:
        """Return the fingerprint of each element.

        Joined, a prefix of elements is a prefix of the bytes.
        """
        try:
            return list(map(self._encode, values))
        except UnstorableValue:
            return [self._mark(place, value) for place, value in enumerate(values)]

    def _mark(self, place: int, value: Any) -> bytes:
        try:
            return self.fingerprint(value)
        except UnstorableValue as error:
            raise error.under(f"[{place}]") from error


def _form_of(value: Any) -> list[Any]:
    """Return the form that ormsgpack packs to the bytes of `pack_item`."""
    form = describe(value) if type(value) in MESSAGE_CODES else None
    return [1, *form[1:]] if type(form) is list and form[0] is MARKS[Record.MESSAGE] else [0, value]


def _show_absent(absent: Absent) -> bytes:
    """Return items shown as placeholders for those in a lost or inaccessible object."""
    if absent.count > MOST_ITEMS:
        raise CorruptStore(f"the reference to an object claims {absent.count:,} items")
    reason = absent.reason or "it is stored outside of this store, which was opened without blobs="
    fields = {"bytes": absent.size, "sha256": absent.digest.hex(), "reason": reason}
    item = ormsgpack.packb([0, [MARKS[Record.DATACLASS], *LOST, fields, {}, []]])
    return array_header(absent.count) + item * absent.count


def with_allowlist_of(serde: SerializerProtocol, extra: Collection[tuple[str, ...]]) -> SerializerProtocol:
    """Pass an allowlist through the layers of a serializer.

    Unchanged if it does not support allowlists.
    """
    return _change_innermost(serde, "with_msgpack_allowlist", extra)


def with_placeholders(serde: SerializerProtocol, note: OnUnread | None = None) -> SerializerProtocol:
    """Return a serializer that reads placeholders, also through layers.

    Unchanged if unsupported.
    """
    return _change_innermost(serde, "with_placeholders", note)


def with_moved_classes(serde: SerializerProtocol, moved: Mapping[tuple[str, str], Named]) -> SerializerProtocol:
    """Return a serializer that knows moved classes, also through layers.

    Unchanged if unsupported.
    """
    return _change_innermost(serde, "with_moved_classes", moved) if moved else serde


def _change_innermost(serde: SerializerProtocol, name: str, argument: Any) -> SerializerProtocol:
    """Call a method of a serializer, or of the innermost `serde` that it wraps.

    LangGraph's own function supports one wrapper and only warns for others. The graph's models then become dicts.
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
