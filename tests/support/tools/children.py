"""For children: an agent that calls three tools in parallel and dies on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, StateSnapshot, interrupt
from pydantic import BaseModel

import langgraph_keel.backends.files
import langgraph_keel.backends.postgres
import langgraph_keel.backends.redis
import langgraph_keel.backends.sqlite  # noqa: F401 - once, before the forks
from langgraph_keel import ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.testing.faults import Tap, with_tap
from support.places import Place
from support.process_children import exit_code, forked

SLOW = 0.06
"""Seconds that the slow tool takes: more than the claims and results of the others need."""
THREE = ("fast", "quick", "slow")


class Moment(NamedTuple):
    """The time of a kill: `delay` seconds after `what` has happened `number` times."""

    what: str
    number: int
    delay: float


class Outside(Tap):
    """The tools' external effects: a line in a file before and after each act.

    A request of the store also counts as a moment.
    """

    def __init__(self, path: Path, moment: Moment | None = None) -> None:
        self._path, self._moment = path, moment
        self._lock, self._seen = Lock(), Counter[str]()

    def note(self, what: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{what}\n".encode())
        os.close(file)
        self._reach(what)

    def lines(self) -> Counter[str]:
        return Counter(self._path.read_text().splitlines() if self._path.exists() else [])

    def sending(self, request: Any) -> None:
        self._reach("store")

    def replied(self, request: Any, reply: Any) -> None:
        self._reach("store")

    def _reach(self, what: str) -> None:
        with self._lock:
            self._seen[what] += 1
            is_time = self._moment is not None and self._moment[:2] == (what, self._seen[what])
        if is_time:
            Thread(target=self._die, daemon=True).start()

    def _die(self) -> None:
        assert self._moment
        time.sleep(self._moment.delay)
        os.kill(os.getpid(), signal.SIGKILL)


# -- the agent ---------------------------------------------------------------------------------------------------------


class Arguments(BaseModel):
    """The arguments of every tool.

    Created once: a schema takes longer than the rest of a tool, and each life needs three.
    """

    on: str


def acting(name: str, outside: Outside, seconds: float = 0.0) -> BaseTool:
    """Return a tool that acts on the world."""

    def act(on: str) -> str:
        outside.note(f"begin {name}")
        time.sleep(seconds)
        outside.note(f"end {name}")
        return f"{name} did {on}"

    async def aact(on: str) -> str:
        outside.note(f"begin {name}")
        await asyncio.sleep(seconds)
        outside.note(f"end {name}")
        return f"{name} did {on}"

    return StructuredTool.from_function(act, aact, name=name, description="Acts.", args_schema=Arguments)


def asking(outside: Outside) -> BaseTool:
    """Return a tool that asks a person before it acts."""

    def act(on: str) -> str:
        answer = interrupt({"may I": on})
        outside.note("begin asking")
        outside.note("end asking")
        return f"asking did {on}: {answer}"

    async def aact(on: str) -> str:
        return act(on)

    return StructuredTool.from_function(act, aact, name="asking", description="Asks.", args_schema=Arguments)


def three_tools(outside: Outside) -> list[BaseTool]:
    return [acting("fast", outside), acting("quick", outside), acting("slow", outside, SLOW)]


class Scripted(BaseChatModel):
    """A model that calls tools in parallel, with new ids each time, and then finishes."""

    calls: Sequence[str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        calls = [{"name": name, "args": {"on": "it"}, "id": f"{name}-{uuid4()}"} for name in self.calls]
        asked = AIMessage("", id="asked", tool_calls=calls)
        said = AIMessage("finished", id="said") if isinstance(messages[-1], ToolMessage) else asked
        return ChatResult(generations=[ChatGeneration(message=said)])


def node_graph(cache: ToolCache, tools: Sequence[BaseTool], **options: Any) -> Any:
    """Return an agent with a `ToolNode`: all calls of a step are one task."""
    model = Scripted(calls=[tool.name for tool in tools])
    tool_node = ToolNode(tools, wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", tool_node, **options)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=cache.saver)


def agent_graph(cache: ToolCache, tools: Sequence[BaseTool]) -> Any:
    """Return LangChain's agent: each call of a step is a task."""
    model = Scripted(calls=[tool.name for tool in tools])
    return create_agent(model, list(tools), middleware=[cache.middleware()], checkpointer=cache.saver)


GRAPHS: Mapping[str, Callable[[ToolCache, Sequence[BaseTool]], Any]] = {"node": node_graph, "agent": agent_graph}


# -- a life ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process, which starts or resumes a thread, until it ends or is killed.

    Attributes:
        place: The store.
        path: The file to which the tools append their lines.
        thread: The thread.
        is_async: Whether it runs on the async face.
        durability: LangGraph's option.
        graph: One of `GRAPHS`.
        unknown: The policy of all tools.
        with_question: Whether the second tool asks a person; then the slow one is not recorded and runs in every life.
        moment: The time of the kill, if any.
        answer: A person's answer to all questions.
    """

    place: Place
    path: Path
    thread: str
    is_async: bool
    durability: Literal["sync", "async", "exit"]
    graph: str = "node"
    unknown: Literal["raise", "retry", "ask"] = "raise"
    with_question: bool = False
    moment: Moment | None = None
    answer: Any = None

    @property
    def config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread}}

    def policies(self) -> dict[str, ToolPolicy | None]:
        return {"slow": None} if self.with_question else {}

    def tools(self, outside: Outside) -> list[BaseTool]:
        fast, quick, slow = three_tools(outside)
        return [fast, asking(outside) if self.with_question else quick, slow]


class End(NamedTuple):
    """The end of a life.

    Attributes:
        how: `killed`; `finished`, with the tools' results; `unknown`, with a tool and its key; `asked`, with the
            questions.
    """

    how: str
    values: tuple[Any, ...] = ()


def live(life: Life, told: Connection) -> None:
    """Live one life, and report its end."""
    outside = Outside(life.path, life.moment)
    with life.place.open() as saver:
        cache = ToolCache(with_tap(saver, outside), life.policies(), default=ToolPolicy(unknown=life.unknown))
        with cache:
            graph = GRAPHS[life.graph](cache, life.tools(outside))
            end = asyncio.run(_aend(graph, life)) if life.is_async else _end(graph, life)
    told.send(end)


def _end(graph: Any, life: Life) -> End:
    given = _input(graph.get_state(life.config), life.answer)
    try:
        if given is not DONE:
            graph.invoke(given, life.config, durability=life.durability)
    except ToolOutcomeUnknown as error:
        return End("unknown", (error.tool, error.key))
    return _seen(graph.get_state(life.config))


async def _aend(graph: Any, life: Life) -> End:
    given = _input(await graph.aget_state(life.config), life.answer)
    try:
        if given is not DONE:
            await graph.ainvoke(given, life.config, durability=life.durability)
    except ToolOutcomeUnknown as error:
        return End("unknown", (error.tool, error.key))
    return _seen(await graph.aget_state(life.config))


DONE = object()


def _input(state: StateSnapshot, answer: Any) -> Any:
    """Return the answers, or `None` to resume, or the first input again.

    `state.next` cannot decide this: it is also empty if the last task has stored its writes and no checkpoint yet.
    """
    if answer is not None and state.interrupts:
        return Command(resume={question.id: _answer_to(question.value, answer) for question in state.interrupts})
    if state.created_at is None:
        return first_input()
    return DONE if is_finished(state) else None


def _answer_to(question: Any, answer: Any) -> Any:
    """Return a plain answer, or, for a call that was in doubt, one with its attempt."""
    is_again = isinstance(question, dict) and "problem" in question
    return {"decision": answer, "attempt": question["attempt"]} if is_again else answer


def is_finished(state: StateSnapshot) -> bool:
    return bool(state.values.get("messages")) and state.values["messages"][-1].text == "finished"


def first_input() -> dict[str, Any]:
    return {"messages": [HumanMessage("go", id="go")]}


def _seen(state: StateSnapshot) -> End:
    if state.interrupts:
        return End("asked", tuple(question.value for question in state.interrupts))
    assert is_finished(state)
    return End("finished", said_by_tools(state.values))


def said_by_tools(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(message.text for message in values["messages"] if isinstance(message, ToolMessage))


# -- a process that forks one child per life, so that no child has to import anything ----------------------------------


def nursery(orders: Connection) -> None:
    """Run each requested life in a child, until `None` is received."""
    while (life := orders.recv()) is not None:
        orders.send(_lived(life))


def _lived(life: Life) -> tuple[int, End]:
    reading, writing = Pipe(duplex=False)
    child = forked(live, life, writing)
    writing.close()
    try:
        end = reading.recv()
    except (EOFError, OSError):
        end = End("killed")
    reading.close()
    code = exit_code(child)
    return code, End("killed") if code == -signal.SIGKILL else end  # some are killed after they have sent their end


Lives = Callable[[Life], End]


@contextmanager
def open_nursery(mp: Any) -> Iterator[Lives]:
    """Start a nursery; a life that fails by itself fails the test."""
    orders, theirs = mp.Pipe()
    process = mp.Process(target=nursery, args=(theirs,), daemon=True)
    process.start()

    def lived(life: Life) -> End:
        orders.send(life)
        assert orders.poll(60), f"it did not end: {life}"
        code, end = orders.recv()
        assert code == (-signal.SIGKILL if end.how == "killed" else 0), f"see what it printed: {life}"
        return end  # type: ignore[no-any-return]

    yield lived
    orders.send(None)
    process.join(10)
