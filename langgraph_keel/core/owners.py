"""Whose a thread is: `user_id` in the config of a run, or what a program's own function says of that config.

It stands in the metadata of each checkpoint, where LangGraph puts what a config has configured, so copies and forks
carry it along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from langchain_core.runnables import RunnableConfig

from langgraph_keel.errors import InvalidInput

Owner: TypeAlias = Callable[[RunnableConfig], str | None]
USER = "user_id"


def owner_in(metadata: Mapping[str, Any]) -> str:
    """Return whose a checkpoint is, as its metadata says; empty if that says nothing."""
    owner = metadata.get(USER)
    # As LangGraph writes text into metadata. What is neither text nor a number (a UUID) it leaves out.
    return "" if owner is None else str(owner).replace("\0", "")


def owner_of(config: Mapping[str, Any], tell: Owner | None = None) -> str:
    """Return whose the thread of a run is; empty if nobody says.

    Args:
        config: The run's.
        tell: The program's own function, which is asked where the config does not say it.

    Raises:
        InvalidInput: The function failed, or returned something else than text.
    """
    for part in (config.get("configurable"), config.get("metadata")):
        if owner := owner_in(part or {}):
            return owner
    return _told(config, tell)


def _told(config: Mapping[str, Any], tell: Owner | None) -> str:
    """Return what a program's own function says; empty if there is none, or it says nothing.

    Raises:
        InvalidInput: It failed, or returned something else than text.
    """
    if tell is None:
        return ""
    try:
        owner = tell(cast(RunnableConfig, config))
    except Exception as error:
        raise InvalidInput(f"owner= failed, so nothing was written: {type(error).__name__}: {error}") from error
    if not isinstance(owner, str | None):
        raise InvalidInput(f"owner= must return a str or None, not {owner!r:.100}: nothing was written")
    return owner_in({USER: owner})
