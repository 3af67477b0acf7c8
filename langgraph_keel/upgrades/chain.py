"""Upgrade steps of an application's state, and their order in a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput
from langgraph_keel.upgrades.state import StoredState

Change: TypeAlias = Callable[[StoredState], object]
ClassChange: TypeAlias = type | str | Callable[[Any], Any]
"""The new class of stored values, or a function from their fields to a value."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One step from a version of an application's state to a later one; see `upgrade`.

    Attributes:
        start: The version before the step.
        end: The version after the step.
        change: The function that changes a `StoredState`; `None` if only classes have changed.
        graph: The graph whose states it changes: `""` is the root graph, `"research"` the graph in that node, and
            `"research|draft"` a graph inside that one.
        classes: New classes or conversion functions, by the stored `"module:Class"`.
    """

    start: int
    end: int
    change: Change | None = None
    graph: str = ""
    classes: Mapping[str, ClassChange] = field(default_factory=dict, hash=False)

    def __call__(self, change: Change) -> Upgrade:
        """Return the upgrade with this function: `@upgrade(1, 2)`."""
        if self.change is not None:
            raise InvalidInput(f"upgrade({self.start}, {self.end}) already has a function: {self.change!r:.100}")
        return upgrade(self.start, self.end, change, graph=self.graph, classes=self.classes)


Upgrades: TypeAlias = Sequence[Upgrade] | ModuleType
"""The upgrades of a program: a list, or a module that contains them."""


@publish
def upgrade(
    start: int,
    end: int,
    change: Change | None = None,
    *,
    graph: str = "",
    classes: Mapping[str, ClassChange] | None = None,
) -> Upgrade:
    """Return an upgrade step for `upgrades=` of a saver, or a decorator for one.

        @upgrade(1, 2)
        def rename_name(state):
            state.rename("name", "full_name")

    Args:
        start: The version before the step. States without a version have version 1.
        end: The version after the step.
        change: Receives a `StoredState` and changes it. It must not depend on anything else, as it is called each time
            that a checkpoint of this version is read. Without it, the result is a decorator.
        graph: The graph whose states it changes: `""` is the root graph, `"research"` the graph in that node, and
            `"research|draft"` a graph inside that one.
        classes: Maps the stored `"module:Class"` of values to their new class, or to its `"module:Class"`, if the class
            only moved; no code of it runs. If its fields changed, pass a function: it receives the stored data (a dict
            of the fields, or the name of an enumeration's member) and returns the value. It is called only for values
            that can no longer be read.

    Raises:
        InvalidInput: If an argument is invalid.
    """
    is_step = all(type(each) is int for each in (start, end)) and 0 < start < end
    if not is_step:
        raise InvalidInput(f"upgrade needs a version and a later one, such as upgrade(1, 2): {start!r}, {end!r}")
    if change is not None and not callable(change):
        raise InvalidInput(f"upgrade({start}, {end}) needs a function of a state, not {change!r:.100}")
    if not isinstance(graph, str) or NS_END in graph:
        raise InvalidInput(f"graph must be the name of a node that contains a graph, not {graph!r:.100}")
    for name, new in (classes or {}).items():
        name_of_class(name)
        if isinstance(new, str):
            name_of_class(new)
        elif not callable(new):
            raise InvalidInput(f"classes[{name!r}] must be a class, 'module:Class' or a function, not {new!r:.100}")
    return Upgrade(start, end, change, graph, dict(classes or {}))


def name_of_class(text: object) -> tuple[str, str]:
    """Return the module and the name of a class."""
    module, mark, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (module and mark and name):
        raise InvalidInput(f"name a class as 'module:Class', such as 'app.models:Order', not {text!r:.100}")
    return module, name


def graph_of(checkpoint_ns: str) -> str:
    """Return the graph of a namespace: the names of the nodes around it."""
    return NS_SEP.join(level.partition(NS_END)[0] for level in checkpoint_ns.split(NS_SEP)) if checkpoint_ns else ""


class Chain:
    """The upgrades of one program, as ordered `steps`, and their final `version`."""

    def __init__(self, upgrades: Upgrades) -> None:
        if not isinstance(upgrades, ModuleType | list | tuple):
            raise InvalidInput(f"upgrades must be a list of upgrade(1, 2, ...), or a module of them: {upgrades!r:.100}")
        listed = list(vars(upgrades).values() if isinstance(upgrades, ModuleType) else upgrades)
        if isinstance(upgrades, ModuleType):
            listed = [each for each in listed if isinstance(each, Upgrade)]
            if not listed:
                raise InvalidInput(f"{upgrades.__name__} has no upgrades: decorate its functions with @upgrade(1, 2)")
        for each in listed:
            _check(each)
        self.steps: Sequence[Upgrade] = sorted(listed, key=lambda each: each.start)
        seen: dict[tuple[int, str], Upgrade] = {}
        ends: dict[int, int] = {}
        for each in self.steps:
            if seen.setdefault((each.start, each.graph), each) is not each:
                raise InvalidInput(f"two upgrades start from version {each.start}{_whose(each)}: combine them")
            if ends.setdefault(each.start, each.end) != each.end:
                raise InvalidInput(f"upgrades lead from version {each.start} to both {ends[each.start]} and {each.end}")
        for start, end in ends.items():
            if end not in ends and end != max(ends.values()):
                later = min(each for each in ends if each > start)
                raise InvalidInput(f"no upgrade starts from version {end}, but one from {later}: there is a gap")
            if inside := [each for each in ends if start < each < end]:
                raise InvalidInput(f"upgrade({start}, {end}) skips version {inside[0]}, from which another one starts")
        self.version = max(ends.values(), default=1)

    @property
    def moved(self) -> dict[tuple[str, str], type | tuple[str, str]]:
        """The new places of classes that only moved, by their stored names."""
        moved: dict[tuple[str, str], type | tuple[str, str]] = {}
        for each in self.steps:
            for old, new in each.classes.items():
                if isinstance(new, type | str):
                    to = name_of_class(new) if isinstance(new, str) else new
                    at = to if isinstance(to, tuple) else (to.__module__, to.__qualname__)
                    name = name_of_class(old)
                    for first, then in moved.items():  # a class that has moved twice
                        if name == ((then.__module__, then.__qualname__) if isinstance(then, type) else then):
                            moved[first] = to
                    if at != name:
                        moved[name] = to
        return moved

    def after(self, version: int) -> Sequence[Upgrade]:
        """Return the upgrades to apply to a state of a version."""
        steps = [each for each in self.steps if each.start >= version]
        if version < self.version and (not steps or steps[0].start != version):
            raise LookupError(version)
        return steps


def _check(each: object) -> None:
    if not isinstance(each, Upgrade):
        raise InvalidInput(f"upgrades must contain only upgrade(1, 2, ...), not {each!r:.100}")
    if each.change is None and not each.classes:
        raise InvalidInput(f"upgrade({each.start}, {each.end}) has neither a function nor classes")


def _whose(each: Upgrade) -> str:
    return f" for the graph in {each.graph!r}" if each.graph else ""
