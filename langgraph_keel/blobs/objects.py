"""Requests to the place where objects are, which plans yield beside those for the database.

An object is written once, under a new name, and deleted; it never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from langgraph_keel.engine.plan import Errand
from langgraph_keel.engine.records import record


class ObjectRequest:
    """A request that goes to the objects, and not to the database."""

    __slots__ = ()


@record
class MakeFolder(ObjectRequest):
    """Make the folder of a store that has no objects yet. In a bucket there is nothing to be made."""

    folder: str


@record
class Upload(ObjectRequest):
    """Write objects, durably. None of them is there in part; of several, some may be there if it fails."""

    bodies: Mapping[str, bytes]


@record
class Fetch(ObjectRequest):
    """Read objects; the reply has those that are there and have the size given (of others, `b""` is there)."""

    sizes: Mapping[str, int]


@record
class CopyObjects(ObjectRequest):
    """Copy objects, each to another name; the reply has the names of those that are not there to be copied."""

    names: Mapping[str, str]


@record
class Remove(ObjectRequest):
    """Delete objects; no error if one is gone already."""

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
    """A place where objects are."""

    place: str  # as it may be shown, without credentials
    exempt: Sequence[str]  # a sentence for receipts on each place where deleted objects may still be

    def send(self, request: ObjectRequest) -> Any:
        """Carry out a request, blocking."""
        ...

    async def send_async(self, request: ObjectRequest) -> Any:
        """As `send`, without blocking the running loop."""
        ...

    def close(self) -> None:
        """Give back what is open. Safe to call again."""
        ...


@record
class Ask(Errand):
    """The errand to have a request carried out by a place where objects are."""

    objects: Objects
    request: ObjectRequest

    def do(self) -> Any:
        """See `Errand.do`."""
        return self.objects.send(self.request)

    async def ado(self) -> Any:
        """See `Errand.ado`."""
        return await self.objects.send_async(self.request)
