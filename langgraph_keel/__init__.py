"""langgraph-keel: a durable checkpointer for LangGraph.

    from langgraph_keel import SqliteSaver

    with SqliteSaver.from_conn_string("agent.db") as saver:
        graph = builder.compile(checkpointer=saver)

Backends are imported when they are first named, so that none needs another's client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Unpack

from langgraph_keel.approvals.ask import arequest_approval, request_approval
from langgraph_keel.approvals.requests import ApprovalRequest, Decision
from langgraph_keel.approvals.worker import Resumed
from langgraph_keel.backends.registry import BACKENDS, find_opener
from langgraph_keel.engine.audit import AuditEvent, AuditVerdict
from langgraph_keel.engine.records import ThreadInfo
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.engine.serde.serializer import KeelSerializer
from langgraph_keel.errors import (
    AccessDenied,
    AlreadyDecided,
    CheckpointConflict,
    CorruptStore,
    DriftDetected,
    DriftWarning,
    DurabilityWarning,
    InvalidConfig,
    InvalidInput,
    KeelError,
    MomentNotFound,
    NewerFormat,
    NotAKeelStore,
    NotAllowed,
    NotFound,
    NotSetUp,
    ReadOnlyStore,
    RefusedType,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SummaryFailed,
    SummaryWarning,
    ThreadExists,
    ThreadTaken,
    ToolNotReplayed,
    ToolOutcomeUnknown,
    TypeWarning,
    UnsafeStore,
    UnstorableValue,
    ValueRefused,
)
from langgraph_keel.history.diff import StateDiff
from langgraph_keel.history.edits import Edit
from langgraph_keel.history.labels import Label
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.timeline import Timeline
from langgraph_keel.options import SaverOptions
from langgraph_keel.provenance.drift import Change, DriftReport
from langgraph_keel.provenance.reading import DriftMark
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.provenance.replay.compare import Difference
from langgraph_keel.provenance.replay.verdict import Replay
from langgraph_keel.retention.policy import Retention
from langgraph_keel.retention.prune import PruneReport, SweepReport, ThreadPruned
from langgraph_keel.retention.receipt import Receipt
from langgraph_keel.retention.reclaim import Reclaimed
from langgraph_keel.saver import KeelSaver
from langgraph_keel.summaries.archive.archive import Archive
from langgraph_keel.summaries.archive.parts import Archived
from langgraph_keel.summaries.archive.references import FoundMessage
from langgraph_keel.summaries.archive.restore import Restored
from langgraph_keel.tools.ledger import KeptCall

if TYPE_CHECKING:
    from langgraph_keel.backends.files import FileSaver
    from langgraph_keel.backends.memory import MemorySaver
    from langgraph_keel.backends.postgres import PostgresSaver
    from langgraph_keel.backends.redis import RedisSaver
    from langgraph_keel.backends.sqlite import SqliteSaver
    from langgraph_keel.summaries.node import SlidingWindow, SummarizationNode
    from langgraph_keel.summaries.summarizer import Summary
    from langgraph_keel.tools import CacheStats, KeelCache, ToolCache, ToolPolicy


__version__ = "0.1.0"

_LAZY = {
    "CacheStats": "langgraph_keel.tools",
    "KeelCache": "langgraph_keel.tools",
    "SlidingWindow": "langgraph_keel.summaries.node",
    "SummarizationNode": "langgraph_keel.summaries.node",
    "Summary": "langgraph_keel.summaries.summarizer",
    "ToolCache": "langgraph_keel.tools",
    "ToolPolicy": "langgraph_keel.tools",
}
_SAVERS = {backend.saver: backend for backend in BACKENDS}


def __getattr__(name: str) -> Any:
    """Import a backend, or another module of names that not every program needs, when it is first named."""
    if name in _SAVERS:
        return publish(_SAVERS[name].load(name))
    if name in _LAZY:
        return publish(getattr(import_module(_LAZY[name]), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, those of backends that are not imported yet too."""
    return sorted({*__all__, *_LAZY, *_SAVERS})


class OpenOptions(SaverOptions, total=False):
    """What `open_saver` takes: the options of every saver, and those of the savers of Keel's own backends."""

    timeout: float
    auto_setup: bool
    # FileSaver
    memory: int
    git: bool
    # PostgresSaver
    schema: str | None
    partitions: int
    pool_size: int
    prepare_threshold: int | None
    # RedisSaver
    prefix: str
    refresh_ttl_on_read: bool
    durability: Literal["disk", "any"]
    allow_eviction: bool
    max_connections: int


def open_saver(url: str, *, read_only: bool = False, **options: Unpack[OpenOptions]) -> KeelSaver:
    """Open a saver by URL; the command line uses the same.

        open_saver("sqlite:///agent.db", on_drift="raise", graph_version="1.4")

    Options are keyword arguments. In the URL stand only those of a server, such as PostgreSQL's `?schema=agents`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`, `postgresql://user@host/database`,
            `redis://host:6379/0` (`rediss://` with TLS, `redis+cluster://` for a cluster, `unix://` for a socket),
            `files:relative` or `files:/absolute` (a directory), or `memory:`; or a URL of a backend that another
            package adds (`langgraph_keel.backends.registry`).
        read_only: Never write, and do not create what is missing.
        **options: As for the saver that the URL names (one of another package may take more than are typed here).

    Returns:
        A saver, to be closed by `with`, `async with` or `close()`.

    Raises:
        InvalidInput: The URL names no backend, or one whose client library is not installed; or one of
            SQLite, of files or of memory has options.
        NotFound: `read_only`, and there is nothing there.
    """
    return find_opener(url)(url, read_only=read_only, **options)


__all__ = [
    "AccessDenied",
    "AlreadyDecided",
    "ApprovalRequest",
    "Archive",
    "Archived",
    "AuditEvent",
    "AuditVerdict",
    "CacheStats",
    "Change",
    "CheckpointConflict",
    "CorruptStore",
    "Decision",
    "Difference",
    "DriftDetected",
    "DriftMark",
    "DriftReport",
    "DriftWarning",
    "DurabilityWarning",
    "Edit",
    "FileSaver",
    "FoundMessage",
    "InvalidConfig",
    "InvalidInput",
    "KeelCache",
    "KeelError",
    "KeelSaver",
    "KeelSerializer",
    "KeptCall",
    "Label",
    "MemorySaver",
    "ModelCall",
    "Moment",
    "MomentNotFound",
    "NewerFormat",
    "NotAKeelStore",
    "NotAllowed",
    "NotFound",
    "NotSetUp",
    "OpenOptions",
    "PostgresSaver",
    "PruneReport",
    "ReadOnlyStore",
    "Receipt",
    "Reclaimed",
    "RedisSaver",
    "RefusedType",
    "Replay",
    "Restored",
    "Resumed",
    "Retention",
    "SaverOptions",
    "SlidingWindow",
    "SqliteSaver",
    "StateDiff",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "SummarizationNode",
    "Summary",
    "SummaryFailed",
    "SummaryWarning",
    "SweepReport",
    "ThreadExists",
    "ThreadInfo",
    "ThreadPruned",
    "ThreadTaken",
    "Timeline",
    "ToolCache",
    "ToolNotReplayed",
    "ToolOutcomeUnknown",
    "ToolPolicy",
    "TypeWarning",
    "UnsafeStore",
    "UnstorableValue",
    "ValueRefused",
    "arequest_approval",
    "open_saver",
    "request_approval",
]

for _name in __all__:
    if _name not in _LAZY and _name not in _SAVERS:
        publish(globals()[_name])

for _backend in BACKENDS:
    if not _backend.is_installed:
        __all__.remove(_backend.saver)  # `import *` must not fail where a client library is not installed
