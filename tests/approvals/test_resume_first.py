"""A question may be answered before the run that asked it has ended.

No run resumes until then, on every backend.
"""

from __future__ import annotations

import operator
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from support.approvals.resuming import runs_of

from langgraph_keel import KeelSaver, ThreadTaken

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def test_a_task_parallel_to_a_question_runs_once(saver: KeelSaver) -> None:
    goes_on = Event()
    ran: list[str] = []

    def slow(_: State) -> Any:
        ran.append("slow")
        assert goes_on.wait(60)
        return {"said": ["slow"]}

    def ask(_: State) -> Any:
        return {"said": [interrupt("may I?")]}

    builder: Any = StateGraph(State)
    builder.add_node("ask", ask).add_node("slow", slow)
    graph = builder.add_edge(START, "ask").add_edge(START, "slow").compile(checkpointer=saver)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(graph.invoke, {"said": []}, CONFIG)
        while not (found := saver.approvals.pending("t")):
            time.sleep(0.01)
        saver.approvals.answer(found[0].id, value="yes", by="bob")
        resume = saver.approvals.resume("t")
        runs_of(saver).patience = 0.1  # it does more than ask, and continues for longer
        try:
            with pytest.raises(ThreadTaken):
                graph.invoke(resume, CONFIG)
        finally:
            goes_on.set()
        assert "__interrupt__" in first.result()
    assert sorted(graph.invoke(resume, CONFIG)["said"]) == ["slow", "yes"]
    assert ran == ["slow"]
