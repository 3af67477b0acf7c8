"""The conditions of a search for moments."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.display.messages import message_text
from langgraph_keel.history.moment import Moment

When: TypeAlias = datetime | Moment
"""A time, or the moment that has it."""


def text_of(moment: Moment) -> str:
    """Return the text of a moment in which a search for text looks."""
    new = (item for change in moment.changes for item in change.new)
    added = (message_text(item) if isinstance(item, BaseMessage) else str(item) for item in new)
    questions = (str(asked.value) for asked in moment.asked)
    return "\n".join([moment.summary, *added, *questions, *moment.errors, *moment.labels])


def without_tasks(namespace: str) -> str:
    """Return a namespace by its nodes alone."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


def compare(moment: Moment, when: When | None, unbound: int) -> int:
    """Return 1 if a moment is later than `when`, -1 if it is earlier, 0 if that is unknown, `unbound` for `None`."""
    if when is None:
        return unbound
    if isinstance(when, Moment):
        return (moment.position > when.position) - (moment.position < when.position)
    return 0 if moment.time is None else (moment.time > when) - (moment.time < when)


def time_of(text: str) -> datetime | None:
    """Return the time in a text in ISO format, in local time if it has no zone; `None` for other texts."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
