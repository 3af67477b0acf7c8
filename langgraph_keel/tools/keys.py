"""The keys of calls: a keyed hash over the tool's name and validated arguments.

The arguments are the model's, after validation by the tool's own schema: defaults are filled in, "1" equals 1 for an
int, and injected arguments (state, store, ids) are excluded. They are written as canonical JSON (RFC 8785), in which a
list equals a tuple, and 1 equals 1.0; values that JSON cannot distinguish (bytes, dates, sets, large integers, ...) are
tagged. Because the hash is keyed (HMAC-SHA-256), a reader of the keys cannot guess arguments.
"""

from __future__ import annotations

import base64
import hmac
import inspect
import json
import math
import secrets
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any
from uuid import UUID

import rfc8785
from langchain_core.tools import BaseTool
from pydantic import BaseModel, create_model
from pydantic.errors import PydanticUserError

from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.session import Session
from langgraph_keel.engine.tables import Cells
from langgraph_keel.errors import InvalidInput
from langgraph_keel.tools.ledger import OWN, SECRETS, CallRecord

_SAFE = 2**53 - 1
"""The largest integer in RFC 8785: JSON's numbers are doubles."""
_TAG = "$keel"
_NAMED = (datetime, date, time, UUID, Decimal, PurePath)
_TOOLS = "tools"
"""The key of the stored secret."""


class HashSecret:
    """The key of the hash: given, or generated once and kept in the store."""

    def __init__(self, given: bytes | None) -> None:
        self._secret = given

    def read(self, session: Session) -> Plan[bytes | None]:
        """Return it; `None` if the store has none, and thus no calls. At most one trip."""
        if self._secret is not None:
            return self._secret
        kept = yield from Cells(session, SECRETS, None).find(_TOOLS)
        return kept.record if kept else None

    def read_or_make(self, session: Session) -> Plan[bytes]:
        """Return it, or generate one if the store has none. One trip, unless it is known."""
        if self._secret is None:
            fresh = secrets.token_bytes(32)
            _, kept = yield from Cells(session, SECRETS, None).swap(_TOOLS, None, fresh)
            self._secret = kept.record if kept else fresh
        return self._secret


def arguments_of(tool: BaseTool, args: Mapping[str, Any], ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return a call's arguments, validated by the schema, without injected ones."""
    model, injected = _model_of(tool.get_input_schema(), _names_in(tool.tool_call_schema), frozenset(ignore))
    given = {name: value for name, value in args.items() if name not in injected}
    if model is None:
        return given
    try:
        valid = model.model_validate(given)
    except ValueError:
        return given
    # Generated defaults (an id, a time) would make every call different.
    names = {
        name
        for name, field in model.model_fields.items()
        if name not in injected and (name in valid.model_fields_set or field.default_factory is None)
    }
    return {name: getattr(valid, name) for name in names} | dict(valid.model_extra or {})


def _names_in(schema: Any) -> frozenset[str] | None:
    return frozenset(schema.model_fields) if _is_model(schema) else None


def _is_model(schema: Any) -> bool:
    return inspect.isclass(schema) and issubclass(schema, BaseModel)


@lru_cache(maxsize=1000)
def _model_of(
    schema: Any, known: frozenset[str] | None, ignore: frozenset[str]
) -> tuple[type[BaseModel] | None, frozenset[str]]:
    """Return the validation model with optional injected arguments, and their names."""
    # LangChain's `tool_call_schema` is not enough: it drops aliases, settings (`extra="allow"`) and validators.
    if known is None or not _is_model(schema):
        return None, frozenset(ignore)
    injected = frozenset(schema.model_fields) - known
    missing: dict[str, Any] = dict.fromkeys(injected | ignore & frozenset(schema.model_fields), (Any, None))
    return create_model(schema.__name__, __base__=schema, **missing) if missing else schema, injected | ignore


def version_of(tool: BaseTool | None, declared: str | None) -> str:
    """Return a tool's version: declared, or a hash of its schema and source."""
    if declared is not None:
        return declared
    if tool is None:
        return ""
    schema: Any = tool.tool_call_schema
    try:
        shown = schema.model_json_schema() if _is_model(schema) else schema
    except PydanticUserError:  # a type without a JSON Schema
        shown = repr(schema.model_fields)
    text = json.dumps([tool.name, shown, _source(tool)], sort_keys=True, default=repr)
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _source(tool: BaseTool) -> str:
    what: Any = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)
    try:
        return inspect.getsource(what)
    except (OSError, TypeError):
        return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', '')}"


def key_of(secret: bytes, tool: str, scope: Sequence[str], args: Mapping[str, Any]) -> str:
    """Return the key of a call: 64 hexadecimal digits."""
    try:
        text = rfc8785.dumps(["keel.tool.1", tool, list(scope), canonical(tool, args)])
    except (RecursionError, UnicodeEncodeError, rfc8785.CanonicalizationError) as error:
        raise InvalidInput(f"the arguments of tool {tool!r} have no canonical form: {error}") from error
    return hmac.new(secret, text, sha256).hexdigest()


def canonical(tool: str, args: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as JSON; different values stay different."""
    return to_json(dict(args), f"tool {tool!r}, arguments")


def to_json(value: Any, where: str) -> Any:
    """Return a value as JSON: equal values are equal, and different ones differ."""
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    for kind, form in _FORMS.items():
        if isinstance(value, kind):
            return form(value, where)
    if is_dataclass(value) and not isinstance(value, type):
        return _object(value, {field.name: getattr(value, field.name) for field in fields(value)}, where)
    raise InvalidInput(
        f"{where}: a {_class_of(value)} has no canonical form, so the call cannot be "
        "recognized: leave the argument out (ToolPolicy(ignore=[...])), or give it a type that can be compared"
    )


def _tag(kind: str, value: Any) -> dict[str, Any]:
    return {_TAG: [kind, value]}


def _number(value: int | float, where: str) -> Any:
    if isinstance(value, int):
        return value if -_SAFE <= value <= _SAFE else _tag("int", str(value))
    return value if math.isfinite(value) else _tag("float", repr(value))


def _mapping(value: Mapping[Any, Any], where: str) -> Any:
    if all(type(name) is str for name in value) and _TAG not in value:
        return {name: to_json(part, f"{where}.{name}") for name, part in value.items()}
    pairs = [[to_json(name, where), to_json(part, f"{where}[{name!r}]")] for name, part in value.items()]
    return _tag("dict", sorted(pairs, key=rfc8785.dumps))


def _sequence(value: Collection[Any], where: str) -> Any:
    return [to_json(part, f"{where}[{place}]") for place, part in enumerate(value)]


def _set(value: Collection[Any], where: str) -> Any:
    return _tag("set", sorted((to_json(part, where) for part in value), key=rfc8785.dumps))


def _object(value: Any, parts: Mapping[str, Any], where: str) -> Any:
    return _tag("object", [_class_of(value), _mapping(parts, where)])


def _class_of(value: Any) -> str:
    return f"{_module_of(type(value))}.{type(value).__qualname__}"


def _module_of(kind: type) -> str:
    """Return the module of a class, the same whether the program is run or imported."""
    main = sys.modules.get("__main__")
    if kind.__module__ != "__main__" or main is None:
        return kind.__module__
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return str(spec.name) if spec else Path(path).stem if path else kind.__module__


def _model(value: BaseModel, where: str) -> Any:
    return _object(value, {**dict(value), **(value.model_extra or {})}, where)


_FORMS: Mapping[Any, Callable[[Any, str], Any]] = {
    Enum: lambda value, where: _tag("enum", [_class_of(value), to_json(value.value, where)]),
    (int, float): _number,
    Mapping: _mapping,
    (list, tuple): _sequence,
    (set, frozenset): _set,
    (bytes, bytearray): lambda value, where: _tag("bytes", base64.b64encode(value).decode()),
    timedelta: lambda value, where: _tag("timedelta", [value.days, value.seconds, value.microseconds]),
    _NAMED: lambda value, where: _tag(type(value).__name__, str(value)),
    BaseModel: _model,
}


def key_of_one(key: str, record: CallRecord) -> str:
    """Return the key of a call that answers only itself; `key` is its prefix."""
    return f"{key}{OWN}{own_key(key, record)[:32]}"


def own_key(key: str, record: CallRecord) -> str:
    """Return a call's own key, where `key` is that of all equal calls."""
    text = json.dumps([key, record.task_id, record.tool_call_id, record.place])
    return sha256(text.encode()).hexdigest()
