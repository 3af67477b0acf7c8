"""Hooks by which tests have runs meet on one thread: where each of them stands is waited for, not slept for."""

from __future__ import annotations

from dataclasses import replace
from threading import Barrier, Condition, Event

from langgraph_keel import KeelSaver
from langgraph_keel.engine.hooks import Hook, Put
from langgraph_keel.engine.session import Hooks, Session, with_engine

PATIENCE = 60
"""Seconds that a test waits for what must come."""


def with_hook(saver: KeelSaver, hook: Hook) -> KeelSaver:
    engine = saver.engine
    hooks = Hooks([hook, *engine.session.hooks.all])
    return with_engine(saver, replace(engine, session=replace(engine.session, hooks=hooks)))


class Race(Hook):
    """Lets runs read a thread before any of them puts, and tells their nodes when all but one are refused."""

    def __init__(self, runs: int) -> None:
        self._are_in = Barrier(runs)
        self._left = runs - 1
        self._refused = Condition()
        self._is_over = False

    def is_over(self) -> None:
        """Let further runs come one by one."""
        self._is_over = True

    def draft_put(self, session: Session, put: Put) -> None:
        """Wait with the input until all have read."""
        if put.metadata.get("source") == "input" and not self._is_over:
            self._are_in.wait(PATIENCE)

    def put_failed(self, session: Session, put: Put, error: BaseException) -> None:
        """Count those that were refused."""
        with self._refused:
            self._left -= 1
            self._refused.notify_all()

    def wait(self) -> None:
        """Wait until all but one are refused."""
        with self._refused:
            assert self._refused.wait_for(lambda: self._left == 0, PATIENCE)


class FirstStep(Hook):
    """Tells when the checkpoint is stored from which a thread's first node begins."""

    def __init__(self) -> None:
        self.is_stored = Event()

    def after_put(self, session: Session, put: Put) -> None:
        """Look at a checkpoint that is stored."""
        if put.metadata.get("step") == 0:
            self.is_stored.set()
