"""Requests that are sent again because the connection broke before the reply arrived."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

was_sent_before: ContextVar[bool] = ContextVar("was_sent_before", default=False)
"""Whether the request that this thread or task is sending is a repetition."""


class Resent(list[Any]):
    """Replies to a repeated request, or from a client that may repeat requests: the caller's, or a Redis Cluster's.

    The first attempt may have been executed, and its effect undone since.
    """


def noted(replies: list[Any], is_again: bool = False) -> list[Any]:
    """Return the replies, as `Resent` if the request was, or may have been, sent before."""
    return Resent(replies) if is_again or was_sent_before.get() else replies
