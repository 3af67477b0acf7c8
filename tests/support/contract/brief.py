"""The contract for a store that is another store of the contract, with a layer before it or by another client.

All four ways of calling it (two faces, each with a saver that remembers and with a new one for every call) are for the
stores that keep the data. Upon them 17 more stores stand: that made 25,000 of 45,000 tests, most of which could fail
only together with one that is run anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from langgraph_keel.testing import FACES, Rig, SaverContract, StoreUnderTest


class BriefContract(SaverContract):
    """The whole contract by both faces: by one with a saver that remembers, by the other with new ones."""

    @pytest.fixture(params=["sync-warm", "async-cold"])
    def rig(self, backend: StoreUnderTest, request: pytest.FixtureRequest) -> Iterator[Rig]:
        face, memo = request.param.split("-")
        rig = Rig(backend, FACES[face], memo == "cold")
        yield rig
        rig.close()
