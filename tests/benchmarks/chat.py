"""Measure 1, `chat`: a chat to N messages in N/2 turns on one thread, and the bytes it costs.

Stored is every file the saver leaves, log and lock files included, after it was closed. Written is what the
process gave its write calls (`wchar` of /proc/self/io), in a process per saver that writes nothing else:
unlike `write_bytes` it counts a page each time it is written, to the log and to the database, and does not
depend on when the kernel empties its cache. Linearity: the saver is closed and opened again at N/2 messages.
"""

from functools import partial
from pathlib import Path
from typing import Any

from .child import in_child
from .graphs import Chat, DeltaChat, chat_graph, message, take_turn
from .plan import Plan
from .report import Row, Target, Unit
from .savers import BACKENDS, Backend
from .timing import bytes_written, timed

SCHEMAS: dict[str, Any] = {"add_messages": Chat, "DeltaChannel": DeltaChat}


def half(backend: Backend, directory: Path, schema: Any, turns: range) -> int:
    """Take these turns with a saver opened for them; the bytes stored afterwards."""
    with backend.open(directory) as saver:
        graph = chat_graph(saver, schema)
        for turn in turns:
            take_turn(graph, "chat", 2 * turn)
    return backend.stored(directory)


def job(backend: str, directory: str, messages: int, schema: str) -> dict[str, Any]:
    """The whole chat, in its own process."""
    place, turns = Path(directory), messages // 2
    message(0), message(1)
    take = partial(half, BACKENDS[backend], place, SCHEMAS[schema])
    before = bytes_written()
    halves = range(turns // 2), range(turns // 2, turns)
    seconds, stored = timed(lambda: [take(turns) for turns in halves])
    written = None if before is None else (bytes_written() or 0) - before
    return {"half": stored[0], "stored": stored[1], "written": written, "ms": 1000 * seconds / turns}


def chat(plan: Plan, backend: Backend, schema: str = "add_messages") -> Any:
    directory = str(plan.directory(f"chat-{backend.name}"))
    return in_child("chat", backend=backend.name, directory=directory, messages=plan.messages, schema=schema)


def measure(plan: Plan) -> list[Row]:
    theirs, ours = chat(plan, plan.theirs), chat(plan, plan.ours)
    delta = chat(plan, plan.theirs, "DeltaChannel")
    grown = [each["stored"] / each["half"] for each in (theirs, ours)]
    label, less = f"chat to {plan.messages} messages", Target(1, "less")

    def row(what: str, key: str, unit: Unit, target: Target | None = None, beside: Any = theirs) -> Row:
        return Row("chat", f"{label}, {what}", beside[key], ours[key], unit, target)

    return [
        row("stored", "stored", "B", Target(1 / 200, "≤ 1/200")),
        row("stored; theirs with DeltaChannel", "stored", "B", less, delta),
        row("written", "written", "B", Target(1 / 100, "≤ 1/100")),
        row("written; theirs with DeltaChannel", "written", "B", None, delta),
        Row("chat", "  stored, over that at half", grown[0], grown[1], "×", Target(2.1, "≤ 2.1 ×", "figure")),
        row("a turn on average", "ms", "ms"),
    ]
