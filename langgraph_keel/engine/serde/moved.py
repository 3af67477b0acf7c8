"""Names of Keel's own classes: public ones are the package's, wherever they stand in it, and are stored so."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, TypeVar, get_type_hints

PACKAGE = "langgraph_keel"
T = TypeVar("T")

_PUBLIC = """
ApprovalRequest Archived AuditEvent AuditVerdict CacheStats Change CopyReport Decision Difference DriftMark DriftReport
Edit ExportReport FoundMessage Handoff HandoffLine ImportReport ItemChange KeptCall Label ModelCall Moment Note
PruneReport Receipt Reclaimed Replay Restored Resumed Retention StateDiff StatusChange StoreStats SweepReport
TenantReceipt ThreadInfo ThreadPruned ThreadStatus ToolPolicy Workspace WorkspaceDiff WorkspaceRestore
"""
OWN = frozenset({(PACKAGE, name) for name in _PUBLIC.split()}) | {
    (f"{PACKAGE}.engine.config", "Address"),
    (f"{PACKAGE}.retention.check", "Finding"),
    (f"{PACKAGE}.backends.redis.connection", "Durability"),
    (f"{PACKAGE}.history.records", "Change"),
    (f"{PACKAGE}.history.records", "ToolUse"),
}
"""Data classes that a state may hold: the public ones, and those without a public name by their modules.

These names are stored. From 0.1.0 on, a class that moves keeps the old name, too.
"""


def publish(named: T) -> T:
    """Make a class or function the package's own: its `__module__` is the package, and it is put there under its name.

    Annotations are resolved first, because pydantic and LangGraph look for their names in `__module__`.
    """
    if isinstance(named, type):
        _resolve_annotations(named)
    thing: Any = named
    thing.__module__ = PACKAGE
    vars(sys.modules[PACKAGE]).setdefault(thing.__name__, thing)
    return named


def _resolve_annotations(cls: Any) -> None:
    is_data = dataclasses.is_dataclass(cls)  # its fields may all be those of a class above
    own = vars(cls).get("__annotations__", {})
    if not (own or is_data) or cls.__module__ == PACKAGE:
        return
    hints = get_type_hints(cls, include_extras=True)
    if own:
        cls.__annotations__ = {name: hints[name] for name in own}
    for field in dataclasses.fields(cls) if is_data else ():
        field.type = hints[field.name]
