"""Requests that are sent again because the connection broke before the reply."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

was_sent_before: ContextVar[bool] = ContextVar("was_sent_before", default=False)
"""Whether the request that this thread or task is sending is a repetition."""


class Resent(list[Any]):
    """Replies to a request that was, or may have been, sent twice.

    A client may repeat requests by itself: the caller's, or that of a Redis Cluster. The first attempt may have been
    executed, and its effect undone since.
    """


def noted(replies: list[Any], is_again: bool = False) -> list[Any]:
    """Return the replies, as `Resent` if the request may have been sent before."""
    return Resent(replies) if is_again or was_sent_before.get() else replies
