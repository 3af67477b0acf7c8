"""Agents that ask a person, and ways to answer them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool

from langgraph_keel import (
    KeelSaver,
    MemorySaver,
)
from langgraph_keel.approvals.ask import arequest_approval, request_approval
from langgraph_keel.approvals.requests import STATUSES, ApprovalRequest, Decision
from support.approvals.children import graph_of
from support.tool_graphs import calls, run, thread

T = thread("t")


Question = dict[str, Any]


@pytest.fixture
def saver() -> Iterator[KeelSaver]:
    with MemorySaver() as saver:
        yield saver


class Asking:
    """A node that asks several questions in turn and records all answers at the end."""

    def __init__(self, *questions: Question) -> None:
        self.questions: Sequence[Question] = questions
        self.got: list[list[Decision]] = []
        self.failing = 0

    def func(self, state: Any) -> Any:
        return self._end([request_approval(**question) for question in self.questions])

    async def afunc(self, state: Any) -> Any:
        return self._end([await arequest_approval(**question) for question in self.questions])

    def _end(self, decisions: list[Decision]) -> Any:
        self.got.append(decisions)
        if self.failing:
            self.failing -= 1
            raise ConnectionError("the bank does not answer")
        return {"said": [decision.kind for decision in decisions]}

    @property
    def node(self) -> RunnableLambda[Any, Any]:
        return RunnableLambda(self.func, self.afunc)

    def graph(self, saver: Any) -> Any:
        return graph_of(saver, ("pay", self.node))


def paying(amount: Any = 100, **more: Any) -> Question:
    return {"action": "pay", "args": {"amount": amount}, **more}


async def go_on(saver: KeelSaver, graph: Any, face: str) -> Any:
    return await run(graph, face, await saver.approvals.aresume("t"), T)


async def one(saver: KeelSaver) -> ApprovalRequest:
    (request,) = await saver.approvals.apending("t")
    return request


async def decide(saver: KeelSaver, kind: str = "approve", **details: Any) -> ApprovalRequest:
    """Decide the one pending request."""
    request = await one(saver)
    decided: ApprovalRequest = await getattr(saver.approvals, f"a{kind}")(request.id, by="bob", **details)
    return decided


def statuses(saver: KeelSaver) -> list[str]:
    return [request.status for request in saver.approvals.pending("t", status=STATUSES)]


def tool_named(name: str, work: Callable[[], str], awork: Callable[[], Any]) -> StructuredTool:
    """Return a tool that asks its question after a random delay."""

    def func(to: str) -> str:
        time.sleep(random.choice([0, 0.002]))
        return work()

    async def afunc(to: str) -> str:
        await asyncio.sleep(random.choice([0, 0.002]))
        return str(await awork())

    return StructuredTool.from_function(func, afunc, name=name, description="Act.")


BOTH = [calls(("transfer", {"to": "eve"}, "a"), ("email", {"to": "ada"}, "b"))]


def by_request(name: str, acted: list[Any]) -> StructuredTool:
    def done(decision: Decision) -> str:
        if decision.approved:
            acted.append((name, decision.args))
        return decision.kind

    async def awork() -> str:
        return done(await arequest_approval(name, {"of": name}))

    return tool_named(name, lambda: done(request_approval(name, {"of": name})), awork)
