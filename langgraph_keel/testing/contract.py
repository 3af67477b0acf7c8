"""The contract of a backend as a test class.

Define how your store is opened, and run pytest.

    class TestMongo(SaverContract):
        @pytest.fixture
        def backend(self, mongo_url):
            store = MongoUnderTest(mongo_url)  # open(**options), wipe(), raw(): see `StoreUnderTest`
            yield store
            store.close()

Every test runs on both faces, and, if it matters, both with a saver with a memo and with a new saver for every call.
There are no capability flags: a backend must satisfy the whole contract.
"""

from __future__ import annotations

from langgraph_keel.testing.contract_cells import CellContract
from langgraph_keel.testing.contract_reading import InputContract, ListingContract, ReadingContract, ValuesContract
from langgraph_keel.testing.contract_removal import CopyingContract, RemovalContract, StrayContract
from langgraph_keel.testing.contract_search import SearchContract
from langgraph_keel.testing.contract_tenants import TenantContract
from langgraph_keel.testing.contract_travel import DeltaContract, DiffContract, ForksContract, TravelContract
from langgraph_keel.testing.contract_writing import ConflictContract, FaultContract, WritesContract


class SaverContract(
    # Pytest runs the last of them first, so the basic and quick ones are last.
    ValuesContract,
    StrayContract,
    TenantContract,
    CellContract,
    SearchContract,
    FaultContract,
    ForksContract,
    TravelContract,
    DeltaContract,
    DiffContract,
    CopyingContract,
    RemovalContract,
    ConflictContract,
    InputContract,
    ListingContract,
    WritesContract,
    ReadingContract,
):
    """All parts of the contract.

    While writing a backend, you can also subclass the parts one by one.
    """
