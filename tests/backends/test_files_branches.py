"""A store in git: diffs, clones, checkouts and branches."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.backends.files_branches import branch, everything, held, opened, said, turn
from support.backends.files_branches import repository as repository
from support.backends.files_branches import store as store
from support.repositories import LINE, Repository, append, isolate, log_of, made_root, settings_of

from langgraph_keel.backends.files.git import Side, decisions
from langgraph_keel.errors import KeelError

State = dict[str, Any]


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture
def root(repository: Repository) -> Path:
    return made_root(repository.path / "by hand")


# ---- git's view of the files


def test_a_git_diff_shows_the_added_lines(repository: Repository, root: Path) -> None:
    append(root, "a", 1)
    repository.commit()
    append(root, "a", 2)
    with log_of(root, "a").open("ab") as file:
        file.write(b"\x00torn")
    added = [line for line in repository("diff", "--text").splitlines() if line.startswith("+{")]
    shown = [line for line in repository("diff").splitlines() if line.startswith("+{")]
    assert shown == added == ["+" + (LINE % 2).strip()]


def test_a_git_diff_shows_a_blob_in_one_line(repository: Repository, root: Path) -> None:
    append(root, "a", 1)
    repository.commit()
    blob = log_of(root, "a").parent / "blobs" / f"{'0' * 64}.json"
    blob.parent.mkdir()
    blob.write_text('"long"\n' * 20_000)
    repository.commit()
    shown = repository("show", "--format=").splitlines()
    assert len(shown) < 10
    assert shown[-1].startswith("Binary files")


def test_git_attributes_and_filters_change_no_byte(repository: Repository, root: Path, tmp_path: Path) -> None:
    """The surrounding project has hostile settings: line ends, keywords, encoding.

    It also keeps large files elsewhere (LFS).
    """
    worst = "working-tree-encoding=UTF-16 filter=elsewhere diff=elsewhere"
    lines = ["* text=auto eol=crlf ident", f"*.jsonl {worst}", f"0*.json {worst}"]
    (repository.path / ".gitattributes").write_text("\n".join(lines))
    for name, value in {"clean": "wc -c", "smudge": "cat", "required": "true"}.items():
        repository("config", f"filter.elsewhere.{name}", value)
    append(root, "a")
    log = log_of(root, "a")
    log.write_bytes(log.read_bytes() + b'"$Id$"\n"\r"\r\n')
    blob = log.parent / "blobs" / f"{'0' * 64}.json"
    blob.parent.mkdir()
    blob.write_bytes(b'"$Id$"\n')
    (root / "threads" / ".new-1").mkdir()
    (root / "threads" / ".new-1" / "log.jsonl").touch()
    (log.parent / "log.jsonl.0.tmp").touch()
    repository.commit()
    clone = Repository(tmp_path / "clone")
    repository("clone", "--quiet", "--config", "core.autocrlf=true", str(repository.path), str(clone.path))
    there = clone.path / root.relative_to(repository.path)
    files = {path.relative_to(there): path.read_bytes() for path in there.rglob("*") if path.is_file()}
    wanted = {path.relative_to(root): path.read_bytes() for path in (log, blob)}
    assert {name: files[name] for name in wanted} == wanted
    assert {path.as_posix() for path in files} == {path.as_posix() for path in wanted} | set(settings_of(root))
    assert clone("status", "--short") == ""


# ---- branches and checkouts


def test_a_checkout_restores_the_state_of_its_commit(repository: Repository, store: Path) -> None:
    with opened(store) as saver:
        states = {repository("rev-parse", "HEAD").strip(): everything(saver)}
        turn(saver, "a", "three")
        states[repository.commit()] = everything(saver)
        saver.delete_thread("b")
        turn(saver, "c", "new")
        states[repository.commit()] = everything(saver)
    for commit in [*states, *reversed(states)]:
        repository("checkout", "--quiet", commit)
        with opened(store) as saver:
            assert everything(saver) == states[commit]
        assert repository("status", "--short") == ""


def test_an_open_saver_notices_a_checkout(repository: Repository, store: Path) -> None:
    with opened(store) as saver, opened(store) as other:
        states = {"main": everything(saver)}
        repository("checkout", "--quiet", "-b", "later")
        turn(saver, "a", "three")
        turn(other, "c", "new")
        saver.delete_thread("b")
        repository.commit()
        states["later"] = everything(saver)
        for name in ("main", "later", "main"):
            repository("checkout", "--quiet", name)
            assert everything(saver) == everything(other) == states[name]
        assert said(saver, "c") == []
        turn(saver, "a", "otherwise")
        turn(saver, "c", "anew")
        repository.commit()
        repository("checkout", "--quiet", "later")
        assert everything(other) == states["later"]
        repository("checkout", "--quiet", "main")
        for each in (saver, other):
            assert said(each, "a") == ["one", "two", "otherwise"]
            assert said(each, "c") == ["anew"]


def test_a_checkout_may_leave_an_empty_store(repository: Repository, store: Path) -> None:
    """Git keeps no empty directories, so `threads` is removed with its last thread."""
    with opened(store) as saver:
        repository("rm", "--quiet", "-r", "store/threads")
        repository("commit", "--quiet", "--message", "empty")
        assert not (store / "threads").exists()
        assert everything(saver) == {}
        turn(saver, "a", "anew")
        assert said(saver, "a") == ["anew"]
        assert list(everything(saver)) == ["a"]


def test_the_memory_of_another_branch_is_not_used(repository: Repository, store: Path) -> None:
    """The other branch assigns the same numbers to other checkpoints and items."""
    with opened(store) as saver, opened(store) as other:
        turn(saver, "a", "mine")
        repository("stash", "--quiet")
        turn(other, "a", "theirs")
        assert said(saver, "a") == ["one", "two", "theirs"]
        turn(saver, "a", "ours")
        for each in (saver, other):
            assert said(each, "a") == ["one", "two", "theirs", "ours"]
    with opened(store) as fresh:
        assert said(fresh, "a") == ["one", "two", "theirs", "ours"]


def test_a_run_fails_after_a_checkout_removed_its_checkpoint(repository: Repository, store: Path) -> None:
    """Its next checkpoint continues a missing one, and must not become the latest."""
    with opened(store) as saver:
        turn(saver, "a", "three")
        found = saver.get_tuple({"configurable": {"thread_id": "a"}})
        assert found is not None
        repository("stash", "--quiet")
        before = everything(saver)
        later = {**found.checkpoint, "id": found.checkpoint["id"][:-1] + "f"}
        with pytest.raises(KeelError):
            saver.put(found.config, later, {"source": "loop", "step": 9}, {})  # type: ignore[arg-type]
        assert everything(saver) == before


@pytest.mark.parametrize("thread", ["b", "c"], ids=["known", "new"])
def test_turns_on_different_threads_merge(repository: Repository, store: Path, thread: str) -> None:
    with opened(store) as saver:
        base = everything(saver)
    theirs = branch(repository, store, "theirs", thread, "three", "x" * 100_000)
    ours = branch(repository, store, "ours", "a", "drei", "vier")
    repository("merge", "--quiet", "--no-edit", "theirs", "ours")
    with opened(store) as saver:
        assert everything(saver) == base | {"a": ours["a"], thread: theirs[thread]}
        turn(saver, "a", "on")
        turn(saver, thread, "on")
        assert said(saver, "a") == ["one", "two", "drei", "vier", "on"]
        assert said(saver, thread)[-3:] == ["three", "x" * 100_000, "on"]


def test_a_prune_merges_with_a_turn_on_another_thread(repository: Repository, store: Path) -> None:
    theirs = branch(repository, store, "theirs", "b", "three")
    with opened(store) as saver:
        saver.prune(["a"], strategy="keep_latest")
        ours = everything(saver)
    repository.commit()
    repository("merge", "--quiet", "--no-edit", "theirs")
    with opened(store) as saver:
        assert everything(saver) == ours | {"b": theirs["b"]}


@pytest.mark.parametrize("thread", ["a", "c"], ids=["known", "new"])
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_turns_on_one_thread_conflict_and_one_can_be_chosen(
    repository: Repository, store: Path, thread: str, side: str
) -> None:
    states = {"theirs": branch(repository, store, "theirs", thread, "three", "x" * 100_000)}
    with opened(store) as saver:
        turn(saver, thread, "drei")
        states["ours"] = everything(saver)
    repository.commit()
    assert "CONFLICT" in repository("merge", "theirs", fails=True)
    with opened(store) as saver:  # until it is decided, the log is that of our branch, as a whole
        assert everything(saver) == states["ours"]
    (decision,) = decisions(store)
    shared = 6 if thread == "a" else 0
    assert (decision.thread_id, decision.path) == (thread, f"threads/{thread}/log.jsonl")
    assert (decision.shared, decision.ours, decision.theirs) == (shared, *held(states, thread, shared))
    subprocess.run(decision.commands[side], shell=True, check=True, cwd=store, capture_output=True)
    assert decisions(store) == []
    repository.commit()
    with opened(store) as saver:
        assert everything(saver) == states[side]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_a_thread_deleted_here_and_continued_elsewhere_conflicts(
    repository: Repository, store: Path, side: str
) -> None:
    states = {"theirs": branch(repository, store, "theirs", "a", "three")}
    with opened(store) as saver:
        saver.delete_thread("a")
        states["ours"] = everything(saver)
    repository.commit()
    assert "CONFLICT" in repository("merge", "theirs", fails=True)
    with opened(store) as saver:
        assert everything(saver) == states["theirs"]
    (decision,) = decisions(store)
    assert decision.ours is None
    assert decision.theirs == Side(9, states["theirs"]["a"][0].checkpoint["ts"])
    subprocess.run(decision.commands[side], shell=True, check=True, cwd=store, capture_output=True)
    assert decisions(store) == []
    repository.commit()
    with opened(store) as saver:
        assert everything(saver) == states[side]


def test_an_unreadable_log_in_a_merge_is_also_a_decision(repository: Repository, store: Path) -> None:
    branch(repository, store, "theirs", "a", "three")
    log = store / "threads" / "a" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b"agent", b"agony"))
    repository.commit()
    assert "CONFLICT" in repository("merge", "theirs", fails=True)
    (decision,) = decisions(store)
    assert decision.thread_id == "a"
    assert decision.ours == Side(0, "", is_sound=False)
    assert decision.theirs is not None
    assert decision.theirs.is_sound


def test_a_store_outside_a_repository_has_no_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decisions(tmp_path) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert decisions(tmp_path) == []


def test_a_compacted_log_is_not_merged_with_its_former_log(repository: Repository, store: Path) -> None:
    """By line, git would combine one side's removal and the other side's new lines."""
    branch(repository, store, "theirs", "a", "three")
    with opened(store) as saver:
        saver.prune(["a"], strategy="keep_latest")
        pruned = everything(saver)
    repository.commit()
    assert "CONFLICT" in repository("merge", "theirs", fails=True)
    with opened(store) as saver:
        assert everything(saver) == pruned


def test_a_copy_that_replaces_its_source_gets_none_of_its_later_lines(repository: Repository, store: Path) -> None:
    """Git treats a new file that resembles a deleted one as the same file, renamed."""
    branch(repository, store, "theirs", "a", "three")
    with opened(store) as saver:
        saver.copy_thread("a", "copy")
        saver.delete_thread("a")
        copied = everything(saver)["copy"]
    repository.commit()
    repository("merge", "--no-edit", "theirs", fails=True)
    with opened(store) as saver:
        assert everything(saver)["copy"] == copied


def test_a_clone_with_converted_line_ends_can_be_opened(repository: Repository, store: Path, tmp_path: Path) -> None:
    with opened(store) as saver:
        turn(saver, "a", "x" * 100_000)
        held = everything(saver)
    repository.commit()
    clone = tmp_path / "clone"
    repository("clone", "--quiet", "--config", "core.autocrlf=true", str(repository.path), str(clone))
    with opened(clone / "store") as saver:
        assert everything(saver) == held
        turn(saver, "a", "on")
    there = Repository(clone)
    there.introduce()
    there.commit()
    repository("pull", "--quiet", str(clone), "main")
    with opened(store) as saver:
        assert said(saver, "a") == ["one", "two", "x" * 100_000, "on"]


def test_a_git_diff_of_a_turn_only_adds_its_lines(repository: Repository, store: Path) -> None:
    with opened(store) as saver:
        turn(saver, "a", "How high is the tide in Saint-Malo?")
    shown = repository("diff").splitlines()
    added = [orjson.loads(line[1:]) for line in shown if line.startswith("+{")]
    removed = [line for line in shown if line.startswith("-") and not line.startswith("---")]
    assert removed == []
    contents = [line["v"]["content"] for line in added if line.get("ch") == "messages" and "v" in line]
    assert contents[0] == "How high is the tide in Saint-Malo?"
    assert len(contents) == 2
