"""Files are saved with checkpoints on each backend; refusals; expired snapshots."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.log_graphs import CONFIG, graph
from support.places import Place
from support.repositories import Repository
from support.workspaces import held, save, write
from typer.testing import CliRunner

from langgraph_keel import (
    InvalidInput,
    Keyring,
    LocalKey,
    MemorySaver,
    NotFound,
    SqliteSaver,
    Workspace,
    WorkspaceTaken,
)
from langgraph_keel.cli import app

INPUT: Any = {"log": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work"


def opened(root: Path, **options: Any) -> SqliteSaver:
    return SqliteSaver(root.parent / "agent.db", workspace=Workspace(root), **options)


def writer(root: Path, name: str) -> tuple[str, Any]:
    """Return a node that writes a file."""

    def node(state: Any) -> Any:
        write(root, name.encode(), "file", name.encode())
        return {"log": [name]}

    return name, node


def refs(root: Path) -> list[str]:
    """Return the names of all refs of the shadow repository that keep trees."""
    found = (root.parent / "agent.db.workspace/refs/keel").glob("*/*")
    return sorted(path.name for path in found if len(path.name) == 40)


def at(config: Mapping[str, Any], checkpoint_id: str) -> Any:
    return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint_id}}


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_each_checkpoint_has_the_files_of_its_step(place: Place, root: Path, asynchronous: bool) -> None:
    where = None if place.kind in ("sqlite", "files") else root.parent / "shadow"
    nodes = [writer(root, name) for name in ("one", "two", "three")]
    if asynchronous:
        async with place.open(workspace=Workspace(root, repository=where)) as saver:
            await graph(saver, *nodes).ainvoke(INPUT, CONFIG, durability="sync")
            moments = [each async for each in saver.alist(CONFIG)]
            found = [await saver.workspace.afiles(each.config) for each in moments]
            changes = (await saver.workspace.adiff(moments[2].config, moments[0].config)).changes
            shown = await saver.workspace.apreview(moments[2].config)
            done = await saver.workspace.arestore(moments[2].config)
    else:
        with place.open(workspace=Workspace(root, repository=where)) as saver:
            graph(saver, *nodes).invoke(INPUT, CONFIG, durability="sync")
            moments = list(saver.list(CONFIG))
            found = [saver.workspace.files(each.config) for each in moments]
            changes = saver.workspace.diff(moments[2].config, moments[0].config).changes
            shown = saver.workspace.preview(moments[2].config)
            done = saver.workspace.restore(moments[2].config)
    assert [sorted(each) for each in found] == [["one", "three", "two"], ["one", "two"], ["one"], [], []]
    assert changes == {"three": "added", "two": "added"}
    assert shown.removed == done.removed == ("three", "two")
    assert not shown.is_done
    assert held(root) == {b"one": ("file", b"one")}


def test_files_of_the_first_step_are_not_in_the_input_checkpoint(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"before", "file", b"")
        graph(saver, writer(root, "one")).invoke(INPUT, CONFIG, durability="sync")
        inputs = next(each for each in saver.list(CONFIG) if each.metadata["source"] == "input")
        assert saver.workspace.files(inputs.config) == {"before": 0}


@pytest.mark.parametrize("durability", [None, "async", "exit"])
def test_a_run_without_sync_durability_is_refused(root: Path, durability: Any) -> None:
    with opened(root) as saver:
        with pytest.raises(InvalidInput, match="durability='sync'"):
            graph(saver, writer(root, "one")).invoke(INPUT, CONFIG, durability=durability)
        assert saver.get_tuple(CONFIG) is None
        assert not root.exists()


def test_invalid_options_and_configs_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = Keyring(LocalKey("k", bytes(range(32))))
    with pytest.raises(InvalidInput, match="cannot be combined with encryption="):
        opened(root, encryption=keyring)
    with pytest.raises(InvalidInput, match="needs a place for its shadow repository"):
        MemorySaver(workspace=Workspace(root))
    with pytest.raises(InvalidInput, match="ignore must be a list"):
        Workspace(root, ignore=".env")
    with pytest.raises(InvalidInput, match="largest must be"):
        Workspace(root, largest=0)
    write(root.parent, b"file", "file", b"")
    with pytest.raises(InvalidInput, match="is not a directory"):
        opened(root.parent / "file")
    with pytest.raises(InvalidInput, match="is not a shadow repository"):
        MemorySaver(workspace=Workspace(root, repository=root.parent))
    with opened(root) as saver:
        config = save(saver)
        with pytest.raises(InvalidInput, match="is inside the other"):
            saver.workspace.restore(config, into=root / "inside")
        with pytest.raises(NotFound, match="there is no such checkpoint"):
            saver.workspace.restore(at(config, "other"))
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="open it with workspace="):
        saver.workspace.preview(config)
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(InvalidInput, match="needs the git executable"):
        opened(root)


def test_a_checkpoint_without_files_raises_not_found(root: Path) -> None:
    with SqliteSaver(root.parent / "agent.db") as saver:
        config = save(saver)
    with opened(root) as saver, pytest.raises(NotFound, match="no files were saved with it"):
        saver.workspace.preview(config)


def test_a_directory_is_used_by_one_run_at_a_time(root: Path) -> None:
    other: Any = {"configurable": {"thread_id": "other"}}

    def inner(state: Any) -> Any:
        with pytest.raises(WorkspaceTaken):
            graph(saver, writer(root, "theirs")).invoke(INPUT, other, durability="sync")
        with opened(root) as second, pytest.raises(WorkspaceTaken):
            graph(second, writer(root, "theirs")).invoke(INPUT, other, durability="sync")
        with pytest.raises(WorkspaceTaken):
            saver.workspace.restore(old)
        return {"log": ["ours"]}

    with opened(root) as saver:
        old = save(saver, "third")
        graph(saver, ("inner", inner), writer(root, "ours")).invoke(INPUT, CONFIG, durability="sync")
        assert held(root) == {b"ours": ("file", b"ours")}
        graph(saver, writer(root, "theirs")).invoke(INPUT, other, durability="sync")  # the directory was released
        with opened(root) as second:
            graph(second, writer(root, "ours")).invoke(INPUT, CONFIG, durability="sync")


def test_the_users_git_repository_is_not_changed(root: Path) -> None:
    repository = Repository.made(root)
    write(root, b"a", "file", b"1\r\n")
    write(root, b".gitattributes", "file", b"* text=auto eol=lf\n*.x filter=other\n")
    repository.commit()
    write(root, b"staged", "file", b"")
    repository("add", "staged")
    (root / ".git/hooks").mkdir(exist_ok=True)
    write(root, b".git/hooks/post-checkout", "program", b"#!/bin/sh\ntouch ran\n")

    def own() -> dict[Path, tuple[bytes, int]]:
        files = (path for path in (root / ".git").rglob("*") if path.is_file())
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = own()
    with opened(root) as saver:
        old, first = save(saver), held(root)
        write(root, b"a", "file", b"2\n")
        write(root, b"b.x", "file", b"\r\n")
        graph(saver, writer(root, "c")).invoke(INPUT, {"configurable": {"thread_id": "t"}}, durability="sync")
        saver.workspace.restore(old)
        saver.retention.reclaim_space(full=True)
    assert held(root) == first
    assert own() == before


def test_a_store_in_its_own_workspace_is_not_saved(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "a [1].db", workspace=Workspace(tmp_path)) as saver:
        write(tmp_path, b"a", "file", b"1")
        write(tmp_path, b"a 1.db", "file", b"not the store")
        config = save(saver)
        assert set(saver.workspace.files(config)) == {"a", "a 1.db"}
        save(saver)
        saver.workspace.restore(config)
        assert len(list(saver.list(None))) == 2


def test_files_that_are_not_saved_are_reported(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteSaver(root.parent / "agent.db", workspace=Workspace(root, ignore=[".env"], largest=10)) as saver:
        for name in (b"a", b".env", b"large", b"x.g"):
            write(root, name, "file", bytes(11 if name == b"large" else 1))
        write(root, b".gitignore", "file", b"!.env\n*.g")
        os.mkfifo(root / "pipe")
        (root / "empty").mkdir()
        config = save(saver)
        assert set(saver.workspace.files(config)) == {"a", ".gitignore"}
        assert saver.workspace.preview(config).not_saved["large"] == "over 10 bytes"
        assert "'large' is not saved: over 10 bytes" in caplog.text
    with SqliteSaver(root.parent / "agent.db", workspace=Workspace(root, ignore=["a"], largest=10)) as saver:
        assert "a" not in saver.workspace.files(save(saver))  # although the index contained it


def test_unchanged_files_start_two_processes_and_write_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph_keel.workspace import repository

    calls = list[str]()
    run = repository.__dict__["run_git"]

    def counted(command: Any, *more: Any, **variables: Any) -> Any:
        calls.append(next(word for word in command if word in ("ls-files", "update-index", "write-tree", "init")))
        return run(command, *more, **variables)

    def written() -> dict[Path, int]:
        files = (path for path in (root.parent / "agent.db.workspace").rglob("*") if path.is_file())
        return {path: path.stat().st_mtime_ns for path in files}

    monkeypatch.setattr(repository, "run_git", counted)
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        save(saver)
        calls.clear()
        before = written()
        save(saver)
        assert calls == ["ls-files", "write-tree"]
        assert written() == before
        write(root, b"a", "file", b"2")
        calls.clear()
        save(saver)
        assert calls == ["ls-files", "update-index", "write-tree"]


@pytest.mark.slow
def test_a_save_of_ten_thousand_files_is_fast(root: Path) -> None:
    for number in range(10_000):
        write(root, f"d{number % 100}/{number}".encode(), "file", b"%d" % number)

    def spent() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    with opened(root) as saver:
        save(saver)
        times = []
        for number in range(5):
            write(root, b"d0/0", "file", b"changed %d" % number)
            started = spent()
            save(saver)
            times.append(spent() - started)
    assert sorted(times)[2] < 0.1  # processor time, because other processes run too


# -- expiry of snapshots -----------------------------------------------------------------------------------------------


def test_trees_are_removed_with_their_checkpoints(root: Path) -> None:
    with opened(root) as saver:
        for name in (b"a", b"b", b"b2", b"c"):
            if name != b"b2":
                write(root, name, "file", name)
            save(saver)
        save(saver, "other")
        assert len(refs(root)) == 4
        saver.prune(["t"])
        assert len(refs(root)) == 2  # the tree of "c", shared by two threads
        saver.delete_thread("other")
        assert len(refs(root)) == 1
        assert "git gc" in saver.retention.reclaim_space(full=True).note
        assert saver.workspace.restore(CONFIG).written == ()
    with SqliteSaver(root.parent / "agent.db") as saver:  # also without the option
        saver.delete_thread("t")
    assert refs(root) == []
    with opened(root) as saver:
        saver.retention.reclaim_space(full=True)
        (root / "a").unlink()
        config = save(saver, "later")  # the index names objects that were removed by gc
        write(root, b"b", "file", b"changed")
        save(saver, "later")
        saver.workspace.restore(config)
        assert held(root) == {b"b": ("file", b"b"), b"c": ("file", b"c")}


def test_an_erased_person_leaves_no_files(root: Path) -> None:
    config: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
    with opened(root) as saver:
        graph(saver, writer(root, "one")).invoke(INPUT, config, durability="sync")
        assert refs(root)
        saver.retention.erase("ada", by="dpo", reclaim=True)
        assert refs(root) == []


def test_forks_copies_and_twins_have_the_files(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        old = save(saver)
        write(root, b"a", "file", b"2")
        save(saver)
        saver.fork(old, "forked")
        saver.copy_thread("t", "copied")
        saver.rewind(old)
        assert saver.workspace.preview(CONFIG).written == ("a",)
        saver.delete_thread("t")
        for thread_id, wanted in (("forked", b"1"), ("copied", b"2")):
            config: Any = {"configurable": {"thread_id": thread_id}}
            done = saver.workspace.restore(config, into=root.parent / thread_id)
            assert held(root.parent / thread_id) == {b"a": ("file", wanted)}
            assert done.checkpoint_id


def test_tenants_have_separate_trees(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1")
        config = save(saver)
        theirs = save(saver.for_tenant("acme"))
        saver.delete_thread("t")
        assert saver.for_tenant("acme").workspace.files(theirs) == {"a": 1}
        with pytest.raises(NotFound):
            saver.workspace.files(config)


# -- the command -------------------------------------------------------------------------------------------------------


def test_keel_workspace(root: Path) -> None:
    with opened(root) as saver:
        write(root, b"a", "file", b"1\n")
        save(saver)
        write(root, b"a", "file", b"2\n")
        write(root, b"b\x1b[31m", "file", b"")
        save(saver)
    about = ("t", "--url", f"sqlite:///{root.parent}/agent.db", "--dir", str(root))

    def run(word: str, *words: str, said: str = "", status: int = 0) -> str:
        done = CliRunner().invoke(app, ["workspace", word, about[0], *words, *about[1:]], input=said)
        assert done.exit_code == status, done.output
        return done.output

    listed = run("ls")
    assert "a" in listed
    assert "b\\x1b[31m" in listed
    assert "+2" in run("diff", "0")
    assert "Nothing was restored." in run("restore", "0", said="n\n", status=1)
    assert held(root)[b"a"] == ("file", b"2\n")
    assert "1 path written" in run("restore", "0", "--yes")
    assert held(root) == {b"a": ("file", b"1\n")}
    assert '"b' in run("restore", "1", "--yes", "--json")
