"""The interpreter exits silently, whether a program keeps a stream or drops it."""

from __future__ import annotations

import subprocess
import sys

import pytest

KEPT = """
import asyncio, operator, sys
from typing import Annotated, TypedDict
from langgraph_keel import MemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict):
    log: Annotated[list, operator.add]

way, busy, is_closed = sys.argv[1:]
saver = MemorySaver(on_busy=busy)
first = (lambda state: {"log": [interrupt("who?")]}) if way == "question" else (lambda state: {"log": ["1"]})
builder = StateGraph(State).add_node("first", first).add_node("second", lambda state: {"log": ["2"]})
graph = builder.add_edge(START, "first").add_edge("first", "second").compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t"}}

async def leave():
    global kept
    kept = graph.astream({"log": ["u"]}, config)
    await anext(kept)

if way == "async":
    asyncio.run(leave())
else:
    kept = graph.stream({"log": ["u"]}, config)
    next(kept)
if is_closed == "closed":
    saver.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["half read", "question", "async"])
@pytest.mark.parametrize(("busy", "is_closed"), [("raise", "closed"), ("wait", "open")])
def test_a_kept_stream_prints_nothing_at_exit(way: str, busy: str, is_closed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEPT, way, busy, is_closed], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


STOPPED = """
from threading import Thread
from types import SimpleNamespace
from langgraph_keel.engine.leases import Keeper

class Late:
    def __init__(self, keeper):
        self.keeper = keeper
        self.itself = self  # so it goes when the interpreter collects what is left

    def __del__(self, claim=SimpleNamespace(token="1")):
        self.keeper.hold(claim)
        self.keeper.drop(claim)
        self.keeper.defer(print)
        print("collected")

late = Late(Keeper(9, bool))
stopped = Thread(target=late.keeper._changed.acquire)  # it ends, and has the lock
stopped.start()
stopped.join()
"""


def test_exit_does_not_wait_for_a_stopped_thread() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "collected\n", "")
