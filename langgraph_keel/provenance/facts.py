"""What LangChain says of a call, narrowed to what a record may hold: an allow-list, and nothing of any other key.

Providers name things differently; where they do, the names stand side by side here. Hashes are of content without ids,
which differ from run to run: equal requests have equal hashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import LLMResult

from langgraph_keel.core.provenance import PARAMETERS

LONGEST = 200
"""Most characters of a name or a stop sequence."""
_SCALARS = (str, int, float, bool)


def hash_of(value: Any, size: int = 12) -> str:
    """Return a hash of a value, as hexadecimal digits: of its JSON with sorted keys, `repr` where there is no JSON."""
    text = orjson.dumps(value, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return blake2b(text, digest_size=size).hexdigest()


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
    content: Any = message.content
    if isinstance(content, list):
        content = [_without_id(block) for block in content]
    parts = [message.type, message.name, content]
    if isinstance(message, AIMessage):
        calls = message.tool_calls
        parts.append([[numbers.setdefault(call["id"], len(numbers)), call["name"], call["args"]] for call in calls])
    if isinstance(message, ToolMessage):
        parts.append(numbers.setdefault(message.tool_call_id, len(numbers)))
    return parts


def _without_id(block: Any) -> Any:
    return {key: part for key, part in block.items() if key != "id"} if isinstance(block, dict) else block


def asked_of(given: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record that are known when a call begins.

    Args:
        given: What LangChain hands a callback: `invocation_params` and `metadata`.
        prompt: What `prompt_of` returned.
    """
    params, metadata = given.get("invocation_params") or {}, given.get("metadata") or {}
    nested = [part for name in ("model_kwargs", "extra_body") if isinstance(part := params.get(name), Mapping)]
    sources = [params, *nested]
    # `invoke(model=...)` changes `model` and leaves `model_name` as it was: the order matters.
    return {
        **prompt,
        "provider": _text(metadata.get("ls_provider") or params.get("_type")),
        "model": _text(_first([*sources, metadata], "model", "model_name", "model_id", "ls_model_name")),
        "seed": _number(_first(sources, "seed", "random_seed"), int),
        "temperature": _number(_first([*sources, metadata], "temperature", "ls_temperature")),
        "top_p": _number(_first(sources, "top_p")),
        "max_tokens": _number(
            _first([*sources, metadata], "max_tokens", "max_completion_tokens", "max_output_tokens", "ls_max_tokens"),
            int,
        ),
        "stop": _stop(_first([*sources, metadata], "stop", "stop_sequences", "ls_stop")),
        "parameters": {name: value for name in sorted(PARAMETERS) if _is_short(value := _first(sources, name))},
        "tools": _tools(_first(sources, "tools", "functions")),
        "versions": {str(name): str(value) for name, value in _mapping(metadata.get("lc_versions")).items()},
        "step": _number(metadata.get("langgraph_step"), int),
        "node": _text(metadata.get("langgraph_node")) or "",
    }


def _first(sources: Iterable[Mapping[str, Any]], *names: str) -> Any:
    return next((source[name] for source in sources for name in names if source.get(name) is not None), None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value[:LONGEST] if isinstance(value, str) else None


def _number(value: Any, kind: type[Any] = float) -> Any:
    return kind(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_short(value: Any) -> bool:
    return isinstance(value, _SCALARS) and len(str(value)) <= LONGEST


def _stop(value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return tuple(each[:LONGEST] for each in values if isinstance(each, str))


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
    about = [
        _mapping(getattr(message, "response_metadata", None)),
        _mapping(getattr(generation, "generation_info", None)),
        _mapping(result.llm_output),
    ]
    usage = _mapping(getattr(message, "usage_metadata", None))
    cost = _first([usage, *(_mapping(_first([part], "token_usage", "usage")) for part in about)], "total_cost", "cost")
    return {
        "served_model": _text(_first(about, "model_name", "model", "model_id")),
        "system_fingerprint": _text(_first(about, "system_fingerprint")),
        "finish_reason": _text(_first(about, "finish_reason", "stop_reason")),
        "usage": _numbers(usage),
        "cost": _number(cost),
        # What LangChain's cache answers, it says costs nothing (and providers do not say so).
        "cached": usage.get("total_cost") == 0,
        "answer_hash": hash_of(_contents(said)),
    }


def _numbers(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts, those of the details too."""
    counts = {str(name): _number(value, type(value)) for name, value in usage.items()}
    details = {str(name): _numbers(value) for name, value in usage.items() if isinstance(value, Mapping)}
    return {name: value for name, value in (counts | details).items() if value not in (None, {})}
