"""langgraph-keel: a durable checkpointer for LangGraph.

    from langgraph_keel import SqliteSaver

    with SqliteSaver.from_conn_string("agent.db") as saver:
        graph = builder.compile(checkpointer=saver)

Backends are imported when they are first named, so that none needs another's client library.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from langgraph_keel.approvals.asking import arequest_approval, request_approval
from langgraph_keel.approvals.worker import Resumed
from langgraph_keel.core.archived import Archived
from langgraph_keel.core.audit import AuditEvent, AuditVerdict
from langgraph_keel.core.calls import KeptCall
from langgraph_keel.core.decisions import ApprovalRequest, Decision
from langgraph_keel.core.drift import Change, DriftReport
from langgraph_keel.core.labels import Label
from langgraph_keel.core.moved import publish
from langgraph_keel.core.policies import Retention
from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.core.pruned import PruneReport, SweepReport, ThreadPruned
from langgraph_keel.core.receipt import Receipt
from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.core.recorded import DriftMark
from langgraph_keel.core.records import ThreadInfo
from langgraph_keel.core.serde import KeelSerializer
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
    UnsafeStore,
    UnstorableValue,
    ValueRefused,
)
from langgraph_keel.provenance.comparison import Difference
from langgraph_keel.provenance.verdict import Replay
from langgraph_keel.saver import KeelSaver
from langgraph_keel.summaries.archive import Archive
from langgraph_keel.summaries.naming import FoundMessage
from langgraph_keel.summaries.restoring import Restored
from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.edits import Edit
from langgraph_keel.timeline.moment import Moment
from langgraph_keel.timeline.timeline import Timeline

if TYPE_CHECKING:
    from langgraph_keel.files import FileSaver
    from langgraph_keel.memory import MemorySaver
    from langgraph_keel.postgres import PostgresSaver
    from langgraph_keel.redis import RedisSaver
    from langgraph_keel.sqlite import SqliteSaver
    from langgraph_keel.summaries.node import SlidingWindow, SummarizationNode
    from langgraph_keel.summaries.summary import Summary
    from langgraph_keel.tools import CacheStats, KeelCache, ToolCache, ToolPolicy

__version__ = "0.1.0"

_LAZY = {
    "CacheStats": "langgraph_keel.tools",
    "FileSaver": "langgraph_keel.files",
    "KeelCache": "langgraph_keel.tools",
    "MemorySaver": "langgraph_keel.memory",
    "PostgresSaver": "langgraph_keel.postgres",
    "RedisSaver": "langgraph_keel.redis",
    "SlidingWindow": "langgraph_keel.summaries.node",
    "SqliteSaver": "langgraph_keel.sqlite",
    "SummarizationNode": "langgraph_keel.summaries.node",
    "Summary": "langgraph_keel.summaries.summary",
    "ToolCache": "langgraph_keel.tools",
    "ToolPolicy": "langgraph_keel.tools",
}


_CLIENTS = {"psycopg": "postgres", "redis": "redis"}
_OPTIONS = re.compile(r"(.*)\?(\w+=[^/&]*(?:&\w+=[^/&]*)*)", re.DOTALL)


def __getattr__(name: str) -> Any:
    """Import a backend when it is first named."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return publish(getattr(import_module(_LAZY[name]), name))
    except ModuleNotFoundError as error:
        client = (error.name or "").partition(".")[0]
        if extra := _CLIENTS.get(client):
            error.msg = f"{name} needs {client}: pip install 'langgraph-keel[{extra}]'"
        raise


def __dir__() -> list[str]:
    """List the public names, those of backends that are not imported yet too."""
    return sorted({*__all__, *_LAZY})


def open_saver(url: str, *, read_only: bool = False, **options: Any) -> KeelSaver:
    """Open a saver by URL; the command line uses the same.

        open_saver("sqlite:///agent.db", on_drift="raise", graph_version="1.4")

    Options are keyword arguments. In the URL stand only those of a server, such as PostgreSQL's `?schema=agents`.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite:///:memory:`, `postgresql://user@host/database`,
            `redis://host:6379/0` (`rediss://` with TLS, `redis+cluster://` for a cluster, `unix://` for a socket),
            `files:relative` or `files:/absolute` (a directory), or `memory:`.
        read_only: Never write, and do not create what is missing.
        **options: As for the saver that the URL names.

    Returns:
        A saver, to be closed by `with`, `async with` or `close()`.

    Raises:
        InvalidInput: The URL names no backend of Keel, or one whose client library is not installed; or one of
            SQLite, of files or of memory has options.
        NotFound: `read_only`, and there is nothing there.
    """
    scheme, _, rest = url.partition(":")
    if scheme in ("memory", "sqlite", "files"):
        _check_path(url, rest.removeprefix("///") if scheme == "sqlite" else rest)
    if scheme == "memory":
        return _opened("MemorySaver", **options)
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > 3:
        return _opened("SqliteSaver", rest[3:], read_only=read_only, **options)
    if scheme == "files" and rest.strip("/"):
        return _opened("FileSaver", rest, read_only=read_only, **options)
    if scheme in ("postgresql", "postgres"):
        return _opened("PostgresSaver", url, read_only=read_only, **options)
    if scheme in ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix"):
        return _opened("RedisSaver", url, read_only=read_only, **options)
    shown = f"{scheme}:..." if "@" in url else url  # never a password
    raise InvalidInput(
        f"{shown!r} names no store: use sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://..., "
        "redis://..., files:directory or memory:"
    )


def _check_path(url: str, path: str) -> None:
    """See that a path has no options, which would become part of its name.

    Raises:
        InvalidInput: It ends in what looks like options, and nothing of that name is there.
    """
    found = _OPTIONS.fullmatch(url)
    if found and not os.path.lexists(path):
        names = (option.partition("=")[0] for option in found[2].split("&"))
        given = ", ".join(f"{name}=..." for name in names)
        raise InvalidInput(f"{url!r}: such URLs take no options: write open_saver({found[1]!r}, {given})")


def _opened(name: str, *args: Any, **options: Any) -> KeelSaver:
    try:
        kind: type[KeelSaver] = __getattr__(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(str(error)) from error
    return kind(*args, **options)


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
    "NewerFormat",
    "NotAKeelStore",
    "NotAllowed",
    "NotFound",
    "NotSetUp",
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
    "UnsafeStore",
    "UnstorableValue",
    "ValueRefused",
    "arequest_approval",
    "open_saver",
    "request_approval",
]

for _name in __all__:
    if _name not in _LAZY:
        publish(globals()[_name])

for _name, _client in {"PostgresSaver": "psycopg", "RedisSaver": "redis"}.items():
    if find_spec(_client) is None:
        __all__.remove(_name)  # `import *` must not fail where a client library is not installed
