"""What Keel knows of LangGraph and LangChain that they keep private, or document nowhere. No other module does.

Seen in langgraph 1.2.22, langgraph-checkpoint 4.3.2 and langchain-core 1.7.2. Names are LangGraph's own where it has
any; most are in `langgraph._internal._constants`, which is not imported: what is stored must not move with it.
`tests/test_layers.py` compares them with the installed version.
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

# The names that are imported here for other modules.
__all__ = ["ERROR", "INTERRUPT", "RESUME", "SCHEDULED", "TASKS", "DeltaSnapshot", "var_child_runnable_config"]

S = TypeVar("S")

# -- channels with a meaning, in pending writes and `versions_seen` --------------------------------------------------
# From langgraph.checkpoint.serde.types, where LangGraph's own savers get them; to `langgraph.constants` they are
# private. ERROR: what a task failed with. INTERRUPT: what it asks. RESUME: the answers it was given.
# SCHEDULED: written by no version seen, but it has a place in `WRITES_IDX_MAP`. TASKS: the `Send`s of a step. Keel
# tells by these who waits for whom, what is left to run, and what is no result.

ERROR_SOURCE_NODE = "__error_source_node__"
"""langgraph._internal._constants: beside ERROR, the node that failed. Keel: it is no result of a task."""
INPUT = "__input__"
"""langgraph._internal._constants: in `versions_seen`, the input. Keel: it is no node that has run."""
NO_WRITES = "__no_writes__"
"""langgraph._internal._constants: written by a task that wrote nothing. Keel: not shown."""
NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""langgraph._internal._constants: the task of what a caller writes (a `Command`). LangGraph takes it for input. Keel:
finds answers there that no task has taken."""
OVERWRITE = "__overwrite__"
"""langgraph._internal._constants: the key, or the type, of an `Overwrite` that is plain data. Keel: what it throws away
is archived."""

# -- channels that start nodes ---------------------------------------------------------------------------------------

BRANCH = "branch:"
"""langgraph.graph.state: what channels of edges begin with; those of old versions, too. Keel: not shown."""
BRANCH_TO = "branch:to:"
"""langgraph.graph.state, `_CHANNEL_BRANCH_TO`: before the name of the node that the channel starts. Keel: tells by it
which nodes come next, and whether a run is over."""
JOIN = "join:"
"""langgraph.graph.state: "join:a+b:c" starts c when it holds the names a and b. Keel: as BRANCH_TO."""

# -- keys of `config["configurable"]`, all in langgraph._internal._constants ------------------------------------------

PREGEL = "__pregel_"
"""What LangGraph's keys and channels begin with. Keel: tells a config of a run by it; such channels are not shown."""
CONFIG_KEY_CHECKPOINTER = "__pregel_checkpointer"
"""The saver that a run stores with, maybe a copy of the user's. Keel: nodes and tools find their saver by it."""
CONFIG_KEY_CHECKPOINT_MAP = "checkpoint_map"
"""Per namespace, which checkpoint a subgraph was called from. Keel: a request or a record names the root's."""
CONFIG_KEY_DURABILITY = "__pregel_durability"
"""When a run stores its checkpoints, if the caller says. Keel: one with "exit" stores none while its tools run."""
CONFIG_KEY_READ = "__pregel_read"
"""The function that reads the state for a task, a `partial` whose arguments hold the channels. Keel: sees by them
which reducer the messages have."""
CONFIG_KEY_REPLAY_STATE = "__pregel_replay_state"
"""Set in subgraphs of a run from an old checkpoint. Keel: they do not follow their head."""
CONFIG_KEY_RUNTIME = "__pregel_runtime"
"""The `Runtime` of a task: `execution_info` says where it is, `control` which run it is of. Keel: needs both."""
CONFIG_KEY_SEND = "__pregel_send"
"""The function that writes for a task. Keel: writes all answers of a task; `interrupt()` omits later ones."""
CONFIG_KEY_SCRATCHPAD = "__pregel_scratchpad"
"""The `Scratchpad` of a task."""
CONFIG_KEY_STRICT_RESUME = "__pregel_strict_resume"
"""If true, answers to what is not asked are refused before a node runs. Keel: workers want that."""
CONFIG_KEY_TASK_ID = "__pregel_task_id"
"""The task that a config was made for. Keel: a config without is of a root graph."""

# -- namespaces, in langgraph._internal._constants -------------------------------------------------------------------

NS_SEP = "|"
"""Between the levels of a `checkpoint_ns`: "outer:<task>|inner:<task>". Keel: finds the graph around a subgraph."""
NS_END = ":"
"""In a level, between the node and the id of the task, or the number of the call. Keel: shows the node alone."""

# -- metadata of runs, which LangGraph hands on to whatever a task calls (langgraph.pregel._algo) ----------------------

METADATA_STEP = "langgraph_step"
"""The step of the graph. Keel: records of calls and summaries say it."""
METADATA_NODE = "langgraph_node"
"""The node. Keel: as METADATA_STEP; and where it is told, the last level of `checkpoint_ns` is the task itself."""
METADATA_NS = "langgraph_checkpoint_ns"
"""The namespace of the task. Keel: tells by it that a call is of another task than the context says."""
METADATA_VERSIONS = "lc_versions"
"""langchain_core: the versions of LangChain's packages. Keel: records of calls say them."""
METADATA_PREFIXES = ("__", "langgraph_", "ls_", "lc_", "checkpoint_")
"""What LangGraph's and LangChain's own metadata begin with. Keel: a replay takes over the caller's only."""

# -- values ----------------------------------------------------------------------------------------------------------
# `DeltaSnapshot` (langgraph.checkpoint.serde.types, `_DeltaSnapshot`): how the value of a `DeltaChannel` stands in a
# checkpoint, where it does. Keel looks inside to archive and to export messages.

DELTA_SNAPSHOT = ("langgraph.checkpoint.serde.types", "_DeltaSnapshot")
"""The name that it is stored by."""
SAFE_MSGPACK_TYPES: frozenset[tuple[str, ...]] = _msgpack.SAFE_MSGPACK_TYPES
"""langgraph.checkpoint.serde._msgpack: the types that LangGraph revives in strict mode, by module and name. Keel: its
serializer revives them, too."""


# -- tasks (langgraph.pregel._algo, `prepare_single_task`; langgraph.types, `Interrupt`) -----------------------------

PULL, PUSH = "__pregel_pull", "__pregel_push"
"""langgraph._internal._constants: what a task is started by, channels or a `Send`. Keel: makes the ids of tasks."""


# -- hooks of LangChain ----------------------------------------------------------------------------------------------
# `var_child_runnable_config` (langchain_core.runnables.config, in no reference): the config of the node that runs in
# this context. Says what graph, task and saver a call belongs to; set, it makes `interrupt()` look at another config.


class HandlerSource(Protocol):
    """What LangChain asks for a handler: a `ContextVar`, of which it uses no more than this."""

    def get(self) -> Any:
        """Return the handler."""


def register_configure_hook(source: HandlerSource, *, inheritable: bool) -> None:
    """langchain_core.tracers.context, undocumented: have LangChain ask a context variable for a handler at each run.

    So Keel hears of models, tools and graphs with no code of the user's. There is no way to take a hook back.
    """
    from langchain_core.tracers.context import register_configure_hook as register

    register(cast(ContextVar[Any], source), inheritable)


def wrappers_of(node: object) -> tuple[Any, Any] | None:
    """langgraph.prebuilt.ToolNode: return its sync and async tool wrappers; `None` if the object is not a ToolNode.

    In async graphs it falls back on the first, in sync ones on nothing.
    """
    held = getattr(node, "__dict__", {})
    return (held.get("_wrap_tool_call"), held["_awrap_tool_call"]) if "_awrap_tool_call" in held else None


# -- how runs end ------------------------------------------------------------------------------------------------------


def is_question(error: BaseException) -> bool:
    """Return whether a task has ended because it asks something. It may be asked while the interpreter exits."""
    errors: Any = sys.modules.get("langgraph.errors")  # a graph has imported it, and at the exit nothing can be
    return errors is not None and isinstance(error, errors.GraphInterrupt) and any(error.args)


def exit_of(error: BaseException) -> asyncio.Task[Any] | None:
    """Return what still stores for a run whose caller was cancelled; `None` if nothing does.

    langgraph.pregel._loop, `AsyncPregelLoop.__aexit__`: the task is the last argument of the `CancelledError`.
    """
    last = error.args[-1] if isinstance(error, asyncio.CancelledError) and error.args else None
    return last if isinstance(last, asyncio.Task) and not last.done() else None


def is_strict_msgpack() -> bool:
    """Return whether `LANGGRAPH_STRICT_MSGPACK` is on, as LangGraph has read it (langgraph.checkpoint.serde._msgpack).

    Keel's serializer follows it.
    """
    return _msgpack.STRICT_MSGPACK_ENABLED


class Scratchpad(Protocol):
    """LangGraph's notes of a task, `PregelScratchpad` of langgraph._internal._scratchpad, as far as Keel reads them.

    `interrupt()` finds its answers there. Keel gives each tool call of a task its own, and tells equal questions apart.
    """

    @property
    def call_counter(self) -> Callable[[], int]:
        """Made anew for each run of a task, and never replaced."""

    @property
    def interrupt_counter(self) -> Callable[[], int]:
        """Says which answer the next question gets, from 0."""

    @property
    def get_null_resume(self) -> Callable[[bool], Any]:
        """Says the answer that was given to no task in particular, and takes it if told to."""

    @property
    def resume(self) -> list[Any]:
        """The answers of the task."""


def twin_of(scratchpad: S, interrupt_counter: Callable[[], int], get_null_resume: Callable[[bool], Any]) -> S:
    """Return a copy of a scratchpad that counts questions, and finds the new answer, in another way; it is frozen."""
    twin = copy(scratchpad)
    object.__setattr__(twin, "interrupt_counter", interrupt_counter)
    object.__setattr__(twin, "get_null_resume", get_null_resume)
    return twin


def task_id_of(checkpoint_id: str, task_ns: str, step: int, node: str, *started_by: str) -> str:
    """Return the id of a task, as LangGraph makes it of where it stands. Keel: a renamed node's tasks have others."""
    namespace = bytes.fromhex(checkpoint_id.replace("-", ""))
    hashed = xxh3_128_hexdigest(namespace + "".join((task_ns, str(step), node, *started_by)).encode())
    return f"{hashed[:8]}-{hashed[8:12]}-{hashed[12:16]}-{hashed[16:20]}-{hashed[20:32]}"


def interrupt_id_of(task_ns: str, answered: int) -> str:
    """Return the id of what a task asks, as LangGraph makes it. Keel: as `task_id_of`."""
    return xxh3_128_hexdigest((f"{task_ns}{NS_SEP}{answered}" if answered else task_ns).encode())
