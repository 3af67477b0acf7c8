"""Eight processes write to one thread, without a lost update or a corrupt thread."""

from __future__ import annotations

import pytest
from support.places import Place
from support.process_children import by_invoke, race
from support.races import by_id, check_lineage, context, head_marks, marks_of, received
from support.tiers import sized

PROCESSES = 8
ROUNDS = sized(40, 40, 200)


def run_race(place: Place, on_conflict: str, processes: int, rounds: int) -> list[tuple[str, str, str]]:
    mp = context()
    gate, told = mp.Barrier(processes), mp.Queue()
    rivals = [
        mp.Process(target=race, args=(place, on_conflict, who, rounds, gate, told), daemon=True)
        for who in range(processes)
    ]
    for rival in rivals:
        rival.start()
    answers = list(received(told, processes * rounds))
    for rival in rivals:
        rival.join(60)
    assert [rival.exitcode for rival in rivals] == [0] * processes
    told.close()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["raise", "fork"])
def test_racing_processes_lose_no_update(on_conflict: str, place: Place) -> None:
    with place.open() as saver:
        by_invoke(saver, "start")
    answers = run_race(place, on_conflict, PROCESSES, ROUNDS)
    kept = {mark for mark, answer, _ in answers if answer == "kept"}
    losers = [where for _, answer, where in answers if answer == "conflict"]
    checkpoints, head = by_id(place), head_marks(place)
    check_lineage(checkpoints)
    place.check()
    # One client wins every round: a write is refused only if another one was accepted.
    assert len(kept) >= ROUNDS
    if on_conflict == "raise":
        assert set(losers) == {"shared"}
        assert kept <= set(head)
    else:
        assert not losers
        assert kept <= set(head).union(*map(marks_of, checkpoints.values()))
        assert len(kept) == PROCESSES * ROUNDS
