"""The expectations of a graph's code: annotations, required channels and tools."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import CodeType
from typing import Annotated, Any, get_type_hints

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from langgraph_keel._langgraph import DeltaSnapshot
from langgraph_keel.engine.entries import sent_tasks


def annotations_of(graph: Any) -> dict[str, Any]:
    """Return the annotations of a graph's channels; empty without a schema."""
    builder = getattr(graph, "builder", None)
    schemas = [*getattr(builder, "schemas", ())] if builder is not None else []
    hints: dict[str, Any] = {}
    for schema in schemas:
        try:
            hints |= get_type_hints(schema)
        except Exception:  # a name that is defined inside a function
            continue
    return {name: hint for name, hint in hints.items() if name in graph.channels}


class Fit:
    """Checks values against annotations, with one cached pydantic adapter for each."""

    def __init__(self) -> None:
        self._adapters: dict[int, tuple[Any, TypeAdapter[Any] | None]] = {}

    def misfits(self, annotation: Any, value: Any, path: str) -> Iterator[tuple[str, str, str]]:
        """Yield each misfit: its place, the expected form, and the value found."""
        if isinstance(value, DeltaSnapshot | BaseMessage) or (
            isinstance(value, list) and any(isinstance(each, BaseMessage) for each in value)
        ):
            return
        adapter = self._adapter(annotation)
        try:
            if adapter is not None:
                adapter.validate_python(value, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "".join(f"[{each!r}]" for each in first["loc"] if isinstance(each, int))
            yield f"{path}{place}", first["msg"], f"{first['input']!r:.80} ({type(first['input']).__name__})"
            return
        except Exception:  # the application's own code
            pass
        yield from self._inner(value, path)

    def _inner(self, value: Any, path: str) -> Iterator[tuple[str, str, str]]:
        """Check the objects inside a value, whose fields pydantic does not validate."""
        if isinstance(value, dict):
            for key, part in value.items():
                yield from self._inner(part, f"{path}[{key!r:.40}]")
        elif isinstance(value, list | tuple | set | frozenset):
            for place, part in enumerate(value):
                yield from self._inner(part, f"{path}[{place}]")
        elif type(value).__module__.startswith(("langchain", "langgraph")):
            return
        else:
            for name, annotation, part in _fields_of(value):
                yield from self.misfits(annotation, part, f"{path}.{name}")

    def _adapter(self, annotation: Any) -> TypeAdapter[Any] | None:
        if id(annotation) not in self._adapters:
            made: TypeAdapter[Any] | None = None
            for config in (ConfigDict(arbitrary_types_allowed=True), None):
                try:
                    made = TypeAdapter(annotation, config=config)
                    break
                except (PydanticUserError, NameError, TypeError):
                    continue
            self._adapters[id(annotation)] = annotation, made  # kept alive, so that no other object gets its id
        return self._adapters[id(annotation)][1]


def _fields_of(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of a data object, except defaults, which need not fit."""
    cls = type(value)
    if isinstance(value, BaseModel):
        for name, field in cls.model_fields.items():
            part = vars(value).get(name)
            if field.is_required() or part != field.get_default():
                yield name, Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation, part
    elif is_dataclass(value):
        try:
            hints = get_type_hints(cls)
        except Exception:  # a name that is defined inside a function
            return
        for each in fields(value):
            part = getattr(value, each.name, MISSING)
            if part is not MISSING and (each.default is MISSING or part != each.default):
                yield each.name, hints[each.name], part


# -- required channels -------------------------------------------------------------------------------------------------


def required_channels(graph: Any) -> set[str]:
    """Return the channels without which a node would fail."""
    # These are required fields of a model, and channels that nodes read without a check.
    builder = getattr(graph, "builder", None)
    if builder is None:
        return set()
    schema = builder.state_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return {name for name, field in schema.model_fields.items() if field.is_required() and name in graph.channels}
    needed = set(getattr(schema, "__required_keys__", ()))
    if is_dataclass(schema):
        needed = {each.name for each in fields(schema) if each.default is each.default_factory is MISSING}
    read, mentioned = set[str](), set[str]()
    for function in _functions_of(builder):
        code = getattr(function, "__code__", None)
        for name, is_read in _names_in(code) if code is not None else ():
            (read if is_read else mentioned).add(name)
    empty = {name for name in needed if name in graph.channels and not graph.channels[name].is_available()}
    return (empty & read) - mentioned


def _functions_of(builder: Any) -> Iterator[Callable[..., Any]]:
    runnables = [spec.runnable for spec in builder.nodes.values()]
    runnables += [branch.path for branches in builder.branches.values() for branch in branches.values()]
    for runnable in runnables:
        for name in ("func", "afunc"):
            function = getattr(runnable, name, None)
            while isinstance(function, partial):
                function = function.func
            if function is not None:
                yield function


def _names_in(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Yield the strings in a function, and whether each is read as a key or attribute."""
    instructions = list(dis.get_instructions(code))
    for this, following in zip(instructions, [*instructions[1:], None], strict=True):
        if this.opname == "LOAD_ATTR" and isinstance(this.argval, str):
            yield this.argval, True
        elif isinstance(this.argval, str) and this.opname.startswith("LOAD_CONST"):
            is_read = following is not None and (following.opname == "BINARY_SUBSCR" or following.argrepr == "[]")
            yield this.argval, is_read
        elif isinstance(this.argval, tuple) and this.opname.startswith("LOAD_CONST"):
            yield from ((each, False) for each in this.argval if isinstance(each, str))
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


# -- tools -------------------------------------------------------------------------------------------------------------


def tools_of(graphs: Iterable[Any]) -> set[str]:
    """Return the names of the tools that graphs can call."""
    from langgraph.prebuilt import ToolNode

    bound = [node.bound for graph in graphs for node in graph.nodes.values()]
    bound += [step for each in bound for step in getattr(each, "steps", ())]
    return {name for each in bound if isinstance(each, ToolNode) for name in each.tools_by_name}


def pending_calls(values: dict[str, Any]) -> Iterator[str]:
    """Yield the names of tools that a model called and that have not answered."""
    for value in values.values():
        messages = [each for each in value if isinstance(each, BaseMessage)] if isinstance(value, list) else []
        calls = next((each.tool_calls for each in reversed(messages) if isinstance(each, AIMessage)), [])
        answered = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
        yield from (str(call.get("name")) for call in calls or () if call.get("id") not in answered)
    for send in sent_tasks(values):
        arg = getattr(send, "arg", None)
        if isinstance(arg, dict) and isinstance(call := arg.get("tool_call"), dict):
            yield str(call.get("name"))
