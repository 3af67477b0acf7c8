"""Arguments beyond a tool's schema: aliases, extra and generated values, classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict, Field
from support.tool_graphs import FACES, Killed, answers, calls, hello, run, strictly, thread, tool_graph
from support.tools.caches import THREAD

from langgraph_keel import MemorySaver, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.engine.engine import EngineSaver

pytestmark = pytest.mark.timeout(30)


class Made(TypedDict):
    results: list[str]


async def made(face: str, kept: BaseTool, saver: EngineSaver, *args: dict[str, Any]) -> list[str]:
    """Call a kept tool from a node, once with each of these arguments."""

    def node(state: Made) -> Made:
        return {"results": [kept.invoke(dict(each)) for each in args]}

    async def anode(state: Made) -> Made:
        return {"results": [await kept.ainvoke(dict(each)) for each in args]}

    graph = StateGraph(Made).add_node("make", node if face == "sync" else anode).add_edge(START, "make")
    result = await run(graph.compile(checkpointer=saver), face, {"results": []}, thread("t"))
    return list(result["results"])


@pytest.mark.parametrize("face", FACES)
async def test_a_required_idempotency_argument_is_passed_and_the_call_is_cached(face: str) -> None:
    """The tool alone would refuse the call: only the cache passes the key."""
    keys: list[str] = []

    @tool
    def pay(amount: int, key: str) -> str:
        """Pay."""
        keys.append(key)
        return f"paid {amount}"

    with ToolCache(MemorySaver(), {"pay": ToolPolicy(scope="thread", idempotency_argument="key")}) as cache:
        said = await made(face, cache.tool(pay), cache.saver, {"amount": 5}, {"amount": 5}, {"amount": 6})
        assert sorted(call.idempotency_key for call in cache.saver.tools.calls("t")) == sorted(keys)
    assert said == ["paid 5", "paid 5", "paid 6"]
    assert len(set(keys)) == len(keys) == 2
    assert all(keys)


class Letter(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    sender: str = Field(alias="from")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    table: str


class Query(BaseModel):
    q: str
    limit: int = Field(10, alias="max")


SCHEMAS: dict[str, tuple[type[BaseModel], dict[str, Any], dict[str, Any]]] = {
    "a required alias": (Letter, {"from": "me"}, {"from": "you"}),
    "arguments without names": (Open, {"table": "users", "id": 1}, {"table": "users", "id": 2}),
    "an optional alias": (Query, {"q": "a", "max": 1}, {"q": "a", "max": 2}),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("case", SCHEMAS)
async def test_aliases_and_extra_arguments_are_part_of_the_key(case: str, face: str) -> None:
    schema, one, other = SCHEMAS[case]
    runs: list[Any] = []

    def find(**args: Any) -> str:
        runs.append(args)
        return str(args)

    told = StructuredTool.from_function(find, name="find", description="find", args_schema=schema)
    plain = [told.invoke(dict(args)) for args in (one, other, one)]
    runs.clear()
    with ToolCache(MemorySaver(), default=THREAD) as cache:
        assert await made(face, cache.tool(told), cache.saver, one, other, one) == plain
        assert len(list(cache.saver.tools.calls("t"))) == 2
    assert len(runs) == 2


class Payment(BaseModel):
    to: str
    request_id: str = Field(default_factory=lambda: uuid4().hex)


@pytest.mark.parametrize("face", FACES)
async def test_a_generated_default_does_not_change_the_key(face: str) -> None:
    acted: list[str] = []

    def pay(to: str, request_id: str) -> str:
        acted.append(request_id)
        raise Killed

    paying = StructuredTool.from_function(pay, name="pay", description="pay", args_schema=Payment)
    with ToolCache(MemorySaver(), default=THREAD) as cache:
        graph = tool_graph(cache, [paying], [calls(("pay", {"to": "x"}, "call-1"))])
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        with pytest.raises(ToolOutcomeUnknown, match="pay"):
            await run(graph, face, None, thread("t"))
    assert len(acted) == 1


@pytest.mark.parametrize("ignored", [["conn"], []], ids=["ignored", "not given"])
async def test_a_tool_without_a_json_schema_is_cached(ignored: list[str]) -> None:
    @tool
    def query(sql: str, conn: Callable[[], int] | None = None) -> str:
        """Query."""
        return sql

    with ToolCache(MemorySaver(), {"query": ToolPolicy(scope="thread", ignore=ignored)}) as cache:
        assert await made("sync", cache.tool(query), cache.saver, {"sql": "x"}, {"sql": "x"}) == ["x", "x"]
        assert (cache.stats.hits, cache.stats.misses) == (1, 1)


class Item(BaseModel):
    name: str


@pytest.mark.parametrize("face", FACES)
async def test_stored_arguments_are_plain_data(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The serializer revives no user classes; the command line cannot import them."""
    strictly(monkeypatch)
    runs: list[Item] = []

    @tool
    def buy(item: Item) -> str:
        """Buy."""
        runs.append(item)
        return f"bought {item.name}"

    script = [calls(("buy", {"item": {"name": "tea"}}, f"call-{turn}")) for turn in (1, 2)]
    with ToolCache(MemorySaver(), default=THREAD, store_arguments=True) as cache:
        said = answers(await run(tool_graph(cache, [buy], script), face, hello(), thread("t")))
        assert [said[f"call-{turn}"].content for turn in (1, 2)] == ["bought tea", "bought tea"]
        (call,) = cache.saver.tools.calls("t")
        assert "'name': 'tea'" in repr(call.args)
        assert cache.clear("t") == 1
    assert len(runs) == 1
