"""Threads whose owner an erasure cannot know: strays and unreadable threads."""

from __future__ import annotations

import sqlite3
from asyncio import to_thread
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.retention.people import config, cut_off, graph, ids, say
from support.retention.people import store as store
from support.savers import each_backend, each_face

from langgraph_keel import FileSaver, InvalidInput, KeelCache, KeelSaver, Receipt, Retention, SqliteSaver
from langgraph_keel.engine.cells import Cell, Shelf
from langgraph_keel.engine.encoding.bodies import frame


async def called(saver: Any, face: str, verb: str, *args: Any, **options: Any) -> Any:
    if face == "sync":
        return await to_thread(getattr(saver.retention, verb), *args, **options)
    return await getattr(saver.retention, f"a{verb}")(*args, **options)


def archive_late(saver: KeelSaver) -> None:
    """Store a part like a summary that ends after its thread was deleted."""
    core = saver.engine.session
    saver.engine.run(core.store.swap_cell(Shelf("late", "archive"), "k", None, Cell("1", frame(b"ann says"))))


# -- threads without a checkpoint --------------------------------------------------------------------------------------


@each_backend
@each_face
async def test_strays_after_an_erasure_are_counted_until_reclaimed(store: Any, face: str) -> None:
    with store.open() as saver, store.open() as other:
        await to_thread(say, saver, "t", "ann")
        await to_thread(say, saver, "of bob", "bob")
        receipt: Receipt = await called(saver, face, "erase", "ann")
        assert (receipt.complete, receipt.strays) == (True, 0)
        await to_thread(cut_off, other)
        await to_thread(archive_late, other)
        for person in ("ann", "bob"):
            looked = await called(saver, face, "erase", person, dry_run=True)
            assert (looked.complete, looked.strays, looked.to_dict()["strays"]) == (False, 2, 2)
        receipt = await called(saver, face, "erase", "ann")
        assert (receipt.threads, receipt.complete, receipt.strays) == ((), False, 2)
        assert "Not erased: 2 threads with something stored but no checkpoint" in str(receipt)
        assert "without a checkpoint" not in (await called(saver, face, "reclaim_space", full=True)).note
        assert b"ann " in await to_thread(store.raw)
        assert (
            "2 threads without a checkpoint removed" in (await called(saver, face, "reclaim_space", strays=True)).note
        )
        assert (await called(saver, face, "erase", "ann")).complete
        assert b"ann " not in await to_thread(store.raw)
        assert await to_thread(ids, saver) == ["of bob"]


@each_backend
def test_writes_at_the_end_of_an_erasure_are_erased(store: Any) -> None:
    with store.open() as saver, store.open() as other:
        say(saver, "t", "ann")
        ends = [lambda: None, lambda: cut_off(other)]  # at the first deletion of all threads, and at the second

        def tell(done: int, total: int | None) -> None:
            if done == total and ends:
                ends.pop(0)()

        receipt = saver.retention.erase("ann", on_progress=tell)
        assert (receipt.threads, receipt.complete, ends) == (("t",), True, [])
        assert b"ann" not in store.raw()


@each_backend
def test_a_thread_that_begins_during_a_reclaim_is_kept(store: Any) -> None:
    with store.open() as saver, store.open() as other:
        say(saver, "of bob", "bob")
        cut_off(other)
        saver.retention.reclaim_space(
            full=True,
            strays=True,
            on_progress=lambda done, total: say(other, "t", "ann") if not ids(other)[1:] else None,
        )
        assert ids(saver) == ["of bob", "t"]


@each_backend
def test_the_owner_of_a_thread_without_checkpoints_is_known(store: Any) -> None:
    run_id = "5f0c2a91-0000-4000-8000-000000000000"
    with store.open() as saver:
        asked: Any = {**config("t", "ann"), "metadata": {"run_id": run_id}}
        graph(saver, asks=True).invoke({"messages": [HumanMessage("ann asks")]}, asked)
        saver.delete_for_runs([run_id])
        assert (saver.retention.erase("bob").complete, saver.retention.erase("ann").threads) == (True, ("t",))


def test_a_failed_search_for_strays_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann")

        def fail(*args: Any) -> Any:
            yield from ()
            raise InvalidInput("no")

        monkeypatch.setattr(saver.engine.session.store, "list_strays", fail)
        receipt = saver.retention.erase("ann")
        assert (receipt.threads, receipt.complete) == (("t",), False)
        assert "Not done: threads without a checkpoint could not be searched: no" in str(receipt)


# -- threads that cannot be read ---------------------------------------------------------------------------------------


def damage(path: Path, column: str, thread: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE entries SET {column} = x'00' WHERE key >> 32 = ?", (thread,))


def test_an_unreadable_thread_is_not_erased_by_its_requests_alone(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann", asks=True)
        damage(tmp_path / "keel.db", "header", 1)
        receipt = saver.retention.erase("ann")
        assert (receipt.threads, list(receipt.failed), receipt.complete) == ((), ["t"], False)
        assert len(list(saver.approvals.pending("t"))) == 1


def test_a_damaged_thread_does_not_stop_reclaiming(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for thread in ("a", "b"):
            say(saver, thread, "ann")
        damage(tmp_path / "keel.db", "refs", 1)
        reclaimed = saver.retention.reclaim_space(full=True)
        assert reclaimed.note.startswith("1 damaged thread left alone: 'a'; the file was rewritten")
        assert ids(saver) == ["a", "b"]


# -- the owner of a checkpoint -----------------------------------------------------------------------------------------


def test_an_empty_user_id_names_no_owner(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", owner=lambda asked: "ann") as saver:
        say(saver, "t", "")
        assert saver.retention.erase("ann").threads == ("t",)
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "u", "ann")
        say(saver, "u", "")
        saver.prune(["u"])
        assert saver.retention.erase("ann").threads == ("u",)


def test_inherited_owners_are_known_beyond_the_size_of_the_memo(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", memo_entries=1) as saver:

        def answer(state: MessagesState) -> Any:
            say(saver, "other", "bob")
            return {"messages": [AIMessage("yes")]}

        builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
        chat: Any = builder.compile(checkpointer=saver)
        for owner in ("ann", None):
            chat.invoke({"messages": [HumanMessage("well?")]}, config("t", owner))
        assert [found.metadata.get("user_id") for found in saver.list(config("t"))] == ["ann"] * 6
        assert saver.retention.erase("ann").threads == ("t",)
        say(saver, "t")
        assert [found.metadata.get("user_id") for found in saver.list(config("t"))] == [None] * 3


class Named(MessagesState):
    """A state with a channel whose name is also a metadata key for owners."""

    user_id: str


@each_backend
def test_a_channel_named_user_id_is_not_an_owner(store: Any) -> None:
    with store.open() as saver:
        builder = StateGraph(Named).add_node("answer", lambda state: {"messages": [AIMessage("yes")]})
        named: Any = builder.add_edge(START, "answer").compile(checkpointer=saver)
        for n, owner in enumerate(("bob", "ann")):
            named.invoke({"messages": [HumanMessage(str(n))], "user_id": "bob"}, config("t", owner))
        saver.prune(["t"], strategy=Retention(last=1))
        assert [found.metadata["user_id"] for found in saver.list(config("t"))] == ["ann"]
        assert saver.retention.erase("bob").shared == ("t",)


# -- the receipt -------------------------------------------------------------------------------------------------------


def test_an_erasure_that_keeps_a_shared_thread_is_incomplete(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for owner in ("ann", "bob"):
            say(saver, "joint", owner)
        receipt = saver.retention.erase("ann")
        assert (receipt.shared, receipt.complete) == (("joint",), False)
        assert "backups" not in str(receipt).lower()  # nothing was removed, so backups contain no more than the store
        assert saver.retention.erase("ann", shared="delete").complete


def test_erasing_an_unknown_user_id_asks_whether_it_is_right(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann")
        receipt = saver.retention.erase("anne")
        assert receipt.complete
        assert "is the id right?" in str(receipt)
        assert "Not erased" not in str(receipt)


def test_a_dry_run_names_the_first_twenty_threads(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        for n in range(22):
            say(saver, f"<b>{n:02}", "ann")
        looked = saver.retention.erase("ann", dry_run=True)
        lines = str(looked).splitlines()
        assert (lines[1], lines[20], lines[21]) == ("  '<b>00'", "  '<b>19'", "  and 2 more")
        assert "&lt;b&gt;00" in looked._repr_html_()
        receipt = saver.retention.erase("ann")
        assert "<b>" not in str(receipt)
        assert receipt.reclaimed
        assert receipt.reclaimed._repr_html_().startswith("<pre")
        assert receipt.to_dict()["thread_count"] == 22


def test_space_is_measured_before_anything_is_erased(tmp_path: Path) -> None:
    with FileSaver(tmp_path) as saver:
        say(saver, "t", "ann")
        graph(saver).invoke({"messages": [HumanMessage(token_hex(2500))]}, config("u", "ann"))
        receipt = saver.retention.erase("ann")
        assert receipt.reclaimed
        assert receipt.reclaimed.before is not None
        assert receipt.reclaimed.after is not None
        assert receipt.reclaimed.before > 5000 > receipt.reclaimed.after


@pytest.mark.parametrize("wrong", ["full", None, 1])
async def test_full_must_be_a_bool(tmp_path: Path, wrong: Any) -> None:
    with SqliteSaver(tmp_path / "keel.db") as saver:
        with pytest.raises(InvalidInput, match="full must be True or False"):
            saver.retention.reclaim_space(full=wrong)
        with pytest.raises(InvalidInput, match="full must be True or False"):
            await saver.retention.areclaim_space(full=wrong)


def test_a_node_cache_is_erased_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_keel.engine.tables.PAGE", 2)
    with SqliteSaver(tmp_path / "keel.db") as saver:
        say(saver, "t", "ann")
        cached = KeelCache(saver)
        cached.set({(("node",), f"key {n}"): ([("messages", "of ann")], None) for n in range(5)})
        assert saver.retention.erase("ann", dry_run=True, node_cache="report").cached == 0
        assert (saver.retention.erase("ann", dry_run=True).cached, saver.retention.erase("ann").cached) == (5, 5)
        assert cached.get([(("node",), "key 3")]) == {}
