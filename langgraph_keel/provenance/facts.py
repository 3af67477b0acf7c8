"""What LangChain says of a call, narrowed to what a record may hold: an allow-list, and nothing of any other key.

Providers name things differently; where they do, the names stand side by side here. Hashes are of content without ids,
which differ from run to run: equal requests have equal hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from math import isfinite
from typing import Any, TypeAlias

import orjson
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import LLMResult

from langgraph_keel.core.provenance import PARAMETERS
from langgraph_keel.provenance.comparison import content_of

LONGEST = 200
"""Most characters of a name or a stop sequence."""
_SCALARS = (str, int, float, bool)
_NUMBERS = (int, float)
_Names: TypeAlias = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Per name that somebody gives something: the field of a record, and what it takes of that, `None` for nothing."""


def hash_of(value: Any, size: int = 12) -> str:
    """Return a hash of a value, as hexadecimal digits: of its JSON with sorted keys, `repr` where there is no JSON."""
    return blake2b(_text_of(value), digest_size=size).hexdigest()


def _text_of(value: Any) -> bytes:
    try:
        return orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, a number of more than 64 bits, or nested too deep
        return repr(value).encode(errors="backslashreplace")


# -- before the call -------------------------------------------------------------------------------------------


def prompt_of(messages: Sequence[BaseMessage | str]) -> dict[str, Any]:
    """Return hashes of a request: of all messages, and of the system's own."""
    system = [message.content for message in messages if isinstance(message, SystemMessage)]
    return {"prompt_hash": hash_of(_contents(messages)), "system_hash": hash_of(system) if system else None}


def _contents(messages: Iterable[BaseMessage | str]) -> list[Any]:
    """Return what messages say; calls of tools are numbered, for their ids are random."""
    numbers: dict[str | None, int] = {}
    return [message if isinstance(message, str) else _content(message, numbers) for message in messages]


def _content(message: BaseMessage, numbers: dict[str | None, int]) -> list[Any]:
    # A stream's answer is a chunk (`AIMessageChunk`); it says the same.
    parts = [message.type.removesuffix("MessageChunk").lower(), message.name, content_of(message)]
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        parts.append([[numbers.setdefault(call["id"], len(numbers)), call["name"], call["args"]] for call in calls])
    if isinstance(message, ToolMessage):
        parts.append(numbers.setdefault(message.tool_call_id, len(numbers)))
    return parts


def asked_of(given: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that are known when a call begins.

    Args:
        given: What LangChain hands a callback: `invocation_params` and `metadata`.
        prompt: What `prompt_of` returned.
    """
    metadata, params = _mapping(given.get("metadata")), _merged(_mapping(given.get("invocation_params")))
    found = {**prompt, "provider": _text(params.get("_type"))}
    # Of the metadata only these names are LangChain's and LangGraph's; all others are the user's.
    _take(metadata, _SAID, found)
    _take(params, _ASKED, found)
    if others := PARAMETERS & params.keys():
        found["parameters"] = {name: params[name] for name in sorted(others) if _is_short(params[name])}
    return found


def _merged(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a request asks for, by whichever way it was given."""
    nested = [params[name] for name in ("extra_body", "model_kwargs") if isinstance(params.get(name), dict)]
    if not nested:
        return params
    return {name: value for source in (*nested, params) for name, value in source.items() if value is not None}


def _take(source: Mapping[str, Any], names: _Names, found: dict[str, Any]) -> None:
    """Take what is there under these names; the last name of a field that says something counts."""
    for name, (field, taken) in names.items():
        if name in source and (value := taken(source[name])) is not None:
            found[field] = value


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
    is_one = isinstance(value, _NUMBERS) and value is not True and value is not False and isfinite(value)
    return kind(value) if is_one else None


def _count(value: Any) -> Any:
    return _number(value, int)


def _is_short(value: Any) -> bool:
    return isinstance(value, _SCALARS) and len(str(value)) <= LONGEST


def _stop(value: Any) -> list[str] | None:
    values = [value] if isinstance(value, str) else value
    return [each[:LONGEST] for each in values if isinstance(each, str)] if isinstance(values, list | tuple) else None


def _tools(given: Any) -> dict[str, str] | None:
    return {_name_of(tool): hash_of(tool, 6) for tool in given} if isinstance(given, list | tuple) else None


def _name_of(tool: Any) -> str:
    described = _mapping(tool)
    name = _mapping(described.get("function")).get("name") or described.get("name") or described.get("type")
    return _text(name) or type(tool).__name__


_SAID: _Names = {
    "ls_provider": ("provider", _text),
    "ls_model_name": ("model", _text),
    "ls_temperature": ("temperature", _number),
    "ls_max_tokens": ("max_tokens", _count),
    "ls_stop": ("stop", _stop),
    "lc_versions": ("versions", _versions),
    "langgraph_step": ("step", _count),
    "langgraph_node": ("node", _text),
}
# `invoke(model=...)` changes `model` and leaves `model_name` as it was.
_ASKED: _Names = {
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


def answer_of(result: LLMResult) -> dict[str, Any]:
    """Return the fields of a record that are known when a call has ended."""
    generation = result.generations[0][0] if result.generations and result.generations[0] else None
    message = getattr(generation, "message", None)
    said = [message] if message else [generation.text] if generation else []
    found: dict[str, Any] = {"answer_hash": hash_of(_contents(said))}
    # Streams have no `llm_output`; messages always say what they know.
    parts = (
        result.llm_output,
        getattr(generation, "generation_info", None),
        getattr(message, "response_metadata", None),
    )
    about = {name: value for part in parts if part for name, value in _mapping(part).items() if value is not None}
    _take(about, _ANSWERED, found)
    usage = _mapping(getattr(message, "usage_metadata", None))
    if usage or "token_usage" in about or "usage" in about:
        costs = {**_mapping(_first(about, "token_usage", "usage")), **usage}
        found["usage"], found["cost"] = _numbers(usage), _number(_first(costs, "total_cost", "cost"))
        # What LangChain's cache answers, it says costs nothing (and providers do not say so).
        found["cached"] = usage.get("total_cost") == 0
    return found


_ANSWERED: _Names = {
    "model_id": ("served_model", _text),
    "model": ("served_model", _text),
    "model_name": ("served_model", _text),
    "system_fingerprint": ("system_fingerprint", _text),
    "stop_reason": ("finish_reason", _text),
    "finish_reason": ("finish_reason", _text),
}


def _numbers(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts, those of the details too."""
    counts = {str(name): _number(value, type(value)) for name, value in usage.items()}
    details = {str(name): _numbers(value) for name, value in usage.items() if isinstance(value, Mapping)}
    return {name: value for name, value in (counts | details).items() if value not in (None, {})}
