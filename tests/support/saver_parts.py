"""Parts of a saver, for tests that look inside a backend."""

from __future__ import annotations

from typing import Any

from langgraph_keel import KeelSaver
from langgraph_keel.engine.engine import bare


def driver_of(saver: KeelSaver) -> Any:
    """Return the blocking driver with its own type, without a saver's check of keys."""
    return bare(saver.engine.driver)


def async_driver_of(saver: KeelSaver) -> Any:
    """Return the async driver with its own type, without a saver's check of keys."""
    return bare(saver.engine.async_driver)


def store_of(saver: KeelSaver) -> Any:
    """Return the store, which defines the layout of the data."""
    return saver.engine.session.store
