"""Requests that are sent again, because the connection broke before the reply to the first attempt came."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

was_sent_before: ContextVar[bool] = ContextVar("was_sent_before", default=False)
"""Whether what this thread or task is sending was sent before."""


class Resent(list[Any]):
    """Replies to such a request: the first attempt may have been carried out, and its effect been undone since.

    So are all replies that come through a client which sends again by itself and does not say so: one that the user has
    passed, or one of a Redis Cluster.
    """


def noted(replies: list[Any], is_again: bool = False) -> list[Any]:
    """Return replies, as `Resent` if the request was, or may have been, sent before."""
    return Resent(replies) if is_again or was_sent_before.get() else replies
