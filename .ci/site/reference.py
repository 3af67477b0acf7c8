"""The API reference: helps autodoc with public names, which are the package's wherever they are defined."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

import langgraph_keel
from langgraph_keel import options

NAME = re.compile(r"[A-Za-z_][\w.]*")
OPTIONS = [getattr(options, f"{name}Options") for name in ("Sqlite", "File", "Postgres", "Redis", "Open")]


def read_attributes() -> None:
    """Give autodoc the docstrings of attributes, which it does not find by itself.

    Public classes name the package as their module, not their file; options are inherited from private classes.
    """
    docs, order = {}, {}
    for name in langgraph_keel.__all__:
        getattr(langgraph_keel, name)  # imports the modules, which read the annotations of options
    for name, path in [*langgraph_keel._MODULES.items(), *((each.__name__, options.__name__) for each in OPTIONS)]:
        module = ModuleAnalyzer.for_module(path)
        module.analyze()
        docs.update({key: lines for key, lines in module.attr_docs.items() if key[0] == name})
        order.update(module.tagorder)
    found = ModuleAnalyzer.for_module(options.__name__).attr_docs.items()
    inherited = {name: lines for (group, name), lines in found if group.startswith("_")}
    for each in OPTIONS:
        own = {name: lines for name, lines in inherited.items() if name in each.__annotations__}
        docs.update({(each.__name__, name): own[name] for name in own.keys() - options.SaverOptions.__annotations__})
    for each in (options.SaverOptions, *OPTIONS):
        each.__annotations__ = get_type_hints(each)  # without the checks of values
    for path in ("langgraph_keel", options.__name__):
        module = ModuleAnalyzer.for_module(path)
        module.analyze()
        module.attr_docs.update(docs)
        module.tagorder.update(order)


def mark_docstring(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Mark indented programs and whatever is no name as code; keep napoleon from reading "text: text" as a type."""
    text = re.sub(r"^(\S.*\n)\n(?= {4})", r"\1\n.. code-block:: python\n\n", "\n".join(lines), flags=re.M)
    text = re.sub(r"`([^`]+)`", lambda found: found[0] if NAME.fullmatch(found[1]) else f"`{found[0]}`", text)
    lines[:] = [*(("..", "") if what in ("attribute", "property") else ()), *text.split("\n")]


def shorten(app: Sphinx, what: str, name: str, thing: object, options: Any, signature: str, returns: str) -> Any:
    """Leave the options of every saver out of the signatures of savers: they have a list of their own."""
    if signature and ", serde: " in signature:
        return signature.partition(", serde: ")[0] + ", **options: Unpack[SaverOptions])", returns
    return None


def check_names(app: Sphinx, env: Any) -> None:
    """Warn of public names that no page of the reference has."""
    known = env.domains.python_domain.objects
    if missing := [name for name in langgraph_keel.__all__ if f"langgraph_keel.{name}" not in known]:
        logging.getLogger(__name__).warning("not in the API reference: %s", ", ".join(missing))


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    read_attributes()
    app.connect("autodoc-process-docstring", mark_docstring, priority=400)
    app.connect("autodoc-process-signature", shorten)
    app.connect("env-check-consistency", check_names)
