"""Names of Keel's own classes: those under which they were once stored, and the public one that stands for them now.

A value in a state is stored by the module and name of its class. Where a class stands in the package is nobody's
business but Keel's, so public classes say that they are the package's (`publish`), and are stored so. Stores that were
written before have the module: `MOVED_NAMES` leads from there to the class, wherever that stands today.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, get_type_hints

PACKAGE = "langgraph_keel"
Name: TypeAlias = tuple[str, str]
T = TypeVar("T")

# Where public data classes stood when they were last stored by their module. Part of the format: append only.
_FORMER: Mapping[str, tuple[str, ...]] = {
    "approvals.worker": ("Resumed",),
    "core.archived": ("Archived",),
    "core.audit": ("AuditEvent", "AuditVerdict"),
    "core.calls": ("KeptCall",),
    "core.decisions": ("ApprovalRequest", "Decision"),
    "core.drift": ("Change", "DriftReport"),
    "core.labels": ("Label",),
    "core.policies": ("Retention",),
    "core.provenance": ("ModelCall",),
    "core.pruned": ("PruneReport", "SweepReport", "ThreadPruned"),
    "core.receipt": ("Receipt",),
    "core.reclaiming": ("Reclaimed",),
    "core.recorded": ("DriftMark",),
    "core.records": ("ThreadInfo",),
    "history.status": ("ThreadStatus",),
    "provenance.comparison": ("Difference",),
    "provenance.verdict": ("Replay",),
    "summaries.naming": ("FoundMessage",),
    "summaries.restoring": ("Restored",),
    "summaries.summary": ("Summary",),
    "timeline.diff": ("StateDiff",),
    "timeline.edits": ("Edit",),
    "timeline.moment": ("Moment",),
    "tools.account": ("CacheStats",),
    "tools.policy": ("ToolPolicy",),
}

# Data classes without a public name that programs can hold: where they stood, and where they stand.
_ELSEWHERE: Mapping[tuple[str, str], str] = {
    ("engine.records", "Address"): "engine.config",
    ("core.records", "Address"): "engine.config",  # below the others of a class: its first name
    ("backends.files.check", "Finding"): "retention.check",
    ("files.findings", "Finding"): "retention.check",
    ("redis.opening", "Durability"): "backends.redis.connection",
    ("timeline.moment", "Change"): "history.records",
    ("timeline.moment", "ToolUse"): "history.records",
}

MOVED_NAMES: dict[Name, Name] = {
    **{(f"{PACKAGE}.{module}", name): (PACKAGE, name) for module, names in _FORMER.items() for name in names},
    **{(f"{PACKAGE}.{module}", name): (f"{PACKAGE}.{now}", name) for (module, name), now in _ELSEWHERE.items()},
}
"""Stored names, and those that stand for them."""

_FORMER_NAMES: dict[Name, Name] = {now: was for was, now in MOVED_NAMES.items()}


def present_name(module: Any, name: Any) -> tuple[Any, Any]:
    """Return the name that stands today for a stored one."""
    return MOVED_NAMES.get((module, name), (module, name))


def first_name(module: str, name: str) -> Name:
    """Return the name under which a class was first stored, of which hashes that are stored were made."""
    return _FORMER_NAMES.get((module, name), (module, name))


def publish(named: T) -> T:
    """Make a class or function the package's own: its `__module__` is the package, wherever it stands.

    It decorates what is public where that stands: so it is the package's own whoever has imported it, and from where.
    Its annotations are resolved first, for whoever asks for them later (pydantic, LangGraph) looks for their names in
    that module; and it is put there under its name, so that nobody has to look for it again.
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
