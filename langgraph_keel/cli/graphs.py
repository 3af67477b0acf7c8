"""Load the graph and the upgrades of a program, for commands that need them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from langgraph_keel.errors import InvalidInput
from langgraph_keel.upgrades.chain import Upgrade
from langgraph_keel.upgrades.hook import UpgradeHook

Graph = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:GRAPH",
        help="The graph, or a function that returns it: shop.app:graph, or ./agent.py:graph.",
    ),
]


def load_graph(name: str, open_saver: Callable[[ModuleType], Any]) -> tuple[ModuleType, Any]:
    """Import a graph, compile it if necessary, and return it with its module.

    Args:
        name: `MODULE:GRAPH` or `FILE:GRAPH`. It may be a function that returns the graph.
        open_saver: Returns the saver for a function that requires one, given its module.
    """
    from langgraph.graph import StateGraph
    from langgraph.pregel import Pregel

    module, found = _load(name, "MODULE:GRAPH or FILE:GRAPH, such as shop.app:graph or ./agent.py:graph")
    if callable(found) and not isinstance(found, Pregel | StateGraph | type):
        found = _call_factory(name, found, lambda: open_saver(module))
    if isinstance(found, StateGraph):
        found = found.compile()
    if not isinstance(found, Pregel):
        what = f"{name} is a {type(found).__name__}, not a graph"
        raise InvalidInput(f"{what}: name a graph, or a function that returns one")
    return module, found


def _call_factory(name: str, factory: Any, open_saver: Callable[[], Any]) -> Any:
    """Call a graph factory, with a config or a saver if it requires one."""
    parameters = inspect.signature(factory).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [each for each in parameters if each.default is each.empty and each.kind not in variadic]
    if len(required) > 1:
        names = ", ".join(each.name for each in required)
        raise InvalidInput(
            f"{name} requires the arguments {names}: name a function with at most one required argument. It is passed "
            "a saver (or a config, if it is named `config`)"
        )
    given: dict[str, Any] = {
        each.name: {"configurable": {}} if each.name == "config" else open_saver() for each in required
    }
    is_positional = all(each.kind is each.POSITIONAL_ONLY for each in required)
    with _name_errors(name):
        made = factory(*given.values()) if is_positional else factory(**given)
        return asyncio.run(made) if inspect.iscoroutine(made) else made


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Report an error of the program in one line, with its location."""
    try:
        yield
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidInput(
            f"{name} raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def _load(name: str, form: str) -> tuple[ModuleType, Any]:
    module, mark, attribute = name.rpartition(":")
    if not (module and mark and attribute):
        raise InvalidInput(f"{name!r} is not of the form {form}")
    loaded = _import(module)
    found: Any = loaded
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInput(f"module {module} has no {attribute}")
    return loaded, found


def _import(module: str) -> ModuleType:
    """Import a module by name, also from the current directory, or by file."""
    place = ""
    if module.endswith(".py") or "/" in module:
        file = Path(module).resolve()
        if not file.is_file():
            raise InvalidInput(f"there is no file {module}")
        parts, folder = [file.stem], file.parent  # its name in the program, which stored values use
        while (folder / "__init__.py").exists():
            parts.insert(0, folder.name)
            folder = folder.parent
        place, module = str(folder), ".".join(parts)
    sys.path.insert(0, place)
    try:
        with _name_errors(module):
            return importlib.import_module(module)
    finally:
        sys.path.remove(place)


def find_upgrades(module: ModuleType, engine: Any, named: str | None = None) -> Any:
    """Return the upgrades of an option, of the graph's saver, or of its module."""
    if named is not None and ":" in named:
        found = _load(named, "MODULE:LIST")[1]
        return [found] if isinstance(found, Upgrade) else found
    if named is not None:
        return _load(f"{named}:__name__", "MODULE")[0]
    hook = engine.session.hooks.find(UpgradeHook) if engine is not None else None
    if hook is not None:
        return list(hook.chain.steps)
    return [each for each in vars(module).values() if isinstance(each, Upgrade)]
