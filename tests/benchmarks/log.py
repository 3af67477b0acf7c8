"""Measure 12, `log`: the bytes of a chat of N messages in N/2 turns, compared with the JSON of its new data.

New data of a `put` is the checkpoint without its channel values, the metadata, and the new messages. New data of a
`put_writes` is the channels with their values. The JSON has no spaces, and messages omit fields with default values.
Two things that the log contains are not counted: the addresses (thread, parent, task), and the channel of the graph's
input, whose messages LangGraph also passes as writes and as list items.

Two more figures have no target: the same with the input channel, and each message once.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from .graphs import chat_graph, history, take_turn
from .plan import Plan
from .report import Row

INPUT = "__start__"


def json_bytes(value: Any) -> int:
    return len(orjson.dumps(value, default=_message))


def _message(message: Any) -> dict[str, Any]:
    return {"type": message.type, **message.model_dump(exclude_defaults=True)}


class Handed:
    """Wraps a saver's `put` and `put_writes`, and adds up the JSON of their new data."""

    def __init__(self, saver: Any) -> None:
        self.bytes: Counter[str] = Counter()
        self._listed = 0
        self._put, self._put_writes = saver.put, saver.put_writes
        saver.put, saver.put_writes = self.put, self.put_writes

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        values, bare = checkpoint["channel_values"], {**checkpoint}
        del bare["channel_values"]
        messages = values.get("messages", [])
        self._count("new", [bare, metadata, *messages[self._listed :]])
        self._listed = len(messages)  # a chat only grows
        self._count("input", [values[INPUT]] if INPUT in new_versions and INPUT in values else [])
        return self._put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config: Any, writes: Any, *task: str) -> None:
        self._count("new", writes)
        self._put_writes(config, writes, *task)

    def _count(self, kind: str, values: Iterable[Any]) -> None:
        self.bytes[kind] += sum(map(json_bytes, values))


def _chat(plan: Plan, directory: Path) -> Counter[str]:
    with plan.pair.ours.open(directory) as saver:
        handed, graph = Handed(saver), chat_graph(saver)
        for turn in range(plan.messages // 2):
            take_turn(graph, "chat", 2 * turn)
    return handed.bytes


def measure(plan: Plan) -> list[Row]:
    directory = plan.directory("log")
    handed = _chat(plan, directory)
    stored = plan.pair.ours.stored(directory)
    label = f"a chat of {plan.messages} messages: its log; compared with the JSON of"
    alone = sum(map(json_bytes, history(plan.messages)))
    return [
        Row("log", f"{label} the new data", handed["new"], stored, "B", plan.target("log")),
        Row("log", f"{label} the new data and the inputs", handed.total(), stored, "B"),
        Row("log", f"{label} the messages alone", alone, stored, "B"),
    ]
