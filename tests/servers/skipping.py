"""What becomes of a test whose server is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from .choice import NoServer

S = TypeVar("S")

# What the reasons of such skips begin with; the summary at the end of a run looks for it.
NOT_TESTED = "NOT TESTED: "


def required() -> bool:
    """Whether a missing server is a failure."""
    return os.environ.get("KEEL_REQUIRE_SERVERS", "0") not in ("", "0")


@contextmanager
def or_skip(opening: AbstractContextManager[S]) -> Iterator[S]:
    """Open the server; where there is none, skip the test, or fail it with KEEL_REQUIRE_SERVERS=1."""
    import pytest  # not needed by who only wants a server

    with ExitStack() as stack:
        try:
            server = stack.enter_context(opening)
        except NoServer as missing:
            stop: Callable[[str], None] = pytest.fail if required() else pytest.skip
            stop(f"{NOT_TESTED}{missing}")
        yield server
