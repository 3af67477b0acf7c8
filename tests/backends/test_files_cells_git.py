"""FileSaver: cells in git: commits, branches, and the report of `keel check`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.backends.files_branches import opened, turn
from support.backends.files_cells import OF_THREAD, SHARED, Verbs, cell
from support.places import file_findings
from support.repositories import Repository, isolate

from langgraph_keel import FileSaver
from langgraph_keel.engine.cells import Cell, Shelf, Swapped

OF_A = Shelf("a", "tool")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.made(tmp_path / "project")


@pytest.fixture
def store(repository: Repository) -> Path:
    """A store with a thread, a cell of it, and a shared one, committed."""
    store = repository.path / "store"
    with FileSaver(store) as saver:
        turn(saver, "a", "one")
        swap(saver, OF_A, "first", None, cell("1"))
        swap(saver, SHARED, "first", None, cell("1", origin="a"))
    repository.commit()
    return store


def swap(saver: FileSaver, shelf: Shelf, key: str, expected: str | None, new: Cell | None) -> None:
    assert Verbs(saver).swap(shelf, key, expected, new) == Swapped(True)


def calls(store: Path, shelf: Shelf) -> list[str]:
    with FileSaver(store) as saver:
        return Verbs(saver).keys(shelf)


def branch(repository: Repository, store: Path, shelf: Shelf, key: str, expected: str | None, token: str) -> None:
    """Swap a cell on the new branch `theirs`, and return to main."""
    repository("checkout", "--quiet", "-b", "theirs")
    with FileSaver(store) as saver:
        swap(saver, shelf, key, expected, cell(token))
    repository.commit()
    repository("checkout", "--quiet", "main")


def test_a_run_is_committed_with_its_calls(repository: Repository) -> None:
    store = repository.path / "store"
    with FileSaver(store, git=True) as saver:
        swap(saver, OF_A, "k", None, cell("1"))
        swap(saver, SHARED, "k", None, cell("1", origin="a"))
        turn(saver, "a", "one")
    files = repository("show", "--name-only", "--format=").split()
    assert {"store/threads/a/cells/tool/k.json", "store/shared/tool/k.json", "store/shared/.gitattributes"} <= {*files}
    with FileSaver(store, git=True) as saver:
        saver.delete_thread("a")
    assert repository("ls-files", "store/threads/a", "store/shared/tool") == ""
    assert repository("status", "--short") == ""


def test_shared_cells_may_be_kept_out_of_git(repository: Repository) -> None:
    (repository.path / ".gitignore").write_text("shared/\n")
    repository.commit()
    store = repository.path / "store"
    with FileSaver(store, git=True) as saver:
        swap(saver, SHARED, "k", None, cell("1", origin="a"))
        turn(saver, "a", "one")
    assert "store/threads/a/log.jsonl" in repository("ls-files")
    assert "shared/tool" not in repository("ls-files")


@pytest.mark.parametrize("shelf", [OF_A, OF_THREAD, SHARED], ids=["known thread", "new thread", "shared"])
def test_different_calls_on_two_branches_merge(repository: Repository, store: Path, shelf: Shelf) -> None:
    before = calls(store, shelf)
    branch(repository, store, shelf, "theirs", None, "2")
    assert calls(store, shelf) == before
    with FileSaver(store) as saver:
        swap(saver, shelf, "ours", None, cell("3"))
    repository.commit()
    repository("merge", "--quiet", "--no-edit", "theirs")
    assert calls(store, shelf) == [*before, "ours", "theirs"]
    with FileSaver(store) as saver:
        assert file_findings(saver) == []


@pytest.mark.parametrize("side", ["ours", "theirs"])
@pytest.mark.parametrize("shelf", [OF_A, SHARED], ids=["of a thread", "shared"])
@pytest.mark.parametrize("emptied", [False, True], ids=["changed", "emptied"])
def test_a_call_changed_on_two_branches_is_a_decision(
    repository: Repository, store: Path, shelf: Shelf, side: str, emptied: bool
) -> None:
    branch(repository, store, shelf, "first", "1", "2")
    with FileSaver(store) as saver:
        swap(saver, shelf, "first", "1", None if emptied else cell("3"))
    repository.commit()
    assert "CONFLICT" in repository("merge", "theirs", fails=True)
    with FileSaver(store) as saver:
        (finding,) = file_findings(saver)
        assert Verbs(saver).read(shelf, "first") == {"first": cell("2" if emptied else "3")}
    assert (finding.kind, finding.thread_id) == ("decide", shelf.thread_id)
    assert ("ours has emptied it" in finding.message) == emptied
    command = next(line for line in finding.advice.splitlines() if line.startswith(f"to keep {side}: "))
    subprocess.run(command.partition(": ")[2], shell=True, check=True, cwd=store, capture_output=True)
    repository.commit()
    kept = {} if emptied and side == "ours" else {"first": cell("3" if side == "ours" else "2")}
    with FileSaver(store) as saver:
        assert file_findings(saver) == []
        assert Verbs(saver).read(shelf, "first") == kept


def test_a_checkout_restores_the_calls_of_its_commit(repository: Repository, store: Path) -> None:
    with FileSaver(store) as saver:
        branch(repository, store, OF_A, "later", None, "2")
        verbs = Verbs(saver)
        for name, keys in (("theirs", ["first", "later"]), ("main", ["first"]), ("theirs", ["first", "later"])):
            repository("checkout", "--quiet", name)
            assert verbs.keys(OF_A) == keys
        assert verbs.swap(OF_A, "later", "2", cell("3")) == Swapped(True)


def test_git_attributes_change_no_byte_of_a_cell(repository: Repository, store: Path, tmp_path: Path) -> None:
    (repository.path / ".gitattributes").write_text(
        "* text=auto eol=crlf ident\nt*.json working-tree-encoding=UTF-16\n"
    )
    with FileSaver(store) as saver:
        for shelf in (OF_A, SHARED):
            swap(saver, shelf, "tricky", None, cell("1", "$Id$ größer"))
    repository.commit()
    clone = tmp_path / "clone"
    repository("clone", "--quiet", "--config", "core.autocrlf=true", str(repository.path), str(clone))
    for path in (name for name in repository("ls-files").split() if "/tool/" in name):
        assert (clone / path).read_bytes() == (repository.path / path).read_bytes()
    with opened(clone / "store") as saver:
        assert isinstance(saver, FileSaver)
        for shelf in (OF_A, SHARED):
            assert Verbs(saver).read(shelf, "tricky") == {"tricky": cell("1", "$Id$ größer")}
        assert file_findings(saver) == []
