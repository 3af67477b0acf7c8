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
        label: One of its labels.
        source: Its `source`.
        step: Its step.
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
        return self._has_names(moment) and self._has_properties(moment) and self._is_between(moment)

    def _has_names(self, moment: Moment) -> bool:
        pairs: tuple[tuple[str | None, object], ...] = (
            (self.node, moment.nodes),
            (self.tool, {tool.name for tool in moment.tools}),
            (self.model, moment.models),
            (self.label, moment.labels),
            (self.channel, {change.channel for change in moment.changes}),
        )
        return all(wanted is None or wanted in names for wanted, names in pairs)  # type: ignore[operator]

    def _has_properties(self, moment: Moment) -> bool:
        return (
            self.source in (None, moment.source)
            and self.step in (None, moment.step)
            and self.namespace in (None, moment.namespace, without_tasks(moment.namespace))
            and self.asked in (None, bool(moment.asked))
            and self.waits in (None, bool(moment.interrupts))
            and (self.text is None or self.text.casefold() in _text_of(moment).casefold())
            and (self.where is None or bool(self.where(moment)))
        )

    def _is_between(self, moment: Moment) -> bool:
        is_after = self.after is None or _is_later(moment, self.after)
        return is_after and (self.before is None or _is_earlier(moment, self.before))


def _text_of(moment: Moment) -> str:
    """Return the text of a moment in which a search for text looks."""
    new = (item for change in moment.changes for item in change.new)
    added = (message_text(item) if isinstance(item, BaseMessage) else str(item) for item in new)
    questions = (str(asked.value) for asked in moment.asked)
    return "\n".join([moment.summary, *added, *questions, *moment.errors, *moment.labels])


def without_tasks(namespace: str) -> str:
    """Return a namespace by its nodes alone."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


def _is_later(moment: Moment, when: When) -> bool:
    if isinstance(when, Moment):
        return moment.position > when.position
    return moment.time is not None and moment.time > when


def _is_earlier(moment: Moment, when: When) -> bool:
    if isinstance(when, Moment):
        return moment.position < when.position
    return moment.time is not None and moment.time < when


def time_of(text: str) -> datetime | None:
    """Return the time that a text in ISO format names, in local time if it has no zone; `None` if it is no time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
