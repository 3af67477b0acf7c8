"""`keel upgrade`: all threads at once, cut off and begun again, while versions 1 and 2 run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import upgrade_apps as apps
from places import Place, file_place
from tiers import sized

from langgraph_keel import CheckpointConflict, NewerState, UpgradeFailed, upgrade
from langgraph_keel.cli import app
from langgraph_keel.upgrades.bulk import upgrade_threads

THREADS = sized(14, 14, 5_000)


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
def test_all_threads_are_carried_over(place: Place) -> None:
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


def test_the_command_says_what_it_has_done(tmp_path: Path, graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        for number in range(len(apps.KINDS)):
            apps.write_1(saver, number)
    before = heads(place)
    assert run("upgrade", graph, "--url", place.url, "--dry-run") == 0
    assert "1 thread would be upgraded.\n6 wait for something that is due" in capsys.readouterr().out
    assert heads(place) == before
    assert run("upgrade", graph, "--url", place.url, "--json") == 0
    counts = {"upgraded": 1, "present": 0, "waits": 6, "busy": 0, "failed": 0}
    assert json.loads(capsys.readouterr().out) == {"counts": counts, "failed": {}, "done": True}
    assert len(set(heads(place)) - set(before)) == 1


def test_what_cannot_be_upgraded_is_named(
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
import sys, upgrade_apps as apps
from langgraph_keel import open_saver
from langgraph_keel.upgrades.bulk import upgrade_threads
with open_saver(sys.argv[1], upgrades=apps.UPGRADES) as saver:
    ids = (info.thread_id for info in saver.threads())
    upgrade_threads(saver, ids, on_progress=lambda done, total: print(done, flush=True))
"""


@pytest.mark.slow
def test_what_was_killed_half_way_is_resumed(tmp_path: Path) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        for number in range(THREADS):
            apps.write_1(saver, number)
    child = subprocess.Popen([sys.executable, "-c", KILLED, place.url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= THREADS // 2:
            os.kill(child.pid, signal.SIGKILL)
            break
    child.wait()
    child.stdout.close()
    with place.open(upgrades=apps.UPGRADES) as saver:
        counts = upgrade_threads(saver, ids_of(saver)).counts
        done = -(-THREADS // len(apps.KINDS))
        assert counts["upgraded"] + counts["present"] == done
        assert counts["waits"] == THREADS - done
        assert counts["present"] > 0
        graph = apps.build_2(saver)
        for number in range(THREADS):
            apps.check_seen(graph, number)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite", "postgres", "redis"], indirect=True)
def test_both_versions_run_while_threads_are_carried_over(place: Place) -> None:
    """Version 1 goes on with its threads until version 2 has them, and is told by name then; nothing else fails."""
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


def test_a_store_that_refuses_upgrades_says_so(tmp_path: Path) -> None:
    place = file_place(tmp_path)
    with place.open() as saver:
        apps.write_1(saver, 0)
    with place.open(upgrades=[upgrade(3, 4, lambda state: None)]) as saver:
        report = upgrade_threads(saver, ids_of(saver))
        assert report.counts == {"failed": 1}
        assert "no upgrade begins from version 1" in report.failed["t0"]
        with pytest.raises(UpgradeFailed):
            saver.get_tuple(apps.thread_of(0))
