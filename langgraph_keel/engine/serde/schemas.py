"""The classes that the graphs of this process name in the annotations of their state.

LangGraph tells a checkpointer of them in its strict mode only, and then by name, without what stands in a `Sequence` or
a named tuple. So graphs are remembered when they are made, and looked at when somebody asks for a class that nobody has
named otherwise: what no stored value asks for costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, NewType, get_args, get_origin, get_type_hints
from weakref import WeakValueDictionary

from typing_extensions import TypeAliasType

from langgraph_keel._langgraph import new_graphs
from langgraph_keel.engine.serde.types import shape_of

_classes: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()


def find_schema_class(module: str, qualname: str) -> type | None:
    """Return the class of this name that the state of a graph names; `None` if there is none."""
    for graph in (found() for found in new_graphs.valuerefs()):
        if graph is not None:
            for cls in _classes_in(_annotations_of(graph)):
                _classes[cls.__module__, cls.__qualname__] = cls
            new_graphs.pop(id(graph), None)  # not before: another thread may ask for the same class
    return _classes.get((module, qualname))


def _annotations_of(graph: Any) -> Iterator[Any]:
    for channel in graph.channels.values():
        yield getattr(channel, "ValueType", None)
        yield getattr(channel, "UpdateType", None)
    builder = getattr(graph, "builder", None)  # what the functional API makes has none
    if builder is not None:
        yield from (builder.state_schema, builder.input_schema, builder.output_schema)
        yield from (getattr(node, "input_schema", None) for node in builder.nodes.values())


def _classes_in(annotations: Iterable[Any]) -> Iterator[type]:
    """Yield the classes that annotations name, and those that the annotations of these name, and so on."""
    left, seen = list(annotations), {}
    while left:
        annotation = left.pop()
        if id(annotation) in seen:
            continue
        seen[id(annotation)] = annotation  # kept, so that nothing else gets its id
        if isinstance(annotation, type):
            yield annotation
            left += _hints_of(annotation)
        elif isinstance(annotation, Enum):  # in a `Literal`
            left.append(type(annotation))
        elif isinstance(annotation, list):  # the arguments in a `Callable`
            left += annotation
        left += _parts_of(annotation)


def _parts_of(annotation: Any) -> Iterable[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return get_args(annotation)[:1]
    if isinstance(annotation, NewType):
        return (annotation.__supertype__,)
    if isinstance(annotation, TypeAliasType):
        return (annotation.__value__,)
    return (origin, *get_args(annotation))


def _hints_of(cls: Any) -> Iterable[Any]:
    if shape_of(cls).family is None:
        return ()
    try:
        return get_type_hints(cls).values()
    except Exception:  # a name that is defined later, or inside a function; pydantic has resolved its own
        return [field.annotation for field in getattr(cls, "model_fields", {}).values()]
