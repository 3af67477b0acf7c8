"""The information for a reviewer: questions, earlier decisions, dropped questions."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, NotFound, open_saver, request_approval
from langgraph_keel.testing.faults import Counter, with_tap

CONFIG: Any = {"configurable": {"thread_id": "t"}}
OWNED: Any = {"configurable": {"thread_id": "t", "user_id": "ada"}}
START_STATE: Any = {"told": ""}


class State(TypedDict):
    told: Any


class Price:
    """A price that may increase between two runs of a node."""

    now = 1200

    def book(self, _: State) -> Any:
        return {
            "told": request_approval("book", {"flight": "LH 1"}, facts={"price": self.now}, description="On Friday")
        }


def compiled(saver: KeelSaver, node: Any) -> Any:
    builder: Any = StateGraph(State)
    return builder.add_node("ask", node).add_edge(START, "ask").compile(checkpointer=saver)


@pytest.mark.parametrize("args", ["LH 2", ["LH 2"], 7, None])
def test_an_edit_must_be_a_dict_of_all_arguments(args: Any) -> None:
    with MemorySaver() as saver:
        compiled(saver, Price().book).invoke(START_STATE, CONFIG)
        (request,) = saver.approvals.pending()
        with pytest.raises(InvalidInput, match="must be a dict with all arguments of book"):
            saver.approvals.edit(request.id, args=args, by="ann")
        assert saver.approvals.get(request.id).status == "waiting"


def test_a_repeated_question_carries_the_earlier_decision() -> None:
    price = Price()
    with MemorySaver() as saver:
        graph = compiled(saver, price.book)
        graph.invoke(START_STATE, OWNED)
        (first,) = saver.approvals.pending(owner="ada")
        saver.approvals.edit(first.id, args={"flight": "LH 2"}, by="ann", reason="earlier")
        price.now = 1500
        graph.invoke(saver.approvals.resume("t"), CONFIG)  # by a program that does not set the thread's owner
        (again,) = saver.approvals.pending(owner="ada")
    assert again.before == {"price": 1200}
    earlier = again.earlier
    assert (earlier["request"], earlier["kind"], earlier["by"]) == (first.id, "edit", "ann")
    assert (earlier["reason"], earlier["args"]) == ("earlier", {"flight": "LH 2"})


def test_the_audit_trail_contains_the_question() -> None:
    with MemorySaver() as saver:
        compiled(saver, Price().book).invoke(START_STATE, CONFIG)
        for thread, question in (("u", "Which colour?"), ("v", "Delete the backups?")):
            graph = compiled(saver, lambda _, question=question: {"told": interrupt(question)})
            graph.invoke(START_STATE, {"configurable": {"thread_id": thread}})
        contents: list[Any] = [event.content for event in saver.approvals.audit()]
    assert (contents[0]["args"], contents[0]["description"]) == ({"flight": "LH 1"}, "On Friday")
    assert [content["value"] for content in contents[1:]] == ["Which colour?", "Delete the backups?"]
    assert contents[1]["args_hash"] != contents[2]["args_hash"]


def test_resume_distinguishes_a_missing_thread_from_an_idle_thread() -> None:
    with MemorySaver() as saver:
        with pytest.raises(NotFound, match="there is no thread 'u'"):
            saver.approvals.resume("u")
        compiled(saver, lambda _: {"told": "done"}).invoke(START_STATE, CONFIG)
        with pytest.raises(NotFound, match=r"it has no open question, and `saver.status..t..` reports its next step"):
            saver.approvals.resume("t")


def test_a_resume_value_that_decides_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with MemorySaver() as saver:
        graph = compiled(saver, Price().book)
        graph.invoke(START_STATE, CONFIG)
        graph.invoke(None, CONFIG)
        assert not caplog.records  # it asks again
        (request,) = saver.approvals.pending()
        for number in (1, 2):
            assert "__interrupt__" in graph.invoke(Command(resume=True), CONFIG)
            assert len(caplog.messages) == number
        assert f"`keel approve {request.id} --by NAME`" in caplog.text
        assert "On Friday" not in caplog.text
        caplog.clear()
        saver.approvals.approve(request.id, by="ann")
        assert graph.invoke(Command(resume=True), CONFIG)["told"].by == "ann"
        assert not caplog.records


def test_message_text_is_accepted_as_plain_data() -> None:
    """`message.text` is of a subclass of `str`."""
    said = HumanMessage("LH 1").text
    assert type(said) is not str
    with MemorySaver() as saver:
        graph = compiled(saver, lambda _: {"told": request_approval("book", {"to": said}, facts={said: said}).args})
        graph.invoke(START_STATE, CONFIG)
        (request,) = saver.approvals.pending()
        assert (request.args, request.facts) == ({"to": "LH 1"}, {"LH 1": "LH 1"})
        saver.approvals.approve(request.id, by="ann")
        assert graph.invoke(saver.approvals.resume("t"), CONFIG) == {"told": {"to": "LH 1"}}


def test_message_text_is_shown_without_quotes() -> None:
    asked = {"action_request": {"action": "book", "args": {"to": HumanMessage("LH 1").text}}, "config": {}}
    with MemorySaver() as saver:
        compiled(saver, lambda _: {"told": interrupt(asked)}).invoke(START_STATE, CONFIG)
        (request,) = saver.approvals.pending()
    assert request.value["action_request"]["args"] == {"to": "LH 1"}


def test_only_questions_take_extra_round_trips() -> None:
    """Ordinary steps take one round trip for each verb; a question takes a few more."""
    counter = Counter()
    with MemorySaver() as plain:
        saver = with_tap(plain, counter)
        builder: Any = StateGraph(State)
        builder.add_node("first", lambda _: {"told": "a"}).add_node("ask", lambda _: {"told": interrupt("?")})
        graph = builder.add_edge(START, "first").add_edge("first", "ask").compile(checkpointer=saver)
        graph.invoke(START_STATE, CONFIG, interrupt_before=["ask"])
        # One `get_tuple`, three `put`, and the writes of the input and of the node.
        assert counter.taken() == 6
        graph.invoke(None, CONFIG)
        assert counter.taken() <= 12


def test_control_characters_in_an_action_name_are_escaped() -> None:
    """Reviewers decide by the output of `print(saver.approvals.pending())`."""
    name = "delete everything\r\x1b[2K<approval 1 of thread 't': read_only"
    with MemorySaver() as saver:
        compiled(saver, lambda _: {"told": request_approval(name, {}).kind}).invoke(START_STATE, CONFIG)
        shown = str(saver.approvals.pending())
    assert shown.isprintable()
    assert "delete everything" in shown


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("is_decided", [False, True])
def test_new_input_that_drops_a_question_is_logged_once(
    kind: str, is_decided: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LangGraph allows such input, so it is not refused.

    The input may come from another process.
    """
    url = "memory:" if kind == "memory" else f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(url) as saver, saver if kind == "memory" else open_saver(url) as other:
        compiled(saver, lambda _: {"told": interrupt("who?")}).invoke(START_STATE, CONFIG)
        (request,) = saver.approvals.pending()
        if is_decided:
            saver.approvals.answer(request.id, value="me", by="ann")
        assert caplog.text == ""
        again = compiled(other, lambda _: {"told": interrupt("how?")}).invoke(START_STATE, CONFIG)
        assert [each.value for each in again["__interrupt__"]] == ["how?"]
        assert other.approvals.get(request.id).status == "superseded"
        (told,) = caplog.messages
        status = "answered" if is_decided else "waiting"
        assert f"which drops these requests: {request.id} ({status})." in told
        assert "who?" not in told
        assert "saver.approvals.resume('t')" in told


def test_an_answered_question_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with MemorySaver() as saver:
        graph = compiled(saver, lambda _: {"told": interrupt("who?")})
        graph.invoke(START_STATE, CONFIG)
        graph.invoke(Command(resume="me"), CONFIG)
        graph.invoke(START_STATE, CONFIG)
        saver.approvals.answer(saver.approvals.pending()[0].id, value="me", by="ann")
        graph.invoke(saver.approvals.resume("t"), CONFIG)
        graph.invoke(START_STATE, CONFIG)
        graph.update_state(CONFIG, {"told": "now"})
    assert caplog.messages == []


def test_an_answer_to_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It has no effect, and its sender believes that it has arrived."""
    with MemorySaver() as saver:
        graph = compiled(saver, lambda _: {"told": "done"})
        graph.invoke(START_STATE, CONFIG)
        assert graph.invoke(Command(resume="my secret"), CONFIG) == {"told": "done"}
    (told,) = caplog.messages
    assert "thread 't'" in told
    assert "has no open question" in told
    assert "secret" not in told


def sends(state: State) -> Any:
    return [Send("b", state)]


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize("edge", ["to a node", "a send", "a join"])
async def test_new_input_that_drops_the_rest_of_a_turn_is_logged(
    edge: str, face: str, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[BaseException] = []

    def b(state: State) -> Any:
        if ends:
            raise ends.pop()
        return {"told": "b"}

    async def invoke(given: Any) -> None:
        if face == "sync":
            await to_thread(graph.invoke, given, CONFIG, durability=durability)
        else:
            await graph.ainvoke(given, CONFIG, durability=durability)

    builder: Any = StateGraph(State).add_node("a", lambda _: {"told": "a"}).add_node("b", b).add_edge(START, "a")
    if edge == "a send":
        builder.add_conditional_edges("a", sends, ["b"])
    else:
        builder.add_edge(["a"] if edge == "a join" else "a", "b")
    with MemorySaver() as saver:
        graph = builder.compile(checkpointer=saver)
        for given in (START_STATE, START_STATE):
            await invoke(given)
        ends.append(ValueError())
        with pytest.raises(ValueError):  # noqa: PT011
            await invoke(START_STATE)
        await invoke(None)  # resumes, and drops nothing
        await invoke(START_STATE)
        assert caplog.messages == []
        ends.append(ValueError())
        with pytest.raises(ValueError):  # noqa: PT011
            await invoke(START_STATE)
        await invoke(START_STATE)
        (told,) = caplog.messages
        what = "sent tasks" if edge == "a send" else "b"
        assert f"had steps left and got new input, which replaces them: {what}. " in told
        assert "cut off" not in told
        await invoke(START_STATE)
        graph.invoke(START_STATE, next(each.config for each in graph.get_state_history(CONFIG) if each.next == ("b",)))
        assert len(caplog.messages) == 1


def test_new_input_that_drops_an_unprocessed_input_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with MemorySaver() as saver:
        graph = compiled(saver, lambda _: {"told": "a"})
        stream = graph.stream(START_STATE, CONFIG, stream_mode="checkpoints", durability="sync")
        next(stream)
        stream.close()
        assert saver.status("t").state == "unfinished"
        graph.invoke(START_STATE, CONFIG)
    (told,) = caplog.messages
    assert "its input" in told
