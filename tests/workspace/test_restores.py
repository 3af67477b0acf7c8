"""Restores of a workspace: against an oracle, with escaping links, and cut off."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.processes.full_disks import fill_up, small_disk
from support.tiers import sized
from support.workspaces import Held, change, held, look, save, set_aside, write

from langgraph_keel import MemorySaver, SqliteSaver, StoreError, StoreFull, Workspace, WorkspaceTaken

FILES = 600
"""Number of files that the interrupted restore changes."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    write(tmp_path, b"outside/a", "file", b"not ours")
    return tmp_path / "work"


def opened(root: Path, **options: Any) -> SqliteSaver:
    return SqliteSaver(root.parent / "agent.db", workspace=Workspace(root, **options))


@pytest.mark.parametrize("seed", range(sized(5, 20, 200)))
def test_restores_of_random_histories_match_the_oracle(root: Path, seed: int) -> None:
    chance, moments = Random(seed), list[tuple[Any, Held]]()
    known = set[tuple[str, bytes]]()  # kind and content of each file in a snapshot
    with MemorySaver(workspace=Workspace(root, repository=root.parent / "shadow")) as saver:
        root.mkdir()
        for _ in range(4):
            for _ in range(chance.randrange(6)):
                change(root, chance)
            config = save(saver)
            moments.append((config, held(root)))
            known |= set(held(root).values())
            if chance.random() < 0.5:
                config, wanted = chance.choice(moments)
                before = held(root) if chance.random() < 0.5 else None
                for _ in range(chance.randrange(4) if before is None else 0):
                    change(root, chance)
                there = held(root)
                shown, done = saver.workspace.preview(config), saver.workspace.restore(config)
                assert (shown.written, shown.removed) == (done.written, done.removed)
                assert (shown.set_aside, shown.left) == (done.set_aside, done.left)
                left = {os.fsencode(path) for path in done.left}
                after = held(root)
                assert {path: each for path, each in after.items() if path not in left} == wanted
                assert {path: after[path] for path in left} == {path: there[path] for path in left}
                assert set(there.values()) <= known | set(after.values()) | set_aside(root)
                assert before is None or not (done.set_aside or done.left)
    assert look(os.fsencode(root.parent / "outside/a")) == ("file", b"not ours")


def test_only_files_of_the_last_snapshot_are_removed_or_replaced(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"kept", "file", b"1")
        old = save(saver)
        write(root, b"kept", "file", b"2")
        write(root, b"late", "file", b"late")
        write(root, b"edited", "file", b"1")
        save(saver)
        write(root, b"edited", "file", b"by hand")
        write(root, b"new", "file", b"new")
        done = saver.workspace.restore(old)
        assert (done.written, done.removed) == (("kept",), ("late",))
        assert (done.set_aside, done.left) == (("edited",), ("new",))
        assert held(root) == {b"kept": ("file", b"1"), b"new": ("file", b"new")}
        assert held(Path(done.aside)) == {b"edited": ("file", b"by hand")}
        again = saver.workspace.restore(old)
        assert (again.written, again.removed, again.set_aside, again.left) == ((), (), (), ("new",))


def test_an_unsaved_file_in_the_way_is_set_aside(root: Path) -> None:
    with opened(root, largest=10) as saver:
        write(root, b"data", "file", b"small")
        write(root, b"d/e", "file", b"small")
        old = save(saver)
        write(root, b"data", "file", b"larger than the limit")
        write(root, b"d", "file", b"larger than the limit")
        save(saver)
        done = saver.workspace.restore(old)
        assert set(done.set_aside) == {"data", "d"}
        assert held(root) == {b"data": ("file", b"small"), b"d/e": ("file", b"small")}
        assert set_aside(root) == {("file", b"larger than the limit")}


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_restore_does_not_follow_links_out_of_the_directory(root: Path, is_saved: bool) -> None:
    outside = root.parent / "outside"
    with opened(root) as saver:
        write(root, b"d/a", "file", b"ours")
        write(root, b"d/e/b", "file", b"ours")
        old = save(saver)
        write(root, b"d", "link", os.fsencode(outside))
        if is_saved:
            new = save(saver)
        done = saver.workspace.restore(old)
        assert held(root) == {b"d/a": ("file", b"ours"), b"d/e/b": ("file", b"ours")}
        assert held(outside) == {b"a": ("file", b"not ours")}
        assert done.set_aside == (() if is_saved else ("d",))
        if is_saved:
            saver.workspace.restore(new)
            assert held(root) == {b"d": ("link", os.fsencode(outside))}
            assert held(outside) == {b"a": ("file", b"not ours")}


def test_files_are_not_set_aside_through_a_link(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        old = save(saver)
        write(root, b"a", "file", b"by hand")
        write(root, b".keel-aside", "link", os.fsencode(root.parent / "outside"))
        with pytest.raises(StoreError, match="a link leads out of"):
            saver.workspace.restore(old)
        assert held(root.parent / "outside") == {b"a": ("file", b"not ours")}
        (root / ".keel-aside").unlink()
        assert saver.workspace.preview(old).written == ()  # the restore was completed
        assert (held(root), set_aside(root)) == ({b"a": ("file", b"1")}, {("file", b"by hand")})


def test_nested_repositories_are_reported_and_never_touched(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"lib/a", "file", b"1")
        old = save(saver)
        write(root, b"lib/a", "file", b"2")
        for name in ("lib", "other"):
            subprocess.run(["git", "init", "--quiet", root / name], check=True)
        write(root, b"other/a", "file", b"1")
        save(saver)
        done = saver.workspace.restore(old)
        assert done.skipped == ("lib/a",)
        assert done.not_saved["other/"] == "a nested repository"
        assert held(root) == {b"lib/a": ("file", b"2"), b"other/a": ("file", b"1")}


def test_restore_into_another_directory(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        old = save(saver)
        write(root, b"a", "file", b"2")
        write(root.parent, b"second/a", "file", b"theirs")
        write(root.parent, b"second/b", "file", b"theirs")
        done = saver.workspace.restore(old, into=root.parent / "second")
        assert (done.set_aside, done.left) == (("a",), ("b",))
        assert held(root.parent / "second") == {b"a": ("file", b"1"), b"b": ("file", b"theirs")}
        assert held(root) == {b"a": ("file", b"2")}


def test_a_full_disk_loses_no_file() -> None:
    with (
        small_disk(8, "and a workspace") as disk,
        MemorySaver(workspace=Workspace(disk / "work", repository=disk / "shadow")) as saver,
    ):
        write(disk / "work", b"a", "file", bytes(1000))
        write(disk / "work", b"big", "file", os.urandom(1_000_000))
        old, first = save(saver), held(disk / "work")
        (disk / "work/big").unlink()
        write(disk / "work", b"a", "file", b"2")
        save(saver)
        other = fill_up(disk)
        write(disk / "work", b"b", "link", b"anywhere")
        with pytest.raises(StoreFull):
            save(saver)
        with pytest.raises((StoreFull, StoreError)):
            saver.workspace.restore(old)
        other.unlink()
        saver.workspace.restore(old)
        (disk / "work/b").unlink(missing_ok=True)
        assert held(disk / "work") == first


# -- interruptions -----------------------------------------------------------------------------------------------------


def cut_off(root: Path, config: Any, seconds: float, *, is_announced: bool = False) -> None:
    """Restore in another process, and kill it with its git after `seconds`.

    The time counts from its start or, with `is_announced`, from its announcement.
    """
    begun, begins = os.pipe()
    pid = os.fork()
    if not pid:
        with opened(root) as saver:
            os.write(begins, b"!")
            saver.workspace.restore(config)
        os._exit(0)
    os.read(begun, 1)
    while is_announced and not [*(root.parent / "agent.db.workspace/keel").glob("*/restoring")]:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
    time.sleep(seconds)
    os.kill(pid, signal.SIGSTOP)  # so that it starts no more git
    os.waitpid(pid, os.WUNTRACED)
    with suppress(FileNotFoundError):
        for git in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            ends = os.pidfd_open(int(git))
            os.kill(int(git), signal.SIGKILL)
            select.select([ends], [], [])  # until it ends, it holds the lock
            os.close(ends)
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(begun)
    os.close(begins)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the git of a process is found in /proc")
def test_a_killed_restore_is_completed_by_the_next(root: Path) -> None:
    points, outcomes = sized(5, 5, 30), set[str]()
    with opened(root) as saver:
        moments = []
        for turn in range(2):
            for number in range(FILES):
                write(
                    root, f"d{number % 30}/{turn * (number % 2)}-{number}".encode(), "file", f"{turn} {number}".encode()
                )
            for number in range(1, FILES, 2) if turn else ():
                (root / f"d{number % 30}/0-{number}").unlink()
            moments.append((save(saver), held(root)))
        started = time.monotonic()
        saver.workspace.restore(moments[0][0])
        whole = time.monotonic() - started
    for point in range(points):
        old, (config, new) = held(root), moments[1 - point % 2]
        cut_off(root, config, whole * point / points, is_announced=bool(point % 2))
        cut_off(root, config, whole * (point * 7 % points) / points)  # cuts off the completing restore, too
        with opened(root) as saver:
            saver.workspace.preview(config)
        found = held(root)
        outcomes.add("old" if found == old else "new" if found == new else "between")
        with opened(root) as saver:
            saver.workspace.restore(config)
        assert held(root) == new
    assert outcomes <= {"old", "new"}
    assert "new" in outcomes


HOLDER = """
import fcntl, sys
held = open(sys.argv[1])
fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_restore_is_refused_while_another_process_has_the_directory(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        config = save(saver)
        (lock,) = (root.parent / "agent.db.workspace/keel").glob("*/lock")
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == b"held\n"
            with pytest.raises(WorkspaceTaken, match="another run or a restore"):
                saver.workspace.restore(config)
            child.kill()
            child.wait()
            assert saver.workspace.restore(config).is_done
