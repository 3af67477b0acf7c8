"""For children of the process tests: a growing graph, racing writers, a reporter."""

from __future__ import annotations

import hashlib
import operator
import os
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Annotated, Any, TypedDict

import ormsgpack
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_keel import CheckpointConflict, KeelSaver
from support.places import Place

ROUNDS = 10_000


class Growing(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: dict[str, Any]
    round: int


def think(state: Growing) -> dict[str, Any]:
    number = state["round"]
    notes = {**state["notes"], f"note{number % 60}": {"round": number, "text": "n" * (number % 50)}}
    return {"messages": [AIMessage(f"thought {number}", id=f"think-{number}")], "notes": notes}


def act(state: Growing) -> dict[str, Any]:
    number = state["round"]
    keep = state["messages"][-40:]
    gone: list[Any] = [{"role": "remove", "content": "", "id": m.id} for m in state["messages"][:-40]]
    return {
        "messages": [HumanMessage(f"act {number} after {len(keep)}", id=f"act-{number}"), *gone],
        "round": number + 1,
    }


def growing_graph(saver: KeelSaver) -> Any:
    graph = StateGraph(Growing)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda state: "think" if state["round"] < ROUNDS else "__end__")
    return graph.compile(checkpointer=saver)


def first_input() -> dict[str, Any]:
    return {"messages": [HumanMessage("go", id="go")], "notes": {}, "round": 0}


def run_config(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 10 * ROUNDS}


def _plain(value: Any) -> Any:
    return [type(value).__name__, value.__dict__] if hasattr(value, "__dict__") else str(value)


def digest_of(value: Any) -> str:
    """Return a digest of a value and its types, the same in every process."""
    return hashlib.sha256(ormsgpack.packb(value, default=_plain)).hexdigest()[:24]


def writes_digest(writes: Iterable[Sequence[Any]]) -> str:
    """Return a digest of (channel, value) pairs, in any order."""
    return digest_of(sorted(digest_of(list(write)) for write in writes))


class Reporting(KeelSaver):
    """A saver that reports each acknowledged write on a pipe."""

    def __init__(self, saver: KeelSaver, pipe: int) -> None:
        self.serde, self._engine, self._pipe = saver.serde, saver.engine, pipe

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> RunnableConfig:
        digest = digest_of(sorted(checkpoint["channel_values"].items()))
        result = super().put(config, checkpoint, metadata, new_versions)
        os.write(self._pipe, f"put {checkpoint['id']} {digest}\n".encode())
        return result

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        digest = writes_digest(writes)
        super().put_writes(config, writes, task_id, task_path)
        checkpoint = config["configurable"]["checkpoint_id"]
        os.write(self._pipe, f"writes {checkpoint} {task_id} {digest}\n".encode())


def grow_and_report(place: Place, pipe: Connection) -> None:
    """Run the graph to its end: start the thread, or resume it."""
    saver = Reporting(place.open(), pipe.fileno())
    config = run_config("growing")
    known = saver.get_tuple(config)
    growing_graph(saver).invoke(None if known else first_input(), config)


def forked(work: Callable[..., object], *args: Any) -> int:
    """Run `work` in a child made by `fork`, without imports; return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks while other threads run
        child = os.fork()
    if child:
        return child
    try:
        work(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- rivals ------------------------------------------------------------------------------------------------------------


class Appending(TypedDict):
    marks: Annotated[list[str], operator.add]


def appending_graph(saver: KeelSaver) -> Any:
    graph = StateGraph(Appending)
    graph.add_node("node", lambda state: {"marks": []})
    graph.add_edge(START, "node")
    return graph.compile(checkpointer=saver)


def by_invoke(saver: KeelSaver, mark: str) -> None:
    appending_graph(saver).invoke({"marks": [mark]}, {"configurable": {"thread_id": "shared"}})


def by_update(saver: KeelSaver, mark: str) -> None:
    appending_graph(saver).update_state({"configurable": {"thread_id": "shared"}}, {"marks": [mark]}, as_node="node")


def by_put(saver: KeelSaver, mark: str) -> None:
    found = saver.get_tuple({"configurable": {"thread_id": "shared"}})
    assert found
    again = next_checkpoint(found)
    again["channel_values"]["marks"] = [*again["channel_values"].get("marks", []), mark]
    saver.put(found.config, again, {"source": "update", "step": 0, "parents": {}}, {})


def next_checkpoint(found: CheckpointTuple) -> Any:
    return {**found.checkpoint, "id": str(uuid6(clock_seq=-2))}


WAYS = (by_invoke, by_update, by_put)


def race(place: Place, on_conflict: str, who: int, rounds: int, gate: Any, told: Any) -> None:
    """Append one mark per round, concurrently with the rivals; report the outcomes."""
    saver = place.open(on_conflict=on_conflict)
    for number in range(rounds):
        mark = f"{who}.{number}"
        gate.wait(60)
        try:
            WAYS[(who + number) % len(WAYS)](saver, mark)
        except CheckpointConflict as error:
            told.put((mark, "conflict", error.thread_id))
        else:
            told.put((mark, "kept", ""))
    saver.close()
