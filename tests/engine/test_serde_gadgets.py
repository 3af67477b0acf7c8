"""Stored data cannot run code of any class that LangChain programs import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.tiers import sized


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_class_of_langchain_langgraph_or_a_provider_is_a_gadget() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.engine.gadgets"], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["classes"] > sized(1200, 1200, 6000)
    assert found["revived"] > sized(1500, 1500, 3000)
    assert found["shown"] > 3000  # as placeholders, for views
    # Of classes that are not allowed, only exceptions of Python and plain data of three packages come back.
    assert {name.split()[1] for name in found if name.endswith("by default")} == {
        "builtins",
        "langchain_core",
        "langgraph",
        "langgraph_keel",
    }
