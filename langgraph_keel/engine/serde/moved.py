"""Stored names of Keel's own classes. Public ones use the package's name."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, TypeVar, get_type_hints

PACKAGE = "langgraph_keel"
T = TypeVar("T")

_PUBLIC = """
ApprovalRequest Archived AuditEvent AuditVerdict CacheStats Change CopyReport Decision Difference DriftMark
DriftReport Edit ExportReport FoundMessage Handoff HandoffLine Hold ImportReport ItemChange KeptCall Label ModelCall
Moment Note PruneReport Receipt Reclaimed Replay Restored Resumed Retention StateDiff StatusChange StoreStats
SweepReport TenantReceipt ThreadInfo ThreadPruned ThreadStatus ToolPolicy Workspace WorkspaceDiff WorkspaceRestore
"""
OWN = frozenset({(PACKAGE, name) for name in _PUBLIC.split()}) | {
    (f"{PACKAGE}.engine.config", "Address"),
    (f"{PACKAGE}.retention.check", "Finding"),
    (f"{PACKAGE}.backends.redis.connection", "Durability"),
    (f"{PACKAGE}.history.records", "Change"),
    (f"{PACKAGE}.history.records", "ToolUse"),
}
"""Keel's data classes that a state may contain, by module and name.

These names are stored. From 0.1.0 on, a moved class must keep its old name, too.
"""


def publish(named: T) -> T:
    """Publish a class or function as the package's own, by setting `__module__`.

    Annotations are resolved first, because pydantic and LangGraph look up their names in `__module__`.
    """
    if isinstance(named, type):
        _resolve_annotations(named)
    thing: Any = named
    thing.__module__ = PACKAGE
    vars(sys.modules[PACKAGE]).setdefault(thing.__name__, thing)
    return named


def _resolve_annotations(cls: Any) -> None:
    is_data = dataclasses.is_dataclass(cls)  # it may only inherit fields
    own = vars(cls).get("__annotations__", {})
    if not (own or is_data) or cls.__module__ == PACKAGE:
        return
    hints = get_type_hints(cls, include_extras=True)
    if own:
        cls.__annotations__ = {name: hints[name] for name in own}
    for field in dataclasses.fields(cls) if is_data else ():
        field.type = hints[field.name]
