"""Decodes values of LangGraph's savers safely, with LangGraph's own serializer.

That serializer calls any class that a stored name refers to, or, in strict mode, returns bare parts. So all names in a
value are checked first, and a name that is not allowed refuses the whole value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import ormsgpack
from langchain_core.load.load import Reviver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_keel._langgraph import SAFE_MSGPACK_TYPES
from langgraph_keel.errors import CorruptStore, RefusedType

Allows = Callable[[str, str], bool]
"""Returns whether values of a class (its module and name) may be revived."""

_NAMED, _METHOD, _SNAPSHOT = range(6), 3, 7
"""Codes of LangGraph's msgpack extensions that name a class, a method, a snapshot."""
_PATHS = Reviver(allowed_objects="core").import_mappings
"""The current places of LangChain's classes, by their stored names."""
_PATTERN, _MOST_PATTERN = ("re", "compile"), 1 << 16
"""LangGraph compiles stored regular expressions: one of 3 MB takes 17 seconds."""
_SAFE_METHOD = ("datetime", "datetime", "fromisoformat")
_PICKLE = "a pickle, which can run any code when it is read: Keel never reads one. Store the thread again without it"
_UNKNOWN = (
    "stored by a serializer other than LangGraph's own: pass a saver with that serializer (serde=...) instead of a URL"
)
_UNNAMED = (
    "not allowed here: annotate the graph's state with it, or add it to types=[...] of the saver "
    "(`--import MODULE` on the command line), as {}"
)


class StoredValues:
    """Decodes stored values after checking their class names."""

    def __init__(self, allows: Allows) -> None:
        self._allows = allows
        self._known = {(module, name) for module, name in SAFE_MSGPACK_TYPES}
        self._serializer = self._make_serializer()

    def _make_serializer(self) -> JsonPlusSerializer:
        paths = [(*module.split("."), name) for module, name in self._known]
        return JsonPlusSerializer(allowed_msgpack_modules=self._known, allowed_json_modules=paths)

    def load(self, kind: str | None, data: bytes | None, where: str) -> Any:
        """Return a decoded value."""
        if kind in ("msgpack", "json"):
            self._check(kind, data or b"", where)
        elif kind not in ("null", "bytes", "bytearray"):
            raise RefusedType(str(kind), _PICKLE if kind == "pickle" else _UNKNOWN, where=where)
        try:
            return self._serializer.loads_typed((kind, data or b""))
        except Exception as error:
            raise _corruption(where, error) from error

    def load_metadata(self, data: Any, where: str) -> dict[str, Any]:
        """Return metadata that are stored as JSON."""
        if isinstance(data, bytes) and data.startswith(b"\x80"):
            raise RefusedType("pickle", _PICKLE, where=f"{where}, metadata")
        try:
            metadata = json.loads(data) if isinstance(data, str | bytes) else data
        except (ValueError, RecursionError) as error:
            raise _corruption(f"{where}, metadata", error) from error
        if not isinstance(metadata, dict | None):
            raise CorruptStore(f"{where}: its metadata is not a JSON object")
        return metadata or {}

    def _check(self, kind: str, data: bytes, where: str) -> None:
        try:
            names = set(_names_in_msgpack(data) if kind == "msgpack" else _names_in_json(data))
        except Exception as error:
            raise _corruption(where, error) from error
        if names <= self._known:
            return
        for name in sorted(names - self._known):
            if name[0] == "builtins" or not self._allows(*name):  # the builtins that LangGraph stores are known
                shown = ".".join(name)
                raise RefusedType(shown, _UNNAMED.format(shown), where=where)
        self._known |= names
        self._serializer = self._make_serializer()


def _corruption(where: str, error: Exception) -> CorruptStore:
    return CorruptStore(f"{where}: it cannot be decoded: {type(error).__name__}: {error}")


def _names_in_msgpack(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the classes named in a value, at any depth."""
    found: list[tuple[str, str]] = []
    length = 0

    def look(code: int, packed: bytes) -> Any:
        nonlocal length
        if code in _NAMED or code == _SNAPSHOT:
            parts = _unpack(packed, look)
            if code in _NAMED:
                module, name = str(parts[0]), str(parts[1])
                if (module, name) == _PATTERN and (length := length + len(str(parts[2:]))) > _MOST_PATTERN:
                    raise ValueError(f"it contains regular expressions of more than {_MOST_PATTERN:,} characters")
                is_other = code == _METHOD and (module, name, parts[3]) != _SAFE_METHOD
                found.append((module, f"{name}.{parts[3]}") if is_other else (module, name))
        return _Part()

    _unpack(data, look)
    yield from found


class _Part:
    """A placeholder for an object while names are checked; hashable for dict keys."""


def _unpack(data: bytes, look: Callable[[int, bytes], Any]) -> Any:
    return ormsgpack.unpackb(data, ext_hook=look, option=ormsgpack.OPT_NON_STR_KEYS)


def _names_in_json(data: bytes) -> Iterator[tuple[str, str]]:
    found: list[tuple[str, str]] = []

    def look(value: dict[str, Any]) -> dict[str, Any]:
        if value.get("lc") in (1, 2) and value.get("type") == "constructor" and value.get("id"):
            path = tuple(map(str, value["id"]))
            *module, name = _PATHS.get(path, path) if value["lc"] == 1 else path  # as LangChain imports it
            found.append((".".join(module), name))
        return value

    json.loads(data, object_hook=look)
    yield from found
