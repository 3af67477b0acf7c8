"""Forks: a new thread that is what another one was when a checkpoint was put."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig

from langgraph_keel.core.records import BaseGone, Copied, Occupied, Query
from langgraph_keel.errors import CheckpointConflict, InvalidInput, NotFound, ThreadExists
from langgraph_keel.testing.contract_copying import told
from langgraph_keel.testing.contract_delta import CHANNELS, history, of, step, ten_steps
from langgraph_keel.testing.contract_travel import CALL, MEMORY, marked, state
from langgraph_keel.testing.faults import Counter, Fault, Injected, Meanwhile, with_tap
from langgraph_keel.testing.histories import chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of

LATER = "put later, and nobody's business in the fork"


def lived(rig: Rig) -> tuple[list[RunnableConfig], list[Any]]:
    """Put eight checkpoints with subgraphs, branches and writes; return them, and what there was at each put."""
    root, memory = rig.author(), rig.author("t", MEMORY)
    configs, then = [], []
    for n in range(8):
        # The clock of this host was wrong for a moment.
        checkpoint_id = "later than all" if n == 2 else None
        config = root.put(state(n + 1), checkpoint_id=checkpoint_id, metadata={"run_id": f"run {n % 2}"})
        configs.append(config)
        then.append(told(rig, "t"))
        memory.put({"seen": chat(n)}, metadata={"parents": {"": id_of(config)}})
        rig.author("t", f"{CALL[:-1]}{n}").put({"n": n}, metadata={"parents": {"": id_of(config)}})
        rig.face.put_writes(config, [("list", n)], "task 2", "~2")
        rig.face.put_writes(config, [("list", -n), ("__interrupt__", n)], "task 1", "~1")
        rig.face.put_writes(at("t", "", f"orphan {n}"), [("list", "orphan")], "task")
        if n == 3:
            rig.author("t").put({"list": chat(3), "n": "a branch"})
    return configs, then


def as_it_was(rig: Rig, thread: str, config: RunnableConfig) -> list[Any]:
    """Return all there is to see of a fork, without what its latest says of where it comes from."""
    (*latest, (kind, metadata), writes), *rest = told(rig, thread)
    origin = {"keel_forked_from": {"thread_id": "t", "checkpoint_id": id_of(config)}}
    assert metadata[-1:] == exact(origin)[1]
    return [(*latest, (kind, metadata[:-1]), writes), *rest]


class ForksContract(RigFixtures):
    """`fork` to a thread of its own, and `Store.copy_thread` up to an entry."""

    @pytest.mark.parametrize("place", [0, 3, 5, 7])
    def test_a_fork_is_the_thread_as_it_was(self, rig: Rig, place: int) -> None:
        configs, then = lived(rig)
        before = told(rig, "t")
        assert rig.face.fork(configs[place], "fork") == {"configurable": {"thread_id": "fork"}}
        assert as_it_was(rig, "fork", configs[place]) == then[place]
        assert told(rig, "t") == before
        latest = rig.face.read(at("fork"))
        assert id_of(latest) == id_of(configs[place])
        assert latest.pending_writes == []
        assert exact(values_of(latest)) == exact(state(place + 1))
        memory = rig.face.get_tuple(at("fork", MEMORY))
        assert exact(memory and values_of(memory)) == exact({"seen": chat(place - 1)} if place else None)

    def test_a_fork_of_a_superseded_checkpoint_is_its_latest(self, warm: Rig) -> None:
        warm.author().follow([state(1), state(2)])
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put(state(3))
        lost = loser.put({"n": "lost"})
        warm.face.fork(lost, "fork")
        assert values_of(warm.face.read(at("fork"))) == {"n": "lost"}
        run, late = (warm.continuing(at("fork"), warm.open()) for _ in range(2))
        stored = run.put({"n": "next"})
        assert id_of(warm.face.read(at("fork"))) == id_of(stored)
        with pytest.raises(CheckpointConflict):
            late.put({"n": "too late"})
        assert exact(values_of(warm.face.read(at()))) == exact(state(3))

    def test_a_rewound_thread_is_forked(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        rig.face.rewind(configs[2])
        rig.face.fork(at(), "fork")
        latest = rig.face.read(at("fork"))
        assert exact(values_of(latest)) == exact(state(3))
        assert marked(latest, "keel_rewound_to") == id_of(configs[2])
        assert marked(latest, "keel_forked_from") == {"thread_id": "t", "checkpoint_id": id_of(latest)}
        assert exact(values_of(rig.face.read(at("fork", MEMORY)))) == exact({"seen": chat(1)})
        rig.face.rewind(at("fork", "", id_of(configs[6])))
        assert exact(values_of(rig.face.read(at("fork")))) == exact(state(7))

    def test_fork_and_source_go_their_own_ways(self, warm: Rig) -> None:
        configs, then = lived(warm)
        before = told(warm, "t")
        warm.face.fork(configs[4], "fork")
        runs = {thread: warm.continuing(at(thread)) for thread in ("t", "fork")}
        states = {"t": chat(8), "fork": chat(5)}
        for n in range(40):
            for thread, run in runs.items():
                states[thread] = [*states[thread], *chat(1, 1000 + n + 500 * len(thread))]
                run.put({"list": states[thread]})
        for thread in runs:
            assert exact(values_of(warm.open().read(at(thread)))) == exact({"list": states[thread]})
        assert told(warm, "t")[40:] == before
        forked = told(warm, "fork")[40:]
        assert [each[:4] for each in forked] == [each[:4] for each in then[4]]
        assert forked[1:] == then[4][1:]

    def test_the_fork_outlives_the_source_and_the_source_the_fork(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        source = told(rig, "t")
        rig.face.fork(configs[4], "gone")
        rig.face.prune(["gone"])
        assert exact(values_of(rig.face.read(at("gone")))) == exact(state(5))
        rig.face.delete_thread("gone")
        assert told(rig, "t") == source
        rig.face.fork(configs[4], "fork")
        before = told(rig, "fork")
        rig.face.prune(["t"])
        assert told(rig, "fork") == before
        rig.face.delete_thread("t")
        assert told(rig, "fork") == before
        rig.face.fork(at("fork", "", id_of(configs[2])), "t")
        assert exact(values_of(rig.face.read(at()))) == exact(state(3))
        assert told(rig, "fork") == before

    def test_what_was_put_later_is_not_in_the_fork(self, rig: Rig) -> None:
        root = rig.author()
        configs = root.follow([{"list": chat(n), "n": n} for n in range(1, 4)])
        rig.face.put_writes(configs[2], [("list", LATER)], "task")
        rig.face.put_writes(at("t", "", "orphan"), [("list", LATER)], "task")
        root.put({"list": [*chat(3), {"text": LATER}], "text": f"{LATER} " * 9}, metadata={"note": LATER})
        rig.author("t", f"sub {LATER}").put({"text": LATER})
        rig.author("t", MEMORY).put({"text": LATER, LATER: f"{LATER} " * 9})
        assert rig.backend.raw().count(LATER.encode()) >= 6
        rig.face.fork(configs[2], "fork")
        rig.face.delete_thread("t")
        assert LATER.encode() not in rig.backend.raw()
        assert exact(values_of(rig.face.read(at("fork")))) == exact({"list": chat(3), "n": 3})

    def test_what_has_overtaken_is_not_in_the_fork(self, rig: Rig) -> None:
        first = rig.author().put(state(1), checkpoint_id="first")
        memory, call = rig.author("t", MEMORY), rig.author("t", CALL)
        memory.put({"seen": "before"}, metadata={"parents": {"": "first"}})
        for author in (memory, call):
            author.put({"seen": LATER * 9}, metadata={"parents": {"": "second"}})
            rig.face.put_writes(author.config, [("seen", LATER)], "task")
        second = rig.continuing(first).put(state(2), checkpoint_id="second")
        rig.face.fork(second, "fork")
        assert values_of(rig.face.read(at("fork", MEMORY))) == {"seen": "before"}
        assert [id_of(each) for each in rig.face.list(at("fork"))] == ["second", "first"]
        assert rig.face.get_tuple(at("fork", CALL)) is None
        rig.face.delete_thread("t")
        assert LATER.encode() not in rig.backend.raw()

    @pytest.mark.parametrize("place", [2, 6, 9])
    def test_delta_channels_are_forked(self, rig: Rig, place: int) -> None:
        configs = ten_steps(rig)
        before = history(rig, configs[place])
        rig.face.fork(configs[place], "fork")
        rig.face.delete_thread("t")
        assert history(rig, at("fork")) == before
        step(rig, rig.continuing(at("fork")), 20)
        writes = rig.face.delta_history(at("fork"), CHANNELS)["other"]["writes"]
        assert [value for _, _, value in writes] == list(range(place))

    def test_ghosts_are_forked(self, rig: Rig) -> None:
        ten_steps(rig)
        rig.face.prune(["t"])
        head = rig.face.read(at())
        before = history(rig, at())
        step(rig, rig.continuing(at()), 10)
        rig.face.fork(head.config, "fork")
        rig.face.delete_thread("t")
        assert of(history(rig, at("fork")), "items", "other") == of(before, "items", "other")
        assert len(told(rig, "fork")) == 1

    def test_a_fork_is_refused_as_a_copy_is(self, rig: Rig) -> None:
        configs, _ = lived(rig)
        rig.author("checkpoint").put({"a": 1})
        rig.face.put_writes(at("only writes", "", "c"), [("a", 1)], "task")
        before = rig.backend.raw()
        for target in ("checkpoint", "only writes", "t"):
            with pytest.raises(ThreadExists, match=target):
                rig.face.fork(configs[3], target)
        for config in (at("t", "", "unknown"), at("unknown"), at("unknown", "", "c")):
            with pytest.raises(NotFound, match="no such checkpoint"):
                rig.face.fork(config, "fork")
        with pytest.raises(InvalidInput, match="subgraph"):
            rig.face.fork(at("t", MEMORY), "fork")
        assert rig.backend.raw() == before
        rig.face.fork(configs[3], "fork")

    def test_an_entry_that_is_gone_is_not_copied_up_to(self, rig: Rig) -> None:
        ten_steps(rig)
        rig.author("other").follow([{"n": 1}, {"n": 2}])
        stamps = [entry.stamp for entry in rig.face.verb("scan", Query("t", ""))]
        (of_other, *_) = [entry.stamp for entry in rig.face.verb("scan", Query("other", ""))]
        rig.face.prune(["t"])
        gone_and_ghosts = stamps[1:]
        before = rig.backend.raw()
        for stamp in (*gone_and_ghosts, of_other):
            assert rig.face.verb("copy_thread", "t", "target", stamp) == BaseGone()
            assert rig.face.verb("copy_thread", "t", "other", stamp) == Occupied()
        assert rig.face.verb("copy_thread", "unknown", "target", stamps[0]) == BaseGone()
        assert rig.backend.raw() == before
        assert rig.face.verb("copy_thread", "t", "target", stamps[0]) == Copied()
        assert [each[:5] for each in told(rig, "target")] == [each[:5] for each in told(rig, "t")]
        rig.face.delete_thread("t")
        rig.author().put({"n": "another life"})
        assert rig.face.verb("copy_thread", "t", "second", stamps[0]) == BaseGone()

    def test_a_fork_is_listed_as_what_it_is(self, rig: Rig) -> None:
        root = rig.author()
        configs = [
            root.put({"n": n}, ts=f"2026-01-0{n + 1}T00:00:00+00:00", metadata={"run_id": f"run {n % 2}"})
            for n in range(6)
        ]
        rig.face.fork(configs[3], "fork")
        infos = {info.thread_id: info for info, _ in rig.face.verb("read_threads", None, 10)}
        assert infos["t"].updated_at > infos["fork"].updated_at == "2026-01-04T00:00:00+00:00"
        assert (infos["fork"].checkpoints, infos["fork"].latest) == (4, id_of(configs[3]))
        assert sorted(rig.face.verb("find_runs", ["run 1"])) == ["fork", "t"]
        rig.face.delete_for_runs(["run 1"])
        assert [values_of(each)["n"] for each in rig.face.list(at("fork"))] == [2, 0]
        assert rig.face.verb("find_runs", ["run 1"]) == []
        rig.face.fork(at("fork"), "again")
        rig.face.delete_for_runs(["run 0"])
        assert list(rig.face.list(None)) == []

    def test_a_parent_that_was_put_again_is_no_stranger(self, rig: Rig) -> None:
        """It has a later number than the copy: no other entry of the fork may get that, and become the parent."""
        first, second = rig.author().follow([{"n": 1}, {"n": 2}])
        rig.face.put(at(), checkpoint_of(str(id_of(first)), {"n": 1}))
        rig.face.fork(second, "fork")
        assert rig.face.read(at("fork")).parent_config is None
        run = rig.continuing(at("fork"))
        run.follow([{"n": n} for n in range(3, 9)])
        assert rig.face.read(at("fork", "", id_of(second))).parent_config is None

    def test_forking_takes_few_round_trips(self, warm: Rig) -> None:
        configs, _ = lived(warm)
        counter = Counter()
        face = warm.on(with_tap(warm.backend.open(), counter))
        face.fork(configs[4], "fork")
        assert counter.taken() <= 9

    def test_what_goes_meanwhile_is_not_forked(self, warm: Rig) -> None:
        configs, _ = lived(warm)
        meanwhile = Meanwhile(1, lambda: warm.backend.open().prune(["t"]))
        with pytest.raises(NotFound, match="no such checkpoint"):
            warm.on(with_tap(warm.backend.open(), meanwhile)).fork(configs[4], "fork")
        assert told(warm, "fork") == []
        warm.author("fork").put({"n": 1})

    @pytest.mark.parametrize("lost_reply", [False, True])
    def test_forking_may_break_anywhere(self, warm: Rig, lost_reply: bool) -> None:
        configs, then = lived(warm)
        for trip in range(10):
            fault, target = Fault(trip, lost_reply=lost_reply), f"fork {trip}"
            try:
                warm.on(with_tap(warm.backend.open(), fault)).fork(configs[4], target)
            except Injected:
                assert not told(warm, target) or as_it_was(warm, target, configs[4]) == then[4]
                warm.face.delete_thread(target)
                warm.face.fork(configs[4], target)
            assert as_it_was(warm, target, configs[4]) == then[4]
        assert not fault.fired
