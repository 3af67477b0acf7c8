"""Code that the tests of workers run in child processes.

A graph that asks and records its actions, reviewers, and workers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph

from langgraph_keel import AlreadyDecided, KeelSaver, ThreadTaken
from langgraph_keel.approvals.ask import arequest_approval, request_approval
from langgraph_keel.approvals.requests import Decision
from support.places import Place

LONG = 60.0
Act = Callable[[str, Decision], object]


class State(TypedDict, total=False):
    said: str


def written(path: Path) -> Act:
    """Return an action outside the graph: one atomic write of a line to a file."""

    def act(thread: str, decision: Decision) -> None:
        end = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(end, f"{thread} {decision.kind} {decision.by}\n".encode())
        os.close(end)

    return act


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def asking_graph(saver: KeelSaver, act: Act, name: str = "pay") -> Any:
    """Return a graph of one node, which asks and then acts."""

    def node(state: State, config: Any) -> State:
        decision = request_approval(name, {"amount": 100})
        act(config["configurable"]["thread_id"], decision)
        return {"said": decision.kind}

    async def anode(state: State, config: Any) -> State:
        decision = await arequest_approval(name, {"amount": 100})
        act(config["configurable"]["thread_id"], decision)
        return {"said": decision.kind}

    # LangGraph finds the parameter `config` by its type.
    node.__annotations__["config"] = anode.__annotations__["config"] = "RunnableConfig"
    both: RunnableLambda[Any, Any] = RunnableLambda(node, anode)
    return StateGraph(State).add_node(name, both).add_edge(START, name).compile(checkpointer=saver)


def ask(graph: Any, threads: Sequence[str], **configurable: str) -> None:
    """Ask in each thread, at distinct times.

    Requests of the same millisecond have no order.
    """
    for thread in threads:
        graph.invoke({"said": ""}, {"configurable": {**configurable, "thread_id": thread}})
        time.sleep(0.002)


def rival(saver: KeelSaver, act: Act, who: int, threads: Sequence[str], gate: Any, told: Any, say: Any) -> None:
    """Decide on each thread and resume it, concurrently with a rival; report outcomes."""
    graph, ids = asking_graph(saver, act), {each.thread_id: each.id for each in saver.approvals.pending(limit=None)}
    for thread in threads:
        gate.wait(LONG)
        say((thread, who, decide(saver, ids[thread], who)))
        gate.wait(LONG)
        command = saver.approvals.resume(thread)
        gate.wait(LONG)
        try:
            graph.invoke(command, {"configurable": {"thread_id": thread}})
        except ThreadTaken:
            told.wait(LONG)  # the run that resumed waits in its node until this one was refused
            say((thread, who, "taken"))
        else:
            say((thread, who, "ran"))


def decide(saver: KeelSaver, name: str, who: int) -> str:
    """Approve as the first rival, or reject as the second; return `late` if too late."""
    kind, method = (("approve", saver.approvals.approve), ("reject", saver.approvals.reject))[who]
    try:
        method(name, by=str(who))
    except AlreadyDecided:
        return "late"
    return kind


def rival_process(place: Place, path: Path, who: int, threads: Sequence[str], gate: Any, told: Any, say: Any) -> None:
    with place.open() as saver:
        rival(saver, held(written(path), told), who, threads, gate, told, say.put)


def held(act: Act, told: Any) -> Act:
    """Return an action that then waits until the rival was refused."""

    def acting(thread: str, decision: Decision) -> None:
        act(thread, decision)
        told.wait(LONG)

    return acting


def work(place: Place, path: Path, gate: Any, face: str, timeout: float = 5.0) -> None:
    """Run a worker until it has been idle for `timeout` seconds."""
    with place.open() as saver:
        gate.wait(LONG)
        working(saver, asking_graph(saver, written(path)), face, timeout)


def working(saver: KeelSaver, graph: Any, face: str, timeout: float, poll: float = 0.1) -> list[Any]:
    """Return all runs that a worker resumed until it was idle for `timeout` seconds."""
    if face == "sync":
        return list(saver.approvals.run_when_decided(graph, poll=poll, timeout=timeout))

    async def go() -> list[Any]:
        found = saver.approvals.arun_when_decided(graph, poll=poll, timeout=timeout)
        return [resumed async for resumed in found]

    return asyncio.run(go())


def approve_all(place: Place, delay: float) -> None:
    """Be a reviewer in another process who approves everything after a delay."""
    time.sleep(delay)
    with place.open() as saver:
        for request in saver.approvals.pending():
            saver.approvals.approve(request.id, by="elsewhere")


def die_in_the_act(place: Place, path: Path) -> None:
    """Be a worker that dies after it has taken the decision and before it has acted."""
    with place.open() as saver:
        graph = asking_graph(saver, lambda thread, decision: os._exit(9))
        for _ in saver.approvals.run_when_decided(graph, poll=0.1):
            raise AssertionError("it did not die")
