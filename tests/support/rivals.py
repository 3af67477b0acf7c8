"""Hooks that make runs meet on one thread, synchronized without sleeping."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier, Condition, Event

from langgraph_keel import KeelSaver
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.engine.events import Put
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.engine.session import Hooks, Session

PATIENCE = 60
"""Maximum wait for an expected event, in seconds."""


def with_hook(saver: KeelSaver, hook: Hook) -> KeelSaver:
    engine = saver.engine
    hooks = Hooks([hook, *engine.session.hooks.all])
    return with_engine(saver, replace(engine, session=replace(engine.session, hooks=hooks)))


class Race(Hook):
    """Lets all runs read a thread before any of them writes.

    Their nodes can wait until all but one were refused.
    """

    def __init__(self, runs: int) -> None:
        self._are_in = Barrier(runs)
        self._left = runs - 1
        self._refused = Condition()
        self._is_over = False

    def is_over(self) -> None:
        """Let further runs pass one at a time."""
        self._is_over = True

    def draft_put(self, session: Session, put: Put) -> None:
        """Hold back the input until all runs have read."""
        if put.metadata.get("source") == "input" and not self._is_over:
            self._are_in.wait(PATIENCE)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> None:
        """Count the refused runs."""
        with self._refused:
            self._left -= 1
            self._refused.notify_all()

    def wait(self) -> None:
        """Wait until all but one are refused."""
        with self._refused:
            assert self._refused.wait_for(lambda: self._left == 0, PATIENCE)


class FirstStep(Hook):
    """Signals that the checkpoint before a thread's first node is stored."""

    def __init__(self) -> None:
        self.is_stored = Event()

    def after_put(self, session: Session, put: Put) -> None:
        """Check a checkpoint that was stored."""
        if put.metadata.get("step") == 0:
            self.is_stored.set()
