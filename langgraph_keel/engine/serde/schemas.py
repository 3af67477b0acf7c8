"""The classes in the state annotations of this process's graphs.

LangGraph passes them to a checkpointer only in strict mode, and incompletely. So graphs are found with Python's garbage
collector, when a stored value names a class that is not allowed otherwise.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from time import monotonic
from typing import Annotated, Any, NewType, get_args, get_origin, get_type_hints
from weakref import ReferenceType, WeakValueDictionary, ref

from typing_extensions import TypeAliasType

from langgraph_keel.engine.serde.types import shape_of

_classes: WeakValueDictionary[tuple[str, str], type] = WeakValueDictionary()
_shared: list[ReferenceType[Any]] = []  # the graphs among the frozen objects
_target = object()
_probe = [_target]  # found as a referrer of `_target`, unless `gc.freeze` was called since the list was created


def find_schema_class(module: str, qualname: str) -> type | None:
    """Return the class of this name in the annotations of any graph, or `None`.

    For a name not found before, Python's collector visits all objects, which takes about 10 ms per 100,000 objects.
    """
    if (module, qualname) not in _classes and _patience.is_left():
        began, graphs = monotonic(), find_graphs()
        annotations = [annotation for graph in graphs for annotation in _annotations_of(graph)]
        _classes.update({(cls.__module__, cls.__qualname__): cls for cls in _classes_in(annotations)})
        _patience.spent += monotonic() - began
    return _classes.get((module, qualname))


def is_unnamed(module: str, qualname: str) -> bool:
    """Return whether no graph names a class; `False` if search time is used up."""
    return (module, qualname) not in _classes and _patience.is_left() and find_schema_class(module, qualname) is None


class _Patience:
    """Limits searches to one second, then to a tenth of the time.

    Otherwise stored bytes with many names could stop a program.
    """

    def __init__(self) -> None:
        self._since = monotonic()
        self.spent = 0.0

    def is_left(self) -> bool:
        now = monotonic()
        self.spent, self._since = max(0.0, self.spent - (now - self._since) / 10), now
        return self.spent < 1.0


_patience = _Patience()


def _kinds_of(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for kind in type.__subclasses__(cls):
        yield from _kinds_of(kind)


def find_graphs() -> list[Any]:
    """Return the compiled graphs of this process.

    These are the instances among the objects that refer to LangGraph's class. `gc.get_objects` is not used, since it
    would also return a tuple that another thread is building: `tuple(generator)` then raises SystemError in that thread
    (CPython issue 59313).
    """
    global _probe
    pregel = sys.modules.get("langgraph.pregel")
    kinds = [] if pregel is None else [*_kinds_of(pregel.Pregel)]
    known = {id(kind) for kind in kinds}  # hashing a class could run its code
    referrers = gc.get_referrers(*kinds, _target)
    if any(each is _probe for each in referrers):
        found = [each for each in referrers if id(type(each)) in known]
        return [*found, *(graph for each in _shared if (graph := each()) is not None)]
    # A server freezes the objects that its workers share, before it forks them. They are searched only once: `freeze`
    # takes all objects, and cycles among them are never collected.
    gc.unfreeze()
    try:
        found = [each for each in gc.get_referrers(*kinds) if id(type(each)) in known]
    finally:
        gc.freeze()
        _probe = [_target]
    _shared[:] = map(ref, found)
    return found


def _annotations_of(graph: Any) -> Iterator[Any]:
    for channel in graph.channels.values():
        yield getattr(channel, "ValueType", None)
        yield getattr(channel, "UpdateType", None)
    builder = getattr(graph, "builder", None)  # graphs of the functional API have none
    if builder is not None:
        yield from (builder.state_schema, builder.input_schema, builder.output_schema)
        yield from (getattr(node, "input_schema", None) for node in builder.nodes.values())


def _classes_in(annotations: Iterable[Any]) -> Iterator[type]:
    """Yield the classes in annotations and, recursively, in their annotations."""
    left, seen = list(annotations), {}
    while left:
        annotation = left.pop()
        if id(annotation) in seen:
            continue
        seen[id(annotation)] = annotation  # kept, so that its id is not reused
        if isinstance(annotation, type):
            yield annotation
            if shape_of(annotation).family is not None:
                try:
                    left += get_type_hints(annotation).values()
                except Exception:  # a name defined later, or inside a function; pydantic has resolved its own
                    left += [field.annotation for field in getattr(annotation, "model_fields", {}).values()]
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
