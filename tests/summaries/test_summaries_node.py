"""The node in graphs: its triggers, the kept messages, kinds of state, both faces."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from support.summaries.conversations import Noting, ids, orphans, talk
from support.summaries.graphs import KINDS, Other, chat, in_part, parts
from support.summaries.graphs import asked as ask
from support.tool_graphs import FACES, run, thread

from langgraph_keel import InvalidInput, MemorySaver, SlidingWindow, SummarizationNode
from langgraph_keel.errors import InvalidConfig

SUMMARY = "Here is a summary of the conversation to date:\n\na summary"


def lengths(graph: Any, rounds: int) -> list[int]:
    return [len(graph.invoke(ask(number), thread("1"))["messages"]) for number in range(rounds)]


TRIGGERS: dict[str, tuple[Any, Any, list[int]]] = {
    # A round has two messages, of 7 and 11 tokens, and four steps.
    "messages": (("messages", 7), ("messages", 3), [2, 4, 6, 5, 7, 5]),
    "tokens": (("tokens", 60), ("messages", 1), [2, 4, 6, 3, 5, 3]),
    "fraction": (("fraction", 0.06), ("messages", 1), [2, 4, 6, 3, 5, 3]),
    "steps": (("steps", 9), ("messages", 1), [2, 4, 3, 5, 7, 3]),
    "any": ([("messages", 100), ("messages", 7)], ("messages", 3), [2, 4, 6, 5, 7, 5]),
    "all": ({"messages": 6, "steps": 9}, ("messages", 1), [2, 4, 6, 3, 5, 7]),
    "any of all": ([{"messages": 3, "tokens": 10**6}, ("messages", 7)], ("messages", 3), [2, 4, 6, 5, 7, 5]),
    "always": (None, ("messages", 3), [2, 4, 5, 5, 5, 5]),
    "keep tokens": (("messages", 7), ("tokens", 18), [2, 4, 6, 4, 6, 4]),
    "keep fraction": (("messages", 7), ("fraction", 0.018), [2, 4, 6, 4, 6, 4]),
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_triggers_and_kept_messages(name: str) -> None:
    trigger, keep, wanted = TRIGGERS[name]
    node = SummarizationNode(Noting(window=1000), trigger=trigger, keep=keep)
    assert lengths(chat(node, MemorySaver()), 6) == wanted


REFUSED: dict[str, dict[str, Any]] = {
    "kind": {"trigger": ("words", 5)},
    "number": {"trigger": ("messages", 0)},
    "bool": {"keep": ("messages", True)},
    "float": {"keep": ("tokens", 2.5)},
    "above one": {"trigger": ("fraction", 1.5)},
    "no window": {"trigger": ("fraction", 0.5)},
    "no window to keep": {"keep": ("fraction", 0.5)},
    "steps kept": {"keep": ("steps", 5)},
    "none": {"trigger": []},
    "nothing": {"trigger": {}},
    "text": {"trigger": "messages"},
    "as much as it keeps": {"trigger": ("messages", 20), "keep": ("messages", 20)},
    "less than it keeps": {"trigger": [("steps", 9), {"messages": 10}]},
    "tokens that it keeps": {"model": Noting(window=100), "trigger": ("fraction", 0.5), "keep": ("tokens", 60)},
    "on_error": {"on_error": "ignore"},
    "name": {"name": ""},
    "messages_key": {"messages_key": None},
    "summary_key": {"summary_key": 3},
    "one key": {"summary_key": "messages"},
    "token_counter": {"token_counter": 3},
    "pinned": {"pinned": ["question-1"]},
    "max_input_tokens": {"max_input_tokens": "4000"},
    "archive": {"archive": "no"},
    "model": {"model": 5},
    "saver": {"saver": "agent.db"},
    "window with a key": {"model": None, "summary_key": "summary"},
    "window with steps": {"model": None, "trigger": ("steps", 5)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_options_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        SummarizationNode(**{"model": Noting(), **REFUSED[name]})


def test_a_trigger_with_several_conditions_may_keep_more_messages() -> None:
    SummarizationNode(Noting(), trigger={"messages": 6, "steps": 9}, keep=("messages", 20))
    SummarizationNode(Noting(), trigger=("tokens", 100), keep=("messages", 200))


def test_nodes_and_middleware_have_a_repr() -> None:
    node = SummarizationNode(Noting(), trigger=("tokens", 4000), keep=("messages", 9))
    assert repr(node) == "SummarizationNode(model='Noting', trigger=('tokens', 4000), keep=('messages', 9))"
    assert repr(SlidingWindow()) == "SlidingWindow(model=None, trigger=None, keep=('messages', 20))"
    shorten = MemorySaver().summarization_middleware(Noting())
    assert repr(shorten).startswith("KeelSummarization(SummarizationNode(model='Noting', trigger=('messages', 50)")


def test_a_model_can_be_given_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langchain.chat_models.init_chat_model", lambda name: Noting(said=[name]))
    model = SummarizationNode("openai:gpt-5")._model  # private: the model that was made from the name
    assert isinstance(model, Noting)
    monkeypatch.setitem(__import__("sys").modules, "langchain.chat_models", None)
    with pytest.raises(InvalidInput, match="pip install langchain"):
        SummarizationNode("openai:gpt-5")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_summaries_in_states_of_each_kind(kind: str, face: str) -> None:
    key = "summary" if kind in ("summary", "model", "dataclass") else None
    node = SummarizationNode(Noting(), trigger=("messages", 5), keep=("messages", 2), summary_key=key)
    graph = chat(node, saver := MemorySaver(), KINDS[kind])
    for number in range(5):
        await run(graph, face, ask(number), thread("1"))
    state = (await graph.aget_state(thread("1"))).values
    found = parts(saver)
    assert [part.count for part in found] == ([3, 4] if key else [3, 2, 2])
    assert [part.previous for part in found] == [None, *[part.id for part in found[:-1]]]
    last = found[-1]
    if key:
        summary, messages = state["summary"], state["messages"]
        assert summary["text"] == "a summary"
    else:
        summary, messages = state["messages"][0].additional_kwargs["keel_summary"], state["messages"][1:]
        assert (state["messages"][0].id, state["messages"][0].text) == ("question-0", SUMMARY)
    assert (summary["archive"], summary["previous"], summary["count"]) == (last.id, last.previous, last.count)
    assert summary["messages"] == [*last.message_ids]
    assert [message for part in found for message in in_part(saver, part)] + messages == all_said(5)


def all_said(rounds: int) -> list[BaseMessage]:
    return [
        message
        for number in range(rounds)
        for message in (
            HumanMessage(f"question {number}", id=f"question-{number}"),
            AIMessage(f"answer to question {number}", id=f"answer-question-{number}"),
        )
    ]


def test_messages_can_have_another_key() -> None:
    node = SummarizationNode(Noting(), trigger=("messages", 5), keep=("messages", 1), messages_key="talk")
    graph = chat(node, saver := MemorySaver(), Other, "talk")
    for number in range(3):
        found = graph.invoke(ask(number, "talk"), thread("1"))
    assert len(found["talk"]) == 3
    assert [part.channel for part in parts(saver)] == ["talk"]
    with pytest.raises(InvalidInput, match="messages_key"):
        chat(SummarizationNode(Noting()), saver, Other, "talk").invoke(ask(0, "talk"), thread("2"))


def test_a_summary_carries_facts_about_itself() -> None:
    graph = chat(SummarizationNode(Noting(), keep=("messages", 1), trigger=("messages", 9)), saver := MemorySaver())
    messages = talk(60)
    summary = graph.invoke({"messages": messages}, thread("1"))["messages"][0]
    (part,) = parts(saver)
    facts = summary.additional_kwargs["keel_summary"]
    assert summary.additional_kwargs["lc_source"] == "summarization"
    assert (facts["count"], facts["first"], facts["last"]) == (299, "question-0", "result-call-59-1")
    assert "messages" not in facts
    assert (facts["model"], facts["step"], part.step, part.node) == ("Noting", 1, 1, "shorten")
    assert (part.model, part.summary, part.summary_id, part.by) == ("Noting", "a summary", summary.id, "summary")
    assert facts["at"].endswith("+00:00")


@pytest.mark.parametrize("face", FACES)
async def test_a_window_without_a_model(face: str) -> None:
    graph = chat(SlidingWindow(keep=("messages", 3)), saver := MemorySaver())
    for number in range(4):
        messages = (await run(graph, face, ask(number), thread("1")))["messages"]
    assert ids(messages) == ["question-2", "answer-question-2", "question-3", "answer-question-3"]
    assert [part.by for part in parts(saver)] == ["window", "window"]
    assert [message for part in parts(saver) for message in in_part(saver, part)] + messages == all_said(4)


def test_a_window_that_moves_in_steps() -> None:
    node = SlidingWindow(keep=("messages", 3), trigger=("messages", 7), name="trim")
    assert lengths(chat(node, MemorySaver()), 6) == [2, 4, 6, 4, 6, 4]
    assert node.get_name() == "trim"


def test_pinned_messages_are_kept() -> None:
    first: list[Any] = [
        SystemMessage("be kind", id="system"),
        HumanMessage("my name is Ada", id="name"),
        HumanMessage("and I am allergic to nuts", id="nuts", additional_kwargs={"keel_pinned": True}),
        *talk(4, 2),
    ]
    node = SummarizationNode(
        Noting(), trigger=("messages", 6), keep=("messages", 1), pinned=lambda message: message.id == "result-call-1-0"
    )
    graph = chat(node, MemorySaver())
    messages = graph.invoke({"messages": [*first, HumanMessage("so?", id="so")]}, thread("1"))["messages"]
    pair = ["asked-1", "result-call-1-0", "result-call-1-1"]
    summary = messages[1]
    assert ids(messages) == ["system", str(summary.id), "nuts", *pair, "so", "answer-so"]
    assert orphans(messages) == []
    assert summary.text == SUMMARY
    messages = graph.invoke(ask(1), thread("1"))["messages"]
    assert ids(messages)[2:] == ["nuts", *pair, "question-1", "answer-question-1"]


def test_messages_without_an_id_get_one() -> None:
    model = Noting()
    node = SummarizationNode(model, archive=False, trigger=None, keep=("messages", 2))
    messages = [HumanMessage("one"), HumanMessage("one"), AIMessage("two"), HumanMessage("three")]
    _, summary, *kept = node.invoke(messages)
    assert [message.id for message in messages] == [None] * 4
    assert all(message.id for message in kept)
    assert len(set(summary.additional_kwargs["keel_summary"]["messages"])) == 2
    assert [message.id for message in node.invoke(messages)] == ["__remove_all__", summary.id, *ids(kept)]


def test_a_call_from_the_functional_api() -> None:
    node = SummarizationNode(Noting(), trigger=("messages", 5), keep=("messages", 1))

    @entrypoint(checkpointer=(saver := MemorySaver()))
    def chatting(question: str, *, previous: Any = None) -> Any:
        merged: Any = add_messages
        messages = merged(previous or [], [HumanMessage(question, id=question)])
        messages = merged(messages, node.invoke(messages))
        messages = merged(messages, [AIMessage("so", id=f"to {question}")])
        return entrypoint.final(value=messages, save=messages)

    config = thread("1")
    lengths = [len(chatting.invoke(f"question {number}", config)) for number in range(4)]
    assert lengths == [2, 4, 3, 5]
    (part,) = parts(saver)
    assert part.message_ids == ("question 0", "to question 0", "question 1", "to question 1")
    assert part.checkpoint_ns == ""


@pytest.mark.parametrize("memory", [None, True], ids=["fresh", "remembering"])
@pytest.mark.parametrize("face", FACES)
async def test_parts_of_a_subgraph_are_in_the_outer_archive(face: str, memory: Any) -> None:
    """The archive is the outer graph's, and each part names its subgraph."""
    inner = chat(SummarizationNode(Noting(), trigger=("messages", 6), keep=("messages", 1)), memory)
    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=(saver := MemorySaver()))
    await run(graph, face, {"messages": talk(3)}, thread("1"))
    (part,) = parts(saver)
    assert part.checkpoint_ns.partition(":")[0] == "inner"
    assert part.checkpoint_ns == "inner" if memory else part.checkpoint_ns.startswith("inner:")
    assert part.count == 14


def test_any_runnable_can_be_the_model() -> None:
    found: Any = {
        "text": RunnableLambda(lambda prompt: "a summary"),
        "bound": Noting().with_retry(),
        "listed": FakeListChatModel(responses=["a summary"]),
    }
    for name, model in found.items():
        node = SummarizationNode(model, archive=False, trigger=None, keep=("messages", 2))
        assert node.invoke(talk(2))[1].text == SUMMARY, name
    node = SummarizationNode(RunnableLambda(lambda prompt: 5), archive=False, trigger=None, on_error="raise")
    with pytest.raises(TypeError, match="not a int"):
        node.invoke(talk(8))


def test_a_node_without_a_thread_is_refused() -> None:
    node = SummarizationNode(Noting(), MemorySaver(), trigger=None)
    with pytest.raises(InvalidConfig):
        node.invoke(talk(8))


def test_tokens_of_a_summary_are_not_streamed() -> None:
    graph = chat(SummarizationNode(FakeListChatModel(responses=["word " * 9]), keep=("messages", 1)), MemorySaver())
    streamed = list(graph.stream({"messages": talk(11)}, thread("1"), stream_mode="messages"))
    assert [(m.id, told["langgraph_node"]) for m, told in streamed] == [("answer-answer-10", "answer")]
