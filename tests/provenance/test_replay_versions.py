"""A replay reads and compares only the new part of each step."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.provenance.replay_graphs import Items, replayed
from support.provenance.replays import Scene, faces
from support.provenance.replays import memory as memory
from support.provenance.replays import scene as scene
from support.tool_graphs import run, thread

from langgraph_keel.engine.config import Address
from langgraph_keel.engine.plan import run as plan
from langgraph_keel.provenance.replay.states import StateReader

TURNS = 12


def talking(scene: Scene, node: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("talk", node)
    builder.add_edge(START, "talk")
    return builder.compile(checkpointer=scene.saver)


def states(scene: Scene) -> list[tuple[Any, list[Any]]]:
    """Return the reader's state and the checkpoint's messages at each step."""
    versions, pairs = StateReader(scene.saver.engine.session), []
    for found in reversed(list(scene.saver.list(thread("t")))):
        address = Address("t", "", found.checkpoint["id"])
        read = plan(versions.next(address, address), scene.saver.engine.driver)
        pairs.append((read, found.checkpoint["channel_values"].get("messages", [])))
    return pairs


async def test_only_the_end_of_a_growing_list_is_read(scene: Scene) -> None:
    graph = talking(scene, lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    for number in range(TURNS):
        await run(graph, "async", {"messages": [HumanMessage(f"question {number}")]}, thread("t"))
    whole: list[Any] = []
    for read, messages in states(scene):
        new = read.now.get("messages", [])
        assert len(new) <= 1
        whole = [*whole[: read.starts.get("messages", 0)], *new]
        assert [each.content for each in whole] == [each.content for each in messages]
    assert len(whole) == 2 * TURNS


@faces
async def test_changes_in_the_middle_of_a_list_are_compared(memory: Scene, face: str) -> None:
    def graph(text: str) -> Any:
        def talk(state: Any) -> Any:
            messages = state["messages"]
            if len(messages) == 5:
                return {"messages": [messages[1].model_copy(update={"content": text}), RemoveMessage(messages[2].id)]}
            return {"messages": [AIMessage("so")]}

        return talking(memory, talk)

    for number in range(4):
        await run(graph("was"), face, {"messages": [HumanMessage(f"question {number}")]}, thread("t"))
    assert (await replayed(memory.saver, face, graph("was"), thread("t"))).same
    replay = await replayed(memory.saver, face, graph("is"), thread("t"))
    assert list(map(str, replay.differences)) == ["step 7: messages[1].content: was 'was', now 'is'"]


@faces
async def test_a_difference_is_reported_once(memory: Scene, face: str) -> None:
    class Numbers(Items):
        number: int

    def graph(first: int, second: int) -> Any:
        builder: Any = StateGraph(Numbers)
        nodes = [("a", lambda state: {"number": first}), *[(name, lambda state: {"items": ["x"]}) for name in "bc"]]
        builder.add_sequence([*nodes, ("d", lambda state: {"number": second})])
        builder.add_edge(START, "a")
        return builder.compile(checkpointer=memory.saver)

    await run(graph(1, 2), face, {"items": []}, thread("t"))
    replay = await replayed(memory.saver, face, graph(7, 8), thread("t"))
    assert list(map(str, replay.differences)) == ["step 1: number: was 1, now 7", "step 4: number: was 2, now 8"]
