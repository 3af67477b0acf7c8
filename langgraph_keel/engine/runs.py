"""The active runs of this process, and the refused runs, which must stop acting.

LangGraph reports a refused checkpoint only at the end of a run. So a LangChain callback handler raises the error before
each node, task, model and tool (`raise_error`). Programs may use one id or `RunControl` for several runs; calls are
refused only if all these runs are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from functools import cache
from threading import RLock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_keel._langgraph import (
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_RUNTIME,
    METADATA_NS,
    METADATA_STEP,
    NS_END,
    is_question,
    register_configure_hook,
    var_child_runnable_config,
)
from langgraph_keel.engine.config import run_of
from langgraph_keel.engine.store import Store
from langgraph_keel.errors import CheckpointConflict, ThreadTaken


@dataclass(slots=True, eq=False)
class Drain:
    """A request to the runs of a saver and its tenants to end after their steps."""

    reason: str = ""  # if set, the saver is draining, and no new run may begin


@dataclass(slots=True, eq=False)
class LiveRun:
    """An active run of a root graph."""

    run_id: UUID
    thread_id: str
    store: Store[Any, Any]
    runtime: object  # LangGraph's `Runtime`, which the configs of its checkpoints share
    control: Any  # shared with its tasks and subgraphs (`run_of`)
    is_async: bool
    is_late: bool  # whether it stores nothing before it ends (`durability="exit"`)
    answers: Mapping[str, Any] = field(default_factory=dict)  # by the ids of interrupts
    began_at: str | None = None  # the checkpoint that it began from; `None` if the thread had none
    refusal: CheckpointConflict | ThreadTaken | None = None  # if set, it stores nothing more
    step: Any = None
    # The tasks of the step that have started and not stored anything since, by LangChain's ids. (A stream that is
    # abandoned at a question ends late, or never.)
    tasks: dict[UUID, str] = field(default_factory=dict)
    has_asked: bool = False
    asked_at: str | None = None  # the checkpoint of the step, once a question is stored
    goes_on: bool = False  # it resumes the thread without new input
    # With `recoverable=True`: its latest stored checkpoint with steps left, or all candidates if the latest is unknown;
    # `None` while it has stored none.
    left: tuple[str, ...] | None = None
    failed_at: str | None = None  # the checkpoint of the last step with a failed task
    on_end: Callable[[BaseException | None, bool], None] | None = None  # its error, and whether requests must wait
    drain: Drain | None = None  # of its saver

    def begin_task(self, step: Any, call_id: UUID, task_id: str) -> None:
        """Note that a task has started."""
        with _lock:
            if step != self.step:
                self.step, self.tasks, self.has_asked, self.asked_at = step, {}, False, None
            self.tasks[call_id] = task_id

    def end_task(self, task_id: str, asked_at: str | None) -> None:
        """Note that a task's writes are stored, at `asked_at` if they contain a question."""
        with _lock:
            self.tasks = {call: task for call, task in self.tasks.items() if task != task_id}
            self.asked_at = asked_at or self.asked_at

    @property
    def is_at_question(self) -> bool:
        """Whether it only waits for an answer, with all writes of its tasks stored."""
        return self.asked_at is not None and not self.tasks


_lock = RLock()  # the garbage collector may end a run at any point
_runs: dict[UUID, tuple[LiveRun, ...]] = {}
_by_runtime: dict[int, LiveRun] = {}  # by the id of its `Runtime`, which it keeps alive
_refused: set[LiveRun] = set()


def begin_run(
    run_id: UUID, thread_id: str, store: Store[Any, Any], config: Mapping[str, Any], is_async: bool
) -> LiveRun:
    """Register a run; `config` is the config with which it reads its first checkpoint."""
    values = config["configurable"]
    is_late = values.get(CONFIG_KEY_DURABILITY) == "exit"
    run = LiveRun(run_id, thread_id, store, values[CONFIG_KEY_RUNTIME], run_of(config), is_async, is_late)
    with _lock:
        _runs[run_id] = (*_runs.get(run_id, ()), run)
        _by_runtime[id(run.runtime)] = run
    return run


def end_run(ended: LiveRun) -> None:
    """Forget a run that has ended."""
    with _lock:
        _refused.discard(ended)
        if _by_runtime.get(id(ended.runtime)) is ended:
            del _by_runtime[id(ended.runtime)]
        if left := tuple(run for run in _runs.get(ended.run_id, ()) if run is not ended):
            _runs[ended.run_id] = left
        else:
            _runs.pop(ended.run_id, None)


def find_asking(store: Store[Any, Any], thread_id: str) -> Collection[LiveRun]:
    """Return the runs with a question in a thread, unless they store it at their end."""
    runs = find_runs_on(store, thread_id)
    return [run for run in runs if run.has_asked and not (run.is_late or run.refusal)]


def find_runs_on(store: Store[Any, Any], thread_id: str) -> Collection[LiveRun]:
    """Return the active runs on a thread."""
    return [run for run in _all() if run.store is store and run.thread_id == thread_id]


def find_runs_of(store: Store[Any, Any]) -> Collection[LiveRun]:
    """Return the active runs of a saver: those on its store."""
    return [run for run in _all() if run.store is store]


def ask_to_end(drain: Drain) -> Collection[LiveRun]:
    """Ask a draining saver's runs to end after their steps; return the active ones.

    Takes no lock.
    """
    found = [run for run in _all() if run.drain is drain and not run.is_at_question]
    for run in found:
        run.control.request_drain(drain.reason)
    return found


def find_acting(store: Store[Any, Any], thread_id: str) -> Collection[LiveRun]:
    """Return a thread's runs that may still act: not refused, and not only waiting."""
    return [run for run in find_runs_on(store, thread_id) if not (run.refusal or run.is_at_question)]


def forget_runs() -> None:
    """Forget all runs in a forked process: they belong to the parent."""
    global _lock
    _lock = RLock()
    _runs.clear()
    _by_runtime.clear()
    _refused.clear()


def find_runs(control: object) -> Collection[LiveRun]:
    """Return the runs with this `RunControl`. A program may use one for several runs."""
    return [] if control is None else [run for run in _all() if run.control is control]


def _all() -> list[LiveRun]:
    return [run for runs in list(_runs.values()) for run in runs]


def find_run(config: Mapping[str, Any]) -> LiveRun | None:
    """Return the run whose root graph passes this config to `put`; `None` if unknown."""
    return _by_runtime.get(id((config.get("configurable") or {}).get(CONFIG_KEY_RUNTIME)))


def refuse_run(run: LiveRun, error: CheckpointConflict | ThreadTaken) -> None:
    """Stop a run from acting, as its checkpoint was refused or another run took over."""
    with _lock:
        run.refusal = error
        if run in _runs.get(run.run_id, ()):  # else it has already ended
            _refused.add(run)


def check_run(config: Mapping[str, Any]) -> None:
    """Raise the refusal of the run behind a config, if it was refused."""
    if _refused:
        _check(find_runs(run_of(config)))


def _check(runs: Collection[LiveRun]) -> None:
    refusals = [run.refusal for run in runs if run.refusal]
    if refusals and len(refusals) == len(runs):
        raise copy(refusals[0])  # so that each error has its own traceback


def _check_start(parent: UUID | None) -> None:
    """Raise the refusal of a call's run, found by its parent run or by context."""
    _check(_runs_of(parent))
    check_run(var_child_runnable_config.get() or {})


def _runs_of(run_id: UUID | None) -> Collection[LiveRun]:
    return _runs.get(run_id, ()) if run_id else ()


class _TaskHandler(BaseCallbackHandler):
    """Called by LangChain before tasks; if a run is refused, before models and tools."""

    run_inline = raise_error = True
    ignore_retriever = ignore_retry = ignore_custom_event = True

    @property
    def ignore_llm(self) -> bool:
        return not _refused

    ignore_chat_model = ignore_agent = ignore_llm

    def on_chain_start(
        self,
        *given: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        if _refused:
            _check_start(parent_run_id)
        about = metadata or {}
        for run in _runs_of(parent_run_id):
            if run.thread_id == str(about.get("thread_id")):
                run.begin_task(about.get(METADATA_STEP), run_id, str(about.get(METADATA_NS)).rpartition(NS_END)[2])

    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, parent_run_id: UUID | None = None, **more: Any
    ) -> None:
        if is_question(error):
            for run in _runs_of(parent_run_id):
                run.has_asked |= run_id in run.tasks

    def on_tool_start(self, *given: Any, parent_run_id: UUID | None = None, **more: Any) -> None:
        _check_start(parent_run_id)

    on_chat_model_start = on_llm_start = on_tool_start


_HANDLER = _TaskHandler()
_handler: ContextVar[Any] = ContextVar("keel_tasks", default=_HANDLER)


@cache
def watch() -> None:
    """Register the handler with LangChain."""
    register_configure_hook(_handler, inheritable=True)
