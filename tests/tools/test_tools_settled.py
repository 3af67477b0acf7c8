"""Who has settled, forked, rewound, pruned, deleted or erased: the audit trail says so, and costs nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from savers import SAVERS, each_face, needing
from tool_graphs import BACKENDS, Killed, calls, hello, run, tool_graph

from langgraph_keel import InvalidInput, KeelSaver, NotFound, ToolCache
from langgraph_keel.testing.faults import Counter, with_tap


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        yield saver  # type: ignore[misc]


async def does(saver: KeelSaver, face: str, verb: str, *given: Any, **more: Any) -> Any:
    if face == "sync":
        return getattr(saver, verb)(*given, **more)
    return await getattr(saver, f"a{verb}")(*given, **more)


def told(saver: KeelSaver) -> list[tuple[str, Any]]:
    """Return what the trail says: kinds, and who."""
    return [(event.kind, (event.content or {}).get("by")) for event in saver.approvals.audit()]


async def doubtful(saver: KeelSaver, face: str) -> str:
    """Leave a call in doubt; return its key."""

    def pay(to: str) -> str:
        """Pay."""
        raise Killed

    with ToolCache(saver) as cache:
        graph = tool_graph(cache, [pay], [calls(("pay", {"to": "x"}, "call-1"))])
        config = {"configurable": {"thread_id": "t", "user_id": "ada"}}
        with pytest.raises(Killed):
            await run(graph, face, hello(), config)
    (call,) = saver.tools("t")
    return call.key


@each_face
async def test_a_settlement_is_always_in_the_trail(saver: KeelSaver, face: str) -> None:
    key = await doubtful(saver, face)
    with pytest.raises(InvalidInput, match="by must name"):
        await does(saver, face, "settle", "t", key, "retry", by="keel:x")
    assert [call.state for call in saver.tools("t")] == ["unknown"]
    await does(saver, face, "settle", "t", key, "done", "receipt 17", by="maria")
    (event,) = saver.approvals.audit()
    said = {"by": "maria", "tool": "pay", "call": key, "decision": "done", "result": "receipt 17", "thread_id": "t"}
    assert (event.kind, event.content) == ("settled", said)
    with pytest.raises(NotFound, match="nothing to settle"):
        await does(saver, face, "settle", "t", key, "retry", by="bob")
    assert told(saver) == [("settled", "maria")]
    saver.delete_thread("t")
    assert told(saver) == [("settled", None)]
    assert saver.approvals.verify_audit().ok


@each_face
async def test_without_a_name_a_settlement_is_recorded_all_the_same(saver: KeelSaver, face: str) -> None:
    await does(saver, face, "settle", "t", await doubtful(saver, face), "retry")
    assert told(saver) == [("settled", None)]


@each_face
async def test_who_changed_a_thread(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    first = saver.timeline("t")[0].config
    await does(saver, face, "fork", first, "fork", by="ann")
    await does(saver, face, "fork", first, by="ben")
    await does(saver, face, "rewind", first, by="cem")
    await does(saver, face, "prune", ["t"], by="dan")
    by = [("forked", "ann"), ("branched", "ben"), ("rewound", "cem"), ("pruned", "dan")]
    assert told(saver) == by
    await does(saver, face, "delete_thread", "fork", by="eve")
    await does(saver, face, "erase", "ada", by="ada")
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
async def test_a_deletion_without_a_name_takes_no_trip_more(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    counter = Counter()
    await does(with_tap(saver, counter), face, "delete_thread", "t")
    assert counter.taken() == 1
    assert told(saver) == []


@each_face
async def test_a_name_that_is_none_changes_nothing(saver: KeelSaver, face: str) -> None:
    await doubtful(saver, face)
    first = saver.timeline("t")[0].config
    acts = {"fork": (first, "fork"), "rewind": (first,), "prune": (["t"],), "delete_thread": ("t",), "erase": ("ada",)}
    before = len(saver.timeline("t"))
    for verb, given in acts.items():
        with pytest.raises(InvalidInput, match="by must name"):
            await does(saver, face, verb, *given, by=" ")
    assert (len(saver.timeline("t")), len(saver.timeline("fork")), told(saver)) == (before, 0, [])
