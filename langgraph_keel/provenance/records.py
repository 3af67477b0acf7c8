"""Which model wrote a step, and with what: one record a call. No prompt, no key and no header of a request is stored.

A record is stored with the task's writes, so that a crash before the step's checkpoint does not lose it, and in the
header of the checkpoint that the step led to. It is known by LangChain's id of the call, and shown once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any, TypeAlias

from langgraph_keel.engine.serde.moved import publish

Record: TypeAlias = dict[str, Any]
"""A record as it is stored: what is known, under the names of `ModelCall`."""
CALLS = "__keel_calls__"
"""The name under which records stand among a task's writes; no channel of LangGraph's."""

PARAMETERS = frozenset((
    "effort", "frequency_penalty", "logprobs", "n", "parallel_tool_calls", "presence_penalty", "reasoning_effort",
    "repetition_penalty", "service_tier", "top_k", "top_logprobs", "verbosity",
))  # fmt: skip
"""Parameters that are kept under their own names, if they are scalars."""

_REFUSED = "refused"
# Where a record stands says these.
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
    """One call of a model, as `saver.provenance.read` returns it. What nobody reported is `None`, or empty.

    Attributes:
        id: LangChain's id of the call (its run id), a UUID.
        thread_id: The thread.
        checkpoint_ns: The namespace of the checkpoint below.
        checkpoint_id: The checkpoint the call led to; of a task that has failed or asks, the one it began from. With
            `durability="exit"`, which stores no others, the run's last one. `None` as long as nothing of it is stored.
        step: LangGraph's number of the step in the graph that called, that of the checkpoint it leads to there.
        node: The node that called.
        path: The node with those of the graphs around it, such as `"research|model"`.
        task_id: LangGraph's id of the task.
        attempt: 1, and more where LangGraph tried the task again; unknown in later steps of a sequence that is a node.
        run_id: The run's id, if the config named one.
        provider: Such as `"openai"`.
        model: The model that was asked for.
        served_model: The one that has answered, by its own word.
        system_fingerprint: The backend's configuration, as OpenAI reports it.
        seed: The seed.
        temperature: The temperature.
        top_p: The share of the probability mass that tokens were drawn from.
        max_tokens: Most tokens to answer with.
        stop: What would have ended the answer.
        parameters: Other parameters of the request, those that `PARAMETERS` names.
        tools: The names of the tools that the model could call, and a hash of the description of each.
        prompt_hash: A hash of all messages of the request, without ids.
        system_hash: A hash of the system messages alone.
        answer_hash: A hash of the answer, without ids.
        finish_reason: Why the answer ended.
        usage: Tokens as LangChain counts them (`input_tokens`, `output_tokens`, `total_tokens` and details).
        cost: What it cost, if the provider says so, in the provider's currency.
        cached: Whether LangChain's own cache has answered.
        started_at: When it began, ISO time, UTC.
        seconds: How long it took.
        error: The class of the error it ended in.
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
        """The names of the model, asked for and served."""
        return {name for name in (self.model, self.served_model) if name}


_FIELDS = {each.name: each for each in fields(ModelCall)}
_STORED = [name for name in _FIELDS if name not in _PLACE]


def record_of(facts: Mapping[str, Any]) -> Record:
    """Return a record of what is known; a seed or a temperature of 0 is, `False` is not."""
    return {name: value for name, value in facts.items() if value or (value == 0 and value is not False)}


def names_of(record: Record) -> set[str]:
    """Return the names of the model, asked for and served."""
    return {record[name] for name in ("model", "served_model") if name in record}


def pack_call(call: ModelCall) -> dict[str, Any]:
    """Return a record as it is stored: what differs from a record of which nothing is known."""
    values = ((name, getattr(call, name)) for name in _STORED)
    return {name: list(value) if type(value) is tuple else value for name, value in values if value != _UNKNOWN[name]}


_UNKNOWN = {name: getattr(ModelCall(id=""), name) for name in _STORED}


def unpack_call(stored: Any) -> ModelCall | None:
    """Return a record from what is stored, without what this version does not know or take; `None` if it is none."""
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
    """Return the records among what is stored."""
    parts: Iterable[Any] = stored if isinstance(stored, list) else ()
    return [call for part in parts if (call := unpack_call(part)) is not None]


def pack_refusal(ids: Iterable[str]) -> dict[str, Any]:
    """Return what stands among writes to say that these calls, stored with others, are of a run that was refused."""
    return {_REFUSED: sorted(ids)}


def refused_in(stored: Iterable[Any]) -> set[str]:
    """Return the ids of such calls, from what stands among writes, one item for each call of `put_writes`."""
    marks = (part.get(_REFUSED) for parts in stored if isinstance(parts, list) for part in parts if type(part) is dict)
    return {name for names in marks if isinstance(names, list) for name in names if isinstance(name, str)}


def strays_of(about: Mapping[str, Any]) -> list[tuple[Mapping[str, str], Any]]:
    """Return what runs before have left behind, as a header has it: where each call began, and its record."""
    strays = about.get("strays")
    pairs = [each for each in strays if isinstance(each, list) and len(each) == 2] if isinstance(strays, list) else []
    return [(lineage, record) for lineage, record in pairs if isinstance(lineage, dict)]
