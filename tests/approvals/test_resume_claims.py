"""The claim of a thread by the run that resumes it: winner, duration, cost."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from langgraph.types import interrupt
from support.approvals.resuming import ANSWER, CONFIG, Held, State, asked, book, claim_of, graph_of, runs_of, with_runs
from support.places import Place
from support.process_children import exit_code, forked
from support.races import context, received

from langgraph_keel import KeelSaver
from langgraph_keel._langgraph import CONFIG_KEY_RUNTIME
from langgraph_keel.engine.leases import Pause, this_holder
from langgraph_keel.engine.runs import begin_run, end_run
from langgraph_keel.errors import ThreadTaken
from langgraph_keel.runs import claims
from langgraph_keel.runs import hook as claims_hook


def plant(saver: KeelSaver, holder: str, until: int) -> None:
    """Plant a claim of the thread by another process."""
    record = claims.ClaimRecord(holder, "another run", until, "2026-01-01T00:00:00+00:00")
    engine = saver.engine
    engine.run(claims.take(engine.session, claims.Claim("t", "f" * 32, record), lambda *_: False))


def now() -> int:
    return time.time_ns() // 1_000_000


# -- who has it --------------------------------------------------------------------------------------------------------


def test_a_claim_of_another_machine_holds_until_its_lease_expires(saver: KeelSaver) -> None:
    graph, seconds = asked(saver, book), [0.0]
    runs_of(saver).timer = lambda: seconds[0]
    plant(saver, "elsewhere/boot.1/17/4711", until=now() + 20_000)
    for seconds[0] in (0.0, 29.9):
        with pytest.raises(ThreadTaken, match="process 17 on elsewhere") as caught:
            graph.invoke(ANSWER, CONFIG)
    assert (caught.value.thread_id, caught.value.since) == ("t", "2026-01-01T00:00:00+00:00")
    seconds[0] = 30.0
    assert graph.invoke(ANSWER, CONFIG) == {"answer": "yes"}


def test_a_claim_of_this_machine_holds_while_its_process_lives(place: Place) -> None:
    """Its number alone does not identify a process, as a later one may get it."""
    with place.open() as saver:
        graph = asked(saver, book)
        plant(saver, this_holder(), until=now() + 20_000)
        with pytest.raises(ThreadTaken):
            graph.invoke(ANSWER, CONFIG)
    with place.open() as saver:
        saver.delete_thread("t")
        graph = asked(saver, book)
        plant(saver, this_holder() + "1", until=now() + 20_000)
        assert graph.invoke(ANSWER, CONFIG) == {"answer": "yes"}


def pay(state: State) -> State:
    return {"answer": interrupt("pay?")}


def pay_for_ever(place: Place, pipe: int) -> None:
    def pay(state: State) -> State:
        interrupt("pay?")
        os.write(pipe, b"in")
        time.sleep(60)
        return {}

    graph_of(place.open(), pay).invoke(ANSWER, CONFIG)


def test_a_killed_process_loses_its_claim(place: Place) -> None:
    with place.open() as saver:
        held = Held()
        graph = asked(saver, held.pay)
    reading, writing = os.pipe()
    child = forked(pay_for_ever, place, writing)
    assert os.read(reading, 2) == b"in"
    with place.open() as saver:
        graph = graph_of(saver, held.pay)
        with pytest.raises(ThreadTaken, match=f"process {child} on"):
            graph.invoke(ANSWER, CONFIG)
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        held.may_go_on.set()
        since = time.monotonic()
        assert graph.invoke(ANSWER, CONFIG) == {"answer": "yes"}
        assert time.monotonic() - since < 10
        assert claim_of(saver) is None
    os.close(reading)
    os.close(writing)


def is_refused(place: Place) -> None:
    with place.open() as saver, pytest.raises(ThreadTaken):
        graph_of(saver, book).invoke(ANSWER, CONFIG)


def test_a_forked_child_does_not_inherit_the_claim(place: Place) -> None:
    with place.open() as saver:
        held = Held()
        graph = asked(saver, held.pay)
        thread = held.resumed(graph)
        assert exit_code(forked(is_refused, place)) == 0
        held.may_go_on.set()
        thread.join()
        assert graph.get_state(CONFIG).values == {"answer": "yes"}


def test_a_task_waits_while_another_task_of_its_run_claims(saver: KeelSaver) -> None:
    """It waits until the questions of a dead run are closed.

    A question asked earlier would be closed with them.
    """
    config: Any = {"configurable": {CONFIG_KEY_RUNTIME: SimpleNamespace(control=object())}}
    session = saver.engine.session
    plant(saver, this_holder() + "1", until=now() + 20_000)
    run = begin_run(UUID(int=1), "t", session.store, config, False)
    one, other = (runs_of(saver).claim_to_ask(session, "t", config) for _ in range(2))
    request = next(one)
    assert isinstance(next(other), Pause)
    with suppress(StopIteration):
        while True:
            request = one.send(session.driver.send(request))
            assert isinstance(next(other), Pause)
    assert list(other) == []
    claim = claim_of(saver)
    assert claim
    assert claim.record.run_id == str(UUID(int=1))
    claims_hook.held_threads.pop(run).release()
    end_run(run)


def test_a_claim_excludes_another_saver_of_the_same_store(place: Place) -> None:
    with place.open() as one, place.open() as two:
        held = Held()
        thread = held.resumed(asked(one, held.pay))
        other = graph_of(two, held.pay)
        with pytest.raises(ThreadTaken):
            other.invoke(ANSWER, CONFIG)
        held.may_go_on.set()
        thread.join()
        assert other.invoke(None, CONFIG) == {"answer": "yes"}
    assert held.ran == ["yes"]


def test_a_claim_does_not_block_other_threads(saver: KeelSaver) -> None:
    held, other = Held(), {"configurable": {"thread_id": "other"}}
    thread = held.resumed(asked(saver, held.pay))
    assert asked(saver, book, config=other).invoke(ANSWER, other) == {"answer": "yes"}
    held.may_go_on.set()
    thread.join()


def test_a_refused_run_with_the_same_run_id_does_not_release_the_claim(saver: KeelSaver) -> None:
    """The end of a run is found by its id.

    The end of the refused run must not release the other run's claim.
    """
    held, config = Held(), CONFIG | {"run_id": UUID(int=7)}
    graph = asked(saver, held.pay)
    thread = held.resumed(graph, config)
    for _ in range(3):
        with pytest.raises(ThreadTaken):
            graph.invoke(ANSWER, config)
    held.may_go_on.set()
    thread.join()
    assert held.ran == ["yes"]
    assert graph.invoke(None, config) == {"answer": "yes"}


# -- how long it stands ------------------------------------------------------------------------------------------------


def with_lease(saver: KeelSaver, milliseconds: int) -> KeelSaver:
    return with_runs(saver, lease=milliseconds)


def test_a_claim_is_renewed_while_a_node_runs(saver: KeelSaver) -> None:
    held = Held()
    thread = held.resumed(asked(with_lease(saver, 3000), held.pay))
    first, ends = claim_of(saver), set[int]()
    assert first
    began = time.monotonic()
    while len(ends) < 3 and time.monotonic() - began < 20:  # once taken, and twice renewed
        time.sleep(0.05)
        claim = claim_of(saver)
        assert claim
        assert claim.token == first.token
        ends.add(claim.record.until)
    assert len(ends) == 3
    assert max(ends) - min(ends) > 1000
    held.may_go_on.set()
    thread.join()
    assert claim_of(saver) is None


def test_a_lost_claim_is_logged_and_not_released(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    thread = held.resumed(asked(with_lease(saver, 300), held.pay))
    mine = claim_of(saver)
    assert mine
    other = claims.Claim("t", "e" * 32, claims.ClaimRecord("elsewhere/boot.1/17/4711", "another", now() + 30_000, ""))
    saver.engine.run(claims.take(saver.engine.session, other, lambda *_: True))
    with caplog.at_level(logging.WARNING):
        began = time.monotonic()
        while "taken over by another process" not in caplog.text and time.monotonic() - began < 10:
            time.sleep(0.02)
    assert f"run {mine.record.run_id} has resumed thread 't', but its claim was taken over" in caplog.text
    held.may_go_on.set()
    thread.join()
    left = claim_of(saver)
    assert left
    assert left.token == other.token


# -- processes that race -----------------------------------------------------------------------------------------------

ROUNDS = 20


def thread_of(number: int) -> Any:
    return {"configurable": {"thread_id": f"round {number}"}}


def rival(place: Place, who: int, gate: Any, told: Any) -> None:
    """Answer each question concurrently with others; report whether the node ran here."""
    ran: list[int] = []

    def pay(state: State) -> State:
        ran.append(interrupt("pay?"))
        time.sleep(0.02)
        return {"answer": f"{who}"}

    with place.open() as saver:
        graph = graph_of(saver, pay)
        for number in range(ROUNDS):
            ran.clear()
            gate.wait(60)
            try:
                graph.invoke(ANSWER, thread_of(number))
            except ThreadTaken:
                told.put((number, who, len(ran), "refused"))
            else:
                told.put((number, who, len(ran), "done"))


def raced(place: Place) -> list[tuple[int, int, int, str]]:
    mp = context()
    gate, told = mp.Barrier(2), mp.Queue()
    rivals = [mp.Process(target=rival, args=(place, who, gate, told), daemon=True) for who in range(2)]
    for each in rivals:
        each.start()
    answers: Any = list(received(told, 2 * ROUNDS))
    for each in rivals:
        each.join(60)
    assert [each.exitcode for each in rivals] == [0, 0]
    told.close()
    return list(answers)


@pytest.mark.slow
def test_only_one_of_two_racing_processes_resumes(place: Place) -> None:
    with place.open() as saver:
        for number in range(ROUNDS):
            asked(saver, pay, config=thread_of(number))
        answers = raced(place)
        for number in range(ROUNDS):
            (who,) = [who for at, who, times, _ in answers if at == number and times]
            state = graph_of(saver, pay).get_state(thread_of(number))
            assert (state.values, state.next) == ({"answer": f"{who}"}, ())
    assert {times for _, _, times, how in answers if how == "refused"} == {0}
