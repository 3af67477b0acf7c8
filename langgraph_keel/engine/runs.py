"""The runs of this process: which are under way, and which of them must not act any more.

With LangGraph's default durability a checkpoint is stored while the run goes on, and the run is told at its very end
that one was refused: of two runs on one thread, the loser ran all its nodes. So what it does next is refused instead.
LangChain asks a handler before each node, task, model and tool, and a handler may raise (`raise_error`). While no run
of this process is refused, LangChain is told to ignore this one, which costs a look at an empty set.

A run is known from when it asks for the checkpoint to begin from until LangChain says that it has ended. Programs
choose the ids of runs, and may hand one `RunControl` to several: what names more than one run is refused if all of
them are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from langgraph_keel._langgraph import CONFIG_KEY_RUNTIME, register_configure_hook, var_child_runnable_config
from langgraph_keel.engine.config import run_of
from langgraph_keel.errors import CheckpointConflict


@dataclass(slots=True, eq=False)
class LiveRun:
    """A run of a root graph that is under way.

    Attributes:
        run_id: Its id, as LangChain names it.
        runtime: LangGraph's `Runtime`, which the configs of its checkpoints share.
        control: What it shares with its tasks and subgraphs (`run_of`).
        is_async: Whether it has a loop, which must not be kept waiting.
        began_at: The checkpoint that it began from; `None` if the thread had none.
        refusal: Why nothing of it is stored any more.
    """

    run_id: UUID
    runtime: object
    control: object
    is_async: bool
    began_at: str | None = None
    refusal: CheckpointConflict | None = None


_lock = RLock()  # a run may be ended by the collector of garbage, in the middle of anything
_runs: dict[UUID, tuple[LiveRun, ...]] = {}
_refused: set[LiveRun] = set()


def begin_run(run_id: UUID, config: Mapping[str, Any], is_async: bool) -> LiveRun:
    """Note that a run is under way; `config` is the one that it asks for its checkpoint with."""
    run = LiveRun(run_id, config["configurable"][CONFIG_KEY_RUNTIME], run_of(config), is_async)
    with _lock:
        _runs[run_id] = (*_runs.get(run_id, ()), run)
    return run


def end_run(run_id: UUID, error: BaseException | None = None) -> None:
    """Forget a run that has ended; of several with one id, the one that was refused so."""
    with _lock:
        runs = _runs.get(run_id)
        if not runs:
            return
        rejected = getattr(error, "rejected", None)
        ended = next((run for run in runs if (run.refusal and run.refusal.rejected) == rejected), runs[0])
        _refused.discard(ended)
        if left := tuple(run for run in runs if run is not ended):
            _runs[run_id] = left
        else:
            del _runs[run_id]


def forget_runs() -> None:
    """Forget all runs, in a process that was forked: they are the other one's."""
    global _lock
    _lock = RLock()
    _runs.clear()
    _refused.clear()


def find_runs(control: object) -> Collection[LiveRun]:
    """Return the runs that `run_of` tells so from others: more than one, if a program has given it to them."""
    return [] if control is None else [run for run in _all() if run.control is control]


def _all() -> list[LiveRun]:
    return [run for runs in list(_runs.values()) for run in runs]


def find_run(config: Mapping[str, Any]) -> LiveRun | None:
    """Return the run whose root graph puts with this config; `None` if that is not known."""
    runtime = (config.get("configurable") or {}).get(CONFIG_KEY_RUNTIME)
    return next((run for run in _all() if run.runtime is runtime), None)


def refuse_run(run: LiveRun, error: CheckpointConflict) -> None:
    """Let a run not act any more, for a checkpoint of its root graph was refused."""
    run.refusal = error
    _refused.add(run)


def check_run(config: Mapping[str, Any]) -> None:
    """See that the run which a config is of was not refused.

    Raises:
        CheckpointConflict: It was.
    """
    if _refused:
        _check(find_runs(run_of(config)))


def _check(runs: Collection[LiveRun]) -> None:
    refusals = [run.refusal for run in runs if run.refusal]
    if refusals and len(refusals) == len(runs):
        raise copy(refusals[0])  # each has a traceback of its own


class _RefusalHandler(BaseCallbackHandler):
    """What LangChain asks before anything of a run begins, as long as some run is refused."""

    run_inline = raise_error = True
    ignore_retriever = ignore_retry = ignore_custom_event = True

    @property
    def ignore_chain(self) -> bool:
        """Whether no run is refused."""
        return not _refused

    ignore_llm = ignore_chat_model = ignore_agent = ignore_chain

    def on_chain_start(self, *given: Any, parent_run_id: UUID | None = None, **more: Any) -> None:
        """See that whatever begins is of no run that was refused: a node by its graph, all else by its context.

        Raises:
            CheckpointConflict: It is.
        """
        _check(_runs.get(parent_run_id, ()) if parent_run_id else ())
        check_run(var_child_runnable_config.get() or {})

    on_chat_model_start = on_llm_start = on_tool_start = on_chain_start


_HANDLER = _RefusalHandler()
_handler: ContextVar[Any] = ContextVar("keel_refusals", default=_HANDLER)


@cache
def watch() -> None:
    """Have LangChain ask before anything begins. Once is enough, and twice does no harm: it knows the handler."""
    register_configure_hook(_handler, inheritable=True)
