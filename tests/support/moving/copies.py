"""A small history with every kind of record, and a comparison of two stores."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from langgraph_keel import KeelSaver, KeelSerializer, Retention
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import raw_frame
from langgraph_keel.testing.machine import TREE, chat
from langgraph_keel.testing.rig import FACES, Rig, at, exact, id_of

PACKER = KeelSerializer()


def write_history(backend: Any, count: int = 12, **options: Any) -> None:
    """Write threads with every kind of record.

    Branches, a loser, ghosts, subgraphs, writes and orphaned writes, labels, cells and policies.
    """
    rig = Rig(backend, FACES["sync"])
    saver = backend.open(**options)
    face = rig.on(saver)
    author = rig.author("t", face=face)
    for n in range(count):
        author.put(
            {"list": chat(n), "tree": {**TREE, "n": n}, "n": n, "text": "x" * 40 * n},
            metadata={"run_id": f"run {n % 3}"},
            ts=f"2026-01-01T00:00:{n:02}+00:00",
        )
        face.put_writes(author.config, [("list", n), ("n", n)], f"task {n}", "~1")
        face.put_writes(author.config, [("__interrupt__", n)], f"task {n}", "~0")
    middle = list(face.list(at()))[count // 2].config
    fork = rig.continuing(at("t", "", id_of(middle)), face=face)
    for n in range(4):
        fork.put({"list": chat(5) + chat(n, 500), "tree": {**TREE, "fork": n}}, ts="2026-01-02T00:00:00+00:00")
    forking = rig.on(backend.open(on_conflict="fork", **options))
    winner, loser = (rig.continuing(at(), face=forking) for _ in range(2))
    winner.put({"list": chat(9), "n": 1})
    loser.put({"list": chat(9), "n": 2})
    called = rig.author("t", "sub", face=face)
    called.follow([{"a": ["x"]}, {"a": ["x", "y"]}])
    face.put_writes(at("t", "sub", "early"), [("a", 1)], "task")
    delta = rig.author("delta", face=face)
    for n in range(6):
        values = {"delta": _DeltaSnapshot([n])} if n == 1 else {}
        delta.put(values, metadata={"counters_since_delta_snapshot": {"delta": [n, n]}})
        face.put_writes(delta.config, [("delta", [n])], "task")
    face.prune(["delta"])
    rig.author("a:b%{ü}/#1 \x1b[31m", face=face).put({"bytes": b"\0\xff", "set": {1, 2}})
    face.put_writes(at("stray", "", "none"), [("a", 1)], "task")
    saver.labels.set(middle, "middle")
    saver.retention.set_policy(Retention(last=9))
    face.delete_for_runs(["run 2"])
    for shelf, origin in ((Shelf("t", "later"), ""), (Shelf(None, "later"), "t"), (Shelf(None, "later"), "")):
        cell = Cell("0" * 8 + origin, raw_frame(PACKER.pack([1])), raw_frame(PACKER.pack(["b"] * 300)), origin)
        face.verb("swap_cell", shelf, f"key-{origin}", None, cell)
    rig.close()


def told(saver: KeelSaver) -> Any:
    """Return everything that a store returns, equal ids in a fixed order."""
    names = sorted(info.thread_id for info in saver.threads())
    strays = saver.engine.run(saver.engine.session.store.list_writes("stray", None, 99))
    return exact(
        [
            [(info.thread_id, info.checkpoints, info.updated_at, info.latest, info.status) for info in saver.threads()],
            [[_plain(found) for found in saver.list(at(name, None))] for name in names],
            [_plain(saver.get_tuple(at(name))) for name in names],
            [saver.labels.list(name) for name in names],
            [saver.get_delta_channel_history(config=at(name), channels=["delta"]) for name in names],
            [(each.address, each.batch) for each in strays],
            saver.retention.policies(),
        ]
    )


def _plain(found: Any) -> Any:
    parts = (found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes)
    return [{**part} if isinstance(part, dict) else part for part in parts]
