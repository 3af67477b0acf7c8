"""The documentation site, built by Sphinx from the pages where they are: CONTRIBUTING.md has the command.

The source directory is the repository. The pages that only the site has (navigation, API reference) are next to this
file. The addresses of pages come from their directories: `langgraph_keel/tools/README.md` is `tools.html`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.project import Project

import langgraph_keel

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for reference.py

project = "langgraph-keel"
version = release = langgraph_keel.__version__
project_copyright = "the authors of langgraph-keel, MIT licence"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
    "reference",
]
root_doc = "index"
include_patterns = ["*.md", "langgraph_keel/**.md", "notebooks/*.ipynb", "tests/**.md", ".ci/site/api/*.md"]

myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
mermaid_height = "auto"
mermaid_fullscreen = False
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
    for link in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        # A link to a page has the domain "doc": its target is an address, which may be that of a directory, too.
        if link.get("reftype") == "myst" and not link["refdomain"] and (directory / link["reftarget"]).exists():
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    """Connect the functions above."""
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", mend_links)
