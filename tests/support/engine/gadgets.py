"""Try every class that LangChain, LangGraph and providers import as a gadget.

Run it with `python -m support.engine.gadgets`. A stored record names each class with too few fields, too many, or all
of them, in every form of record. No code of a class may run. The result must be a named error, or an object with
exactly the stored attributes. A profiler observes every call of Python code. The process exits without running
finalizers, since those of bare objects may fail.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import json
import os
import pkgutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import ormsgpack

import langgraph_keel
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.engine.serde.types import Leaf, Record, Shape, base_of, shape_of
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.errors import CorruptStore, RefusedType
from support.tiers import sized

PACKAGES = ("langchain", "langchain_core", "langchain_openai", "langchain_anthropic", "langgraph")
ALL = ["one", "two"]


def import_all() -> None:
    """Import all modules of the packages, except those whose dependencies are missing."""
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)


def all_classes() -> dict[tuple[str, str], type]:
    """Return every class that a stored name could refer to, by its name."""
    found: dict[tuple[str, str], type] = {}

    def look(holder: Any, module: str, within: str) -> None:
        for name, each in list(vars(holder).items()):
            if issubclass(type(each), type) and (each.__module__, each.__qualname__) == (module, within + name):
                found[module, within + name] = each
                look(each, module, f"{within}{name}.")

    for name, module in list(sys.modules.items()):
        if type(module) is type(sys):
            look(module, name, "")
    return found


def classes_to_try() -> dict[tuple[str, str], type]:
    """Return the classes to try.

    In CI, only one in 16 of the classes outside `PACKAGES` and `builtins`. The clients of OpenAI and Anthropic generate
    half of those.
    """
    found = all_classes()
    others = [name for name in sorted(found) if name[0].partition(".")[0] not in (*PACKAGES, "builtins")]
    left_out = set(others) - set(others[:: sized(16, 16, 1)])
    return {name: cls for name, cls in found.items() if name not in left_out}


# --- What stored bytes may contain about a class, and the attributes of its objects ---


def pack(kind: Record, *parts: Any) -> bytes:
    return ormsgpack.packb([ormsgpack.Ext(kind, b""), *parts])


def forge(name: tuple[str, str], cls: Any, shape: Shape) -> Iterator[tuple[bytes, Any]]:
    """Yield records that name the class, each with the expected fields, or `None`."""
    fields = dict.fromkeys(sorted(shape.fields), "stored")
    few = dict([*fields.items()][1:])
    for given in (few, {**fields, "keel_unknown": 1}, fields, {}):
        expected = given if given == fields else None
        yield pack(Record.DATACLASS, *name, given, {}, []), expected
        yield pack(Record.MODEL, *name, given, {}, [], [*given], None, None), expected
        yield pack(Record.MODEL_V1, *name, given, {}, [], [*given]), expected
        yield pack(Record.NAMEDTUPLE, *name, [*given], [*given.values()], {}), expected
        yield pack(Record.DATACLASS, *name, given, None), None
        yield pack(Record.MODEL, *name, given, None), None
    yield pack(Record.MODEL, *name, fields, {}, [], [], {"keel_unknown": 1}, {"keel_unknown": 1}), None
    yield pack(Record.DATACLASS, *name, few, {"loose": 1}, [*fields][:1]), {**few, "loose": 1}
    yield (
        pack(
            Record.NAMEDTUPLE,
            *name,
            list(cls._fields if shape.family is Record.NAMEDTUPLE else ()),
            ["stored"] * len(fields),
            {},
        ),
        fields,
    )
    slots = dict.fromkeys(shape.slots, "stored")
    for given in ({**slots, "keel_unknown": 1}, slots, {}):
        yield pack(Record.SLOTTED, *name, given), slots if given == slots else None
        yield pack(Record.EXCEPTION, *name, ["stored"], given), given
    yield pack(Record.EXCEPTION, *name, ["stored", []], {}), {}
    for content in ("stored", 1, 1.5, b"stored", [], ALL, [None, *ALL]):
        base = base_of(cls)
        yield pack(Record.BUILTIN, *name, base.__name__ if base else "str", content, {"loose": 1}), {"loose": 1}
    members = cls.__members__ if shape.family is Leaf.ENUM else ()
    for member in (*[*members][:1], "keel_unknown"):
        yield ormsgpack.packb(ormsgpack.Ext(Leaf.ENUM, ormsgpack.packb([*name, member]))), {}
    yield ormsgpack.packb(ormsgpack.Ext(Leaf.ENUM, ormsgpack.packb([*name, None, "3"]))), {}


def state_of(made: Any, shape: Shape) -> dict[str, Any]:
    """Return the attributes of an object without running code of its class."""
    if isinstance(made, enum.Enum):
        return {}
    if issubclass(type(made), tuple) and shape.fields:
        return dict(zip(type(made)._fields, tuple.__iter__(made), strict=True))
    state = dict(shape.attributes(made)) if shape.attributes else {}
    for name, slot in shape.slots.items():
        with contextlib.suppress(AttributeError):
            state[name] = slot.__get__(made)
    # Values of unset attributes of exceptions that are written in C.
    unset = (None, 0) if isinstance(made, BaseException) else (None,)
    return {name: part for name, part in state.items() if name in shape.fields or part not in unset}


# --- Which code runs during the load ---

# Code of Python that inspects or finds classes, and pydantic's lookup of a model's fields.
INFRASTRUCTURE = {
    *("dataclasses.py", "inspect.py", "weakref.py", "_weakrefset.py", "enum.py", "abc.py", "typing.py"),
    *("pydantic/main.py:model_fields", "pydantic/_internal/_utils.py:__get__"),
}


def listen(heard: set[str]) -> Callable[[Any, str, Any], None]:
    own = os.path.dirname(langgraph_keel.__file__)

    def hear(frame: Any, event: str, _: Any) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and not path.startswith(own):
            called = f"{'/'.join(path.split(os.sep)[-2:])}:{name}"
            if os.path.basename(path) not in INFRASTRUCTURE and not any(map(called.endswith, INFRASTRUCTURE)):
                heard.add(f"{path}:{name}")

    return hear


def try_all() -> dict[str, Any]:
    import_all()
    result: Counter[str] = Counter()
    faults: list[str] = []
    kept: list[Any] = []
    open_to_all = KeelSerializer()
    showing = open_to_all.with_placeholders()
    classes = classes_to_try()
    for name, cls in classes.items():
        shape = shape_of(cls)
        listed = KeelSerializer(types=[cls])
        for data, expected in forge(name, cls, shape):
            for serializer in (open_to_all, listed, showing):
                heard: set[str] = set()
                hear = listen(heard)
                sys.setprofile(hear)
                try:
                    made: Any = serializer.unpack(data)
                except (RefusedType, CorruptStore):
                    made = None
                finally:
                    sys.setprofile(None)
                kept.append(made)
                if heard:
                    faults.append(f"{name}: ran {sorted(heard)}")
                if serializer is showing:
                    result["shown"] += type(made) is Unread
                    continue
                result["revived" if made is not None else "refused"] += 1
                if made is not None and (
                    type(made) is not cls or expected is None or state_of(made, shape) != expected
                ):
                    faults.append(f"{name}: {data!r} came back as {type(made)} with {state_of(made, shape)!r:.300}")
                if made is not None and serializer is open_to_all:
                    result[f"of {name[0].partition('.')[0]} by default"] += 1
    result["classes"] = len(classes)
    return {**result, "faults": faults}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(try_all()), flush=True)
    os._exit(0)
