"""`Moment`, one checkpoint of a thread, and `Moments`, a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

from langchain_core.runnables import RunnableConfig

from langgraph_keel.display.text import plain
from langgraph_keel.engine.config import config_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.records import MomentRecord

MOST_SHOWN = 500
"""Maximum moments on a page, the newest: 10,000 would be 17 MB of HTML."""


@publish
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Moment(MomentRecord):
    """One checkpoint. Two moments are equal if they are the same checkpoint.

    Attributes:
        address: Thread, namespace and id.
        position: Its position in the timeline: 0 is the oldest. Negative (counted from the end) until all is read.
        parent: The id of its parent checkpoint; `None` if it is the first, or its parent was pruned.
        step: The superstep's number, `-1` for the input; `None` if its metadata has none.
        source: `"input"`, `"loop"`, `"update"` or `"fork"`.
        time: When it was made; `None` if not stored.
        nodes: The nodes whose work it stores.
        next: The nodes that run from here.
        changes: The channels that changed since its parent, and how.
        summary: The same in one line.
        labels: Its labels.
        models: The models called since its parent, by the names under which they answered, if known.
        tools: The tools whose results it stores.
        asked: The questions that its tasks asked, answered or not.
        interrupts: The open questions.
        errors: The errors of its tasks; empty if another checkpoint continues it.
        pending: Channels written by finished tasks of a step whose other tasks have not finished.
        unread: Types of values (changed values, writes or inputs of tasks) that may not be revived here; an `Unread`
            replaces each.
        drift: Changes of model, prompt and tools since the thread started, a line each.
        tokens: Input and output tokens of those models, as far as they reported them.
        cost: Cost of those calls, as far as the models reported it; `None` if none did.
        bytes: Bytes stored for it: header and new values, as they are on disk, without the writes of tasks.
        state_bytes: Bytes of all values in its state, including shared ones; `None` while not known.
        is_head: Whether it is the latest of its namespace, from which a run without an id continues.
        is_leaf: Whether no checkpoint continues it.
        metadata: Its metadata.
        owner: The timeline that it was taken from.
    """

    owner: Any = None  # a `Timeline`, whose module imports this one

    def __repr__(self) -> str:
        """Return position, thread, step and id in one line."""
        ran = ", ".join(self.nodes) or self.source
        return f"<Moment {self.position} of thread {self.thread_id!r}: {plain(f'step {self.step}, {ran}, {self.id}')}>"

    def __str__(self) -> str:
        """Return all its fields as text, without the state."""
        from langgraph_keel.history.render.details import MomentPage
        from langgraph_keel.history.render.terminal import page_text

        return page_text(MomentPage(self))

    def __rich__(self) -> Any:
        """Return the same for a terminal."""
        from langgraph_keel.history.render.details import MomentPage

        return MomentPage(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from langgraph_keel.history.render.details import moment_html

        return {"text/plain": str(self), "text/html": moment_html(self)}

    @property
    def config(self) -> RunnableConfig:
        """The config: `graph.invoke(None, moment.config)` starts a branch here."""
        return config_of(self.address, "named")

    @property
    def values(self) -> dict[str, Any]:
        """The whole state, read on access; of delta channels, only messages."""
        return cast(dict[str, Any], self._owner.values(self))

    async def avalues(self) -> dict[str, Any]:
        """As `values`, asynchronously."""
        return cast(dict[str, Any], await self._owner.avalues(self))

    def label(self, name: str) -> None:
        """Name it. Timelines accept the name, and prunes keep the moment."""
        self._owner.label(self, name)

    async def alabel(self, name: str) -> None:
        """As `label`, asynchronously."""
        await self._owner.alabel(self, name)

    def rewind(self, *, by: str | None = None) -> RunnableConfig:
        """Make it the latest again; see `Timeline.rewind`."""
        return cast(RunnableConfig, self._owner.rewind(self, by=by))

    async def arewind(self, *, by: str | None = None) -> RunnableConfig:
        """As `rewind`, asynchronously."""
        return cast(RunnableConfig, await self._owner.arewind(self, by=by))

    def fork(self, thread_id: str | None = None, *, by: str | None = None) -> RunnableConfig:
        """Fork the thread here; see `Timeline.fork`."""
        return cast(RunnableConfig, self._owner.fork(self, thread_id, by=by))

    async def afork(self, thread_id: str | None = None, *, by: str | None = None) -> RunnableConfig:
        """As `fork`, asynchronously."""
        return cast(RunnableConfig, await self._owner.afork(self, thread_id, by=by))

    @property
    def _owner(self) -> Any:
        if self.owner is None:
            raise InvalidInput("this moment was not taken from a timeline: use saver.timeline(thread_id)[...]")
        return self.owner


class Moments(Sequence[Moment]):
    """A part of a timeline: moments, oldest first, that display themselves."""

    def __init__(
        self, moments: Sequence[Moment], older: int | None, timeline: Any, drawn: Sequence[Moment] | None = None
    ) -> None:
        self._moments = tuple(moments)
        # In a list with gaps: the same moments, each with its nearest listed ancestor as parent.
        self._drawn = self._moments if drawn is None else tuple(drawn)
        self._timeline = timeline
        self.older = older  # number of older moments in the thread; `None` if not known

    def __len__(self) -> int:
        """Count them."""
        return len(self._moments)

    @overload
    def __getitem__(self, which: int) -> Moment: ...
    @overload
    def __getitem__(self, which: slice) -> Moments: ...
    def __getitem__(self, which: int | slice) -> Moment | Moments:
        """Return one of them, or some."""
        if isinstance(which, slice):
            return Moments(self._moments[which], None, self._timeline, self._drawn[which])
        return self._moments[which]

    def plot(self) -> Any:
        """Return a plot of state size, tokens and cost, step by step."""
        return self._timeline.plot(self._moments)

    async def aplot(self) -> Any:
        """As `plot`, asynchronously."""
        return await self._timeline.aplot(self._moments)

    def _newest(self) -> tuple[Sequence[Moment], int | None]:
        """Return the moments that fit a page, and the number of older ones."""
        over = max(len(self._moments) - MOST_SHOWN, 0)
        return self._drawn[over:], None if self.older is None else self.older + over

    def __str__(self) -> str:
        """Return them as a table in plain text."""
        from langgraph_keel.history.render.terminal import TimelinePage, page_text

        return page_text(TimelinePage(*self._newest()))

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return all of them as a table for a terminal."""
        from langgraph_keel.history.render.terminal import TimelinePage

        return TimelinePage(self._drawn, self.older)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        from langgraph_keel.history.render.html import timeline_html

        return timeline_html(*self._newest())
