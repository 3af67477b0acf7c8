"""Test the contract: it must fail on each broken store, and pass on the sound one."""

from functools import cache

import pytest

from broken import BROKEN
from broken.catching import CAUGHT_BY
from broken.running import failure
from langgraph_keel.backends.memory.store import MemoryStore


@cache
def fails_on_the_right_store(name: str) -> BaseException | None:
    return failure(name, MemoryStore)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("store", "name"), CAUGHT_BY.items(), ids=CAUGHT_BY)
def test_the_contract_catches_each_broken_store(store: str, name: str) -> None:
    assert fails_on_the_right_store(name) is None
    assert failure(name, BROKEN[store]) is not None


def test_every_broken_store_is_tested() -> None:
    assert CAUGHT_BY.keys() == BROKEN.keys()
    assert len(BROKEN) >= 80
