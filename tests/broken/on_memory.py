"""The contract on the store that KEEL_BROKEN_STORE names. Run by `python -m broken`; no test file of its own.

A store is wrong on either face and with either memo, so the blocking face with a warm memo is enough.
"""

import os
from collections.abc import Iterator

import pytest
from stores import MemoryUnderTest

from broken import __main__ as broken
from langgraph_keel.testing import Rig, SaverContract, SyncFace
from langgraph_keel.testing.contract_cells import CellContract
from langgraph_keel.testing.contract_removal import CopyingContract, StrayContract
from langgraph_keel.testing.contract_travel import ForksContract


class OnBroken:
    @pytest.fixture
    def backend(self) -> MemoryUnderTest:
        return MemoryUnderTest(broken.STORES[os.environ["KEEL_BROKEN_STORE"]]())

    @pytest.fixture
    def rig(self, backend: MemoryUnderTest) -> Iterator[Rig]:
        rig = Rig(backend, SyncFace)
        yield rig
        rig.close()

    @pytest.fixture
    def warm(self, rig: Rig) -> Rig:
        return rig


class TestContract(OnBroken, SaverContract):
    """All of it."""


class TestCopies(OnBroken, ForksContract, CopyingContract):
    """What a store that only copies wrongly is run on."""


class TestCells(OnBroken, StrayContract, CellContract):
    """What a store that keeps only cells wrongly is run on: a twentieth of the whole."""
