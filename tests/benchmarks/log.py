"""Measure 12, `log`: the bytes of a chat to N messages in N/2 turns, beside the JSON of what was new in it.

New is what the graph hands to the saver and what it had not handed over in that place before: of each `put` the
checkpoint without its channel values, the metadata, and the messages that the list has gained; of each `put_writes`
the channels with the values written to them. As JSON without spaces, a message without the fields that have their
defaults. Not counted, though the log has them: the addresses (thread, parent, task), and the channel of the graph's
input, in which LangGraph hands over once more what is then a write and then an item of the list.

Beside them, without a target: the same with that channel; and the messages alone, each once.
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
    """Stands before a saver's `put` and `put_writes`, and adds up the JSON of what is new in what they are given."""

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
    label = f"a chat of {plan.messages} messages: its log; beside the JSON of"
    alone = sum(map(json_bytes, history(plan.messages)))
    return [
        Row("log", f"{label} what was new", handed["new"], stored, "B", plan.target("log")),
        Row("log", f"{label} that and the inputs", handed.total(), stored, "B"),
        Row("log", f"{label} the messages alone", alone, stored, "B"),
    ]
