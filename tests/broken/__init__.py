"""Stores that each violate one clause of the contract, which must detect them all."""

from collections.abc import Callable, Mapping

from broken.cells import CELLS
from broken.copying import COPYING
from broken.listing import LISTING
from broken.reading import READING
from broken.removing import REMOVING
from broken.tenants import TENANTS
from broken.writing import WRITING
from langgraph_keel.backends.memory.store import MemoryStore

BROKEN: Mapping[str, Callable[[], MemoryStore]] = {
    **WRITING,
    **READING,
    **REMOVING,
    **COPYING,
    **CELLS,
    **LISTING,
    **TENANTS,
}
