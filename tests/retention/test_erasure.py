"""An erasure leaves no byte of the person's data, and changes no other data."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import count, pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy
from support.provenance.models import Fake
from support.retention.scans import places, postgres_apart, shows_pages
from support.savers import BACKENDS, SAVERS, each_face, needing
from support.tiers import sized

from langgraph_keel import (
    KeelCache,
    KeelSaver,
    Receipt,
    RedisSaver,
    SqliteSaver,
    ToolCache,
    ToolPolicy,
    request_approval,
)
from langgraph_keel.approvals.requests import STATUSES
from langgraph_keel.summaries.archive.storage import archive_messages
from langgraph_keel.summaries.channels import removal
from langgraph_keel.testing.faults import Fault, Injected, with_tap

OTHER = "bystander"
"""The person whose data must not change."""


def config(thread_id: str, owner: str | None) -> Any:
    return {"configurable": {"thread_id": thread_id} | ({} if owner is None else {"user_id": owner})}


def remembering(name: str) -> Any:
    """A subgraph with its own memory."""
    inner = StateGraph(MessagesState)
    inner.add_node("note", lambda state: {"messages": [AIMessage(f"{name} in a subgraph")]})
    return inner.add_edge(START, "note").compile(checkpointer=True)


def graph(saver: KeelSaver, name: str) -> Any:
    """A graph with a model, two tools, a cached node, a subgraph and a question."""

    @tool
    def look(what: str) -> str:
        """Look something up."""
        return f"{what}: {name} {'long ' * 50}"

    @tool
    def shared(what: str) -> str:
        """Look something up, for all threads."""
        return f"{what}, shared: {name}"

    tools = ToolCache(saver, {"shared": ToolPolicy(scope="shared")}, store_arguments=True)
    kept = [tools.tool(each) for each in (look, shared)]

    def use(state: MessagesState) -> Any:
        return {"messages": [AIMessage(str(each.invoke({"what": f"about {name}"}))) for each in kept]}

    def ask(state: MessagesState) -> Any:
        said = request_approval("pay", {"to": name}, facts={"for": name}, description=f"{name} pays")
        return {"messages": [AIMessage(f"{said.kind} {said.reason}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", lambda state: {"messages": [Fake().invoke([HumanMessage(f"{name} asks")])]})
    builder.add_node("use", use)
    builder.add_node("cached", lambda state: {"messages": [AIMessage(f"{name} cached")]}, cache_policy=CachePolicy())
    builder.add_node("remember", remembering(name))
    builder.add_node("ask", ask)
    nodes = [START, "think", "use", "cached", "remember", "ask"]
    for before, after in pairwise(nodes):
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver, cache=KeelCache(saver))


def live(saver: KeelSaver, name: str) -> None:
    """Use the store as one person."""
    agent, chat = graph(saver, name), config(f"{name}-chat", name)
    agent.invoke({"messages": [HumanMessage(f"I am {name}", id=f"{name}-1"), HumanMessage("large " * 3000)]}, chat)
    (request,) = saver.approvals.pending(f"{name}-chat")
    saver.approvals.approve(request.id, by="boss", reason=f"for {name}")
    agent.invoke(saver.approvals.resume(f"{name}-chat"), chat)
    saver.labels.set(chat, f"{name} was here")
    saver.fork(chat, f"{name}-fork")
    saver.copy_thread(f"{name}-chat", f"{name}-copy")
    state = agent.get_state(chat)
    removed = removal(state.config, state.values["messages"][:1], channel="messages", by="rule", summary=name)
    saver.engine.run(archive_messages(saver.engine.session, removed))
    agent.update_state(chat, {"messages": [RemoveMessage(f"{name}-1")]}, as_node="think")
    saver.prune([f"{name}-chat"])
    agent.invoke({"messages": [HumanMessage(f"{name} waits")]}, config(f"{name}-{'waiting' * 40}", name))


def left(saver: KeelSaver, name: str) -> Mapping[str, Any]:
    """Return all readable data of a person."""
    threads = sorted(info.thread_id for info in saver.threads() if info.thread_id.startswith(name))
    return {
        thread: (
            list(saver.list({"configurable": {"thread_id": thread}})),
            saver.labels.list(thread),
            list(saver.tools.calls(thread)),
            [call for call in saver.tools.calls(None) if call.thread_id == thread],
            saver.provenance.read({"configurable": {"thread_id": thread}}),
            saver.archive(thread).messages(),
            list(saver.approvals.pending(thread, status=STATUSES, limit=None)),
        )
        for thread in threads
    } | {"audit": [each for each in saver.approvals.audit(limit=1000) if name in str(each.content)]}


@pytest.fixture(autouse=True)
def _no_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Store values uncompressed, so that a search finds them."""
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.WORTHWHILE", 1 << 40)
    monkeypatch.setattr("langgraph_keel.engine.encoding.bodies.SMALL", 0)


@pytest.fixture
def mark() -> str:
    """A person's name that is unique on the server and is never escaped."""
    return f"zq{token_hex(8)}"


@pytest.fixture(params=BACKENDS)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    needing(request.param, request)
    with postgres_apart() if request.param == "postgres" else SAVERS[request.param](tmp_path) as opened:
        yield opened


async def erase(saver: Any, face: str, user: str, **options: Any) -> Receipt:
    if face == "sync":
        return await to_thread(saver.retention.erase, user, **options)
    receipt: Receipt = await saver.retention.aerase(user, **options)
    return receipt


def has_everything(kept: Mapping[str, Any]) -> bool:
    """Whether a person had data of every kind."""
    kinds = list(zip(*(parts for thread, parts in kept.items() if thread.startswith(OTHER)), strict=True))
    events = [event.kind for event in kept["audit"]]
    return len(kinds) == 7 and all(map(any, kinds)) and events == ["asked", "approved", "consumed", "asked"]


@each_face
async def test_erase_removes_every_byte_of_one_person_only(saver: Any, face: str, mark: str) -> None:
    await to_thread(live, saver, OTHER)
    await to_thread(live, saver, mark)
    before = await to_thread(left, saver, OTHER)
    assert has_everything(before)
    looked = await erase(saver, face, mark, dry_run=True)
    assert looked.threads == tuple(f"{mark}-{end}" for end in ("chat", "copy", "fork", "waiting" * 40))
    receipt = await erase(saver, face, mark, reclaim="full")
    assert receipt.complete
    assert (receipt.threads, receipt.checkpoints, receipt.requests) == (looked.threads, looked.checkpoints, 2)
    assert places(saver, mark) == []
    assert await to_thread(left, saver, OTHER) == before
    assert (await to_thread(saver.approvals.verify_audit)).ok
    again = await erase(saver, face, mark)
    assert (again.threads, again.cached, again.complete) == ((), 0, True)
    (*_, last) = await to_thread(saver.approvals.audit, limit=1000)
    said = {name: last.content[name] for name in ("user", "threads", "requests")}
    assert (last.kind, said) == ("erased", {"user": sha256(mark.encode()).hexdigest(), "threads": 4, "requests": 2})


@pytest.mark.parametrize("saver", ["sqlite", "postgres"], indirect=True)
async def test_an_erasure_without_reclaiming_leaves_data_in_free_space(saver: Any, mark: str) -> None:
    await to_thread(live, saver, mark)
    receipt = await erase(saver, "sync", mark, reclaim=False)
    assert (receipt.complete, receipt.reclaimed) == (True, None)
    assert list(saver.threads()) == []
    found = places(saver, mark)
    # SQLite overwrites deleted rows, and truncates its log after a removal; balanced trees may still have copies.
    assert found or isinstance(saver, SqliteSaver) or not shows_pages(saver)
    ends = ")" if isinstance(saver, SqliteSaver) else ("-wal", ")")
    assert all(where.endswith(ends) for where in found)  # no row of a table: only free space
    receipt = await erase(saver, "sync", mark, reclaim="full")
    assert receipt.reclaimed
    # These are statistics samples of tables that are empty now.
    assert [where for where in places(saver, mark) if "pg_statistic" not in where] == []


# -- interrupted erasures ----------------------------------------------------------------------------------------------


def of_bystander(saver: Any) -> dict[str, Any]:
    """The other person's data, without the audit trail, which all share."""
    return {name: said for name, said in left(saver, OTHER).items() if name != "audit"}


def erased_in_two(saver: Any, mark: str, fault: Fault) -> bool:
    """Erase a person, first with a fault, then completely; return whether it occurred."""
    live(saver, mark)
    of_other = of_bystander(saver)
    with suppress(Injected):
        with_tap(saver, fault).retention.erase(mark)
    receipt = saver.retention.erase(mark, reclaim="full")
    assert receipt.complete, receipt
    # Statistics samples of tables that are empty now: a slow server has analyzed them during the erasure.
    assert [where for where in places(saver, mark) if "pg_statistic" not in where] == []
    assert of_bystander(saver) == of_other
    assert saver.approvals.verify_audit().ok
    return fault.fired


# On a slow backend, only one in `SOME` requests of an erasure is cut off.
SOME = sized(12, 12, 6)


def cut_off_everywhere(saver: Any, step: int) -> int:
    """Cut off an erasure at every `step`-th request, before and after it.

    Return the number of the first request that was never reached.
    """
    live(saver, OTHER)
    for at in count(0, step):
        if not all(erased_in_two(saver, f"zq{token_hex(8)}", Fault(at, lost_reply=lost)) for lost in (False, True)):
            return at
    raise AssertionError


@pytest.mark.slow
def test_an_interrupted_erasure_is_completed_by_the_next(saver: Any, request: pytest.FixtureRequest) -> None:
    step = sized(6, 2, 1) if request.node.callspec.params["saver"] == "memory" else SOME
    assert cut_off_everywhere(saver, step) > 20


@pytest.mark.slow
def test_an_interrupted_erasure_is_completed_on_a_redis_cluster(redis_cluster_url: str, redis_prefix: str) -> None:
    with RedisSaver(redis_cluster_url, prefix=redis_prefix, durability="any") as saver:
        assert cut_off_everywhere(saver, SOME) > 20
