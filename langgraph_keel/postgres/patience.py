"""What is tried again, and for how long."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from langgraph_keel.errors import StoreUnavailable

RACES = {"40001", "40P01"}
"""serialization_failure and deadlock_detected: CockroachDB and YugabyteDB ask for these to be tried again."""
SHUFFLED = {"26000", "42P05"}
"""A prepared statement that is not there, or there twice: a pooler has put another connection in the place of one."""


class Waiting(Protocol):
    """What is known of a request that is under way."""

    was_cut: bool

    @property
    def is_broken(self) -> bool:
        """Whether its connection is of no use any more."""
        ...


class Again(Exception):
    """The request is to be sent once more.

    Attributes:
        delay: Seconds to wait before.
    """

    def __init__(self, delay: float) -> None:
        self.delay = delay


class Patience:
    """Decides, for one request, what is tried again: a broken connection once, a lost race until time is up."""

    def __init__(self, where: str, timeout: float) -> None:
        self._where = where
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._resent = False

    @contextmanager
    def over(self, watched: Waiting) -> Iterator[None]:
        """Turn an error after which to try again into `Again`."""
        try:
            yield
        except Exception as error:
            self._judge(error, watched)
            raise

    def _judge(self, error: Exception, watched: Waiting) -> None:
        if watched.was_cut:
            text = f"{self._where}: no answer within {self._timeout} s; if this was a put, it may yet be stored"
            raise StoreUnavailable(text) from error
        state = getattr(error, "sqlstate", None)
        if (watched.is_broken or state in SHUFFLED) and not self._resent:
            self._resent = True
            raise Again(0) from error
        if state in RACES and time.monotonic() < self._end:
            raise Again(random.uniform(0, 0.02)) from error
