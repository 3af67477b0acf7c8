"""Measure 11, `footprint`: the memory that Redis needs for a chat of N messages, said in N/2 turns, all its checkpoints
and writes kept, over the messages themselves: `MESSAGE_BYTES` each, which is what LangGraph's serializer makes of one.

Of the keys by MEMORY USAGE, every element counted; and of the whole server by how much its `used_memory` grew, after
another chat of a few turns, which leaves the scripts and whatever else does not grow.
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
        Row("footprint", f"{label}, its keys; beside the raw messages", raw, plan.ours.stored(directory), "B", target),
        Row("footprint", f"{label}, used_memory; beside the raw messages", raw, grown, "B", target),
    ]
