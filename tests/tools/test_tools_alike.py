"""Equal calls: one call never uses the other's record, and has its own key."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, tool
from langgraph.types import interrupt
from support.process_children import exit_code, forked
from support.tool_graphs import (
    ASKED,
    FACES,
    Killed,
    answers,
    calls,
    hello,
    is_replay,
    question,
    resume,
    run,
    thread,
    tool_graph,
)
from support.tools.flight import wait_until

from langgraph_keel import KeelSaver, MemorySaver, SqliteSaver, ToolCache, ToolOutcomeUnknown, ToolPolicy

pytestmark = pytest.mark.timeout(30)
NOT_KEPT = ToolPolicy(cache_if=lambda result: False)
TWICE = (("pay", {"to": "x"}, "call-1"), ("pay", {"to": "x"}, "call-2"))


class Payments:
    """Payments that a person approves, and a tool that kills the process."""

    def __init__(self) -> None:
        self.begun, self.made = list[str](), list[str]()
        self.dies = False

    def pay(self) -> BaseTool:
        @tool
        def pay(to: str, key: Annotated[str, InjectedToolArg] = "") -> str:
            """Pay, after approval."""
            self.begun.append(key)
            answer = interrupt("pay?")
            self.made.append(f"{answer} {key}".strip())
            return f"paid {answer}"

        return pay

    def die(self) -> BaseTool:
        @tool
        def die(q: str) -> str:
            """Be the last moment of a process."""
            if self.dies:
                time.sleep(0.3)  # the other calls have ended and stored their results
                raise Killed
            return "ok"

        return die


# -- approvals ---------------------------------------------------------------------------------------------------------


async def approved(graph: Any, face: str, result: Any, *words: str) -> Any:
    for word in words:
        assert question(result) == "pay?"
        result = await resume(graph, face, word, thread("t"))
    return result


@pytest.mark.parametrize("face", FACES)
async def test_each_of_two_equal_calls_is_approved_and_made_once(face: str) -> None:
    payments = Payments()
    with ToolCache(MemorySaver()) as cache:
        graph = tool_graph(cache, [payments.pay()], [calls(*TWICE)])
        asked = await run(graph, face, hello(), thread("t"))
        result = await approved(graph, face, asked, "one", "two")
        assert ASKED not in result
        assert sorted(payments.made) == ["one", "two"]
        said = answers(result)
        assert sorted(said[name].content for name in ("call-1", "call-2")) == ["paid one", "paid two"]
        assert [call.state for call in cache.saver.tools.calls("t")] == ["done", "done"]


@pytest.mark.parametrize("face", FACES)
async def test_equal_calls_find_their_own_results_after_a_crash(face: str) -> None:
    """The first call keeps the shared key; the second one has its own stable key."""
    payments = Payments()
    with ToolCache(MemorySaver(), {"die": None}) as cache:
        tools = [payments.pay(), payments.die()]
        graph = tool_graph(cache, tools, [calls(*TWICE, ("die", {"q": "y"}, "call-3"))])
        asked = await run(graph, face, hello(), thread("t"))
        asked = await approved(graph, face, asked, "one")
        payments.dies = True
        with pytest.raises(Killed):
            await approved(graph, face, asked, "two")
        cache.close()
        payments.dies = False
        said = answers(await run(graph, face, None, thread("t")))
    assert sorted(payments.made) == ["one", "two"]
    assert sorted(said[name].content for name in ("call-1", "call-2")) == ["paid one", "paid two"]
    assert is_replay(said["call-1"])
    assert is_replay(said["call-2"])


@pytest.mark.parametrize("face", FACES)
async def test_an_approved_payment_is_not_repeated_when_another_thread_asks(face: str) -> None:
    """Killed after the payment; then an equal call of another thread asks."""
    payments = Payments()
    with ToolCache(MemorySaver(), {"pay": ToolPolicy(scope="shared"), "die": None}) as cache:
        tools = [payments.pay(), payments.die()]
        graph = tool_graph(cache, tools, [calls(("pay", {"to": "x"}, "call-1"), ("die", {"q": "y"}, "call-2"))])
        asked = await run(graph, face, hello(), thread("t"))
        payments.dies = True
        with pytest.raises(Killed):
            await approved(graph, face, asked, "one")
        cache.close()
        payments.dies = False
        assert question(await run(graph, face, hello(), thread("other"))) == "pay?"
        result = await run(graph, face, None, thread("t"))
    assert payments.made == ["one"]
    assert answers(result)["call-1"].content == "paid one"


@pytest.mark.parametrize("face", FACES)
async def test_equal_calls_of_two_threads_have_different_idempotency_keys(face: str) -> None:
    payments = Payments()
    policy = ToolPolicy(scope="shared", idempotency_argument="key")
    with ToolCache(MemorySaver(), {"pay": policy}) as cache:
        graph = tool_graph(cache, [payments.pay()], [calls(("pay", {"to": "x"}, "call-1"))])
        for name in ("t", "other"):
            assert question(await run(graph, face, hello(), thread(name))) == "pay?"
        first, second = payments.begun
        await resume(graph, face, "yes", thread("other"))
        await resume(graph, face, "yes", thread("t"))
    assert payments.made == [f"yes {second}", f"yes {first}"]
    assert first != second


# -- results that are not kept -----------------------------------------------------------------------------------------


def note(path: Path, what: str) -> None:
    with path.open("a") as file:
        file.write(f"{what}\n")


def sending(saver: KeelSaver, path: Path, die: Callable[[], None]) -> list[BaseTool]:
    @tool
    def send(to: str) -> str:
        """Send a message."""
        note(path, to)
        return f"sent to {to}"

    @tool
    def last(q: str) -> str:
        """Be the last moment of a process."""
        wait_until(lambda: [call.state for call in saver.tools.calls("t") if call.tool == "send"] == ["done", "done"])
        die()
        return "ok"

    return [send, last]


def sends(saver: KeelSaver, cache: ToolCache, path: Path, die: Callable[[], None]) -> Any:
    script = [calls(*(("send", {"to": "x"}, f"call-{n}") for n in (1, 2)), ("last", {"q": "y"}, "call-3"))]
    return tool_graph(cache, sending(saver, path, die), script)


def not_keeping(saver: KeelSaver) -> ToolCache:
    return ToolCache(saver, {"send": NOT_KEPT, "last": None})


def killed() -> None:
    raise Killed


@pytest.mark.parametrize("face", FACES)
async def test_equal_calls_without_results_are_not_repeated_silently(face: str, tmp_path: Path) -> None:
    path, saver = tmp_path / "sent", MemorySaver()
    with not_keeping(saver) as cache:
        with pytest.raises(Killed):
            await run(sends(saver, cache, path, killed), face, hello(), thread("t"))
        assert path.read_text() == "x\nx\n"
        for _ in range(2):
            with pytest.raises(ToolOutcomeUnknown, match="send"):
                await run(sends(saver, cache, path, lambda: None), face, None, thread("t"))
        assert path.read_text() == "x\nx\n"
        assert [call.state for call in saver.tools.calls("t")] == ["done", "done"]


def send_and_die(database: Path, path: Path) -> None:
    with SqliteSaver(database) as saver, not_keeping(saver) as cache:
        graph = sends(saver, cache, path, lambda: os.kill(os.getpid(), signal.SIGKILL))
        graph.invoke(hello(), thread("t"))


def test_a_killed_process_leaves_a_doubt_for_each_equal_call(tmp_path: Path) -> None:
    """A person settles both, and the agent continues without repeating a call."""
    database, path = tmp_path / "keel.db", tmp_path / "sent"
    assert exit_code(forked(send_and_die, database, path)) == -signal.SIGKILL
    with SqliteSaver(database) as saver, not_keeping(saver) as cache:
        graph = sends(saver, cache, path, lambda: None)
        with pytest.raises(ToolOutcomeUnknown, match="send") as told:
            graph.invoke(None, thread("t"))
        assert path.read_text() == "x\nx\n"
        keys = {call.key for call in saver.tools.calls("t") if call.tool == "send"}
        assert len(keys) == 2
        assert told.value.key in keys
        for key in keys:
            cache.settle("t", key, "done", f"as {key}")
        said = answers(graph.invoke(None, thread("t")))
        assert {said[f"call-{n}"].content for n in (1, 2)} <= {f"as {key}" for key in keys}
    assert path.read_text() == "x\nx\n"


# -- equal doubts ------------------------------------------------------------------------------------------------------


def cut_off(acted: list[str]) -> BaseTool:
    """A tool that pays, and is cut off the first time."""

    @tool
    def pay(to: str) -> str:
        """Pay."""
        acted.append(to)
        if len(acted) == 1:
            raise Killed
        return "paid"

    return pay


ASKING = ToolPolicy(unknown="ask", scope="shared")


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("word", ["done", "retry"])
async def test_two_threads_that_ask_about_one_call_respect_both_decisions(word: str, face: str) -> None:
    """The second person says `skip` after the first one has settled the call."""
    acted: list[str] = []
    with ToolCache(MemorySaver(), {"pay": ASKING}) as cache:
        graph = tool_graph(cache, [cut_off(acted)], [calls(("pay", {"to": "x"}, "call-1"))])
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        for name, value in (("t", None), ("other", hello())):
            asked = question(await run(graph, face, value, thread(name)))
            assert asked["type"] == "tool_outcome_unknown"
        await resume(graph, face, word, thread("t"))
        made = list(acted)
        result = await resume(graph, face, "skip", thread("other"))
    assert acted == made
    # If the first answer produced a result, it is also the result of the second call.
    said = "paid" if word == "retry" else "decided not to repeat it"
    assert said in answers(result)["call-1"].content


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("word", ["skip", "done", "retry"])
async def test_a_doubt_of_an_abandoned_step_is_asked_about_once(word: str, face: str) -> None:
    """The user continued with something else, so that call will never be resumed."""
    acted: list[str] = []
    script = [calls(("pay", {"to": "x"}, f"call-{turn}")) for turn in range(4)]
    with ToolCache(MemorySaver(), default=ToolPolicy(unknown="ask")) as cache:
        graph = tool_graph(cache, [cut_off(acted)], script)
        with pytest.raises(Killed):
            await run(graph, face, hello(), thread("t"))
        cache.close()
        aborted = {"messages": [ToolMessage("aborted", tool_call_id="call-0")]}
        await asyncio.to_thread(graph.update_state, thread("t"), aborted, "tools")
        assert question(await run(graph, face, None, thread("t")))["type"] == "tool_outcome_unknown"
        result = await resume(graph, face, word, thread("t"))
    assert ASKED not in result
    assert len(answers(result)) == 4
