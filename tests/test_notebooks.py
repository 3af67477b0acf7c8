"""Each notebook runs in a fresh kernel, and shows its saved output.

`python tests/write.py notebooks` runs them all, and saves their outputs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import pytest
import servers
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

POSTGRES = "KEEL_POSTGRES"
NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
CHANGING = [
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(?=\+00:00)", "YYYY-MM-DDThh:mm:ss.ssssss"),
    (r"(?<![\w-])20\d\d-\d\d-\d\d(?![\w-])", "YYYY-MM-DD"),
    (r"(?<!\d)\d\d:\d\d:\d\d\b", "hh:mm:ss"),
    (r"(?<!\d)\d\d:\d\d(?= UTC)", "hh:mm"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"),
    (r"(?<=\d:)[0-9a-f]{64}\b", "x" * 64),
    (r"\b[0-9a-f]{24}\b", "x" * 24),
    (r"\b[0-9a-f]{16}\b", "x" * 16),
    (r"\b[0-9a-f]{6}\.[0-9a-f]{5}\b", "xxxxxx.xxxxx"),
    (r"\b[0-9a-f]{12}\b", "x" * 12),
    (r"(?<![0-9a-f-])[0-9a-f]{8}(?![\w-])", "x" * 8),
    (r"(?<![\d.,])\d[\d.,]* k?B\b", "… kB"),
    (r"(?<![\d.,])\d[\d.,]* bytes\b", "… bytes"),
    (r"(?<![\d.,])\d[\d.,]*(?= after: the file was rewritten)", "…"),
    (r"[▁▂▃▄▅▆▇█]{2,}", "▂▃▅▇"),  # the size of the state, step by step
    (r" *(?<![\d.,])\d[\d.,]* m?s\b", "… ms"),  # also after a colour
]
"""Patterns of values that differ in each run, and their replacements."""
PATH = re.compile(r"(?<![\w.:/])/(?!messages/)(?:[\w.-]+/)+|\b[A-Z]:\\\\?\w")
"""An absolute path of a machine's disk; `/messages/3` is one in a JSON Patch."""


def run(notebook: Any, **env: str) -> None:
    """Run a notebook in a fresh kernel, in an empty directory, without a profile.

    Args:
        notebook: The notebook, whose outputs are replaced.
        env: Additional environment variables.

    Raises:
        CellExecutionError: If a cell has failed, whatever tags it has.
    """
    with tempfile.TemporaryDirectory() as directory:
        own = {name: f"{directory}/{name}" for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        NotebookClient(
            notebook,
            timeout=400,
            force_raise_errors=True,
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": directory}},
        ).execute(env={**os.environ, **own, "PATH": path, "LANGSMITH_TRACING": "false", **env})


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# -- outputs of a notebook ---------------------------------------------------------------------------------------------


def settled(text: str) -> str:
    """Replace values that differ in each run; tables keep their shape."""
    for pattern, instead in CHANGING:
        text = re.sub(pattern, partial(fitted, instead), text)
    return text


def fitted(instead: str, match: re.Match[str]) -> str:
    return instead.rjust(len(match[0]))


def settled_copy(notebook: Any) -> Any:
    """Return a notebook with settled outputs, pictures and HTML tables included."""
    notebook = deepcopy(notebook)
    for output in (output for cell in code_cells(notebook) for output in cell.outputs):
        if output.output_type == "stream":
            output.text = settled(output.text)
        else:
            output.data.update({kind: settled(text) for kind, text in output.data.items() if isinstance(text, str)})
    return notebook


def shown(notebook: Any) -> dict[str, Any]:
    """Return the settled outputs of each cell."""
    cells = code_cells(settled_copy(notebook))
    return {cell.id: [cell.execution_count, *map(content, cell.outputs)] for cell in cells}


def content(output: Any) -> dict[str, list[str]]:
    """Return an output by its types; see `lines`."""
    found = {output.name: output.text} if output.output_type == "stream" else output.data
    return {kind: lines(text) for kind, text in found.items()}


def lines(text: str) -> list[str]:
    """Return the lines of a text, sorted: parallel tools are listed in any order.

    A column of a table is as wide as its longest time, so spaces and rules vary in length. A picture of sizes scales
    with them, so its numbers vary; so do megabytes, since ids are compressed with the rest.
    """
    text = re.sub(r"\d[\d.]*", "0", text) if "<svg" in text else re.sub(r"\d[\d.]*(?= MB)", "0", text)
    text = re.sub(r"(\x1b\[[\d;]*m) +", r"\1", text)  # before the longest time, no space follows a colour
    return sorted(re.sub(r"([ ─])\1+", r"\1", line).strip() for line in text.splitlines())


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_with_the_saved_output(path: Path, request: pytest.FixtureRequest) -> None:
    saved, notebook = read(path), read(path)
    run(notebook, **({POSTGRES: request.getfixturevalue("postgres_url")} if POSTGRES in path.read_text() else {}))
    assert shown(saved) == shown(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_contains_no_local_path(path: Path) -> None:
    assert PATH.findall(path.read_text()) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_contains_assertions(path: Path) -> None:
    assert [cell.id for cell in code_cells(read(path)) if cell.source.startswith("assert ")]


def test_all_notebooks_are_found() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11"]


@pytest.mark.slow
def test_a_failing_notebook_is_detected() -> None:
    for tags in ([], ["raises-exception"]):
        cell = nbformat.v4.new_code_cell("assert 1 == 2", metadata={"tags": tags})  # type: ignore[no-untyped-call]
        with pytest.raises(CellExecutionError, match="assert 1 == 2"):
            run(nbformat.v4.new_notebook(cells=[cell]))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("text", ["in /home/ada/trip.py", '"/tmp/x/"', "File </srv/a/b.py>:1", r"at C:\\Users"])
def test_a_local_path_is_detected(text: str) -> None:
    assert PATH.search(text)


def test_no_cell_writes_to_stderr() -> None:
    outputs = [output for path in NOTEBOOKS for cell in code_cells(read(path)) for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


def save() -> None:
    """Run all notebooks, and save outputs that differ in more than times, ids, sizes."""
    for path in NOTEBOOKS:
        saved, notebook = read(path), read(path)
        with servers.postgres(own=True) as server:
            run(notebook, **{POSTGRES: server.url})
        if shown(notebook) != shown(saved):
            notebook.metadata = saved.metadata  # unchanged: the kernel records the version of Python
            nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
