"""A value of every storable kind comes back unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine.samples import VALUES, assert_same, calls, there_and_back


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_sample_values_are_restored_unchanged(value: Any) -> None:
    calls.clear()
    back = there_and_back(value)
    assert_same(back, value)
    assert calls == []
