"""Graphs that call models in every way, and a check of each call's checkpoint.

A fake model records each of its calls, with the graph's own data at that moment.
"""

from __future__ import annotations

from asyncio import to_thread
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph

from langgraph_keel import KeelSaver, ModelCall
from langgraph_keel.provenance.hook import Recorder
from support.provenance.models import Began, Failed, Fake, Told


def _joined(old: list[str], new: list[str]) -> list[str]:
    return [*old, *new]


class State(TypedDict):
    said: Annotated[list[str], _joined]


START_WITH: Any = {"said": ["hello"]}
ASK: Any = [HumanMessage("what is the weather?")]


def recorder_of(saver: KeelSaver) -> Recorder:
    """Return the recorder of a saver's model calls."""
    recorder = saver.engine.session.hooks.find(Recorder)
    assert recorder
    return recorder


def both(blocking: Callable[[Any], Any], asynchronous: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return a node for both faces."""
    return RunnableLambda(blocking, afunc=asynchronous)


def calling(model: Any, times: int = 1) -> Any:
    """Return a node that calls a model."""

    def call(state: Any) -> Any:
        return {"said": [str(model.invoke(ASK).content) for _ in range(times)]}

    async def acall(state: Any) -> Any:
        return {"said": [str((await model.ainvoke(ASK)).content) for _ in range(times)]}

    return both(call, acall)


def graph_of(*nodes: tuple[str, Any]) -> StateGraph[Any, Any, Any, Any]:
    """Return a graph of nodes in a row."""
    builder: Any = StateGraph(State)
    before = START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder  # type: ignore[no-any-return]


@dataclass
class Scene:
    """A saver, its own thread, and a model that records its calls.

    Attributes:
        unfinished: Calls that must be recorded at the checkpoint from which their task began.
        late: Calls that may be recorded at a later checkpoint, since no step waited for them.
        threads: All threads of the scene.
    """

    saver: KeelSaver
    face: str
    durability: Any
    thread: str
    told: Told = field(default_factory=Told)
    unfinished: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    threads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.threads = [self.thread]

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.thread}}

    def model(self, **options: Any) -> Fake:
        return Fake(callbacks=[self.told], **options)

    def compiled(self, *nodes: tuple[str, Any], **options: Any) -> Any:
        return graph_of(*nodes).compile(checkpointer=self.saver, **options)

    async def run(self, graph: Any, value: Any = START_WITH, config: Any = None, **options: Any) -> Any:
        """Invoke a graph by the scene's face, outside this loop if it blocks."""
        given = (value, config or self.config)
        options = {"durability": self.durability} | options
        if self.face == "sync":
            return await to_thread(graph.invoke, *given, **options)
        return await graph.ainvoke(*given, **options)

    async def fails(self, graph: Any, value: Any = START_WITH, **options: Any) -> None:
        try:
            await self.run(graph, value, **options)
        except Failed:
            return
        raise AssertionError("it did not fail")

    async def records(self, config: Any = None) -> Sequence[ModelCall]:
        if self.face == "sync":
            return await to_thread(self.saver.provenance.read, config or self.config)
        return await self.saver.provenance.aread(config or self.config)

    async def found(self, config: Any) -> Any:
        if self.face == "sync":
            return await to_thread(self.saver.get_tuple, config)
        return await self.saver.aget_tuple(config)

    async def listed(self, config: Any = None, **options: Any) -> list[Any]:
        config = config or self.config
        if self.face == "sync":
            return await to_thread(lambda: list(self.saver.list(config, **options)))
        return [each async for each in self.saver.alist(config, **options)]

    # -- the check -----------------------------------------------------------------------------------------------------

    async def check(self) -> list[ModelCall]:
        """Check that each call is recorded once, at the right checkpoint; return records."""
        records = [call for thread in self.threads for call in await self.records(thread_config(thread))]
        assert Counter(call.id for call in records) == Counter(self.told.ids)
        began = {call.id: call for call in self.told.calls}
        stand = [await self.stands(call, began[call.id]) for call in records]
        assert {call.id for call, is_over in zip(records, stand, strict=True) if not is_over} == self.unfinished
        return records

    async def stands(self, call: ModelCall, began: Began) -> bool:
        """Check one call; return whether its step has ended."""
        assert call.thread_id == str(began.thread_id)
        assert call.checkpoint_id is not None, "it is stored nowhere"
        found = await self.found(thread_config(call.thread_id, call.checkpoint_ns, call.checkpoint_id))
        stored = await self.listed(thread_config(call.thread_id))
        if self.durability != "exit":  # with "exit", subgraphs that have finished are not stored
            assert call.checkpoint_ns == nearest(began, {ns_of(each) for each in stored})
        here = began.lineage[call.checkpoint_ns]
        if call.checkpoint_id == here:
            return False
        parent = found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else ""
        is_own = call.checkpoint_ns == innermost(began)
        if self.durability == "exit" or call.id in self.late:
            assert here < call.checkpoint_id
            assert parent <= here or call.id in self.late
            assert not is_own or found.metadata["step"] >= began.step
        else:
            assert parent == here
            assert not is_own or found.metadata["step"] == began.step
        assert call.step == began.step
        return True


Run = Callable[[Scene], Awaitable[None]]
RUNS: dict[str, Run] = {}


def a_run(run: Run) -> Run:
    RUNS[run.__name__] = run
    return run


def ns_of(found: Any) -> str:
    return str(found.config["configurable"]["checkpoint_ns"])


def innermost(began: Began) -> str:
    return max(began.lineage, key=len)


def nearest(began: Began, stored: set[str]) -> str:
    """Return the innermost stored namespace around the call."""
    return max((ns for ns in began.lineage if ns in stored), key=len)


def thread_config(thread: Any, ns: str | None = None, checkpoint_id: str | None = None) -> Any:
    values = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"configurable": {name: value for name, value in values.items() if value is not None}}
