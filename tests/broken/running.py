"""Run tests of the contract on a store, without pytest.

A broken store is wrong on either face and with either memo, so the blocking face with a warm memo is enough.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NoReturn

import pytest
from support.stores import MemoryUnderTest

from langgraph_keel.backends.memory.store import MemoryStore
from langgraph_keel.testing import Rig, SaverContract, SyncFace
from langgraph_keel.testing.contract_cells import OF_THREAD, SHARED

NAMES = [name for name in dir(SaverContract) if name.startswith("test_")]


def failure(name: str, store: Callable[[], MemoryStore], seconds: float = 0) -> BaseException | None:
    """Run one test of the contract with all parameters; return the first failure.

    A broken store may produce an endless listing, so a test that takes too long fails.
    """
    old = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        for given in parameters(getattr(SaverContract, name)):
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
            run(name, store(), given)
    except (Exception, pytest.fail.Exception) as failed:
        return failed
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
    return None


def _too_long(number: int, frame: Any) -> NoReturn:
    raise TimeoutError


def run(name: str, store: MemoryStore, given: dict[str, Any]) -> None:
    rig = Rig(MemoryUnderTest(store), SyncFace)
    try:
        getattr(SaverContract(), name)(**{key: rig if key in ("rig", "warm") else one for key, one in given.items()})
    finally:
        rig.close()


def parameters(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Yield the arguments that pytest would pass to a test: parameters and fixtures."""
    choices: list[list[dict[str, Any]]] = []
    asked = inspect.signature(test).parameters
    choices += [[{name: None}] for name in ("rig", "warm") if name in asked]
    choices += [[{"shelf": shelf} for shelf in (OF_THREAD, SHARED)]] if "shelf" in asked else []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0].replace(",", " ").split() if isinstance(mark.args[0], str) else mark.args[0]
            choices.append([dict(zip(names, values_of(one, len(names)), strict=True)) for one in mark.args[1]])
    for parts in product(*choices):
        yield {name: value for part in parts for name, value in part.items()}


def values_of(one: Any, count: int) -> tuple[Any, ...]:
    """Return the values of one choice of `pytest.mark.parametrize`."""
    values = getattr(one, "values", one) if type(one).__name__ == "ParameterSet" else one if count > 1 else (one,)
    return tuple(values)
