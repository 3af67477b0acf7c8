"""Random sequences of answers and decisions beside a simple model of what is asked and what is done.

A step has one to three tasks (parallel nodes, `Send`, or nodes of a subgraph), and each asks one to three questions.
What people see as open is what the tasks wait for, a decision is what its task receives, and the audit trail names
whoever has answered.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from tiers import sized
from typing_extensions import TypedDict

from langgraph_keel import AlreadyDecided, KeelSaver, MemorySaver, NotFound, SqliteSaver, request_approval
from langgraph_keel.approvals.requests import Decision

SHAPES = ("nodes", "send", "subgraph")
ACTS = ("answer", "decide", "resume", "plain", "by id", "late", "retry", "fail", "revise", "rewind", "fork")
ASKED = os.environ.get("KEEL_EXAMPLES")


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    task: str


class Failed(Exception):
    """A task that fails."""


@dataclass
class Task:
    """What the model knows of a task: the answers it has received, how many it has asked for, whether it has ended."""

    size: int
    answers: list[tuple[Any, str]] = field(default_factory=list)
    asked: int = 0
    is_done: bool = False

    @property
    def waits(self) -> bool:
        return self.asked > len(self.answers) and not self.is_done


class World:
    """A thread, and the model of it."""

    def __init__(self, saver: KeelSaver, shape: str, sizes: Sequence[int], is_keel: bool) -> None:
        self.saver, self.shape, self.is_keel = saver, shape, is_keel
        self.tasks = {f"n{number}": Task(size) for number, size in enumerate(sizes)}
        self.config: Any = {"configurable": {"thread_id": "t"}}
        self.fails_at: int | None = None
        self.has_failed = self.is_rewound = False
        self.got: dict[str, list[Any]] = {}
        self.decided: dict[str, tuple[Any, str]] = {}
        self.taken: list[tuple[str, Any, str]] = []
        self.late: Command[Any] | None = None
        self.values, self.forks = count(), count()
        self.graph = self._graph()

    def _ask(self, name: str, number: int) -> Any:
        if not self.is_keel:
            return interrupt(f"{name} {number}")
        return request_approval(f"{name} {number}", allowed=["answer"]).value

    def work(self, name: str) -> Mapping[str, Any]:
        answers: list[Any] = []
        for number in range(self.tasks[name].size):
            answers.append(self._ask(name, number))
            if name == "n0" and len(answers) == self.fails_at:
                raise Failed
        self.got[name] = answers
        return {"said": [name]}

    def _graph(self) -> Any:
        builder = StateGraph(State)
        if self.shape == "send":
            builder.add_node("work", lambda state: self.work(state["task"]))
            builder.add_conditional_edges(
                START, lambda _: [Send("work", {"task": name}) for name in self.tasks], ["work"]
            )
        else:
            for name in self.tasks:
                builder.add_node(name, lambda _, name=name: self.work(name)).add_edge(START, name)
        if self.shape == "subgraph":
            builder = StateGraph(State).add_node("inside", builder.compile()).add_edge(START, "inside")
        return builder.compile(checkpointer=self.saver)

    # -- the model -------------------------------------------------------------------------------------------------

    @property
    def open(self) -> dict[str, Task]:
        """Return the questions that wait, by their texts."""
        return {f"{name} {len(task.answers)}": task for name, task in self.tasks.items() if task.waits}

    @property
    def is_over(self) -> bool:
        return all(task.is_done for task in self.tasks.values())

    def attempt(self, given: Mapping[str, tuple[Any, str]]) -> None:
        """Run the tasks that have not ended, each with at most one more answer."""
        for name, task in self.tasks.items():
            if task.is_done:
                continue
            question = f"{name} {len(task.answers)}"
            if task.waits and question in given:
                task.answers.append(given[question])
                self.taken.append((question, *given[question]))
                self.decided.pop(question, None)
            if name == "n0" and self.fails_at is not None and len(task.answers) >= self.fails_at:
                self._lose(task, name)
                self.has_failed = True
            elif len(task.answers) == task.size:
                task.is_done = True
            else:
                task.asked = len(task.answers) + 1

    def _lose(self, task: Task, name: str) -> None:
        # LangGraph keeps the answers up to where a task has failed; `request_approval` keeps them in its requests.
        if not self.is_keel:
            del task.answers[self.fails_at :]
            task.asked = min(task.asked, len(task.answers))

    def run(self, command: Any, given: Mapping[str, tuple[Any, str]]) -> None:
        self.has_failed = self.is_rewound = False
        self.attempt(given)
        try:
            self.graph.invoke(command, self.config)
            has_failed = False
        except Failed:
            has_failed = True
        assert has_failed == self.has_failed
        self.fails_at = None

    # -- what people do --------------------------------------------------------------------------------------------

    def act(self, act: str, number: int) -> None:
        waiting = sorted(set(self.open) - set(self.decided))
        question = waiting[number % len(waiting)] if waiting else None
        ids = {each.value["action"] if self.is_keel else each.value: each.id for each in self._interrupts()}
        value = f"v{next(self.values)}"
        if act in ("answer", "decide") and question:
            (request,) = [each for each in self.saver.approvals.pending("t") if self.text(each) == question]
            by = ("ann", "bob")[number % 2]
            if act == "answer":
                self.saver.approvals.answer(request.id, value=value, by=by)
                self.decided[question] = value, by
                with pytest.raises(AlreadyDecided, match=f"{by} answered this"):
                    self.saver.approvals.answer(request.id, value="other", by="eve")
                return
            self.decided[question] = value, by
            decision = Decision("answer", by, value=value)
            command = self.saver.approvals.decide(request.id, decision)
            assert (command is None) == (not self._deliverable())
            if command is not None:
                self.run(command, self._deliverable())
                self.saver.approvals.decide(request.id, decision)  # a second click
        elif act == "resume" and (ready := self._deliverable()):
            self.late = self.saver.approvals.resume("t")
            self.run(self.late, ready)
        elif act == "plain" and len(self.open) == 1 and not self.is_keel and len(ids) == 1:
            (one,) = self.open
            self.run(Command(resume=value), {one: (value, "")})
        elif act == "by id" and self.open and not self.is_keel:
            one = sorted(self.open)[number % len(self.open)]
            self.run(Command(resume={ids[one]: value}), {one: (value, "")})
        elif act == "retry" and self._may_retry():
            self.run(None, {})
        elif act == "fail" and len(self.tasks) == 1 and not self.is_over:
            self.fails_at = 1 + number % self.tasks["n0"].size
        elif act == "revise":
            self._revise(number)
        elif act == "rewind" and not self.is_over:
            self.saver.rewind(self._head())
            self.tasks = {name: Task(task.size) for name, task in self.tasks.items()}
            self.decided, self.late, self.is_rewound = {}, None, True
        elif act == "fork":
            self.saver.fork(self._head(), f"f{next(self.forks)}")

    def _may_retry(self) -> bool:
        return not self.is_over and not self.decided and (self.is_rewound or self.has_failed)

    def _deliverable(self) -> Mapping[str, tuple[Any, str]]:
        """Return the decisions that can be delivered."""
        return {name: self.decided[name] for name in self.open if name in self.decided}

    def _revise(self, number: int) -> None:
        taken = [name for name in self.decided if name in self.open]
        if not taken:
            return
        question = sorted(taken)[number % len(taken)]
        (request,) = [
            each for each in self.saver.approvals.pending("t", status="answered") if self.text(each) == question
        ]
        assert self.saver.approvals.revise(request.id, by="eve", reason="a mistake").status == "waiting"
        del self.decided[question]

    def _interrupts(self) -> Sequence[Any]:
        found: Sequence[Any] = self.graph.get_state(self.config).interrupts
        return found

    def _head(self) -> Any:
        head = self.saver.get_tuple(self.config)
        assert head
        return head.config

    def text(self, request: Any) -> str:
        return str(request.action if self.is_keel else request.value)

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        expected = sorted(set(self.open) - set(self.decided))
        for thread in ("t", None):
            seen = [each for each in self.saver.approvals.pending(thread) if each.thread_id == "t"]
            assert sorted(map(self.text, seen)) == expected
        standing = self.saver.where("t")
        asked = [self.text(each) for each in standing.requests if each.status in ("waiting", "claimed")]
        assert sorted(asked) == expected
        if not self._deliverable() and not self.is_keel and not self.has_failed:
            with pytest.raises(NotFound):
                self.saver.approvals.resume("t")
        for name, task in self.tasks.items():
            if task.is_done:
                assert self.got[name] == [value for value, _ in task.answers]
        self._check_trail()

    def _check_trail(self) -> None:
        """Each answer of a person that a task has received is consumed, and no other one is."""
        found = self.saver.approvals.pending("t", status=["consumed"], limit=None)
        consumed = sorted(
            (self.text(each), each.decision.value) for each in found if each.decision and each.decision.by
        )
        received = sorted((question, value) for question, value, by in self.taken if by)
        assert set(consumed) <= set(received)
        if self.is_over:
            now = [
                (f"{name} {place}", value)
                for name, task in self.tasks.items()
                for place, (value, by) in enumerate(task.answers)
                if by
            ]
            assert set(now) <= set(consumed)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[str, Sequence[int], bool, Sequence[tuple[str, int]]]:
    shape, is_keel = draw(st.sampled_from(SHAPES)), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    acts = draw(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), min_size=1, max_size=14))
    return shape, sizes, is_keel, acts


def play(saver: KeelSaver, sequence: tuple[str, Sequence[int], bool, Sequence[tuple[str, int]]]) -> None:
    shape, sizes, is_keel, acts = sequence
    world = World(saver, shape, sizes, is_keel)
    world.run({"said": []}, {})
    world.check()
    for act, number in acts:
        world.act(act, number)
        world.check()
    assert saver.approvals.verify_audit().ok


@settings(max_examples=int(ASKED) if ASKED else sized(40, 300, 10_000))
@given(sequences())
def test_random_sequences_in_memory(sequence: Any) -> None:
    with MemorySaver() as saver:
        play(saver, sequence)


@settings(max_examples=int(ASKED) if ASKED else sized(10, 50, 500))
@given(sequences())
def test_random_sequences_on_sqlite(sequence: Any) -> None:
    with TemporaryDirectory() as directory, SqliteSaver(Path(directory, "keel.db")) as saver:
        play(saver, sequence)
