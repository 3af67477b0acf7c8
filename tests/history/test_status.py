"""`saver.status`: the state of a thread, and the input to invoke its graph with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolNode
from langgraph.types import Interrupt, interrupt
from support.checkpoints import checkpoint_of, config_for
from support.log_graphs import CONFIG, State, graph, say
from support.places import Place
from support.tool_graphs import Killed

from langgraph_keel import (
    InvalidConfig,
    KeelSaver,
    MemorySaver,
    ThreadStatus,
    ToolCache,
    ToolOutcomeUnknown,
    ToolPolicy,
    request_approval,
)
from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.engine.checkpoints import storing
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Header
from langgraph_keel.engine.events import Put
from langgraph_keel.errors import short_key
from langgraph_keel.runs.hook import RunClaims


@pytest.fixture
def saver(place: Place) -> Iterator[KeelSaver]:
    with place.open() as saver:
        yield saver


def die(state: State) -> State:
    raise Killed


def ask(state: State) -> State:
    return {"log": [interrupt("who?")]}


def act(state: State) -> State:
    return {"log": [request_approval("deploy", {"to": "prod"}).kind]}


def invoke(made: Any, given: Any) -> Any:
    return made.invoke(given, CONFIG, durability="sync")


def stands(status: ThreadStatus) -> tuple[Any, ...]:
    return status.state, status.can_go_on, status.next


def test_a_finished_thread_is_idle(saver: KeelSaver) -> None:
    invoke(graph(saver, say("a")), {"log": []})
    found = saver.status("t")
    assert stands(found) == ("idle", False, ())
    assert str(found) == "thread 't' is idle: it takes new input."
    assert found.updated_at == saver.timeline("t")[-1].time.isoformat()  # type: ignore[union-attr]
    assert list(saver.unfinished()) == []


def test_a_thread_with_remaining_steps_is_unfinished(saver: KeelSaver) -> None:
    """An interrupted run without a claim looks like a running one (`test_situations`)."""
    with pytest.raises(Killed):
        invoke(graph(saver, say("a"), ("b", die)), {"log": []})
    found = saver.status("t")
    assert (stands(found), found.given) == (("unfinished", False, ("b",)), None)
    assert "has steps left before b; it may be running, stopped, or cut off: look at its history first" in str(found)
    assert invoke(graph(saver, say("a"), say("b")), None)["log"] == ["a", "b"]
    assert saver.status("t").state == "idle"


def test_a_step_without_a_checkpoint_remains_to_run(saver: KeelSaver) -> None:
    """LangGraph's own `next` is empty in this case."""
    made = graph(saver, say("a"), say("b"))
    invoke(made, {"log": []})
    head = saver.timeline("t")[-2].config
    task = made.get_state(head).tasks[0].id
    saver.rewind(head)
    saver.put_writes(saver.timeline("t").head.config, [("log", ["b"])], task)
    found = saver.status("t")
    assert stands(found) == ("rewound", False, ("b",))


def test_a_fork_of_a_rewound_thread_is_forked(saver: KeelSaver) -> None:
    invoke(graph(saver, say("a"), say("b")), {"log": []})
    saver.rewind(saver.timeline("t")[-2].config)
    saver.fork(saver.timeline("t").head.config, "f")
    assert saver.status("f").state == "forked"
    saver.rewind(saver.timeline("f").head.config)
    assert saver.status("f").state == "rewound"


def test_status_reports_the_error_of_a_failed_task(saver: KeelSaver) -> None:
    def fail(state: State) -> State:
        raise ValueError("no such flight")

    with pytest.raises(ValueError, match="no such flight"):
        invoke(graph(saver, ("a", fail)), {"log": []})
    found = saver.status("t")
    assert stands(found) == ("failed", False, ("a",))
    assert found.errors == ("ValueError('no such flight')",)
    assert "no such flight" in str(found)


@pytest.mark.parametrize("asks", [ask, act])
def test_status_of_a_question_from_waiting_to_idle(saver: KeelSaver, asks: Any) -> None:
    made = graph(saver, ("ask", asks), say("b"))
    invoke(made, {"log": []})
    found = saver.status("t")
    assert stands(found) == ("waits", False, ("ask",))
    (request,) = found.requests
    assert f"waits for a person: `keel approval {request.id}`." in str(found)
    assert found.questions == 1
    if asks is act:
        saver.approvals.approve(request.id, by="ann")
    else:
        saver.approvals.answer(request.id, value="ann", by="ann")
    decided = saver.status("t")
    assert stands(decided) == ("decided", True, ("ask",))
    assert "no run has used the decision yet: graph.invoke(saver.approvals.resume('t'), config)." in str(decided)
    assert saver.approvals.resume("t") == decided.given
    assert [each.state for each in saver.unfinished()] == ["decided"]
    assert invoke(made, decided.given)["log"][-1] == "b"
    assert saver.status("t").state == "idle"


def test_a_decision_is_offered_again_after_its_run_was_killed(saver: KeelSaver) -> None:
    invoke(graph(saver, ("ask", act)), {"log": []})
    (request,) = saver.status("t").requests
    saver.approvals.approve(request.id, by="ann")

    def act_and_die(state: State) -> State:
        act(state)
        raise Killed

    with pytest.raises(Killed):
        invoke(graph(saver, ("ask", act_and_die)), saver.status("t").given)
    again = saver.status("t")
    assert again.state == "decided"
    assert invoke(graph(saver, ("ask", act)), again.given)["log"] == ["approve"]


def test_a_thread_resumed_by_another_run_is_running(saver: KeelSaver, place: Place) -> None:
    seen: list[ThreadStatus] = []

    def look(state: State) -> State:
        act(state)
        seen.append(saver.status("t"))
        return {"log": ["looked"]}

    invoke(graph(saver, ("ask", act)), {"log": []})
    (request,) = saver.status("t").requests
    saver.approvals.approve(request.id, by="ann")
    invoke(graph(saver, ("ask", look)), saver.status("t").given)
    (status,) = seen
    assert (status.state, status.can_go_on) == ("runs", False)
    assert status.holder
    assert f"is running in a process on {status.holder.partition('/')[0]}" in str(status)


def test_status_reports_calls_in_doubt(saver: KeelSaver) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        raise Killed

    call = AIMessage("", id="1", tool_calls=[{"name": "pay", "args": {"amount": 3}, "id": "c"}])
    with ToolCache(saver) as cache:
        node = ToolNode([pay], messages_key="log", wrap_tool_call=cache.wrap_tool_call)
        made = graph(saver, ("say", lambda state: {"log": [call]}), ("pay", node))
        with pytest.raises(Killed):
            invoke(made, {"log": []})
    found = saver.status("t")
    assert stands(found) == ("unfinished", False, ("pay",))
    assert [each.tool for each in found.doubts] == ["pay"]
    (doubt,) = found.doubts
    assert f"1 tool call with unknown outcome (pay {short_key(doubt.key)}): settle them first, see" in str(found)


def test_a_call_that_is_retried_automatically_is_not_in_doubt(saver: KeelSaver) -> None:
    """Until a run with another policy finds it."""

    @tool
    def look(place: str) -> str:
        """Look."""
        raise Killed

    def go_on(given: Any, unknown: Any) -> None:
        with ToolCache(saver, default=ToolPolicy(unknown=unknown)) as cache:
            node = ToolNode([look], messages_key="log", wrap_tool_call=cache.wrap_tool_call)
            invoke(graph(saver, ("say", lambda state: {"log": [call]}), ("look", node)), given)

    call = AIMessage("", id="1", tool_calls=[{"name": "look", "args": {"place": "Oslo"}, "id": "c"}])
    begun: list[Any] = [{"log": []}, None]
    for given in begun:
        with pytest.raises(Killed):
            go_on(given, "retry")
        found = saver.status("t")
        assert (stands(found), found.doubts) == (("unfinished", False, ("look",)), ())
        assert "in doubt" not in str(found)
        assert [(each.state, each.retries) for each in saver.tools.calls("t")] == [("unknown", True)]
    with pytest.raises(ToolOutcomeUnknown):
        go_on(None, "raise")
    assert [each.tool for each in saver.status("t").doubts] == ["look"]


@pytest.mark.parametrize("decision", ["done", "retry", "skip"])
def test_an_error_of_a_doubt_is_reported_until_it_is_settled(saver: KeelSaver, decision: str) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        raise Killed

    call = AIMessage("", id="1", tool_calls=[{"name": "pay", "args": {"amount": 3}, "id": "c"}])
    with ToolCache(saver) as cache:
        node = ToolNode([pay], messages_key="log", wrap_tool_call=cache.wrap_tool_call)
        made = graph(saver, ("say", lambda state: {"log": [call]}), ("pay", node))
        with pytest.raises(Killed):
            invoke(made, {"log": []})
        with pytest.raises(ToolOutcomeUnknown) as doubt:
            invoke(made, None)
        found = saver.status("t")
        assert found.errors[0].startswith("ToolOutcomeUnknown(")
        assert found.state == "failed"
        assert re.search(r"""before pay \(ToolOutcomeUnknown\("tool 'pay' .*…"\)\): look at its""", str(found))
        cache.settle("t", doubt.value.key, decision)
    settled = saver.status("t")
    assert (stands(settled), settled.errors, settled.doubts) == (("unfinished", False, ("pay",)), (), ())
    says = (
        "thread 't' has steps left before pay, and its unknown tool calls are settled: "
        "graph.invoke(None, config) continues."
    )
    assert (settled.is_settled, str(settled)) == (True, says)


def test_a_decision_whose_call_was_cut_off_and_settled_is_not_called_unused(saver: KeelSaver) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        request_approval("pay", {"amount": amount})
        raise Killed

    call = AIMessage("", id="1", tool_calls=[{"name": "pay", "args": {"amount": 3}, "id": "c"}])
    with ToolCache(saver) as cache:
        node = ToolNode([pay], messages_key="log", wrap_tool_call=cache.wrap_tool_call)
        made = graph(saver, ("say", lambda state: {"log": [call]}), ("pay", node))
        invoke(made, {"log": []})
        saver.approvals.approve(saver.approvals.pending("t")[0].id, by="ann")
        assert "no run has used the decision yet: graph.invoke(" in str(saver.status("t"))
        with pytest.raises(Killed):
            invoke(made, saver.approvals.resume("t"))
        with pytest.raises(ToolOutcomeUnknown) as doubt:
            invoke(made, saver.approvals.resume("t"))
        cache.settle("t", doubt.value.key, "done")
        assert "was decided, and its unknown tool calls are settled: graph.invoke(" in str(saver.status("t"))


@pytest.mark.parametrize("length", [80, 1000])
def test_a_long_error_is_shortened(saver: KeelSaver, length: int) -> None:
    def fail(state: State) -> State:
        raise ValueError("x" * length)

    with pytest.raises(ValueError, match="xxx"):
        invoke(graph(saver, ("a", fail)), {"log": []})
    (shown,) = re.findall(r"\((ValueError\('x+…?'\))\): look", str(saver.status("t")))
    assert ("…" in shown, len(shown) < 130) == (length > 80, True)


def test_a_missing_thread_is_new(saver: KeelSaver) -> None:
    found = saver.status("t")
    assert (stands(found), found.given, found.updated_at) == (("new", False, ()), None, "")
    assert str(found) == "thread 't' has no checkpoint yet: it takes its first input."
    assert list(saver.unfinished()) == []
    assert invoke(graph(saver, say("a")), found.given if found.can_go_on else {"log": []})["log"] == ["a"]
    with pytest.raises(InvalidConfig):
        saver.status("")


def test_a_first_run_without_a_checkpoint_is_running(place: Place) -> None:
    seen: list[ThreadStatus] = []
    with place.open(on_busy="wait") as saver:

        def look(state: State) -> State:
            seen.append(saver.status("t"))
            return {"log": []}

        graph(saver, ("look", look)).invoke({"log": []}, CONFIG, durability="exit")
    (status,) = seen
    assert (status.state, status.can_go_on, bool(status.holder)) == ("runs", False, True)


async def test_astatus_and_aunfinished_report_the_same(saver: KeelSaver) -> None:
    await graph(saver, say("a")).ainvoke({"log": []}, {"configurable": {"thread_id": "done"}})
    await graph(saver, ("ask", ask)).ainvoke({"log": []}, CONFIG)
    assert (await saver.astatus("t")).state == "waits"
    assert [(each.thread_id, each.state) async for each in saver.aunfinished()] == [("t", "waits")]


async def test_an_interrupt_is_stored_after_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mark is in the row of the thread, which the first checkpoint creates."""
    with MemorySaver() as saver:
        session, looked = saver.engine.session, asyncio.Event()

        def look() -> float:
            looked.set()
            return 0.0

        hook = session.hooks.find(RunClaims)
        assert hook is not None
        address = Address("t", "", "c1")
        put = Put({}, checkpoint_of("c1", {}), {}, "input", address, address, Header({}, {}, {}))
        monkeypatch.setitem(storing, put, (session.store, "t"))
        monkeypatch.setattr(hook, "timer", look)
        config = config_for("t", "c1")
        writing = asyncio.create_task(saver.aput_writes(config, [(INTERRUPT, (Interrupt("?"),))], "task"))
        await saver.aput_writes(config, [("log", ["said"])], "another")  # which has no mark
        await looked.wait()
        assert not writing.done()
        storing.pop(put)
        await asyncio.wait_for(writing, 60)


def test_status_works_on_a_read_only_store(place: Place) -> None:
    with place.open() as saver:
        invoke(graph(saver, ("ask", act)), {"log": []})
        (request,) = saver.status("t").requests
        saver.approvals.approve(request.id, by="ann")
    with place.open(read_only=True) as saver:
        assert saver.status("t").state == "decided"
