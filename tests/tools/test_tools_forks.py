"""Ledgers of forks and copies: calls of the shared history are not repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolArg, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from support.savers import SAVERS, each_face, needing
from support.tool_graphs import (
    ASKED,
    BACKENDS,
    Killed,
    answers,
    calls,
    hello,
    is_replay,
    question,
    resume,
    run,
    thread,
    tool_graph,
)

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, NotFound, ToolCache, ToolOutcomeUnknown, ToolPolicy

ONE = calls(("refund", {"order": "17"}, "call-1"))
BOTH = calls(("look", {"order": "17"}, "call-0"), ("refund", {"order": "17"}, "call-1"))


class Shop:
    """A tool that looks up and one that acts; the process may die in the second one."""

    cache: ToolCache

    def __init__(self) -> None:
        self.looked, self.refunded = list[str](), list[str]()
        self.dies = self.asks = False

    def tools(self) -> list[BaseTool]:
        @tool
        def look(order: str) -> str:
            """Look."""
            self.looked.append(order)
            return "40"

        @tool
        def refund(order: str, key: Annotated[str, InjectedToolArg] = "") -> str:
            """Refund; must never happen twice."""
            if self.asks:
                interrupt("refund?")
            self.refunded.append(key)
            if self.dies:
                raise Killed
            return "refunded"

        return [look, refund]


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeelSaver]:
    needing(request.param, request)
    with SAVERS[request.param](tmp_path) as saver:
        yield saver  # type: ignore[misc]


@pytest.fixture
def shop() -> Shop:
    return Shop()


def graph_of(saver: KeelSaver, shop: Shop, *script: Any, **policy: Any) -> Any:
    shop.cache = ToolCache(saver, {"refund": ToolPolicy(idempotency_argument="key", **policy)})
    return tool_graph(shop.cache, shop.tools(), script or [ONE])


async def fork_of(saver: KeelSaver, face: str, at: Any, name: str = "fork") -> Any:
    return saver.fork(at, name) if face == "sync" else await saver.afork(at, name)


async def copy_of(saver: KeelSaver, face: str, name: str = "fork", source: str = "t") -> None:
    await saver.acopy_thread(source, name) if face == "async" else saver.copy_thread(source, name)


def moment(saver: KeelSaver, thread_id: str, node: str) -> Any:
    """Return the config of the latest checkpoint from which a node runs next."""
    return next(each.config for each in reversed(saver.timeline(thread_id)) if node in each.next)


async def die(graph: Any, face: str, shop: Shop, **options: Any) -> None:
    shop.dies = True
    with pytest.raises(Killed):
        await run(graph, face, hello(), thread("t"), **options)
    shop.cache.close()
    shop.dies = False


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("verb", ["fork", "copy"])
@each_face
async def test_a_doubt_is_inherited_by_a_fork(
    saver: KeelSaver, face: str, shop: Shop, verb: str, durability: Any
) -> None:
    graph = graph_of(saver, shop)
    await die(graph, face, shop, durability=durability)
    if verb == "fork":
        await fork_of(saver, face, thread("t"))
    else:
        await copy_of(saver, face)
    saver.delete_thread("t")
    with pytest.raises(ToolOutcomeUnknown) as doubt:
        await run(graph, face, None, thread("fork"))
    assert (doubt.value.thread_id, len(shop.refunded)) == ("fork", 1)
    shop.cache.settle("fork", doubt.value.key, "done", "paid")
    result = await run(graph, face, None, thread("fork"))
    assert (answers(result)["call-1"].content, len(shop.refunded)) == ("paid", 1)


def states_of(saver: KeelSaver, *threads: str) -> list[str]:
    return [each.state for name in threads for each in saver.tools.calls(name)]


@each_face
async def test_a_fork_sees_calls_settled_in_the_original(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Also a fork of the fork. A decision in a fork applies to that fork only."""
    graph = graph_of(saver, shop)
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    await fork_of(saver, face, thread("fork"), "again")
    await fork_of(saver, face, thread("t"), "other")
    (call,) = saver.tools.calls("t")
    shop.cache.settle("other", call.key, "skip")
    assert states_of(saver, "t", "fork", "again", "other") == ["unknown", "unknown", "unknown", "done"]
    shop.cache.settle("t", call.key, "done", "paid")
    assert states_of(saver, "t", "fork", "again", "other") == ["done"] * 4
    assert [saver.status(name).doubts for name in ("fork", "again")] == [(), ()]
    with pytest.raises(NotFound, match="nothing to settle"):
        shop.cache.settle("again", call.key, "retry")
    for name in ("fork", "again"):
        result = await run(graph, face, None, thread(name))
        assert (answers(result)["call-1"].content, len(shop.refunded)) == ("paid", 1)


@each_face
async def test_only_the_original_may_retry_a_call(saver: KeelSaver, face: str, shop: Shop) -> None:
    """With `retry` in the fork, both threads would pay."""
    graph = graph_of(saver, shop)
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    (call,) = saver.tools.calls("t")
    assert [each.original for name in ("t", "fork") for each in saver.tools.calls(name)] == ["", "t"]
    for _ in range(2):
        with pytest.raises(InvalidInput, match=r"is shared with thread 't', .* Settle it in 't'"):
            await saver.tools.asettle("fork", call.key, "retry")
        if states_of(saver, "t") == ["unknown"]:
            shop.cache.settle("t", call.key, "retry")
    assert states_of(saver, "t", "fork") == ["failed", "unknown"]
    await run(graph, face, None, thread("t"))
    assert states_of(saver, "t", "fork") == ["done", "done"]
    saver.delete_thread("fork")
    assert [each.state for each in saver.tools.calls("t")] == ["done"]
    assert list(saver.tools.calls("fork")) == []


@pytest.mark.parametrize("verb", ["fork", "copy"])
@each_face
async def test_a_call_to_retry_is_a_doubt_in_a_later_fork(saver: KeelSaver, face: str, shop: Shop, verb: str) -> None:
    """The original makes it. A fork or copy made after the decision would make it too."""
    graph = graph_of(saver, shop)
    await die(graph, face, shop)
    (call,) = saver.tools.calls("t")
    shop.cache.settle("t", call.key, "retry")
    await (fork_of(saver, face, thread("t")) if verb == "fork" else copy_of(saver, face, "fork"))
    assert [(each.state, each.decided, each.original) for each in saver.tools.calls("fork")] == [("unknown", "", "t")]
    with pytest.raises(ToolOutcomeUnknown):
        await run(graph, face, None, thread("fork"))
    with pytest.raises(InvalidInput, match="Settle it in 't'"):
        await saver.tools.asettle("fork", call.key, "retry")
    for name in ("t", "fork"):
        await run(graph, face, None, thread(name))
    assert (states_of(saver, "t", "fork"), len(shop.refunded)) == (["done", "done"], 2)  # one died, one was made


@pytest.mark.parametrize("verb", ["fork", "copy"])
@each_face
async def test_only_one_of_several_threads_may_make_a_shared_call(
    saver: KeelSaver, face: str, shop: Shop, verb: str
) -> None:
    """Also after a deletion: the first thread that remains becomes the original."""
    graph = graph_of(saver, shop)
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"), "middle")
    if verb == "fork":
        await fork_of(saver, face, thread("middle"), "b")
    else:
        await copy_of(saver, face, "b", "middle")
    await fork_of(saver, face, thread("t"), "a")
    (call,) = saver.tools.calls("t")
    originals = []
    for deleted in ("middle", "t"):
        saver.delete_thread(deleted)
        originals.append([each.original for name in ("a", "b") for each in saver.tools.calls(name)])
        with pytest.raises(InvalidInput, match="Settle it in"):
            await saver.tools.asettle("b", call.key, "retry")
    assert originals == [["t", "t"], ["", "a"]]
    shop.cache.settle("a", call.key, "retry")
    with pytest.raises(InvalidInput, match="Settle it in 'a'"):
        await saver.tools.asettle("b", call.key, "retry")
    for name in ("a", "b"):
        await run(graph, face, None, thread(name))
    assert (states_of(saver, "a", "b"), len(set(shop.refunded)), len(shop.refunded)) == (["done", "done"], 1, 2)


@each_face
async def test_an_original_sees_calls_settled_in_its_fork(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Neither pays again; but `skip` in a fork applies to that fork only."""
    graph = graph_of(saver, shop)
    await die(graph, face, shop)
    (call,) = saver.tools.calls("t")
    for name, decision, states in (("fork", "skip", ["unknown", "done"]), ("again", "done", ["done", "done"])):
        await fork_of(saver, face, thread("t"), name)
        shop.cache.settle(name, call.key, decision)
        assert states_of(saver, "t", name) == states
    with pytest.raises(NotFound, match="nothing to settle"):
        await saver.tools.asettle("t", call.key, "retry")
    said = answers(await run(graph, face, None, thread("t")))
    assert ("confirmed" in said["call-1"].content, len(shop.refunded)) == (True, 1)


@each_face
async def test_a_fork_refuses_to_retry_a_call_that_its_original_may_retry(
    saver: KeelSaver, face: str, shop: Shop
) -> None:
    """With `unknown="ask"`, the fork asks, and refuses `retry` if its original exists."""
    graph = graph_of(saver, shop, unknown="ask")
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    asked = question(await run(graph, face, None, thread("fork")))
    assert (asked["decisions"], asked["answer_like"]["decision"], asked["original"]) == (["done", "skip"], "done", "t")
    asked = question(await resume(graph, face, "retry", thread("fork")))
    assert ("Settle it in 't'" in asked["problem"], len(shop.refunded)) == (True, 1)
    (call,) = saver.tools.calls("fork")
    with pytest.raises(InvalidInput, match="Settle it in 't'"):
        await saver.tools.asettle("fork", call.key, "retry")
    said = answers(await resume(graph, face, "done", thread("fork")))
    assert ("confirmed" in said["call-1"].content, len(shop.refunded)) == (True, 1)


@each_face
async def test_the_pending_step_is_answered_from_the_ledger(saver: KeelSaver, face: str, shop: Shop) -> None:
    graph = graph_of(saver, shop, BOTH)
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    (doubt,) = [call for call in saver.tools.calls("fork") if call.tool == "refund"]
    saver.delete_thread("t")
    shop.cache.settle("fork", doubt.key, "retry")
    said = answers(await run(graph, face, None, thread("fork")))
    assert (shop.looked, is_replay(said["call-0"]), said["call-1"].content) == (["17"], True, "refunded")
    first, again = shop.refunded
    assert first == again, "it is another attempt at the same call"


@pytest.mark.parametrize("verb", ["fork", "copy"])
@each_face
async def test_a_running_call_is_a_doubt_in_the_fork_until_it_is_done(
    saver: KeelSaver, face: str, shop: Shop, verb: str
) -> None:
    forked: list[str] = []

    @tool
    def look(order: str) -> str:
        """Fork the thread while this call is under way."""
        if verb == "fork":
            saver.fork(thread("t"), "fork")
        else:
            saver.copy_thread("t", "fork")
        forked.extend(call.state for call in saver.tools.calls("fork") if call.tool == "look")
        return "40"

    cache = ToolCache(saver, {"refund": None})
    graph = tool_graph(cache, [look, shop.tools()[1]], [calls(("look", {"order": "17"}, "call-0"))])
    await run(graph, face, hello(), thread("t"), durability="sync")
    assert (forked, states_of(saver, "fork")) == (["unknown"], ["done"])
    result = await run(graph, face, None, thread("fork"))
    assert (answers(result)["call-0"].content, forked) == ("40", ["unknown"])
    saver.delete_thread("t")
    assert states_of(saver, "fork") == ["done"]


@each_face
async def test_a_retry_policy_applies_in_the_fork(saver: KeelSaver, face: str, shop: Shop) -> None:
    graph = graph_of(saver, shop, unknown="retry")
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    await run(graph, face, None, thread("fork"))
    first, again = shop.refunded
    assert first == again, "with the same idempotency key: it is another attempt at the same call"


@each_face
async def test_a_call_after_the_fork_point_is_new(saver: KeelSaver, face: str, shop: Shop) -> None:
    graph = graph_of(saver, shop, BOTH, ONE)
    await run(graph, face, hello(), thread("t"))
    before = next(each.config for each in saver.timeline("t") if each.next == ("tools",))
    await fork_of(saver, face, before)
    assert list(saver.tools.calls("fork")) == []
    await run(graph, face, None, thread("fork"))
    assert len(set(shop.refunded)) == len(shop.refunded) == 4


@each_face
async def test_calls_of_a_forks_history_are_not_repeated(saver: KeelSaver, face: str, shop: Shop) -> None:
    graph = graph_of(saver, shop, ONE, calls(("look", {"order": "17"}, "call-2")))
    await run(graph, face, hello(), thread("t"))
    await fork_of(saver, face, moment(saver, "t", "tools"))
    assert [call.tool for call in saver.tools.calls("fork")] == ["refund"]
    saver.delete_thread("t")
    saver.rewind(next(each.config for each in saver.timeline("fork") if each.next == ("tools",)))
    said = answers(await run(graph, face, None, thread("fork")))
    assert (len(shop.refunded), len(shop.looked), is_replay(said["call-1"])) == (1, 2, True)


@each_face
async def test_a_rewound_thread_is_forked_with_its_calls(saver: KeelSaver, face: str, shop: Shop) -> None:
    graph = graph_of(saver, shop)
    await run(graph, face, hello(), thread("t"))
    saver.rewind(moment(saver, "t", "tools"))
    await fork_of(saver, face, thread("t"))
    said = answers(await run(graph, face, None, thread("fork")))
    assert (len(shop.refunded), is_replay(said["call-1"])) == (1, True)


@pytest.mark.parametrize("checkpointer", [None, True])
@each_face
async def test_a_doubt_in_a_subgraph_is_inherited_by_a_fork(
    saver: KeelSaver, face: str, shop: Shop, checkpointer: Any
) -> None:
    inner: Any = graph_of(saver, shop)
    inner.checkpointer = checkpointer
    builder = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    graph: Any = builder.compile(checkpointer=saver)
    await die(graph, face, shop)
    await fork_of(saver, face, thread("t"))
    with pytest.raises(ToolOutcomeUnknown):
        await run(graph, face, None, thread("fork"))
    assert len(shop.refunded) == 1


@each_face
async def test_a_tool_that_asked_asks_again_in_the_fork(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Also if the original was approved but the approval was not used."""
    graph = graph_of(saver, shop)
    shop.asks = True
    await run(graph, face, hello(), thread("t"))
    (request,) = saver.approvals.pending("t")
    saver.approvals.answer(request.id, value="yes", by="maria")
    await fork_of(saver, face, thread("t"))
    result = await run(graph, face, None, thread("fork"))
    assert (ASKED in result, shop.refunded) == (True, [])
    (asked,) = saver.approvals.pending("fork")
    assert (asked.id != request.id, asked.decision) == (True, None)
    said = answers(await resume(graph, face, "yes", thread("fork")))
    assert (said["call-1"].content, len(shop.refunded)) == ("refunded", 1)


@each_face
async def test_an_answered_call_of_a_pending_step_is_not_repeated(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Of two calls that ask, one is done: the fork asks for the other one only."""
    shop.asks = True
    two = calls(("refund", {"order": "17"}, "call-1"), ("refund", {"order": "18"}, "call-2"))
    graph = graph_of(saver, shop, two)
    await run(graph, face, hello(), thread("t"))
    await resume(graph, face, "yes", thread("t"))
    assert len(shop.refunded) == 1
    await fork_of(saver, face, thread("t"))
    asked = await run(graph, face, None, thread("fork"))
    assert (len(asked[ASKED]), len(shop.refunded)) == (1, 1)
    said = answers(await resume(graph, face, "yes", thread("fork")))
    assert ({each.content for each in said.values()}, len(shop.refunded)) == ({"refunded"}, 2)


async def test_a_copy_of_a_store_keeps_which_threads_share_a_call(shop: Shop, tmp_path: Path) -> None:
    with SAVERS["sqlite"](tmp_path) as saver, MemorySaver() as target:
        assert isinstance(saver, KeelSaver)
        shop.cache = ToolCache(saver, secret=b"sixteen bytes ..")
        await die(tool_graph(shop.cache, shop.tools(), [ONE]), "sync", shop)
        saver.fork(thread("t"), "fork")
        assert not saver.moving.copy_to(target).left
        assert [each.original for name in ("t", "fork") for each in target.tools.calls(name)] == ["", "t"]
