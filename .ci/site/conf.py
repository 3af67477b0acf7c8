"""The documentation site, built by Sphinx from the pages where they are: CONTRIBUTING.md has the command.

The source directory is the repository. The pages that only the site has (navigation, API reference) are beside this
file. The addresses of pages come from their directories: `langgraph_keel/tools/README.md` is `tools.html`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.project import Project
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

import langgraph_keel
from langgraph_keel import options

HERE = Path(__file__).parent
OPTIONS = [getattr(options, f"{name}Options") for name in ("Sqlite", "File", "Postgres", "Redis", "Open")]

project = "langgraph-keel"
version = release = langgraph_keel.__version__
project_copyright = "the authors of langgraph-keel, MIT licence"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
root_doc = "index"
include_patterns = ["*.md", "langgraph_keel/**.md", "notebooks/*.ipynb", "tests/**.md", ".ci/site/api/*.md"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "off"
nb_merge_streams = True
suppress_warnings = ["misc.highlighting_failure"]  # shell commands in cells

# Docstrings are Google style; a name in single backticks is a link if it has an entry, and code if not.
napoleon_use_ivar = True
default_role = "py:obj"
autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"langgraph-keel {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False


# ---- addresses

path2doc = Project.path2doc


def name_page(self: Project, filename: Any) -> str | None:
    """Return the address of a page: its path, without the package's name and `README`."""
    path = path2doc(self, filename)
    if path in ("README", "langgraph_keel/README"):
        return "index" if path == "README" else "concepts"
    return path and re.sub(r"^(langgraph_keel|\.ci/site)/|/README$", "", path)


Project.path2doc = name_page  # type: ignore[method-assign]


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the navigation to the first page, README.md."""
    if docname == "index":
        app.env.note_dependency(HERE / "navigation.md")
        source[0] += (HERE / "navigation.md").read_text(encoding="utf-8")


def mend_links(app: Sphinx, doctree: nodes.document) -> None:
    """Turn links to files and directories that are not pages into their text; find names only where they belong."""
    for link in doctree.findall(addnodes.pending_xref):
        link.attributes.pop("refspecific", None)
    directory = app.env.doc2path(app.env.docname).parent
    for link in list(doctree.findall(lambda node: isinstance(node, nodes.Element) and node.get("reftype") == "myst")):
        if isinstance(link, addnodes.download_reference) or (directory / link["reftarget"]).is_dir():
            link.replace_self(link.children)


# ---- the API reference


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
    """Mark the indented programs of a docstring as code; keep napoleon from reading "text: text" as a type."""
    text = re.sub(r"^(\S.*\n)\n(?= {4})", r"\1\n.. code-block:: python\n\n", "\n".join(lines), flags=re.M)
    lines[:] = [*(("..", "") if what in ("attribute", "property") else ()), *text.split("\n")]


def check_names(app: Sphinx, env: Any) -> None:
    """Warn of public names that no page of the reference has."""
    known = env.domains.python_domain.objects
    if missing := [name for name in langgraph_keel.__all__ if f"langgraph_keel.{name}" not in known]:
        logging.getLogger(__name__).warning("not in the API reference: %s", ", ".join(missing))


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    read_attributes()
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", mend_links)
    app.connect("autodoc-process-docstring", mark_docstring, priority=400)
    app.connect("env-check-consistency", check_names)
