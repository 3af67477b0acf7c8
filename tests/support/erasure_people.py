"""A person with something of every kind that a store keeps, and what can be read of a person afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import CachePolicy
from provenance_models import Fake

from langgraph_keel import KeelCache, KeelSaver, ToolCache, ToolPolicy, request_approval
from langgraph_keel.approvals.requests import STATUSES
from langgraph_keel.summaries.archive.storage import archive_messages
from langgraph_keel.summaries.channels import removal

OTHER = "bystander"
"""Who must keep everything."""


def config(thread_id: str, owner: str | None) -> Any:
    return {"configurable": {"thread_id": thread_id} | ({} if owner is None else {"user_id": owner})}


def remembering(name: str) -> Any:
    """A subgraph with a memory of its own."""
    inner = StateGraph(MessagesState)
    inner.add_node("note", lambda state: {"messages": [AIMessage(f"{name} in a subgraph")]})
    return inner.add_edge(START, "note").compile(checkpointer=True)


def graph(saver: KeelSaver, name: str) -> Any:
    """Calls a model and two tools, has a node cached and a subgraph that remembers, and asks a person."""

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
    """Have a person use the store."""
    agent, chat = graph(saver, name), config(f"{name}-chat", name)
    agent.invoke({"messages": [HumanMessage(f"I am {name}", id=f"{name}-1"), HumanMessage("large " * 3000)]}, chat)
    (request,) = saver.approvals.pending(f"{name}-chat")
    saver.approvals.approve(request.id, by="boss", reason=f"for {name}")
    agent.invoke(saver.approvals.resume(f"{name}-chat"), chat)
    saver.label(chat, f"{name} was here")
    saver.fork(chat, f"{name}-fork")
    saver.copy_thread(f"{name}-chat", f"{name}-copy")
    state = agent.get_state(chat)
    removed = removal(state.config, state.values["messages"][:1], channel="messages", by="rule", summary=name)
    saver.engine.run(archive_messages(saver.engine.session, removed))
    agent.update_state(chat, {"messages": [RemoveMessage(f"{name}-1")]}, as_node="think")
    saver.prune([f"{name}-chat"])
    agent.invoke({"messages": [HumanMessage(f"{name} waits")]}, config(f"{name}-{'waiting' * 40}", name))


def left(saver: KeelSaver, name: str) -> Mapping[str, Any]:
    """All that can be read of a person."""
    threads = sorted(info.thread_id for info in saver.threads() if info.thread_id.startswith(name))
    return {
        thread: (
            list(saver.list({"configurable": {"thread_id": thread}})),
            saver.labels(thread),
            list(saver.tools(thread)),
            [call for call in saver.tools(None) if call.thread_id == thread],
            saver.provenance({"configurable": {"thread_id": thread}}),
            saver.archive(thread).messages(),
            list(saver.approvals.pending(thread, status=STATUSES, limit=None)),
        )
        for thread in threads
    } | {"audit": [each for each in saver.approvals.audit(limit=1000) if name in str(each.content)]}
