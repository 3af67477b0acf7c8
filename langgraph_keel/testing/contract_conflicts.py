"""Two savers on one store: one wins, the other is told, and what one removes the other does not bring back."""

from __future__ import annotations

import pickle

import pytest

from langgraph_keel.errors import CheckpointConflict, InvalidInput
from langgraph_keel.testing.histories import TREE, chat
from langgraph_keel.testing.rig import Rig, RigFixtures, at, checkpoint_of, exact, id_of, values_of


class ConflictContract(RigFixtures):
    """Lost updates, branches, and what a saver remembers of a store that others change."""

    def test_the_second_of_two_runs_is_refused(self, warm: Rig) -> None:
        base = warm.author().put({"list": chat(3)})
        winner, loser = warm.continuing(at(), warm.open()), warm.continuing(at(), warm.open())
        won = winner.put({"list": chat(4)})
        before = warm.backend.raw()
        with pytest.raises(CheckpointConflict) as refused:
            loser.put({"list": [*chat(3), *chat(1, 40)]}, checkpoint_id="lost")
        error = refused.value
        assert (error.expected, error.found, error.rejected) == (id_of(base), id_of(won), "lost")
        assert all(str(name) in str(error) for name in ("'t'", id_of(base), id_of(won), "lost"))
        assert warm.backend.raw() == before
        assert exact([values_of(found) for found in warm.face.list(at())]) == exact(
            [{"list": chat(4)}, {"list": chat(3)}]
        )

    def test_a_refused_run_may_read_and_run_again(self, warm: Rig) -> None:
        warm.author().put({"list": chat(3)})
        winner, loser = warm.continuing(at(), warm.open()), warm.continuing(at(), warm.open())
        winner.put({"list": chat(4)})
        with pytest.raises(CheckpointConflict):
            loser.put({"list": [*chat(3), *chat(1, 40)]})
        again = warm.continuing(at(), loser.face)
        again.put({"list": [*chat(4), *chat(1, 40)]})
        assert exact(values_of(warm.face.read(at()))) == exact({"list": [*chat(4), *chat(1, 40)]})

    def test_two_runs_on_an_empty_thread(self, warm: Rig) -> None:
        start = at()
        start["recursion_limit"] = 25  # as LangGraph configures every run
        warm.face.put(start, checkpoint_of("first", {"a": 1}))
        with pytest.raises(CheckpointConflict) as refused:
            warm.face.put(start, checkpoint_of("second", {"a": 2}))
        assert (refused.value.expected, refused.value.found) == (None, "first")
        assert values_of(warm.face.read(at())) == {"a": 1}

    def test_a_thread_deleted_meanwhile_is_a_conflict(self, warm: Rig) -> None:
        warm.author().put({"list": chat(3)})
        run = warm.continuing(at())
        warm.open().delete_thread("t")
        with pytest.raises(CheckpointConflict) as refused:
            run.put({"list": chat(4)})
        assert refused.value.found is None
        assert warm.face.get_tuple(at()) is None

    def test_namespaces_do_not_conflict(self, warm: Rig) -> None:
        for ns in ("", "sub", "other"):
            warm.author("t", ns).put({"ns": ns})
        runs = [warm.continuing(at("t", ns), warm.open()) for ns in ("", "sub", "other")]
        for _ in range(2):
            for run in runs:
                run.put({"ns": "next"})
        assert [len(list(warm.face.list(at("t", ns)))) for ns in ("", "sub", "other")] == [3, 3, 3]

    def test_the_namespace_is_named(self, warm: Rig) -> None:
        warm.author("t", "sub").put({})
        winner, loser = warm.continuing(at("t", "sub")), warm.continuing(at("t", "sub"))
        winner.put({})
        with pytest.raises(CheckpointConflict) as refused:
            loser.put({})
        assert refused.value.checkpoint_ns == "sub"
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)

    def test_a_run_of_many_steps_never_conflicts_with_itself(self, rig: Rig) -> None:
        rig.author().put({"n": 0})
        run = rig.continuing(at())
        run.follow([{"n": n} for n in range(5)])
        assert values_of(rig.face.read(at())) == {"n": 4}

    def test_the_loser_is_kept_as_a_branch(self, warm: Rig) -> None:
        base = warm.author().put({"list": chat(3)})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        won = winner.put({"list": chat(4)})
        lost = loser.put({"list": [*chat(3), *chat(1, 40)]})
        assert warm.face.read(at()).config == won
        assert warm.face.read(lost).parent_config == base
        further = loser.put({"list": [*chat(3), *chat(2, 40)]})
        assert warm.face.read(at()).config == won
        assert warm.face.read(further).parent_config == lost
        won = winner.put({"list": chat(5)})
        assert warm.face.read(at()).config == won
        assert exact(values_of(warm.face.read(further))) == exact({"list": [*chat(3), *chat(2, 40)]})
        assert [id_of(found) for found in warm.face.list(at())] == [
            "00000005",
            "00000004",
            "00000003",
            "00000002",
            "00000001",
        ]

    def test_a_branch_can_be_continued_on_purpose(self, warm: Rig) -> None:
        warm.author().put({"n": 0})
        winner, loser = (warm.continuing(at(), warm.open(on_conflict="fork")) for _ in range(2))
        winner.put({"n": "won"})
        lost = loser.put({"n": "lost"})
        adopted = warm.continuing(lost).put({"n": "adopted"})
        assert warm.face.read(at()).config == adopted

    def test_intended_forks_never_conflict(self, rig: Rig) -> None:
        first, second = rig.author().follow([{"n": 1}, {"n": 2}])
        named, made = rig.continuing(first), rig.author()
        made.config = at("t", "", id_of(first))
        for author in (named, made, named):
            stored = author.put({"n": "fork"})
            assert rig.face.read(at()).config == stored
        assert rig.face.read(second).parent_config == first

    def test_a_listed_checkpoint_may_be_forked(self, rig: Rig) -> None:
        rig.author().follow([{"n": n} for n in range(3)])
        author = rig.author()
        for found in list(rig.face.list(at())):
            author.config = found.config
            author.put({"n": "fork"})
        assert len(list(rig.face.list(at()))) == 6

    def test_a_put_repeated_after_a_lost_acknowledgement_is_accepted(self, rig: Rig) -> None:
        rig.author().put({"list": chat(3)})
        run = rig.continuing(at())
        before = run.config
        for _ in range(3):
            run.config = before
            run.put({"list": chat(4)}, checkpoint_id="again")
        run.put({"list": chat(5)})
        found = list(rig.face.list(at()))
        assert [id_of(each) for each in found] == ["00000002", "again", "00000001"]
        assert exact(values_of(found[1])) == exact({"list": chat(4)})

    def test_what_another_saver_pruned_is_written_again(self, warm: Rig) -> None:
        author = warm.author()
        for n in (3, 4):
            author.put({"list": chat(n), "tree": {**TREE, "n": n}})
        other = warm.open()
        warm.continuing(at(), other).put({"list": [], "tree": {}})
        other.prune(["t"])
        author.config = at("t", "", id_of(other.read(at())))
        author.put({"list": chat(5), "tree": {**TREE, "n": 5}})
        found = warm.open().read(at())
        assert exact(values_of(found)) == exact({"list": chat(5), "tree": {**TREE, "n": 5}})
        author.put({"list": chat(6), "tree": {**TREE, "n": 6}})
        found = warm.open().read(at())
        assert exact(values_of(found)) == exact({"list": chat(6), "tree": {**TREE, "n": 6}})

    def test_a_thread_made_anew_owes_nothing_to_the_old_one(self, warm: Rig) -> None:
        stale = warm.author()
        stale.follow([{"list": chat(n), "tree": {**TREE, "n": n}} for n in range(40)])
        other = warm.open()
        other.delete_thread("t")
        warm.author(face=other).follow([{"list": chat(n, 500), "tree": {"n": n}} for n in range(40)])
        stale.config = at("t", "", id_of(other.read(at())))
        stale.put({"list": chat(41), "tree": {**TREE, "n": 41}})
        listed = [values_of(found) for found in warm.open().list(at())]
        assert exact(listed[0]) == exact({"list": chat(41), "tree": {**TREE, "n": 41}})
        assert exact(listed[1:]) == exact([{"list": chat(n, 500), "tree": {"n": n}} for n in range(39, -1, -1)])

    def test_an_unknown_way_to_treat_conflicts_is_refused(self, warm: Rig) -> None:
        with pytest.raises(InvalidInput, match="on_conflict"):
            warm.open(on_conflict="last write wins")
