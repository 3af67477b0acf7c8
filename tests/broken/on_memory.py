"""The contract on the store that KEEL_BROKEN_STORE names. Run by `python -m broken`; no test file of its own."""

import os

import pytest
from broken import __main__ as broken
from stores import MemoryUnderTest

from langgraph_keel.testing import SaverContract


class TestBroken(SaverContract):
    @pytest.fixture
    def backend(self) -> MemoryUnderTest:
        return MemoryUnderTest(broken.STORES[os.environ["KEEL_BROKEN_STORE"]]())
