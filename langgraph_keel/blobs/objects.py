"""Requests to the place of the objects, which plans yield like database requests.

An object is written once, under a new name, and later deleted. It never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from langgraph_keel.engine.plan import Errand
from langgraph_keel.engine.records import record


class ObjectRequest:
    """A request to the objects instead of the database."""

    __slots__ = ()


@record
class MakeFolder(ObjectRequest):
    """Create the folder of a store that has no objects yet. Does nothing in a bucket."""

    folder: str


@record
class Upload(ObjectRequest):
    """Write objects durably.

    Each is written completely or not at all; after an error, some may exist.
    """

    bodies: Mapping[str, bytes]


@record
class Fetch(ObjectRequest):
    """Read objects.

    The reply omits missing objects, and has `b""` for objects of a different size.
    """

    sizes: Mapping[str, int]


@record
class CopyObjects(ObjectRequest):
    """Copy objects to other names. The reply contains the names of missing objects."""

    names: Mapping[str, str]


@record
class Remove(ObjectRequest):
    """Delete objects. Missing objects are not an error."""

    names: Collection[str]


@record
class ListObjects(ObjectRequest):
    """List the objects in a folder and below it; the reply is a sequence of `Listed`."""

    folder: str


@record
class Listed:
    """An object as a listing shows it."""

    name: str
    written_at: int  # milliseconds since 1970, by the clock of the place


class Objects(Protocol):
    """A place where objects are kept."""

    place: str  # for messages, without credentials
    exempt: Sequence[str]  # sentences for receipts: where deleted objects may remain

    def send(self, request: ObjectRequest) -> Any:
        """Execute a request, blocking."""
        ...

    async def send_async(self, request: ObjectRequest) -> Any:
        """As `send`, without blocking the running loop."""
        ...

    def close(self) -> None:
        """Release all resources. May be called more than once."""
        ...


@record
class Ask(Errand):
    """An errand that sends a request to the place of the objects."""

    objects: Objects
    request: ObjectRequest

    def do(self) -> Any:
        """See `Errand.do`."""
        return self.objects.send(self.request)

    async def ado(self) -> Any:
        """See `Errand.ado`."""
        return await self.objects.send_async(self.request)
