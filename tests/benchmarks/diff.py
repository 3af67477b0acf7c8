"""Measure 17, `diff`: the diff of two moments of N messages that differ in three places.

One step edited one message, removed one and added one. It is compared with two `get_tuple` calls of LangGraph's saver,
the minimum to load both states. Where LangGraph has no saver for the backend, its SqliteSaver is used. The savers are
warm, as in a running server, and alternate; figures are medians.
"""

from contextlib import ExitStack
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from . import sqlite
from .backend import Backend, Saver
from .graphs import history, message
from .plan import Plan
from .report import Row
from .steps import Sequence
from .timing import interleaved, timed

Moments = tuple[RunnableConfig, RunnableConfig]


def edited(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return the messages with one removed, one edited and one added."""
    third = len(messages) // 3
    other = messages[2 * third].model_copy(update={"content": "No. " + str(messages[2 * third].content)})
    return [*messages[:third], *messages[third + 1 : 2 * third], other, *messages[2 * third + 1 :], message(10_000)]


def moments(saver: Saver, count: int, turns: int = 20) -> Moments:
    """Store a thread that grows by a message a step at its end; return its two moments."""
    sequence = Sequence(saver, "diff")
    messages = history(count)
    for number in range(count - turns, count + 1):
        sequence.put({"messages": messages[:number], "summary": "a text that stays " * 20, "turns": number // 2})
    before = sequence.config
    sequence.put({"messages": edited(messages)})
    return before, sequence.config


def opened(stack: ExitStack, backend: Backend, plan: Plan) -> tuple[Any, Moments]:
    saver = stack.enter_context(backend.open(plan.directory(f"diff-{backend.name}")))
    return saver, moments(saver, plan.messages)


def measure(plan: Plan) -> list[Row]:
    with ExitStack() as stack:
        ours, (before, after) = opened(stack, plan.pair.ours, plan)
        theirs, others = opened(stack, plan.pair.theirs or sqlite.THEIRS, plan)
        assert [edit.kind for edit in ours.diff(before, after).edits] == ["removed", "changed", "added"]
        subjects = {
            "ours": lambda: timed(ours.diff, before, after)[0],
            "theirs": lambda: timed(lambda: [theirs.get_tuple(config) for config in others])[0],
            "our states": lambda: timed(lambda: [ours.get_tuple(config) for config in (before, after)])[0],
        }
        took = interleaved(plan.rounds(51), subjects)
    label = f"diff of two moments of {plan.messages} messages; compared with loading both"
    beside = "" if plan.pair.theirs else " from SQLite"
    return [
        Row("diff", label + beside, took["theirs"], took["ours"], "ms", plan.target("diff")),
        Row("diff", "  loading both", took["theirs"], took["our states"], "ms"),
    ]
