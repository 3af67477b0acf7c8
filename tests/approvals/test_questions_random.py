"""Random answers and decisions, compared with a model of questions and effects.

A step has one to three tasks (parallel nodes, `Send`, or nodes of a subgraph), and each asks one to three questions.
The open requests are those that tasks wait for, a task receives the decision that was made, and the audit trail names
the author of each answer.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from support.approvals.questions import T
from support.tiers import sized
from typing_extensions import TypedDict

from langgraph_keel import (
    AlreadyDecided,
    KeelSaver,
    MemorySaver,
    NotFound,
    SqliteSaver,
    arequest_approval,
    request_approval,
)
from langgraph_keel.approvals.requests import BY_EXPIRY, STATUSES, Decision
from langgraph_keel.engine.engine import with_engine

SHAPES = ("nodes", "send", "subgraph")
ACTS = (
    *("answer", "decide", "resume", "plain", "by id", "late", "retry"),
    *("fail", "cancel", "expire", "revise", "rewind", "fork"),
)
HOUR = timedelta(hours=1)
ASKING: Any = {"allowed": ["answer"], "expires_in": HOUR}
ASKED = os.environ.get("KEEL_EXAMPLES")


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    task: str


class Failed(Exception):
    """A task that fails."""


@dataclass
class Task:
    """The model of a task: its answers, the number of questions, and its end."""

    size: int
    answers: list[tuple[Any, str]] = field(default_factory=list)
    asked: int = 0
    is_done: bool = False

    @property
    def waits(self) -> bool:
        return self.asked == len(self.answers) + 1 and not self.is_done


class World:
    """A thread and its model."""

    def __init__(self, saver: KeelSaver, shape: str, sizes: Sequence[int], is_keel: bool, is_async: bool) -> None:
        self.passed = timedelta()
        session = replace(saver.engine.session, clock=lambda: datetime.now(UTC) + self.passed)
        self.saver = with_engine(saver, replace(saver.engine, session=session))
        self.shape, self.is_keel, self.is_async = shape, is_keel, is_async
        self.tasks = {f"n{number}": Task(size) for number, size in enumerate(sizes)}
        self.fails_at: int | None = None
        self.is_cancelled = self.has_failed = self.is_rewound = False
        self.reached: asyncio.Event | None = None
        self.got: dict[str, list[Any]] = {}
        self.decided: dict[str, tuple[Any, str]] = {}
        self.taken: list[tuple[str, Any, str]] = []
        self.ids: dict[str, str] = {}
        self.late: Command[Any] | None = None
        self.unspent: str | None = None
        self.values, self.forks = count(), count()
        self.graph = self._graph()

    def work(self, name: str) -> Mapping[str, Any]:
        answers: list[Any] = []
        for number in range(self.tasks[name].size):
            asks = f"{name} {number}"
            answers.append(request_approval(asks, **ASKING).value if self.is_keel else interrupt(asks))
            if name == "n0" and len(answers) == self.fails_at:
                raise Failed
        self.got[name] = answers
        return {"said": [name]}

    async def awork(self, name: str) -> Mapping[str, Any]:
        answers: list[Any] = []
        for number in range(self.tasks[name].size):
            asks = f"{name} {number}"
            answers.append((await arequest_approval(asks, **ASKING)).value if self.is_keel else interrupt(asks))
            if name == "n0" and len(answers) == self.fails_at:
                if self.reached:
                    self.reached.set()
                    await asyncio.Event().wait()
                raise Failed
        self.got[name] = answers
        return {"said": [name]}

    def _node(self, name: str | None = None) -> Any:
        return RunnableLambda(
            lambda state: self.work(name or state["task"]), afunc=lambda state: self.awork(name or state["task"])
        )

    def _graph(self) -> Any:
        builder = StateGraph(State)
        if self.shape == "send":
            builder.add_node("work", self._node())
            builder.add_conditional_edges(
                START, lambda _: [Send("work", {"task": name}) for name in self.tasks], ["work"]
            )
        else:
            for name in self.tasks:
                builder.add_node(name, self._node(name)).add_edge(START, name)
        if self.shape == "subgraph":
            builder = StateGraph(State).add_node("inside", builder.compile()).add_edge(START, "inside")
        return builder.compile(checkpointer=self.saver)

    # -- the model -------------------------------------------------------------------------------------------------

    @property
    def open(self) -> dict[str, Task]:
        """Return the open questions, by their texts."""
        return {f"{name} {len(task.answers)}": task for name, task in self.tasks.items() if task.waits}

    @property
    def is_over(self) -> bool:
        return all(task.is_done for task in self.tasks.values())

    def attempt(self, given: Mapping[str, tuple[Any, str]]) -> None:
        """Run the unfinished tasks, each with at most one more answer."""
        for name, task in self.tasks.items():
            if not task.is_done:
                self._attempt(name, task, given)

    def _attempt(self, name: str, task: Task, given: Mapping[str, tuple[Any, str]]) -> None:
        before, place = [*task.answers], len(task.answers)
        if task.waits and f"{name} {place}" in given:
            task.answers.append(given[f"{name} {place}"])
        elif again := [nth for nth in range(place) if f"{name} {nth}" in given and not self.is_keel]:
            # LangGraph uses a repeated answer for its own question, and asks the later questions again.
            task.answers[again[0] :] = [given[f"{name} {again[0]}"]]
        if name == "n0" and self.fails_at is not None and len(task.answers) >= self.fails_at:
            self.has_failed = True
            # A cancelled task stores nothing; a failed task stores the answers that it has used. `request_approval`
            # stores its answers in its requests.
            if self.is_keel:
                task.answers = task.answers if len(task.answers) == self.fails_at else before
            else:
                task.answers = before if self.is_cancelled else task.answers[: self.fails_at]
        elif len(task.answers) == task.size:
            task.is_done = True
        else:
            task.asked = len(task.answers) + 1
        for nth in range(task.size):
            question = f"{name} {nth}"
            if nth < len(task.answers):
                if nth >= place:
                    self.taken.append((question, *task.answers[nth]))
                self.decided.pop(question, None)
            elif nth >= task.asked:
                self.decided.pop(question, None)
            elif nth == task.asked - 1 and nth < place and before[nth][1]:
                self.decided[question] = before[nth]  # the decision is delivered again when the question is asked again

    def run(self, command: Any, given: Mapping[str, tuple[Any, str]]) -> None:
        self.has_failed = self.is_rewound = False
        self.attempt(given)
        try:
            self._invoke(command)
            has_failed = False
        except (Failed, asyncio.CancelledError):
            has_failed = True
        assert has_failed == self.has_failed
        if self.is_cancelled and self.has_failed and isinstance(command, Command) and isinstance(command.resume, str):
            self.unspent = command.resume
        self.fails_at, self.is_cancelled = None, False
        self.ids |= {self._question_in(each): each.id for each in self._interrupts()}

    def _invoke(self, command: Any) -> None:
        if self.is_async or self.is_cancelled:
            asyncio.run(self._ainvoke(command))
        else:
            self.graph.invoke(command, T)

    async def _ainvoke(self, command: Any) -> None:
        self.reached = asyncio.Event() if self.is_cancelled else None
        run = asyncio.ensure_future(self.graph.ainvoke(command, T))
        if self.reached:
            reached = asyncio.ensure_future(self.reached.wait())
            await asyncio.wait((run, reached), return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            run.cancel()
        await run

    # -- what people do --------------------------------------------------------------------------------------------

    def act(self, act: str, number: int) -> None:
        waiting = sorted(set(self.open) - set(self.decided))
        question = waiting[number % len(waiting)] if waiting else None
        value = f"v{next(self.values)}"
        if act in ("answer", "decide") and question:
            self._decide(question, Decision("answer", ("ann", "bob")[number % 2], value=value), act)
        elif act == "resume" and self.deliverable:
            self.late = self.saver.approvals.resume("t")
            self.run(self.late, self._answer_with(self.late))
        elif act == "plain" and len(self.open) == 1 and not self.is_keel and len(self._interrupts()) == 1:
            (one,) = self.open
            self.run(Command(resume=value), {one: (value, "")})
        elif act == "by id" and self.open and not self.is_keel:
            one = sorted(self.open)[number % len(self.open)]
            self.run(Command(resume={self.ids[one]: value}), {one: (value, "")})
        elif act == "late" and self.late and not self.is_over:
            self._come_late(self.late)
        elif act == "retry" and not self.is_over and (self.is_rewound or self.has_failed):
            # A plain answer to the first open question is valid until a task has used one; a decision, until its own
            # task uses it.
            is_spent = self.unspent is None or any(task.answers for task in self.tasks.values())
            given = self.deliverable if is_spent and self.is_keel else {}
            self.run(None, given if is_spent else dict.fromkeys(self.open, (self.unspent, "")))
        elif act in ("fail", "cancel") and len(self.tasks) == 1 and not self.is_over:
            self.fails_at, self.is_cancelled = 1 + number % self.tasks["n0"].size, act == "cancel"
        elif act == "expire":
            self._expire()
        elif act == "revise":
            self._revise(number)
        elif act == "rewind" and not self.is_over:
            self.saver.rewind(self._head())
            self.tasks = {name: Task(task.size) for name, task in self.tasks.items()}
            self.decided, self.ids, self.unspent, self.is_rewound = {}, {}, None, True
        elif act == "fork":
            self._fork(f"f{next(self.forks)}")

    def _decide(self, question: str, decision: Decision, act: str) -> None:
        (request,) = [each for each in self.saver.approvals.pending("t") if self.text(each) == question]
        self.decided[question] = decision.value, decision.by
        if act == "answer":
            self.saver.approvals.answer(request.id, value=decision.value, by=decision.by)
            with pytest.raises(AlreadyDecided, match=f"{decision.by} answered this"):
                self.saver.approvals.answer(request.id, value="other", by="eve")
            return
        command = self.saver.approvals.decide(request.id, decision)
        assert (command is None) == (not self.deliverable)
        if command is not None:
            self.late = command
            self.run(command, self._answer_with(command))
            self.saver.approvals.decide(request.id, decision)  # a second click

    def _expire(self) -> None:
        self.passed += 2 * HOUR
        if not self.is_keel:
            return
        requests = self.saver.approvals.pending("t", status="expired")
        expired = sorted(set(self.open) - set(self.decided))
        assert set(expired) <= set(map(self.text, requests))
        for request in requests:
            with pytest.raises(AlreadyDecided, match="expired"):
                self.saver.approvals.answer(request.id, value="late", by="eve")
        self.decided |= dict.fromkeys(expired, (None, BY_EXPIRY))

    def _fork(self, thread_id: str) -> None:
        """In a fork, all questions are asked again, without the original's decisions."""
        config: Any = {"configurable": {"thread_id": thread_id}}
        self.saver.fork(self._head(), thread_id)
        assert self.saver.approvals.pending(thread_id, status=STATUSES) == []
        if self.is_over:
            return
        assert self.saver.status(thread_id).state == "forked"
        self.graph.invoke(None, config)
        pending = self.saver.approvals.pending(thread_id, status=STATUSES)
        assert sorted((self.text(each), each.status) for each in pending) == [
            (f"{name} 0", "waiting") for name in self.tasks
        ]
        assert self.saver.status(thread_id).state == "waits"
        with pytest.raises(NotFound):
            self.saver.approvals.resume(thread_id)

    def _answer_with(self, command: Command[Any]) -> Mapping[str, tuple[Any, str]]:
        """Return the answers of a command by question; the command has them by id."""
        if self.is_keel:  # the command only wakes the tasks
            return self.deliverable
        assert isinstance(command.resume, dict)
        known = {f"{name} {nth}": said for name, task in self.tasks.items() for nth, said in enumerate(task.answers)}
        known |= self.decided
        given: dict[str, tuple[Any, str]] = {}
        for name in [name for name, id_ in self.ids.items() if id_ in command.resume]:
            value, (said, by) = command.resume[self.ids[name]], known.get(name, (None, ""))
            given[name] = value, by if value == said else ""
        return given

    def _come_late(self, late: Command[Any]) -> None:
        """Send a command again that may have been sent to an earlier attempt of the step."""
        given = self._answer_with(late)
        if all(by for _, by in given.values()):
            self.run(late, given)

    @property
    def deliverable(self) -> Mapping[str, tuple[Any, str]]:
        """Return the decisions that can be delivered."""
        return {name: self.decided[name] for name in self.open if name in self.decided}

    @property
    def redelivered(self) -> Sequence[str]:
        """Return the questions whose decisions a run receives.

        Those used by unfinished tasks are included.
        """
        names: list[str] = []
        for name, task in self.tasks.items():
            asked = [f"{name} {number}" for number in range(task.asked)]
            if task.is_done or (task.waits and asked[-1] not in self.decided):
                continue
            persons = [place for place, (_, by) in enumerate(task.answers) if by]
            names += [asked[place] for place in persons if self.is_keel or place == task.asked - 1]
            names += [name for name in asked if name in self.decided]
        return names

    def _revise(self, number: int) -> None:
        taken = [name for name in self.deliverable if self.decided[name][1] != BY_EXPIRY]
        if not taken:
            return
        question = sorted(taken)[number % len(taken)]
        (request,) = [
            each for each in self.saver.approvals.pending("t", status="answered") if self.text(each) == question
        ]
        if self.saver.approvals.revise(request.id, by="eve", reason="a mistake").status == "waiting":
            del self.decided[question]
        else:  # its deadline had already passed
            assert self.is_keel
            assert self.passed
            self.decided[question] = None, BY_EXPIRY

    def _interrupts(self) -> Sequence[Any]:
        found: Sequence[Any] = self.graph.get_state(T).interrupts
        return found

    def _question_in(self, asked: Any) -> str:
        return str(asked.value["action"] if self.is_keel else asked.value)

    def _head(self) -> Any:
        head = self.saver.get_tuple(T)
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
        status = self.saver.status("t")
        asked = [self.text(each) for each in status.requests if each.status in ("waiting", "claimed")]
        assert sorted(asked) == expected
        redelivered = self.redelivered
        if not redelivered:
            with pytest.raises(NotFound):
                self.saver.approvals.resume("t")
        else:
            command = self.saver.approvals.resume("t")
            assert isinstance(command.resume, dict)
            assert set(command.resume) == {self.ids[name] for name in redelivered}
        if not self.has_failed and not self.is_rewound:
            state = "idle" if self.is_over else "decided" if redelivered else "waits"
            assert status.state == state
        for name, task in self.tasks.items():
            if task.is_done:
                assert self.got[name] == [value for value, _ in task.answers]
        self._check_trail()

    def _check_trail(self) -> None:
        """Each answer of a person that a task has received is consumed, and no other."""
        found = self.saver.approvals.pending("t", status=["consumed"], limit=None)
        consumed = {(self.text(each), each.decision.value) for each in found if each.decision and each.decision.by}
        assert consumed <= {(question, value) for question, value, by in self.taken if by}
        if self.is_over:
            now = [
                (f"{name} {place}", value)
                for name, task in self.tasks.items()
                for place, (value, by) in enumerate(task.answers)
                if by
            ]
            assert set(now) <= consumed


@st.composite
def sequences(draw: st.DrawFn) -> tuple[str, Sequence[int], bool, bool, Sequence[tuple[str, int]]]:
    shape, is_keel, is_async = draw(st.sampled_from(SHAPES)), draw(st.booleans()), draw(st.booleans())
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    acts = draw(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), min_size=1, max_size=14))
    return shape, sizes, is_keel, is_async, acts


def play(saver: KeelSaver, sequence: tuple[str, Sequence[int], bool, bool, Sequence[tuple[str, int]]]) -> None:
    shape, sizes, is_keel, is_async, acts = sequence
    world = World(saver, shape, sizes, is_keel, is_async)
    world.run({"said": []}, {})
    world.check()
    for act, number in acts:
        world.act(act, number)
        world.check()
    assert saver.approvals.verify_audit().ok


# A repeated resume makes the next question be asked again, under the id of the question that a program has answered.
ASKED_AGAIN: Any = "nodes", [3], False, False, [("decide", 0), ("plain", 0), ("late", 0), ("answer", 0)]
# A decision that a failed attempt of the task did not reach is used by the next attempt.
DECIDED_BEFORE: Any = "nodes", [3], True, False, [("decide", 0), ("fail", 0), ("decide", 0), ("retry", 0)]
# With each repeated resume, LangGraph alternates between two ids of the question.
NAMED_IN_TURN: Any = (
    "nodes",
    [3],
    True,
    False,
    [("decide", 0), ("decide", 0), ("late", 0), ("late", 0), ("answer", 0)],
)
# LangGraph also uses the answer to the first question of a subgraph for the second one.
ANSWERED_INSIDE: Any = "subgraph", [3], False, False, [("plain", 0), ("fail", 0), ("decide", 0), ("retry", 0)]


@example(ASKED_AGAIN)
@example(DECIDED_BEFORE)
@example(NAMED_IN_TURN)
@example(ANSWERED_INSIDE)
@settings(max_examples=int(ASKED) if ASKED else sized(20, 60, 10_000))
@given(sequences())
def test_random_sequences_match_the_model_in_memory(sequence: Any) -> None:
    with MemorySaver() as saver:
        play(saver, sequence)


@pytest.mark.slow
@example(ASKED_AGAIN)
@example(DECIDED_BEFORE)
@settings(max_examples=int(ASKED) if ASKED else sized(10, 20, 500))
@given(sequences())
def test_random_sequences_match_the_model_on_sqlite(sequence: Any) -> None:
    with TemporaryDirectory() as directory, SqliteSaver(Path(directory, "keel.db")) as saver:
        play(saver, sequence)
