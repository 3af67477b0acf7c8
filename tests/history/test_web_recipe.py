"""The recipe of a web service, as the page has it: what it resumes by itself, and that it always starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from situations import PAGE

from langgraph_keel import SqliteSaver, Standing

FOUND = re.search(r"\n## A web service\n.*?```python\n(.*?)\nasync def serve", PAGE.read_text(encoding="utf-8"), re.S)
assert FOUND
RECIPE = FOUND[1]
SERVICE = """
import os, sys
from langgraph.graph import START, MessagesState, StateGraph


def chat(state):
    if state["messages"][-1].text == "poison":
        os._exit(3)  # as the kernel does where memory is short
    return {"messages": [("ai", "fine")]}


builder = StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat")


async def main():
    app = SimpleNamespace(state=SimpleNamespace())
    async with lifespan(app):
        print("up", flush=True)
        for asked in sys.argv[1:]:
            print(*await answer(app, *asked.split("=")), flush=True)


asyncio.run(main())
"""


def serve(directory: Path, *asked: str) -> tuple[int, list[str]]:
    """Start the service, and ask it in some threads; return how it ended, and what it said."""
    command = [sys.executable, "-c", RECIPE + SERVICE, *asked]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout.splitlines()


def test_a_thread_that_kills_its_process_keeps_no_service_down(tmp_path: Path) -> None:
    """It is resumed once, by whoever starts next; then it is left alone, and the others are answered."""
    assert serve(tmp_path, "p=poison") == (3, ["up"])
    assert serve(tmp_path, "p=Hello!") == (3, ["up"])
    for _ in range(2):
        status, (up, *said) = serve(tmp_path, "other=Hello!", "p=Hello!")
        assert (status, up, said[0]) == (0, "up", "200 fine")
        assert said[1].startswith("409 thread 'p' was cut off before chat, as its process died: so did that of the run")


async def test_what_did_not_die_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that was made to look around, a rewind, a copy, a failure, a breakpoint."""
    monkeypatch.chdir(tmp_path)
    paid: list[str] = []

    def chat(state: MessagesState) -> Any:
        paid.append("refund")
        if state["messages"][-1].text == "fail":
            raise ConnectionError
        return {"messages": [("ai", "paid")]}

    builder = StateGraph(MessagesState).add_node("chat", chat).add_edge(START, "chat")
    names: dict[str, Any] = {"builder": builder, "__name__": "web"}
    exec(compile(RECIPE, "README.md", "exec"), names)

    def given(text: str) -> Any:
        return {"messages": [("user", text)]}

    with SqliteSaver("web.db") as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke(given("pay"), names["config_of"]("ada"))
        before = next(each for each in saver.timeline("ada") if each.next == ("chat",))
        saver.fork(before, "what-if")
        stopped = builder.compile(checkpointer=saver, interrupt_before=["chat"])
        for name in ("stopped", "source"):
            stopped.invoke(given("pay"), names["config_of"](name))
        saver.copy_thread("source", "copy")
        with pytest.raises(ConnectionError):
            graph.invoke(given("fail"), names["config_of"]("failed"))
        saver.rewind(before)
    paid.clear()
    app = SimpleNamespace(state=SimpleNamespace())
    async with names["lifespan"](app):
        await names["resume_all"](app)
        found: list[Standing] = [each async for each in app.state.saver.aunfinished()]
        states = {each.thread_id: each.state for each in found}
        said = [await names["answer"](app, name, "Hello!") for name in states]
    assert states == {
        "ada": "rewound",
        "what-if": "forked",
        "stopped": "unfinished",
        "source": "unfinished",
        "copy": "arrived",
        "failed": "failed",
    }
    assert [status for status, _ in said] == [409] * 6
    assert paid == []
