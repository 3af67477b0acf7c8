"""Requests that are sent again, because the connection broke before the first reply came."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

was_sent_before: ContextVar[bool] = ContextVar("was_sent_before", default=False)
"""Whether the request that this thread or task is sending was sent before."""


class Resent(list[Any]):
    """Replies to such a request, or from a client that may send again by itself: a user's, or of a Redis Cluster.

    The first attempt may have been carried out, and its effect been undone since.
    """


def noted(replies: list[Any], is_again: bool = False) -> list[Any]:
    """Return replies, as `Resent` if the request was, or may have been, sent before."""
    return Resent(replies) if is_again or was_sent_before.get() else replies
