"""Tests for authors of backends: contract, state machine, and fault injection.

    from langgraph_keel.testing import SaverContract, SaverMachine

Needs pytest and hypothesis, but only when it is imported.
"""

from __future__ import annotations

import pytest

for _part in ("rig", "machine", *(f"contract_{name}" for name in ("cells", "reading", "removal", "travel", "writing"))):
    # So that failing assertions show their values, as in any test file.
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from langgraph_keel.testing.contract import SaverContract  # noqa: E402
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, Tap, with_tap  # noqa: E402
from langgraph_keel.testing.machine import SaverMachine  # noqa: E402
from langgraph_keel.testing.rig import FACES, AsyncFace, Face, Rig, StoreUnderTest, SyncFace  # noqa: E402

__all__ = [
    "FACES",
    "AsyncFace",
    "Counter",
    "Face",
    "Fault",
    "Injected",
    "Meanwhile",
    "Rig",
    "SaverContract",
    "SaverMachine",
    "StoreUnderTest",
    "SyncFace",
    "Tap",
    "with_tap",
]
