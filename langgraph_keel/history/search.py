"""How moments are searched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from langchain_core.messages import BaseMessage

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.display.messages import message_text
from langgraph_keel.history.moment import Moment

When: TypeAlias = datetime | Moment
"""A time, or the moment that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The conditions that a moment must meet; `None` is no condition.

    Attributes:
        node: A node whose work it stores.
        tool: A tool whose result it stores.
        model: A model that was called on the way to it.
        namespace: Its namespace, with or without the ids of tasks; `""` is the root graph's.
        channel: A channel that changed.
        text: A text in what was added, or in its summary, questions, errors or labels; upper and lower case are equal.
        asked: Whether a question was asked there.
        waits: Whether a question waits for its answer there.
        after: The moment came later than this.
        before: The moment came earlier than this.
        where: Any other condition; it is called with the moment.
    """

    node: str | None = None
    tool: str | None = None
    model: str | None = None
    label: str | None = None
    source: str | None = None
    step: int | None = None
    namespace: str | None = None
    channel: str | None = None
    text: str | None = None
    asked: bool | None = None
    waits: bool | None = None
    after: When | None = None
    before: When | None = None
    where: Callable[[Moment], object] | None = None

    def __call__(self, moment: Moment) -> bool:
        """Return whether a moment meets all conditions."""
        names: tuple[tuple[str | None, object], ...] = (
            (self.node, moment.nodes),
            (self.tool, {tool.name for tool in moment.tools}),
            (self.model, moment.models),
            (self.label, moment.labels),
            (self.channel, {change.channel for change in moment.changes}),
        )
        return (
            all(wanted is None or wanted in found for wanted, found in names)  # type: ignore[operator]
            and self.source in (None, moment.source)
            and self.step in (None, moment.step)
            and self.namespace in (None, moment.namespace, without_tasks(moment.namespace))
            and self.asked in (None, bool(moment.asked))
            and self.waits in (None, bool(moment.interrupts))
            and (self.text is None or self.text.casefold() in _text_of(moment).casefold())
            and (self.where is None or bool(self.where(moment)))
            and (self.after is None or _compare(moment, self.after) > 0)
            and (self.before is None or _compare(moment, self.before) < 0)
        )


def _text_of(moment: Moment) -> str:
    """Return the text of a moment in which a search for text looks."""
    new = (item for change in moment.changes for item in change.new)
    added = (message_text(item) if isinstance(item, BaseMessage) else str(item) for item in new)
    questions = (str(asked.value) for asked in moment.asked)
    return "\n".join([moment.summary, *added, *questions, *moment.errors, *moment.labels])


def without_tasks(namespace: str) -> str:
    """Return a namespace by its nodes alone."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


def _compare(moment: Moment, when: When) -> int:
    """Return 1 if a moment is later, -1 if it is earlier, else 0, also if its time is not known."""
    if isinstance(when, Moment):
        return (moment.position > when.position) - (moment.position < when.position)
    return 0 if moment.time is None else (moment.time > when) - (moment.time < when)


def time_of(text: str) -> datetime | None:
    """Return the time that a text in ISO format names, in local time if it has no zone; `None` if it is no time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
