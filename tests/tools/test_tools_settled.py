"""The audit trail of settlements, forks, rewinds and removals, and its cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from support.savers import SAVERS, each_face, needing
from support.tool_graphs import BACKENDS, Killed, calls, hello, run, tool_graph

from langgraph_keel import InvalidInput, KeelSaver, NotFound, ToolCache
from langgraph_keel.testing.faults import Counter, Fault, Injected, with_tap

AT: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        yield saver  # type: ignore[misc]


async def does(saver: KeelSaver, face: str, verb: str, *given: Any, **more: Any) -> Any:
    if face == "sync":
        return attrgetter(verb)(saver)(*given, **more)
    return await attrgetter(re.sub(r"(\w+)$", r"a\1", verb))(saver)(*given, **more)


def told(saver: KeelSaver) -> list[tuple[str, Any]]:
    """Return the kind and the actor of each event in the trail."""
    return [(event.kind, (event.content or {}).get("by")) for event in saver.approvals.audit()]


async def paying(saver: KeelSaver, face: str, given: Any, thread_id: str = "t", *, dies: bool = False) -> None:
    """Run an agent that pays, or is killed while it pays."""

    def pay(to: str) -> str:
        """Pay."""
        if dies:
            raise Killed
        return "paid"

    with ToolCache(saver) as cache:
        graph = tool_graph(cache, [pay], [calls(("pay", {"to": "x"}, "call-1"))])
        await run(graph, face, given, {"configurable": {"thread_id": thread_id, "user_id": "ada"}})


async def doubtful(saver: KeelSaver, face: str, thread_id: str = "t") -> str:
    """Leave a call in doubt; return its key."""
    with pytest.raises(Killed):
        await paying(saver, face, hello(), thread_id, dies=True)
    (call,) = saver.tools.calls(thread_id)
    return call.key


@each_face
async def test_a_settlement_is_recorded_once_in_the_audit_trail(saver: KeelSaver, face: str) -> None:
    key = await doubtful(saver, face)
    with pytest.raises(InvalidInput, match="by must name"):
        await does(saver, face, "tools.settle", "t", key, "retry", by="keel:x")
    assert [call.state for call in saver.tools.calls("t")] == ["unknown"]
    await does(saver, face, "tools.settle", "t", key, "done", "receipt 17", by="maria")
    (event,) = saver.approvals.audit()
    said = {"by": "maria", "tool": "pay", "call": key, "decision": "done", "result": "receipt 17", "thread_id": "t"}
    assert (event.kind, event.content) == ("settled", said)
    with pytest.raises(NotFound, match="nothing to settle"):
        await does(saver, face, "tools.settle", "t", key, "retry", by="bob")
    assert told(saver) == [("settled", "maria")]
    saver.delete_thread("t")
    assert told(saver) == [("settled", None)]
    assert saver.approvals.verify_audit().ok


@pytest.mark.parametrize(("decision", "answer"), [("done", "receipt 17"), ("skip", "decided not to repeat it")])
@each_face
async def test_a_call_that_raised_an_error_may_be_settled_if_it_has_acted(
    saver: KeelSaver, face: str, decision: str, answer: str
) -> None:
    paid = []

    def pay(to: str) -> str:
        """Pay, but lose the reply."""
        paid.append(to)
        raise ValueError("no reply")

    with ToolCache(saver) as cache:
        graph = tool_graph(cache, [pay], [calls(("pay", {"to": "x"}, "call-1"))])
        with pytest.raises(ValueError, match="no reply"):
            await run(graph, face, hello(), AT)
        (call,) = saver.tools.calls("t")
        assert call.state == "failed"
        with pytest.raises(NotFound, match="is failed: it runs again with its step"):
            await does(saver, face, "tools.settle", "t", call.key, "retry", by="maria")
        result = answer if decision == "done" else None
        await does(saver, face, "tools.settle", "t", call.key, decision, result, by="maria")
        state = await run(graph, face, None, AT)
    (said,) = [each.text for each in state["messages"] if each.type == "tool"]
    assert paid == ["x"]
    assert answer in said
    assert told(saver) == [("settled", "maria")]


async def look_again(saver: KeelSaver, face: str, thread_id: str, key: str) -> None:
    with pytest.raises(NotFound, match="nothing to settle"):
        await does(saver, face, "tools.settle", thread_id, key, "skip", by="bob")


async def go_on(saver: KeelSaver, face: str, thread_id: str, key: str) -> None:
    await paying(saver, face, None, thread_id)


async def prune(saver: KeelSaver, face: str, thread_id: str, key: str) -> None:
    await does(saver, face, "prune", [thread_id])


@pytest.mark.parametrize("decision", ["done", "retry"])
@pytest.mark.parametrize("act", [look_again, go_on, prune])
@each_face
async def test_an_interrupted_settlement_is_recorded_by_the_next_operation(
    saver: KeelSaver, face: str, act: Any, decision: str
) -> None:
    """Cut off at each request: the trail contains each settlement once."""
    seen = []
    for lost_reply in (False, True):
        for at in count():
            name = f"{lost_reply} {at}"
            key = await doubtful(saver, face, name)
            fault = Fault(at, lost_reply=lost_reply)
            with suppress(Injected):
                await does(with_tap(saver, fault), face, "tools.settle", name, key, decision, by="maria")
            (call,) = saver.tools.calls(name)
            if call.decided:
                await act(saver, face, name, key)
            events = [event.content for event in saver.approvals.audit() if event.kind == "settled"]
            told = [each["by"] for each in events if each and each["thread_id"] == name]
            assert told == ["maria"] * bool(call.decided), name
            seen.append(bool(call.decided))
            if not fault.fired:
                break
    assert {*seen} == {True, False}
    assert saver.approvals.verify_audit().ok


@each_face
async def test_a_settlement_without_a_name_is_recorded(saver: KeelSaver, face: str) -> None:
    await does(saver, face, "tools.settle", "t", await doubtful(saver, face), "retry")
    assert told(saver) == [("settled", None)]


@each_face
async def test_an_omitted_result_can_be_given_once_later(saver: KeelSaver, face: str) -> None:
    key = await doubtful(saver, face)
    await does(saver, face, "tools.settle", "t", key, "done", by="maria")
    for decision, result in (("done", None), ("retry", None), ("skip", None)):
        with pytest.raises(NotFound, match="nothing to settle"):
            await does(saver, face, "tools.settle", "t", key, decision, result)
    await does(saver, face, "tools.settle", "t", key, "done", "receipt 17", by="ann")
    with pytest.raises(NotFound, match="nothing to settle"):
        await does(saver, face, "tools.settle", "t", key, "done", "receipt 18")
    await paying(saver, face, None)
    (paid,) = [each for each in saver.get_tuple(AT).checkpoint["channel_values"]["messages"] if each.type == "tool"]  # type: ignore[union-attr]
    assert (paid.content, told(saver)) == ("receipt 17", [("settled", "maria"), ("settled", "ann")])


@each_face
async def test_the_audit_trail_names_the_author_of_each_change(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    first = saver.timeline("t")[0].config
    await does(saver, face, "fork", first, "fork", by="ann")
    await does(saver, face, "fork", first, by="ben")
    await does(saver, face, "rewind", first, by="cem")
    await does(saver, face, "prune", ["t"], by="dan")
    by = [("forked", "ann"), ("branched", "ben"), ("rewound", "cem"), ("pruned", "dan")]
    assert told(saver) == by
    await does(saver, face, "delete_thread", "fork", by="eve")
    await does(saver, face, "retention.erase", "ada", by="ada")
    *_, deleted, erased = saver.approvals.audit()
    assert (deleted.kind, deleted.content) == (
        "deleted",
        {"by": "eve", "thread": sha256(b"fork").hexdigest(), "thread_id": ""},
    )
    assert erased.kind == "erased"
    assert erased.content is not None
    assert erased.content["by"] == sha256(b"ada").hexdigest(), "nothing of the person stays, not even who erased"
    assert saver.approvals.verify_audit().ok


@each_face
async def test_a_deletion_without_a_name_takes_no_extra_trip(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    counter = Counter()
    await does(with_tap(saver, counter), face, "delete_thread", "t")
    assert counter.taken() == 2  # one of them asks whether a person is on hold
    assert told(saver) == []


@each_face
async def test_an_empty_name_is_refused_and_changes_nothing(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    first = saver.timeline("t")[0].config
    acts = {
        "fork": (first, "fork"),
        "rewind": (first,),
        "prune": (["t"],),
        "delete_thread": ("t",),
        "retention.erase": ("ada",),
    }
    before = len(saver.timeline("t"))
    for verb, given in acts.items():
        with pytest.raises(InvalidInput, match="by must name"):
            await does(saver, face, verb, *given, by=" ")
    assert (len(saver.timeline("t")), len(saver.timeline("fork")), told(saver)) == (before, 0, [])
