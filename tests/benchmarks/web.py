"""Measure the response time of `keel web` on a large store: `python -m tests.benchmarks.web DIRECTORY`.

The store, on SQLite, has 10,000 threads, 1,000 of which wait for a person, and one thread of 1,000 steps. The limits
are those of the page's issue: 200 ms for the list, 300 ms for the inbox, 500 ms for the long thread.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import httpx
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from langgraph_keel import SqliteSaver, request_approval
from langgraph_keel.web import keel_app

THREADS, OPEN, STEPS = 10_000, 1_000, 1_000
LIMITS = {"threads": 200, "./": 300, "thread?id=long": 500, "usage": None, "threads?q=no-such-thread": None}


def chat(state: MessagesState) -> Any:
    return {"messages": [AIMessage("An answer of some length, such as a model gives.")]}


def ask(state: MessagesState) -> Any:
    request_approval("refund", {"order": "A-1042", "amount": 249}, facts={"paid": 249})


async def fill(saver: SqliteSaver) -> None:
    talk, wait = (
        StateGraph(MessagesState).add_node("agent", node).add_edge(START, "agent").compile(checkpointer=saver)
        for node in (chat, ask)
    )
    for number in range(THREADS):
        config: Any = {"configurable": {"thread_id": f"thread-{number}", "user_id": f"user-{number % 50}"}}
        given: Any = {"messages": [("user", f"Question {number}")]}
        await (wait if number < OPEN else talk).ainvoke(given, config, durability="exit" if number >= OPEN else "sync")
    for number in range(STEPS // 3):  # each turn has three checkpoints
        given = {"messages": [("user", f"Question {number}")]}
        await talk.ainvoke(given, {"configurable": {"thread_id": "long"}})


async def main(path: Path) -> None:
    async with SqliteSaver(path / "web.db") as saver:
        if await saver.aget_tuple({"configurable": {"thread_id": "long"}}) is None:
            await fill(saver)
        transport = httpx.ASGITransport(keel_app(saver, identify=lambda _: "maria"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/", timeout=600) as page:
            for address, limit in LIMITS.items():
                walls, works = list[float](), list[float]()
                for _ in range(5):
                    began, worked = perf_counter(), process_time()
                    reply = await page.get(address)
                    walls.append((perf_counter() - began) * 1000)
                    works.append((process_time() - worked) * 1000)
                    assert reply.status_code == 200, reply.text
                said = f", at most {limit} ms" if limit else ""
                size = f"{len(reply.content):,} bytes"
                print(f"{address}: {median(walls):.0f} ms, processor {median(works):.0f} ms ({size}{said})")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
