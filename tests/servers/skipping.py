"""Skips or fails the tests whose server is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from .choice import NoServer

S = TypeVar("S")

# The reasons of such skips begin with this; the summary at the end of a run looks for it.
NOT_TESTED = "NOT TESTED: "


def required() -> bool:
    """Return whether a missing server is a failure."""
    return os.environ.get("KEEL_REQUIRE_SERVERS", "0") not in ("", "0")


@contextmanager
def or_skip(opening: AbstractContextManager[S]) -> Iterator[S]:
    """Open the server, or skip the test if there is none.

    With KEEL_REQUIRE_SERVERS=1, the test fails instead.
    """
    import pytest  # not needed to open a server

    with ExitStack() as stack:
        try:
            server = stack.enter_context(opening)
        except NoServer as missing:
            stop: Callable[[str], None] = pytest.fail if required() else pytest.skip
            stop(f"{NOT_TESTED}{missing}")
        yield server
