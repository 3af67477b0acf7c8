"""Notes on a thread are durable before the act, and follow the thread."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from support.history.conversations import CONFIG, saver, talk
from support.places import Place
from support.process_children import exit_code, forked

from langgraph_keel import (
    InvalidConfig,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    SqliteSaver,
    open_saver,
)
from langgraph_keel.cli import app

__all__ = ["saver"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app([*words])
    return int(str(ended.value.code))


def test_a_decision_is_open_until_its_outcome_is_set(saver: KeelSaver) -> None:
    history = saver.history
    first = history.note("new", "pay the bill", because="it is due")  # before the thread has a checkpoint
    assert (first.checkpoint_id, first.is_open) == ("", True)
    talk(saver)
    done = history.note("t", "search first", outcome="found")
    found = history.note("t", "the table has 3 rows \u202e", "finding")
    assert done.checkpoint_id == saver.timeline("t")[-1].id
    assert history.notes() == [first, done, found]
    assert history.notes("t") == [done, found]
    assert history.notes(open=True) == [first]
    assert history.notes("t", open=True) == []
    ended = history.set_outcome(first.id[-8:], "paid")
    assert (ended.outcome, ended.because, ended.at) == ("paid", "it is due", first.at)
    assert history.set_outcome(first.id, "paid") == ended
    assert history.notes(open=True) == []
    with pytest.raises(InvalidInput, match="already has an outcome"):
        history.set_outcome(first.id, "refused")
    with pytest.raises(InvalidInput, match="only a decision"):
        history.set_outcome(found.id, "so what")
    with pytest.raises(InvalidInput, match="2 notes"):
        history.set_outcome(done.id[:8], "which?")
    assert history.notes("new") == [ended]


async def test_notes_with_the_asynchronous_face() -> None:
    with MemorySaver() as saver:
        made = await saver.history.anote("t", "a goal", "goal")
        assert await saver.history.anotes("t") == [made]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("t", ""), {}),
        (("t", "  "), {}),
        (("t", "x" * 10_001), {}),
        (("t", "\ud800"), {}),
        (("t", None), {}),
        (("t", "a", "wish"), {}),
        (("t", "a", ["goal"]), {}),
        (("t", "a", "goal"), {"outcome": "done"}),
        (("t", "a"), {"outcome": ""}),
        (("t", "a"), {"because": 3}),
    ],
)
def test_invalid_notes_are_refused(words: Any, options: Any) -> None:
    with MemorySaver() as saver:
        with pytest.raises(InvalidInput, match="note"):
            saver.history.note(*words, **options)
        assert saver.history.notes() == []


def test_unknown_note_ids_are_refused() -> None:
    with MemorySaver() as saver:
        with pytest.raises(InvalidConfig):
            saver.history.note("", "text")
        with pytest.raises(NotFound, match="keel notes"):
            saver.history.set_outcome("abcdef", "done")
        with pytest.raises(InvalidInput, match="6 characters"):
            saver.history.set_outcome("abc", "done")


def test_notes_follow_their_thread(saver: KeelSaver, tmp_path: Path) -> None:
    talk(saver)
    mine = saver.history.note("t", "mine", because="of it")
    other = saver.history.note("other", "other")
    saver.copy_thread("t", "copy")
    saver.fork(CONFIG, "fork")
    assert saver.history.notes("copy") == saver.history.notes("fork") == []
    saver.prune(["t"])
    assert saver.history.notes("t") == [mine]
    with SqliteSaver(tmp_path / "target.db") as target:
        assert saver.moving.copy_to(target, ["t"]).is_done
        assert target.history.notes() == [mine]
    saver.delete_thread("t")
    assert saver.history.notes() == [other]


def test_notes_are_erased_with_the_person(saver: KeelSaver) -> None:
    graph = talk(saver, 1)
    config: Any = {"configurable": {"thread_id": "hers", "user_id": "ada"}}
    graph.invoke({"messages": []}, config)
    saver.history.note("hers", "she lives in Ulm")
    kept = saver.history.note("t", "kept")
    assert saver.retention.erase(user_id="ada").complete
    assert saver.history.notes() == [kept]


def test_notes_are_encrypted_and_isolated_by_tenant(tmp_path: Path) -> None:
    path = tmp_path / "secret.db"
    with SqliteSaver(path, encryption=Keyring(LocalKey("k", bytes(range(32))))) as saver:
        acme = saver.for_tenant("acme")
        made = acme.history.note("t", "the locker opens with 3037", because="she said so")
        acme.history.set_outcome(made.id, "it does open")
        assert [note.outcome for note in acme.history.notes("t")] == ["it does open"]
        assert saver.history.notes() == saver.for_tenant("umbrella").history.notes() == []
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"locker" not in stored
    assert b"does open" not in stored


def test_only_one_of_several_concurrent_outcomes_is_stored(place: Place) -> None:
    with place.open() as saver:
        made = saver.history.note("t", "pay")
        start, told = threading.Barrier(4), list[str]()

        def tell(outcome: str) -> None:
            with place.open() as own:
                start.wait()
                try:
                    own.history.set_outcome(made.id, outcome)
                except InvalidInput:
                    return
                told.append(outcome)

        threads = [threading.Thread(target=tell, args=(f"outcome {n}",)) for n in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [note.outcome for note in saver.history.notes()] == told
        assert len(told) == 1


def test_keel_notes_shows_a_decision_whose_process_was_killed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def decide_and_die() -> None:
        saver = open_saver(place.url)
        saver.history.note("t", "pay 300 to Ann", because="she was approved")
        os.kill(os.getpid(), signal.SIGKILL)

    with open_saver(place.url) as saver:  # creates the tables
        saver.delete_thread("t")
    assert exit_code(forked(decide_and_die)) == -signal.SIGKILL
    url = place.url
    assert run("notes", "--open", "--url", url) == 0
    shown = capsys.readouterr().out
    assert "pay 300 to Ann  no outcome" in shown
    assert "because: she was approved" in shown
    assert run("notes", "--open", "--json", "--url", url) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]
    assert run("outcome", note["id"][:10], "not paid", "--url", url) == 0
    capsys.readouterr()
    assert run("notes", "t", "--open", "--url", url) == 0
    assert capsys.readouterr().out == "Every decision has an outcome.\n"
    with open_saver(url) as saver:
        saver.delete_thread("t")  # other tests use the same server
        assert saver.history.notes("t") == []


def test_keel_note(asked_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = asked_url
    words = ("note", "trip", "use \x1b[31mthe mirror", "--because", "503", "--outcome", "it works", "--url", url)
    assert run(*words, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["kind"], made["because"], made["outcome"]) == ("decision", "503", "it works")
    assert run("notes", "trip", "--url", url) == 0
    shown = capsys.readouterr().out
    assert "use \\x1b[31mthe mirror" in shown
    assert "outcome: it works" in shown
    assert run("note", "trip", "what", "--kind", "wish", "--url", url) != 0
    assert "decision, finding, goal, next" in capsys.readouterr().err
    assert run("note", "tirp", "what", "--url", url) == 1
    assert "there is no thread 'tirp'" in capsys.readouterr().err
