"""The saver's rule: removed messages are archived before the checkpoint is stored."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer, add_messages
from langgraph.types import Overwrite
from support.summaries.archives import CONFIG, Box, box, memory_box, turns
from typing_extensions import TypedDict

from langgraph_keel import KeelSaver, MemorySaver, SummarizationNode
from langgraph_keel.testing.faults import Counter, Fault, Injected, with_tap

__all__ = ["box", "memory_box"]  # fixtures

ALL = RemoveMessage(id=REMOVE_ALL_MESSAGES)


def model(word: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=(AIMessage(f"{word} {n}") for n in itertools.count()))


def doing(step: Callable[[dict[str, Any]], Any], saver: KeelSaver, schema: Any = MessagesState) -> Any:
    builder: Any = StateGraph(schema)
    builder.add_node("n", step)
    builder.add_edge(START, "n")
    return builder.compile(checkpointer=saver)


def invoke(box: Box, graph: Any, given: Any, config: Any = CONFIG, **options: Any) -> Any:
    if box.face == "sync":
        return graph.invoke(given, config, **options)
    return asyncio.run(graph.ainvoke(given, config, **options))


def last(count: int) -> Callable[[dict[str, Any]], Any]:
    """Return a node that keeps the last few messages."""
    return lambda state: {"messages": [RemoveMessage(message.id) for message in state["messages"][:-count]]}


def ids(messages: Sequence[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_messages_removed_by_a_node_are_archived(memory_box: Box, durability: Any) -> None:
    box = memory_box
    graph = doing(last(3), box.saver)
    invoke(box, graph, {"messages": turns(0, 3)}, durability=durability)
    assert box.call("entries") == []
    for n in range(3, 6):
        invoke(box, graph, {"messages": turns(n, n + 1)}, durability=durability)
    entries = box.call("entries")
    assert [entry.message_ids for entry in entries] == [("m0",), ("m1",), ("m2",)]
    assert {entry.by for entry in entries} == {"rule"}
    assert [entry.step for entry in entries] == [4, 7, 10]
    found = box.call("messages")
    assert box.bytes_of(found) == box.bytes_of(turns(0, 3))
    box.saver.prune(["t"])
    assert box.call("messages") == turns(0, 3)


@pytest.mark.parametrize("how", ["update", "overwrite", "all", "empty"])
def test_every_kind_of_removal_is_archived(how: str) -> None:
    changes: dict[str, Any] = {
        "update": [RemoveMessage("m1"), RemoveMessage("m3")],
        "overwrite": Overwrite([*turns(0, 1), *turns(2, 3)]),
        "all": [ALL, *turns(0, 1), *turns(2, 3)],
        "empty": [ALL],
    }
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(lambda state: {}, saver)
        graph.invoke({"messages": turns(0, 4)}, CONFIG)
        before = graph.get_state(CONFIG).values["messages"]
        graph.update_state(CONFIG, {"messages": changes[how]})
        left = graph.get_state(CONFIG).values["messages"]
        gone = [message for message in before if message not in left]
        assert saver.archive("t").messages() == gone
        saver.archive("t").restore(graph)
        assert graph.get_state(CONFIG).values["messages"] == [*gone, *left]


def test_the_rule_takes_extra_trips_only_for_removals_and_edits() -> None:
    counter, taken = Counter(), []
    for watched in (False, ["messages"]):
        with MemorySaver(archive_removed=watched) as saver:
            graph = doing(lambda state: {"messages": [AIMessage("ok")]}, with_tap(saver, counter))
            for n in range(3):
                graph.invoke({"messages": turns(n, n + 1)}, CONFIG)
            taken.append(counter.taken())
    assert taken[0] == taken[1]
    with MemorySaver(archive_removed=["messages"]) as saver:
        graph = doing(lambda state: {"messages": [AIMessage("ok")]}, with_tap(saver, counter))
        graph.invoke({"messages": turns(0, 3)}, CONFIG)
        plain = graph.get_state(CONFIG)
        counter.taken()
        graph.update_state(CONFIG, {"messages": [RemoveMessage(plain.values["messages"][0].id)]})
        assert counter.taken() == 2 + 1 + 2, "a put reads its parent, writes a part"
        assert len(saver.archive("t")) == 1
        edited = HumanMessage("edited", id=plain.values["messages"][2].id)
        counter.taken()
        graph.update_state(CONFIG, {"messages": [edited]})
        assert counter.taken() == 2 + 1 + 1, "an edit reads the parent, no more"
        assert len(saver.archive("t")) == 1


def test_a_window_takes_the_same_trips_at_every_turn() -> None:
    counter, taken = Counter(), []
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(last(2), with_tap(saver, counter))
        for n in range(220):
            graph.invoke({"messages": turns(n, n + 1)}, CONFIG)
            taken.append(counter.taken())
        assert set(taken[2:]) == {taken[2]}
        assert saver.archive("t").messages() == turns(0, 218)


def test_an_edit_is_archived_only_when_its_message_is_removed() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(lambda state: {}, saver)
        graph.invoke({"messages": turns(0, 3)}, CONFIG)
        graph.update_state(CONFIG, {"messages": [HumanMessage("edited", id="m0")]})
        assert len(saver.archive("t")) == 0
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m0")]})
        graph.update_state(CONFIG, {"messages": [ALL, *turns(0, 3)]})
        assert [message.text for message in saver.archive("t").messages()] == ["edited"]
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m0")]})
        assert [hit.message.text for hit in saver.archive("t").search("")] == ["edited", "said 0"]
        graph.update_state(CONFIG, {"messages": turns(0, 1)})
        graph.update_state(CONFIG, {"messages": [RemoveMessage("m0")]})
        assert len(saver.archive("t")) == 2, "this form of it is there already"


class Lists(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: list[AnyMessage]
    plain: Annotated[list[Any], operator.add]


def test_archive_removed_selects_channels() -> None:
    for watched, expected in (
        (True, {"messages", "seen"}),
        (["seen"], {"seen"}),
        (("messages", "plain"), {"messages"}),
    ):
        with MemorySaver(archive_removed=watched) as saver:
            graph = doing(lambda state: {}, saver, Lists)
            graph.invoke({"messages": turns(0, 3), "seen": turns(3, 5), "plain": ["x"]}, CONFIG)
            graph.update_state(CONFIG, {"messages": [ALL], "seen": [], "plain": Overwrite([])})
            assert {entry.channel for entry in saver.archive("t")} == expected


def test_messages_in_another_list_are_not_archived() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(lambda state: {}, saver, Lists)
        graph.invoke({"messages": turns(0, 3), "seen": turns(0, 3)}, CONFIG)
        graph.update_state(CONFIG, {"seen": turns(1, 2)})
        assert len(saver.archive("t")) == 0
        graph.update_state(CONFIG, {"messages": [ALL]})
        assert ids(saver.archive("t").messages()) == ["m0", "m2"]


def test_messages_without_an_id_are_archived() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(lambda state: {}, saver, Lists)
        said = [HumanMessage("a"), HumanMessage("b"), HumanMessage("c")]
        graph.invoke({"seen": said}, CONFIG)
        graph.update_state(CONFIG, {"seen": said[1:2]})
        assert saver.archive("t").messages() == [said[0], said[2]]
        for _ in range(2):
            saver.archive("t").restore(graph)
            assert sorted(message.text for message in graph.get_state(CONFIG).values["seen"]) == ["a", "b", "c"]


def test_a_fork_is_compared_with_its_own_parent() -> None:
    with MemorySaver(archive_removed=True) as saver:
        graph = doing(lambda state: {"messages": [AIMessage("ok")]}, saver)
        for n in range(3):
            graph.invoke({"messages": turns(n, n + 1)}, CONFIG)
        old = list(graph.get_state_history(CONFIG))[-3]
        graph.invoke(None, old.config)
        saver.rewind(old.config)
        graph.invoke({"messages": turns(8, 9)}, CONFIG)
        assert len(saver.archive("t")) == 0, "older checkpoints have those; nothing was taken out"
        graph.update_state(old.config, {"messages": [RemoveMessage("m0")]})
        assert ids(saver.archive("t").messages()) == ["m0"]


def test_the_rule_works_in_a_process_without_a_memo(memory_box: Box) -> None:
    box = memory_box
    graph = doing(last(2), box.saver)
    invoke(box, graph, {"messages": turns(0, 2)})
    box.saver.engine.session.memo.forget_thread("t")
    invoke(box, graph, {"messages": turns(2, 4)})
    box.saver.engine.session.memo.forget_thread("t")
    graph.update_state(CONFIG, {"messages": [RemoveMessage("m2")]})
    assert ids(box.call("messages")) == ["m0", "m1", "m2"]


def test_a_crash_at_any_request_loses_no_messages() -> None:
    for lost_reply, at in itertools.product((False, True), range(5)):
        with MemorySaver(archive_removed=True) as saver:
            graph = doing(lambda state: {}, saver)
            graph.invoke({"messages": turns(0, 4)}, CONFIG)
            broken = doing(lambda state: {}, with_tap(saver, Fault(at, lost_reply=lost_reply)))
            with pytest.raises(Injected):
                broken.update_state(CONFIG, {"messages": [RemoveMessage("m1")]})
            graph.update_state(CONFIG, {"messages": [ALL, *turns(0, 1)]})
            assert saver.archive("t").messages() == turns(1, 4)


class Inner(MessagesState):
    """The memory of a subgraph."""


def test_removals_in_a_stateful_subgraph_are_archived(memory_box: Box) -> None:
    box = memory_box
    inner: Any = StateGraph(Inner)
    inner.add_node("trim", last(2))
    inner.add_edge(START, "trim")
    outer = StateGraph(TypedDict("Outer", {"n": int}))  # type: ignore[operator]
    sub = inner.compile(checkpointer=True)
    outer.add_node("sub", lambda state: {"n": len(sub.invoke({"messages": turns(state["n"], state["n"] + 2)}))})
    outer.add_edge(START, "sub")
    graph = outer.compile(checkpointer=box.saver)
    graph.invoke({"n": 0}, CONFIG)
    graph.invoke({"n": 2}, CONFIG)
    (entry,) = box.call("entries")
    assert entry.checkpoint_ns == "sub"
    assert entry.message_ids == ("m0", "m1")


class Deltas(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer, snapshot_frequency=5)]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_removals_in_a_delta_channel_are_archived(memory_box: Box, durability: Any) -> None:
    box = memory_box
    graph = doing(last(3), box.saver, Deltas)
    for n in range(0, 24, 2):
        invoke(box, graph, {"messages": turns(n, n + 2)}, durability=durability)
    assert [entry.message_ids for entry in box.call("entries")][:2] == [("m0",), ("m1", "m2")]
    assert box.call("messages") == turns(0, 21)
    graph.update_state(CONFIG, {"messages": Overwrite(turns(22, 24))})
    graph.update_state(CONFIG, {"messages": Overwrite([])})
    assert box.call("messages") == turns(0, 24)
    assert graph.get_state(CONFIG).values.get("messages", []) == []
    box.call("restore", graph)
    assert graph.get_state(CONFIG).values["messages"] == turns(0, 24)


def test_messages_added_and_removed_in_one_run_are_archived(memory_box: Box) -> None:
    box, builder = memory_box, StateGraph(Deltas)
    builder.add_node("say", lambda state: {"messages": turns(0, 3)})
    builder.add_node("drop", lambda state: {"messages": [RemoveMessage("m1")]})
    builder.add_edge(START, "say")
    builder.add_edge("say", "drop")
    graph = builder.compile(checkpointer=box.saver)
    invoke(box, graph, {"messages": turns(8, 9)}, durability="exit")
    assert ids(box.call("messages")) == ["m1"]


# -- other packages ----------------------------------------------------------------------------------------------------


def rounds(box: Box, graph: Any, count: int, durability: Any) -> list[BaseMessage]:
    """Let a conversation grow; return all its messages in order, without summaries."""
    seen: dict[str, BaseMessage] = {}
    for n in range(count):
        result = invoke(box, graph, {"messages": [HumanMessage(f"q{n}", id=f"q{n}")]}, durability=durability)
        seen.update({message.id: message for message in result["messages"]})
    return [message for message in seen.values() if "sum " not in message.text]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_removals_by_langchains_middleware_in_every_durability(memory_box: Box, durability: Any) -> None:
    check_langchain(memory_box, durability)


def test_removals_by_langchains_middleware_are_archived(box: Box) -> None:
    check_langchain(box, "async")


def check_langchain(box: Box, durability: Any) -> None:
    shorten = SummarizationMiddleware(model("sum"), trigger=("messages", 6), keep=("messages", 3))
    graph = create_agent(model("answer"), middleware=[shorten], checkpointer=box.saver)
    every = rounds(box, graph, 9, durability)
    entries = box.call("entries")
    assert len(entries) >= 3
    assert [entry.previous for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    left = graph.get_state(CONFIG).values["messages"]
    assert left[0].id == entries[-1].summary_id
    assert entries[-1].summary == left[0].text
    box.saver.prune(["t"])
    assert box.bytes_of([*box.call("messages"), *left[1:]]) == box.bytes_of(every)
    done = box.call("restore", graph)
    assert done.summary_ids == (left[0].id,)
    assert list(done.message_ids) == ids(every[: -len(left) + 1])
    assert box.bytes_of(graph.get_state(CONFIG).values["messages"]) == box.bytes_of(every)


@pytest.mark.parametrize("with_model", [True, False], ids=["summary", "window"])
def test_removals_by_keels_nodes_are_archived_once(memory_box: Box, with_model: bool) -> None:
    box = memory_box
    given: Any = {"trigger": ("messages", 6), "keep": ("messages", 3)}
    node = SummarizationNode(model("sum") if with_model else None, box.saver, **given)
    builder: Any = StateGraph(MessagesState)
    builder.add_node("shorten", node)
    builder.add_edge(START, "shorten")
    graph = builder.compile(checkpointer=box.saver)
    for n in range(12):
        invoke(box, graph, {"messages": turns(n, n + 1)})
    entries = box.call("entries")
    assert len(entries) > 1
    assert {entry.by for entry in entries} == {"summary" if with_model else "window"}
    box.call("restore", graph)
    assert graph.get_state(CONFIG).values["messages"] == turns(0, 12)


LANGMEM: dict[str, tuple[int, bool, bool, Any]] = {
    # Tokens that stay, whether there are instructions, whether it runs after the answer, durability.
    "before the answer": (60, False, False, "sync"),
    "nothing stays but the summary": (30, False, True, "sync"),
    "of each run only its end is stored": (60, False, False, "exit"),
    "beside instructions": (60, True, False, "async"),
    "beside instructions, after the answer": (60, True, True, "sync"),
}


@pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10")
@pytest.mark.parametrize("how", LANGMEM)
def test_removals_by_langmem_are_archived(memory_box: Box, how: str) -> None:
    """It does not mark summaries, and may repeat them; none of them is restored."""
    from langmem.short_term import SummarizationNode  # type: ignore[import-untyped]

    class State(MessagesState):
        context: dict[str, Any]

    box, (size, instructed, is_after, durability) = memory_box, LANGMEM[how]
    shorten = SummarizationNode(
        model=model("sum"),
        max_tokens=size,
        max_tokens_before_summary=size,
        max_summary_tokens=20,
        token_counter=lambda messages: 10 * len(messages),
        output_messages_key="messages",
    )
    answers, builder = model("answer"), StateGraph(State)
    builder.add_node("shorten", shorten)
    builder.add_node("answer", lambda state: {"messages": [answers.invoke(state["messages"])]})
    order = [START, "answer", "shorten", END] if is_after else [START, "shorten", "answer", END]
    for before, after in itertools.pairwise(order):
        builder.add_edge(before, after)
    graph = builder.compile(checkpointer=box.saver)
    first: list[BaseMessage] = [SystemMessage("be brief", id="sys")] if instructed else []
    for n in range(9):
        asked: list[BaseMessage] = [*(first if n == 0 else []), HumanMessage(f"q{n}", id=f"q{n}")]
        invoke(box, graph, {"messages": asked}, durability=durability)
    entries = box.call("entries")
    assert len(entries) >= 2
    assert all(entry.summary for entry in entries)
    box.saver.prune(["t"])
    box.call("restore", graph)
    back = [message.text for message in graph.get_state(CONFIG).values["messages"]]
    assert back == [
        *(["be brief"] if instructed else []),
        *(each for n in range(9) for each in (f"q{n}", f"answer {n}")),
    ]
