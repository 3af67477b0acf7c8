"""Layers: stores on top of other stores, for encryption, objects, tenants."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from langgraph_keel.engine.names import NameMap
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.store import Store
from langgraph_keel.engine.verbs import SAME, VERBS, Turn

L = TypeVar("L", bound="Layer")
FindNames: TypeAlias = Callable[[bool], Plan[tuple[NameMap, NameMap] | None]]
"""Returns the name maps for the way down and up, or `None` if names do not change.

The argument states whether the verb stores names."""


class Layer(Store[Any, Any]):
    """A store on top of `inner`, which handles the verbs that it does not define."""

    def __init__(self, inner: Store[Any, Any]) -> None:
        self.inner = inner
        for name in VERBS:
            if not self.has(name):
                setattr(self, name, getattr(inner, name))

    def has(self, verb: str) -> bool:
        """Return whether this layer defines a verb."""
        return getattr(type(self), verb) is not getattr(Store, verb)

    def find(self, kind: type[L]) -> L:
        """Return the layer of this class: this one or one below it, which must exist."""
        found: L = self if type(self) is kind else self.inner.find(kind)  # type: ignore[attr-defined]
        return found

    if TYPE_CHECKING:  # the constructor binds them
        write_entry = write_batch = read_entry = scan = read_values = read_history = read_graph = remove_entries = (
            remove_rows
        ) = delete_thread = copy_thread = find_runs = read_threads = swap_cell = read_cells = list_cells = (
            remove_cells
        ) = list_strays = None  # type: Any


Layer.__abstractmethods__ = frozenset()


class Renaming(Layer):
    """A store whose threads, channels or cells have other names in the store below.

    `verbs.VERBS` lists the names in each verb.

    Args:
        inner: The store below.
        find_names: Returns the maps of names.
        idle: Translations that change nothing in this layer. A verb without other translations is not wrapped.
    """

    def __init__(self, inner: Store[Any, Any], find_names: FindNames, idle: frozenset[Turn] = frozenset()) -> None:
        super().__init__(inner)
        for name in VERBS:
            turns = _turns_of(name, idle)
            if not self.has(name) and {*turns.takes, turns.gives} != {SAME}:
                rename = _rename_one if len(turns.takes) == 1 else _rename
                setattr(self, name, rename(turns, getattr(inner, name), find_names))


class _Turns(NamedTuple):
    """The translations of a verb in one layer; its signature, for keyword arguments."""

    takes: tuple[Turn, ...]
    gives: Turn
    writes: bool
    signature: Signature

    def positional(self, args: tuple[Any, ...], more: dict[str, Any]) -> tuple[Any, ...]:
        bound = self.signature.bind(*args, **more)
        bound.apply_defaults()
        return bound.args


@cache
def _turns_of(name: str, idle: frozenset[Turn]) -> _Turns:
    verb, named = VERBS[name], signature(getattr(Store, name))
    named = named.replace(parameters=[*named.parameters.values()][1:])
    if len(verb.takes) != len(named.parameters):
        raise TypeError(f"VERBS[{name!r}] and Store.{name} have different arguments")
    takes = tuple(SAME if turn in idle else turn for turn in verb.takes)
    return _Turns(takes, SAME if verb.gives in idle else verb.gives, verb.writes, named)


def _rename(turns: _Turns, inner: Callable[..., Plan[Any]], find_names: FindNames) -> Callable[..., Plan[Any]]:
    takes, gives, writes, _ = turns

    def renamed(*args: Any, **more: Any) -> Plan[Any]:
        if more:
            args = turns.positional(args, more)
        both = yield from find_names(writes and args[-1] is not None)  # emptying a cell stores no name
        if both is None:
            return (yield from inner(*args))
        down, up = both
        first = args[0]
        inside = [
            value if turn is SAME or value is None else turn(down, value, first)
            for turn, value in zip(takes, args, strict=False)
        ]
        reply = yield from inner(*inside)
        return reply if gives is SAME or reply is None else gives(up, reply, first)

    return renamed


def _rename_one(turns: _Turns, inner: Callable[..., Plan[Any]], find_names: FindNames) -> Callable[..., Plan[Any]]:
    """As `_rename`, but faster, for verbs with one argument."""
    (turn,), gives, writes, _ = turns

    def renamed(*args: Any, **more: Any) -> Plan[Any]:
        (first,) = turns.positional(args, more) if more else args
        both = yield from find_names(writes)
        if both is None:
            return (yield from inner(first))
        down, up = both
        reply = yield from inner(first if first is None else turn(down, first, first))
        return reply if reply is None else gives(up, reply, first)

    return renamed
