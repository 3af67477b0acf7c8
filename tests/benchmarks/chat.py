"""Measure 1, `chat`: the bytes of a chat of N messages in N/2 turns on one thread.

"stored" counts the files of the closed saver, with logs. "written" counts the bytes that a process passed to its write
calls (`wchar` of /proc/self/io), in a process per saver that writes nothing else. Unlike `write_bytes`, it counts a
page each time it is written, to the log and to the database, and does not depend on when the kernel flushes its cache.
For servers, see the docstrings of their modules. To measure linearity, the saver is closed and opened again at N/2
messages.
"""

from functools import partial
from pathlib import Path
from typing import Any

from .backend import Backend
from .child import in_child
from .graphs import Chat, DeltaChat, chat_graph, message, take_turn
from .plan import Plan
from .report import Row, Unit
from .savers import BACKENDS
from .timing import timed

SCHEMAS: dict[str, Any] = {"add_messages": Chat, "DeltaChannel": DeltaChat}


def half(backend: Backend, directory: Path, schema: Any, turns: range) -> int:
    """Take these turns with a newly opened saver; return the bytes stored afterwards."""
    with backend.open(directory) as saver:
        graph = chat_graph(saver, schema)
        for turn in turns:
            take_turn(graph, "chat", 2 * turn)
    return backend.stored(directory)


def job(backend: str, directory: str, messages: int, schema: str) -> dict[str, Any]:
    """Run the whole chat; called in its own process."""
    subject, place, turns = BACKENDS[backend], Path(directory), messages // 2
    message(0), message(1)
    take = partial(half, subject, place, SCHEMAS[schema])
    subject.prepare(subject.open, place)
    before = subject.written()
    halves = range(turns // 2), range(turns // 2, turns)
    seconds, stored = timed(lambda: [take(turns) for turns in halves])
    written = None if before is None else (subject.written() or 0) - before
    return {"half": stored[0], "stored": stored[1], "written": written, "ms": 1000 * seconds / turns}


def chat(plan: Plan, backend: Backend, schema: str = "add_messages") -> Any:
    directory = str(plan.directory(f"chat-{backend.name}"))
    return in_child("chat", backend=backend.name, directory=directory, messages=plan.messages, schema=schema)


def measure(plan: Plan) -> list[Row]:
    sides = {side: chat(plan, backend) for side, backend in plan.sides.items()}
    theirs, ours = sides["theirs"], sides["ours"]
    delta = chat(plan, plan.sides["theirs"], "DeltaChannel")
    grown = [each["stored"] / each["half"] for each in (theirs, ours)]
    label, growth = f"chat to {plan.messages} messages", plan.target("stored, over that at half")

    def row(what: str, key: str, unit: Unit, target: str = "", beside: Any = theirs) -> Row:
        return Row("chat", f"{label}, {what}", beside[key], ours[key], unit, plan.target(target))

    return [
        row("stored", "stored", "B", "stored"),
        row("stored; theirs with DeltaChannel", "stored", "B", "stored, DeltaChannel", delta),
        row("written", "written", "B", "written"),
        row("written; theirs with DeltaChannel", "written", "B", "", delta),
        Row("chat", "  stored, over that at half", grown[0], grown[1], "×", growth),
        row("a turn on average", "ms", "ms"),
    ]
