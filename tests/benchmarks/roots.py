"""Measure 14, `roots`: 10,000 threads in one root, beside 1,000 (the left column).

What is asked of one thread must take as long in either; what is asked of all may take ten times as long. "open" is a
new saver, so that nothing is in the process's memory; the files are in that of the system. The threads are copies of
one of a turn, a second apart, with a first line and an id of their own: to make each by a put, durably, would take
minutes.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from .files import opened
from .graphs import chat_graph, take_turn, thread
from .plan import Plan
from .report import Row
from .steps import Sequence
from .timing import Clocked, interleaved, timed

COUNT = 10_000


def fill(root: Path, threads: int) -> None:
    """Make the root by a saver with one thread, and put copies of that beside it."""
    lines = import_module("langgraph_keel.backends.files.log")
    with opened(root) as saver:
        take_turn(chat_graph(saver), "thread-0", 0)
    records = [lines.parse_line(line) for line in (root / "threads/thread-0/log.jsonl").read_bytes().splitlines()]
    for number in range(1, threads):
        directory = root / "threads" / f"thread-{number}"
        directory.mkdir()
        (directory / "log.jsonl").write_bytes(b"".join(lines.line_of(_moved(each, number)) for each in records))


def _moved(record: dict[str, Any], number: int) -> dict[str, Any]:
    """A record as another thread has it, which was at work so many seconds later."""
    fields = {name: value for name, value in record.items() if name != "crc"}
    if fields["k"] == "thread":
        fields |= {"id": f"thread-{number}", "epoch": f"{number:024x}"}
    if "at" in fields:
        fields["at"] = (datetime.fromisoformat(fields["at"]) + timedelta(seconds=number)).isoformat()
    return fields


class Subject:
    """A root, and a saver that was at work there before; the threads asked for are others each time."""

    def __init__(self, root: Path, threads: int, saver: Any) -> None:
        self.root, self.threads, self.saver = root, threads, saver
        self._numbers = count()

    @property
    def some(self) -> str:
        return f"thread-{37 * next(self._numbers) % self.threads}"


Call = Callable[[Any, str], object]
"""Asks something of a saver and, if it is about one, of a thread."""


def _cold(call: Call, subject: Subject) -> float:
    """Seconds to open a saver and make the call."""
    name = subject.some
    with ExitStack() as stack:
        return timed(lambda: call(stack.enter_context(opened(subject.root)), name))[0]


def _warm(call: Call, subject: Subject) -> float:
    return timed(call, subject.saver, subject.some)[0]


def _get_tuple(saver: Any, name: str) -> object:
    return saver.get_tuple(thread(name))


def _list(saver: Any, name: str) -> object:
    return list(saver.list(thread(name)))


def _put(saver: Any, name: str) -> object:
    return Sequence(saver, name).put({"step": 1})


def _threads(saver: Any, _: str) -> object:
    return list(saver.threads())


def _page(saver: Any, _: str) -> object:
    return list(saver.threads(limit=20))


@dataclass(frozen=True)
class Measured:
    label: str
    run: Callable[[Subject], float]
    rounds: int
    target: str = ""


CALLS = [
    Measured("open and get_tuple of one thread", partial(_cold, _get_tuple), 101, "one"),
    Measured("open and list one thread", partial(_cold, _list), 101, "one"),
    Measured("open, get_tuple and put", partial(_cold, _put), 31, "one"),
    Measured("get_tuple of one thread, saver warm", partial(_warm, _get_tuple), 101, "one"),
    Measured("open and threads(), all", partial(_cold, _threads), 3, "all"),
    Measured("open and threads(limit=20)", partial(_cold, _page), 5, "all"),
    Measured("threads(limit=20), saver warm", partial(_warm, _page), 7, "all"),
]


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        few, many = (_subject(stack, plan, threads) for threads in (plan.count(COUNT) // 10, plan.count(COUNT)))
        return [_row(plan, each, few, many) for each in CALLS]


def _subject(stack: ExitStack, plan: Plan, threads: int) -> Subject:
    root = plan.directory("roots")
    fill(root, threads)
    return Subject(root, threads, stack.enter_context(opened(root)))


def _row(plan: Plan, each: Measured, few: Subject, many: Subject) -> Row:
    runs: dict[str, Clocked] = {"few": partial(each.run, few), "many": partial(each.run, many)}
    took = interleaved(plan.rounds(each.rounds), runs)
    label = f"{each.label}: {many.threads} threads; beside {few.threads}"
    return Row("roots", label, took["few"], took["many"], "ms", plan.target(f"roots: {each.target}"))
