"""Measure 7, `memory`: memory of a saver that has served 10,000 threads, compared with one that has served 100.

Each saver has its own process. tracemalloc counts the memory that Python has allocated since the saver was opened and
not freed, after `gc.collect()`; it does not see SQLite's page cache. To serve a thread means to look it up, store four
messages, and read it. "No more" allows 64 KB: LangGraph's saver, which caches nothing, varies by that much.
"""

import gc
import tracemalloc
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from .backend import Backend, Saver
from .child import in_child
from .graphs import history, thread
from .plan import Plan
from .report import Row
from .savers import BACKENDS
from .steps import Sequence


def _serve(saver: Saver, count: int) -> None:
    for index in range(count):
        Sequence(saver, f"thread-{index}").put({"messages": history(4)})
        saver.get_tuple(thread(f"thread-{index}"))


def _warm_up(backend: Backend, root: Path) -> None:
    """Let a first saver of the kind fill all global caches."""
    with backend.open(Path(mkdtemp(dir=root))) as saver:
        _serve(saver, 3)


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def job(backend: str, directory: str, threads: int) -> int:
    _warm_up(BACKENDS[backend], Path(directory).parent)
    tracemalloc.start()
    with BACKENDS[backend].open(Path(directory)) as saver:
        before = _traced()
        _serve(saver, threads)
        return _traced() - before


def _held(plan: Plan, backend: Backend, threads: int) -> Any:
    directory = str(plan.directory(f"memory-{backend.name}"))
    return in_child("memory", backend=backend.name, directory=directory, threads=threads)


def measure(plan: Plan) -> list[Row]:
    few, many = 100, plan.count(10_000)
    held = {count: [_held(plan, each, count) for each in plan.sides.values()] for count in (few, many)}
    more = [after - before for before, after in zip(held[few], held[many], strict=True)]
    rows = [Row("memory", f"held after {count} threads", a, b, "B") for count, (a, b) in held.items()]
    return [*rows, Row("memory", f"  more after {many} than after {few}", more[0], more[1], "B", plan.target("memory"))]
