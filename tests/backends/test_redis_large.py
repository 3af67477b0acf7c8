"""RedisSaver with long, mostly pruned and wide threads, and their memory."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from support.backends.redis_steps import Open, behind, opened, put

from langgraph_keel.backends.redis import entries as names
from langgraph_keel.testing.rig import at, checkpoint_of, id_of, values_of

__all__ = ["behind", "opened"]  # fixtures


def test_the_rest_of_a_long_thread_is_found_after_deleting_runs(opened: Open) -> None:
    saver = opened()
    saver.put(at("t", "sub"), checkpoint_of("first", {"a": 1}), {}, {})  # type: ignore[arg-type]
    config = at()
    for number in range(400):
        checkpoint: Any = checkpoint_of(f"{number:04}", {"n": number})
        config = saver.put(config, checkpoint, {"run_id": str(number // 100)}, {})
    saver.delete_for_runs(["1", "2"])
    left = [f"{n:04}" for n in (*range(399, 299, -1), *range(99, -1, -1))]
    assert [id_of(found) for found in saver.list(at())] == left
    assert [id_of(found) for found in saver.list(at("t", None))] == [*left, "first"]
    assert [id_of(found) for found in saver.list(None)] == ["first", *left]
    saver.prune(["t"])
    assert [id_of(found) for found in saver.list(at("t", None))] == ["0399", "first"]
    assert [(info.checkpoints, info.latest) for info in saver.threads()] == [(2, "0399")]


def test_writes_of_many_tasks_are_kept_and_copied(opened: Open) -> None:
    saver = opened()
    config = put(saver, 1)
    for number in range(2100):
        saver.put_writes(config, [("a", number)], f"task {number}", "~")
    written = {(f"task {number}", "a", number) for number in range(2100)}
    saver.copy_thread("t", "copy")
    for thread in ("t", "copy"):
        pending = (saver.get_tuple(at(thread)) or config).pending_writes
        assert len(pending or ()) == 2100
        assert set(pending or ()) == written


def test_batches_are_numbered_without_gaps(opened: Open, behind: Any, redis_prefix: str) -> None:
    saver = opened()
    config = put(saver, 1)
    for number in range(1, 71):
        saver.put_writes(config, [("a", number)], f"task {number}", "~")
        fields = behind.hkeys(names.Keys(redis_prefix).thread("t"))
        numbers = {int(name.rpartition(b":")[2]) for name in fields if name.startswith(b"write:")}
        assert numbers == set(range(number))


def test_a_state_larger_than_the_limit_of_unpack_in_lua(opened: Open) -> None:
    saver = opened()
    items = [f"{number} {'x' * 70000}" if number % 2 else str(number) for number in range(40)]
    channels = {f"channel {number}": [number, *map(str, range(40))] for number in range(2200)}
    put(saver, 1, values={"items": items, **channels})
    found = saver.get_tuple(at())
    assert found
    assert values_of(found) == {"items": items, **channels}


@pytest.mark.slow
def test_a_chat_takes_at_most_twice_the_size_of_its_messages(opened: Open, behind: Any, redis_prefix: str) -> None:
    """At most twice the messages' size, with all checkpoints and writes of a graph."""
    messages = [_message(number) for number in range(300)]
    raw = sum(len(JsonPlusSerializer().dumps_typed(message)[1]) for message in messages)
    builder = StateGraph(MessagesState)
    builder.add_node("reply", lambda state: {"messages": [messages[len(state["messages"])]]})
    builder.add_edge(START, "reply")
    builder.add_edge("reply", END)
    graph = builder.compile(checkpointer=opened())
    for number in range(0, 300, 2):
        graph.invoke({"messages": [messages[number]]}, {"configurable": {"thread_id": "t"}})
    assert behind.memory_usage(names.Keys(redis_prefix).thread("t"), samples=0) < 2 * raw


def _message(number: int) -> HumanMessage | AIMessage:
    text = " ".join(f"{word * number * 7919 % 4001:x}"[::-1] + "ing" for word in range(1, 110))
    kind = AIMessage if number % 2 else HumanMessage
    return kind(text, id=f"{number:032}")
