"""`keel copy` and `keel stats`: output, exit status, and secrets not printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden import loaded
from langchain_core.tools import tool
from support.blobs.threads import messages_of, objects_in, put_images
from typer.testing import CliRunner

from langgraph_keel import Retention, SqliteSaver, ToolCache, open_saver
from langgraph_keel.cli import app
from langgraph_keel.keys.keyring import new_key
from langgraph_keel.testing.rig import at, checkpoint_of


@tool
def add(n: int) -> int:
    """Add one."""
    return n + 1


def keel(*words: str) -> Any:
    """Run a command; return its result whatever the exit status."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80", "NO_COLOR": "1"})


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    with SqliteSaver.from_conn_string(str(tmp_path / "a.db")) as saver:
        for name in ("ada", "bob"):
            saver.put(at(name), checkpoint_of("1", {"n": name}, channel_versions={"n": 1}), {}, {"n": 1})  # type: ignore[arg-type]
    return f"sqlite:///{tmp_path / 'a.db'}", f"files:{tmp_path / 'b'}"


def test_threads_are_copied_and_compared(urls: tuple[str, str]) -> None:
    dry = keel("copy", *urls, "--dry-run")
    assert "2 threads to copy" in dry.stdout
    assert dry.exit_code == 0
    assert not Path(urls[1].removeprefix("files:")).exists()
    assert "2 threads copied" in keel("copy", *urls).stdout
    assert "0 threads copied, 2 are up to date" in keel("copy", *urls).stdout
    with open_saver(urls[1]) as saver:
        saver.put(at("ada"), checkpoint_of("2", {}), {}, {})  # type: ignore[arg-type]
    found = keel("copy", *urls, "--verify")
    assert found.exit_code == 1
    assert "thread 'ada': the source has 1 checkpoint, the target 2" in found.stdout
    again = keel("copy", *urls, "--json")
    assert again.exit_code == 1
    assert list(json.loads(again.stdout)["exists"]) == ["ada"]
    assert keel("copy", *urls, "--thread", "bob").exit_code == 0


def test_verify_reports_that_shared_records_were_not_compared(urls: tuple[str, str]) -> None:
    with open_saver(urls[0]) as saver:
        ToolCache(saver).tool(add).invoke({"n": 1}, at("ada"))
    copied = keel("copy", *urls, "--with-shared")
    assert "without the secret" not in copied.stdout
    found = keel("copy", *urls, "--verify")
    assert (found.exit_code, "not compared" in found.stdout, "without the secret" in found.stdout) == (0, True, False)
    assert "not compared" not in keel("copy", *urls, "--verify", "--with-shared").stdout


def test_invalid_sources_and_options_are_refused(urls: tuple[str, str], tmp_path: Path) -> None:
    assert "the same store" in keel("copy", urls[0], urls[0]).stderr
    missing = keel("copy", f"sqlite:///{tmp_path / 'none.db'}", f"sqlite:///{tmp_path / 'new.db'}")
    assert missing.exit_code == 1
    assert "there is no Keel store" in missing.stderr
    assert not (tmp_path / "new.db").exists()
    assert keel("copy", *urls, "--thread", "none").exit_code == 1
    assert keel("copy", *urls, "--dry-run", "--verify").exit_code == 2


@pytest.mark.parametrize("url", ["postgresql://u:hunter2@localhost:1/x", "redis://:hunter2@localhost:1/0"])
def test_passwords_are_not_printed(urls: tuple[str, str], url: str) -> None:
    for words in ((url, urls[1]), (urls[0], url), (url, url)):
        for as_json in ((), ("--json",)):
            found = keel("copy", *words, *as_json)
            assert found.exit_code in (1, 2)
            assert "hunter2" not in found.output


def test_source_and_target_have_separate_keys(urls: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(new_key("2026"))
    (tmp_path / "keys").chmod(0o600)
    keys, plain = str(tmp_path / "keys"), f"sqlite:///{tmp_path / 'plain.db'}"
    assert keel("copy", *urls, "--target-keys", keys).exit_code == 0
    assert "encrypted" in keel("copy", urls[1], plain).stderr
    done = keel("copy", urls[1], plain, "--source-keys", keys, "--target-keys", "none")
    assert done.exit_code == 0, done.stderr
    assert "2 threads copied" in done.stdout


def test_source_and_target_have_separate_blobs(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with SqliteSaver(urls[0].removeprefix("sqlite:///"), blobs=f"file:{old}") as saver:
        put = put_images(saver, 2)
    third = f"sqlite:///{tmp_path / 'third.db'}"
    assert "--source-blobs" in " ".join(keel("copy", *urls).stderr.split())
    done = keel("copy", *urls, "--source-blobs", f"file:{old}", "--target-blobs", f"file:{new}")
    assert "3 threads copied" in done.stdout
    assert len(objects_in(new)) == len(objects_in(old)) == 4
    monkeypatch.setenv("KEEL_BLOBS", f"file:{old}")
    assert keel("copy", urls[1], third).exit_code == 1  # blobs are in a different directory
    assert keel("copy", urls[1], third, "--source-blobs", f"file:{new}", "--target-blobs", "none").exit_code == 0
    assert len(objects_in(old)) == 4
    assert keel("copy", *urls, "--verify", "--target-blobs", f"file:{new}").exit_code == 0
    with SqliteSaver(tmp_path / "third.db") as saver:
        assert messages_of(saver) == put
    assert keel("copy", *urls, "--source-blobs", "nowhere").exit_code == 2


def test_a_thread_is_copied_to_a_file_and_back(urls: tuple[str, str], tmp_path: Path) -> None:
    one, new = f"sqlite:///{tmp_path / 'one.db'}", f"sqlite:///{tmp_path / 'new.db'}"
    with open_saver(urls[0]) as saver:
        saver.retention.set_policy(Retention(last=9))
    saved = keel("copy", urls[0], one, "--thread", "ada")
    assert "1 thread copied" in saved.stdout
    assert "not copied, because threads share it: retention" in saved.stdout
    assert keel("copy", one, new, "--thread", "ada").exit_code == 0
    with open_saver(new) as saver:
        assert [info.thread_id for info in saver.threads()] == ["ada"]
        assert saver.retention.policies() == ()
    assert keel("copy", urls[0], new, "--with-shared").exit_code == 0
    with open_saver(new) as saver:
        assert saver.retention.policies() == (Retention(last=9),)


def test_stats_reports_bytes_by_kind(tmp_path: Path) -> None:
    url = loaded("v1", "sqlite", tmp_path).url
    found = keel("stats", "--url", url)
    assert found.exit_code == 0
    assert "metadata" in found.stdout
    assert "█" in found.stdout
    assert "Pruning each thread to its latest checkpoint would free" in found.stdout
    assert "state values" in found.stdout
    told = json.loads(keel("stats", "--url", url, "--json").stdout)
    assert told["bytes"] == sum(told["kinds"].values())
    assert told["threads"] == 24
