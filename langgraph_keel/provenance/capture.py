"""Captures every call of a model in a graph, with no code of the user's.

LangChain calls what `register_configure_hook` names at every call of a model: in nodes, tools, subgraphs, tasks and
threads. It must be the context variable's default, which a raw thread sees too. The handler runs inline (a hop to
another thread would cost 0.3 ms an `ainvoke`), asks the run's own context which saver, checkpoint and task the call
belongs to, and hands a record to that saver. LangChain logs what a handler raises; it never breaks a run.

Not recorded is a call in a thread that a node starts without its context (`threading.Thread(target=model.invoke)`, and
not `copy_context().run`): nothing there says where it belongs. Its answer's id would (`lc_run--<id>`), if the node
returned the answer; but then each call outside of graphs would have to be kept, in case one does.

Each fact about LangChain and LangGraph here was measured: study of the extension points, section A.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from threading import Lock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook

from langgraph_keel.core.provenance import record_of
from langgraph_keel.core.recorder import Captured, Recorder
from langgraph_keel.provenance.facts import answer_of, asked_of, prompt_of

MOST_IN_FLIGHT = 10_000
"""Most calls that are waited for; a stream that is given up ends in an error, so none is left over for long."""


@dataclass(slots=True)
class _Place:
    """Where a call belongs."""

    recorder: Recorder
    thread_id: str
    checkpoint_ns: str
    lineage: Mapping[str, str]
    task_id: str
    attempt: int
    run_id: str | None


def _place() -> _Place | None:
    """Return where the running code belongs; `None` outside a graph, and in one whose saver does not record."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    values: Mapping[str, Any] = config.get("configurable") or {}
    # LangGraph may run on a shallow copy of the saver; they share the recorder.
    recorder = getattr(values.get("__pregel_checkpointer"), "recorder", None)
    info = getattr(values.get("__pregel_runtime"), "execution_info", None)
    if not isinstance(recorder, Recorder) or info is None or info.thread_id is None:
        return None
    lineage = values.get("checkpoint_map") or {"": info.checkpoint_id}
    return _Place(
        recorder,
        str(info.thread_id),
        info.checkpoint_ns,
        lineage,
        info.task_id,
        info.node_attempt,
        None if info.run_id is None else str(info.run_id),
    )


@dataclass(slots=True)
class _Begun:
    """A call that is under way."""

    place: _Place
    asked: Mapping[str, Any]
    clock: float


class Capture(BaseCallbackHandler):
    """What LangChain calls at the beginning and the end of every call of a model."""

    run_inline = True
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the calls that are under way."""
        self._begun: dict[UUID, _Begun] = {}

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **more: Any
    ) -> None:
        """Note that a chat model is called, if that is in a graph whose saver records."""
        if place := _place():
            self._begin(run_id, place, asked_of(more, prompt_of(messages[0])))

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **more: Any) -> None:
        """Note that a model of plain text is called."""
        if place := _place():
            self._begin(run_id, place, asked_of(more, prompt_of(prompts)))

    def _begin(self, run_id: UUID, place: _Place, asked: dict[str, Any]) -> None:
        asked["started_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._begun[run_id] = _Begun(place, asked, time.perf_counter())
        if len(self._begun) > MOST_IN_FLIGHT:
            self._begun.pop(next(iter(self._begun)), None)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Hand the record of a call that was answered to the saver."""
        if begun := self._begun.pop(run_id, None):
            _record(run_id, begun, answer_of(response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Hand the record of a call that failed, or of a stream that was given up, to the saver."""
        # Only the class: what an error says may quote the request.
        if begun := self._begun.pop(run_id, None):
            _record(run_id, begun, {"error": type(error).__name__})


def _record(run_id: UUID, begun: _Begun, answer: Mapping[str, Any]) -> None:
    place, segments = begun.place, begun.place.checkpoint_ns.split("|")
    record = record_of(
        {
            "id": str(run_id),
            "path": "|".join([segment.partition(":")[0] for segment in segments]),
            "task_id": place.task_id,
            "attempt": place.attempt if place.attempt > 1 else None,
            "run_id": place.run_id,
            "seconds": round(time.perf_counter() - begun.clock, 6),
            "graph_version": place.recorder.graph_version,
            **begun.asked,
            **answer,
        }
    )
    tasks = {place.task_id, *[segment.partition(":")[2] for segment in segments]} - {""}
    place.recorder.add(place.thread_id, Captured(record, place.lineage, tasks))


_CAPTURE = Capture()
if hasattr(os, "register_at_fork"):
    # What other threads of the parent have called, they wait for themselves.
    os.register_at_fork(after_in_child=_CAPTURE.forget)
_handler: ContextVar[Any] = ContextVar("keel_capture", default=_CAPTURE)
_registering = Lock()
_registered: list[ContextVar[Any]] = []


def watch() -> None:
    """Have LangChain report every call of a model from now on; it knows no way back. Another call changes nothing."""
    with _registering:
        if not _registered:
            register_configure_hook(_handler, inheritable=True)
            _registered.append(_handler)


@cache
def package_versions() -> Mapping[str, str]:
    """Return the versions of the packages that every graph runs on."""
    return {name: version(name) for name in ("langgraph", "langchain-core")}
