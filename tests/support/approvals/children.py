"""Code that the tests of approvals run in child processes.

Graphs of every shape that ask a question and act on the decision.
"""

from __future__ import annotations

import asyncio
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_keel import KeelSaver, ToolCache
from langgraph_keel.approvals.ask import arequest_approval, request_approval
from langgraph_keel.approvals.requests import Decision
from support.places import Place
from support.tool_graphs import ASKED, Scripted, calls, hello, tool_graph

ARGS: Mapping[str, Any] = {"pay": {"amount": 100}, "mail": {"to": "ada"}}
SCRIPT = [calls(("pay", ARGS["pay"], "a"), ("mail", ARGS["mail"], "b"))]


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


@dataclass
class Order:
    """A class of the application. A process that only decides does not import it."""

    what: str


@dataclass(frozen=True)
class Outside:
    """The outside world: a file that records actions, and one that contains a price."""

    path: Path

    @property
    def thread(self) -> str:
        return str(get_config()["configurable"]["thread_id"])

    def act(self, action: str, args: Any) -> str:
        with self.path.open("a") as file:
            file.write(json.dumps([self.thread, action, args]) + "\n")
        return f"{action} done"

    def do(self, action: str, decision: Decision) -> str:
        return self.act(action, decision.args) if decision.approved else f"{decision.kind}: {decision.reason}"

    def conditions(self) -> dict[str, Any]:
        """Return the options of the question, which depend on the thread's name."""
        price = {"price": int(self.path.with_suffix(".price").read_text())}
        return {
            "facts": price if self.thread.startswith("stale") else None,
            "expires_in": 1.5 if self.thread.startswith("expired") else None,
        }

    def asks(self, action: str) -> str:
        return self.do(action, request_approval(action, ARGS[action], **self.conditions()))

    async def aasks(self, action: str) -> str:
        return self.do(action, await arequest_approval(action, ARGS[action], **self.conditions()))

    def node(self, action: str) -> RunnableLambda[Any, Any]:
        async def afunc(state: State) -> State:
            return {"said": [await self.aasks(action)]}

        return RunnableLambda(lambda state: {"said": [self.asks(action)]}, afunc)

    def tools(self, asking: bool) -> list[BaseTool]:
        def pay(amount: int) -> str:
            """Pay."""
            return self.asks("pay") if asking else self.act("pay", {"amount": amount})

        def mail(to: str) -> str:
            """Mail."""
            return self.asks("mail") if asking else self.act("mail", {"to": to})

        async def apay(amount: int) -> str:
            return await self.aasks("pay") if asking else pay(amount)

        async def amail(to: str) -> str:
            return await self.aasks("mail") if asking else mail(to)

        return [StructuredTool.from_function(pay, apay), StructuredTool.from_function(mail, amail)]


def graph_of(saver: Any, *nodes: tuple[str, Any]) -> Any:
    """Return a graph whose nodes run in parallel."""
    builder = StateGraph(State)
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def node(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("pay", outside.node("pay")))


def parallel(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("pay", outside.node("pay")), ("mail", outside.node("mail")))


def subgraph(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("outer", graph_of(None, ("pay", outside.node("pay")))))


def remembering(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("outer", graph_of(True, ("pay", outside.node("pay")))))


def called(saver: KeelSaver, outside: Outside) -> Any:
    inner = graph_of(None, ("pay", outside.node("pay")))

    async def afunc(state: State) -> Any:
        return await inner.ainvoke({})

    return graph_of(saver, ("outer", RunnableLambda(lambda state: inner.invoke({}), afunc)))


def functional(saver: KeelSaver, outside: Outside) -> Any:
    @task
    def asking(action: str) -> str:
        return outside.asks(action)

    @entrypoint(checkpointer=saver)
    def flow(given: Any) -> State:
        futures = [asking(action) for action in ARGS]
        return {"said": [future.result() for future in futures]}

    return flow


def afunctional(saver: KeelSaver, outside: Outside) -> Any:
    @task
    async def asking(action: str) -> str:
        return await outside.aasks(action)

    @entrypoint(checkpointer=saver)
    async def flow(given: Any) -> State:
        return {"said": await asyncio.gather(*[asking(action) for action in ARGS])}

    return flow


def plain(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("ask", lambda state: {"said": [outside.act("", interrupt({"who": "pays?"}))]}))


def own(saver: KeelSaver, outside: Outside) -> Any:
    return graph_of(saver, ("ask", lambda state: {"said": [outside.act("", interrupt(Order("a flight")))]}))


def tool_node(saver: KeelSaver, outside: Outside) -> Any:
    return tool_graph(ToolCache(saver), outside.tools(asking=True), SCRIPT)


def agent(saver: KeelSaver, outside: Outside) -> Any:
    return create_agent(Scripted(script=SCRIPT), outside.tools(asking=True), checkpointer=saver)


def gated(mode: Any) -> Callable[[KeelSaver, Outside], Any]:
    def made(saver: KeelSaver, outside: Outside) -> Any:
        gate = HumanInTheLoopMiddleware({"pay": True, "mail": True}, interrupt_mode=mode)
        tools = outside.tools(asking=False)
        return create_agent(Scripted(script=SCRIPT), tools, middleware=[gate], checkpointer=saver)

    return made


GRAPHS: Mapping[str, Callable[[KeelSaver, Outside], Any]] = {
    "node": node,
    "parallel": parallel,
    "subgraph": subgraph,
    "remembering": remembering,
    "called": called,
    "functional": functional,
    "plain": plain,
    "own": own,
    "tool_node": tool_node,
    "agent": agent,
    "batched": gated("batched"),
    "per_call": gated("per_call"),
}


# -- running a thread -------------------------------------------------------------------------------------------------


def asked_in(place: Place, path: Path, face: str, threads: Mapping[str, str]) -> Mapping[str, int]:
    """Start threads, each with its graph; return the number of questions of each."""
    return _lived(place, path, face, threads, lambda saver, thread: hello() | {"said": []})


def resumed_in(place: Place, path: Path, face: str, threads: Mapping[str, str]) -> Mapping[str, int]:
    """Resume threads with their decisions."""
    return _lived(place, path, face, threads, lambda saver, thread: saver.approvals.resume(thread))


def _lived(
    place: Place, path: Path, face: str, threads: Mapping[str, str], given: Callable[[KeelSaver, str], Any]
) -> Mapping[str, int]:
    with place.open(types=[Order]) as saver:
        runs = [(_graph(saver, Outside(path), face, name), given(saver, thread), _config(thread)) for thread, name in
                threads.items()]  # fmt: skip
        results = asyncio.run(_arun(runs)) if face == "async" else [graph.invoke(*rest) for graph, *rest in runs]
    return {thread: len(result.get(ASKED, ())) for thread, result in zip(threads, results, strict=True)}


async def _arun(runs: Sequence[Sequence[Any]]) -> Sequence[Any]:
    return [await graph.ainvoke(*rest) for graph, *rest in runs]


def _graph(saver: KeelSaver, outside: Outside, face: str, name: str) -> Any:
    made = afunctional if (name, face) == ("functional", "async") else GRAPHS[name]
    return made(saver, outside)


def _config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": "ann"}}
