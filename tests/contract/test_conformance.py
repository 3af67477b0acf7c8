"""LangGraph's conformance suite: every capability, every saver, both faces."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from support.savers import SAVERS, needing

Saver = BaseCheckpointSaver[Any]
Call = Callable[..., Coroutine[Any, Any, Any]]

CAPABILITIES = {capability.value for capability in Capability}


def threaded(name: str) -> Call:
    """Return an async method that runs the sync method of this name in a thread."""

    async def call(self: "SyncFace", *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.saver, name), *args, **kwargs)

    return call


class SyncFace(BaseCheckpointSaver[Any]):
    """A saver whose sync methods have async names, since the suite calls only those."""

    def __init__(self, saver: Saver) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    aput = threaded("put")
    aput_writes = threaded("put_writes")
    aget_tuple = threaded("get_tuple")
    adelete_thread = threaded("delete_thread")
    adelete_for_runs = threaded("delete_for_runs")
    acopy_thread = threaded("copy_thread")
    aprune = threaded("prune")

    async def alist(self, *args: Any, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(lambda: list(self.saver.list(*args, **kwargs))):
            yield found

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self.saver.get_next_version(current, channel)


def async_face(saver: Saver) -> Saver:
    return saver


FACES: dict[str, Callable[[Saver], Saver]] = {"sync": SyncFace, "async": async_face}


def registered(name: str, face: str, directory: Path) -> RegisteredCheckpointer:
    """Register a factory that opens a new saver on an empty store for each capability."""

    async def opened() -> AsyncGenerator[Saver, None]:
        with SAVERS[name](Path(mkdtemp(dir=directory))) as saver:
            yield FACES[face](saver)

    return RegisteredCheckpointer(f"{name} ({face})", opened)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", SAVERS)
async def test_savers_conform_to_the_suite_of_langgraph(
    name: str, face: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needing(name, request)
    report = await validate(registered(name, face, tmp_path))
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert not failures, "\n".join(failures)
    assert {capability for capability, result in report.results.items() if result.passed} == CAPABILITIES


@pytest.mark.parametrize("capability", sorted(CAPABILITIES))
@pytest.mark.parametrize("name", SAVERS)
def test_each_face_has_each_capability(
    name: str, capability: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The suite looks only for async methods, and ignores those of the base class."""
    needing(name, request)
    with SAVERS[name](tmp_path) as saver:
        for method in (capability, f"a{capability}"):
            assert getattr(type(saver), method) is not getattr(BaseCheckpointSaver, method)
