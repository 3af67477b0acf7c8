"""Calls of a refused run do not belong to the thread.

They are missing in provenance, in trajectories, and after a prune.
"""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.rivals import PATIENCE, FirstStep, with_hook

from langgraph_keel import CheckpointConflict, KeelSaver, Retention

CONFIG: Any = {"configurable": {"thread_id": "t"}}
USAGE: Any = {"input_tokens": 100, "output_tokens": 1, "total_tokens": 101}


class Chat:
    """A graph whose first run waits after its answer for another run."""

    def __init__(self, saver: KeelSaver) -> None:
        self.is_in, self.may_go_on = Event(), Event()
        self.refusal: CheckpointConflict | None = None
        self.began = FirstStep()
        graph: Any = StateGraph(MessagesState).add_node("ask", self._ask).add_edge(START, "ask")
        self.graph = graph.compile(checkpointer=with_hook(saver, self.began))

    def _ask(self, state: MessagesState) -> dict[str, Any]:
        text = state["messages"][-1].text
        model = GenericFakeChatModel(messages=iter([AIMessage(f"to {text}", usage_metadata=USAGE)]))
        answer = model.bind(model="m").invoke(state["messages"])
        if text == "first":
            self.is_in.set()
            assert self.may_go_on.wait(PATIENCE)
        return {"messages": [answer]}

    def say(self, text: str, durability: str) -> list[str]:
        state = self.graph.invoke({"messages": [("user", text)]}, CONFIG, durability=durability)
        return [message.text for message in state["messages"]]

    def first(self, durability: str) -> None:
        try:
            self.say("first", durability)
        except CheckpointConflict as error:
            self.refusal = error

    def overtake(self, durability: str) -> list[str]:
        """Send a message while another one is being answered; return the conversation."""
        thread = Thread(target=self.first, args=(durability,))
        thread.start()
        assert self.is_in.wait(PATIENCE)
        assert self.began.is_stored.wait(PATIENCE)
        found = self.say("second", durability)
        self.may_go_on.set()
        thread.join()
        assert self.refusal
        return found


@pytest.mark.parametrize("durability", ["async", "sync"])
def test_calls_of_a_refused_run_are_not_recorded_for_the_thread(saver: KeelSaver, durability: str) -> None:
    """Its answer was stored with the writes of its step, but is never shown."""
    chat = Chat(saver)
    assert chat.overtake(durability) == ["first", "second", "to second"]
    assert chat.say("third", durability)[-1] == "to third"
    assert [call.step for call in saver.provenance.read(CONFIG)] == [3, 6]
    (line,) = saver.provenance.trajectories()
    assert line["usage"] == {name: 2 * count for name, count in USAGE.items()}
    assert [call["step"] for call in line["calls"]] == [3, 6]
    saver.prune(["t"], strategy=Retention(last=1))
    (line,) = saver.provenance.trajectories()
    assert [call["step"] for call in line["calls"]] == [3, 6]
