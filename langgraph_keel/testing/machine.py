"""The state machine: random histories on a backend, compared with the oracle.

class MongoMachine(SaverMachine):
    def make_backend(self):
        return MongoUnderTest(url)

TestMongoMachine = MongoMachine.TestCase
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel._langgraph import ERROR, INTERRUPT, RESUME, SCHEDULED
from langgraph_keel.errors import CheckpointConflict, ThreadExists
from langgraph_keel.testing.rig import AsyncFace, Face, StoreUnderTest, SyncFace, at, checkpoint_of, exact, id_of

TREE: dict[str, Any] = {
    f"branch {n}": {"name": f"name {n}", "leaves": {f"leaf {k}": {"n": k, "text": "t" * 20} for k in range(8)}}
    for n in range(6)
}

SPECIAL = {ERROR: -1, SCHEDULED: -2, INTERRUPT: -3, RESUME: -4}

RARELY = st.sampled_from(["u", "u", "t"])
THREADS = st.sampled_from(["t", "u"])
PLACES = st.tuples(THREADS, st.sampled_from(["", "", "sub"]))
FACES_OF_TWO = st.integers(0, 3)
AGES = st.sampled_from([0, 0, 0, 1, 2, 7])
TASKS = st.sampled_from(["task 1", "task 2"])
CHANNELS = st.sampled_from(["list", "x", INTERRUPT, RESUME, ERROR])


def chat(count: int, start: int = 0) -> list[Any]:
    """Return messages that are all different."""
    return [
        HumanMessage(f"question {n} " + "why " * 20, id=f"h{n}")
        if n % 2
        else AIMessage(f"answer {n} " + "so " * 30, id=f"a{n}", additional_kwargs={"n": n})
        for n in range(start, start + count)
    ]


def _changed(value: dict[str, Any], *changes: tuple[Sequence[str], Any]) -> dict[str, Any]:
    """Return a copy with values at these paths set, or deleted if `...`."""
    result = deepcopy(value)
    for (*path, key), new in changes:
        place = result
        for step in path:
            place = place[step]
        if new is ...:
            del place[key]
        else:
            place[key] = new
    return result


def _edited() -> list[Any]:
    messages = chat(12)
    edited = [*messages[:5], HumanMessage("edited", id="h5"), *messages[6:]]
    return [messages, edited, [*edited, *chat(1, 20)], messages]


def _tree_steps() -> list[Any]:
    leaf = ("branch 2", "leaves", "leaf 3")
    steps = [TREE, _changed(TREE, ((*leaf, "n"), "set"))]
    steps.append(_changed(steps[-1], ((*leaf, "new"), {"deep": [1, (2,)]}), (("branch 4", "name"), None)))
    steps.append(_changed(steps[-1], (leaf, ...), (("branch 0",), ...)))
    steps.append(_changed(steps[-1], (("branch 0",), TREE["branch 0"])))
    steps.append(_changed(steps[-1], (("branch 3",), "no longer a dict")))
    steps.append(_changed(steps[-1], (("branch 3",), TREE["branch 5"])))
    steps.append(_changed(steps[-1], (("branch 1", "leaves"), {})))
    return steps


def _snapshots() -> list[Any]:
    """Return so many changes that a chain of deltas must be replaced by snapshots."""
    steps = [TREE]
    for n in range(40):
        path = (f"branch {n % 6}", "leaves", f"leaf {n % 8}", "text")
        steps.append(_changed(steps[-1], (path, f"{n} " * 10)))
    return steps


LISTS: Mapping[str, Sequence[Any]] = {
    "appended one by one": [chat(n) for n in range(1, 46)],
    "many small ones": [list(range(n)) for n in (1, 2, 30, 31, 33, 64, 65, 1500, 1501, 1502, 3000)],
    "edited in the middle": _edited(),
    "removed": [chat(9), [*chat(4), *chat(4, 5)], chat(4, 1), chat(1, 3), chat(1, 3) + chat(2, 30)],
    "a window that moves": [chat(min(n, 20), max(0, n - 20)) for n in range(1, 60)],
    "reordered": [chat(6), chat(6)[::-1], chat(3, 3) + chat(3), chat(6)],
    "equal elements": [["a"], ["a", "a"], ["a", "b", "a", "a"], ["a", "a", "b"], ["b"] * 40, ["a", *["b"] * 40]],
    "emptied and grown again": [chat(5), [], chat(2), [], [], chat(5)],
    "summarized": [chat(40), [SystemMessage("summary", id="s"), *chat(4, 36)], chat(40)],
    "1000 elements": [chat(1000), [*chat(500), *chat(501, 501)], chat(3, 998)],
    "inserted at the front": [chat(n, 20 - n) for n in range(1, 20)],
    "almost equal": [[1], [True], [1.0], ["1"], [(1,)], [[1]], [{"a": 1}], [{"a": True}], [-0.0], [0.0], [None]],
    "keys moved inside": [[{"a": 1, "b": 2}], [{"b": 2, "a": 1}]],
}

DICTS: Mapping[str, Sequence[Any]] = {
    "set, deleted, replaced": _tree_steps(),
    "many snapshots": _snapshots(),
    "keys moved": [TREE, dict(reversed(TREE.items())), {**TREE, "z": 1}, {"z": 1, **TREE}],
    "keys moved inside": [TREE, {**TREE, "branch 2": dict(reversed(TREE["branch 2"].items()))}],
    "deleted and added again": [TREE, {k: v for k, v in TREE.items() if k != "branch 1"}, TREE],
    "emptied": [TREE, {}, TREE],
    "almost equal": [{**TREE, "x": x} for x in (1, True, 1.0, "1", (1,), [1], None, -0.0, 0.0, b"1")],
    "odd keys": [{**TREE, key: 1} for key in ("", "a.b", "it's", "\x00", "😀", "__x__")],
    "keys that are no text": [{**TREE, 1: "one"}, {**TREE, 1: "two", (1, 2): 3}, {**TREE, None: 1}],
    "many keys": [{f"k{n}": n + (n == changed) for n in range(300)} for changed in (0, 1, 150, 299)],
    "changed everywhere": [{f"k{n}": f"{step} {n} " * 9 for n in range(40)} for step in range(5)],
}

WHOLES: Mapping[str, Sequence[Any]] = {
    "text": ["a", "a" * 64, "a" * 65, "a" * 5000, "", "a" * 5000, "lone \ud800 surrogate"],
    "numbers": [0, False, 0.0, -0.0, 2**63 - 1, 2**63, -(2**63), -(2**70), 1.5, float("inf"), float("nan"), 3 + 4j],
    "bytes": [b"", b"a" * 64, b"a" * 65, bytearray(b"a" * 99), b"a" * 70000],
    "tuples and sets": [(), (1,), ([1], {"a": (2,)}), {1, 2}, frozenset({"a"}), ("x" * 90,) * 9],
    "one kind after another": [chat(3), TREE, None, "text", chat(4), 5, {}, [], TREE, ({"a": 1},), chat(4)],
    "a message": [chat(1)[0], AIMessage("other", id="a0"), chat(1)[0]],
}

HISTORIES: Mapping[str, Sequence[Any]] = {
    **{f"list: {name}": versions for name, versions in LISTS.items()},
    **{f"dict: {name}": versions for name, versions in DICTS.items()},
    **{f"value: {name}": versions for name, versions in WHOLES.items()},
}


Place = tuple[str, str]
"""A thread and a namespace."""


@dataclass
class Kept:
    """A checkpoint as it was passed to `put`."""

    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    number: int = 0  # in the order of all calls of `put`


@dataclass
class Call:
    """One call of `put_writes`."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Any]]


@dataclass
class Oracle:
    """Whole values of every checkpoint, in the order of writing."""

    kept: dict[Place, dict[str, Kept]] = field(default_factory=dict)
    calls: dict[tuple[str, str, str], list[Call]] = field(default_factory=dict)
    count: int = 0

    def ids(self, place: Place) -> list[str]:
        return list(reversed(self.kept.get(place, {})))

    def put(self, place: Place, kept: Kept) -> None:
        checkpoints = self.kept.setdefault(place, {})
        checkpoints.pop(kept.checkpoint["id"], None)
        self.count += 1
        checkpoints[kept.checkpoint["id"]] = replace(deepcopy(kept), number=self.count)

    def put_writes(self, place: Place, checkpoint_id: str, call: Call) -> None:
        self.calls.setdefault((*place, checkpoint_id), []).append(deepcopy(call))

    def read(self, place: Place, checkpoint_id: str | None = None) -> dict[str, Any] | None:
        """Return all visible data of a checkpoint, by default the latest."""
        checkpoints = self.kept.get(place, {})
        checkpoint_id = checkpoint_id or next(iter(self.ids(place)), None)
        if checkpoint_id is None or checkpoint_id not in checkpoints:
            return None
        kept = checkpoints[checkpoint_id]
        return {
            "checkpoint": deepcopy(kept.checkpoint),
            "metadata": deepcopy(kept.metadata),
            "parent": kept.parent if kept.parent in checkpoints else None,
            "writes": self._writes(place, checkpoint_id),
        }

    def _writes(self, place: Place, checkpoint_id: str) -> list[tuple[str, str, Any]]:
        found: dict[tuple[str, int], tuple[str, str, int, str, Any]] = {}
        for call in self.calls.get((*place, checkpoint_id), []):
            for n, (channel, value) in enumerate(call.writes):
                index = SPECIAL.get(channel, n)
                if index < 0 or (call.task_id, index) not in found:
                    found[call.task_id, index] = (call.task_path, call.task_id, index, channel, deepcopy(value))
        ordered = sorted(found.values(), key=lambda write: write[:3])
        return [(task_id, channel, value) for _, task_id, _, channel, value in ordered]

    def delete_thread(self, thread: str) -> None:
        self.kept = {place: value for place, value in self.kept.items() if place[0] != thread}
        self.calls = {key: value for key, value in self.calls.items() if key[0] != thread}

    def exists(self, thread: str) -> bool:
        return any(key[0] == thread for key in (*self.kept, *self.calls))

    def copy_thread(self, source: str, target: str) -> None:
        self.kept |= {(target, ns): deepcopy(kept) for (name, ns), kept in self.kept.items() if name == source}
        self.calls |= {
            (target, ns, id): deepcopy(value) for (name, ns, id), value in self.calls.items() if name == source
        }

    def rewind(self, place: Place, checkpoint_id: str, twin_id: str, ts: str) -> None:
        kept = self.kept[place][checkpoint_id]
        metadata = {**kept.metadata, "source": "fork", "keel_rewound_to": checkpoint_id}
        self.put(place, Kept(kept.parent, {**kept.checkpoint, "id": twin_id, "ts": ts}, metadata))

    def fork(self, source: str, target: str, checkpoint_id: str) -> None:
        """Copy a thread as it was when a checkpoint of its root was written."""
        last = self.kept[source, ""][checkpoint_id].number
        places = [place for place in self.kept if place[0] == source]
        for _, ns in places:
            checkpoints = self.kept[source, ns].items()
            self.kept[target, ns] = {id: deepcopy(kept) for id, kept in checkpoints if kept.number <= last}
            for id in set(self.kept[target, ns]) - ({checkpoint_id} if ns == "" else set()):
                self.calls[target, ns, id] = deepcopy(self.calls.get((source, ns, id), []))
        origin = {"thread_id": source, "checkpoint_id": checkpoint_id}
        self.kept[target, ""][checkpoint_id].metadata["keel_forked_from"] = origin

    def prune(self, thread: str) -> None:
        for place in [place for place in self.kept if place[0] == thread]:
            for checkpoint_id in self.ids(place)[1:]:
                self._forget(place, checkpoint_id)

    def delete_for_runs(self, run_id: str) -> None:
        for place, checkpoints in self.kept.items():
            for checkpoint_id in [key for key, kept in checkpoints.items() if kept.metadata.get("run_id") == run_id]:
                self._forget(place, checkpoint_id)

    def _forget(self, place: Place, checkpoint_id: str) -> None:
        del self.kept[place][checkpoint_id]
        self.calls.pop((*place, checkpoint_id), None)


State = dict[str, Any]
Edit = tuple[str, Callable[[State], object]]


def texts() -> st.SearchStrategy[str]:
    """Return short texts."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def scalars() -> st.SearchStrategy[Any]:
    """Return values that fit into an entry's header, and some that just do not."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        texts(),
        st.binary(max_size=80),
        st.sampled_from(["x" * 64, "x" * 65, (1, "two"), {1, 2}]),
    )


def elements() -> st.SearchStrategy[Any]:
    """Return list elements: small, large, equal to each other, or mutable."""
    return st.one_of(
        st.sampled_from([1, True, 1.0, "1", None]),
        st.integers(0, 999).map(lambda n: {"n": n, "text": f"{n} " * 40, "parts": [n]}),
        st.integers(0, 999).map(lambda n: HumanMessage(f"question {n} " * 9, id=f"h{n}")),
        st.integers(0, 999).map(lambda n: AIMessage(f"answer {n}", id=f"a{n}", additional_kwargs={"n": [n]})),
    )


def _changed_in_place(items: list[Any], place: int, text: str) -> None:
    item = items[place % len(items)] if items else None
    if isinstance(item, dict):
        item["parts"].append(text)
    elif isinstance(item, HumanMessage | AIMessage):
        item.content = f"{item.content} {text}"


def list_edits() -> st.SearchStrategy[Edit]:
    """Return changes to the list of a state."""
    place = st.integers(0, 99)
    few, many = (st.lists(elements(), min_size=size, max_size=size + 2) for size in (1, 33))
    return st.one_of(
        st.one_of(few, many).map(lambda new: ("append", lambda s: s["list"].extend(deepcopy(new)))),
        st.tuples(place, elements()).map(
            lambda a: ("replace", lambda s: s["list"].__setitem__(slice(a[0], a[0] + 1), [deepcopy(a[1])]))
        ),
        st.tuples(place, elements()).map(lambda a: ("insert", lambda s: s["list"].insert(*deepcopy(a)))),
        place.map(lambda n: ("remove", lambda s: s["list"].__delitem__(slice(n, n + 2)))),
        place.map(lambda n: ("trim", lambda s: s["list"].__delitem__(slice(0, n % 20)))),
        place.map(lambda n: ("repeat", lambda s: s["list"].extend(s["list"][n : n + 2]))),
        st.just(("reverse", lambda s: s["list"].reverse())),
        st.just(("clear", lambda s: s["list"].clear())),
        st.tuples(place, texts()).map(lambda a: ("change in place", lambda s: _changed_in_place(s["list"], *a))),
    )


def _branch(state: State, place: int) -> dict[str, Any]:
    branches = [value for value in state["tree"].values() if isinstance(value, dict)]
    found: dict[str, Any] = branches[place % len(branches)] if branches else state["tree"]
    return found


def tree_edits() -> st.SearchStrategy[Edit]:
    """Return changes to the dict of a state."""
    place, key = st.integers(0, 9), st.sampled_from(["a", "b", "c", "", "a.b"])
    branch = st.integers(0, 9).map(lambda n: {f"k{i}": {"n": n + i, "text": "leaf " * 9} for i in range(12)})
    return st.one_of(
        st.tuples(key, scalars()).map(lambda a: ("set", lambda s: s["tree"].__setitem__(*deepcopy(a)))),
        st.tuples(key, branch).map(lambda a: ("grow", lambda s: s["tree"].__setitem__(*deepcopy(a)))),
        key.map(lambda k: ("delete", lambda s: s["tree"].pop(k, None))),
        key.map(lambda k: ("move", lambda s: k in s["tree"] and s["tree"].update({k: s["tree"].pop(k)}))),
        st.tuples(place, key, scalars()).map(lambda a: ("set deep", lambda s: _branch(s, a[0]).__setitem__(*a[1:]))),
        st.tuples(place, key).map(lambda a: ("delete deep", lambda s: _branch(s, a[0]).pop(a[1], None))),
        st.just(("empty", lambda s: s["tree"].clear())),
    )


def channel_edits() -> st.SearchStrategy[Edit]:
    """Return changes to other channels, which appear, disappear and change type."""
    channel = st.sampled_from(["x", "y"])
    value = st.one_of(scalars(), st.lists(elements(), max_size=3), st.dictionaries(texts(), scalars(), max_size=3))
    return st.one_of(
        st.tuples(channel, value).map(lambda a: ("set channel", lambda s: s.__setitem__(*deepcopy(a)))),
        channel.map(lambda name: ("empty channel", lambda s: s.pop(name, None))),
    )


def edits() -> st.SearchStrategy[list[Edit]]:
    """Return the changes of one step."""
    return st.lists(st.one_of(list_edits(), tree_edits(), channel_edits()), min_size=1, max_size=4)


def seen(found: CheckpointTuple | None) -> Any:
    """Return a checkpoint that a saver returned, in the form of `expected`."""
    if found is None:
        return None
    return exact(
        {
            "checkpoint": _ordered(found.checkpoint),
            "metadata": found.metadata,
            "parent": id_of(found.parent_config),
            "writes": list(found.pending_writes or ()),
        }
    )


def expected(kept: dict[str, Any] | None) -> Any:
    """Return a checkpoint of the oracle, in the form of `seen`."""
    return None if kept is None else exact({**kept, "checkpoint": _ordered(kept["checkpoint"])})


def _ordered(checkpoint: Any) -> dict[str, Any]:
    # The order of the checkpoint's own keys does not matter; that of dicts in it does.
    return dict(sorted(checkpoint.items()))


class SaverMachine(RuleBasedStateMachine):
    """Random runs, forks, writes, copies and removals.

    Subclass it and define `make_backend`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make_backend()
        self.backend.wipe()
        self.oracle = Oracle()
        self.savers = [self.backend.open() for _ in range(2)]
        openers = [partial(self.savers.__getitem__, n) for n in range(2)]  # `reopen` may replace the saver
        self.faces: list[Face] = [kind(opener) for opener in openers for kind in (SyncFace, AsyncFace)]
        self.live: dict[Place, tuple[str, dict[str, Any]]] = {}
        self.stale: dict[Place, RunnableConfig] = {}
        self.count = 0

    def make_backend(self) -> StoreUnderTest:
        """Return a backend; the machine wipes it first."""
        raise NotImplementedError("define make_backend")

    def release(self) -> None:
        """Close the resources of `make_backend`, if needed."""

    def teardown(self) -> None:
        for face in self.faces:
            face.close()
        self.release()

    # -- putting -----------------------------------------------------------------------------------------------

    @initialize(place=PLACES)
    def begin(self, place: Place) -> None:
        self._put(0, place, at(*place), {"list": [], "tree": {}})

    def _put(self, face: int, place: Place, config: RunnableConfig, state: dict[str, Any], **metadata: Any) -> None:
        self.count += 1
        # Clocks of two hosts: ids do not grow in the order of writing.
        checkpoint = checkpoint_of(f"{self.count % 3}-{self.count:04}", state)
        kept = {"source": "loop", "step": self.count, "run_id": f"run {self.count % 4}", **metadata}
        parent = id_of(config)
        self.faces[face].put(config, checkpoint, kept)
        self.oracle.put(place, Kept(parent, checkpoint, kept))
        self.live[place] = checkpoint["id"], state

    def _edited(self, state: dict[str, Any], changes: list[Edit]) -> dict[str, Any]:
        state.setdefault("list", [])
        state.setdefault("tree", {})
        for _, change in changes:
            change(state)
        return state

    @rule(face=FACES_OF_TWO, place=PLACES, changes=edits())
    def step(self, face: int, place: Place, changes: list[Edit]) -> None:
        """A run reads the latest checkpoint, changes its state, and writes the next one."""
        found = self.faces[face].get_tuple(at(*place))
        assert seen(found) == expected(self.oracle.read(place))
        config = found.config if found else at(*place)
        self._put(face, place, config, self._edited(found.checkpoint["channel_values"] if found else {}, changes))

    @rule(face=FACES_OF_TWO, place=PLACES, changes=edits())
    def step_in_place(self, face: int, place: Place, changes: list[Edit]) -> None:
        """A run continues with the objects it wrote before, and changes them in place."""
        checkpoint_id, state = self.live.get(place, ("", {}))
        if self.oracle.ids(place)[:1] == [checkpoint_id]:
            self._put(face, place, at(*place, checkpoint_id), self._edited(state, changes))

    @rule(face=FACES_OF_TWO, place=PLACES, age=st.integers(0, 60), changes=edits())
    def fork(self, face: int, place: Place, age: int, changes: list[Edit]) -> None:
        """A run starts from an old checkpoint, on purpose."""
        ids = self.oracle.ids(place)
        if ids:
            config = at(*place, ids[age % len(ids)])
            found = self.faces[face].read(config)
            assert seen(found) == expected(self.oracle.read(place, id_of(config)))
            self._put(face, place, found.config, self._edited(found.checkpoint["channel_values"], changes))

    @rule(face=FACES_OF_TWO, place=PLACES)
    def read_and_wait(self, face: int, place: Place) -> None:
        """A run reads the latest checkpoint and takes its time."""
        found = self.faces[face].get_tuple(at(*place))
        if found:
            self.stale[place] = found.config

    @rule(face=FACES_OF_TWO, place=PLACES)
    def put_late(self, face: int, place: Place) -> None:
        """That run writes, and is refused if another run was faster."""
        config = self.stale.pop(place, None)
        if config is None:
            return
        if self.oracle.ids(place)[:1] == [id_of(config)]:
            self._put(face, place, config, {"list": ["late"], "tree": {}})
        else:
            with pytest.raises(CheckpointConflict):
                self.faces[face].put(config, checkpoint_of("refused", {"list": ["refused"]}))

    @rule(face=FACES_OF_TWO, place=PLACES, count=st.integers(2, 40), change=edits())
    def long_run(self, face: int, place: Place, count: int, change: list[Edit]) -> None:
        """A run of many steps that append a little, followed by a different change."""
        found = self.faces[face].get_tuple(at(*place))
        state = self._edited(found.checkpoint["channel_values"] if found else {}, [])
        config = found.config if found else at(*place)
        for n in range(count):
            state["list"] = [*state["list"], {"n": n, "text": f"{self.count} " * 40, "parts": [n]}]
            state["tree"] = {**state["tree"], f"step {n % 5}": n}
            self._put(face, place, config, state)
            config = at(*place, self.live[place][0])
        self._put(face, place, config, self._edited(state, change))

    @rule(face=FACES_OF_TWO, place=PLACES, age=AGES)
    def put_again(self, face: int, place: Place, age: int) -> None:
        """A checkpoint is written again, as after a lost acknowledgement."""
        ids = self.oracle.ids(place)
        if ids:
            kept = self.oracle.kept[place][ids[age % len(ids)]]
            self.faces[face].put(at(*place, kept.parent), kept.checkpoint, kept.metadata)
            self.oracle.put(place, kept)

    @rule(
        face=FACES_OF_TWO,
        place=PLACES,
        age=AGES,
        task=TASKS,
        writes=st.lists(st.tuples(CHANNELS, st.one_of(scalars(), elements())), max_size=4),
    )
    def put_writes(self, face: int, place: Place, age: int, task: str, writes: list[tuple[str, Any]]) -> None:
        """A task writes to a checkpoint, or to a later one that does not exist yet."""
        ids = [*self.oracle.ids(place)[:9], f"{(self.count + 1) % 3}-{self.count + 1:04}"]
        checkpoint_id = ids[age % len(ids)]
        path = f"~{'12'.index(task[-1]) ^ 1}"
        self.faces[face].put_writes(at(*place, checkpoint_id), writes, task, path)
        self.oracle.put_writes(place, checkpoint_id, Call(task, path, writes))

    # -- removing and copying ----------------------------------------------------------------------------------

    @rule(face=FACES_OF_TWO, thread=THREADS)
    def prune(self, face: int, thread: str) -> None:
        self.faces[face].prune([thread])
        self.oracle.prune(thread)

    @rule(face=FACES_OF_TWO, run=st.integers(0, 3))
    def delete_for_runs(self, face: int, run: int) -> None:
        self.faces[face].delete_for_runs([f"run {run}"])
        self.oracle.delete_for_runs(f"run {run}")

    @rule(face=FACES_OF_TWO, thread=RARELY)
    def delete_thread(self, face: int, thread: str) -> None:
        self.faces[face].delete_thread(thread)
        self.oracle.delete_thread(thread)

    @rule(face=FACES_OF_TWO, source=st.sampled_from(["t", "t", "t", "u"]))
    def copy_thread(self, face: int, source: str) -> None:
        """A thread is copied, mostly to `u`, so that `t` accumulates history."""
        target = "u" if source == "t" else "t"
        if self.oracle.exists(target) and self.count % 2:
            with pytest.raises(ThreadExists):
                self.faces[face].copy_thread(source, target)
            return
        self.faces[face].delete_thread(target)
        self.oracle.delete_thread(target)
        self.faces[face].copy_thread(source, target)
        self.oracle.copy_thread(source, target)

    # -- going back --------------------------------------------------------------------------------------------

    @rule(face=FACES_OF_TWO, thread=THREADS, age=st.integers(0, 60))
    def rewind(self, face: int, thread: str, age: int) -> None:
        """A checkpoint becomes the latest again.

        The saver chooses the checkpoint of the subgraph.
        """
        ids = self.oracle.ids((thread, ""))
        if ids:
            self.faces[face].rewind(at(thread, "", ids[age % len(ids)]))
            self._take_twin(face, (thread, "sub"))  # it is written first
            self._take_twin(face, (thread, ""), ids[age % len(ids)])

    def _take_twin(self, face: int, place: Place, of: str | None = None) -> None:
        found = self.faces[face].get_tuple(at(*place))
        if found is None or id_of(found) in self.oracle.ids(place):
            assert of is None
            return
        checkpoint, metadata = dict(found.checkpoint), dict(found.metadata)
        original = metadata["keel_rewound_to"]
        assert of in (None, original)
        if original is None:
            assert (found.checkpoint["channel_values"], place[1]) == ({}, "sub")
            self.oracle.put(place, Kept(None, checkpoint, metadata))
        else:
            self.oracle.rewind(place, str(original), found.checkpoint["id"], found.checkpoint["ts"])

    @rule(face=FACES_OF_TWO, age=st.integers(0, 60))
    def fork_thread(self, face: int, age: int) -> None:
        """A thread is forked at an earlier checkpoint, replacing the previous fork."""
        ids = self.oracle.ids(("t", ""))
        if ids:
            self.faces[face].delete_thread("u")
            self.oracle.delete_thread("u")
            self.faces[face].fork(at("t", "", ids[age % len(ids)]), "u")
            self.oracle.fork("t", "u", ids[age % len(ids)])

    @rule(n=st.integers(0, 1))
    def reopen(self, n: int) -> None:
        """A process ends and another process starts."""
        self.savers[n] = self.backend.open()

    # -- comparing ---------------------------------------------------------------------------------------------

    @precondition(lambda self: hasattr(self, "oracle"))
    @invariant()
    def latest_is_right(self) -> None:
        face = self.faces[self.count % 4]
        for place in [("t", ""), ("t", "sub"), ("u", ""), ("u", "sub")]:
            assert seen(face.get_tuple(at(*place))) == expected(self.oracle.read(place))

    @rule(face=FACES_OF_TWO, place=PLACES, limit=st.sampled_from([None, 1, 3]))
    def list(self, face: int, place: Place, limit: int | None) -> None:
        found = [*self.faces[face].list(at(*place), limit=limit)]
        ids = self.oracle.ids(place)[:limit]
        assert [id_of(each) for each in found] == ids
        assert [seen(each) for each in found] == [expected(self.oracle.read(place, each)) for each in ids]

    @rule(face=FACES_OF_TWO, place=PLACES, age=st.integers(0, 9))
    def list_before(self, face: int, place: Place, age: int) -> None:
        ids = self.oracle.ids(place)
        if ids:
            bound = age % len(ids)
            before = self.faces[face].list(at(*place), before=at(*place, ids[bound]))
            assert [id_of(each) for each in before] == ids[bound + 1 :]


SaverMachine.TestCase.settings = settings(deadline=None)
