"""A tool whose first run comes late."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from langgraph_keel.engine.leases import Pause
from langgraph_keel.tools.ledger import Ledger


def late_at_first(monkeypatch: pytest.MonkeyPatch, trip: str) -> None:
    """Let the store be slow to answer the first trip of a kind: what is sent first may be answered last."""
    sent, turn = getattr(Ledger, trip), count()

    def late(*given: Any) -> Any:
        yield Pause(0 if next(turn) else 0.2)
        return (yield from sent(*given))

    monkeypatch.setattr(Ledger, trip, late)
