"""Names for the invocations of graphs in this process.

A call is past if its invocation has continued since. With `durability="async"` or `"exit"`, LangGraph stores its
checkpoints too late for the store to show that.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

from langgraph_keel.engine.config import run_of
from langgraph_keel.engine.runs import find_runs

_MOST = 1000
"""Maximum invocations to remember. Calls of older ones are recognized by stored checkpoints."""


class Invocations:
    """The invocations of this process that have called tools."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start empty in a forked process."""
        self._lock = Lock()
        self._names: OrderedDict[int, tuple[object, str]] = OrderedDict()

    def name(self, config: Mapping[str, Any]) -> str:
        """Return the name of the invocation behind a config; empty outside of a graph."""
        run = _find_run(config)
        if run is None:
            return ""
        with self._lock:
            # The entry keeps the run alive, so that its `id` is not reused.
            _, name = self._names.setdefault(id(run), (run, secrets.token_hex(8)))
            self._names.move_to_end(id(run))
            while len(self._names) > _MOST:
                self._names.popitem(last=False)
        return name

    def find(self, config: Mapping[str, Any]) -> str:
        """Return the name of a config's invocation; empty if it called no tool."""
        with self._lock:
            return self._names.get(id(_find_run(config)), (None, ""))[1]


def _find_run(config: Mapping[str, Any]) -> object:
    """Return the current run, or LangGraph's control object if several runs share it."""
    control = run_of(config)
    runs = find_runs(control)
    return next(iter(runs)) if len(runs) == 1 else control


INVOCATIONS = Invocations()
