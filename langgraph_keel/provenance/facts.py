"""What LangChain says of a call, narrowed to what a record may hold: an allow-list, and nothing of any other key.

Providers name things differently; where they do, the names stand side by side here. Hashes are of content without ids,
which differ from run to run: equal requests have equal hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import isfinite
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import LLMResult

from langgraph_keel.core.provenance import PARAMETERS
from langgraph_keel.provenance.comparison import content_of

LONGEST = 200
"""Most characters of a name or a stop sequence."""
_SCALARS = (str, int, float, bool)


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
    return {
        **prompt,
        "provider": _text(metadata.get("ls_provider") or params.get("_type")),
        # `invoke(model=...)` changes `model` and leaves `model_name` as it was: the order matters.
        "model": _text(_known(params, metadata, "ls_model_name", "model", "model_name", "model_id")),
        "seed": _number(_first(params, "seed", "random_seed"), int),
        "temperature": _number(_known(params, metadata, "ls_temperature", "temperature")),
        "top_p": _number(params.get("top_p")),
        "max_tokens": _number(_known(params, metadata, "ls_max_tokens", *_MAX_TOKENS), int),
        "stop": _stop(_known(params, metadata, "ls_stop", "stop", "stop_sequences")),
        "parameters": {name: params[name] for name in sorted(PARAMETERS & params.keys()) if _is_short(params[name])},
        "tools": _tools(_first(params, "tools", "functions")),
        "versions": _versions(metadata.get("lc_versions")),
        "step": _number(metadata.get("langgraph_step"), int),
        "node": _text(metadata.get("langgraph_node")) or "",
    }


_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def _merged(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request asks for, by whichever way it was given."""
    nested = [_mapping(params.get(name)) for name in ("extra_body", "model_kwargs")]
    return {name: value for source in (*nested, params) for name, value in source.items() if value is not None}


def _known(params: Mapping[str, Any], metadata: Mapping[str, Any], standard: str, *names: str) -> Any:
    """Return what the request asks for by one of these names; or what LangChain says of it, under its own name.

    Of the metadata only those names are LangChain's; all others are the user's.
    """
    value = _first(params, *names)
    return metadata.get(standard) if value is None else value


def _first(source: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if (value := source.get(name)) is not None:
            return value
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _versions(given: Any) -> dict[str, str]:
    return {str(name): text for name, value in _mapping(given).items() if (text := _text(value))}


def _number(value: Any, kind: type[Any] = float) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _is_short(value: Any) -> bool:
    return isinstance(value, _SCALARS) and len(str(value)) <= LONGEST


def _stop(value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return [each[:LONGEST] for each in values if isinstance(each, str)]


def _tools(given: Any) -> dict[str, str]:
    tools = given if isinstance(given, list | tuple) else ()
    return {_name_of(tool): hash_of(tool, 6) for tool in tools}


def _name_of(tool: Any) -> str:
    described = _mapping(tool)
    name = _mapping(described.get("function")).get("name") or described.get("name") or described.get("type")
    return _text(name) or type(tool).__name__


# -- after the call --------------------------------------------------------------------------------------------


def answer_of(result: LLMResult) -> dict[str, Any]:
    """Return the fields of a record that are known when a call has ended."""
    generation = result.generations[0][0] if result.generations and result.generations[0] else None
    message = getattr(generation, "message", None)
    said = [message] if message else [generation.text] if generation else []
    # Streams have no `llm_output`; messages always say what they know.
    parts = [
        _mapping(result.llm_output),
        _mapping(getattr(generation, "generation_info", None)),
        _mapping(getattr(message, "response_metadata", None)),
    ]
    about = {name: value for part in parts for name, value in part.items() if value is not None}
    usage = _mapping(getattr(message, "usage_metadata", None))
    costs = {**_mapping(_first(about, "token_usage", "usage")), **usage}
    return {
        "served_model": _text(_first(about, "model_name", "model", "model_id")),
        "system_fingerprint": _text(about.get("system_fingerprint")),
        "finish_reason": _text(_first(about, "finish_reason", "stop_reason")),
        "usage": _numbers(usage),
        "cost": _number(_first(costs, "total_cost", "cost")),
        # What LangChain's cache answers, it says costs nothing (and providers do not say so).
        "cached": usage.get("total_cost") == 0,
        "answer_hash": hash_of(_contents(said)),
    }


def _numbers(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts, those of the details too."""
    counts = {str(name): _number(value, type(value)) for name, value in usage.items()}
    details = {str(name): _numbers(value) for name, value in usage.items() if isinstance(value, Mapping)}
    return {name: value for name, value in (counts | details).items() if value not in (None, {})}
