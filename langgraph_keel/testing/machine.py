"""The state machine: random histories on a backend, through both faces and two savers, compared with the oracle.

class MongoMachine(SaverMachine):
def make_backend(self):
return MongoUnderTest(url)

TestMongoMachine = MongoMachine.TestCase
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel.errors import CheckpointConflict, ThreadExists
from langgraph_keel.saver import KeelSaver
from langgraph_keel.testing.faces import AsyncFace, Face, SyncFace
from langgraph_keel.testing.oracle import Call, Kept, Oracle, Place
from langgraph_keel.testing.rig import StoreUnderTest, at, checkpoint_of, exact, id_of
from langgraph_keel.testing.strategies import Edit, edits, elements, scalars

RARELY = st.sampled_from(["u", "u", "t"])
THREADS = st.sampled_from(["t", "u"])
PLACES = st.tuples(THREADS, st.sampled_from(["", "", "sub"]))
FACES_OF_TWO = st.integers(0, 3)
AGES = st.sampled_from([0, 0, 0, 1, 2, 7])
TASKS = st.sampled_from(["task 1", "task 2"])
CHANNELS = st.sampled_from(["list", "x", "__interrupt__", "__resume__", "__error__"])


def seen(found: CheckpointTuple | None) -> Any:
    """Return what the oracle tells of a checkpoint, as a saver returned it."""
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
    """Return what the oracle tells, in the form of `seen`."""
    return None if kept is None else exact({**kept, "checkpoint": _ordered(kept["checkpoint"])})


def _ordered(checkpoint: Any) -> dict[str, Any]:
    # The order of the checkpoint's own keys says nothing; that of all dicts in it does.
    return dict(sorted(checkpoint.items()))


class SaverMachine(RuleBasedStateMachine):
    """Random runs, forks, writes, copies and removals. Subclass it and say how a backend is made."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.make_backend()
        self.backend.wipe()
        self.oracle = Oracle()
        self.savers = [self.backend.open() for _ in range(2)]
        self.faces: list[Face] = [kind(self._opener(n)) for n in range(2) for kind in (SyncFace, AsyncFace)]
        self.live: dict[Place, tuple[str, dict[str, Any]]] = {}
        self.stale: dict[Place, RunnableConfig] = {}
        self.count = 0

    def make_backend(self) -> StoreUnderTest:
        """Return a backend; the machine wipes it first."""
        raise NotImplementedError("say how your backend is made")

    def release(self) -> None:
        """Close what `make_backend` opened, if need be."""

    def teardown(self) -> None:
        """Close what was opened."""
        for face in self.faces:
            face.close()
        self.release()

    def _opener(self, n: int) -> Any:
        def opener() -> KeelSaver:
            return self.savers[n]

        return opener

    # -- putting -----------------------------------------------------------------------------------------------

    @initialize(place=PLACES)
    def begin(self, place: Place) -> None:
        self._put(0, place, at(*place), {"list": [], "tree": {}})

    def _put(self, face: int, place: Place, config: RunnableConfig, state: dict[str, Any], **metadata: Any) -> None:
        self.count += 1
        # Clocks of two hosts: ids do not grow with the order of putting.
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
        """A run reads the latest checkpoint, changes its state, and puts the next one."""
        found = self.faces[face].get_tuple(at(*place))
        assert seen(found) == expected(self.oracle.read(place))
        config = found.config if found else at(*place)
        self._put(face, place, config, self._edited(found.checkpoint["channel_values"] if found else {}, changes))

    @rule(face=FACES_OF_TWO, place=PLACES, changes=edits())
    def step_in_place(self, face: int, place: Place, changes: list[Edit]) -> None:
        """A run goes on with the very objects it put before, and changes them in place."""
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
        """That run puts: it is refused if another one was faster."""
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
        """A run of many steps, each of which appends a little; then it does something else."""
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
        """A checkpoint is put again, as after a lost acknowledgement."""
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
        """A task writes to a checkpoint, or to one that comes later."""
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
        """A thread is copied, mostly to `u`, so that `t` grows old."""
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
        """A checkpoint is made the latest again; which one the subgraph goes back to, the saver says."""
        ids = self.oracle.ids((thread, ""))
        if ids:
            self.faces[face].rewind(at(thread, "", ids[age % len(ids)]))
            self._take_twin(face, (thread, "sub"))  # which is put first
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
        """A thread is forked where it was some time ago, in the place of what was forked before."""
        ids = self.oracle.ids(("t", ""))
        if ids:
            self.faces[face].delete_thread("u")
            self.oracle.delete_thread("u")
            self.faces[face].fork(at("t", "", ids[age % len(ids)]), "u")
            self.oracle.fork("t", "u", ids[age % len(ids)])

    @rule(n=st.integers(0, 1))
    def reopen(self, n: int) -> None:
        """A process ends and another one begins."""
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
