"""The content of a store as public names show it, as JSON that keeps types."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from langchain_core.messages import BaseMessage
from langgraph.types import Send
from pydantic import BaseModel

from langgraph_keel import KeelCache, KeelSaver, Moment

STATUSES = ("waiting", "claimed", "approved", "rejected", "edited", "answered", "expired", "superseded", "consumed")
CACHE_KEY = (("golden", "node"), "key")
DELTA = "delta"
_SHOWN, _LONG = 120, 300
_BITS = 10_000  # Python refuses to write longer numbers in decimal digits
LATER = {
    "ThreadInfo": ("owner", "facts", "status", "next", "error", "tokens", "cost", "cursor"),
    "KeptCall": ("retries", "original", "idempotency_key", "copied_from"),
    "ApprovalRequest": ("warnings", "warned_at"),
    "Decision": ("unchecked",),
    "FoundMessage": ("score",),
    "Receipt": ("what", "items", "items_left"),
    "Resumed": ("attempts",),
    "ThreadStatus": ("can_go_on", "checkpoint_id", "is_settled", "source", "outlook", "since", "stopped"),
}
"""Fields added to a class of Keel's after a version was written that has long forms as hashes."""
LATER_CLASSES = {
    *("Handoff", "HandoffLine", "Hold", "ItemChange", "Note", "StatusChange"),
    *("Workspace", "WorkspaceDiff", "WorkspaceRestore"),
}
"""Classes of Keel's that are newer than the last golden version."""


def form(value: Any) -> Any:
    """Return a value as JSON that differs if types differ.

    The modules of Keel's own classes are ignored.
    """
    kind = type(value)
    if kind is int and value.bit_length() > _BITS:
        return ["int", _short(hex(value))]
    if value is None or kind in (bool, int, str):
        return _short(value) if kind is str else value
    name = kind.__qualname__ if kind.__module__.partition(".")[0] == "langgraph_keel" else _full(kind)
    parts = _parts(value)
    return [name, _short(repr(value))] if parts is None else _digest([name, *parts])


def _full(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _parts(value: Any) -> list[Any] | None:
    if isinstance(value, Enum):
        return [value.name or str(value.value)]
    if isinstance(value, str):  # also `ThreadId`
        return [str(value)]
    if isinstance(value, BaseException):
        return [form(value.args), form(vars(value)), str(value)]
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, Mapping):
        factory = getattr(value, "default_factory", None)
        return [factory and factory.__name__, [[form(key), form(value[key])] for key in value]]
    if isinstance(value, set | frozenset):
        return sorted((form(part) for part in value), key=repr)
    if isinstance(value, list | tuple | deque):
        return [getattr(value, "maxlen", None), *map(form, value)]
    fields = _fields(value)
    return None if fields is None else [{key: form(part) for key, part in fields.items()}]


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, BaseMessage):
        said = {key: part for key, part in value if part not in (None, "", [], {})}  # ignores LangChain's new fields
        return said | {"set": sorted(value.model_fields_set, key=str)}
    if isinstance(value, BaseModel):
        return dict(value) | (value.model_extra or {})
    if dataclasses.is_dataclass(value):
        later = LATER.get(type(value).__name__, ())
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.name not in later}
    return {"node": value.node, "arg": value.arg} if isinstance(value, Send) else None


def _short(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _LONG else f"{text[:_SHOWN]}... {len(text)} {_hash(text)}"


def _digest(form: list[Any]) -> Any:
    """Return a form; shorten a long one, because most of a store repeats."""
    text = json.dumps(form)
    return form if len(text) <= _LONG * 4 else [form[0], _short(text)]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def tuple_form(found: Any) -> Any:
    """Return the form of a checkpoint's tuple."""
    if found is None:
        return None
    checkpoint = dict(found.checkpoint)
    values = checkpoint.pop("channel_values")
    return {
        "config": config_form(found.config),
        "parent": config_form(found.parent_config),
        "metadata": {key: form(part) for key, part in sorted(found.metadata.items())},
        "checkpoint": {key: form(part) for key, part in sorted(checkpoint.items())},
        "values": {key: form(part) for key, part in values.items()},
        "writes": [form(list(write)) for write in found.pending_writes or []],
    }


def config_form(config: Any) -> Any:
    if config is None:
        return None
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return [config["configurable"].get(name) for name in names]


def moment_form(moment: Moment) -> Any:
    names = [each.name for each in dataclasses.fields(moment) if each.name != "owner"]
    return {name: form(getattr(moment, name)) for name in names}


def _key(checkpoint: Any) -> str:
    return json.dumps(checkpoint["config"][1:])


def thread_config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _thread(saver: KeelSaver, thread: str) -> dict[str, Any]:
    config, timeline, archive = thread_config(thread), saver.timeline(thread), saver.archive(thread)
    found = [tuple_form(each) for each in saver.list(config)]
    return {
        "checkpoints": found,
        "latest": tuple_form(saver.get_tuple(config)),
        "timeline": str(timeline.latest(1000)).splitlines(),
        "moments": [moment_form(moment) for moment in timeline],
        "diff": str(timeline.diff(0, -1)).splitlines() if len(timeline) > 1 else [],
        "labels": form(list(saver.labels.list(thread))),
        "requests": [form(each) for each in saver.approvals.pending(thread, status=STATUSES, limit=None)],
        "tools": [form(each) for each in saver.tools.calls(thread)],
        "provenance": [form(each) for each in saver.provenance.read(config)],
        "drifts": [form(each) for each in saver.provenance.drifts(thread)],
        "archive": [form(each) for each in archive],
        "archived": [form(each) for each in archive.messages()],
        "deltas": _deltas(saver, config) if thread == DELTA else None,
    }


def _deltas(saver: KeelSaver, config: Any) -> Any:
    found = saver.get_delta_channel_history(config=config, channels=["log"])
    return {channel: form(dict(history)) for channel, history in found.items()}


def seen(saver: KeelSaver) -> dict[str, Any]:
    """Return the content of a store, by the sync face."""
    threads = list(saver.threads())
    return {
        "threads": [form(each) for each in threads],
        "thread": {str(each.thread_id): _thread(saver, each.thread_id) for each in threads},
        "listed": [config_form(each.config) for each in saver.list(None)],
        "audit": [form(each) for each in saver.approvals.audit(limit=1000)],
        "verdict": form(saver.approvals.verify_audit()),
        "shared tools": [form(each) for each in saver.tools.calls(None)],
        "retention": form(list(saver.retention.policies())),
        "cache": form(KeelCache(saver).get([CACHE_KEY])),
    }


async def aseen(saver: KeelSaver) -> dict[str, Any]:
    """Return the async face's view of the same content."""
    said: dict[str, Any] = {}
    threads = [each async for each in saver.athreads()]
    for thread in (each.thread_id for each in threads):
        config, archive = thread_config(thread), saver.archive(thread)
        found = [tuple_form(each) async for each in saver.alist(config)]
        said[str(thread)] = {
            "checkpoints": found,
            "latest": tuple_form(await saver.aget_tuple(config)),
            "labels": form(list(await saver.labels.alist(thread))),
            "requests": [form(each) for each in await saver.approvals.apending(thread, status=STATUSES, limit=None)],
            "tools": [form(each) async for each in saver.tools.acalls(thread)],
            "provenance": [form(each) for each in await saver.provenance.aread(config)],
            "drifts": [form(each) for each in await saver.provenance.adrifts(thread)],
            "archive": [form(each) for each in await archive.aentries()],
            "archived": [form(each) for each in await archive.amessages()],
        }
    return {
        "threads": [form(each) for each in threads],
        "thread": said,
        "audit": [form(each) for each in await saver.approvals.aaudit(limit=1000)],
        "verdict": form(await saver.approvals.averify_audit()),
        "retention": form(list(await saver.retention.apolicies())),
        "cache": form(await KeelCache(saver).aget([CACHE_KEY])),
    }
