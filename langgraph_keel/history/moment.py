"""One checkpoint as a timeline shows it: read from headers, from what its step has stored, and from pending writes.

Some moments of a thread, oldest first, with what there is to see of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, overload

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt

from langgraph_keel.display.text import plain
from langgraph_keel.engine.config import config_of
from langgraph_keel.engine.records import Address
from langgraph_keel.errors import InvalidInput

SHORTEST_ID = 8
"""Characters of an id that people are shown at least; LangGraph's ids differ at the end."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a step did to one channel.

    Attributes:
        channel: Its name.
        text: What happened to it, in a few words.
        new: The elements that a list got, in order; empty for all else, and where they may not be revived here.
    """

    channel: str
    text: str
    new: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call of a tool whose result a step has stored.

    Attributes:
        name: The tool's name.
        is_replayed: Whether the ledger has answered, and the tool did not act (`ToolCache`).
    """

    name: str
    is_replayed: bool = False


class Owner(Protocol):
    """The timeline that a moment was taken from."""

    def label(self, at: Any, name: str) -> None:
        """Give a moment a name."""

    def rewind(self, at: Any) -> RunnableConfig:
        """Make a moment the latest again."""

    def fork(self, at: Any, thread_id: str | None = None) -> RunnableConfig:
        """Begin another way from a moment."""

    def values(self, at: Any) -> dict[str, Any]:
        """Return the state at a moment."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Moment:
    """One checkpoint. Two moments are equal if they are the same checkpoint.

    Attributes:
        address: Thread, namespace and id.
        position: Its place in its timeline, from 0 for the oldest; negative, from the end, while not all is read.
        parent: The id of the checkpoint it continues; `None` if it is the first, or if that one was pruned.
        step: The superstep's number, `-1` for the input; `None` if its metadata has none.
        source: `"input"`, `"loop"`, `"update"` or `"fork"`.
        time: When it was made; `None` if it does not say.
        nodes: The nodes whose work it stores.
        next: The nodes that run from here.
        changes: What became of the channels since its parent, of those that changed.
        summary: The same in one line.
        labels: The names people gave it.
        models: The models that led here, as served if they said so.
        tools: The tools whose results it stores.
        asked: The questions that its tasks asked, answered or not.
        interrupts: Those that wait for an answer.
        errors: What tasks failed with; only where nothing continues it.
        pending: Channels written by tasks that have finished, while others of the step have not.
        unread: The types that may not be revived here, of what its tasks have written or are to begin with.
        drift: What the thread went on with here that it was not written with, a line each.
        tokens: Input and output tokens of the models that led here, as far as they said so.
        cost: What they cost, as far as they said so; `None` if none did.
        bytes: Bytes that were stored for it: header and new values, as they are on disk; writes of tasks not counted.
        state_bytes: Bytes of all values that it shows, however many checkpoints share them; `None` while not known.
        is_head: Whether it is the latest of its namespace, from which a run without an id goes on.
        is_leaf: Whether nothing continues it.
        metadata: Its metadata.
        owner: The timeline that it was taken from.
    """

    address: Address
    position: int
    parent: str | None = None
    step: int | None = None
    source: str = ""
    time: datetime | None = None
    nodes: tuple[str, ...] = ()
    next: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    summary: str = ""
    labels: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    asked: tuple[Interrupt, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    errors: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    tokens: tuple[int, int] = (0, 0)
    cost: float | None = None
    bytes: int = 0
    state_bytes: int | None = None
    is_head: bool = False
    is_leaf: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    owner: Owner | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same checkpoint."""
        return self.address == other.address if isinstance(other, Moment) else NotImplemented

    def __hash__(self) -> int:
        """Hash by what tells checkpoints apart."""
        return hash(self.address)

    def __repr__(self) -> str:
        """Return what it is, in one line."""
        told = ", ".join(self.nodes) or self.source
        said = f"step {self.step}, {told}, {self.id}"
        return f"<Moment {self.position} of thread {self.thread_id!r}: {plain(said)}>"

    def __str__(self) -> str:
        """Return all there is to see of it, but for the state."""
        from langgraph_keel.history.render.details import moment_text

        return moment_text(self)

    def __rich__(self) -> Any:
        """Return the same for a terminal."""
        from langgraph_keel.history.render.details import moment_rich

        return moment_rich(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from langgraph_keel.history.render.details import moment_html

        return {"text/plain": str(self), "text/html": moment_html(self)}

    @property
    def id(self) -> str:
        """The checkpoint's id."""
        return str(self.address.checkpoint_id)

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        return self.address.thread_id

    @property
    def namespace(self) -> str:
        """The namespace; empty for the root graph."""
        return self.address.checkpoint_ns

    @property
    def config(self) -> RunnableConfig:
        """What to pass to a graph: `graph.invoke(None, moment.config)` runs from here, on a branch of its own."""
        return config_of(self.address, "named")

    @property
    def values(self) -> dict[str, Any]:
        """The state here, all of it decoded: read when it is asked for. Values of delta channels are not among it."""
        return self._owner.values(self)

    def label(self, name: str) -> None:
        """Give it a name, by which it is found and for which it is kept when the thread is pruned."""
        self._owner.label(self, name)

    def rewind(self) -> RunnableConfig:
        """Make it the latest again; see `Timeline.rewind`."""
        return self._owner.rewind(self)

    def fork(self, thread_id: str | None = None) -> RunnableConfig:
        """Begin another way from here; see `Timeline.fork`."""
        return self._owner.fork(self, thread_id)

    @property
    def _owner(self) -> Owner:
        if self.owner is None:
            raise InvalidInput("this moment was not taken from a timeline: use saver.timeline(thread_id)[...]")
        return self.owner


MOST_SHOWN = 500
"""Moments of a long list that a page shows, the newest: 10,000 would be 17 MB of HTML."""


class Moments(Sequence[Moment]):
    """A part of a timeline: a list of moments that shows itself.

    Args:
        moments: They, oldest first.
        older: How many come before them in the thread; `None` if that is not known.
        measure: Returns them with `state_bytes`, as far as a picture needs it.
        drawn: They as they are drawn, where not each continues one that is among them.
    """

    def __init__(
        self,
        moments: Sequence[Moment],
        older: int | None = 0,
        measure: Callable[[Sequence[Moment]], Sequence[Moment]] | None = None,
        drawn: Sequence[Moment] | None = None,
    ) -> None:
        self._moments = tuple(moments)
        self._drawn = self._moments if drawn is None else tuple(drawn)
        self._measure = measure
        self.older = older

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
            return Moments(self._moments[which], None, self._measure, self._drawn[which])
        return self._moments[which]

    def plot(self) -> Any:
        """Return a picture: size of the state, tokens and cost, step by step."""
        from langgraph_keel.history.render.plots import plot

        return plot(self._measure(self._moments) if self._measure else self._moments)

    def _shown(self) -> tuple[Sequence[Moment], int | None]:
        """Return those that fit a page, and how many come before them."""
        over = max(len(self._moments) - MOST_SHOWN, 0)
        return self._drawn[over:], None if self.older is None else self.older + over

    def __str__(self) -> str:
        """Return them as a table in plain text."""
        from langgraph_keel.history.render.terminal import as_text

        return as_text(*self._shown())

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return them as a table for a terminal: all of them."""
        from langgraph_keel.history.render.terminal import as_rich

        return as_rich(self._drawn, self.older)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        from langgraph_keel.history.render.html import as_html

        return as_html(*self._shown())
