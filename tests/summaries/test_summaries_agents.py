"""The middleware in LangChain's agents, with a `ToolCache`, and its records."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from support.summaries.conversations import Noting, ids, orphans, talk
from support.summaries.graphs import chat
from support.tool_graphs import FACES, Scripted, calls, run, thread

from langgraph_keel import DriftDetected, InvalidInput, KeelSaver, MemorySaver, SummarizationNode, ToolCache

TURNS = 6


class Steps(Scripted):
    """Says its lines in order, whatever the conversation's length, and logs its input."""

    given: list[list[BaseMessage]]

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Any:
        self.given.append(list(messages))
        said: list[BaseMessage] = [AIMessage("")] * (len(self.given) - 1)
        return super()._generate(said, *args, **options)


def agent_of(saver: KeelSaver, summaries: Noting, ran: list[int], **options: Any) -> tuple[Any, Steps]:
    @tool
    def look(page: int) -> str:
        """Look at a page."""
        ran.append(page)
        return f"page {page} says {page * page}"

    script = [calls(("look", {"page": n}, f"a{n}"), ("look", {"page": -n}, f"b{n}")) for n in range(1, TURNS)]
    model = Steps(script=script, given=[])
    shorten = saver.summarization_middleware(summaries, trigger=("messages", 8), keep=("messages", 3), **options)
    cache = ToolCache(saver)
    return create_agent(model, [look], middleware=[shorten, cache.middleware()], checkpointer=saver), model


@pytest.mark.parametrize("face", FACES)
async def test_an_agent_with_summaries_loses_no_messages(face: str) -> None:
    saver, summaries, ran = MemorySaver(), Noting(said=[f"summary {n}" for n in range(9)]), list[int]()
    agent, model = agent_of(saver, summaries, ran)
    question = {"messages": [HumanMessage("what do the pages say?", id="question")]}
    state = await run(agent, face, question, thread("1"))
    assert state["messages"][-1].text == "done"
    assert sorted(ran) == sorted([*range(1, TURNS), *range(-TURNS + 1, 0)])
    assert len(model.given) == TURNS
    assert [orphans(given) for given in model.given] == [[]] * TURNS
    assert max(map(len, model.given)) <= 8
    archive = await saver.archive("1").aentries()
    assert len(archive) == len(summaries.seen) >= 2
    assert [entry.node for entry in archive] == ["summarize.before_model"] * len(archive)
    gone = await saver.archive("1").amessages()
    assert ids(gone)[0] == "question"
    assert orphans([*gone, *state["messages"][1:]]) == []
    assert len([*gone, *state["messages"][1:]]) == 1 + 3 * (TURNS - 1) + 1


@pytest.mark.parametrize("face", FACES)
async def test_each_call_is_recorded_once_at_its_node(face: str) -> None:
    saver, ran = MemorySaver(), list[int]()
    agent, _ = agent_of(saver, summaries := Noting(), ran)
    await run(agent, face, {"messages": [HumanMessage("well?")]}, thread("1"))
    recorded = saver.provenance.read(thread("1"))
    assert [call.node for call in recorded].count("model") == TURNS
    assert [call.node for call in recorded].count("summarize.before_model") == len(summaries.seen) >= 2
    assert len(recorded) == TURNS + len(summaries.seen)
    assert len({call.id for call in recorded}) == len(recorded)
    assert all(call.checkpoint_id for call in recorded)


def test_the_call_of_a_summarization_node_is_recorded() -> None:
    saver = MemorySaver()
    graph = chat(SummarizationNode(Noting(), trigger=("messages", 5), keep=("messages", 2)), saver)
    graph.invoke({"messages": talk(3)}, thread("1"))
    (call,) = saver.provenance.read(thread("1"))
    (part,) = saver.archive("1")
    assert (call.node, call.step) == ("shorten", part.step)


def test_a_sliding_window_in_an_agent() -> None:
    saver = MemorySaver()
    window = saver.summarization_middleware(None, keep=("messages", 4), name="window")  # immediately, not after 50
    agent: Any = create_agent(Scripted(script=[]), [], middleware=[window], checkpointer=saver)
    state = agent.invoke({"messages": talk(3)}, thread("1"))
    assert orphans(state["messages"]) == []
    assert [entry.by for entry in saver.archive("1")] == ["window"]
    assert [*saver.archive("1").messages(), *state["messages"][:-1]] == talk(3)


def test_two_middlewares_have_distinct_names() -> None:
    saver = MemorySaver()
    long = saver.summarization_middleware(Noting(), trigger=("tokens", 10**6), name="long")
    agent = create_agent(Scripted(script=[]), [], middleware=[saver.summarization_middleware(Noting()), long])
    assert {"summarize.before_model", "long.before_model"} <= set(agent.get_graph().nodes)


def test_drift_detected_is_not_treated_as_a_failed_summary() -> None:
    """`on_drift="raise"` passes through the node: a warning would hide it."""
    saver = MemorySaver(on_drift="raise")

    def say(model: str, start: int) -> None:
        summary = AIMessage("a summary", response_metadata={"model_name": model})
        node = SummarizationNode(Noting(said=[summary]), trigger=("messages", 5), keep=("messages", 2))
        chat(node, saver).invoke({"messages": talk(3, start=start)}, thread("1"))

    say("one", 0)
    with pytest.raises(DriftDetected):
        say("two", 3)
    assert [part.model for part in saver.archive("1")] == ["one"]


def test_middleware_without_langchain_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "langgraph_keel.summaries.middleware", None)
    with pytest.raises(InvalidInput, match="pip install langchain"):
        MemorySaver().summarization_middleware(Noting())
