"""Upgrades of an application's state: from which version to which, and all of one program in their order."""

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
"""What becomes of stored values of a class: the class that they are of now, or what is made of their fields."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One step from a version of an application's state to a later one (`upgrade` makes it).

    Attributes:
        start: The version that it begins from.
        end: The version that it leads to.
        change: What changes a `StoredState`; `None` if only classes have changed.
        graph: Whose states it changes: `""` is the root graph, `"research"` the graph in that node, and
            `"research|draft"` the graph in a node of that.
        classes: What becomes of values of classes that have moved, or have changed, by `"module:Class"`.
    """

    start: int
    end: int
    change: Change | None = None
    graph: str = ""
    classes: Mapping[str, ClassChange] = field(default_factory=dict, hash=False)

    def __call__(self, change: Change) -> Upgrade:
        """Return the upgrade with this function: `@upgrade(1, 2)`."""
        if self.change is not None:
            raise InvalidInput(f"upgrade({self.start}, {self.end}) has a function already: {self.change!r:.100}")
        return upgrade(self.start, self.end, change, graph=self.graph, classes=self.classes)


Upgrades: TypeAlias = Sequence[Upgrade] | ModuleType
"""The upgrades of a program: a list, or a module that has them."""


@publish
def upgrade(
    start: int,
    end: int,
    change: Change | None = None,
    *,
    graph: str = "",
    classes: Mapping[str, ClassChange] | None = None,
) -> Upgrade:
    """Return an upgrade of an application's state, for `upgrades=` of a saver; without a function, its decorator.

        @upgrade(1, 2)
        def rename_name(state):
            state.rename("name", "full_name")

    Args:
        start: The version of the state that it begins from. States that say none have version 1.
        end: The version that it leads to.
        change: Is given a `StoredState`, and changes it. It must not hang on anything else: it is called for each
            checkpoint of that version that is read, as often as it is read.
        graph: Whose states it changes: `""` is the root graph, `"research"` the graph in the node of that name, and
            `"research|draft"` the graph in a node of that one.
        classes: By `"module:Class"`, as a class was called when its values were stored: the class that they are of now,
            or its `"module:Class"`, if it has only moved (its fields are as they were, and no code of it runs); or a
            function, if its fields have changed: it is given what is stored (a dict of the fields, or the name of an
            enumeration's member), and returns the value. It is asked for what cannot be read any more.

    Raises:
        InvalidInput: An argument cannot be meant.
    """
    is_step = all(type(each) is int for each in (start, end)) and 0 < start < end
    if not is_step:
        raise InvalidInput(f"an upgrade leads from a version to a later one, as upgrade(1, 2): {start!r}, {end!r}")
    if change is not None and not callable(change):
        raise InvalidInput(f"upgrade({start}, {end}): a function of a state is expected, not {change!r:.100}")
    if not isinstance(graph, str) or NS_END in graph:
        raise InvalidInput(f"graph is the name of a node with a graph in it, such as 'research', not {graph!r:.100}")
    for name, new in (classes or {}).items():
        name_of_class(name)
        if isinstance(new, str):
            name_of_class(new)
        elif not callable(new):
            raise InvalidInput(f"classes[{name!r}] is a class, its 'module:Class', or a function, not {new!r:.100}")
    return Upgrade(start, end, change, graph, dict(classes or {}))


def name_of_class(text: object) -> tuple[str, str]:
    """Return the module and the name of a class."""
    module, mark, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (module and mark and name):
        raise InvalidInput(f"a class is named by 'module:Class', such as 'app.models:Order', not {text!r:.100}")
    return module, name


def graph_of(checkpoint_ns: str) -> str:
    """Return whose state stands in a namespace: the names of the nodes around it."""
    return NS_SEP.join(level.partition(NS_END)[0] for level in checkpoint_ns.split(NS_SEP)) if checkpoint_ns else ""


class Chain:
    """The upgrades of one program, in order: `steps`, and the `version` that they lead to."""

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
                raise InvalidInput(f"two upgrades begin from version {each.start}{_whose(each)}: make one of them")
            if ends.setdefault(each.start, each.end) != each.end:
                raise InvalidInput(f"from version {each.start}, upgrades lead to {ends[each.start]} and to {each.end}")
        for start, end in ends.items():
            if end not in ends and end != max(ends.values()):
                later = min(each for each in ends if each > start)
                raise InvalidInput(f"no upgrade begins from version {end}, and one from {later}: there is a gap")
            if inside := [each for each in ends if start < each < end]:
                raise InvalidInput(f"upgrade({start}, {end}) passes over version {inside[0]}, from which one begins")
        self.version = max(ends.values(), default=1)

    @property
    def moved(self) -> dict[tuple[str, str], type | tuple[str, str]]:
        """The classes that have only moved, by the names under which values of them are stored."""
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
        """Return the upgrades that a state of a version has to go through."""
        steps = [each for each in self.steps if each.start >= version]
        if version < self.version and (not steps or steps[0].start != version):
            raise LookupError(version)
        return steps


def _check(each: object) -> None:
    if not isinstance(each, Upgrade):
        raise InvalidInput(f"upgrades must be a list of upgrade(1, 2, ...), or a module of them, not of {each!r:.100}")
    if each.change is None and not each.classes:
        raise InvalidInput(f"upgrade({each.start}, {each.end}) has neither a function nor classes")


def _whose(each: Upgrade) -> str:
    return f" for the graph in {each.graph!r}" if each.graph else ""
