"""Programs that are asked to end in step 3 of 5: `draining.py PROGRAM URL OPTIONS`.

Each prints its steps as they begin, as `thread step`, and stays in step 3 until it is asked to drain.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained
from langgraph.runtime import Runtime

from langgraph_keel import KeelSaver, open_saver
from support.log_graphs import State, graph

THREADS = "abcde"
INPUT: Any = {"log": []}


def config_of(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def tell(config: RunnableConfig, number: int) -> None:
    """Print that a step begins, in one atomic write, since several threads may print."""
    os.write(1, f"{config['configurable']['thread_id']} {number}\n".encode())


def step(number: int) -> tuple[str, Any]:
    """Return a node and its name, by its number."""

    def run(state: State, config: RunnableConfig, runtime: Runtime[None]) -> State:
        tell(config, number)
        while number == 3 and not runtime.drain_requested:
            time.sleep(0.01)
        return {"log": [number]}

    return f"s{number}", run


def astep(number: int) -> tuple[str, Any]:
    """As `step`, asynchronously."""

    async def run(state: State, config: RunnableConfig, runtime: Runtime[None]) -> State:
        tell(config, number)
        while number == 3 and not runtime.drain_requested:
            await asyncio.sleep(0.01)
        return {"log": [number]}

    return f"s{number}", run


def five_steps(saver: KeelSaver, make: Any = step) -> Any:
    return graph(saver, *(make(number) for number in range(1, 6)))


def run_alone(saver: KeelSaver) -> None:
    """Run one graph in the main thread."""
    with saver.draining():
        five_steps(saver).invoke(INPUT, config_of("a"))


def run_threads(saver: KeelSaver) -> None:
    """Run five graphs in threads."""
    made = five_steps(saver)
    with saver.draining(), ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(made.invoke, INPUT, config_of(name)) for name in THREADS]:
            done.result()


def run_tasks(saver: KeelSaver) -> None:
    """Run five graphs in a loop."""

    async def main() -> None:
        made = five_steps(saver, astep)
        async with saver.draining():
            await asyncio.gather(*(made.ainvoke(INPUT, config_of(name)) for name in THREADS))

    asyncio.run(main())


def app_of(saver: KeelSaver) -> Any:
    """Return a service that answers immediately and runs the graph in the background."""
    from fastapi import FastAPI

    tasks: list[asyncio.Task[None]] = []
    made = five_steps(saver, astep)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        assert await saver.adrain(grace=30) == ()

    app = FastAPI(lifespan=lifespan)

    async def run(thread_id: str) -> None:
        with suppress(GraphDrained):
            await made.ainvoke(INPUT, config_of(thread_id))

    @app.post("/{thread_id}", status_code=202)
    async def begin(thread_id: str) -> None:
        tasks.append(asyncio.create_task(run(thread_id)))

    return app


def serve(saver: KeelSaver) -> None:
    """Serve with uvicorn, which handles signals itself."""
    import uvicorn

    uvicorn.run(app_of(saver), port=int(sys.argv[4]), log_level="warning")


def serve_draining(saver: KeelSaver) -> None:
    """Serve in a block, which handles the signal after uvicorn."""
    with saver.draining():
        serve(saver)


PROGRAMS = {
    "alone": run_alone,
    "threads": run_threads,
    "asyncio": run_tasks,
    "uvicorn": serve,
    "uvicorn in a block": serve_draining,
}

if __name__ == "__main__":
    with open_saver(sys.argv[2], **json.loads(sys.argv[3])) as opened:
        PROGRAMS[sys.argv[1]](opened)
