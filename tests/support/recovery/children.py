"""A graph of five steps that records its steps, killed processes, and workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode

from langgraph_keel import CheckpointConflict, KeelSaver, ToolCache
from langgraph_keel.runs.worker import Resumed
from support.log_graphs import State, graph, say
from support.places import Place
from support.races import context

LONG = 120.0
"""Maximum wait for another process, in seconds."""
INPUT: Any = {"log": []}
STEPS = "12345"


def write(path: Path, line: str) -> None:
    """Append a line to a file in one atomic write."""
    end = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(end, f"{line}\n".encode())
    os.close(end)


def steps_in(path: Path, thread_id: str = "t") -> str:
    """Return the steps that a thread has started, in order."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return "".join(step for thread, step in lines if thread == thread_id)


def five(saver: Any, path: Path, deadly: str = "", names: str = STEPS, **options: Any) -> Any:
    """Return a graph of these steps; the process is killed in the step `deadly`."""

    def step(name: str) -> Any:
        def node(state: State, config: Any) -> State:
            write(path, f"{config['configurable']['thread_id']} {name}")
            if name == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"log": [name]}

        node.__annotations__["config"] = "RunnableConfig"  # LangGraph finds it by its type
        return node

    made = graph(saver, *((name, step(name)) for name in names))
    return made.copy(options) if options else made


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def recovered(saver: KeelSaver, graph: Any, face: str, count: int | None = None, **options: Any) -> list[Resumed]:
    """Let a worker look by one of its faces, by default once, or until it has tried `count` times."""
    options = {"timeout": 0, **options}
    if face == "sync":
        return list(islice(saver.recover(graph, **options), count))

    async def work() -> list[Resumed]:
        found: list[Resumed] = []
        async for each in saver.arecover(graph, **options):
            found.append(each)
            if len(found) == count:
                break
        return found

    return asyncio.run(work())


def killed(place: Place, path: Path, threads: Sequence[str] = "t", deadly: str = "3", **options: Any) -> None:
    """Start each thread in a process that is killed in the step `deadly`."""
    for thread_id in threads:
        child = context().Process(target=_run, args=(place, path, thread_id, deadly, INPUT, options))
        child.start()
        child.join(LONG)
        assert child.exitcode == -signal.SIGKILL


def paused(place: Place, path: Path, told: Connection) -> None:
    """Run a thread to step 3 and wait; exit with 7 if its checkpoint is then refused."""

    def wait(state: State) -> State:
        told.send("in step 3")
        told.recv()
        return {"log": ["3"]}

    with place.open(recoverable=True) as saver:
        made = graph(saver, say("1"), say("2"), ("3", wait), ("4", lambda state: write(path, "t late")), say("5"))
        try:
            made.invoke(INPUT, config_of("t"), durability="sync")
        except CheckpointConflict:
            os._exit(7)


def killed_worker(place: Place, path: Path, deadly: str) -> None:
    """Have a worker take over threads, and be killed in the step `deadly` of one."""
    child = context().Process(target=work, args=(place, path, deadly))
    child.start()
    child.join(LONG)
    assert child.exitcode == -signal.SIGKILL


def _run(place: Place, path: Path, thread_id: str, deadly: str, given: Any, options: Any) -> None:
    with place.open(recoverable=True, **options) as saver:
        five(saver, path, deadly).invoke(given, config_of(thread_id), durability="sync")


def work(place: Place, path: Path, deadly: str = "", gate: Any = None, told: Connection | None = None) -> None:
    """Take over threads concurrently with other workers; report the resumed threads."""
    with place.open(recoverable=True) as saver:
        made = five(saver, path, deadly)
        if gate is not None:
            gate.wait(LONG)
        found = recovered(saver, made, "sync", poll=0.02, timeout=0.5)
        if told is not None:
            told.send([(each.thread_id, repr(each.error)) for each in found])


# -- tools -------------------------------------------------------------------------------------------------------------


class Paying:
    """A graph with a tool of a `ToolCache`, in which a `deadly` process is killed."""

    def __init__(self, saver: KeelSaver, *, deadly: bool) -> None:
        @tool
        def wire(amount: int) -> str:
            """Wire money."""
            if deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return "paid"

        self.cache = ToolCache(saver)
        call = AIMessage("", id="1", tool_calls=[{"name": "wire", "args": {"amount": 3}, "id": "c"}])
        tools = ToolNode([wire], messages_key="log", wrap_tool_call=self.cache.wrap_tool_call)
        self.graph = graph(saver, ("ask", lambda state: {"log": [call]}), ("tools", tools))


def killed_in_tool(place: Place) -> None:
    """Run a process that is killed in a call of a tool."""
    child = context().Process(target=_pay, args=(place,))
    child.start()
    child.join(LONG)
    assert child.exitcode == -signal.SIGKILL


def _pay(place: Place) -> None:
    with place.open(recoverable=True) as saver:
        Paying(saver, deadly=True).graph.invoke(INPUT, config_of("t"), durability="sync")
