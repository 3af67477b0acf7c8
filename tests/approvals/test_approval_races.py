"""Two reviewers and two workers race for every request.

One decision is made and executed once, and each loser gets an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from support.approvals.workers import ask, asking_graph, held, lines, rival, rival_process, work, written
from support.places import Place
from support.races import context, received
from support.tiers import sized

from langgraph_keel import AlreadyDecided, KeelSaver, MemorySaver
from langgraph_keel.approvals.hook import ApprovalHook
from langgraph_keel.engine.config import Address

ROUNDS = sized(50, 50, 200)
THREADS = [f"t{number}" for number in range(ROUNDS)]
KIND = {"0": "approve", "1": "reject"}
Said = list[tuple[str, int, str]]


def check(said: Said, path: Path) -> None:
    """Each round has one decision, one execution, and one loser on each side."""
    by_thread: defaultdict[str, list[str]] = defaultdict(list)
    for thread, _, what in said:
        by_thread[thread].append(what)
    acts = {thread: (kind, by) for thread, kind, by in lines(path)}
    assert len(lines(path)) == len(acts) == len(by_thread) == ROUNDS
    for thread, (kind, by) in acts.items():
        assert KIND[by] == kind
        assert sorted(by_thread[thread]) == sorted([kind, "late", "ran", "taken"])


def check_trail(saver: KeelSaver) -> None:
    """The audit trail has one decision for each request, and one event of its use."""
    kinds = Counter(event.kind for event in saver.approvals.audit(limit=10 * ROUNDS))
    kinds["decided"] = kinds.pop("approved", 0) + kinds.pop("rejected", 0)
    assert kinds == {"asked": ROUNDS, "decided": ROUNDS, "consumed": ROUNDS}
    assert saver.approvals.verify_audit().ok
    assert saver.approvals.pending(status=["waiting", "approved", "rejected"]) == []


@pytest.mark.slow
def test_two_threads_race_for_each_request(tmp_path: Path) -> None:
    path, said = tmp_path / "acts", Said()
    gate, told = Barrier(2), Barrier(2)
    with MemorySaver() as saver:
        ask(asking_graph(saver, written(path)), THREADS)
        act = held(written(path), told)
        rivals = [
            Thread(target=rival, args=(saver, act, who, THREADS, gate, told, said.append), daemon=True)
            for who in range(2)
        ]
        for each in rivals:
            each.start()
        for each in rivals:
            each.join(300)
        check(said, path)
        check_trail(saver)


@pytest.mark.slow
def test_two_processes_race_for_each_request(place: Place, tmp_path: Path) -> None:
    path, mp = tmp_path / "acts", context()
    with place.open() as saver:
        ask(asking_graph(saver, written(path)), THREADS)
    gate, told, answers = mp.Barrier(2), mp.Barrier(2), mp.Queue()
    rivals = [
        mp.Process(target=rival_process, args=(place, path, who, THREADS, gate, told, answers), daemon=True)
        for who in range(2)
    ]
    for each in rivals:
        each.start()
    told_of: Any = received(answers, 4 * ROUNDS)
    said: Said = list(told_of)
    join(rivals)
    check(said, path)
    with place.open() as saver:
        check_trail(saver)


@pytest.mark.slow
def test_two_workers_resume_threads_while_two_reviewers_decide(place: Place, tmp_path: Path) -> None:
    """Workers and reviewers run concurrently, with one worker for each face.

    A worker is notified of decisions, or polls.
    """
    path, mp = tmp_path / "acts", context()
    gate = mp.Barrier(3)
    with place.open() as saver:
        ask(asking_graph(saver, written(path)), THREADS)
        workers = [mp.Process(target=work, args=(place, path, gate, face), daemon=True) for face in ("sync", "async")]
        for each in workers:
            each.start()
        gate.wait(60)
        won = Counter(reviewed(place, saver))
        join(workers)
        assert won.total() == ROUNDS
        assert Counter(by for _, _, by in lines(path)) == won
        assert {thread for thread, _, _ in lines(path)} == set(THREADS)
        check_trail(saver)


def reviewed(place: Place, saver: KeelSaver) -> list[str]:
    """Let two reviewers with their own connections decide every request.

    Return the winner of each.
    """
    requests, won = saver.approvals.pending(limit=None), list[str]()
    gate = Barrier(2)

    def review(by: str) -> None:
        with place.open() as own:
            method: Any = own.approvals.approve if by == "0" else own.approvals.reject
            for request in requests:
                gate.wait(60)
                try:
                    method(request.id, by=by)
                except AlreadyDecided:
                    continue
                won.append(by)

    reviewers = [Thread(target=review, args=(by,), daemon=True) for by in "01"]
    for each in reviewers:
        each.start()
    for each in reviewers:
        each.join(300)
    return won


def join(processes: list[Any]) -> None:
    for each in processes:
        each.join(120)
    assert [each.exitcode for each in processes] == [0] * len(processes)


def test_another_thread_may_ask_while_a_checkpoint_is_stored() -> None:
    """A parallel task writes its question while the hook looks for the finished ones."""
    with MemorySaver() as saver:
        found = saver.engine.session.hooks.find(ApprovalHook)
        assert found is not None
        hook: ApprovalHook = found
        hook._remember("t", "1", "task")  # private: the questions that a saver remembers

        class Parent:
            @property
            def checkpoint_id(self) -> str:
                hook._remember("t", str(len(hook._waits["t"]) + 1), "other")  # private: as another thread does
                return "0"

        put: Any = SimpleNamespace(address=Address("t", "", "9"), parent=Parent(), source="loop")
        plan: Any = hook._close_over(saver.engine.session, put)  # private: its only caller stores a checkpoint
        assert list(plan) == []
        assert len(hook._waits["t"]) == 2  # private: none was forgotten
