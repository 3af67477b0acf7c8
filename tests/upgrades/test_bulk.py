"""`keel upgrade`: all threads, after interruptions, while both versions run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from support.checkpoints import put
from support.places import Place, file_place
from support.tiers import sized
from support.upgrades import apps

from langgraph_keel import CheckpointConflict, MemorySaver, NewerState, UpgradeFailed, upgrade
from langgraph_keel.cli import app
from langgraph_keel.engine.engine import with_engine
from langgraph_keel.upgrades.bulk import UPGRADED, upgrade_threads

THREADS = int(os.environ.get("KEEL_UPGRADE_THREADS") or sized(14, 14, 500))
KILLS = sized(2, 2, 12)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(list(words))
    return int(str(ended.value.code or 0))


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("keel_test_app")
    vars(module).update(graph=apps.build_2(None), first=apps.to_2, second=apps.inner_to_2)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:graph"


def ids_of(saver: Any) -> Iterator[str]:
    return (info.thread_id for info in saver.threads())


def heads(place: Place) -> list[Any]:
    with place.open(read_only=True) as saver:
        return sorted(str((info.thread_id, info.latest)) for info in saver.threads())


@pytest.mark.parametrize("place", ["sqlite", "files", "postgres", "redis"], indirect=True)
def test_all_finished_threads_are_upgraded(place: Place) -> None:
    with place.open() as saver:
        for number in range(len(apps.KINDS)):
            apps.write_1(saver, number)
    with place.open(upgrades=apps.UPGRADES) as saver:
        for dry_run, told in ((True, "upgraded"), (False, "upgraded"), (False, "present")):
            assert upgrade_threads(saver, ids_of(saver), dry_run=dry_run).counts == {told: 1, "waits": 6}
        carried = saver.raw.get_tuple(apps.thread_of(0))
        assert carried is not None
        assert (carried.metadata["keel_upgraded"], carried.checkpoint["channel_values"]["euros"]) == ([1, 2], 12.5)  # type: ignore[typeddict-item]
        graph = apps.build_2(saver)
        for number in range(len(apps.KINDS)):
            apps.check_seen(graph, number)
            apps.check_end(apps.go_on(graph, number), number)
        assert upgrade_threads(saver, ids_of(saver)).counts == {"present": 7}
        assert {info.status for info in saver.threads()} == {"done"}


def test_the_upgrade_command_reports_its_counts(tmp_path: Path, graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        for number in range(len(apps.KINDS)):
            apps.write_1(saver, number)
    before = heads(place)
    assert run("upgrade", graph, "--url", place.url, "--dry-run") == 0
    assert "1 thread would be upgraded.\n6 have steps or questions left" in capsys.readouterr().out
    assert heads(place) == before
    assert run("upgrade", graph, "--url", place.url, "--json") == 0
    counts = {"upgraded": 1, "present": 0, "waits": 6, "busy": 0, "failed": 0}
    assert json.loads(capsys.readouterr().out) == {"counts": counts, "failed": {}, "done": True}
    assert len(set(heads(place)) - set(before)) == 1
    with place.open() as saver:  # no node ran
        assert saver.timeline("t0")[-1].nodes == ()
        assert "upgraded 1 → 2" in str(saver.timeline("t0"))


def test_the_upgrade_command_requires_upgrades(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, module = file_place(tmp_path), ModuleType("keel_test_app")
    with place.open() as saver:
        apps.write_1(saver, 0)
    vars(module).update(graph=apps.build_2(None))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert run("upgrade", "keel_test_app:graph", "--url", place.url) == 2
    assert "neither the graph's saver nor the module keel_test_app has any" in capsys.readouterr().err
    for named in ("support.upgrades.apps", "support.upgrades.apps:UPGRADES", "support.upgrades.apps:to_2"):
        assert run("upgrade", "keel_test_app:graph", "--url", place.url, "--upgrades", named, "--dry-run") == 0
        assert "1 thread would be upgraded." in capsys.readouterr().out


def test_a_thread_that_cannot_be_upgraded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, module = file_place(tmp_path), ModuleType("keel_test_app")
    with place.open() as saver:
        apps.write_1(saver, 0)
        apps.write_1(saver, 7)
    one = upgrade(1, 2, lambda state: state.thread_id == "t7" and state.refuse("ask the accountant"))
    vars(module).update(graph=apps.build_2(None), one=one)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert run("upgrade", "keel_test_app:graph", "--url", place.url) == 1
    printed = capsys.readouterr().out
    assert "1 thread upgraded.\n1 cannot be upgraded." in printed
    assert "t7  thread 't7'" in printed.replace("! ", "")
    assert "ask the accountant" in printed


KILLED = """
import json, os, random, signal, sys, threading, time, support.upgrades.apps as apps
from langgraph_keel import open_saver
from langgraph_keel.upgrades.bulk import upgrade_threads

after = int(sys.argv[3])

def tell(done, total):
    if done == after:
        threading.Timer(random.random() / 50, os.kill, (os.getpid(), signal.SIGKILL)).start()
    elif done > after:
        time.sleep(60)  # the kill comes late

with open_saver(sys.argv[1], upgrades=apps.UPGRADES, **json.loads(sys.argv[2])) as saver:
    ids = (info.thread_id for info in saver.threads())
    report = upgrade_threads(saver, ids, on_progress=tell)
    print(json.dumps(report.counts), flush=True)
"""


def upgrade_and_kill(place: Place, after: int) -> dict[str, int] | None:
    """Upgrade in a process that dies after `after` threads, or return its counts."""
    words = [sys.executable, "-c", KILLED, place.url, json.dumps(dict(place.options)), str(after)]
    child = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert child.returncode in (0, -signal.SIGKILL)
    return dict(json.loads(child.stdout)) if child.stdout else None


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("place", ["sqlite", "files", "postgres", "redis"], indirect=True)
def test_a_repeatedly_killed_upgrade_is_resumed(place: Place) -> None:
    """Each process dies while it upgrades a different thread; the last one completes."""
    with place.open() as saver:
        apps.write_all_1(saver, range(THREADS))
    chance = Random(THREADS)
    for _ in range(KILLS):
        assert upgrade_and_kill(place, chance.randrange(1, THREADS)) is None
    counts = upgrade_and_kill(place, THREADS + 1)
    done = -(-THREADS // len(apps.KINDS))
    assert counts is not None
    assert counts.keys() <= {"upgraded", "present", "waits"}
    assert counts["present"] > 0
    assert (counts.get("upgraded", 0) + counts["present"], counts["waits"]) == (done, THREADS - done)
    with place.open(upgrades=apps.UPGRADES) as saver:
        graph = apps.build_2(saver)
        for number in range(THREADS):
            apps.check_seen(graph, number)
            apps.check_end(apps.go_on(graph, number), number)
        for number in range(0, THREADS, len(apps.KINDS)):  # upgraded once, not at each attempt
            carried = [each for each in saver.list(apps.thread_of(number)) if UPGRADED in each.metadata]
            assert len(carried) == 1


def test_an_interrupted_upgrade_in_memory_is_resumed() -> None:
    saver, number = MemorySaver(upgrades=apps.UPGRADES), 2 * len(apps.KINDS)
    former = with_engine(
        saver, replace(saver.engine, session=replace(saver.engine.session, hooks=MemorySaver().engine.session.hooks))
    )
    apps.write_all_1(former, range(number))
    for after in range(1, number + 1):
        with pytest.raises(KeyboardInterrupt):
            upgrade_threads(saver, ids_of(saver), on_progress=interrupt_after(after))
    assert upgrade_threads(saver, ids_of(saver)).counts == {"present": 2, "waits": number - 2}
    graph = apps.build_2(saver)
    for each in range(number):
        apps.check_seen(graph, each)
        apps.check_end(apps.go_on(graph, each), each)


def interrupt_after(after: int) -> Callable[[int, int | None], None]:
    def tell(done: int, total: int | None) -> None:
        if done == after:
            raise KeyboardInterrupt

    return tell


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_threads(tmp_path: Path) -> None:
    """Memory holds only the outcome of each thread, so the peak hardly grows."""
    peaks = []
    for number in (100, 400):
        place = file_place(tmp_path / str(number))
        Path(tmp_path / str(number)).mkdir()
        with place.open() as saver:
            for each in range(number):
                put(saver, f"t{each}", "x" * 5_000)
        with place.open(upgrades=[upgrade(1, 2, lambda state: None)]) as saver:
            tracemalloc.start()
            assert upgrade_threads(saver, ids_of(saver)).counts == {"upgraded": number}
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200 * 5_000, peaks


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres", "redis"], indirect=True)
def test_both_versions_run_during_an_upgrade(place: Place) -> None:
    """Version 1 continues its threads until version 2 has upgraded them.

    After that, its only error is `NewerState`.
    """
    number, told, wrong = sized(4, 4, 60), list[str](), list[BaseException]()

    def run_1(saver: Any) -> None:
        graph = apps.build_1(saver)
        for _ in range(3):
            for each in range(number):
                try:
                    graph.invoke({"kind": "done", "name": "Ada Lovelace", "log": ["again"]}, thread(each))
                except NewerState:
                    told.append("newer")
                except CheckpointConflict:
                    told.append("conflict")
                except BaseException as error:
                    wrong.append(error)

    def run_2(saver: Any) -> None:
        graph = apps.build_2(saver)
        for _ in range(3):
            for each in range(0, number, 2):
                try:
                    graph.invoke({"kind": "done", "first": "Ada", "last": "Lovelace", "currency": "EUR"}, thread(each))
                except CheckpointConflict:
                    told.append("conflict")
                except BaseException as error:
                    wrong.append(error)

    def thread(each: int) -> Any:
        return {"configurable": {"thread_id": f"both-{each}"}}

    with place.open() as first, place.open(upgrades=apps.UPGRADES) as second:
        for each in range(number):
            apps.build_1(first).invoke({"kind": "done", "name": "Ada Lovelace", "log": ["in"]}, thread(each))
        runs = [threading.Thread(target=run_1, args=(first,)), threading.Thread(target=run_2, args=(second,))]
        for each_run in runs:
            each_run.start()
        upgrade_threads(second, ids_of(second))
        for each_run in runs:
            each_run.join()
        assert wrong == []
        assert "newer" in told
        graph = apps.build_2(second)
        for each in range(number):
            values = graph.get_state(thread(each)).values
            assert (values["first"], values["last"], values["euros"]) == ("Ada", "Lovelace", 12.5)
            assert "name" not in values


def test_a_missing_upgrade_is_reported_for_its_thread(tmp_path: Path) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        apps.write_1(saver, 0)
    with place.open(upgrades=[upgrade(3, 4, lambda state: None)]) as saver:
        report = upgrade_threads(saver, ids_of(saver))
        assert report.counts == {"failed": 1}
        assert "no upgrade starts from version 1" in report.failed["t0"]
        with pytest.raises(UpgradeFailed):
            saver.get_tuple(apps.thread_of(0))
