"""Going back: a checkpoint made the latest of its thread again, or the beginning of a branch. Nothing is deleted."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from langgraph_keel.errors import CheckpointConflict, InvalidInput, NotFound
from langgraph_keel.testing.contract_copying import told
from langgraph_keel.testing.contract_delta import history, of, step, ten_steps, walked
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, exact, id_of, values_of

MEMORY = "memory"
"""The namespace of a subgraph with `checkpointer=True`."""
CALL = "node:6b9c1c7e-3a0c-5d43-9d3c-111111111111"
"""The namespace of a call of one without."""


def state(n: int) -> dict[str, Any]:
    """Return a state of which the next one shares most."""
    return {"list": chat(n), "tree": {**TREE, "n": n}, "n": n}


def marked(found: CheckpointTuple, name: str) -> Any:
    """Return a mark of Keel's in a checkpoint's metadata."""
    return dict(found.metadata).get(name)


def eight_steps(rig: Rig, thread: str = "t") -> list[RunnableConfig]:
    """Put eight checkpoints, with writes."""
    configs = rig.author(thread).follow([state(n) for n in range(1, 9)])
    for n, config in enumerate(configs):
        rig.face.put_writes(config, [("list", n), ("__interrupt__", f"question {n}")], f"task {n}")
    return configs


def with_memory(rig: Rig) -> list[RunnableConfig]:
    """Put five checkpoints, of which the second and the third call a subgraph with a memory, and one without."""
    root, memory, call = rig.author(), rig.author("t", MEMORY), rig.author("t", CALL)
    configs = []
    for n in range(5):
        config = root.put(state(n + 1))
        configs.append(config)
        if n in (1, 2):
            parents = {"parents": {"": id_of(config)}}
            for part in "ab":
                memory.put({"seen": [*chat(n), part]}, metadata=parents)
            call.put({"called": n}, metadata=parents)
    return configs


def remembered(rig: Rig) -> Any:
    """Return what the subgraph with a memory would begin with."""
    found = rig.face.get_tuple(at("t", MEMORY))
    return values_of(found) if found else None


class TravelContract(RigFixtures):
    """`rewind`, and `fork` in the same thread."""

    @pytest.mark.parametrize("place", [0, 4, 7], ids=["first", "middle", "latest"])
    def test_rewinding_adds_a_twin(self, rig: Rig, place: int) -> None:
        configs = eight_steps(rig)
        before, original = told(rig, "t"), rig.face.read(configs[place])
        assert rig.face.rewind(configs[place]) == {"configurable": {"thread_id": "t"}}
        twin = rig.face.read(at())
        assert told(rig, "t")[1:] == before
        assert exact(values_of(twin)) == exact(values_of(original))
        assert id_of(twin) != id_of(original)
        assert twin.parent_config == original.parent_config
        assert twin.pending_writes == []
        own = {"id": twin.checkpoint["id"], "ts": twin.checkpoint["ts"]}
        assert exact(twin.checkpoint) == exact({**original.checkpoint, **own})
        assert twin.checkpoint["ts"] > original.checkpoint["ts"]
        assert twin.metadata == {**original.metadata, "source": "fork", "keel_rewound_to": id_of(original)}

    def test_a_run_goes_on_from_where_it_was_taken_back_to(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        late = rig.continuing(at(), rig.open())
        config = rig.face.rewind(configs[3])
        run = rig.continuing(config)
        twin = id_of(run.config)
        stored = run.follow([state(50), state(51)])
        assert id_of(rig.face.read(at())) == id_of(stored[-1])
        assert exact(values_of(rig.face.read(at()))) == exact(state(51))
        assert id_of(rig.face.read(stored[0]).parent_config) == twin
        with pytest.raises(CheckpointConflict):
            late.put(state(9))
        assert exact(values_of(rig.face.read(configs[7]))) == exact(state(8))

    def test_a_run_of_another_process_goes_on_too(self, warm: Rig) -> None:
        configs = eight_steps(warm)
        other = warm.open()
        other.read(at())
        warm.face.rewind(configs[2])
        run = warm.continuing(at(), other)
        for n in range(40):
            run.put(state(3 + n))
        assert exact(values_of(warm.face.read(at()))) == exact(state(42))

    def test_rewinding_again_and_to_a_twin(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        rig.face.rewind(configs[2])
        first = rig.face.read(at())
        rig.continuing(at()).put(state(9))
        rig.face.rewind(first.config)
        again = rig.face.read(at())
        assert marked(again, "keel_rewound_to") == id_of(first)
        assert exact(values_of(again)) == exact(state(3))
        assert again.parent_config == first.parent_config == rig.face.read(configs[2]).parent_config
        rig.face.rewind(configs[6])
        assert exact(values_of(rig.face.read(at()))) == exact(state(7))
        rig.face.rewind(at())
        assert marked(rig.face.read(at()), "keel_rewound_to") != id_of(configs[6])
        assert exact(values_of(rig.face.read(at()))) == exact(state(7))
        assert len(told(rig, "t")) == 8 + 1 + 4

    def test_rewinding_to_a_branch(self, warm: Rig) -> None:
        warm.author().follow([state(1), state(2)])
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put(state(3))
        lost = loser.put({"n": "lost"})
        warm.face.rewind(lost)
        assert values_of(warm.face.read(at())) == {"n": "lost"}
        warm.continuing(at()).put({"n": "next"})
        assert values_of(warm.face.read(at())) == {"n": "next"}
        winner.put({"n": "too late"})
        assert values_of(warm.face.read(at())) == {"n": "next"}

    def test_questions_of_the_moment_are_asked_anew(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        rig.face.rewind(configs[4])
        assert rig.face.read(at()).pending_writes == []
        asked = rig.face.read(configs[4]).pending_writes
        assert asked == [("task 4", "__interrupt__", "question 4"), ("task 4", "list", 4)]
        rig.face.put_writes(rig.face.read(at()).config, [("__interrupt__", "anew")], "new task")
        assert rig.face.read(at()).pending_writes == [("new task", "__interrupt__", "anew")]
        assert rig.face.read(configs[4]).pending_writes == asked

    @pytest.mark.parametrize("place", [0, 3, 6, 9])
    def test_delta_channels_go_back(self, rig: Rig, place: int) -> None:
        configs = ten_steps(rig)
        before = history(rig, configs[place])
        rig.face.rewind(configs[place])
        assert history(rig, at()) == before
        run = rig.continuing(at())
        for n in (20, 21):
            step(rig, run, n)
        assert history(rig, at()) == walked(rig.face.saver, at())
        writes = rig.face.delta_history(at(), ["other"])["other"]["writes"]
        assert [value for _, _, value in writes] == [*range(place), 20]

    def test_a_twin_is_whole_after_a_prune(self, rig: Rig) -> None:
        configs = ten_steps(rig)
        before, values = history(rig, configs[5]), values_of(rig.face.read(configs[5]))
        rig.face.rewind(configs[5])
        rig.face.prune(["t"])
        assert len(told(rig, "t")) == 1
        assert values_of(rig.face.read(at())) == values
        assert of(history(rig, at()), "items", "other") == of(before, "items", "other")
        # Now its parent is kept for delta channels only.
        for make in (rig.face.rewind, rig.face.fork):
            config = make(at())
            assert of(history(rig, {**at(), **config}), "items", "other") == of(before, "items", "other")

    def test_values_are_whole_after_a_prune(self, warm: Rig) -> None:
        configs = eight_steps(warm)
        warm.face.rewind(configs[5])
        warm.face.prune(["t"])
        assert exact(values_of(warm.face.read(at()))) == exact(state(6))
        warm.continuing(at()).put(state(7))
        assert exact(values_of(warm.open().read(at()))) == exact(state(7))

    def test_a_twin_belongs_to_the_run_that_wrote_its_state(self, rig: Rig) -> None:
        author = rig.author()
        configs = [author.put(state(n), metadata={"run_id": "odd" if n % 2 else "even"}) for n in range(6)]
        rig.face.rewind(configs[3])
        found = list(rig.face.list(at(), filter={"source": "fork"}))
        assert [id_of(each) for each in found] == [id_of(rig.face.read(at()))]
        assert found[0].metadata["run_id"] == "odd"
        rig.face.delete_for_runs(["odd"])
        assert exact(values_of(rig.face.read(at()))) == exact(state(4))
        assert found[0].parent_config is not None
        assert len(told(rig, "t")) == 3

    def test_memories_of_subgraphs_go_back(self, rig: Rig) -> None:
        configs = with_memory(rig)
        after = {0: None, 1: None, 2: [*chat(1), "b"], 3: [*chat(2), "b"], 4: [*chat(2), "b"]}
        for place in (2, 0, 4, 1, 3, 1, 4, 4, 2):
            before = told(rig, "t")
            rig.face.rewind(configs[place])
            expected = {} if after[place] is None else {"seen": after[place]}
            assert exact(remembered(rig)) == exact(expected), f"at step {place}"
            assert rig.face.read(at("t", MEMORY)).pending_writes == []
            assert [each for each in told(rig, "t") if each in before] == before
        assert [id_of(each) for each in rig.face.list(at("t", CALL))] == [
            each[1] for each in told(rig, "t") if each[0] == CALL
        ]
        assert len(list(rig.face.list(at("t", CALL)))) == 2

    def test_memories_go_on_from_where_they_are(self, rig: Rig) -> None:
        configs = with_memory(rig)
        rig.face.rewind(configs[2])
        root, memory = rig.continuing(at()), rig.continuing(at("t", MEMORY))
        called_by = {"parents": {"": id_of(root.config)}}
        memory.put({"seen": ["anew"]}, metadata=called_by)
        then = root.put(state(60))
        root.put(state(61))
        rig.face.rewind(configs[4])
        assert exact(remembered(rig)) == exact({"seen": [*chat(2), "b"]})
        rig.face.rewind(then)
        assert remembered(rig) == {"seen": ["anew"]}
        count = len(told(rig, "t"))
        rig.face.rewind(then)
        assert len(told(rig, "t")) == count + 1, "a memory that is where it should be stays as it is"

    def test_memories_whose_caller_is_not_stored(self, rig: Rig) -> None:
        """With `durability="exit"` it never is: what was put between two root checkpoints belongs to the second."""
        root, memory, ends = rig.author(), rig.author("t", MEMORY), []
        for n in range(3):
            memory.put({"seen": n}, metadata={"parents": {"": "never stored"}})
            ends.append(root.put(state(n + 1)))
        for place in (1, 0, 2, 0):
            rig.face.rewind(ends[place])
            assert remembered(rig) == {"seen": place}
        # On a way that begins at the old latest, the twins that were put after it do not count.
        later = rig.continuing(ends[2]).put(state(9))
        rig.face.rewind(later)
        assert remembered(rig) == {"seen": 2}

    def test_memories_before_a_step_that_is_run_again(self, rig: Rig) -> None:
        """LangGraph's own replay begins with a copy of the old checkpoint as its child, of the same step."""
        configs = with_memory(rig)
        step_of = rig.face.read(configs[2]).metadata["step"]
        copy = rig.continuing(configs[2]).put(state(3), metadata={"source": "fork", "step": step_of})
        rig.face.rewind(copy)
        assert exact(remembered(rig)) == exact({"seen": [*chat(1), "b"]})
        rig.face.rewind(configs[0])
        count = len(told(rig, "t"))
        rig.face.rewind(configs[1])
        assert remembered(rig) == {}
        assert len(told(rig, "t")) == count + 1, "a memory that is empty is not emptied again"

    def test_what_goes_meanwhile_is_not_rewound_to(self, warm: Rig) -> None:
        for verb in ("rewind", "fork"):
            warm.backend.wipe()
            config = eight_steps(warm)[3]
            meanwhile = Meanwhile(1, lambda: warm.backend.open().prune(["t"]))
            face = warm.on(with_tap(warm.backend.open(), meanwhile))
            with pytest.raises(NotFound, match="meanwhile"):
                getattr(face, verb)(config)
            assert len(told(warm, "t")) == 1

    def test_what_is_not_there_is_not_rewound_to(self, rig: Rig) -> None:
        eight_steps(rig)
        rig.author("t", "sub").put({"a": 1})
        before = rig.backend.raw()
        for go in (rig.face.rewind, rig.face.fork):
            for config in (at("t", "", "unknown"), at("unknown"), at("unknown", "", "00000001")):
                with pytest.raises(NotFound, match="no such checkpoint"):
                    go(config)
            with pytest.raises(InvalidInput, match="subgraph"):
                go(at("t", "sub"))
        rig.face.prune(["t"])
        with pytest.raises(NotFound, match="00000003"):
            rig.face.rewind(at("t", "", "00000003"))
        assert len(before) > len(rig.backend.raw())

    def test_rewinding_takes_few_round_trips(self, warm: Rig) -> None:
        configs = with_memory(warm)
        counter = Counter()
        face = warm.on(with_tap(warm.backend.open(), counter))
        face.rewind(configs[3])
        assert counter.taken() <= 2
        face.rewind(configs[2])
        assert counter.taken() <= 3
        face.fork(configs[2])
        assert counter.taken() <= 2

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_rewinding_may_break_anywhere(self, warm: Rig, lost_reply: bool) -> None:
        for trip in range(4):
            warm.backend.wipe()
            configs = with_memory(warm)
            before, latest = told(warm, "t"), exact(values_of(warm.face.read(at())))
            fault = Fault(trip, lost_reply=lost_reply)
            try:
                warm.on(with_tap(warm.backend.open(), fault)).rewind(configs[2])
            except Injected:
                assert exact(values_of(warm.face.read(at()))) in (latest, exact(state(3)))
            assert [each for each in told(warm, "t") if each in before] == before
            warm.face.rewind(configs[2])
            assert exact(values_of(warm.face.read(at()))) == exact(state(3))
            assert exact(remembered(warm)) == exact({"seen": [*chat(1), "b"]})
        assert not fault.fired

    def test_a_branch_is_beside_the_trunk(self, rig: Rig) -> None:
        configs = eight_steps(rig)
        before, latest = told(rig, "t"), rig.face.read(at())
        for place in (7, 0, 4):
            config = rig.face.fork(configs[place])
            twin, original = rig.face.read(config), rig.face.read(configs[place])
            assert exact(values_of(twin)) == exact(values_of(original))
            assert (twin.parent_config, twin.pending_writes) == (original.parent_config, [])
            assert marked(twin, "keel_branched_from") == id_of(original)
            assert rig.face.read(at()) == latest
        assert told(rig, "t")[3:] == before
        run = rig.continuing(config)
        stored = run.put(state(70))
        assert id_of(rig.face.read(at())) == id_of(stored)
        assert id_of(rig.face.read(stored).parent_config) == id_of(config)
        rig.face.rewind(configs[7])
        assert exact(values_of(rig.face.read(at()))) == exact(state(8))
