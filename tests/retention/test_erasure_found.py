"""The search for a person's threads, and writes that interfere with an erasure."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.places import Place, file_place
from support.process_children import exit_code, forked
from support.repositories import Repository, isolate
from support.retention.people import config, cut_off, graph, ids, say
from support.retention.people import store as store
from support.savers import each_backend

from langgraph_keel import (
    FileSaver,
    InvalidConfig,
    InvalidInput,
    KeelCache,
    KeelSaver,
    KeelSerializer,
    Receipt,
    Retention,
    SqliteSaver,
)
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header, UnreadHeader, pack_header
from langgraph_keel.engine.records import Node
from langgraph_keel.engine.serde.serializer import Codec
from langgraph_keel.retention.owners import find_lost_owners

# -- the owners of a thread --------------------------------------------------------------------------------------------


@each_backend
def test_threads_of_several_people_are_reported_or_deleted(store: Any) -> None:
    with store.open() as saver:
        owners: Any = {"own": ["ann"], "joint": ["ann", "bob"], "of bob": ["bob"], "nobody's": [None]}
        for thread, owner in ((thread, owner) for thread, names in owners.items() for owner in names):
            say(saver, thread, owner)
        saver.copy_thread("own", "copied")
        saver.fork(config("own"), "forked for bob")
        say(saver, "forked for bob", "bob")
        receipt = saver.retention.erase("ann")
        assert (receipt.threads, receipt.shared) == (("copied", "own"), ("forked for bob", "joint"))
        assert any("2 threads with checkpoints" in sentence for sentence in receipt.exempt)
        assert any(sentence.startswith("1 thread without an owner") for sentence in receipt.exempt)
        assert ids(saver) == ["forked for bob", "joint", "nobody's", "of bob"]
        assert saver.retention.erase("ann", shared="delete").threads == ("forked for bob", "joint")
        assert ids(saver) == ["nobody's", "of bob"]


@each_backend
def test_a_run_without_a_user_id_inherits_the_owner(store: Any) -> None:
    with store.open() as saver, store.open() as other:
        say(saver, "t", "ann")
        say(saver, "t")
        say(other, "t")
        other.prune(["t"])
        assert [found.metadata.get("user_id") for found in saver.list(config("t"))] == ["ann"]
        say(saver, "t", "bob")
        assert saver.retention.erase("ann", dry_run=True).shared == ("t",)


@each_backend
def test_owners_named_only_by_pruned_checkpoints_are_kept(store: Any) -> None:
    with store.open() as saver:
        for owner in ("ann", "Evelyn", "bob"):
            say(saver, "t", owner)
        saver.prune(["t"])
        saver.prune(["t"])
        saver.copy_thread("t", "copied")
        saver.fork(config("t"), "forked")
        assert [found.metadata["user_id"] for found in saver.list(config("t"))] == ["bob"]
        for person in ("ann", "Evelyn", "bob"):
            receipt = saver.retention.erase(person)
            assert (receipt.threads, receipt.shared) == ((), ("copied", "forked", "t"))
        assert len(saver.retention.erase("ann", shared="delete").threads) == 3
        assert b"Evelyn" not in store.raw()


def test_owners_of_deleted_runs_are_kept(tmp_path: Path) -> None:
    run_id = "5f0c2a91-0000-4000-8000-000000000000"
    with SqliteSaver(tmp_path / "keel.db") as saver:
        graph(saver).invoke({"messages": [HumanMessage("ann")]}, {**config("t", "ann"), "metadata": {"run_id": run_id}})
        say(saver, "t", "bob")
        saver.delete_for_runs([run_id])
        assert saver.retention.erase("ann").shared == ("t",)


SMALL, LARGE = "x", "".join(chr(97 + n % 26) for n in range(3000))


@pytest.mark.parametrize("note", [SMALL, LARGE], ids=["plain", "compressed"])
@pytest.mark.parametrize("serde", [None, JsonPlusSerializer()], ids=["own", "foreign"])
def test_lost_owners_are_found_in_the_bytes_of_headers(note: str, serde: Any) -> None:
    decoded: list[bytes] = []

    class CountingCodec(Codec):
        def decode(self, body: bytes) -> list[Any]:
            decoded.append(body)
            return super().decode(body)

    codec = CountingCodec(serde or KeelSerializer())
    owners: list[Any] = ["ann", None, "ann", 7, "bob", "bo", "anna", "ann"]
    moments = []
    for n, owner in enumerate(owners):
        metadata = {"note": note, **({} if owner is None else {"user_id": owner})}
        body = pack_header(Header({"id": n}, metadata, {"user_id": "eve"} if n == 7 else {}), codec, Address("t"))
        node = Node(Address("t", "", str(n)), None, n, body, {}, None, False, False)
        moments.append((node, UnreadHeader(node, codec)))
    assert find_lost_owners(moments, {4}) == ["7", "ann", "anna", "bo"]
    assert len(decoded) == (8 if serde else 5)  # each owner once, and entries where a channel has that name too
    assert find_lost_owners(moments, ()) == []


@each_backend
def test_a_user_id_with_nul_is_refused(store: Any) -> None:
    """LangGraph drops NUL from metadata: `ada\\0` would become `ada`."""
    with store.open() as saver:
        say(saver, "t", "ada")
        with pytest.raises(InvalidConfig, match="NUL"):
            saver.retention.erase("ada\0")
        with pytest.raises(InvalidConfig, match="NUL"):
            say(saver, "other", "ada\0")
        assert [info.thread_id for info in saver.threads()] == ["t"]


@each_backend
def test_a_dry_run_writes_nothing(store: Any) -> None:
    with store.open() as saver:
        say(saver, "t", 7, asks=True)
        before = store.raw()
        receipt = saver.retention.erase("7", dry_run=True)
        assert (receipt.threads, receipt.checkpoints, receipt.requests) == (("t",), 2, 1)
        assert (receipt.complete, receipt.dry_run, receipt.reclaimed) == (True, True, None)
        assert store.raw() == before


@each_backend
def test_a_thread_without_checkpoints_is_found_by_its_requests(store: Any) -> None:
    with store.open() as saver:
        run_id = "5f0c2a91-0000-4000-8000-000000000000"
        start = {"messages": [HumanMessage("ann asks")]}
        graph(saver, asks=True).invoke(start, {**config("t", "ann"), "metadata": {"run_id": run_id}})
        saver.delete_for_runs([run_id])
        assert ids(saver) == []
        assert saver.retention.erase("ann").threads == ("t",)
        assert b"ann" not in store.raw()


def test_an_owner_function_names_the_owner(tmp_path: Path) -> None:
    def owner(asked: Any) -> str | None:
        return str(asked["configurable"]["thread_id"]).partition("/")[0] or None

    with SqliteSaver(tmp_path / "keel.db", owner=owner) as saver:
        for thread, named in (("ann/1", None), ("ann/2", "bob"), ("/", None)):
            say(saver, thread, named, asks=True)
        found = {
            thread: graph(saver).get_state(config(thread)).metadata.get("user_id") for thread in ("ann/1", "ann/2", "/")
        }
        assert found == {"ann/1": "ann", "ann/2": "bob", "/": None}
        assert [request.owner for request in saver.approvals.pending()] == ["ann", "bob", ""]
        assert saver.retention.erase("ann").threads == ("ann/1",)


def test_a_uuid_can_name_an_owner_in_a_store_in_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)
    Repository.made(tmp_path)
    with FileSaver(tmp_path / "store", git=True, owner=lambda asked: "bob") as saver:
        say(saver, "a", UUID(int=7), asks=True)
        say(saver, "b", asks=True)
        assert {request.thread_id: request.owner for request in saver.approvals.pending()} == {
            "a": str(UUID(int=7)),
            "b": "bob",
        }
        assert saver.retention.erase(str(UUID(int=7)), dry_run=True).threads == ("a",)
        assert saver.retention.erase(UUID(int=7)).threads == ("a",)


@pytest.mark.parametrize("said", ["a failure", "a number"])
def test_a_failing_owner_function_stores_nothing(said: str, tmp_path: Path) -> None:
    def owner(asked: Any) -> Any:
        return 1 // 0 if said == "a failure" else 17

    with SqliteSaver(tmp_path / "keel.db", owner=owner) as saver:
        with pytest.raises(InvalidInput, match=r"owner= .* nothing was written"):
            say(saver, "t")
        assert ids(saver) == []
        say(saver, "t", "ann")
        assert ids(saver) == ["t"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"user_id": ""},
        {"user_id": None},
        {"user_id": True},
        {"shared": "all"},
        {"node_cache": "keep"},
        {"reclaim": "fulll"},
        {"dry_run": "yes"},
    ],
    ids=str,
)
def test_invalid_arguments_of_erase_are_refused(wrong: Any, tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver, pytest.raises(InvalidInput, match=next(iter(wrong))):
        saver.retention.erase(**{"user_id": "ann", **wrong})


# -- interference ------------------------------------------------------------------------------------------------------


def meddling(saver: KeelSaver, write: Callable[[KeelSaver], object], times: int) -> Callable[[int, int | None], None]:
    """Write each time that all found threads are deleted, up to `times` times."""
    left = [write] * times

    def tell(done: int, total: int | None) -> None:
        if done == total and left:
            left.pop()(saver)

    return tell


@each_backend
@pytest.mark.parametrize("times", [1, 9], ids=["once", "always"])
def test_concurrent_runs_are_erased_or_reported(store: Any, times: int) -> None:
    with store.open() as saver, store.open() as other:
        say(saver, "t", "ann")
        tell = meddling(other, lambda saver: say(saver, "t", "ann"), times)
        receipt = saver.retention.erase("ann", on_progress=tell)
        assert (receipt.threads, receipt.failed.keys()) == ((("t",), set()) if times == 1 else ((), {"t"}))
        assert receipt.complete is (times == 1)
        assert ids(saver) == ([] if times == 1 else ["t"])
        assert saver.retention.erase("ann").complete
        assert ids(saver) == []


@each_backend
def test_late_writes_of_a_cancelled_task_are_erased(store: Any) -> None:
    with store.open() as saver, store.open() as other:
        say(saver, "t", "ann")
        assert saver.retention.erase("ann", on_progress=meddling(other, cut_off, 1)).complete
        assert b"ann" not in store.raw()


def test_an_unreadable_thread_does_not_stop_an_erasure(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for thread in ("a", "b", "c"):
            say(saver, thread, "ann")
        with sqlite3.connect(tmp_path / "keel.db") as connection:
            connection.execute("UPDATE entries SET header = x'00' WHERE key >> 32 = 2")
        connection.close()
        receipt = saver.retention.erase("ann")
        assert (receipt.threads, list(receipt.failed), receipt.complete) == (("a", "c"), ["b"], False)
        assert "its owner is unknown" in receipt.failed["b"]
        assert "Not done: 1 thread" in str(receipt)


def erase_and_die(place: Place) -> None:
    def tell(done: int, total: int | None) -> None:
        if (done, total) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)

    place.open().retention.erase("ann", on_progress=tell)


def test_a_killed_erasure_is_completed_by_the_next(place: Place) -> None:
    with place.open() as saver:
        for thread in ("a", "b", "c"):
            say(saver, thread, "ann")
        say(saver, "d", "bob")
    assert exit_code(forked(erase_and_die, place)) == -signal.SIGKILL
    with place.open() as saver:
        assert ids(saver) == ["b", "c", "d"]
        assert saver.retention.erase("ann").threads == ("b", "c")
        assert ids(saver) == ["d"]
    place.check()


def test_a_receipt_lists_data_that_was_not_erased(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann")
        say(saver, "of bob", "bob", asks=True)
        (request,) = saver.approvals.pending()
        saver.approvals.answer(request.id, value=1, by="ann")
        saver.retention.set_policy(Retention(threads="ann-*", last=3))
        cached = KeelCache(saver)
        cached.set({(("node",), "key"): ([("messages", "of ann")], None)})
        receipt = saver.retention.erase("ann", node_cache="report")
        assert (receipt.threads, receipt.cached, cached.get([(("node",), "key")]) != {}) == (("t",), 0, True)
        for words in (
            "1 result in the cache of nodes",
            "1 request for approval in threads of others",
            "1 retention rule",
        ):
            assert any(sentence.startswith(words) for sentence in receipt.exempt)
            assert f"Not erased: {words}" in str(receipt)
        assert saver.retention.erase("ann").cached == 0  # no thread was deleted
        say(saver, "t", "ann")
        assert (saver.retention.erase("ann").cached, cached.get([(("node",), "key")])) == (1, {})


# -- the receipt -------------------------------------------------------------------------------------------------------


def receipt_in(place: Place) -> Receipt:
    with place.open() as saver:
        say(saver, "ann's thread", "ann")
        return saver.retention.erase("ann")


def test_a_receipt_does_not_name_the_person(tmp_path: Path) -> None:
    receipt = receipt_in(file_place(tmp_path))
    assert receipt.threads == ("ann's thread",)
    for told in (str(receipt), str(receipt.to_dict())):
        assert "ann" not in told.replace("anned", "").replace("planner", "").replace("cannot", "")
        assert receipt.user_hash in told
