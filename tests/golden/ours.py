"""A thread whose state holds values of Keel's own public classes.

They are stored as nodes would store them, and are real results if possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, TypedDict, get_type_hints

from langgraph.graph import START, StateGraph

import langgraph_keel
from golden.seen import STATUSES
from golden.story import EVIL
from langgraph_keel import (
    CacheStats,
    Change,
    CopyReport,
    Difference,
    DriftReport,
    ExportReport,
    ImportReport,
    ItemChange,
    KeelSaver,
    Note,
    Reclaimed,
    RedisSaver,
    Replay,
    Restored,
    Resumed,
    StatusChange,
    ToolPolicy,
    Workspace,
    WorkspaceDiff,
    WorkspaceRestore,
)
from langgraph_keel.retention.check import Finding

THREAD = "ours"


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {**old, **new}


class Ours(TypedDict):
    values: Annotated[dict[str, Any], joined]
    listed: Any


def values(saver: KeelSaver) -> Iterator[tuple[str, Any]]:
    """Return values of each class, by the source that returns them."""
    inbox, archive = saver.approvals, saver.archive("summarized")
    timeline = saver.timeline("tools")
    yield "requests", [*inbox.pending(status=STATUSES, limit=None)][:3]
    yield "decision", next(each.decision for each in inbox.pending("approved", status=STATUSES) if each.decision)
    yield "events", list(inbox.audit(limit=2))
    yield "verdict", inbox.verify_audit()
    yield "archived", archive[0]
    yield "found", archive.search("question")[:1]
    yield "calls", list(saver.tools.calls("tools"))
    yield "model calls", list(saver.provenance.read({"configurable": {"thread_id": "chat"}}))[:2]
    yield "drifts", list(saver.provenance.drifts("chat"))
    yield "labels", list(saver.labels.list("travel"))
    yield "moments", [replace(moment, owner=None) for moment in timeline]
    diff = saver.timeline(EVIL).diff(0, 1)
    yield "diff", replace(diff, edits=[each for each in diff if repr(each.before) != "nothing" != repr(each.after)])
    yield "policies", list(saver.retention.policies())
    yield "pruned", saver.prune(["tools"], dry_run=True)
    yield "swept", saver.retention.sweep(dry_run=True)
    yield "receipt", saver.retention.erase("nobody", dry_run=True)
    yield "tenant", saver.tenants.delete("nobody", dry_run=True)
    yield "sizes", saver.stats()
    yield "threads", list(saver.threads(2))
    yield "statuses", [saver.status("waits"), saver.status("decided")]
    yield "hand-off", saver.history.handoff("chat")
    yield "note", Note("0" * 24, "chat", "decision", "pay", because="it is due", at="2026-11-28T00:00:00+00:00")
    yield "status change", StatusChange("chat", "waiting", "1", next=("ask",))
    yield "item change", ItemChange(("trips", "7"), "price", {"euro": 340})
    yield "workspace", Workspace("work", ignore=[".env"])
    yield "files", [WorkspaceRestore("work", "1", written=("a",)), WorkspaceDiff({"a": "added"}, "+a")]
    yield from made()


def made() -> Iterator[tuple[str, Any]]:
    """Return values that would take long to produce."""
    yield "stats", CacheStats(1, 2, 0.5)
    yield "report", DriftReport("t", (Change("model", "a", "b", 3, "n"),))
    yield "difference", Difference(1, "messages", "a", "b")
    yield "replay", Replay(source="t", thread_id=None, steps=3, differences=(Difference(1, "x", "1", "2", "n"),))
    yield "reclaimed", Reclaimed(10, None, "done")
    yield "restored", Restored({"configurable": {"thread_id": "t"}}, ("m1",))
    yield "resumed", Resumed("t", {"done": True})
    yield "policy", ToolPolicy(scope="thread", unknown="retry", ttl=3.0)
    # Two classes that have no public name, although public methods return them.
    yield "durability", get_type_hints(RedisSaver.durability)["return"]("yes", "always", "on disk", "noeviction")
    yield "finding", Finding("harmless", None, "a", "b")
    yield "copied", CopyReport(copied=1, exists={"t": "differs"})
    yield "exported", ExportReport(threads=Counter(exported=1), checkpoints=3)
    yield "imported", ImportReport(threads=Counter(imported=1), checkpoints=3)


def data_classes() -> list[str]:
    """Return the names of the public data classes; each must be among `values`."""
    return sorted(name for name in langgraph_keel.__all__ if is_dataclass(getattr(langgraph_keel, name)))


def names_in(value: Any) -> set[str]:
    """Return the names of all of Keel's classes in a value."""
    parts: list[Any] = list(value.values()) if isinstance(value, dict) else []
    if isinstance(value, list | tuple):
        parts = list(value)
    found = set[str]()
    if is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
        found = {type(value).__qualname__} if type(value).__module__.startswith("langgraph_keel") else found
    return found.union(*map(names_in, parts))


def write(saver: KeelSaver) -> None:
    """Store them in a state, one step after another."""
    found = dict(values(saver))
    missing = set(data_classes()) - names_in(found)
    assert not missing, missing
    graph = (
        StateGraph(Ours)
        .add_node("keep", lambda state: {"values": {name: found[name] for name in list(found)[:9]}})
        .add_node("more", lambda state: {"values": found, "listed": list(found.values())[::2]})
        .add_edge(START, "keep")
        .add_edge("keep", "more")
        .compile(checkpointer=saver)
    )
    begin: Any = {"values": {}}
    graph.invoke(begin, {"configurable": {"thread_id": THREAD}})
