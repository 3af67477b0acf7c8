"""No tool runs unless the ledger is in the store of the graph's threads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from support.places import ON_SERVERS, Place
from support.savers import each_face

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SqliteSaver, TieredSaver, ToolCache
from langgraph_keel.engine.tables import Cells
from langgraph_keel.tools.ledger import SECRETS


class State(TypedDict, total=False):
    said: str


class Shop:
    """A graph whose only node pays, and the log of payments."""

    def __init__(self, keeper: Any, runs_on: Any, face: str) -> None:
        self.paid: list[int] = []
        self._is_async = face == "async"

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        kept = ToolCache(keeper).tool(pay)

        async def abuy(state: State) -> State:
            return {"said": await kept.ainvoke({"amount": 5})}

        node: Any = abuy if self._is_async else lambda state: {"said": kept.invoke({"amount": 5})}
        self.graph: Any = StateGraph(State).add_node("buy", node).add_edge(START, "buy").compile(checkpointer=runs_on)

    async def buy(self) -> Any:
        config = {"configurable": {"thread_id": "t"}}
        return await self.graph.ainvoke({}, config) if self._is_async else self.graph.invoke({}, config)


@each_face
@pytest.mark.parametrize("make", [MemorySaver, InMemorySaver])
async def test_a_graph_in_another_store_is_refused(saver: KeelSaver, make: Any, face: str) -> None:
    shop = Shop(saver, make(), face)
    with pytest.raises(InvalidInput, match=r"no tool was run\. Make the ToolCache with the saver"):
        await shop.buy()
    assert shop.paid == []


@each_face
async def test_another_saver_of_the_same_store_is_accepted(place: Place, face: str) -> None:
    with place.open() as one, place.open() as other:
        for keeper, runs_on in [(one, other), (one, TieredSaver(hot=MemorySaver(), cold=one)), (one, None)]:
            shop = Shop(keeper, runs_on, face)
            assert await shop.buy() == {"said": "paid"}
            assert shop.paid == [5]
            one.delete_thread("t")


@each_face
@ON_SERVERS
async def test_another_name_of_the_same_server_is_accepted(place: Place, face: str) -> None:
    with place.proxy() as proxy, place.open() as one, place.through(proxy).open() as other:
        assert await Shop(one, other, face).buy() == {"said": "paid"}


@each_face
async def test_another_path_of_the_same_file_is_accepted(tmp_path: Path, face: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with SqliteSaver(tmp_path / "real/a.db") as one, SqliteSaver(tmp_path / "link/a.db") as other:
        assert await Shop(one, other, face).buy() == {"said": "paid"}


async def test_comparing_stores_leaves_no_records(place: Place) -> None:
    with place.open() as one, place.open() as other:
        await Shop(one, other, "sync").buy()
        kept = one.engine.run(Cells(one.engine.session, SECRETS, None).every())
        assert [key.startswith("seen.") for key, _ in kept] == [False]


@each_face
async def test_each_tenant_has_its_own_ledger(place: Place, face: str) -> None:
    with place.open() as one, place.open() as other:
        assert await Shop(one.for_tenant("acme"), other.for_tenant("acme"), face).buy() == {"said": "paid"}
        shop = Shop(one.for_tenant("acme"), other.for_tenant("globex"), face)
        with pytest.raises(InvalidInput, match="no tool was run"):
            await shop.buy()
        assert shop.paid == []


class Wrapper(BaseCheckpointSaver[Any]):
    """A saver that wraps one of Keel's, as a server or an application may do."""

    def __init__(self, inner: KeelSaver) -> None:
        super().__init__()
        self.get_tuple, self.put, self.put_writes = inner.get_tuple, inner.put, inner.put_writes  # type: ignore[method-assign]
        self.get_next_version = inner.get_next_version  # type: ignore[method-assign]


async def test_a_wrapped_saver_is_warned_of_once(saver: KeelSaver, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(saver, Wrapper(saver), "sync")
    with caplog.at_level(logging.WARNING, "langgraph_keel.tools.cache"):
        assert await shop.buy() == {"said": "paid"}
        await shop.buy()
    (record,) = [each for each in caplog.records if each.name == "langgraph_keel.tools.cache"]
    assert "a graph runs on a Wrapper" in record.getMessage()
