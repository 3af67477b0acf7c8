"""Which differences between two states count, and the text of a verdict."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from support.provenance.models import PROVIDERS
from support.tool_graphs import hello, thread

from langgraph_keel import Difference, KeelSerializer, MemorySaver, Replay, ToolNotReplayed
from langgraph_keel.provenance.replay.compare import Comparison, state_of


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Point:
    x: int
    y: Any = None


def compared(*pairs: tuple[Any, Any], limit: int = 100) -> list[str]:
    comparison = Comparison(KeelSerializer().pack_item, limit)
    found = [comparison.differences(step, {"v": was}, {"v": now}) for step, (was, now) in enumerate(pairs)]
    return [f"{each.step} {each.field} {each.recorded} {each.replayed}" for part in found for each in part]


@pytest.mark.parametrize(
    "value",
    [
        *(1, 1.0, float("nan"), 1 + 2j, "a", b"a", None, True, Colour.RED),
        *([1, [2]], (1, 2), {1, 2}, {"a": [1]}, {1: 2}, deque([1])),
        *(Point(1, Point(2)), Send("node", {"x": [1]}), HumanMessage("hi", id="1")),
    ],
    ids=str,
)
def test_equal_values_are_the_same(value: Any) -> None:
    assert compared((value, pickle.loads(pickle.dumps(value)))) == []


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (1, 1.0, "0 v 1 1.0"),
        (1, True, "0 v 1 True"),
        (0.0, -0.0, "0 v 0.0 -0.0"),
        ([1], (1,), "0 v [1] (1,)"),
        ([1, 2], [1], "0 v[1] 2 nothing"),
        ([1], [1, 2], "0 v[1] nothing 2"),
        ({"a": 1}, {"b": 1}, "0 v.a 1 nothing"),
        ({"a b": {1: 2}}, {"a b": {1: 3}}, "0 v['a b'][1] 2 3"),
        ({1, 2}, {1, 3}, "0 v {1, 2} {1, 3}"),
        ({1}, {1.0}, "0 v {1} {1.0}"),
        ({1: "a"}, {True: "a"}, "0 v[1] 'a' nothing"),
        (Colour.RED, Colour.BLUE, "0 v <Colour.RED: 1> <Colour.BLUE: 2>"),
        (Point(1, [1]), Point(1, [2]), "0 v.y[0] 1 2"),
        (Send("a", {"x": 1}), Send("b", {"x": 1}), "0 v.node 'a' 'b'"),
        (HumanMessage("a"), AIMessage("a"), "0 v {'type': 'human', 'content': 'a'} {'type': 'ai', 'content': 'a'}"),
        (HumanMessage("a"), HumanMessage("b"), "0 v.content 'a' 'b'"),
    ],
    ids=str,
)
def test_differences_name_their_place(was: Any, now: Any, said: str) -> None:
    assert compared((was, now))[0] == said


def turn(message_id: str | None, call_id: str, **about: Any) -> list[Any]:
    asked: Any = [{"name": "pay", "args": {"id": "A1"}, "id": call_id}]
    kwargs: Any = {"tool_calls": [{"id": call_id, "function": {"name": "pay"}}]}
    return [
        AIMessage("", id=message_id, tool_calls=asked, response_metadata=about, additional_kwargs=kwargs),
        ToolMessage("done", tool_call_id=call_id, id=f"{message_id}-2"),
    ]


def test_ids_may_differ_if_they_differ_consistently() -> None:
    assert compared((turn("a", "x"), turn("b", "y")), (["a", {"a"}, {"x": 1}], ["b", {"b"}, {"y": 1}])) == []
    assert compared(([*turn("a", "x"), *turn("b", "y")], [*turn("c", "z"), *turn("d", "z")])) != []
    mixed = turn("b", "y")
    mixed[1].tool_call_id = "else"
    assert compared((turn("a", "x"), mixed)) == ["0 v[1].tool_call_id 'x' 'else'"]
    assert compared((turn("a", "x"), turn("b", "y")), ("a", "c")) == ["1 v 'a' 'c'"]


def test_ids_in_tool_arguments_are_compared() -> None:
    other = turn("a", "x")
    other[0].tool_calls[0]["args"]["id"] = "B2"
    assert compared((turn("a", "x"), other)) == ["0 v[0].tool_calls[0].args.id 'A1' 'B2'"]
    assert compared(({"order_id": "A1"}, {"order_id": "B2"})) == ["0 v.order_id 'A1' 'B2'"]


def test_times_and_ids_of_providers_are_ignored() -> None:
    one = {"id": "1", "created": 1, "total_duration": 5, "model_id": "m", "token_usage": {"total_time": 0.1, "n": 1}}
    two = {"id": "2", "created": 2, "total_duration": 6, "model_id": "m", "token_usage": {"total_time": 0.2, "n": 1}}
    bedrock = {"ResponseMetadata": {"RequestId": "1", "HTTPHeaders": {"date": "x"}}, "metrics": {"latencyMs": [1]}}
    mark = {"keel_replay": {"from": "then"}}
    assert compared((turn("a", "x", **one, **bedrock), turn("a", "x", **two, **mark))) == []
    two["model_id"], two["token_usage"]["n"] = "other", 2  # type: ignore[index]
    found = compared((turn("a", "x", **one), turn("a", "x", **two)))
    assert found == [
        "0 v[0].response_metadata.model_id 'm' 'other'",
        "0 v[0].response_metadata.token_usage.n 1 2",
    ]


def file(name: str) -> HumanMessage:
    return HumanMessage([{"type": "file", "source_type": "id", "id": name}])


def used(number: int, *calls: Any) -> AIMessage:
    blocks: Any = [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "1", "name": "pay", "input": number}]
    return AIMessage(blocks, tool_calls=list(calls))


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (AIMessage("", additional_kwargs={"customer_id": "a"}), AIMessage(""), "s.customer_id 'a' nothing"),
        (AIMessage("", response_metadata={"finish_reason": "no"}), AIMessage(""), "finish_reason 'no' nothing"),
        (AIMessage(""), AIMessage("", response_metadata={"safety": "blocked"}), "safety nothing 'blocked'"),
        (file("a"), file("b"), "content[0].id 'a' 'b'"),
        (used(1), used(2), "content[1].input 1 2"),
    ],
    ids=["additional", "gone", "new", "file", "call"],
)
def test_values_that_resemble_ids_or_times_are_compared(was: Any, now: Any, said: str) -> None:
    (found,) = compared((was, now))
    assert found.endswith(said)


def test_equivalent_content_blocks_are_the_same() -> None:
    call = {"name": "pay", "args": {"n": 1}, "id": "1"}
    assert compared((used(1, call), used(2, call))) == []  # a stream leaves its pieces there
    text: Any = [[{"type": "text", "text": "so", "id": each, "index": 0}] for each in ("a", "b")]
    assert compared((AIMessage(text[0]), AIMessage(text[1])), (AIMessage(text[0]), AIMessage(["s", "o"]))) == []


def test_long_values_are_shortened_around_their_difference() -> None:
    (said,) = compared(("x" * 1000 + "old" + "y" * 1000, "x" * 1000 + "new" + "y" * 1000))
    assert "old" in said
    assert "new" in said
    assert len(said) < 400


def test_differences_are_limited_and_states_include_next_nodes() -> None:
    assert len(compared((list(range(50)), [-1] * 50), limit=3)) == 3
    assert state_of({"a": 1, "branch:to:y": None, "branch:to:x": None, "b": 2}, {"b"}) == {"a": 1, "next": ["x", "y"]}


def replay(*differences: Difference, **more: Any) -> Replay:
    return Replay(**{"source": "t<1>", "thread_id": None, "steps": 3, "differences": differences, **more})


def test_a_verdict_as_text_and_html() -> None:
    assert str(replay()) == "replay of thread 't<1>': the same (3 steps, 0 calls of models)"
    assert replay()
    found = Difference(2, "messages[1].content", "'a'", "'<b>'")
    told = replay(found, Difference(3, "seed", "1", "2", "model"), uncompared=(4, 5), thread_id="fork", ended="no more")
    assert str(told).splitlines() == [
        "replay of thread 't<1>': differs from step 2 on (3 steps, 0 calls of models)",
        "  step 2: messages[1].content: was 'a', now '<b>'",
        "  step 3, node 'model': seed: was 1, now 2",
        "Ended early: no more",
        "Model calls not compared, as none are recorded: step 4, 5",
        "Kept as thread 'fork'",
    ]
    assert not told
    assert told.first is found
    assert "<b>'" not in told._repr_html_().replace("<p><b>", "")
    assert "&lt;b&gt;" in told._repr_html_()
    assert not replay(ended="no more").same


def test_tool_not_replayed_can_be_pickled() -> None:
    error = ToolNotReplayed("pay", "t", "why", is_new=True, called=lambda: None)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.tool, copy.is_new, copy.called) == (str(error), "pay", True, None)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_streamed_answer_replays_as_the_same(provider: str, is_streamed: bool) -> None:
    model, builder = PROVIDERS[provider](), StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_edge(START, "model")
    with MemorySaver() as saver:
        graph: Any = builder.compile(checkpointer=saver)
        mode = "messages" if is_streamed else "values"
        assert await asyncio.to_thread(lambda: list(graph.stream(hello(), thread("t"), stream_mode=mode)))
        found = await asyncio.to_thread(saver.provenance.replay, graph, thread("t"))
        assert str(found).splitlines()[1:] == []
        assert found.same
