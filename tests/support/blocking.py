"""Blocking calls in a running loop are errors where Keel makes them, as in LangChain's own tests (blockbuster)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from blockbuster import BlockBuster

import langgraph_keel

PACKAGE = str(Path(langgraph_keel.__file__).parent)
TESTS = str(Path(__file__).parents[1])
COROUTINES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@contextmanager
def no_blocking() -> Iterator[None]:
    """Forbid Keel to block a running loop, but where a test calls the blocking face in one by itself."""
    watch = BlockBuster("langgraph_keel")
    for function in watch.functions.values():
        function.can_block_predicate = _or_asked_for(function.can_block_predicate)
        # With a client of the test's own, redis-py looks for its version at each connection.
        function.can_block_in("redis/utils.py", "get_lib_version")
    allow_known(watch)
    watch.activate()
    try:
        yield
    finally:
        watch.deactivate()


def allow_known(watch: BlockBuster) -> None:
    """Allow what Keel does not mend (backends/README.md)."""
    for function in watch.functions.values():
        # A time zone that the process has not used yet is loaded in the loop.
        function.can_block_in("serde/unpack.py", "_zone")
        # So is the source of a tool at its first call, for its version: to wait for that changes the order in which the
        # calls of a step begin, by which answers of persons are given to them.
        function.can_block_in("tools/call.py", "_version_of")


def _or_asked_for(may_block: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *args, **options: may_block(*args, **options) or _is_asked_for()


def _is_asked_for() -> bool:
    """Whether a test has called the blocking face (no coroutine stands between it and Keel), or blocks by itself."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    outside: list[FrameType] = []
    while frame is not None:
        if not outside and frame.f_code.co_filename.startswith(TESTS):
            return True  # a function that it has handed to Keel
        if frame.f_code.co_filename.startswith(PACKAGE):
            outside = [frame]
        elif outside:
            outside.append(frame)
        frame = frame.f_back
    for each in outside:
        if each.f_code.co_filename.startswith(TESTS):
            return True
        if each.f_code.co_flags & COROUTINES:
            return False
    return False
