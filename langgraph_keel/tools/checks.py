"""What can be said to be wrong before a tool has run: options of another kind, and names that no tool knows."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel

from langgraph_keel.errors import InvalidInput
from langgraph_keel.saver import KeelSaver
from langgraph_keel.tools.policy import ToolPolicy, checked_number

_log = logging.getLogger(__name__)


def check_cache(saver: Any, policies: Any, default: Any, secret: Any, lease: Any) -> None:
    """Check what a `ToolCache` is given.

    Raises:
        InvalidInput: It is not what it must be; the message names it.
    """
    if not isinstance(saver, KeelSaver):
        raise InvalidInput(f"ToolCache needs a saver of Keel, not a {type(saver).__name__}")
    if not isinstance(policies, Mapping):
        raise InvalidInput(f"policies={policies!r}: pass a dict of ToolPolicy by the names of tools")
    for name, policy in {**policies, "all others (default=)": default}.items():
        if not isinstance(policy, ToolPolicy | None):
            raise InvalidInput(f"the policy of {name}: use ToolPolicy(...) or None, not {policy!r}")
    if secret is not None and not isinstance(secret, bytes | bytearray):
        raise InvalidInput(f"the secret of a ToolCache is bytes, not {type(secret).__name__}")
    if secret is not None and len(secret) < 16:
        raise InvalidInput("the secret of a ToolCache has at least 16 bytes: secrets.token_bytes(32) makes a good one")
    checked_number("lease", lease, least=1)


def check_names(tool: BaseTool, policy: ToolPolicy) -> None:
    """Check that a tool has the arguments that its policy names.

    Raises:
        InvalidInput: It has not.
    """
    known = _arguments_of(tool)
    if known is None:
        return
    for name in policy.ignore:
        if name not in known:
            raise InvalidInput(f"ToolPolicy(ignore=[{name!r}]): {_has(tool, known)}")
    argument = policy.idempotency_argument
    if argument is not None and argument not in known:
        raise InvalidInput(f"ToolPolicy(idempotency_argument={argument!r}): {_has(tool, known)}")


def _has(tool: BaseTool, known: Collection[str]) -> str:
    return f"tool {tool.name!r} has no such argument; it has {', '.join(sorted(known)) or 'none'}"


def _arguments_of(tool: BaseTool) -> set[str] | None:
    """Return the names of a tool's arguments, those that are injected too; `None` if it takes any."""
    if isinstance(tool.args_schema, dict):
        takes_any = tool.args_schema.get("additionalProperties", False) is not False
        return None if takes_any else set(tool.args_schema.get("properties", ()))
    model = tool.get_input_schema()
    if not issubclass(model, BaseModel):
        return None
    fields = model.model_fields
    takes_any = model.model_config.get("extra") == "allow" or "kwargs" in fields
    return None if takes_any else {*fields, *(field.alias for field in fields.values() if field.alias)}


def warn_of_misspelt(tool: str, policies: Collection[str], tools: Collection[str]) -> None:
    """Log it if a tool has no policy, and one is there for nearly its name, which no tool has that is known."""
    unused = [name for name in policies if name not in tools]
    for name in difflib.get_close_matches(tool, unused, 1, 0.8) if tool not in policies else ():
        _log.warning("tool %r has no policy of its own, but %r has, which is no tool: is that misspelt?", tool, name)
