"""Private and undocumented names of LangGraph and LangChain that Keel uses. No other module may use them.

Verified with langgraph 1.2.22, langgraph-checkpoint 4.3.2 and langchain-core 1.7.2. Names are LangGraph's own if it has
any. Most come from `langgraph._internal._constants`, which is not imported, because stored values must not change with
it. `tests/test_layers.py` compares them with the installed version.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from typing import Any, Protocol, TypeVar, cast

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED, TASKS
from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot
from xxhash import xxh3_128_hexdigest

# Names that are imported here for other modules.
__all__ = ["ERROR", "INTERRUPT", "RESUME", "SCHEDULED", "TASKS", "DeltaSnapshot", "var_child_runnable_config"]

S = TypeVar("S")

# -- channels with a meaning, in pending writes and `versions_seen` --------------------------------------------------
# From langgraph.checkpoint.serde.types, where LangGraph's own savers import them; `langgraph.constants` treats them as
# private. ERROR: the error of a task. INTERRUPT: its question. RESUME: the answers passed to it. SCHEDULED: never
# written by the versions above, but present in `WRITES_IDX_MAP`. TASKS: the `Send`s of a step. Keel uses them to find
# waiting tasks, remaining tasks, and writes that are not results.

ERROR_SOURCE_NODE = "__error_source_node__"
"""langgraph._internal._constants: next to ERROR, the node that failed. Keel: not a result of a task."""
INPUT = "__input__"
"""langgraph._internal._constants: in `versions_seen`, the input. Keel: not a node that has run."""
NO_WRITES = "__no_writes__"
"""langgraph._internal._constants: written by a task without writes. Keel: not shown."""
NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""langgraph._internal._constants: the task id of a caller's writes (a `Command`). LangGraph treats them as input. Keel:
finds answers there that no task has used."""
OVERWRITE = "__overwrite__"
"""langgraph._internal._constants: the key or type of an `Overwrite` as plain data. Keel: the replaced messages are
archived."""

# -- channels that start nodes ---------------------------------------------------------------------------------------

BRANCH = "branch:"
"""langgraph.graph.state: prefix of the channels of edges, in old versions as well. Keel: not shown."""
BRANCH_TO = "branch:to:"
"""langgraph.graph.state, `_CHANNEL_BRANCH_TO`: prefix of the name of the node that the channel starts. Keel: finds
the next nodes with it, and whether a run has ended."""
JOIN = "join:"
"""langgraph.graph.state: "join:a+b:c" starts c when it holds the names a and b. Keel: as BRANCH_TO."""

# -- keys of `config["configurable"]`, all in langgraph._internal._constants ------------------------------------------

PREGEL = "__pregel_"
"""Prefix of LangGraph's keys and channels. Keel: recognizes a run's config; such channels are not shown."""
CONFIG_KEY_CHECKPOINTER = "__pregel_checkpointer"
"""The saver of a run, possibly a copy of the user's. Keel: nodes and tools find their saver with it."""
CONFIG_KEY_CHECKPOINT_MAP = "checkpoint_map"
"""For each namespace, the checkpoint that called a subgraph. Keel: requests and records name the root's."""
CONFIG_KEY_DURABILITY = "__pregel_durability"
"""The durability of a run, if the caller set it. Keel: with "exit", nothing is stored while tools run."""
CONFIG_KEY_READ = "__pregel_read"
"""The function that reads the state for a task, a `partial` whose arguments contain the channels. Keel: finds the
reducer of the messages with them."""
CONFIG_KEY_REPLAY_STATE = "__pregel_replay_state"
"""Set in subgraphs of a run from an old checkpoint. Keel: these do not follow their head."""
CONFIG_KEY_RUNTIME = "__pregel_runtime"
"""The `Runtime` of a task: `execution_info` is its place, `control` its run. Keel: needs both."""
CONFIG_KEY_SEND = "__pregel_send"
"""The function that writes for a task. Keel: writes all answers of a task; `interrupt()` omits later ones."""
CONFIG_KEY_SCRATCHPAD = "__pregel_scratchpad"
"""The `Scratchpad` of a task."""
CONFIG_KEY_STRICT_RESUME = "__pregel_strict_resume"
"""If true, answers without a question are refused before a node runs. Keel: workers set it."""
CONFIG_KEY_TASK_ID = "__pregel_task_id"
"""The task of a config. Keel: a config without it belongs to a root graph."""

# -- namespaces, in langgraph._internal._constants -------------------------------------------------------------------

NS_SEP = "|"
"""Between the levels of a `checkpoint_ns`: "outer:<task>|inner:<task>". Keel: finds the graph around a subgraph."""
NS_END = ":"
"""In a level, between the node and the id of the task, or the number of the call. Keel: shows only the node."""

# -- metadata of runs, which LangGraph passes to calls of a task (langgraph.pregel._algo) ------------------------------

METADATA_STEP = "langgraph_step"
"""The step of the graph. Keel: part of records of calls and summaries."""
METADATA_NODE = "langgraph_node"
"""The node. Keel: as METADATA_STEP; if it is set, the last level of `checkpoint_ns` is the task itself."""
METADATA_NS = "langgraph_checkpoint_ns"
"""The namespace of the task. Keel: detects calls of another task than the one of the context."""
METADATA_VERSIONS = "lc_versions"
"""langchain_core: the versions of LangChain's packages. Keel: part of records of calls."""
METADATA_PREFIXES = ("__", "langgraph_", "ls_", "lc_", "checkpoint_")
"""Prefixes of LangGraph's and LangChain's own metadata. Keel: a replay copies only the caller's metadata."""

# -- values ----------------------------------------------------------------------------------------------------------
# `DeltaSnapshot` (langgraph.checkpoint.serde.types, `_DeltaSnapshot`): the value of a `DeltaChannel` in a checkpoint
# that stores it. Keel reads it to archive and to export messages.

DELTA_SNAPSHOT = ("langgraph.checkpoint.serde.types", "_DeltaSnapshot")
"""Its stored name."""
SAFE_MSGPACK_TYPES: frozenset[tuple[str, ...]] = _msgpack.SAFE_MSGPACK_TYPES
"""langgraph.checkpoint.serde._msgpack: the types that LangGraph revives in strict mode, by module and name. Keel: its
serializer revives them, too."""


# -- tasks (langgraph.pregel._algo, `prepare_single_task`; langgraph.types, `Interrupt`) -----------------------------

PULL, PUSH = "__pregel_pull", "__pregel_push"
"""langgraph._internal._constants: the trigger of a task: channels, or a `Send`. Keel: computes the ids of tasks."""


# -- hooks of LangChain ----------------------------------------------------------------------------------------------
# `var_child_runnable_config` (langchain_core.runnables.config, undocumented): the config of the node that runs in this
# context. It identifies the graph, task and saver of a call. Setting it makes `interrupt()` use another config.


class HandlerSource(Protocol):
    """The part of a `ContextVar` that LangChain uses to get a handler."""

    def get(self) -> Any:
        """Return the handler."""


def register_configure_hook(source: HandlerSource, *, inheritable: bool) -> None:
    """Make LangChain ask a context variable for a handler at each run.

    langchain_core.tracers.context, undocumented. It passes events of models, tools and graphs to Keel without code of
    the user. A hook cannot be removed.
    """
    from langchain_core.tracers.context import register_configure_hook as register

    register(cast(ContextVar[Any], source), inheritable)


def wrappers_of(node: object) -> tuple[Any, Any] | None:
    """Return the sync and async tool wrappers of a `langgraph.prebuilt.ToolNode`; `None` for other objects.

    In async graphs it falls back to the sync wrapper; in sync graphs there is no fallback.
    """
    held = getattr(node, "__dict__", {})
    return (held.get("_wrap_tool_call"), held["_awrap_tool_call"]) if "_awrap_tool_call" in held else None


# -- ends of runs ------------------------------------------------------------------------------------------------------


def is_question(error: BaseException) -> bool:
    """Return whether a task ended with a question. Works while the interpreter exits."""
    errors: Any = sys.modules.get("langgraph.errors")  # a graph has imported it; at the exit, imports fail
    return errors is not None and isinstance(error, errors.GraphInterrupt) and any(error.args)


def exit_of(error: BaseException) -> asyncio.Task[Any] | None:
    """Return the task that still stores checkpoints of a run whose caller was cancelled, or `None`.

    langgraph.pregel._loop, `AsyncPregelLoop.__aexit__`: the task is the last argument of the `CancelledError`.
    """
    last = error.args[-1] if isinstance(error, asyncio.CancelledError) and error.args else None
    return last if isinstance(last, asyncio.Task) and not last.done() else None


def is_strict_msgpack() -> bool:
    """Return whether LangGraph has read `LANGGRAPH_STRICT_MSGPACK` as on; Keel's serializer follows it."""
    return _msgpack.STRICT_MSGPACK_ENABLED


class Scratchpad(Protocol):
    """The attributes of `PregelScratchpad` (langgraph._internal._scratchpad) that Keel reads.

    `interrupt()` finds its answers there. Keel gives each tool call of a task its own, to distinguish equal questions.
    """

    @property
    def call_counter(self) -> Callable[[], int]:
        """Created for each run of a task, and never replaced."""

    @property
    def interrupt_counter(self) -> Callable[[], int]:
        """Return the index of the answer for the next question, from 0."""

    @property
    def get_null_resume(self) -> Callable[[bool], Any]:
        """Return the answer that names no task, and consume it if the argument is true."""

    @property
    def resume(self) -> list[Any]:
        """The answers of the task."""


def twin_of(scratchpad: S, interrupt_counter: Callable[[], int], get_null_resume: Callable[[bool], Any]) -> S:
    """Return a copy of a (frozen) scratchpad with other functions to count questions and to find the new answer."""
    twin = copy(scratchpad)
    object.__setattr__(twin, "interrupt_counter", interrupt_counter)
    object.__setattr__(twin, "get_null_resume", get_null_resume)
    return twin


def task_id_of(checkpoint_id: str, task_ns: str, step: int, node: str, *started_by: str) -> str:
    """Return the id of a task, computed as LangGraph does. Keel: the tasks of a renamed node have other ids."""
    namespace = bytes.fromhex(checkpoint_id.replace("-", ""))
    hashed = xxh3_128_hexdigest(namespace + "".join((task_ns, str(step), node, *started_by)).encode())
    return f"{hashed[:8]}-{hashed[8:12]}-{hashed[12:16]}-{hashed[16:20]}-{hashed[20:32]}"


def interrupt_id_of(task_ns: str, answered: int) -> str:
    """Return the id of a task's question, computed as LangGraph does."""
    return xxh3_128_hexdigest((f"{task_ns}{NS_SEP}{answered}" if answered else task_ns).encode())
