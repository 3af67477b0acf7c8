"""Commits of runs (`FileSaver(root, git=True)`), on real git repositories."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.backends.files_commits import put
from support.backends.files_commits import repository as repository
from support.backends.files_commits import root as root
from support.repositories import LINE, Repository, append, isolate, log_of, settings_of

from langgraph_keel import FileSaver
from langgraph_keel.backends.files.git import Commits, Left
from langgraph_keel.engine.config import Address
from langgraph_keel.errors import InvalidInput

PENDING = {"branch:to:agent": None}


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


def write(commits: Commits, root: Path, thread: str, checkpoint: str, *channels: str, ns: str = "") -> None:
    """Store a task's writes and report them, as a saver would."""
    address = Address(thread, ns, checkpoint)
    if left := commits.left_before_writes(address, channels):
        commits.commit(thread, left)
    commits.begin_writes(address, channels)
    append(root, thread)
    commits.put_writes(address, channels)


# ---- one commit per run


def test_a_run_is_one_commit_with_its_files_only(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    append(root, "other")
    put(commits, root, "Trip/1", 0, {"__start__": 1}, source="input")
    put(commits, root, "Trip/1", 1, PENDING)
    assert repository.titles() == []
    put(commits, root, "Trip/1", 2, run_id="r-7")
    append(root, "Trip/1")  # the late writes of its last task
    assert repository.titles(expected=1) == ["thread Trip/1: step 2 (loop)"]
    names = repository("-c", "core.quotePath=false", "show", "--name-only", "--format=").splitlines()
    log = log_of(root, "Trip/1").relative_to(root).as_posix()
    assert sorted(names) == sorted(f"data [1]/store/{name}" for name in [log, *settings_of(root)])
    assert repository("show", f"HEAD:data [1]/store/{log}") == log_of(root, "Trip/1").read_text()
    trailers = "%(trailers:key=Run-Id,valueonly,separator=;)%(trailers:key=Checkpoint-Id,valueonly,separator=;)"
    assert repository("log", f"--format={trailers}").strip() == "r-7c2"


def test_runs_of_many_threads_are_separate_commits(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    for step in range(3):
        for thread in ("a", "b"):
            put(commits, root, thread, step)
    commits.close()
    expected = [f"thread {thread}: step {step} (loop)" for step in range(3) for thread in ("a", "b")]
    assert sorted(repository.titles()) == sorted(expected)
    assert repository("status", "--short") == ""


def test_a_question_and_a_failure_end_a_run(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1, PENDING)
    write(commits, root, "a", "c1", "__interrupt__", ns="sub:1")
    write(commits, root, "a", "c1", "messages")
    assert repository.titles() == []
    write(commits, root, "a", "c1", "__interrupt__")
    put(commits, root, "a", 2, PENDING)
    write(commits, root, "a", "c2", "__error__")
    assert repository.titles(expected=2) == ["thread a: step 1 (interrupt)", "thread a: step 2 (error)"]


def test_a_question_may_be_stored_before_its_checkpoint(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    write(commits, root, "a", "c1", "__interrupt__")
    time.sleep(0.3)
    assert repository.titles() == []
    put(commits, root, "a", 1, PENDING)
    assert repository.titles(expected=1) == ["thread a: step 1 (interrupt)"]


def test_an_answer_starts_a_run(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1, PENDING)
    for number in range(2):
        write(commits, root, "a", "c1", "__interrupt__")
        write(commits, root, "a", "c1", "__resume__")
        assert repository.titles() == ["thread a: step 1 (interrupt)"] * (number + 1)
    put(commits, root, "a", 2)
    write(commits, root, "a", "c1", "__resume__", "messages")
    assert repository.titles(expected=3)[2:] == ["thread a: step 2 (loop)"]
    assert repository("status", "--short") == ""


def test_an_answered_run_is_not_committed_while_the_answer_is_stored(repository: Repository, root: Path) -> None:
    commits, answer = Commits(root), (Address("t", "", "c0"), ["__resume__"])
    put(commits, root, "t", 0, PENDING)
    write(commits, root, "t", "c0", "__interrupt__")
    commits.commit("t")
    assert not commits.left_before_writes(*answer)
    commits.begin_writes(*answer)
    write(commits, root, "t", "c0", "log")
    put(commits, root, "t", 1)
    assert repository.titles() == ["thread t: step 0 (interrupt)"]


def test_two_questions_at_once_are_one_commit(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1, PENDING)
    for _ in range(2):
        write(commits, root, "a", "c1", "__interrupt__")
    commits.close()
    assert repository.titles() == ["thread a: step 1 (interrupt)"]
    assert repository("status", "--short") == ""


def test_the_rest_of_a_run_is_committed_before_the_next_one(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1, PENDING)
    put(commits, root, "a", 2, {"__start__": 1}, source="input")
    assert repository.titles() == ["thread a: step 1 (loop)"]
    assert repository("show", f"HEAD:./{log_of(root, 'a').relative_to(repository.path)}") == LINE % 1
    put(commits, root, "a", 3)
    assert repository.titles(expected=2)[1:] == ["thread a: step 3 (loop)"]


def test_every_start_of_a_run_waits_for_the_rest_of_the_last_one(repository: Repository, root: Path) -> None:
    """Previously, a checkpoint overtook a waiting one.

    A run lost its name, or the one before it its commit.
    """
    commits = Commits(root)
    put(commits, root, "t", 0)
    begins = Address("t", ""), {"source": "loop", "step": 1}
    assert all(commits.left_before_put(*begins) for _ in range(2))
    commits.commit("t")
    assert not commits.left_before_put(*begins)


def test_an_answer_that_waits_for_a_commit_is_not_committed_with_it(
    repository: Repository, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three requests while git finishes, the first may be stored before the second."""
    commits, answer = Commits(root), (Address("t", "", "c0"), ["__resume__"])
    put(commits, root, "t", 0, PENDING)
    write(commits, root, "t", "c0", "__interrupt__")
    came: list[Left | None] = []
    commit = commits._commit  # private: git has done its work, and has not ended yet

    def end_late(thread_id: str, message: str) -> bool:
        done = commit(thread_id, message)
        came.extend([commits.left_before_writes(*answer), commits.left_before_put(answer[0], {"source": "loop"})])
        return done

    monkeypatch.setattr(commits, "_commit", end_late)
    commits.commit("t")
    assert all(came)
    commits.begin_writes(*answer)
    append(root, "t")
    commits.put_writes(*answer)
    for left in came:
        commits.commit("t", left)
    assert repository.titles() == ["thread t: step 0 (interrupt)"]
    put(commits, root, "t", 1)
    assert repository.titles(expected=2)[1:] == ["thread t: step 1 (loop)"]


def test_a_run_that_follows_immediately_is_not_committed_half_way(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1)
    put(commits, root, "a", 2, {"__start__": 1}, source="input")
    put(commits, root, "a", 3, PENDING)
    time.sleep(0.5)
    assert repository.titles() == ["thread a: step 1 (loop)"]
    put(commits, root, "a", 4)
    assert repository.titles(expected=2)[1:] == ["thread a: step 4 (loop)"]


def test_close_commits_only_pending_changes(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "done", 1)
    put(commits, root, "a", 1, PENDING)
    put(commits, root, "b", 1, PENDING, ns="sub:1")
    commits.close()
    commits.close()
    titles = [*(f"thread {thread}: step 1 (loop)" for thread in ("done", "a")), "thread b: run"]
    assert repository.titles() == titles


def test_a_deletion_is_committed_immediately(repository: Repository, root: Path) -> None:
    commits = Commits(root)
    put(commits, root, "a", 1)
    assert len(repository.titles(expected=1)) == 1
    log_of(root, "a").unlink()
    log_of(root, "a").parent.rmdir()
    commits.commit_change("a", "deleted")
    commits.commit_change("never there", "deleted")
    assert repository.titles()[1:] == ["thread a: deleted"]
    assert repository("status", "--short") == ""


@pytest.mark.parametrize("thread", ["two\nlines\r\x00\x1b[31m", "\u2028 \u202e", "x" * 5000, "-m", "#1", " "])
def test_any_thread_id_makes_a_title_of_one_line(repository: Repository, root: Path, thread: str) -> None:
    put(Commits(root), root, thread, 1)
    (title,) = repository.titles(expected=1)
    assert title.startswith("thread ")
    assert title.endswith(": step 1 (loop)")
    assert title.isprintable()
    assert len(title) < 300
    assert repository("status", "--short") == ""


# ---- the user's own files are left alone


def test_staged_and_changed_files_of_the_user_are_left_alone(repository: Repository, root: Path) -> None:
    (repository.path / "notes.txt").write_text("one\n")
    repository.commit()
    (repository.path / "notes.txt").write_text("two\n")
    (repository.path / "new.txt").write_text("new\n")
    (root / "keel.json").write_text('{"format":1,"keel":"files"}')
    repository("add", "new.txt")
    before = repository("status", "--short")
    commits = Commits(root)
    put(commits, root, "a", 1)
    commits.close()
    assert repository("show", "--name-only", "--format=").split() == ["data", "[1]/store/threads/a/log.jsonl"]
    assert repository("status", "--short") == before
    assert "new.txt" in repository("diff", "--cached", "--name-only")


def test_commits_run_no_hooks(repository: Repository, root: Path) -> None:
    names = [
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "post-commit",
        "reference-transaction",
        "post-index-change",
    ]
    for name in names:
        hook = repository.path / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\ntouch ran\nexit 1\n")
        hook.chmod(0o755)
    put(Commits(root), root, "a", 1)
    assert repository.titles(expected=1) == ["thread a: step 1 (loop)"]
    assert list(repository.path.rglob("ran")) == []


def test_git_variables_of_a_hook_are_ignored(
    repository: Repository, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository.made(tmp_path / "other")
    other("commit", "--quiet", "--allow-empty", "--message", "theirs")
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", str(other.path / ".git"))
        hook.setenv("GIT_WORK_TREE", str(other.path))
        hook.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
        hook.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
        hook.setenv("GIT_AUTHOR_NAME", "The Agent")
        commits = Commits(root)
        put(commits, root, "a", 1)
        commits.close()
    assert repository.titles() == ["thread a: step 1 (loop)"]
    assert repository("log", "--format=%an").strip() == "The Agent"
    assert int(repository("log", "--format=%ad", "--date=format:%Y")) > 2001
    assert other.titles() == ["theirs"]


def test_a_store_outside_a_working_tree_is_an_error(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="git init"):
        Commits(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="own directory"):
        Commits(repository.path / ".git" / "store")
    Commits(repository.path / "not" / "there" / "yet")


async def test_a_saver_created_in_a_loop_raises_the_error_at_its_first_use(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with FileSaver("elsewhere", git=True) as saver:
        for _ in range(2):
            with pytest.raises(InvalidInput, match="git init"):
                await saver.aget_tuple({"configurable": {"thread_id": "t"}})
        with pytest.raises(InvalidInput, match="git init"):
            await saver.asetup()
        assert not (tmp_path / "elsewhere").exists()
    monkeypatch.chdir(repository.path)
    async with FileSaver("store", git=True) as saver:
        assert await saver.aget_tuple({"configurable": {"thread_id": "t"}}) is None


def test_a_missing_git_is_an_error(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInput, match="executable"):
        Commits(repository.path)


# ---- git refuses


def no_identity(repository: Repository) -> None:
    repository("config", "user.useConfigOnly", "true")
    repository("config", "--unset", "user.email")


def identity(repository: Repository) -> None:
    repository.introduce()


def lock(repository: Repository) -> None:
    (repository.path / ".git" / "index.lock").touch()


def unlock(repository: Repository) -> None:
    (repository.path / ".git" / "index.lock").unlink()


def ignore(repository: Repository) -> None:
    (repository.path / ".gitignore").write_text("threads/\n")


def heed(repository: Repository) -> None:
    (repository.path / ".gitignore").unlink()


def lose(repository: Repository) -> None:
    (repository.path / ".git").rename(repository.path / "lost")


def find(repository: Repository) -> None:
    (repository.path / "lost").rename(repository.path / ".git")


Step = Callable[[Repository], None]
REFUSALS = {
    "no identity": (no_identity, identity, "tell me who you are"),
    "locked": (lock, unlock, "index.lock"),
    "ignored": (ignore, heed, "ignored"),
    "lost": (lose, find, "not a git repository"),
}


@pytest.mark.parametrize(("begin", "end", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_logged_once_and_its_commits_are_made_later(
    repository: Repository, root: Path, begin: Step, end: Step, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    commits = Commits(root)
    put(commits, root, "a", 0)
    assert len(repository.titles(expected=1)) == 1
    begin(repository)
    for step in range(1, 4):
        put(commits, root, "a", step)
    put(commits, root, "b", 1)
    time.sleep(0.3)
    commits.close()
    (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert reason in said.getMessage()
    assert len(log_of(root, "a").read_bytes().splitlines()) == 4
    end(repository)
    assert repository.titles() == ["thread a: step 0 (loop)"]
    commits.close()
    assert repository.titles()[1:] == ["thread a: step 3 (loop)", "thread b: step 1 (loop)"]
    assert repository("status", "--short", str(root)) == ""


def test_a_commit_waits_for_a_short_lock_of_another_git(
    repository: Repository, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commits = Commits(root)
    lock(repository)
    script = "import sys, time, os; time.sleep(0.3); os.unlink(sys.argv[1])"
    held = repository.path / ".git" / "index.lock"
    with subprocess.Popen([sys.executable, "-c", script, str(held)]):
        put(commits, root, "a", 1)
        commits.close()
    assert repository.titles() == ["thread a: step 1 (loop)"]
    assert caplog.records == []


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.backends.files_commits import put
from langgraph_keel.backends.files.git import Commits
root = Path(sys.argv[2])
commits = Commits(root)
for step in range(10):
    put(commits, root, sys.argv[3], step)
"""  # ... and no close: the end of a program commits


@pytest.mark.slow
def test_processes_take_turns(repository: Repository, root: Path) -> None:
    threads = ["a", "b", "c"]
    here = str(Path(__file__).parent)
    commands = [[sys.executable, "-c", WRITER, here, str(root), thread] for thread in threads]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [writer.communicate()[1] for writer in writers] == [""] * 3
    wanted = sorted(f"thread {thread}: step {step} (loop)" for thread in threads for step in range(10))
    assert sorted(repository.titles()) == wanted
    assert repository("status", "--short") == ""
    repository("fsck", "--strict")
