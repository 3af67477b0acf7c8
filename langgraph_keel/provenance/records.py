"""Records of model calls, one per call, without prompts, keys or request headers.

A record is stored with the task's writes, so that a crash before the step's checkpoint does not lose it, and in the
header of the resulting checkpoint. LangChain's id of the call identifies it, so it is shown only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, TypeAlias

from langgraph_keel.engine.serde.moved import publish

Record: TypeAlias = dict[str, Any]
"""A stored record: the known values, under the attribute names of `ModelCall`."""
CALLS = "__keel_calls__"
"""The channel name of records among a task's writes; not a channel of LangGraph's."""

PARAMETERS = frozenset((
    "effort", "frequency_penalty", "logprobs", "n", "parallel_tool_calls", "presence_penalty", "reasoning_effort",
    "repetition_penalty", "service_tier", "top_k", "top_logprobs", "verbosity",
))  # fmt: skip
"""Request parameters that are recorded under their own names, if they are scalars."""

_REFUSED = "refused"
# Not stored: the place of a record determines these.
_PLACE = frozenset({"thread_id", "checkpoint_ns", "checkpoint_id"})

_KINDS: Mapping[Any, tuple[type, ...]] = {
    str: (str,),
    str | None: (str, NoneType),
    int: (int,),
    int | None: (int, NoneType),
    float | None: (int, float, NoneType),
    bool: (bool,),
    tuple[str, ...]: (list,),
    Mapping[str, Any]: (dict,),
    Mapping[str, str]: (dict,),
}


@publish
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One model call, as `saver.provenance.read` returns it.

    Unknown values are `None` or empty.

    Attributes:
        id: LangChain's id of the call (its run id), a UUID.
        thread_id: The thread.
        checkpoint_ns: The namespace of the checkpoint below.
        checkpoint_id: The checkpoint the call led to; for a failed or waiting task, the one it started from. With
            `durability="exit"`, which stores no others, the run's last one. `None` until the record is stored.
        step: LangGraph's number of the step, in the graph of the calling node.
        node: The calling node.
        path: The node, after the nodes of the graphs around it, such as `"research|model"`.
        task_id: LangGraph's id of the task.
        attempt: 1, or more if LangGraph retried the task; unknown in later steps of a node that is a sequence.
        run_id: The run's id, if the config has one.
        provider: The provider, such as `"openai"`.
        model: The requested model.
        served_model: The model that answered, as reported by the provider.
        system_fingerprint: The backend's configuration, as OpenAI reports it.
        seed: The seed.
        temperature: The temperature.
        top_p: The probability mass from which tokens were sampled.
        max_tokens: Maximum number of tokens of the answer.
        stop: The stop sequences.
        parameters: Other parameters of the request, those listed in `PARAMETERS`.
        tools: The names of the offered tools, each with a hash of its description.
        prompt_hash: A hash of all messages of the request, without ids.
        system_hash: A hash of the system messages alone.
        answer_hash: A hash of the answer, without ids.
        finish_reason: Why the answer ended.
        usage: Tokens as LangChain counts them (`input_tokens`, `output_tokens`, `total_tokens` and details).
        cost: The cost in the provider's currency, if the provider reports it.
        cached: Whether the answer came from LangChain's own cache.
        started_at: When the call started, ISO time, UTC.
        seconds: Duration.
        error: The class of the error, if the call failed.
        versions: The versions of the packages involved.
        graph_version: The application's own version, if the saver was given one.
    """

    id: str
    thread_id: str = ""
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    step: int | None = None
    node: str = ""
    path: str = ""
    task_id: str = ""
    attempt: int = 1
    run_id: str | None = None
    provider: str | None = None
    model: str | None = None
    served_model: str | None = None
    system_fingerprint: str | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    prompt_hash: str | None = None
    system_hash: str | None = None
    answer_hash: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    cost: float | None = None
    cached: bool = False
    started_at: str = ""
    seconds: float | None = None
    error: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    graph_version: str | None = None

    @property
    def names(self) -> set[str]:
        """The requested and the served name of the model."""
        return {name for name in (self.model, self.served_model) if name}


_FIELDS = {each.name: each for each in fields(ModelCall)}
_STORED = [name for name in _FIELDS if name not in _PLACE]


def record_of(facts: Mapping[str, Any]) -> Record:
    """Return a record of the known facts: 0 is kept, other false values are dropped."""
    return {name: value for name, value in facts.items() if value or (value == 0 and value is not False)}


def names_of(record: Record) -> set[str]:
    """Return the requested and the served name of the model."""
    return {record[name] for name in ("model", "served_model") if name in record}


def pack_call(call: ModelCall) -> dict[str, Any]:
    """Return a call as a stored record, without attributes that have their default."""
    values = ((name, getattr(call, name)) for name in _STORED)
    return {name: list(value) if type(value) is tuple else value for name, value in values if value != _UNKNOWN[name]}


_UNKNOWN = {name: getattr(ModelCall(id=""), name) for name in _STORED}


def unpack_call(stored: Any) -> ModelCall | None:
    """Return a call from the valid fields of a stored record; `None` if it is not one."""
    if not isinstance(stored, dict) or not isinstance(stored.get("id"), str):
        return None
    known: dict[str, Any] = {}
    for name, value in stored.items():
        if name not in _ACCEPTED or not isinstance(value, _ACCEPTED[name]):
            continue
        if isinstance(value, list):
            value = tuple(part for part in value if isinstance(part, str))
        elif isinstance(value, dict):
            kind = object if name in ("parameters", "usage") else str
            value = {key: part for key, part in value.items() if isinstance(key, str) and isinstance(part, kind)}
        known[name] = value
    return ModelCall(**known)


_ACCEPTED = {name: _KINDS[_FIELDS[name].type] for name in _STORED}


def unpack_calls(stored: Any) -> list[ModelCall]:
    """Return the calls in a stored list."""
    parts: Iterable[Any] = stored if isinstance(stored, list) else ()
    return [call for part in parts if (call := unpack_call(part)) is not None]


def pack_refusal(ids: Iterable[str]) -> dict[str, Any]:
    """Return the mark, stored among writes, that excludes calls of a refused run."""
    return {_REFUSED: sorted(ids)}


def refused_in(stored: Iterable[Any]) -> set[str]:
    """Return the ids of calls of refused runs, from records among writes."""
    marks = (part.get(_REFUSED) for parts in stored if isinstance(parts, list) for part in parts if type(part) is dict)
    return {name for names in marks if isinstance(names, list) for name in names if isinstance(name, str)}


def strays_of(about: Mapping[str, Any]) -> list[tuple[Mapping[str, str], Any]]:
    """Return the stray calls in a header: the lineage and the record of each."""
    strays = about.get("strays")
    pairs = [each for each in strays if isinstance(each, list) and len(each) == 2] if isinstance(strays, list) else []
    return [(lineage, record) for lineage, record in pairs if isinstance(lineage, dict)]
