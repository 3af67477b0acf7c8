"""Raise errors for Keel's blocking calls in a running loop (blockbuster).

LangChain's own tests do the same.
"""

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
    """Forbid Keel to block a running loop.

    A test may itself call the blocking face in a loop.
    """
    watch = BlockBuster("langgraph_keel")
    for function in watch.functions.values():
        function.can_block_predicate = _or_asked_for(function.can_block_predicate)
        # With a test's own client, redis-py looks up its version at each connection.
        function.can_block_in("redis/utils.py", "get_lib_version")
        # At its first use, the cipher of a test's own serializer loads its libraries.
        function.can_block_in("Crypto/Cipher/__init__.py", "_create_cipher")
    allow_known(watch)
    watch.activate()
    try:
        yield
    finally:
        watch.deactivate()


def allow_known(watch: BlockBuster) -> None:
    """Allow the known exceptions (backends/README.md)."""
    for function in watch.functions.values():
        # A time zone is loaded in the loop at its first use.
        function.can_block_in("serde/unpack.py", "_zone")
        # So is the source of a tool at its first call, for its version. Waiting for it would change the order in which
        # the calls of a step begin, and thereby the order in which people's answers are assigned to them.
        function.can_block_in("tools/call.py", "_version_of")


def _or_asked_for(may_block: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *args, **options: may_block(*args, **options) or _is_asked_for()


def _is_asked_for() -> bool:
    """Return whether a test has called the blocking face itself, or blocks itself.

    A direct call has no coroutine between the test and Keel.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    outside: list[FrameType] = []
    while frame is not None:
        if not outside and frame.f_code.co_filename.startswith(TESTS):
            return True  # a test's function that Keel calls
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
