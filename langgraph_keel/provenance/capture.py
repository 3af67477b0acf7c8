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

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from threading import Lock
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langgraph.checkpoint.base.id import uuid6

from langgraph_keel.core.provenance import record_of
from langgraph_keel.core.recorder import Recorder, last_seen
from langgraph_keel.core.waiting import Captured, run_of
from langgraph_keel.provenance.facts import answer_of, asked_of, prompt_of

_log = logging.getLogger(__name__)


@dataclass(slots=True, weakref_slot=True)
class _Begun:
    """A call that is under way."""

    recorder: Recorder
    captured: Captured
    clock: float = field(default_factory=time.perf_counter)

    def end(self, answer: Mapping[str, Any]) -> None:
        """Complete the record, and hand it to the saver.

        Raises:
            DriftDetected: The saver was told to raise.
        """
        self.captured.record.update(record_of({"seconds": round(time.perf_counter() - self.clock, 6), **answer}))
        self.recorder.end(self.captured)


@dataclass(slots=True)
class _Place:
    """Where a call belongs.

    Attributes:
        recorder: That of the saver.
        thread_id: The thread.
        run: What tells the run from others (`waiting.run_of`).
        namespace: LangGraph's namespace of the task: nodes, and their tasks, from the outermost on.
        lineage: Per namespace of a checkpoint around the call, the id of the one its step began from, or a younger one.
        more: What else a record holds of it.
        is_guessed: Whether another saver's thread of this name, or another run of it, may have called.
    """

    recorder: Recorder
    thread_id: str
    run: object
    namespace: str
    lineage: Mapping[str, str]
    more: Mapping[str, Any]
    is_guessed: bool = False


def _place_of(metadata: Mapping[str, Any]) -> _Place | None:
    """Return where a call belongs; `None` outside a graph, and in one whose saver does not record."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    values: Mapping[str, Any] = config.get("configurable") or {}
    info = getattr(values.get("__pregel_runtime"), "execution_info", None)
    namespace = metadata.get("langgraph_checkpoint_ns")
    if isinstance(namespace, str) and namespace != getattr(info, "checkpoint_ns", None):
        return _place_told(metadata, namespace)
    # LangGraph may run on a shallow copy of the saver; they share the recorder.
    recorder = getattr(values.get("__pregel_checkpointer"), "recorder", None)
    if not isinstance(recorder, Recorder) or info is None or info.thread_id is None:
        return None
    lineage = values.get("checkpoint_map") or {"": info.checkpoint_id}
    more = {
        "task_id": info.task_id,
        "attempt": info.node_attempt if info.node_attempt > 1 else None,
        "run_id": None if info.run_id is None else str(info.run_id),
    }
    return _Place(recorder, str(info.thread_id), run_of(config), info.checkpoint_ns, lineage, more)


def _place_told(metadata: Mapping[str, Any], namespace: str) -> _Place | None:
    """Return where a call belongs by what LangChain hands on to it.

    Of a sequence that is a node (`prompt | model`), LangGraph runs the first step alone in the context of its task; the
    others find none there, or that of a graph around it. They know their task, not their saver: it is the one on which
    the thread was last seen to run. Nor do they know the checkpoint they began from: an id of this moment is younger
    than that, and older than the one they lead to. The attempt is not told.
    """
    thread_id = str(metadata.get("thread_id"))
    found = last_seen(thread_id)
    if found is None:
        return None
    segments = namespace.split("|")
    now = str(uuid6())
    lineage = {"|".join(segments[:depth]): now for depth in range(len(segments))}
    run_id = metadata.get("run_id")
    more = {"task_id": segments[-1].partition(":")[2], "run_id": None if run_id is None else str(run_id)}
    recorder, run = found
    return _Place(recorder, thread_id, run, namespace, lineage, more, is_guessed=True)


def _begun(run_id: UUID, metadata: Mapping[str, Any]) -> _Begun | None:
    place = _place_of(metadata)
    if place is None or not place.recorder.captures:
        return None
    segments = [segment.partition(":") for segment in place.namespace.split("|")]
    record = {
        "id": str(run_id),
        # A number counts the calls of one subgraph in one node.
        "path": "|".join([name for name, _, _ in segments if not name.isdecimal()]),
        **place.more,
        "graph_version": place.recorder.graph_version,
        "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    tasks = {place.more["task_id"], *[task for _, _, task in segments]} - {""}
    captured = Captured(record, place.thread_id, place.lineage, tasks, place.run, place.is_guessed, is_ended=False)
    return _Begun(place.recorder, captured)


class Capture(BaseCallbackHandler):
    """What LangChain calls at the beginning and the end of every call of a model.

    Errors of its own are logged here, as LangChain does it; `DriftDetected` alone goes through to the node.
    """

    run_inline = True
    raise_error = True
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the calls that are under way."""
        # Held by their records alone: LangChain never says that a call was cancelled.
        self._calls: WeakValueDictionary[UUID, _Begun] = WeakValueDictionary()

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **more: Any
    ) -> None:
        """Note that a chat model is called, if that is in a graph whose saver records."""
        self._begin(run_id, messages[0], more)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **more: Any) -> None:
        """Note that a model of plain text is called."""
        self._begin(run_id, prompts, more)

    def _begin(self, run_id: UUID, messages: Sequence[BaseMessage | str], more: Mapping[str, Any]) -> None:
        try:
            if begun := _begun(run_id, more.get("metadata") or {}):
                begun.captured.record = record_of({**begun.captured.record, **asked_of(more, prompt_of(messages))})
                self._calls[run_id] = begun.captured.call = begun
                begun.recorder.begin(begun.captured)
        except Exception:
            _log.warning("a call of a model is not recorded", exc_info=True)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Hand the record of a call that was answered to the saver.

        Raises:
            DriftDetected: The saver was told to raise.
        """
        self._end(run_id, answer_of, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Hand the record of a call that failed, or of a stream that was given up, to the saver."""
        # Only the class: what an error says may quote the request.
        self._end(run_id, lambda error: {"error": type(error).__name__}, error)

    def _end(self, run_id: UUID, told: Callable[[Any], Mapping[str, Any]], what: Any) -> None:
        if begun := self._calls.pop(run_id, None):
            begun.end(_told(told, what))


def _told(told: Callable[[Any], Mapping[str, Any]], what: Any) -> Mapping[str, Any]:
    try:
        return told(what)
    except Exception:
        _log.warning("what became of a call of a model is not recorded", exc_info=True)
        return {}


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
