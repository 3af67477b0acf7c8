"""langgraph-keel: a durable checkpointer for LangGraph.

    from langgraph_keel import SqliteSaver

    with SqliteSaver.from_conn_string("agent.db") as saver:
        graph = builder.compile(checkpointer=saver)

Everything except the errors is imported at its first use, so that the command line starts fast and no backend needs the
client library of another one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_keel.backends.registry import BACKENDS
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import (
    AccessDenied,
    AlreadyDecided,
    BlobLost,
    BlobsMissing,
    CheckpointConflict,
    CorruptStore,
    DriftDetected,
    DriftWarning,
    DurabilityWarning,
    InvalidConfig,
    InvalidInput,
    KeelError,
    KeyMissing,
    LockLost,
    LockTaken,
    MomentNotFound,
    NewerFormat,
    NewerState,
    NotAKeelStore,
    NotAllowed,
    NotFound,
    NotSetUp,
    OnHold,
    ReadOnlyStore,
    RefusedType,
    SaverDraining,
    SealBroken,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SummaryFailed,
    SummaryWarning,
    ThreadExists,
    ThreadTaken,
    ThreadUnfinished,
    ToolNotReplayed,
    ToolOutcomeUnknown,
    TypeWarning,
    UnsafeStore,
    UnstorableValue,
    UpgradeFailed,
    ValueRefused,
    WorkspaceTaken,
)

if TYPE_CHECKING:
    from langgraph_keel.approvals.ask import arequest_approval, request_approval
    from langgraph_keel.approvals.requests import ApprovalRequest, Decision
    from langgraph_keel.backends.files import FileSaver
    from langgraph_keel.backends.memory import MemorySaver
    from langgraph_keel.backends.postgres import AsyncPostgresSaver, PostgresSaver
    from langgraph_keel.backends.redis import AsyncRedisSaver, RedisSaver
    from langgraph_keel.backends.sqlite import AsyncSqliteSaver, SqliteSaver
    from langgraph_keel.backends.tiered import TieredSaver
    from langgraph_keel.engine.audit import AuditEvent, AuditVerdict
    from langgraph_keel.engine.records import ThreadInfo
    from langgraph_keel.engine.serde.serializer import KeelSerializer
    from langgraph_keel.engine.serde.unread import Unread
    from langgraph_keel.history.diff import StateDiff
    from langgraph_keel.history.edits import Edit
    from langgraph_keel.history.feed import Feed, StatusChange
    from langgraph_keel.history.handoff import Handoff, HandoffLine
    from langgraph_keel.history.labels import Label
    from langgraph_keel.history.moment import Moment
    from langgraph_keel.history.notes import Note
    from langgraph_keel.history.status import ThreadStatus
    from langgraph_keel.history.threads import ThreadCounts, Usage, count_threads
    from langgraph_keel.history.timeline import Timeline
    from langgraph_keel.keys.keyring import Keyring, LocalKey, MasterKey
    from langgraph_keel.keys.methods import MasterKeys, Migrated, Renewed
    from langgraph_keel.moving.copy import CopyReport
    from langgraph_keel.moving.export import ExportReport
    from langgraph_keel.moving.langgraph import ImportReport
    from langgraph_keel.moving.stats import StoreStats
    from langgraph_keel.opening import open_saver
    from langgraph_keel.options import OpenOptions, SaverOptions
    from langgraph_keel.provenance.drift import Change, DriftReport
    from langgraph_keel.provenance.reading import DriftMark
    from langgraph_keel.provenance.records import ModelCall
    from langgraph_keel.provenance.replay.compare import Difference
    from langgraph_keel.provenance.replay.verdict import Replay
    from langgraph_keel.retention.holds import Hold
    from langgraph_keel.retention.policy import Retention
    from langgraph_keel.retention.prune import PruneReport, SweepReport, ThreadPruned
    from langgraph_keel.retention.receipt import Receipt
    from langgraph_keel.retention.reclaim import Reclaimed
    from langgraph_keel.runs.drain import Draining
    from langgraph_keel.runs.worker import Resumed
    from langgraph_keel.saver import KeelSaver
    from langgraph_keel.store.keel_store import KeelStore
    from langgraph_keel.store.locks import StoreLock
    from langgraph_keel.store.watch import ItemChange, ItemFeed
    from langgraph_keel.summaries.archive.archive import Archive
    from langgraph_keel.summaries.archive.parts import Archived
    from langgraph_keel.summaries.archive.references import FoundMessage
    from langgraph_keel.summaries.archive.restore import Restored
    from langgraph_keel.summaries.node import SlidingWindow, SummarizationNode
    from langgraph_keel.summaries.summarizer import Summary
    from langgraph_keel.tenants.deletion import TenantReceipt
    from langgraph_keel.tools.cache import ToolCache
    from langgraph_keel.tools.ledger import KeptCall
    from langgraph_keel.tools.node_cache import KeelCache
    from langgraph_keel.tools.policy import ToolPolicy
    from langgraph_keel.tools.stats import CacheStats
    from langgraph_keel.upgrades.chain import upgrade
    from langgraph_keel.upgrades.state import StoredState
    from langgraph_keel.workspace.records import Workspace, WorkspaceDiff, WorkspaceRestore

__version__ = "0.1.0"

_SAVERS = {name: backend for backend in BACKENDS for name in (backend.saver, backend.alias) if name}
# The imports above without savers and errors, as data. A test compares the two.
_NAMES = {
    "approvals.ask": ("arequest_approval", "request_approval"),
    "approvals.requests": ("ApprovalRequest", "Decision"),
    "engine.audit": ("AuditEvent", "AuditVerdict"),
    "engine.records": ("ThreadInfo",),
    "engine.serde.serializer": ("KeelSerializer",),
    "engine.serde.unread": ("Unread",),
    "history.diff": ("StateDiff",),
    "history.edits": ("Edit",),
    "history.feed": ("Feed", "StatusChange"),
    "history.handoff": ("Handoff", "HandoffLine"),
    "history.labels": ("Label",),
    "history.moment": ("Moment",),
    "history.notes": ("Note",),
    "history.status": ("ThreadStatus",),
    "history.threads": ("ThreadCounts", "Usage", "count_threads"),
    "history.timeline": ("Timeline",),
    "keys.keyring": ("Keyring", "LocalKey", "MasterKey"),
    "keys.methods": ("MasterKeys", "Migrated", "Renewed"),
    "moving.copy": ("CopyReport",),
    "moving.export": ("ExportReport",),
    "moving.langgraph": ("ImportReport",),
    "moving.stats": ("StoreStats",),
    "opening": ("open_saver",),
    "options": ("OpenOptions", "SaverOptions"),
    "provenance.drift": ("Change", "DriftReport"),
    "provenance.reading": ("DriftMark",),
    "provenance.records": ("ModelCall",),
    "provenance.replay.compare": ("Difference",),
    "provenance.replay.verdict": ("Replay",),
    "retention.policy": ("Retention",),
    "retention.prune": ("PruneReport", "SweepReport", "ThreadPruned"),
    "retention.holds": ("Hold",),
    "retention.receipt": ("Receipt",),
    "tenants.deletion": ("TenantReceipt",),
    "retention.reclaim": ("Reclaimed",),
    "runs.drain": ("Draining",),
    "runs.worker": ("Resumed",),
    "saver": ("KeelSaver",),
    "store.keel_store": ("KeelStore",),
    "store.locks": ("StoreLock",),
    "store.watch": ("ItemChange", "ItemFeed"),
    "summaries.archive.archive": ("Archive",),
    "summaries.archive.parts": ("Archived",),
    "summaries.archive.references": ("FoundMessage",),
    "summaries.archive.restore": ("Restored",),
    "summaries.node": ("SlidingWindow", "SummarizationNode"),
    "summaries.summarizer": ("Summary",),
    "tools.cache": ("ToolCache",),
    "tools.ledger": ("KeptCall",),
    "tools.node_cache": ("KeelCache",),
    "tools.policy": ("ToolPolicy",),
    "tools.stats": ("CacheStats",),
    "upgrades.chain": ("upgrade",),
    "upgrades.state": ("StoredState",),
    "workspace.records": ("Workspace", "WorkspaceDiff", "WorkspaceRestore"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module of a public name at its first use; `publish` then sets the name here."""
    if name in _SAVERS:
        return _SAVERS[name].load(name)
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, including those whose modules are not imported yet."""
    return sorted({*__all__, *_MODULES, *_SAVERS})


__all__ = [
    "AccessDenied",
    "AlreadyDecided",
    "ApprovalRequest",
    "Archive",
    "Archived",
    "AsyncPostgresSaver",
    "AsyncRedisSaver",
    "AsyncSqliteSaver",
    "AuditEvent",
    "AuditVerdict",
    "BlobLost",
    "BlobsMissing",
    "CacheStats",
    "Change",
    "CheckpointConflict",
    "CopyReport",
    "CorruptStore",
    "Decision",
    "Difference",
    "Draining",
    "DriftDetected",
    "DriftMark",
    "DriftReport",
    "DriftWarning",
    "DurabilityWarning",
    "Edit",
    "ExportReport",
    "Feed",
    "FileSaver",
    "FoundMessage",
    "Handoff",
    "HandoffLine",
    "Hold",
    "ImportReport",
    "InvalidConfig",
    "InvalidInput",
    "ItemChange",
    "ItemFeed",
    "KeelCache",
    "KeelError",
    "KeelSaver",
    "KeelSerializer",
    "KeelStore",
    "KeptCall",
    "KeyMissing",
    "Keyring",
    "Label",
    "LocalKey",
    "LockLost",
    "LockTaken",
    "MasterKey",
    "MasterKeys",
    "MemorySaver",
    "Migrated",
    "ModelCall",
    "Moment",
    "MomentNotFound",
    "NewerFormat",
    "NewerState",
    "NotAKeelStore",
    "NotAllowed",
    "NotFound",
    "NotSetUp",
    "Note",
    "OnHold",
    "OpenOptions",
    "PostgresSaver",
    "PruneReport",
    "ReadOnlyStore",
    "Receipt",
    "Reclaimed",
    "RedisSaver",
    "RefusedType",
    "Renewed",
    "Replay",
    "Restored",
    "Resumed",
    "Retention",
    "SaverDraining",
    "SaverOptions",
    "SealBroken",
    "SlidingWindow",
    "SqliteSaver",
    "StateDiff",
    "StatusChange",
    "StoreBusy",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreLock",
    "StoreStats",
    "StoreUnavailable",
    "StoredState",
    "SummarizationNode",
    "Summary",
    "SummaryFailed",
    "SummaryWarning",
    "SweepReport",
    "TenantReceipt",
    "ThreadCounts",
    "ThreadExists",
    "ThreadInfo",
    "ThreadPruned",
    "ThreadStatus",
    "ThreadTaken",
    "ThreadUnfinished",
    "TieredSaver",
    "Timeline",
    "ToolCache",
    "ToolNotReplayed",
    "ToolOutcomeUnknown",
    "ToolPolicy",
    "TypeWarning",
    "Unread",
    "UnsafeStore",
    "UnstorableValue",
    "UpgradeFailed",
    "Usage",
    "ValueRefused",
    "Workspace",
    "WorkspaceDiff",
    "WorkspaceRestore",
    "WorkspaceTaken",
    "arequest_approval",
    "count_threads",
    "open_saver",
    "request_approval",
    "upgrade",
]

for _name in __all__:
    if _name in globals():  # the errors, which cannot import `publish`
        publish(globals()[_name])

for _name, _backend in _SAVERS.items():
    if not _backend.is_installed:
        __all__.remove(_name)  # `import *` must not fail without a client library
