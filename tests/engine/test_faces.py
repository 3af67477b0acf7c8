"""Both faces of an operation are made of one plan."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, assert_type

import pytest

from langgraph_keel import MemorySaver
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import Component, Pages, faces, iterator_faces
from langgraph_keel.engine.leases import Pause
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import Page


class Countdown:
    """Pages of numbers down to zero: from 3 on, (3, 2), (1, 0)."""

    def __init__(self, start: int) -> None:
        self.rest = [*range(start, -1, -1)]

    def next(self) -> Plan[Sequence[int] | None]:
        yield Pause(0)
        page, self.rest = self.rest[:2], self.rest[2:]
        return page or None


class Toys(Component):
    """A component."""

    def _play(self, name: str, *, times: int = 1) -> Plan[tuple[str, ...]]:
        """Play.

        Args:
            name: The game.
            times: How often.
        """
        yield Pause(0)
        yield from self.engine.session.store.read_threads(Page(None, 1))
        return (name,) * times

    play, aplay = faces(_play)

    def _find_thread(self) -> Plan[tuple[str, str]]:
        """Return the thread in which a blocking function is called."""
        return ((yield Call(self._name)), (yield Call(self._name, self._aname)))

    thread, athread = faces(_find_thread, "thread", on="other")

    def _count(self, start: int = 3) -> Pages[int]:
        """Count down."""
        if start < 0:
            raise ValueError(start)
        return Countdown(start)

    count, acount = iterator_faces(_count)

    @property
    def other(self) -> object:
        return self.engine

    def _name(self) -> str:
        return threading.current_thread().name

    async def _aname(self) -> str:
        return self._name()


async def test_both_faces_run_the_plan() -> None:
    toys = Toys(MemorySaver())
    assert toys.play("chess", times=2) == await toys.aplay("chess", times=2) == ("chess", "chess")
    assert list(toys.count()) == [each async for each in toys.acount()] == [3, 2, 1, 0]


async def test_the_async_face_calls_blocking_functions_in_another_thread() -> None:
    toys, here = Toys(MemorySaver()), threading.current_thread().name
    assert toys.thread() == (here, here)
    elsewhere, awaited = await toys.athread()
    assert elsewhere != here
    assert awaited == here


def test_faces_look_like_handwritten_methods() -> None:
    assert inspect.iscoroutinefunction(Toys.aplay)
    assert not inspect.iscoroutinefunction(Toys.play)
    assert inspect.isgeneratorfunction(Toys.count)
    assert inspect.isasyncgenfunction(Toys.acount)
    assert str(inspect.signature(Toys.play)) == "(self, name: 'str', *, times: 'int' = 1) -> 'tuple[str, ...]'"
    assert inspect.signature(Toys.play) == inspect.signature(Toys.aplay)
    assert inspect.signature(Toys.count).return_annotation == "Iterator[int]"
    assert inspect.signature(Toys.acount).return_annotation == "AsyncIterator[int]"
    for face, name in ((Toys.play, "play"), (Toys.athread, "athread"), (Toys.acount, "acount")):
        assert (face.__name__, face.__qualname__, face.__module__) == (name, f"Toys.{name}", __name__)
    assert str(inspect.getdoc(Toys.play)).startswith("Play.\n\nArgs:\n    name: The game.")
    assert Toys.aplay.__doc__ == "As `play`, asynchronously."
    assert Toys.athread.__doc__ == "As `thread`, asynchronously."


async def test_type_checkers_see_both_faces() -> None:
    toys = Toys(MemorySaver())
    assert_type(toys.play("chess"), tuple[str, ...])
    assert_type(await toys.aplay("chess", times=3), tuple[str, ...])
    assert_type(toys.count(2), Iterator[int])
    assert_type(toys.acount(start=2), AsyncIterator[int])
    coroutine = toys.athread()
    await assert_type(coroutine, Coroutine[Any, Any, tuple[str, str]])
    with pytest.raises(TypeError):
        toys.play("chess", often=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        await toys.aplay()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="-1"):
        next(toys.count(-1))


WITHOUT_IO = {
    "agent_tools",
    "archive",
    "draining",
    "for_tenant",
    "get_next_version",
    "grants",
    "handoff_middleware",
    "store",
    "summarization_middleware",
    "with_allowlist",
}
"""Methods of a saver that send nothing to the store."""


def test_each_operation_of_a_saver_and_its_components_has_both_faces() -> None:
    saver = MemorySaver()
    attributes = [getattr(saver, name) for name in dir(type(saver)) if not name.startswith("_")]
    components = [each for each in attributes if isinstance(each, Component)]
    assert {"KeyMethods", "RetentionMethods"} < {type(each).__name__ for each in components}
    for holder in (saver, *components):
        names = {name for name, _ in inspect.getmembers(type(holder), inspect.isfunction) if not name.startswith("_")}
        twins = {name for each in names for name in (each, f"a{each}") if {each, f"a{each}"} <= names}
        assert names - twins <= WITHOUT_IO, type(holder)
