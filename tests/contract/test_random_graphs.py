"""Random graphs and histories look the same as on LangGraph's InMemorySaver."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import EphemeralValue, Topic
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, Durability, Interrupt, Send, StateSnapshot, interrupt
from support.savers import SAVERS, needing
from support.tiers import examples, sized
from typing_extensions import TypedDict

Saver = BaseCheckpointSaver[Any]
Doc = dict[str, Any]


def merged(old: Doc, new: Doc) -> Doc:
    """Merge documents recursively."""
    both = {**old, **new}
    nested = {key for key in old.keys() & new.keys() if isinstance(old[key], dict) and isinstance(new[key], dict)}
    return both | {key: merged(old[key], new[key]) for key in nested}


def gathered(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*(state or []), *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    count: Annotated[int, operator.add]
    last: Any
    log: Annotated[list[Any], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    doc: Annotated[Doc, merged]
    topic: Annotated[Sequence[Any], Topic]
    passing: Annotated[Any, EphemeralValue(Any, guard=False)]
    delta: Annotated[list[Any], DeltaChannel(gathered, snapshot_frequency=3)]


class SubState(TypedDict, total=False):
    """The state shared with the parent must not grow when it is passed back and forth."""

    doc: Annotated[Doc, merged]
    own: Annotated[list[Any], operator.add]


# -- specs -------------------------------------------------------------------------------------------------------------

NODES = ("a", "b", "c", "sub", "z")
CHANNELS = ("last", "log", "messages", "doc", "topic", "passing", "delta")
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, width=16), st.text(max_size=4)
)
DOCUMENTS = st.dictionaries(
    st.sampled_from("xyz"),
    st.recursive(
        SCALARS,
        lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("xyz"), part, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)


@dataclass(frozen=True)
class Node:
    writes: frozenset[str]
    doc: Doc
    asks: int
    # The next nodes after an even count, and after an odd one; "worker" is sent to, by name and number.
    exits: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def is_static(self) -> bool:
        return self.exits[0] == self.exits[1] and "worker" not in self.exits[0]


@dataclass(frozen=True)
class Spec:
    nodes: dict[str, Node]
    entries: tuple[str, ...]
    # Of the subgraph: with `True` it keeps its state between calls.
    memory: bool
    sub_asks: int


@dataclass(frozen=True)
class Act:
    kind: str
    # Starts from an earlier checkpoint: a fork, or a repeated run.
    is_back: bool
    number: int
    doc: Doc
    durability: Durability
    is_broken: bool
    stops: tuple[str, ...]


EXITS = st.lists(st.sampled_from([*NODES, "worker", "worker", END, END]), max_size=3).map(tuple)
SPECS = st.builds(
    Spec,
    st.fixed_dictionaries(
        {
            name: st.builds(
                Node,
                st.frozensets(st.sampled_from(CHANNELS), max_size=4),
                DOCUMENTS,
                st.sampled_from([0, 0, 1, 2]),
                EXITS.map(lambda exits: (exits, exits)) | st.tuples(EXITS, EXITS),
            )
            for name in NODES
        }
    ),
    st.lists(st.sampled_from(NODES), min_size=1, max_size=3, unique=True).map(tuple),
    st.booleans(),
    st.sampled_from([0, 0, 1]),
)
ACTS = st.builds(
    Act,
    st.sampled_from(["say", "answer", "answer", "go on", "update"]),
    st.sampled_from([False, False, True]),
    st.integers(0, 20),
    DOCUMENTS,
    st.sampled_from(["sync", "async", "exit"]),
    st.booleans(),
    st.lists(st.sampled_from(NODES), max_size=1).map(tuple),
)


# -- the graph ---------------------------------------------------------------------------------------------------------


class World:
    """A graph with a saver; its nodes fail while an act is broken."""

    def __init__(self, spec: Spec, saver: Saver, thread: str) -> None:
        self._spec, self._saver = spec, saver
        self._config: RunnableConfig = {"configurable": {"thread_id": thread}}
        self._is_broken = False
        builder = StateGraph(State)
        for name, node in spec.nodes.items():
            builder.add_node(name, self._subgraph() if name == "sub" else self._body(name, node))
            if node.is_static:
                for target in dict.fromkeys(node.exits[0]):
                    builder.add_edge(name, target)
            else:
                builder.add_conditional_edges(name, self._route(node), [*NODES, "worker", END])
        builder.add_node("worker", lambda sent: {"log": [sent], "count": 1})
        for name in spec.entries:
            builder.add_edge(START, name)
        self.graph = builder.compile(checkpointer=saver)

    def _subgraph(self) -> Any:
        def ask(state: SubState) -> Any:
            answers = [interrupt({"sub": n}) for n in range(self._spec.sub_asks)]
            return {"own": [len(state.get("own", ())), *answers], "doc": {"y": {"asked": answers}}}

        builder = StateGraph(SubState).add_node("ask", ask).add_node("tell", lambda _: {"own": ["told"]})
        builder.add_edge(START, "ask").add_edge("ask", "tell")
        return builder.compile(checkpointer=True if self._spec.memory else None)

    def _body(self, name: str, node: Node) -> Any:
        def body(state: State) -> Any:
            answers = [interrupt({"node": name, "question": n}) for n in range(node.asks)]
            if name == "z" and self._is_broken:
                raise ValueError("z is broken")
            label = f"{name}{state.get('count', 0)}"
            values = {
                "last": {label: node.doc},
                "log": [label, *answers],
                "messages": [AIMessage(f"of {label}", id=label), AIMessage("the same", id="same")],
                "doc": {name: node.doc, "x": {label: answers}},
                "topic": label,
                "passing": node.doc,
                "delta": [label, node.doc],
            }
            return {"count": 1, **{channel: values[channel] for channel in sorted(node.writes)}}

        return body

    def _route(self, node: Node) -> Callable[[State], list[Any]]:
        def route(state: State) -> list[Any]:
            exits = node.exits[state.get("count", 0) % 2]
            sent = {"to": len(exits), "doc": node.doc}
            return [Send("worker", {**sent, "n": n}) if to == "worker" else to for n, to in enumerate(exits)]

        return route

    # -- acts ----------------------------------------------------------------------------------------------------------

    def do(self, act: Act) -> Any:
        """Perform an act; return its result."""
        self._is_broken = act.is_broken
        return attempt(self._do, act)

    def _do(self, act: Act) -> Any:
        history = list(self.graph.get_state_history(self._config))
        config = history[act.number % len(history)].config if history and act.is_back else self._config
        said = {"log": [act.doc], "doc": act.doc, "messages": [HumanMessage("hello", id=f"h{act.number}")], "count": 1}
        if act.kind == "update":
            if act.number % 4 == 0:
                said["messages"] = [RemoveMessage("same")]
            self.graph.update_state(config, said, (None, *NODES)[act.number % 6])
            return None
        if act.kind == "go on":
            return self._run(act, None, config)
        # If no question is pending (any more) Keel drops an answer, and InMemorySaver keeps it for the next question.
        # Another answer to a task that has failed with one replaces it, and InMemorySaver keeps both.
        tasks = self.graph.get_state(config).tasks if act.kind == "answer" else ()
        asked = [each for task in tasks if task.result is None and task.error is None for each in task.interrupts]
        return self._run(act, Command(resume=answers(act, asked)) if asked else said, config)

    def _run(self, act: Act, given: Any, config: RunnableConfig) -> Any:
        config = {**config, "recursion_limit": 9, "max_concurrency": 1}
        found = self.graph.invoke(given, config, durability=act.durability, interrupt_before=[*act.stops])
        return plain(found, {})

    # -- observations --------------------------------------------------------------------------------------------------

    def see(self) -> Any:
        """Return everything that can be read.

        Ids are replaced by names in the order of storage.
        """
        config = self._config
        history = attempt(lambda: list(self.graph.get_state_history(config))[::-1])
        states = history if isinstance(history, list) else []
        names: dict[str, str] = {}
        for n, state in enumerate(states):
            names[id_of(state.config)] = f"checkpoint {n}"
            names.update({task.id: f"task {m} of {n}" for m, task in enumerate(state.tasks)})
        namespaces = defaultdict(list)
        for found in list(self._saver.list(config))[::-1]:
            namespaces[plain(found.config["configurable"]["checkpoint_ns"], names)].append(found)
        for namespace, founds in namespaces.items():
            for n, found in enumerate(founds):
                names.setdefault(id_of(found.config), f"checkpoint {n} of {namespace}")
        return {
            "latest": attempt(lambda: snapshot(self.graph.get_state(config, subgraphs=True), names)),
            "history": [snapshot(state, names) for state in states] or history,
            "stored": {ns: [stored(found, names) for found in founds] for ns, founds in sorted(namespaces.items())},
        }


def answers(act: Act, asked: Sequence[Interrupt]) -> Any:
    """Return the answers to as many questions as the act gives.

    They are given by id: InMemorySaver gives an answer without an id to the next question, too
    (`test_resume_hazards.py`).
    """
    return {each.id: {"yes": act.number} for each in asked[: 1 + act.number % len(asked)]}


def attempt(call: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a call, or the error of LangGraph or of a node."""
    try:
        return call(*given)
    except Exception as error:
        return type(error).__name__, re.sub(UUID, "?", str(error))


UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


def id_of(config: RunnableConfig | None) -> str:
    return str((config or {}).get("configurable", {}).get("checkpoint_id"))


def plain(value: Any, names: dict[str, str]) -> Any:
    """Return a value for comparison: types and orders count, ids do not."""
    if isinstance(value, str):
        return re.sub(UUID, lambda found: names.get(found[0], "?"), value)
    if isinstance(value, dict):
        return {key: plain(part, names) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, names) for part in value]  # LangGraph's savers make a list of a tuple
    if isinstance(value, Interrupt):
        return "Interrupt", plain(value.value, names)
    return type(value).__name__, repr(value)


def snapshot(state: StateSnapshot, names: dict[str, str]) -> Any:
    tasks = [
        (
            task.name,
            repr(task.path),
            repr(task.error),
            plain([task.interrupts, task.result], names),
            nested(task.state, names),
        )
        for task in state.tasks
    ]
    ids = names.get(id_of(state.config)), names.get(id_of(state.parent_config))
    return plain(state.values, names), state.next, tasks, plain([state.metadata, state.interrupts], names), ids


def nested(state: Any, names: dict[str, str]) -> Any:
    return snapshot(state, names) if isinstance(state, StateSnapshot) else state is not None


def stored(found: Any, names: dict[str, str]) -> Any:
    """Return the saver's own view.

    Versions differ by saver: only their numbers are compared.
    """
    writes = defaultdict(list)
    for task, channel, value in found.pending_writes or ():
        writes[task].append((channel, plain(value, names)))
    checkpoint = found.checkpoint
    return {
        "values": plain(checkpoint["channel_values"], names),
        "versions": {channel: number(version) for channel, version in checkpoint["channel_versions"].items()},
        "seen": {
            node: {channel: number(version) for channel, version in versions.items()}
            for node, versions in checkpoint["versions_seen"].items()
        },
        "metadata": plain(found.metadata, names),
        "parent": names.get(id_of(found.parent_config)),
        "writes": sorted(map(repr, writes.values())),
    }


def number(version: Any) -> int:
    return int(str(version).partition(".")[0])


TWO = ("memory", "sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("backend", sized(TWO, TWO, (*TWO, "files", "postgres", "redis")))
def test_random_graphs_behave_as_with_in_memory_saver(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needing(backend, request)
    threads = count()

    @settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(SPECS, st.lists(ACTS, min_size=1, max_size=8))
    def check(spec: Spec, acts: list[Act]) -> None:
        thread = f"t{next(threads)}"
        ours, theirs = World(spec, saver, thread), World(spec, InMemorySaver(), thread)
        for act in acts:
            note(f"{act}")
            assert ours.do(act) == theirs.do(act)
            assert ours.see() == theirs.see()

    with SAVERS[backend](tmp_path) as saver:
        check()
