"""A tenant's data is visible to that tenant only, whichever feature wrote it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from subprocess import run
from typing import Any, TypedDict

import pytest
from golden import story
from golden.kinds import TYPES
from golden.seen import aseen, seen
from langgraph.graph import START, StateGraph
from support.cli_threads import keel, keel_json
from support.places import Place
from support.tiers import BACKENDS

from langgraph_keel import (
    FileSaver,
    InvalidConfig,
    InvalidInput,
    KeelSaver,
    Keyring,
    LocalKey,
    MemorySaver,
    ReadOnlyStore,
    Retention,
    SealBroken,
    SqliteSaver,
    open_saver,
)

WRONG = ["", "a/b", "a%b", "a\0b", "a:b", "-a", ".", "ä", "a" * 10_000, None, 7, b"acme"]


@pytest.fixture(params=[None, Keyring(LocalKey("k1", bytes(range(32))))], ids=["plain", "sealed"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"types": TYPES, "encryption": request.param}


def told(saver: KeelSaver) -> dict[str, Any]:
    """All data visible to a tenant, without the verdict on its own audit trail."""
    found = seen(saver)
    return {name: each for name, each in found.items() if name != "verdict"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_tenants_are_isolated_in_every_feature(stores: Any, backend: str, options: dict[str, Any]) -> None:
    """The golden story, which uses every feature, written by two tenants in turn."""
    store = stores[backend]
    store.wipe()

    def of(tenant: str) -> Any:
        return lambda **more: store.open(**options | more).for_tenant(tenant)

    with store.open(**options) as saver:
        ours, theirs = saver.for_tenant("acme"), saver.for_tenant("acme2")
        nothing = [told(saver), told(ours), told(theirs)]
        assert nothing[0] == nothing[1] == nothing[2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            story.write(of("acme"))
            before = told(ours)
            assert before != nothing[1]
            assert [told(saver), told(theirs)] == nothing[1:]
            assert saver.tenants.list() == ["acme"]
            story.write(of("acme2"))
        assert told(ours) == before
        assert told(saver) == nothing[0]
        assert saver.tenants.list() == ["acme", "acme2"]
        assert json.dumps(asyncio.run(aseen(ours)), default=str).count("acme") == 0
        for thread in list(theirs.threads()):
            theirs.delete_thread(thread.thread_id)
        theirs.retention.set_policy([])
        theirs.retention.reclaim_space(full=True, strays=True)
        theirs.retention.erase(story.USER)
        assert told(ours) == before
        assert [finding for finding in ours.check() if finding.kind != "harmless"] == []


@pytest.mark.parametrize("name", WRONG, ids=lambda name: repr(name)[:12])
def test_an_invalid_tenant_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot name a tenant"):
        MemorySaver().for_tenant(name)


@pytest.mark.parametrize("name", ["a", "Acme", "ann@example.com", "0f8b2c1e-5d2a-4b5c-9d53-8f6a4a2f3b11", "a" * 64])
def test_tenant_names_are_case_sensitive(place: Place, name: str) -> None:
    with place.open() as saver:
        chat(saver.for_tenant(name)).invoke({"n": 1}, at("t"))
        chat(saver.for_tenant("other")).invoke({"n": 1}, at("t"))
        assert saver.tenants.list() == sorted([name, "other"])
        assert saver.for_tenant(name.swapcase()).get_tuple(at("t")) is None
        assert [each.thread_id for each in saver.for_tenant(name).threads()] == ["t"]


class State(TypedDict):
    n: int


def chat(saver: KeelSaver) -> Any:
    graph: Any = StateGraph(State).add_node("count", lambda state: {"n": state["n"] + 1}).add_edge(START, "count")
    return graph.compile(checkpointer=saver)


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver


def test_a_thread_id_that_looks_like_one_of_a_tenant_is_refused(saver: KeelSaver) -> None:
    """In shared tables, such a name would give the default view a tenant's data."""
    chat(saver.for_tenant("acme")).invoke({"n": 1}, at("t"))
    for who in (saver, saver.for_tenant("beta")):
        with pytest.raises(InvalidConfig, match=r"U\+001F"):
            who.get_tuple(at("\x1facme\x1ft"))
        with pytest.raises(InvalidConfig, match=r"U\+001F"):
            who.delete_thread("\x1facme\x1ft")
        with pytest.raises(InvalidConfig, match=r"U\+001F"):
            who.copy_thread("\x1facme\x1ft", "mine")


def test_tenants_required_refuses_calls_without_a_tenant(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "agent.db", tenants="required") as saver:
        for call in (
            lambda: saver.get_tuple(at("t")),
            lambda: list(saver.threads()),
            lambda: list(saver.list(None)),
            lambda: chat(saver).invoke({"n": 1}, at("t")),
            lambda: saver.retention.erase("ada"),
            lambda: saver.approvals.pending(),
            saver.tenants.list,
            saver.retention.sweep,
        ):
            with pytest.raises(InvalidInput, match="for_tenant"):
                call()
        assert chat(saver.for_tenant("acme")).invoke({"n": 1}, at("t")) == {"n": 2}
    with SqliteSaver(tmp_path / "agent.db") as saver:
        assert list(saver.threads()) == []
        assert saver.tenants.list() == ["acme"]


def test_a_tenant_cannot_see_other_tenants(saver: KeelSaver) -> None:
    ours = saver.for_tenant("acme")
    assert ours is saver.for_tenant("acme")
    assert (saver.tenant, ours.tenant) == (None, "acme")
    assert "acme" in repr(ours)
    with pytest.raises(InvalidInput, match="tenant 'acme'"):
        ours.for_tenant("beta")
    with pytest.raises(InvalidInput, match="cannot see other tenants"):
        ours.tenants.list()
    with pytest.raises(InvalidInput, match=r"for_tenant\(name\)\.raw"):
        saver.raw.for_tenant("acme")
    assert ours.raw.get_tuple(at("t")) is None


def test_closing_a_view_of_a_tenant_keeps_the_saver_open(place: Place) -> None:
    with place.open() as saver:
        with saver.for_tenant("acme") as ours:
            chat(ours).invoke({"n": 1}, at("t"))
        assert chat(saver).invoke({"n": 1}, at("t")) == {"n": 2}
        assert chat(saver.for_tenant("acme")).invoke({"n": 5}, at("t")) == {"n": 6}


def test_a_saver_with_git_refuses_tenants(tmp_path: Path) -> None:
    run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with FileSaver(tmp_path / "threads", git=True) as saver, pytest.raises(InvalidInput, match="git=True"):
        saver.for_tenant("acme")


def test_upkeep_prunes_threads_of_tenants(place: Place) -> None:
    with place.open(keep_last=1, upkeep_every=3600) as saver:
        for tenant in ("acme", "beta"):
            chat(saver.for_tenant(tenant)).invoke({"n": 1}, at("t"))
        chat(saver).invoke({"n": 1}, at("t"))
    with place.open() as saver:
        for who in (saver, saver.for_tenant("acme"), saver.for_tenant("beta")):
            assert [each.checkpoints for each in who.threads()] == [1]


def test_commands_are_limited_to_their_tenant(place: Place, tmp_path: Path) -> None:
    if place.options:  # a command finds a store by its URL alone
        place = Place("sqlite", f"sqlite:///{tmp_path / 'agent.db'}")
    with place.open() as saver:
        chat(saver.for_tenant("acme")).invoke({"n": 1}, at("ours"))
        chat(saver.for_tenant("beta")).invoke({"n": 1}, at("theirs"))
    url = ("--url", place.url)
    assert keel_json("tenants", *url)["tenants"] == ["acme", "beta"]
    found = keel_json("--tenant", "acme", "threads", *url)["threads"]
    assert [each["thread_id"] for each in found] == ["ours"]
    assert keel_json("threads", *url)["threads"] == []
    assert "except those of 2 tenants: `keel tenants`" in keel("threads", *url, COLUMNS="300").stdout
    for words in (("history", "theirs"), ("show", "theirs"), ("delete", "theirs", "--yes")):
        assert "there is no thread 'theirs'" in keel("--tenant", "acme", *words, *url, status=1).stderr
    with open_saver(place.url) as saver:
        assert saver.for_tenant("beta").get_tuple(at("theirs"))
    assert "cannot name a tenant" in keel("--tenant", "a/b", "threads", *url, status=2).stderr
    assert keel("threads", *url, KEEL_TENANT="beta").stdout.count("theirs") == 1


def test_each_tenant_has_a_key_and_all_are_rotated(tmp_path: Path) -> None:
    old, new = (LocalKey(name, bytes(range(number, number + 32))) for number, name in enumerate(("old", "new")))

    def open_with(*keys: LocalKey) -> SqliteSaver:
        return SqliteSaver(tmp_path / "agent.db", encryption=Keyring(*keys))

    with open_with(old) as saver:
        for who in (saver, saver.for_tenant("acme"), saver.for_tenant("beta")):
            chat(who).invoke({"n": 1}, at("t"))
    with open_with(new, old) as saver:
        assert saver.for_tenant("acme").keys.rotate().needed == "old"
        assert [saver.for_tenant(name).keys.list().is_current for name in ("acme", "beta")] == [True, False]
        assert not saver.keys.list().is_current
        assert saver.keys.rotate().needed == "old"
        assert saver.keys.list().is_current
    with open_with(new) as saver:
        for who in (saver, saver.for_tenant("acme"), saver.for_tenant("beta")):
            assert chat(who).invoke({"n": 5}, at("t")) == {"n": 6}


def test_sealed_data_of_a_tenant_does_not_open_as_that_of_another(tmp_path: Path) -> None:
    """Even if an attacker with database access renames it to the other tenant's."""
    keyring = Keyring(LocalKey("k", bytes(range(32))))
    with SqliteSaver(tmp_path / "agent.db", encryption=keyring) as saver:
        for name in ("acme", "beta"):
            chat(saver.for_tenant(name)).invoke({"n": 1}, at("t" if name == "acme" else "u"))
    with sqlite3.connect(tmp_path / "agent.db") as database:
        for table, column in (("threads", "name"), ("shelves", "thread")):
            database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", ("\x1facme\x1f", "\x1fbeta\x1f"))
    database.close()
    with SqliteSaver(tmp_path / "agent.db", encryption=keyring) as saver, pytest.raises(SealBroken):
        saver.for_tenant("beta").get_tuple(at("t"))


@pytest.mark.parametrize("encryption", [None, Keyring(LocalKey("k", bytes(range(32))))], ids=["plain", "sealed"])
def test_deleting_a_tenant_removes_all_of_its_data(place: Place, encryption: Keyring | None) -> None:
    with place.open(encryption=encryption) as saver:
        for who in (saver, saver.for_tenant("acme"), saver.for_tenant("beta")):
            chat(who).invoke({"n": 1}, at("t"))
            who.retention.set_policy(Retention(last=9))
        looked = saver.tenants.delete("acme", dry_run=True)
        assert (looked.threads, looked.checkpoints, looked.left, looked.complete) == (1, 3, True, False)
        told: list[tuple[int, int | None]] = []
        receipt = saver.tenants.delete("acme", on_progress=lambda done, total: told.append((done, total)))
        assert (receipt.threads, receipt.complete, receipt.problems) == (1, True, ())
        assert told[-1] == (1, 1)
        assert "tenant acme" in str(receipt)
        assert saver.tenants.list() == ["beta"]
        ours = saver.for_tenant("acme")
        assert (list(ours.threads()), ours.retention.policies(), ours.get_tuple(at("t"))) == ([], (), None)
        for who in (saver, saver.for_tenant("beta")):
            assert chat(who).invoke({"n": 5}, at("t")) == {"n": 6}
            assert len(who.retention.policies()) == 1
        (event,) = saver.approvals.audit()
        assert event.kind == "tenant deleted"
        assert event.content == {**(event.content or {}), "tenant": receipt.tenant_hash, "threads": 1}
        assert chat(ours).invoke({"n": 7}, at("t")) == {"n": 8}  # a tenant that returns has a new key
    with place.open(encryption=encryption) as saver:
        assert chat(saver.for_tenant("acme")).invoke({}, at("t")) == {"n": 9}
        assert asyncio.run(saver.tenants.adelete("acme")).complete
        assert asyncio.run(saver.tenants.alist()) == ["beta"]
        assert not saver.tenants.delete("acme").threads


def test_an_interrupted_deletion_of_a_tenant_is_completed_by_the_next(place: Place) -> None:
    """Cut off after each request that writes."""
    with place.open() as saver:
        view = saver.for_tenant("acme")
        for cut in range(4):
            for name in "tuv":
                chat(view).invoke({"n": 1}, at(name))
            view.retention.set_policy(Retention(last=9))
            plan = view.engine.session.store.delete_all(1)
            with contextlib.suppress(StopIteration):
                request = next(plan)
                for _ in range(cut):
                    request = plan.send(saver.engine.driver.send(request))
            assert saver.tenants.delete("acme", reclaim=False).complete
            assert saver.tenants.list() == []


def test_deleting_a_tenant_removes_damaged_threads(tmp_path: Path) -> None:
    with FileSaver(tmp_path / "store") as saver:
        chat(saver.for_tenant("acme")).invoke({"n": 1}, at("t"))
        (log,) = (tmp_path / "store" / "tenants" / "acme").glob("threads/*/log.jsonl")
        log.write_bytes(b"damage\n" * 3)
        assert saver.tenants.delete("acme").complete
    assert not (tmp_path / "store" / "tenants" / "acme").exists()


def test_a_tenant_deleted_by_another_process_can_be_used_again(place: Place) -> None:
    with place.open() as ours, place.open() as others:
        chat(ours.for_tenant("acme")).invoke({"n": 1}, at("t"))
        ours.for_tenant("acme").retention.set_policy(Retention(last=9))
        assert others.tenants.delete("acme").complete
        ours.for_tenant("acme").retention.set_policy(Retention(last=8))
        assert others.for_tenant("acme").retention.policies() == (Retention(last=8),)
        assert chat(ours.for_tenant("acme")).invoke({"n": 1}, at("t")) == {"n": 2}


def test_invalid_deletions_of_a_tenant_are_refused(saver: KeelSaver, tmp_path: Path) -> None:
    chat(saver.for_tenant("acme")).invoke({"n": 1}, at("t"))
    for name in WRONG:
        with pytest.raises(InvalidInput, match="cannot name a tenant"):
            saver.tenants.delete(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="tenant 'acme'"):
        saver.for_tenant("acme").tenants.delete("acme")
    with pytest.raises(InvalidInput, match="reclaim"):
        saver.tenants.delete("acme", reclaim="all")  # type: ignore[arg-type]
    assert saver.tenants.list() == ["acme"]
    with SqliteSaver(tmp_path / "agent.db", tenants="required") as strict:
        chat(strict.for_tenant("acme")).invoke({"n": 1}, at("t"))
        assert strict.tenants.delete("acme").complete
    with SqliteSaver(tmp_path / "agent.db", read_only=True) as reader, pytest.raises(ReadOnlyStore):
        reader.tenants.delete("acme")


def test_a_tenant_is_deleted_by_a_command(tmp_path: Path) -> None:
    url = ("--url", f"sqlite:///{tmp_path / 'agent.db'}")
    with SqliteSaver(tmp_path / "agent.db") as saver:
        for tenant in ("acme", "beta"):
            chat(saver.for_tenant(tenant)).invoke({"n": 1}, at("t"))
    taken = keel_json("tenants", "--usage", *url)["usage"]
    assert {name: each["threads"] for name, each in taken.items()} == {"acme": 1, "beta": 1}
    assert "acme" in keel("tenants", "--usage", *url).stdout
    assert "confirmation is required" in keel("tenants", "delete", "acme", *url, status=2).stderr
    assert "name the tenant" in keel("tenants", "delete", *url, status=2).stderr
    assert keel_json("tenants", "delete", "acme", "--dry-run", *url)["threads"] == 1
    assert keel_json("tenants", *url)["tenants"] == ["acme", "beta"]
    deleted, *more = keel("tenants", "delete", "acme", "--yes", *url).stdout.splitlines()
    assert deleted.startswith("Deleted: all data of tenant acme: 1 thread")
    assert more[-1].startswith("Not deleted: ")
    assert keel_json("tenants", *url)["tenants"] == ["beta"]


def test_usage_is_grouped_by_tenant(place: Place, tmp_path: Path) -> None:
    with place.open() as saver:
        for who, threads in ((saver, "t"), (saver.for_tenant("acme"), "tu"), (saver.for_tenant("beta"), "tuv")):
            for name in threads:
                chat(who).invoke({"n": 1}, {"configurable": {"thread_id": name, "user_id": f"owner of {name}"}})
        by_tenant = saver.usage("tenant", bytes=True)
        assert {name: (each.threads, each.checkpoints) for name, each in by_tenant.items()} == {
            "beta": (3, 9),
            "acme": (2, 6),
            "": (1, 3),
        }
        assert list(by_tenant) == ["beta", "acme", ""]
        sizes = [each.bytes or 0 for each in by_tenant.values()]
        assert sizes[0] > sizes[1] > sizes[2] > 100
        beta = saver.for_tenant("beta")
        assert {name: each.threads for name, each in beta.usage().items()} == dict.fromkeys(
            ["owner of t", "owner of u", "owner of v"], 1
        )
        assert asyncio.run(beta.ausage("thread")) == beta.usage("thread")
        assert {name: each.threads for name, each in beta.usage("status").items()} == {"done": 3}
        (day,) = beta.usage("day").values()
        assert (day.threads, day.bytes) == (3, None)
        assert beta.usage(until=datetime(2020, 1, 1, tzinfo=UTC)) == {}
        for by in ("model", "nobody", 7):
            with pytest.raises(InvalidInput, match="by must be one of"):
                beta.usage(by)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="cannot list other tenants"):
            beta.usage("tenant")
    if place.options:
        return
    found = keel_json("usage", "--by", "tenant", "--bytes", "--url", place.url)["usage"]
    assert {name: each["bytes"] > 100 for name, each in found.items()} == {"beta": True, "acme": True, "": True}
    for by in ("owner", "status", "day", "thread"):
        assert "checkpoints" in keel("--tenant", "beta", "usage", "--by", by, "--url", place.url).stdout
    assert (
        "cannot list other tenants"
        in keel("--tenant", "beta", "usage", "--by", "tenant", "--url", place.url, status=2).stderr
    )
    assert "… and 2 more" in keel("--tenant", "beta", "usage", "--by", "thread", "-n", "1", "--url", place.url).stdout
