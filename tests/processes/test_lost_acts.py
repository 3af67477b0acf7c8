"""A reviewer's act whose reply is lost, and which is undone before the retry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from langgraph.types import interrupt
from support.approvals.children import graph_of
from support.places import ON_SERVERS, Place
from support.savers import each_face
from support.tool_graphs import Killed, calls, hello, thread, tool_graph

from langgraph_keel import AlreadyDecided, KeelSaver, ToolCache

pytestmark = pytest.mark.slow


@asynccontextmanager
async def cut_at(
    place: Place, face: str, number: int, meanwhile: Callable[[], object]
) -> AsyncIterator[tuple[KeelSaver, list[int]]]:
    """Open a saver that loses the reply to a request, and run `meanwhile` then.

    Also yields a list that records when this has happened.
    """
    happened: list[int] = []

    def once() -> None:
        if not happened:
            happened.append(number)
            meanwhile()

    with place.proxy() as proxy, place.through(proxy).open() as saver:
        await act(saver, face, "pending", "no thread")  # opens the connection of this face
        proxy.meanwhile = once
        proxy.cut_before_reply(number)
        yield saver, happened


async def act(saver: KeelSaver, face: str, verb: str, *given: Any, **more: Any) -> Any:
    inbox: Any = saver.tools if verb == "settle" else saver.approvals
    if face == "sync":
        return getattr(inbox, verb)(*given, **more)
    return await getattr(inbox, f"a{verb}")(*given, **more)


def ask(saver: KeelSaver, thread_id: str) -> str:
    """Have a thread ask; return the id of its request."""

    def pay(state: Any) -> Any:
        return {"said": [interrupt({"action": "pay", "args": {"x": 1}, "allowed": ["approve", "reject"]})]}

    graph_of(saver, ("pay", pay)).invoke({"said": []}, thread(thread_id))
    (request,) = saver.approvals.pending(thread_id)
    return request.id


def acts_of(saver: KeelSaver, request_id: str) -> list[tuple[str, str]]:
    return [(event["kind"], event["by"]) for event in saver.approvals.get(request_id).history]


@ON_SERVERS
@pytest.mark.parametrize("rejects", [True, False])
@each_face
async def test_an_approval_undone_before_its_retry_is_reported_as_stored(
    place: Place, rejects: bool, face: str
) -> None:
    """Nor is it repeated, overriding the other reviewer's decision."""
    undone = 0
    with place.open() as direct:
        for number in count(1):
            name = ask(direct, f"t{number}")

            def undo(name: str = name) -> None:
                if ("approved", "ann") in acts_of(direct, name):
                    direct.approvals.revise(name, by="bob")
                    if rejects:
                        direct.approvals.reject(name, by="bob")

            async with cut_at(place, face, number, undo) as (saver, happened):
                try:
                    decided = await act(saver, face, "approve", name, by="ann")
                except AlreadyDecided as error:
                    said = str(error)
                    assert ("was recorded" in said, "not recorded" in said) == (True, False)
                    assert "by bob" in said
                    decided = None
            seen = acts_of(direct, name)
            assert seen.count(("approved", "ann")) == 1
            if ("reopened", "bob") in seen:
                undone += 1
                assert direct.approvals.get(name).status == ("rejected" if rejects else "waiting")
            else:
                assert decided is not None
            if not happened:
                break
    assert undone


@ON_SERVERS
@each_face
async def test_a_retried_revision_does_not_undo_a_later_decision(place: Place, face: str) -> None:
    decided = 0
    with place.open() as direct:
        for number in count(1):
            name = ask(direct, f"t{number}")
            direct.approvals.approve(name, by="ann")

            def decide(name: str = name) -> None:
                if ("reopened", "ann") in acts_of(direct, name):
                    direct.approvals.reject(name, by="bob")

            async with cut_at(place, face, number, decide) as (saver, happened):
                await act(saver, face, "revise", name, by="ann")
            seen = acts_of(direct, name)
            assert seen.count(("reopened", "ann")) == 1
            is_rejected = ("rejected", "bob") in seen
            assert direct.approvals.get(name).status == ("rejected" if is_rejected else "waiting")
            decided += is_rejected
            if not happened:
                break
    assert decided


def doubtful(saver: KeelSaver, thread_id: str, paid: list[int]) -> tuple[str, Callable[[], object]]:
    """Leave a call in doubt; return its key, and a function that resumes the thread."""

    def pay(to: str) -> str:
        """Pay."""
        paid.append(1)
        if len(paid) == 1:
            raise Killed
        return "paid"

    def go_on(given: Any = None) -> None:
        with ToolCache(saver) as cache:
            tool_graph(cache, [pay], [calls(("pay", {"to": "x"}, "call-1"))]).invoke(given, thread(thread_id))

    with pytest.raises(Killed):
        go_on(hello())
    (call,) = saver.tools.calls(thread_id)
    return call.key, go_on


@ON_SERVERS
@each_face
async def test_a_retried_settlement_that_was_used_already_succeeds(place: Place, face: str) -> None:
    acted = 0
    with place.open() as direct:
        for number in count(1):
            name, paid = f"t{number}", list[int]()
            key, go_on = doubtful(direct, name, paid)

            def act_on(name: str = name, go_on: Callable[[], object] = go_on) -> None:
                if [call.decided for call in direct.tools.calls(name)] == ["retry"]:
                    go_on()

            async with cut_at(place, face, number, act_on) as (saver, happened):
                await act(saver, face, "settle", name, key, "retry", by="ann")
            events = [event.content for event in direct.approvals.audit(limit=1000) if event.kind == "settled"]
            assert [each["by"] for each in events if each and each["thread_id"] == name] == ["ann"]
            acted += len(paid) == 2
            if not happened:
                break
    assert acted
