"""The public Python API as data: names, signatures, fields, options; no modules."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typing_extensions import is_typeddict

import langgraph_keel
from langgraph_keel import KeelSaver, MemorySaver, testing
from langgraph_keel.retention.check import Finding

SAVERS = ("KeelSaver", "FileSaver", "MemorySaver", "PostgresSaver", "RedisSaver", "SqliteSaver")
OPERATORS = """
    __aenter__ __aexit__ __aiter__ __anext__ __bool__ __call__ __contains__ __enter__ __eq__ __exit__ __getitem__
    __hash__ __iter__ __len__ __next__ __repr__ __reversed__ __str__ _repr_html_ _repr_mimebundle_ _repr_svg_
"""
MARKS: dict[Any, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional ",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "",
    inspect.Parameter.KEYWORD_ONLY: "named ",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_DOTTED = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN = (str, int, float, bool, tuple, type(None))


def is_ours(cls: Any) -> bool:
    return str(cls.__module__).partition(".")[0] == "langgraph_keel"


def text_of(annotation: Any) -> str:
    """Return an annotation without its modules."""
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _DOTTED.sub("", shown.replace("'", '"'))


def default_of(default: Any) -> str:
    if inspect.isroutine(default) or isinstance(default, type):
        return f"<{default.__qualname__}>"
    if isinstance(default, set | frozenset):
        return f"{type(default).__name__}({sorted(default)})"
    return repr(default) if isinstance(default, str) else _ADDRESS.sub("", _DOTTED.sub("", repr(default)))


def parameters(function: Any, *, without_self: bool) -> list[str]:
    """Return the parameters as written, with marks for positional- and keyword-only."""
    found = list(inspect.signature(function).parameters.values())
    return list(map(parameter_form, found[1:] if without_self else found))


def parameter_form(each: inspect.Parameter) -> str:
    annotation = (
        "" if each.annotation is each.empty or each.kind is each.VAR_KEYWORD else f": {text_of(each.annotation)}"
    )
    default = "" if each.default is each.empty else f" = {default_of(each.default)}"
    return f"{MARKS[each.kind]}{each.name}{annotation}{default}"


def kind_of(function: Any) -> str:
    kinds: dict[str, Callable[[Any], bool]] = {
        "async generator": inspect.isasyncgenfunction,
        "async": inspect.iscoroutinefunction,
        "generator": inspect.isgeneratorfunction,
    }
    return next((name for name, fits in kinds.items() if fits(function)), "def")


def function_form(function: Any, *, without_self: bool = False) -> dict[str, Any]:
    returned = inspect.signature(function).return_annotation
    return {
        "kind": kind_of(function),
        "parameters": parameters(function, without_self=without_self),
        "returns": "" if returned is inspect.Signature.empty else text_of(returned),
    }


# -- classes ----------------------------------------------------------------------------------------------------------


def holder_of(cls: Any, name: str) -> Any:
    """Return the class that defines a name for `cls`."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def member_form(cls: Any, name: str) -> Any:
    raw = vars(holder_of(cls, name))[name]
    if isinstance(raw, property) or type(raw).__name__ == "cached_property":
        getter: Any = raw.fget if isinstance(raw, property) else raw.func
        writable = " writable" if isinstance(raw, property) and raw.fset else ""
        return f"property{writable} -> {text_of(inspect.signature(getter).return_annotation)}"
    if isinstance(raw, classmethod | staticmethod):
        bound = {"classmethod": True, "staticmethod": False}[type(raw).__name__]
        return {"of": type(raw).__name__} | function_form(raw.__func__, without_self=bound)
    if inspect.isfunction(raw):
        return function_form(raw, without_self=True)
    return f"= {default_of(raw)}" if isinstance(raw, _PLAIN) else f"<{type(raw).__name__}>"


def members(cls: Any) -> Iterator[str]:
    fields = {each.name for each in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set[str]()
    for name in sorted(dir(cls)):
        holder = holder_of(cls, name)
        if name.startswith("_") or name in fields or holder is None or not is_ours(holder):
            continue
        if name not in getattr(cls, "model_fields", ()) and type(vars(holder)[name]).__name__ != "member_descriptor":
            yield name


def fields_of(cls: Any) -> list[str]:
    if is_typeddict(cls):
        optional: Any = getattr(cls, "__optional_keys__", ())
        return sorted(f"{name}{'?' * (name in optional)}" for name in typing.get_type_hints(cls))
    if not dataclasses.is_dataclass(cls):
        return []
    return [each.name for each in dataclasses.fields(cls)]


def bases_of(cls: Any) -> list[Any]:
    """Return the public and foreign classes that it extends, the nearest first."""
    names = (getattr(langgraph_keel, name) for name in langgraph_keel.__all__)
    public = {*filter(inspect.isclass, names), testing.Face, testing.SaverMachine}
    return [base for base in cls.__mro__[1:] if base is not object and (base in public or not is_ours(base))]


def own_members(cls: Any) -> dict[str, Any]:
    """Return its members, except those that it inherits unchanged from a public class."""
    known = [{name: member_form(base, name) for name in members(base)} for base in bases_of(cls) if is_ours(base)]
    forms = {name: member_form(cls, name) for name in members(cls)}
    return {name: form for name, form in forms.items() if not any(each.get(name) == form for each in known)}


def class_form(cls: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"bases": [base.__qualname__ for base in bases_of(cls)]}
    options = getattr(cls, "__dataclass_params__", None)
    if options:
        form["dataclass"] = [name for name in ("eq", "order", "frozen") if getattr(options, name)]
        form["slots"] = "__dict__" not in dir(cls)
    if fields := fields_of(cls):
        form["fields"] = fields
    if not issubclass(cls, KeelSaver) and not is_typeddict(cls) and is_ours(holder_of(cls, "__init__")):
        form["made by"] = parameters(cls.__init__, without_self=True)
    form["operators"] = [name for name in OPERATORS.split() if (at := holder_of(cls, name)) is not None and is_ours(at)]
    form["members"] = own_members(cls)
    if issubclass(cls, KeelSaver):  # see `saver_form`
        form["members"].pop("from_conn_string", None)
    return {key: part for key, part in form.items() if part not in ([], {})}


def form_of(holder: Any, name: str) -> Any:
    named = getattr(holder, name)
    if isinstance(named, type):
        return class_form(named) if named.__name__ == name else f"= {named.__name__}"
    return function_form(named) if inspect.isfunction(named) else f"<{type(named).__name__}>"


# -- savers: the options they accept, wherever those are declared -----------------------------------------------------


def effective(cls: Any) -> list[str]:
    """Return the parameters of a constructor, with those that its `**options` forward."""
    said: dict[str, str] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or not is_ours(base):
            continue
        found = [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
        for each in found:
            is_own = base is holder_of(cls, "__init__") or each.kind is each.KEYWORD_ONLY
            if is_own and each.kind is not each.VAR_KEYWORD and each.name not in said:
                named = "named " if each.kind is each.KEYWORD_ONLY else ""
                default = "" if each.default is each.empty else f" = {default_of(each.default)}"
                said[each.name] = f"{named}{each.name}{default}"
        if not any(each.kind is each.VAR_KEYWORD for each in found):
            break
    return sorted(said.values())


def saver_form(name: str) -> dict[str, Any]:
    cls = getattr(langgraph_keel, name)
    form: dict[str, Any] = {"constructor": effective(cls)}
    if is_ours(holder_of(cls, "from_conn_string") or object):
        signature = inspect.signature(cls.from_conn_string)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        takes_all = len(own) < len(signature.parameters)
        first = next(iter(inspect.signature(cls).parameters))
        handed = [each for each in effective(cls) if takes_all and each.startswith("named ")]
        form["from_conn_string"] = {"first": [each.name for each in own], "for": first, "options": handed}
    return form


# -- classes reached through public names -----------------------------------------------------------------------------


def reached() -> dict[str, Any]:
    """Return the classes without a public name whose instances programs receive."""
    hints = typing.get_type_hints
    with MemorySaver() as saver:
        timeline = saver.timeline("none")
        found = {
            "saver.approvals": type(saver.approvals),
            "saver.keys": type(saver.keys),
            "saver.moving": type(saver.moving),
            "saver.retention": type(saver.retention),
            "saver.tenants": type(saver.tenants),
            "timeline[:]": type(timeline[:]),
            "timeline.compare()": hints(langgraph_keel.Timeline.compare)["return"],
            "timeline.plot()": type(timeline.plot()),
            "label.address": type(timeline_address()),
            "saver.check()[0]": Finding,
            "saver.info()": type(saver.info()),
            "redis.durability()": hints(langgraph_keel.RedisSaver.durability)["return"],
            "cache.middleware()": type(langgraph_keel.ToolCache(saver).middleware()),
            "saver.summarization_middleware()": type(saver.summarization_middleware(None, keep=("messages", 2))),
        }
    return {where: class_form(cls) for where, cls in found.items()}


def timeline_address() -> Any:
    """Return the address of a moment, as a saver returns it."""
    with MemorySaver() as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        checkpoint: Any = {
            "v": 4,
            "id": "1",
            "ts": "",
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
        }
        saver.put(config, checkpoint, {}, {})
        return saver.timeline("t")[0].address


def surface() -> dict[str, Any]:
    """Return the whole surface."""
    assert issubclass(MemorySaver, KeelSaver)
    return {
        "names": sorted(langgraph_keel.__all__),
        "langgraph_keel": {name: form_of(langgraph_keel, name) for name in sorted(langgraph_keel.__all__)},
        "langgraph_keel.testing": {name: form_of(testing, name) for name in sorted(testing.__all__)},
        "savers": {name: saver_form(name) for name in SAVERS},
        "reached": reached(),
        "files": ["py.typed"] if (Path(langgraph_keel.__file__).parent / "py.typed").exists() else [],
    }
