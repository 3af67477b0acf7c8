"""`keel check` and `keel repair`, on damaged stores of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.backends.files_branches import branch, everything, opened, said, turn
from support.cli_threads import RAW, keel, keel_json
from support.repositories import Repository, isolate

EVIL = "pay \x1b[31m[red]\u202e1"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed store with two threads of two turns each."""
    isolate(monkeypatch)
    repository = Repository.made(tmp_path)
    with opened(tmp_path / "store") as saver:
        for thread in ("a", EVIL):
            turn(saver, thread, "one")
            turn(saver, thread, "two")
    repository.commit()
    return tmp_path / "store"


def url(store: Path) -> str:
    return f"files:{store}"


def log_of(store: Path, thread: str) -> Path:
    (log,) = (path for path in store.glob("threads/*/log.jsonl") if said_in(path) == thread)
    return log


def said_in(log: Path) -> str:
    import orjson

    return str(orjson.loads(log.read_bytes().partition(b"\n")[0])["id"])


def damage(store: Path, thread: str) -> Path:
    """Change a word in a log's last checkpoint, wherever its tasks' writes are."""
    log = log_of(store, thread)
    lines = log.read_bytes().split(b"\n")
    last = max(number for number, line in enumerate(lines) if line.startswith(b'{"k":"ckpt"'))
    lines[last] = lines[last].replace(b"agent", b"agony")
    log.write_bytes(b"\n".join(lines))
    return log


def findings(store: Path, status: int = 1) -> list[dict[str, Any]]:
    found: dict[str, Any] = keel_json("check", "--url", url(store), status=status)
    assert found["clean"] is (status == 0)
    return list(found["findings"])


def test_a_sound_store_is_clean(store: Path) -> None:
    assert findings(store, status=0) == []
    assert keel("check", "--url", url(store)).stdout == "OK: 2 threads, 12 checkpoints read, no damage.\n"
    assert keel_json("repair", "--url", url(store), "--yes") == {"findings": [], "done": True}


@pytest.mark.parametrize(("said", "status"), [("n\n", 1), ("y\n", 0)], ids=["no", "yes"])
def test_repair_asks_in_a_terminal(
    store: Path, typed: Any, capfd: pytest.CaptureFixture[str], said: str, status: int
) -> None:
    """Like every command that has --yes."""
    broken = damage(store, "a").read_bytes()
    assert typed(said, "repair", "--url", url(store)) == status
    out, err = capfd.readouterr()
    assert "--yes" not in out
    assert "[y/N]" in err
    assert (log_of(store, "a").read_bytes() == broken) is (status == 1)


def test_damage_is_found_and_repaired_only_on_request(store: Path) -> None:
    log = damage(store, "a")
    broken = log.read_bytes()
    (found,) = findings(store)
    assert (found["kind"], found["thread_id"], found["path"]) == ("repairable", "a", str(log))
    assert broken[found["offset"] :].startswith(b'{"k":')
    shown = keel("check", "--url", url(store), status=1).stdout
    assert f"byte {found['offset']:,}" in " ".join(shown.split())
    assert "--yes" in keel("repair", "--url", url(store)).stdout
    assert log.read_bytes() == broken
    (repaired,) = keel_json("repair", "--url", url(store), "--yes")["findings"]
    assert repaired["path"] == str(log)
    assert broken in [path.read_bytes() for path in store.rglob("*") if path.is_file() and path != log]
    with opened(store) as saver:
        assert said(saver, "a")[:1] == ["one"]
        turn(saver, "a", "on")
        assert said(saver, "a")[-1] == "on"
    assert all(each["kind"] == "harmless" for each in findings(store, status=0))


def test_a_torn_tail_is_harmless(store: Path) -> None:
    with log_of(store, "a").open("ab") as file:
        file.write(b'{"k":"item","ch":"mess')
    (found,) = findings(store, status=0)
    assert found["kind"] == "harmless"
    assert "interrupted" in keel("check", "--url", url(store)).stdout


def test_a_missing_value_is_reported_as_lost(store: Path) -> None:
    with opened(store) as saver:
        turn(saver, "a", "x" * 100_000)
    for blob in store.glob("threads/*/blobs/*.json"):
        blob.unlink()
    assert {found["kind"] for found in findings(store)} == {"lost"}


def test_a_git_conflict_is_reported_with_commands_to_resolve_it(store: Path) -> None:
    repository = Repository(store.parent)
    branch(repository, store, "theirs", "a", "three", "four")
    with opened(store) as saver:
        turn(saver, "a", "drei")
        ours = everything(saver)
    repository.commit()
    repository("merge", "theirs", fails=True)
    (found,) = findings(store)
    assert found["kind"] == "decide"
    assert "after 6 checkpoints" in found["message"]
    assert "ours has added 3 more" in found["message"]
    assert "theirs has added 6 more" in found["message"]
    assert "git checkout --theirs -- threads/a/log.jsonl" in found["advice"]
    shown = " ".join(keel("check", "--url", url(store), status=1).stdout.split())
    assert "theirs has added 6 more" in shown
    assert "git checkout --ours" in shown
    with opened(store) as saver:
        assert everything(saver) == ours


def test_conflict_markers_are_reported(store: Path) -> None:
    log = log_of(store, "a")
    log.write_bytes(log.read_bytes() + b"<<<<<<< HEAD\n=======\n>>>>>>> theirs\n")
    (found,) = findings(store)
    assert "conflict" in found["message"]


def test_control_characters_are_escaped(store: Path) -> None:
    damage(store, EVIL)
    with log_of(store, "a").open("ab") as file:
        file.write(b"\x1b[2J\x00")
    for command in ("check", "repair"):
        result = keel(command, "--url", url(store), status=1 if command == "check" else 0)
        assert not RAW.search(result.stdout)
    assert EVIL in [found["thread_id"] for found in findings(store)]


@pytest.mark.parametrize("other", ["sqlite:///keel.db", "memory:"])
def test_only_file_stores_can_be_repaired(other: str) -> None:
    error = keel_json("repair", "--url", other, status=2)["error"]
    assert error["code"] == "invalid_input"


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_missing_store_is_an_error_and_is_not_created(command: str, tmp_path: Path) -> None:
    assert "error" in keel_json(
        command, "--url", f"files:{tmp_path / 'none'}", *["--yes"] * (command == "repair"), status=1
    )
    assert not (tmp_path / "none").exists()
    (tmp_path / "notes.txt").write_text("mine")
    error = keel_json(command, "--url", f"files:{tmp_path}", status=1)["error"]
    assert error["code"] in ("not_found", "not_a_keel_store")
