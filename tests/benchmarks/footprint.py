"""Measure 11, `footprint`: the memory that Redis needs for a chat, divided by the size of its messages.

The chat has N messages in N/2 turns, and all checkpoints and writes are kept. A message counts `MESSAGE_BYTES`, its
size from LangGraph's serializer. The memory of the keys is MEMORY USAGE with every element counted. The memory of the
server is the growth of its `used_memory`; a short chat before it loads the scripts and everything else that does not
grow.
"""

import os
from pathlib import Path
from typing import Any

from redis import Redis

from .graphs import MESSAGE_BYTES, chat_graph, take_turn
from .plan import Plan
from .redis import SERVER
from .report import Row


def _used(client: Any) -> int:
    client.memory_purge()
    return int(client.info("memory")["used_memory"])


def _chat(plan: Plan, directory: Path, turns: int) -> None:
    with plan.ours.open(directory) as saver:
        graph = chat_graph(saver)
        for turn in range(turns):
            take_turn(graph, "chat", 2 * turn)


def measure(plan: Plan) -> list[Row]:
    directory, raw = plan.directory("footprint"), plan.messages * MESSAGE_BYTES
    _chat(plan, plan.directory("warm-up"), 5)
    with Redis.from_url(os.environ[SERVER]) as client:
        before = _used(client)
        _chat(plan, directory, plan.messages // 2)
        grown = _used(client) - before
    label, target = f"a chat of {plan.messages} messages", plan.target("footprint")
    return [
        Row("footprint", f"{label}, keys; compared with the messages", raw, plan.ours.stored(directory), "B", target),
        Row("footprint", f"{label}, used_memory; compared with the messages", raw, grown, "B", target),
    ]
