"""One history on all backends: they return the same, byte for byte."""

from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from support.savers import SERVERS, needing
from support.stores import each_store
from support.tiers import examples

from langgraph_keel import KeelSerializer
from langgraph_keel.testing.machine import DICTS, HISTORIES, LISTS, TREE, Edit, chat, edits
from langgraph_keel.testing.rig import FACES, Rig, at, id_of, values_of

PACKER = KeelSerializer()
Rigs = Mapping[str, Rig]


@pytest.fixture(scope="module", autouse=True)
def running(request: pytest.FixtureRequest) -> None:
    """Start the servers of the stores."""
    for name in SERVERS:
        needing(name, request)


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[Rigs]:
    with each_store(tmp_path) as backends:
        faces = zip(backends.items(), cycle(["sync", "async"]), strict=False)
        opened = {f"{name} {face}": Rig(backend, FACES[face]) for (name, backend), face in faces}
        yield opened
        for rig in opened.values():
            rig.close()


def packed(found: CheckpointTuple) -> bytes:
    """Return all of a tuple as bytes."""
    parts = (found.config, found.checkpoint, found.metadata, found.parent_config, found.pending_writes)
    return PACKER.pack([_plain(part) for part in parts])


def _plain(value: Any) -> Any:
    # Thread ids remember the form in which they were read; as bytes they are plain text.
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return str(value) if isinstance(value, str) else value


def told(rig: Rig) -> list[Any]:
    """Return everything that a store returns."""
    everything = list(rig.face.list(None))
    return [
        # Equal ids in several threads (copies have them) are in no particular order.
        [id_of(found) for found in everything],
        sorted(packed(found) for found in everything),
        *(packed(found) for thread in ("t", "copy", "late") for found in rig.face.list(at(thread, None))),
        *(packed(rig.face.read(at(thread))) for thread in ("t", "copy") if rig.face.get_tuple(at(thread))),
        [(info.thread_id, info.checkpoints, info.updated_at, info.latest, info.step) for info in _threads(rig)],
        PACKER.pack(rig.face.delta_history(at(), ["delta", "list"])),
    ]


def _threads(rig: Rig) -> list[Any]:
    return list(rig.face.saver.threads())


def agree(rigs: Rigs) -> list[Any]:
    """Return the common result of all backends, after checking that it is the same."""
    every = {name: told(rig) for name, rig in rigs.items()}
    first = every.pop("memory sync")
    for name, other in every.items():
        assert other == first, name
    return first


def rich_history(rig: Rig) -> Iterator[str]:
    """Perform every kind of operation; yield after each part."""
    author = rig.author()
    for versions in zip(LISTS["summarized"], LISTS["emptied and grown again"], DICTS["keys moved"], strict=False):
        author.put(dict(zip(["list", "other", "tree"], versions, strict=True)), metadata={"run_id": "one"})
        rig.face.put_writes(author.config, [("list", 1), ("__interrupt__", "ask"), ("list", 2)], "task 2", "~2")
        rig.face.put_writes(author.config, [("list", 3), ("__interrupt__", "again")], "task 2", "~1")
    yield "values and writes"
    middle = author.config
    for n in range(70):
        author.put({"list": chat(n), "tree": {**TREE, "n": n}, "n": n}, ts=f"2026-01-01T00:{n % 60:02}:00+00:00")
    yield "a long run"
    fork = rig.continuing(at("t", "", id_of(middle)))
    for n in range(40):
        fork.put({"list": chat(30) + chat(n, 500), "tree": {**TREE, "fork": n}}, metadata={"run_id": f"fork {n % 2}"})
    yield "a fork"
    for ns in ("sub", "node:00000000-0000-0000-0000-000000000001"):
        called = rig.author("t", ns)
        called.follow([{"a": [ns]}, {"a": [ns, ns]}])
        rig.face.put_writes(at("t", ns, "early"), [("a", 1)], "task")
    rig.author("late").put({"old": 1}, checkpoint_id="0", ts="2025-01-01T00:00:00+00:00")
    rig.face.copy_thread("t", "copy")
    yield "namespaces and a copy"
    for n in range(6):
        values = {"delta": _DeltaSnapshot([n])} if n == 3 else {}
        fork.put(values, metadata={"counters_since_delta_snapshot": {"delta": [n, n]}})
        rig.face.put_writes(fork.config, [("delta", [n])], "task")
    yield "delta channels"
    rig.face.delete_for_runs(["fork 1", "one"])
    yield "runs deleted"
    rig.face.prune(["t"])
    yield "pruned"
    rig.continuing(at()).put({"list": chat(3)}, metadata={"counters_since_delta_snapshot": {"delta": [6, 6]}})
    rig.continuing(at("copy")).put({"list": chat(80)})
    rig.face.prune(["copy", "late"])
    yield "gone on"
    rig.face.delete_thread("copy")
    yield "deleted"


@pytest.mark.slow
def test_a_rich_history_is_the_same_everywhere(rigs: Rigs) -> None:
    for parts in zip(*(rich_history(rig) for rig in rigs.values()), strict=True):
        assert len(set(parts)) == 1
        assert agree(rigs)
    assert values_of(rigs["memory sync"].face.read(at())) == {"list": chat(3)}


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_every_kind_of_value_is_the_same_everywhere(rigs: Rigs, name: str) -> None:
    for rig in rigs.values():
        rig.author().follow([{"channel": version} for version in HISTORIES[name]])
    assert len(agree(rigs)) > len(HISTORIES[name])


Step = tuple[str, int, list[Edit]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "fork", "write", "prune", "delete runs", "copy", "delete copy"]),
        st.integers(0, 9),
        edits(),
    ),
    max_size=25,
)


def take(rig: Rig, step: Step, count: int) -> None:
    """Take one step of a generated history."""
    kind, n, changes = step
    old = [found.config for found in rig.face.list(at())]
    if kind == "put" or (kind == "fork" and old):
        _put(rig, at("t", "", id_of(old[n % len(old)])) if kind == "fork" else at(), changes, count)
    elif kind == "write" and old:
        rig.face.put_writes(old[n % len(old)], [("list", n), ("__resume__", n)], f"task {n % 3}", f"~{n % 2}")
    elif kind == "prune":
        rig.face.prune(["t"])
    elif kind == "delete runs":
        rig.face.delete_for_runs([f"run {n % 3}"])
    elif kind == "copy" and not list(rig.face.list(at("copy", None))):
        rig.face.delete_thread("copy")
        rig.face.copy_thread("t", "copy")
    elif kind == "delete copy":
        rig.face.delete_thread("copy")


def _put(rig: Rig, config: Any, changes: list[Edit], count: int) -> None:
    found = rig.face.get_tuple(config)
    state = values_of(found) if found else {}
    state.setdefault("list", [])
    state.setdefault("tree", {})
    for _, change in changes:
        change(state)
    author = rig.continuing(config) if found else rig.author()
    author.put(state, checkpoint_id=f"{count % 3}-{count:03}", metadata={"run_id": f"run {count % 3}"})


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_generated_histories_are_the_same_everywhere(steps: list[Step]) -> None:
    with TemporaryDirectory() as directory, each_store(Path(directory)) as backends:
        rigs = {f"{name} sync": Rig(backend, FACES["sync"]) for name, backend in backends.items()}
        for count, step in enumerate(steps):
            for rig in rigs.values():
                take(rig, step, count)
        assert len(agree(rigs)) >= 2
