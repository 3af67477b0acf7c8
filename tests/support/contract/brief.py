"""The contract for stores that wrap another store of the contract, or its client.

The stores that keep the data run it in all four ways: two faces, each with a saver that remembers and with a new saver
for every call. There are 17 more stores on top of them. In all four ways, these made 25,000 of 45,000 tests, most of
which could fail only together with another test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langgraph_keel.testing import FACES, Rig, SaverContract, StoreUnderTest


class BriefContract(SaverContract):
    """The whole contract by both faces.

    One face has a saver that remembers, the other has new ones.
    """

    @pytest.fixture(params=["sync-warm", "async-cold"])
    def rig(self, backend: StoreUnderTest, request: pytest.FixtureRequest) -> Iterator[Rig]:
        face, memo = request.param.split("-")
        rig = Rig(backend, FACES[face], memo == "cold")
        yield rig
        rig.close()
