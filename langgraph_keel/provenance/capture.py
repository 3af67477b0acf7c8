"""Captures every model call in a graph with a LangChain callback handler.

LangChain calls the handler in nodes, tools, tasks and threads. If a node starts a thread without its context, calls in
that thread are not recorded, as their place is unknown. Only keys of an allow-list are stored. Hashes exclude ids, so
equal requests have equal hashes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from math import isfinite
from threading import Lock
from typing import Any, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

import orjson
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langgraph.checkpoint.base.id import uuid6

from langgraph_keel._langgraph import (
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_RUNTIME,
    METADATA_NODE,
    METADATA_NS,
    METADATA_STEP,
    METADATA_VERSIONS,
    NS_END,
    NS_SEP,
    register_configure_hook,
    var_child_runnable_config,
)
from langgraph_keel.engine.config import run_of
from langgraph_keel.engine.engine import engine_of
from langgraph_keel.provenance.hook import Recorder, WaitingRecord, find_last_run
from langgraph_keel.provenance.records import PARAMETERS, record_of
from langgraph_keel.provenance.replay.compare import content_of

LONGEST = 200
"""Maximum characters of a name or a stop sequence."""
_SCALARS = (str, int, float, bool)
_Names: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Maps a source key to a field of a record and a conversion (`None` if invalid)."""

_log = logging.getLogger(__name__)


def hash_of(value: Any, size: int = 12) -> str:
    """Return a hexadecimal hash of a value's sorted JSON, or of its `repr`."""
    return blake2b(_text_of(value), digest_size=size).hexdigest()


def _text_of(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, a number of more than 64 bits, or too deep nesting
        return repr(value).encode(errors="backslashreplace")


# -- before the call -------------------------------------------------------------------------------------------


def hash_prompt(messages: Sequence[BaseMessage | str]) -> dict[str, Any]:
    """Return hashes of a request: of all messages, and of the system messages."""
    system = [message.content for message in messages if isinstance(message, SystemMessage)]
    return {"prompt_hash": hash_of(_contents(messages)), "system_hash": hash_of(system) if system else None}


def _contents(messages: Iterable[BaseMessage | str]) -> list[Any]:
    """Return the contents of messages, with numbers instead of random call ids."""
    numbers: dict[str | None, int] = {}
    return [message if isinstance(message, str) else _content(message, numbers) for message in messages]


def _content(message: BaseMessage, numbers: dict[str | None, int]) -> list[Any]:
    # A streamed answer is an `AIMessageChunk`; it must give the same hash.
    parts = [message.type.removesuffix("MessageChunk").lower(), message.name, content_of(message)]
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        parts.append([[numbers.setdefault(call["id"], len(numbers)), call["name"], call["args"]] for call in calls])
    if isinstance(message, ToolMessage):
        parts.append(numbers.setdefault(message.tool_call_id, len(numbers)))
    return parts


def describe_request(given: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that are known when a call starts."""
    metadata, params = _mapping(given.get("metadata")), _mapping(given.get("invocation_params"))
    nested = [params[name] for name in ("extra_body", "model_kwargs") if isinstance(params.get(name), dict)]
    if nested:
        params = {name: value for each in (*nested, params) for name, value in each.items() if value is not None}
    found = {**prompt, "provider": _text(params.get("_type"))}
    # Only these metadata keys are LangChain's and LangGraph's; all others are the user's.
    _take(metadata, _IN_METADATA, found)
    _take(params, _IN_REQUEST, found)
    if others := PARAMETERS & params.keys():
        short = (name for name in sorted(others) if isinstance(params[name], _SCALARS))
        found["parameters"] = {name: params[name] for name in short if len(str(params[name])) <= LONGEST}
    return found


def _take(source: Mapping[str, Any], names: _Names, found: dict[str, Any]) -> None:
    """Copy values to their fields; the last valid name of a field counts."""
    for name, (key, convert) in names.items():
        if name in source and (value := convert(source[name])) is not None:
            found[key] = value


def _first(source: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (value := source.get(name)) is not None:
            return value
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value[:LONGEST] if value and isinstance(value, str) else None


def _versions(given: Any) -> dict[str, str]:
    return {str(name): text for name, value in _mapping(given).items() if (text := _text(value))}


def _number(value: Any, kind: type[Any] = float) -> Any:
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return kind(value) if is_one else None


_count = partial(_number, kind=int)


def _stop(value: Any) -> list[str] | None:
    values = [value] if isinstance(value, str) else value
    return [each[:LONGEST] for each in values if isinstance(each, str)] if isinstance(values, list | tuple) else None


def _tools(given: Any) -> dict[str, str] | None:
    return {_name_of(tool): hash_of(tool, 6) for tool in given} if isinstance(given, list | tuple) else None


def _name_of(tool: Any) -> str:
    described = _mapping(tool)
    name = _mapping(described.get("function")).get("name") or described.get("name") or described.get("type")
    return _text(name) or type(tool).__name__


_IN_METADATA: _Names = {
    "ls_provider": ("provider", _text),
    "ls_model_name": ("model", _text),
    "ls_temperature": ("temperature", _number),
    "ls_max_tokens": ("max_tokens", _count),
    "ls_stop": ("stop", _stop),
    METADATA_VERSIONS: ("versions", _versions),
    METADATA_STEP: ("step", _count),
    METADATA_NODE: ("node", _text),
}
# `invoke(model=...)` changes `model` and leaves `model_name` as it was.
_IN_REQUEST: _Names = {
    "model_id": ("model", _text),
    "model_name": ("model", _text),
    "model": ("model", _text),
    "random_seed": ("seed", _count),
    "seed": ("seed", _count),
    "temperature": ("temperature", _number),
    "top_p": ("top_p", _number),
    "max_output_tokens": ("max_tokens", _count),
    "max_completion_tokens": ("max_tokens", _count),
    "max_tokens": ("max_tokens", _count),
    "stop_sequences": ("stop", _stop),
    "stop": ("stop", _stop),
    "functions": ("tools", _tools),
    "tools": ("tools", _tools),
}


# -- after the call --------------------------------------------------------------------------------------------


def describe_answer(result: LLMResult) -> dict[str, Any]:
    """Return the fields of a record that are known when a call ends."""
    generation = result.generations[0][0] if result.generations and result.generations[0] else None
    message = getattr(generation, "message", None)
    content = [message] if message else [generation.text] if generation else []
    found: dict[str, Any] = {"answer_hash": hash_of(_contents(content))}
    # Streams have no `llm_output`; messages always have their own metadata.
    parts = (
        result.llm_output,
        getattr(generation, "generation_info", None),
        getattr(message, "response_metadata", None),
    )
    about = {name: value for part in parts if part for name, value in _mapping(part).items() if value is not None}
    _take(about, _IN_ANSWER, found)
    usage = _mapping(getattr(message, "usage_metadata", None))
    if usage or "token_usage" in about or "usage" in about:
        costs = {**_mapping(_first(about, "token_usage", "usage")), **usage}
        found["usage"], found["cost"] = _numbers(usage), _number(_first(costs, "total_cost", "cost"))
        # LangChain's cache reports a cost of 0; providers do not.
        found["cached"] = usage.get("total_cost") == 0
    return found


_IN_ANSWER: _Names = {
    "model_id": ("served_model", _text),
    "model": ("served_model", _text),
    "model_name": ("served_model", _text),
    "system_fingerprint": ("system_fingerprint", _text),
    "stop_reason": ("finish_reason", _text),
    "finish_reason": ("finish_reason", _text),
}


def _numbers(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts, including nested details."""
    counts = {str(name): _number(value, type(value)) for name, value in usage.items()}
    details = {str(name): _numbers(value) for name, value in usage.items() if isinstance(value, Mapping)}
    return {name: value for name, value in (counts | details).items() if value not in (None, {})}


@dataclass(slots=True, weakref_slot=True)
class _Call:
    """A running call."""

    recorder: Recorder
    waiting: WaitingRecord
    clock: float = field(default_factory=time.perf_counter)

    def end(self, facts: Mapping[str, Any]) -> None:
        self.waiting.record.update(record_of({"seconds": round(time.perf_counter() - self.clock, 6), **facts}))
        self.recorder.end(self.waiting)


@dataclass(slots=True)
class _Place:
    recorder: Recorder
    thread_id: str
    run: object  # see `run_of`
    namespace: str  # LangGraph's namespace of the task: nodes and their tasks, outermost first
    lineage: Mapping[str, str]  # per namespace: id of the checkpoint from which its step started, or a younger one
    more: Mapping[str, Any]  # other fields of the record
    is_guessed: bool = False  # the caller may be another run, or a thread of this name of another saver


def _place_of(metadata: Mapping[str, Any]) -> _Place | None:
    """Return the place of a call; `None` outside a graph or if it is not recorded."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    values: Mapping[str, Any] = config.get("configurable") or {}
    info = getattr(values.get(CONFIG_KEY_RUNTIME), "execution_info", None)
    namespace = metadata.get(METADATA_NS)
    if isinstance(namespace, str) and namespace != getattr(info, "checkpoint_ns", None):
        return _place_by_metadata(metadata, namespace)
    # LangGraph may use a shallow copy of the saver; both share the recorder.
    engine = engine_of(values.get(CONFIG_KEY_CHECKPOINTER))
    recorder = engine.session.hooks.find(Recorder) if engine else None
    if recorder is None or info is None or info.thread_id is None:
        return None
    lineage = values.get(CONFIG_KEY_CHECKPOINT_MAP) or {"": info.checkpoint_id}
    more = {
        "task_id": info.task_id,
        "attempt": info.node_attempt if info.node_attempt > 1 else None,
        "run_id": None if info.run_id is None else str(info.run_id),
    }
    return _Place(recorder, str(info.thread_id), run_of(config), info.checkpoint_ns, lineage, more)


def _place_by_metadata(metadata: Mapping[str, Any], namespace: str) -> _Place | None:
    """Return the place of a call from the metadata that LangChain passes to it."""
    # If a node is a sequence (`prompt | model`), LangGraph runs only its first step in the context of its task. For
    # the other steps, use the saver that last accessed the thread. An id generated now is younger than the checkpoint
    # from which they started, and older than the one to which they lead.
    thread_id = str(metadata.get("thread_id"))
    found = find_last_run(thread_id)
    if found is None:
        return None
    segments = namespace.split(NS_SEP)
    now = str(uuid6())
    lineage = {NS_SEP.join(segments[:depth]): now for depth in range(len(segments))}
    run_id = metadata.get("run_id")
    more = {"task_id": segments[-1].partition(NS_END)[2], "run_id": None if run_id is None else str(run_id)}
    recorder, run = found
    return _Place(recorder, thread_id, run, namespace, lineage, more, is_guessed=True)


class Capture(BaseCallbackHandler):
    """The LangChain handler for the start and the end of each model call."""

    run_inline = True  # switching to another thread would cost 0.3 ms per `ainvoke`
    raise_error = True  # for `DriftDetected`; other errors are logged here
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the running calls."""
        # Only their records keep them alive, as LangChain does not report cancelled calls.
        self.under_way: WeakValueDictionary[UUID, _Call] = WeakValueDictionary()

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **more: Any
    ) -> None:
        """Note the start of a chat model's call, if it is in a graph whose saver records."""
        self._begin(run_id, messages[0], more)

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **more: Any) -> None:
        """Note the start of a plain text model's call."""
        self._begin(run_id, prompts, more)

    def _begin(self, run_id: UUID, messages: Sequence[BaseMessage | str], more: Mapping[str, Any]) -> None:
        try:
            place = _place_of(more.get("metadata") or {})
            if place is None or not place.recorder.captures:
                return
            segments = [segment.partition(NS_END) for segment in place.namespace.split(NS_SEP)]
            record = {
                "id": str(run_id),
                # A number counts the calls of one subgraph in one node.
                "path": NS_SEP.join([name for name, _, _ in segments if not name.isdecimal()]),
                **place.more,
                "graph_version": place.recorder.graph_version,
                "started_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                **describe_request(more, hash_prompt(messages)),
            }
            tasks = {place.more["task_id"], *[task for _, _, task in segments]} - {""}
            waiting = WaitingRecord(
                record_of(record), place.thread_id, place.lineage, tasks, place.run, place.is_guessed, is_ended=False
            )
            self.under_way[run_id] = waiting.call = _Call(place.recorder, waiting)
            place.recorder.waiting.add(waiting)
        except Exception:
            _log.warning("a model call could not be recorded", exc_info=True)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        """Pass the record of an answered call to the saver."""
        self._end(run_id, describe_answer, response)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Pass the record of a failed call or an abandoned stream to the saver."""
        # Only the class: the error's message may quote the request.
        self._end(run_id, lambda error: {"error": type(error).__name__}, error)

    def _end(self, run_id: UUID, describe: Callable[[Any], Mapping[str, Any]], outcome: Any) -> None:
        if call := self.under_way.pop(run_id, None):
            facts: Mapping[str, Any] = {}
            try:
                facts = describe(outcome)
            except Exception:
                _log.warning("the outcome of a model call could not be recorded", exc_info=True)
            call.end(facts)


CAPTURE = Capture()
if hasattr(os, "register_at_fork"):
    # Calls of the parent's other threads end in the parent.
    os.register_at_fork(after_in_child=CAPTURE.forget)
_handler: ContextVar[Any] = ContextVar("keel_capture", default=CAPTURE)  # raw threads see only the default
_register_lock = Lock()
_registered: list[ContextVar[Any]] = []


def watch() -> None:
    """Register the handler with LangChain, permanently; repeated calls have no effect."""
    with _register_lock:
        if not _registered:
            register_configure_hook(_handler, inheritable=True)
            _registered.append(_handler)
