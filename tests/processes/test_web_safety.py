"""The service of the page "In a web service": its automatic recovery, and start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from test_docs import ROOT, blocks_of

from langgraph_keel import SqliteSaver
from langgraph_keel.engine.tables import Cells
from langgraph_keel.runs.turns import LINES

PAGE = ROOT / "langgraph_keel" / "web_service.md"

(RECIPE,) = [block.text for block in blocks_of(PAGE) if block.text.startswith('"""service.py')]
SERVICE = """
import sys

import httpx
from langgraph.graph import START, MessagesState, StateGraph


def chat(state):
    if state["messages"][-1].text == "poison":
        os._exit(3)  # as the kernel does where memory is short
    return {"messages": [AIMessage("fine")]}


def build(saver):
    return StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat").compile(checkpointer=saver)


async def main():
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        print("up", flush=True)
        for asked in sys.argv[1:]:
            if asked == "for ever":
                await asyncio.Event().wait()
            thread, text = asked.split("=")
            reply = await client.post(f"/threads/{thread}/messages", json={"text": text}, timeout=60)
            print(reply.status_code, "fine" in reply.text, flush=True)


asyncio.run(main())
"""


def serve(directory: Path, *asked: str) -> tuple[int, list[str]]:
    """Start the service and use it in some threads; return its exit and its output."""
    command = [sys.executable, "-c", RECIPE + SERVICE, *asked]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_a_thread_that_kills_its_process_does_not_keep_the_service_down(tmp_path: Path) -> None:
    """Three workers die of it; then it is left alone, and the others are answered."""
    assert serve(tmp_path, "p=poison") == (3, ["up"])
    for _ in range(3):
        assert serve(tmp_path, "for ever") == (3, ["up"])
    for _ in range(2):
        assert serve(tmp_path, "other=Hello!", "p=Hello!") == (0, ["up", "200 True", "409 False"])


async def test_threads_that_were_not_killed_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exploratory fork, a rewind, a copy, a failure, a breakpoint."""
    monkeypatch.chdir(tmp_path)
    paid: list[str] = []

    def chat(state: MessagesState) -> Any:
        paid.append("refund")
        if state["messages"][-1].text == "fail":
            raise ConnectionError
        return {"messages": [("ai", "paid")]}

    builder = StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat")
    names: dict[str, Any] = {"__name__": "web"}
    exec(compile(RECIPE, PAGE.name, "exec"), names)
    names["build"] = lambda saver: builder.compile(checkpointer=saver)

    def config_of(thread: str) -> Any:
        return {"configurable": {"thread_id": thread}}

    def given(text: str) -> Any:
        return {"messages": [("user", text)]}

    with SqliteSaver("service.db") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(given("pay"), config_of("ada"))
        before = next(each for each in saver.timeline("ada") if each.next == ("chat",))
        saver.fork(before, "what-if")
        stopped = builder.compile(checkpointer=saver, interrupt_before=["chat"])
        for name in ("stopped", "source"):
            stopped.invoke(given("pay"), config_of(name))
        saver.copy_thread("source", "copy")
        with pytest.raises(ConnectionError):
            graph.invoke(given("fail"), config_of("failed"))
        saver.rewind(before)
    paid.clear()
    app = names["app"]
    transport = httpx.ASGITransport(app)
    async with names["lifespan"](app), httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        assert [each async for each in app.state.saver.arecover(app.state.graph, timeout=0)] == []
        states = {each.thread_id: each.state async for each in app.state.saver.aunfinished()}
        replies = [await client.post(f"/threads/{name}/messages", json={"text": "Hello!"}) for name in states]
    assert states == {
        "ada": "rewound",
        "what-if": "forked",
        "stopped": "unfinished",
        "source": "unfinished",
        "copy": "arrived",
        "failed": "failed",
    }
    assert [reply.status_code for reply in replies] == [409] * 6
    assert paid == []


async def test_a_queued_message_does_not_replace_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was queued while the previous turn ran, which has asked a question since."""
    monkeypatch.chdir(tmp_path)
    async with served(think=True) as (names, client):
        first = asyncio.create_task(say(client, "bob", "refund 17"))
        await asyncio.wait_for(names["thinks"].wait(), 60)
        second = asyncio.create_task(say(client, "bob", "Hello?"))
        await until_in_line(names["app"].state.saver, "bob")
        names["may_answer"].set()
        assert [(await each).status_code for each in (first, second)] == [200, 409]
        (waiting,) = (await client.get("/approvals")).json()
        with SqliteSaver("service.db") as other:  # as `keel approve` does in a terminal
            other.approvals.approve(waiting["id"], by="olga")
        await until_idle(client, "bob")
        assert (await say(client, "bob", "Thanks")).status_code == 200
    assert paid() == ["17"]


async def test_an_operator_is_warned_that_a_fork_would_pay_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with served() as (_, client):
        await say(client, "bob", "refund 17")
        (waiting,) = (await client.get("/approvals")).json()
        with SqliteSaver("service.db") as other:
            other.approvals.approve(waiting["id"], by="olga")
            await until_idle(client, "bob")
            (before,) = [each for each in other.timeline("bob") if each.next == ("tools",)]
            other.fork(before, "what-if")
        refused = await client.post("/operator/threads/what-if/resume")
        assert refused.status_code == 409
        assert "calls again the tools that 'bob' called after this point: refund" in refused.json()["detail"]
        assert paid() == ["17"]
        assert (await client.post("/operator/threads/what-if/resume?again=true")).status_code == 200
        await until_idle(client, "what-if")
    assert paid() == ["17", "17"]


def paid() -> list[str]:
    """Return the orders that the service has refunded."""
    return [line.split()[0] for line in Path("refunds.log").read_text().splitlines()]


@asynccontextmanager
async def served(think: bool = False) -> AsyncIterator[tuple[dict[str, Any], httpx.AsyncClient]]:
    """Return the service in this process.

    Its model may be held when it is asked for a refund.
    """
    names: dict[str, Any] = {"__name__": "web", "thinks": asyncio.Event(), "may_answer": asyncio.Event()}
    exec(compile(RECIPE, PAGE.name, "exec"), names)
    if think:
        script = names["Script"]

        class Slow(script):  # type: ignore[misc, valid-type]
            async def _agenerate(self, messages: Any, *given: Any, **more: Any) -> Any:
                if messages[-1].text.startswith("refund"):
                    names["thinks"].set()
                    await names["may_answer"].wait()
                return self._generate(messages)

        names["Script"] = Slow
    app = names["app"]
    transport = httpx.ASGITransport(app)
    async with names["lifespan"](app), httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield names, client


async def say(client: httpx.AsyncClient, thread: str, text: str) -> httpx.Response:
    return await client.post(f"/threads/{thread}/messages", json={"text": text}, timeout=60)


async def until_in_line(saver: Any, thread: str) -> None:
    line = Cells(saver.engine.session, LINES, thread)
    async with asyncio.timeout(60):
        while not any(kept.record for _, kept in await saver.engine.arun(line.every())):
            await asyncio.sleep(0.05)


async def until_idle(client: httpx.AsyncClient, thread: str) -> None:
    async with asyncio.timeout(60):
        while (await client.get(f"/threads/{thread}")).json()["state"] != "idle":
            await asyncio.sleep(0.05)
