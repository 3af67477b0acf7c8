"""For replays: a model that records its calls, an agent, and tools with a trace."""

from __future__ import annotations

import hashlib
import operator
from asyncio import to_thread
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from langgraph_keel import KeelSaver, Replay, ToolCache
from support.tool_graphs import calls, turn_of

PAYS = [
    calls(("pay", {"x": 1}, "one"), ("search", {"x": 5}, "two")),
    AIMessage("paid"),
    calls(("pay", {"x": 2}, "three")),
    AIMessage("paid again"),
]
"""A script of two turns, each with tools."""


class Model(BaseChatModel):
    """Returns the next line of a script, and records its input."""

    script: Sequence[AIMessage] = ()
    model: str = "fake"
    served: str = "fake-1"
    temperature: float | None = None
    seed: int | None = None

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        message = turn_of(self.script, messages)
        message.response_metadata = {"model_name": self.served}
        return ChatResult(generations=[ChatGeneration(message=message)])

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self.bind(tools=[{"name": tool.name, "description": tool.description} for tool in tools])

    @property
    def _llm_type(self) -> str:
        return "fake"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model": self.model, "temperature": self.temperature, "seed": self.seed}


def acting(name: str, path: Path, says: str = "did") -> BaseTool:
    """Return a tool that appends a line to a file, as proof that it ran."""

    def act(x: int) -> str:
        with path.open("a") as lines:
            lines.write(f"{name} {x}\n")
        return f"{says} {x}"

    return StructuredTool.from_function(act, name=name, description="Acts.")


def hello(text: str = "hello") -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def agent(
    saver: KeelSaver,
    tools: Sequence[BaseTool],
    cache: ToolCache | None,
    *,
    system: str = "Be brief.",
    model: Any = None,
    nodes: Any = None,
) -> Any:
    """Return a loop of a model and its tools, with a cache if one is given."""
    spoken = (model or Model(script=PAYS)).bind_tools(tools)

    def speak(state: MessagesState) -> Any:
        return {"messages": [spoken.invoke([SystemMessage(system), *state["messages"]])]}

    kept: Any = {"wrap_tool_call": cache.wrap_tool_call, "awrap_tool_call": cache.awrap_tool_call} if cache else {}
    builder = StateGraph(MessagesState)
    builder.add_node("model", speak)
    builder.add_node("tools", nodes or ToolNode(tools, **kept))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


async def replayed(saver: KeelSaver, face: str, graph: Any, config: Any, **options: Any) -> Replay:
    """Replay by one of the faces, outside this loop if it blocks."""
    if face == "sync":
        return await to_thread(saver.provenance.replay, graph, config, **options)
    return await saver.provenance.areplay(graph, config, **options)


def everything(saver: KeelSaver, thread_id: str) -> str:
    """Return a digest of everything that the saver and the ledger read of a thread."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    parts = [repr((t.config, t.checkpoint, t.metadata, t.parent_config, t.pending_writes)) for t in saver.list(config)]
    parts += [repr(call) for call in saver.tools.calls(thread_id)] + [
        repr(call) for call in saver.provenance.read(config)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Items(TypedDict):
    items: Annotated[list[str], operator.add]


def graph_of(saver: Any, *nodes: tuple[str, Any], **options: Any) -> Any:
    builder: Any = StateGraph(Items)
    builder.add_sequence(nodes)
    builder.add_edge(START, nodes[0][0])
    return builder.compile(checkpointer=saver, **options)


def noting(text: str) -> Any:
    return lambda state: {"items": [f"{text} {len(state['items'])}"]}


def asking(runs: list[str]) -> BaseTool:
    @tool
    def ask(x: int) -> str:
        """Ask a person."""
        runs.append(interrupt({"may I": x}))
        return f"a person said {runs[-1]}"

    return ask
