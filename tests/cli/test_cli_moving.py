"""`keel import`, and `keel export --to-langgraph`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_threads import keel, keel_json
from support.moving.old_graphs import SCENES
from support.moving.old_stores import OldStore, old_store

from langgraph_keel import SqliteSaver, open_saver
from langgraph_keel.cli import output as bars


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldStore]:
    """Three threads of LangGraph's own saver; one waits for a person."""
    with old_store("sqlite", tmp_path) as store:
        with store.open() as saver:
            for name in ("chat", "asks", "forks"):
                SCENES[name][0](saver, name)
        yield store


def test_threads_are_imported_and_exported_again(old: OldStore, tmp_path: Path) -> None:
    new = ("--url", f"sqlite:///{tmp_path / 'new.db'}")
    assert "3 threads would be moved (23 checkpoints)" in keel("import", old.path, *new, "--dry-run").stdout
    assert not (tmp_path / "new.db").exists()
    assert "1 thread moved (2 checkpoints)" in keel("import", old.path, "--thread", "asks", *new).stdout
    told = keel("import", old.url, *new).stdout
    assert "2 threads moved (21 checkpoints)" in told
    assert "1 thread there already" in told
    assert keel_json("import", old.url, *new)["threads"]["present"] == 3
    back = tmp_path / "back.db"
    assert "3 threads written (23 checkpoints)" in keel("export", "--to-langgraph", str(back), *new).stdout
    assert keel_json("export", "--to-langgraph", str(back), *new)["threads"] == {
        "exported": 0,
        "present": 3,
        "failed": 0,
    }
    with OldStore("sqlite", f"sqlite:///{back}").open() as other, open_saver(new[1]) as saver:
        for name in ("chat", "asks", "forks"):
            assert SCENES[name][1](other, name) == SCENES[name][1](saver, name)


def test_threads_that_fail_to_move_are_reported_with_exit_status_1(old: OldStore, tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "new.db") as saver:
        SCENES["chat"][0](saver, "chat")
    new = ("--url", f"sqlite:///{tmp_path / 'new.db'}")
    told = keel("import", old.path, *new, status=1).stdout
    assert "2 threads moved" in told
    assert "! chat" in told
    assert [*keel_json("import", old.path, *new, status=1)["failed"]] == ["chat"]
    assert keel_json("export", "--to-langgraph", old.path, *new, status=1)["threads"]["failed"] == 1


def test_import_for_a_tenant(old: OldStore, tmp_path: Path) -> None:
    new = ("--url", f"sqlite:///{tmp_path / 'new.db'}")
    keel("--tenant", "acme", "import", old.path, *new)
    with open_saver(new[1]) as saver:
        assert list(saver.threads()) == []
        assert {info.thread_id for info in saver.for_tenant("acme").threads()} == {"chat", "asks", "forks"}


def test_invalid_sources_and_options_are_refused(old: OldStore, tmp_path: Path) -> None:
    new = ("--url", f"sqlite:///{tmp_path / 'new.db'}")
    assert "no file" in keel("import", "nowhere.db", *new, status=1).stderr
    assert keel_json("import", "mysql://ada:s3cret@host/db", *new, status=2)["error"]["code"] == "invalid_input"
    assert "s3cret" not in keel("import", "mysql://ada:s3cret@host/db", *new, status=2).stderr
    keel("import", old.path, *new)
    told = keel("export", "--to-langgraph", "x.db", "--label", "good", *new, status=2).stderr
    assert "--to-langgraph writes whole threads" in told


def test_the_bar_shows_speed_and_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bars, "PATIENCE", -1)
    with bars.bar("Moving threads", speed=True) as tell:
        for number in range(1, 9):
            tell(number, 10)
    err = capfd.readouterr().err
    assert "8/10" in err
    assert "/s" in err
    assert "left" in err
