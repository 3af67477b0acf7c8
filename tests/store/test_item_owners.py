"""Owners of items, and erasures of a person's items, threads or both."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from support.cli_threads import keel, keel_json
from support.retention.people import config, store
from support.retention.scans import places, postgres_apart
from support.savers import BACKENDS, each_backend, each_face, needing, redis_saver

from langgraph_keel import FileSaver, InvalidInput, Keyring, LocalKey, MemorySaver, Receipt, SqliteSaver, open_saver
from langgraph_keel.engine.cells import Cell, Search, Shelf
from langgraph_keel.testing.faults import Counter, with_tap

__all__ = ["store"]
ITEMS = Shelf(None, "items")


@pytest.fixture(autouse=True)
def _no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store values uncompressed, so that a search finds them."""
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.WORTHWHILE", 1 << 40)
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.SMALL", 0)


@pytest.fixture(params=[*BACKENDS, *(f"sealed-{name}" for name in BACKENDS if name != "memory")])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A saver on an empty store, on each backend; and encrypted, with hidden names."""
    sealed, _, name = request.param.rpartition("-")
    needing(name, request)
    options: dict[str, Any] = {}
    if sealed == "sealed":
        options["encryption"] = Keyring(LocalKey("k1", bytes(range(32))), hide_names=True)
    opened: Any = {
        "memory": lambda: MemorySaver(**options),
        "sqlite": lambda: SqliteSaver(tmp_path / "keel.db", **options),
        "files": lambda: FileSaver(tmp_path / "files", **options),
        "postgres": lambda: postgres_apart(**options),
        "redis": lambda: redis_saver(**options),
    }
    with opened[name]() as saver:
        yield saver


def graph(saver: Any, face: str, said: str, noted: str, **put: Any) -> Any:
    """A graph that stores a message in the thread and an item in the store."""

    def remember(state: MessagesState, *, store: BaseStore) -> Any:
        store.put(("notes",), noted, {"text": noted}, **put)
        return {"messages": [AIMessage(said)]}

    async def aremember(state: MessagesState, *, store: BaseStore) -> Any:
        await store.aput(("notes",), noted, {"text": noted}, **put)
        return {"messages": [AIMessage(said)]}

    node: Any = remember if face == "sync" else aremember
    builder = StateGraph(MessagesState).add_node("remember", node).add_edge(START, "remember")
    return builder.compile(checkpointer=saver, store=saver.store())


async def run(face: str, agent: Any, text: str, thread: Any) -> None:
    given = {"messages": [HumanMessage(text)]}
    await (to_thread(agent.invoke, given, thread) if face == "sync" else agent.ainvoke(given, thread))


async def erase(saver: Any, face: str, user: str, **options: Any) -> Receipt:
    if face == "sync":
        return await to_thread(saver.retention.erase, user, **options)
    receipt: Receipt = await saver.retention.aerase(user, **options)
    return receipt


def held(saver: Any) -> tuple[dict[str, Any], list[Any]]:
    """The items by their keys, and all checkpoints."""
    items = {item.key: item.value for item in saver.store().search((), limit=1000)}
    return items, list(saver.list(None))


async def live(saver: Any, face: str, name: str, said: str, noted: str) -> None:
    """Chat as a person who owns items by run, by namespace and by `owner=`."""
    await run(face, graph(saver, face, said, f"{noted}-run"), said, config(f"{name}-chat", name))
    store = saver.store()
    await to_thread(store.put, ("memories", name, "deep", "er"), f"{noted}-label", {"text": f"{noted} {name}"})
    await store.aput(("bookings",), f"{noted}-given", {"text": f"{noted} {name}"}, owner=name)


def is_sealed(saver: Any) -> bool:
    return saver.stack.keyring is not None


def found(saver: Any, mark: str) -> bool:
    """Whether a text is in the store, except in PostgreSQL's planner statistics."""
    return any("pg_statistic" not in where for where in places(saver, mark))


@each_face
@pytest.mark.parametrize("what", ["data", "threads"])
async def test_erase_removes_items_or_threads_as_requested(saver: Any, face: str, what: str) -> None:
    ada, said, noted, bob = (f"zq{token_hex(8)}" for _ in range(4))
    await live(saver, face, bob, f"{bob}-said", f"{bob}-noted")
    of_bob = await to_thread(held, saver)
    await live(saver, face, ada, said, noted)
    items, checkpoints = await to_thread(held, saver)
    assert (len(items), found(saver, said), found(saver, noted)) == (6, not is_sealed(saver), not is_sealed(saver))
    looked = await erase(saver, face, ada, what=what, dry_run=True)
    assert await to_thread(held, saver) == (items, checkpoints)
    receipt = await erase(saver, face, ada, what=what, reclaim="full")
    assert (looked.items, looked.items_left, looked.threads) == (receipt.items, receipt.items_left, receipt.threads)
    left = await to_thread(held, saver)
    if what == "data":
        assert (receipt.items, receipt.items_left, receipt.threads, receipt.complete) == (3, 0, (), True)
        assert left == (of_bob[0], checkpoints)
        assert (found(saver, noted), found(saver, said)) == (False, not is_sealed(saver))
        cells = await to_thread(saver.engine.run, saver.engine.session.store.list_cells(ITEMS, "", None, 100))
        assert len(cells) == 3
    else:
        assert (receipt.items, receipt.items_left, receipt.threads) == (0, 3, (f"{ada}-chat",))
        assert not receipt.complete
        assert "3 items of this person in the store (saver.store()), left alone: what='all'" in str(receipt)
        assert left == (items, of_bob[1])
        assert (found(saver, said), found(saver, noted)) == (False, not is_sealed(saver))
    receipt = await erase(saver, face, ada, what="all", reclaim="full")
    assert receipt.complete
    assert await to_thread(held, saver) == of_bob
    assert not any(found(saver, mark) for mark in (ada, said, noted))
    assert (await to_thread(saver.approvals.verify_audit)).ok
    (*_, last) = await to_thread(saver.approvals.audit)
    assert last.content["user"] == receipt.user_hash
    assert last.content.get("items", 0) == receipt.items


@each_backend
@each_face
async def test_the_owner_of_an_item_is_determined(store: Any, backend: str, face: str) -> None:
    with store.open() as saver:
        notes = saver.store()
        await run(face, graph(saver, face, "yes", "by her run"), "hello", config("t", "ann"))
        await run(face, graph(saver, face, "yes", "by her thread"), "hello", config("t"))
        await run(face, graph(saver, face, "yes", "public", owner=""), "hello", config("t", "ann"))
        await run(face, graph(saver, face, "yes", "of bob", owner="bob"), "hello", config("t", "ann"))
        await run(face, graph(saver, face, "yes", "of 7"), "hello", config("of 7", 7))
        await notes.aput(("notes",), "kept", {}, owner="ann")
        await notes.aput(("notes",), "kept", {"changed": "outside of runs"})
        await notes.aput(("notes",), "gone over", {}, owner="ann")
        await notes.aput(("notes",), "gone over", {}, owner="bob")
        await notes.aput(("notes",), "a field", {"owner:a": "nn", "owner": "ann"})
        await notes.aput(("notes", "annabel"), "of annabel", {})
        await notes.aput(("ann",), "by the first label", {}, owner="bob")
        await notes.aput(("notes", "ann"), "deleted", {})
        await notes.adelete(("notes", "ann"), "deleted")
        await notes.aput(("notes",), "deleted, too", {}, owner="ann")
        await notes.adelete(("notes",), "deleted, too")
        await notes.aput(("notes",), "deleted, too", {})
        every = {item.key for item in await notes.asearch((), limit=100)}
        receipt = await erase(saver, face, "ann", what="data")
        gone = every - {item.key for item in await notes.asearch((), limit=100)}
        assert gone == {"by her run", "by her thread", "kept", "by the first label"}
        assert receipt.items == 4
        assert (await erase(saver, face, "a=snn", what="data")).items == 0  # the mark of the field
        assert (await erase(saver, face, "7", what="data")).items == 1


@each_backend
def test_owners_add_no_trip_to_a_put_and_one_to_an_erasure(store: Any, backend: str) -> None:
    with store.open() as saver:
        counter = Counter()
        notes = with_tap(saver, counter).store()
        notes.put(("notes",), "a", {}, owner="ann")
        notes.put(("notes",), "a", {})
        assert counter.count == 2
        counter.count = 0
        with_tap(saver, counter).retention.erase("ann", what="data", dry_run=True)
        assert counter.count == 3  # values kept elsewhere, persons on hold, and the items


@each_backend
def test_items_written_during_an_erasure_are_erased(store: Any, backend: str) -> None:
    """A found item changes: its compare-and-set fails, and the next round removes it."""
    with store.open() as saver, store.open() as other:
        saver.store().put(("ann",), "a", {"n": 1})
        late = [1]

        class Meanwhile(Counter):
            def replied(self, request: Any, reply: Any) -> None:
                if self.count == 2 and late:
                    other.store().put(("ann",), "a", {"n": late.pop()})

        assert with_tap(saver, Meanwhile()).retention.erase("ann", what="data").items == 1
        assert not late
        assert saver.store().search(()) == []


@each_backend
def test_an_undecodable_item_is_reported_and_others_are_erased(store: Any, backend: str) -> None:
    with store.open() as saver:
        notes, session = saver.store(), saver.engine.session
        for key in "ab":
            notes.put(("ann",), key, {})
        (key, cell), _ = saver.engine.run(session.store.find_cells(ITEMS, Search()))
        broken = Cell("broken", session.codec.encode(["odd"]), rank=cell.rank, marks=cell.marks)
        assert saver.engine.run(session.store.swap_cell(ITEMS, key, cell.token, broken)).done
        receipt = saver.retention.erase("ann", what="all")
        assert (receipt.items, receipt.complete) == (1, False)
        assert "an item is left that may be theirs: an item of the store" in receipt.problems[0]


@pytest.mark.parametrize("owner", ["an\0n", 7, b"ann"])
def test_an_invalid_owner_is_refused(owner: Any) -> None:
    with MemorySaver() as saver:
        with pytest.raises(InvalidInput, match="owner"):
            saver.store().put(("a",), "key", {}, owner=owner)
        assert saver.store().search(()) == []


def test_invalid_scopes_and_namespaces_are_refused() -> None:
    with MemorySaver() as saver, pytest.raises(InvalidInput, match="what must be 'threads', 'data' or 'all'"):
        saver.retention.erase("ann", what="items")  # type: ignore[arg-type]
    with MemorySaver() as saver:
        store = saver.store()
        for namespace in ((), ("langgraph", "a"), ("a.b",)):
            with pytest.raises(InvalidInput, match=r"is not a namespace|cannot be empty"):
                store.put(namespace, "key", {}, owner="ann")


def test_keel_erase_removes_items(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver:
        saver.store().put(("memories", "ann"), "a", {})
    assert "1 item of this person" in keel("erase", "--user", "ann", "--dry-run", "--url", url).stdout
    said = keel_json("erase", "--user", "ann", "--what", "data", "--yes", "--url", url)
    assert (said["what"], said["items"], said["complete"]) == ("data", 1, True)
    told = keel("erase", "--user", "ann", "--what", "data", "--yes", "--url", url).stdout
    assert "Erased: 0 items of the store\nThreads were not searched, no item names this person\n" in told
