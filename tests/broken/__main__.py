"""Run the contract on each wrong store, up to the first test that fails; print which one that is, as JSON.

    cd tests && python -m broken [store ...]

One process for all: most of the time would go into imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from broken.cells import CELLS
from broken.copying import COPYING
from broken.reading import READING
from broken.removing import REMOVING
from broken.writing import WRITING
from langgraph_keel.backends.memory.store import MemoryStore

BROKEN: Mapping[str, Callable[[], MemoryStore]] = {**WRITING, **READING, **REMOVING, **COPYING, **CELLS}
STORES: Mapping[str, Callable[[], MemoryStore]] = {"control": MemoryStore, **BROKEN}
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no"]
# A store that is wrong may well make a listing that never ends.
OPTIONS += ["--timeout=20", "--timeout-method=signal"]
# What this module imports was imported before pytest had a chance to look at it.
OPTIONS += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]


class FirstFailure:
    """A plugin that remembers which test failed first."""

    name = ""
    passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid.rpartition("::")[2]
        self.passed += report.when == "call" and report.passed


def caught_by(store: str) -> tuple[str, int]:
    """Return the first test that fails on a store, or nothing, and how many passed before."""
    os.environ["KEEL_BROKEN_STORE"] = store
    part = "TestCells" if store in CELLS else "TestCopies" if store in COPYING else "TestContract"
    first = FirstFailure()
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([f"{Path(__file__).with_name('on_memory.py')}::{part}", *OPTIONS], plugins=[first])
    return first.name, first.passed


if __name__ == "__main__":
    print(json.dumps({store: caught_by(store) for store in sys.argv[1:] or STORES}))
