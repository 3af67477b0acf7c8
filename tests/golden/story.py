"""The history in every golden store, written with public names only."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Interrupt, Send, interrupt

from golden.kinds import (
    TYPES,
    Access,
    Cancelled,
    Colour,
    Fare,
    Leg,
    Level,
    Names,
    Pair,
    Point,
    large,
    own,
    plain,
)
from golden.seen import CACHE_KEY, DELTA
from langgraph_keel import (
    ApprovalRequest,
    DriftWarning,
    KeelCache,
    KeelSaver,
    Retention,
    SlidingWindow,
    SummarizationNode,
    ToolCache,
    ToolPolicy,
    request_approval,
)

EVIL = "a:b%{ü}/#1 \x1b[31m"
USER = "ada"
FOREVER = 3e9
"""Seconds for which a reviewer holds a request: nearly a hundred years."""
USAGE: Any = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
Open = Callable[..., KeelSaver]


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "user_id": USER} | more}


class Fake(BaseChatModel):
    """A model that repeats the last message, and reports `served` as its name."""

    served: str = "fake-1"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        about = {"model_name": self.served, "system_fingerprint": f"fp-{self.served}", "finish_reason": "stop"}
        said = AIMessage(f"answer to {messages[-1].text}", response_metadata=about, usage_metadata=USAGE)
        return ChatResult(generations=[ChatGeneration(message=said)])

    @property
    def _llm_type(self) -> str:
        return "fake"


# -- a conversation: lists that grow and are edited, dicts that change a little, large values, models -----------------


class Named(TypedDict):
    kinds: Colour | Level | Access | Point | Fare | Leg | Pair | Names | Cancelled


NAMED = StateGraph(Named).add_node("none", lambda state: state).add_edge(START, "none").compile()
"""Another process needs only such a graph, which names the application's classes, to read them."""


class Chat(MessagesState):
    notes: dict[str, Any]
    log: Annotated[list[str], operator.add]
    big: str
    kept: Any


def chat(saver: KeelSaver, served: str) -> Any:
    model = Fake(served=served).bind(seed=7, temperature=0.5)

    def talk(state: Chat) -> dict[str, Any]:
        answer = model.invoke([SystemMessage("Be short."), *state["messages"]])
        turn = len(state.get("log") or [])
        notes = {
            **(state.get("notes") or {}),
            f"turn {turn}": {"deep": {"list": list(range(turn)), "said": answer.text}},
        }
        notes["all"] = {f"note {n}": {"n": n, "seen": turn if n == turn else -1} for n in range(40)}
        return {"messages": [answer], "notes": notes, "log": [f"turn {turn}"]}

    def edit(state: Chat) -> dict[str, Any]:
        messages, turn = state["messages"], len(state["log"])
        edits: list[Any] = []
        if turn % 3 == 0:
            edits = [HumanMessage("edited in the middle", id=messages[2].id), RemoveMessage(str(messages[1].id))]
        return {"messages": edits, "big": large(turn // 2), "kept": [plain, own][turn % 2]()}

    builder = StateGraph(Chat).add_node("talk", talk).add_node("edit", edit)
    return builder.add_edge(START, "talk").add_edge("talk", "edit").compile(checkpointer=saver)


def conversation(saver: KeelSaver) -> None:
    for turn in range(7):
        asked: Any = {"messages": [HumanMessage(f"question {turn}", id=f"q{turn}")]}
        chat(saver, "fake-1" if turn < 5 else "fake-2").invoke(asked, config("chat", run=f"run {turn}"))


# -- time travel, subgraphs, delta channels ---------------------------------------------------------------------------


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    memo: Any


def nested(saver: KeelSaver) -> Any:
    inner = StateGraph(Log).add_node("inside", lambda state: {"log": [f"inside {len(state.get('log') or [])}"]})
    with_memory = inner.add_edge(START, "inside").compile(checkpointer=True)
    builder = StateGraph(Log).add_node("outer", lambda state: {"log": ["outer"], "memo": {"n": len(state["log"])}})
    builder.add_node("sub", with_memory)
    builder.add_node("fan", lambda state: {"log": [f"fan {state['memo']}"]})
    builder.add_edge(START, "outer").add_edge("outer", "sub")
    builder.add_conditional_edges("sub", lambda state: [Send("fan", {"memo": n}) for n in (1, 2)], ["fan"])
    return builder.compile(checkpointer=saver)


def travels(saver: KeelSaver) -> None:
    graph = nested(saver)
    for _ in range(3):
        graph.invoke({"log": ["begin"]}, config("travel"))
    root = [each for each in saver.timeline("travel") if not each.address.checkpoint_ns]
    saver.labels.set(root[2], "early")
    saver.labels.set(root[-2], "late one: \u00fc")
    saver.fork(root[3], "travel-forked")
    graph.invoke(None, saver.fork(root[4]))
    saver.rewind(root[5])
    graph.invoke({"log": ["after the rewind"]}, config("travel"))
    graph.invoke({"log": ["goes its own way"]}, config("travel-forked"))
    graph.update_state(config("travel"), {"log": ["by hand"]}, as_node="outer")
    saver.copy_thread("travel", "travel-copied")


def _joined(old: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*old, *(each for write in writes for each in write)]


class Delta(TypedDict):
    log: Annotated[list[str], DeltaChannel(_joined, snapshot_frequency=4)]


def delta_graph(saver: KeelSaver) -> Any:
    builder = StateGraph(Delta).add_node("say", lambda state: {"log": [f"said {len(state['log'])}"]})
    return builder.add_edge(START, "say").compile(checkpointer=saver)


# -- persons ----------------------------------------------------------------------------------------------------------


class Trip(TypedDict, total=False):
    decision: Any
    done: str


def booking(saver: KeelSaver, price: int = 1200) -> Any:
    """Return a graph that asks whether to book, and stores the decision in its state."""

    def book(state: Trip) -> dict[str, Any]:
        said = request_approval(
            "book", {"flight": "LH 1"}, facts={"price": price}, description="Fly", approvers=["ann", "bob"]
        )
        return {"decision": said}

    builder = StateGraph(Trip).add_node("book", book).add_node("end", lambda state: {"done": state["decision"].kind})
    return builder.add_edge(START, "book").add_edge("book", "end").compile(checkpointer=saver)


def questions(saver: KeelSaver) -> Any:
    builder = StateGraph(Trip).add_node("ask", lambda state: {"done": str(interrupt({"question": "How?"}))})
    builder.add_node("beside", lambda state: {"decision": Point(1, 2.0)})
    return builder.add_edge(START, "ask").add_edge(START, "beside").compile(checkpointer=saver)


def request_of(saver: KeelSaver, thread: str) -> ApprovalRequest:
    (request,) = saver.approvals.pending(thread)
    return request


def persons(saver: KeelSaver) -> None:
    graph = booking(saver)
    for thread in ("waits", "approved", "edited", "claimed", "changed", "decided", "taken"):
        graph.invoke({}, config(thread))
    inbox = saver.approvals
    for thread in ("approved", "changed", "decided", "taken"):
        inbox.approve(request_of(saver, thread).id, by="ann", reason=f"good for {thread}")
    inbox.edit(request_of(saver, "edited").id, args={"flight": "LH 2"}, by="bob")
    inbox.claim(request_of(saver, "claimed").id, by="bob", seconds=FOREVER)
    for thread in ("approved", "edited"):
        graph.invoke(inbox.resume(thread), config(thread))
    booking(saver, 1500).invoke(inbox.resume("changed"), config("changed"))  # asks again
    questions(saver).invoke({}, config("free question"))
    booking(saver).invoke({}, config("gone"))
    saver.delete_thread("gone")


# -- tools, archives, caches ------------------------------------------------------------------------------------------


def calls(*wanted: tuple[str, dict[str, Any], str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": call_id} for name, args, call_id in wanted])


SCRIPT = [calls(("search", {"q": "tides"}, "c1"), ("share", {"n": 1}, "c2")), calls(("search", {"q": "tides"}, "c3"))]
FATAL = [calls(("die", {"now": True}, "c1"))]


def tools_graph(cache: ToolCache, script: Sequence[AIMessage], die: Callable[[], None] = lambda: None) -> Any:
    """Return a loop of a scripted model and cached tools."""

    @tool
    def search(q: str) -> str:
        """Search."""
        return f"found {q}"

    @tool
    def share(n: int) -> str:
        """Say what all threads may hear."""
        return f"shared {n}"

    @tool("die")
    def dying(now: bool) -> str:
        """End the process."""
        die()
        return "survived"

    def model(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(message, AIMessage) for message in state["messages"])
        return {"messages": [script[said].model_copy() if said < len(script) else AIMessage("done")]}

    builder = StateGraph(MessagesState).add_node("model", model)
    builder.add_node("tools", ToolNode([search, share, dying], wrap_tool_call=cache.wrap_tool_call))
    builder.add_edge(START, "model").add_edge("tools", "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    return builder.compile(checkpointer=cache.saver)


def tool_cache(saver: KeelSaver, **options: Any) -> ToolCache:
    policies: Mapping[str, Any] = {
        "search": ToolPolicy(version="1", scope="thread", cost=0.25),
        "share": ToolPolicy(version="1", scope="shared"),
        "die": ToolPolicy(version="1", scope="thread"),
    }
    return ToolCache(saver, policies, secret=b"golden secret of the stores", store_arguments=True, **options)


HELLO: Any = {"messages": [HumanMessage("hello", id="hello")]}


def tool_calls(saver: KeelSaver) -> None:
    with tool_cache(saver) as cache:
        tools_graph(cache, SCRIPT).invoke(HELLO, config("tools"))
    KeelCache(saver).set({CACHE_KEY: ([("kept", {1, 2}), ("leg", own()["model"])], None)})


def shortening(saver: KeelSaver, node: Any) -> Any:
    def answer(state: MessagesState) -> dict[str, Any]:
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"answer to {last.text}", id=f"answer-{last.id}")]}

    builder = StateGraph(MessagesState).add_node("shorten", node).add_node("answer", answer)
    return builder.add_edge(START, "shorten").add_edge("shorten", "answer").compile(checkpointer=saver)


def archives(saver: KeelSaver, watching: KeelSaver) -> None:
    summary = SummarizationNode(Fake(), saver, trigger=("messages", 6), keep=("messages", 2))
    window = SlidingWindow(saver, keep=("messages", 3))
    for thread, node in (("summarized", summary), ("window", window)):
        graph = shortening(saver, node)
        for turn in range(7):
            graph.invoke({"messages": [HumanMessage(f"question {turn}", id=f"q{turn}")]}, config(thread))
    saver.archive("window").pin(0)

    def forget(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(str(message.id)) for message in state["messages"][:-1]]}

    for turn in range(3):
        asked = [HumanMessage(f"question {turn}", id=f"q{turn}"), ToolMessage("7", tool_call_id="c", id=f"t{turn}")]
        shortening(watching, forget).invoke({"messages": asked}, config("watched"))


# -- by hand: addresses, writes, branches; what prunes leave ----------------------------------------------------------


def checkpoint(number: int, values: Mapping[str, Any]) -> Any:
    versions = dict.fromkeys(values, 1)
    return {
        "v": 4,
        "id": f"1f000000-0000-6000-8000-{number:012}",
        "ts": f"2026-01-01T00:00:{number:02}+00:00",
        "channel_values": dict(values),
        "channel_versions": versions,
        "versions_seen": {"node": versions},
        "updated_channels": None,
    }


def put(saver: KeelSaver, at: Any, number: int, values: Mapping[str, Any], **metadata: Any) -> Any:
    made = checkpoint(number, values)
    about: Any = {"source": "loop", "step": number, "parents": {}, **metadata}
    return saver.put(at, made, about, made["channel_versions"])


def by_hand(saver: KeelSaver) -> None:
    at = config(EVIL, checkpoint_ns="")
    first = put(saver, at, 1, {"x": [1, 2, 3], "y": {"a": {"b": 1}}}, run_id="r1", note={"a": [1]})
    second = put(saver, first, 2, {"x": [1, 9, 3, 4], "y": {"a": {"b": 2, "c": None}}}, run_id="r2")
    saver.put_writes(second, [("x", own()), ("__error__", ValueError("failed")), ("y", None)], "task-1", "~a")
    saver.put_writes(second, [("__interrupt__", [Interrupt(value="well?", id="1" * 32)])], "task-2")
    named = config(EVIL, checkpoint_ns="", checkpoint_id=first["configurable"]["checkpoint_id"])  # so that it forks
    put(saver, named, 3, {"x": [], "y": plain()}, run_id="r3")
    put(saver, config("eve's", checkpoint_ns="", user_id="eve"), 5, {"x": 5})
    put(saver, config(EVIL, checkpoint_ns="sub:1|deeper:2"), 4, {"x": ["in a namespace"]})
    saver.put_writes(config("only writes", checkpoint_ns="", checkpoint_id="1f0"), [("x", 1)], "task")


def removed(saver: KeelSaver) -> None:
    graph = nested(saver)
    for thread in ("pruned", "pruned runs"):
        for turn in range(4):
            graph.invoke({"log": [f"turn {turn}"]}, {**config(thread, run_id=f"{thread} {turn}")})
    saver.labels.set(saver.timeline("pruned")[1], "stays")
    saver.prune(["pruned"], strategy=Retention(last=3))
    saver.delete_for_runs(["pruned runs 1"])
    for turn in range(9):
        delta_graph(saver).invoke({"log": [f"turn {turn}"]}, config(DELTA))
    saver.prune([DELTA], strategy=Retention(last=3))
    saver.retention.set_policy(
        Retention(threads="tmp-*", last=2, idle=3600),
        Retention(threads="chat*", per="run", within=86_400, labelled=True),
    )


def write(open_: Open) -> None:
    """Write everything except the work of the processes that die (see `__main__`)."""
    warnings.simplefilter("ignore", DriftWarning)
    with (
        open_(types=TYPES, graph_version="7") as saver,
        open_(types=TYPES, graph_version="7", archive_removed=True) as watching,
    ):
        conversation(saver)
        travels(saver)
        persons(saver)
        tool_calls(saver)
        archives(saver, watching)
        by_hand(saver)
        removed(saver)


def die_in_a_tool(open_: Open, die: Callable[[], None]) -> None:
    with open_(types=TYPES) as saver, tool_cache(saver) as cache:
        tools_graph(cache, FATAL, die).invoke(HELLO, config("died"), durability="sync")


def die_after_the_decision(open_: Open, die: Callable[[], None]) -> None:
    """Leave the thread `taken` claimed by a run that has ended."""
    with open_(types=TYPES) as saver:
        builder = StateGraph(Trip).add_node("book", lambda state: die())
        graph = builder.add_edge(START, "book").compile(checkpointer=saver)
        graph.invoke(saver.approvals.resume("taken"), config("taken"), durability="sync")
