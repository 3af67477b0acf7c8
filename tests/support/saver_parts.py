"""What a saver is made of, for tests that look inside a backend: the same for all savers, by the engine's own names."""

from __future__ import annotations

from typing import Any

from langgraph_keel import KeelSaver
from langgraph_keel.engine.engine import bare


def driver_of(saver: KeelSaver) -> Any:
    """What carries out its requests, blocking; of its own type, without the check of keys that a saver has."""
    return bare(saver.engine.driver)


def async_driver_of(saver: KeelSaver) -> Any:
    """What carries them out without blocking a loop; of its own type, without the check of keys that a saver has."""
    return bare(saver.engine.async_driver)


def store_of(saver: KeelSaver) -> Any:
    """The layout of its data."""
    return saver.engine.session.store
