"""A thread as a list of moments: to look at, to search, and to go back in. It is read only as far as somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast, overload

from langchain_core.runnables import RunnableConfig

from langgraph_keel.display.text import count_of
from langgraph_keel.engine.config import Address, address_of, config_of
from langgraph_keel.engine.engine import Engine, engine_of
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, MomentNotFound, NotFound
from langgraph_keel.history.comparison import Comparison, compare_branches
from langgraph_keel.history.diff import StateDiff
from langgraph_keel.history.moment import Moment, Moments, TimelineDoor
from langgraph_keel.history.reading import SHORTEST_PART, STRETCH, Pages
from langgraph_keel.history.search import Search, When, time_of

SHOWN = 20
"""Moments that are shown if nobody asks for more."""

T = TypeVar("T")
Reference: TypeAlias = Moment | int | str | Mapping[str, Any]
"""A moment: itself, its position, its id or the unique beginning or end of it, its label, or its config."""


class Saver(Protocol):
    """What a timeline needs of a saver."""

    def diff(self, before: Any, after: Any) -> StateDiff:
        """Compare two checkpoints."""

    def rewind(self, at: Any, *, by: str | None = None) -> RunnableConfig:
        """Make a checkpoint the latest again."""

    def fork(self, at: Any, thread_id: str | None = None, *, by: str | None = None) -> RunnableConfig:
        """Begin another way from a checkpoint."""

    def label(self, at: Any, name: str) -> None:
        """Give a checkpoint a name."""

    def unlabel(self, thread_id: str, name: str) -> None:
        """Take a name back."""

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""

    def get_tuple(self, config: RunnableConfig) -> Any:
        """Read a checkpoint."""

    @property
    def engine(self) -> Engine:
        """What it runs on."""


class Listing:
    """A thread's moments, oldest first: by position, by name, or by a search.

    Args:
        pages: Makes an empty `Pages`, which holds what is read of the thread.
    """

    def __init__(self, saver: Saver, thread_id: str, pages: Callable[[], Pages]) -> None:
        self.thread_id = thread_id
        self._saver = saver
        self._new = pages
        self.pages = pages()

    def refresh(self) -> Self:
        """Forget what was read, and return itself: the thread may have gone on."""
        self.pages = self._new()
        return self

    # -- as a list ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the moments. All headers are read."""
        self._read(None)
        return len(self.pages.entries)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        self._read(1)
        return bool(self.pages.entries)

    def __iter__(self) -> Iterator[Moment]:
        """Yield the moments, oldest first, read as they are needed."""
        for start in range(0, len(self), STRETCH):
            yield from self[start : start + STRETCH]

    @overload
    def __getitem__(self, which: slice) -> Moments: ...
    @overload
    def __getitem__(self, which: Reference) -> Moment: ...
    def __getitem__(self, which: slice | Reference) -> Moment | Moments:
        """Return a moment by anything that names it, or a slice of moments."""
        if not isinstance(which, slice):
            return self.moment(which)
        if type(which.start) is int and which.start < 0 and which.stop is None and which.step in (None, 1):
            return self.latest(-which.start)
        positions = range(len(self))[which]
        if not positions:
            return Moments((), 0, self._measure)
        low, high = min(positions), max(positions)
        found = {moment.position: moment for moment in self._between(len(self) - 1 - high, len(self) - low)}
        moments = [found[each] for each in positions if each in found]
        return Moments(moments, low, self._measure) if which.step in (None, 1) else self._select(moments)

    def latest(self, count: int = SHOWN) -> Moments:
        """Return the moments that were put last."""
        moments = self._between(0, count)
        older = len(self.pages.entries) - len(moments) if self.pages.is_whole else None
        return Moments(moments, older, self._measure)

    def _between(self, start: int, stop: int) -> list[Moment]:
        """Return the moments at places counted from the newest, oldest first."""
        found = self._saver.engine.run(self.pages.moments(range(start, stop)))
        return [replace(moment, owner=cast(TimelineDoor, self)) for moment in reversed(found)]

    def _read(self, count: int | None) -> None:
        self._saver.engine.run(self.pages.upto(count))

    def _measure(self, moments: Sequence[Moment]) -> Sequence[Moment]:
        places = [place for moment in moments if (place := self.pages.place_of(moment.address)) is not None]
        sizes = self._saver.engine.run(self.pages.measured(places))
        return [replace(moment, state_bytes=sizes.get(moment.address)) for moment in moments]

    # -- finding moments ---------------------------------------------------------------------------------------

    def moment(self, which: Reference) -> Moment:
        """Return the moment that an id, a label, a position or a config names.

        Raises:
            MomentNotFound: There is no such position; it is an `IndexError`, too.
            NotFound: There is no such moment.
            InvalidInput: It belongs to another thread, or several ids begin or end so.
        """
        found = self._between(place := self._place(which), place + 1)
        if not found:
            raise NotFound(f"thread {self.thread_id!r}: the moment {which!r} was deleted")
        return found[0]

    def _place(self, which: Reference) -> int:
        if isinstance(which, int):
            self._read(-which if which < 0 else None)
            count = len(self.pages.entries)
            if not -count <= which < count:
                moments = count_of(count, "moment")
                raise MomentNotFound(f"thread {self.thread_id!r} has {moments}: there is no moment {which}")
            return -1 - which if which < 0 else count - 1 - which
        if isinstance(which, str):
            return self._place_by_name(which)
        address = which.address if isinstance(which, Moment) else address_of(which)
        if address.thread_id != self.thread_id:
            raise InvalidInput(f"{address.thread_id!r} is another thread than {self.thread_id!r}, which this shows")
        return self._place_of(address)

    def _place_of(self, address: Address) -> int:
        self._read(1)
        if address.checkpoint_id is None:
            address = self.pages.head(address.checkpoint_ns) or address
        if self.pages.place_of(address) is None:
            self._read(None)
        place = self.pages.place_of(address)
        if place is None:
            raise NotFound(f"{address}: there is no such moment")
        return place

    def _place_by_name(self, name: str) -> int:
        self._read(1)
        if labelled := self.pages.labelled(name):
            return self._place_of(labelled)
        self._read(None)
        places = self.pages.named(name)
        if len(places) > 1:
            count = f"{len(places)} ids begin or end with {name!r}"
            raise InvalidInput(f"thread {self.thread_id!r}: {count}: give more of it")
        if not places and len(name) < SHORTEST_PART:
            why = (
                f"no label, and too short for a part of an id, of which at least {SHORTEST_PART} characters are needed"
            )
            raise NotFound(f"thread {self.thread_id!r} has no moment {name!r}: {why}")
        if not places:
            raise NotFound(f"thread {self.thread_id!r} has no moment {name!r}: no label, and no id begins or ends so")
        return places[0]

    def find(
        self,
        *,
        node: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        label: str | None = None,
        source: str | None = None,
        step: int | None = None,
        namespace: str | None = None,
        channel: str | None = None,
        text: str | None = None,
        asked: bool | None = None,
        waits: bool | None = None,
        after: datetime | Reference | None = None,
        before: datetime | Reference | None = None,
        where: Callable[[Moment], object] | None = None,
    ) -> Moments:
        """Return the moments that meet all of these conditions, oldest first. The whole thread is searched.

        Args:
            node: A node whose work they store.
            tool: A tool whose result they store.
            model: A model that was called on the way to them.
            label: One of their labels.
            source: Their `source`: `"input"`, `"loop"`, `"update"` or `"fork"`.
            step: Their step.
            namespace: Their namespace; `""` is the root graph's.
            channel: A channel that changed.
            text: A text in what was added, or in their summary, questions, errors or labels; case does not matter.
            asked: Whether a question was asked there, answered or not.
            waits: Whether a question waits for its answer there.
            after: They came later than this: a time (also as ISO text), or a moment.
            before: They came earlier than this.
            where: Any other condition; it is called with each moment.

        Raises:
            InvalidInput: `after` or `before` names neither a time nor a moment.
        """
        self._read(None)  # positions count from the first, once that is known
        search = Search(
            node=node,
            tool=tool,
            model=model,
            label=label,
            source=source,
            step=step,
            namespace=namespace,
            channel=channel,
            text=text,
            asked=asked,
            waits=waits,
            after=self._when(after),
            before=self._when(before),
            where=where,
        )
        return self._select([moment for moment in self if search(moment)])

    def _select(self, moments: Sequence[Moment]) -> Moments:
        """Return some moments as a list. Drawn, each continues the nearest one before it in the list."""
        shown = {moment.address for moment in moments}
        drawn = [replace(moment, parent=self.pages.nearest(moment.address, shown)) for moment in moments]
        return Moments(moments, 0, self._measure, drawn)

    def _when(self, when: datetime | Reference | None) -> When | None:
        if when is None:
            return None
        if isinstance(when, str) and self.pages.labelled(when) is None and (time := time_of(when)):
            return time
        if isinstance(when, datetime):
            return when.astimezone()
        try:
            return self.moment(when)
        except (NotFound, InvalidInput) as error:
            raise InvalidInput(
                f"{when!r} is neither a time (a datetime, or text in ISO format) nor a moment"
            ) from error


__all__ = ["SHOWN", "Timeline"]


@publish
class Timeline(Listing):
    """A thread's moments, oldest first. `tl[0]` is the first one, `tl[-1]` the one that was put last.

    It shows the thread as it was when it was first read; `refresh()` reads it again. Headers are read in pages, newest
    first, so `tl[-20:]` of a long thread reads little; `len(tl)`, `tl[14]` and a search read all headers.

    Every method that takes a moment takes the moment itself, its position, its checkpoint id (or a unique end of the
    id), its label, or its config.

    Args:
        saver: Where the thread is.
        thread_id: The thread.
        pages: Makes an empty `Pages`, which holds what is read of the thread.
    """

    # -- going through it --------------------------------------------------------------------------------------

    def values(self, at: Reference) -> dict[str, Any]:
        """Return the state at a moment, all of it decoded; without delta channels, which only their graph can make.

        Raises:
            NotFound: There is no such moment.
            RefusedType: A value is of a type that may not be revived here (`saver.raw.timeline(...)` shows the others).
        """
        moment = self.moment(at)
        found = self._saver.get_tuple(moment.config)
        if found is None:
            raise NotFound(f"{moment.address}: it was deleted")
        return dict(found.checkpoint["channel_values"])

    @property
    def head(self) -> Moment:
        """The latest moment of the root graph, from which a run goes on. What was put last may be on a branch instead.

        Raises:
            NotFound: The thread has none.
        """
        return self.moment({"configurable": {"thread_id": self.thread_id}})

    def diff(self, before: Reference, after: Reference | None = None) -> StateDiff:
        """Return what changed between two moments; a moment of another thread may be passed itself, or by its config.

        Args:
            before: The older moment, or the one that is to count as the older one.
            after: The other one; the latest (`head`) if left out.

        Raises:
            NotFound: One of them is not there.
        """
        return self._saver.diff(self._anywhere(before), self.head if after is None else self._anywhere(after))

    def _anywhere(self, which: Reference) -> Moment | Mapping[str, Any]:
        return which if isinstance(which, Moment | Mapping) else self.moment(which)

    def compare(self, left: Reference, right: Reference) -> Comparison:
        """Return two branches side by side, from where they part. Each ends with a given moment; one may be of a fork.

        Raises:
            NotFound: One of them is not there.
        """
        (one, way), (other, other_way) = self._way(left), self._way(right)
        same = [a.checkpoint_id == b.checkpoint_id for a, b in zip(way, other_way, strict=False)]  # also in a fork
        parting = max([*same, False].index(False) - 1, 0)
        return compare_branches(one._at(way[parting:]), other._at(other_way[parting:]))

    def _way(self, which: Reference) -> tuple[Timeline, Sequence[Address]]:
        """Return the way to a moment, and the timeline that it is in."""
        if isinstance(which, Moment) and isinstance(which.owner, Timeline) and which.owner is not self:
            return which.owner._way(which)
        moment = self.moment(which)
        self._read(None)
        return self, self.pages.way_to(moment.address)

    def _at(self, way: Sequence[Address]) -> list[Moment]:
        return [self.moment(config_of(address, "named")) for address in way]

    def rewind(self, at: Reference, *, by: str | None = None) -> RunnableConfig:
        """Make a moment the latest again, in this timeline, too; see `KeelSaver.rewind`."""
        config = self._saver.rewind(self.moment(at), by=by)
        self.refresh()
        return config

    def fork(
        self,
        at: Reference,
        thread_id: str | None = None,
        *,
        graph: Any = None,
        values: Any = None,
        as_node: str | None = None,
        by: str | None = None,
    ) -> RunnableConfig:
        """Begin another branch at a moment, in a new thread or in this one; see `KeelSaver.fork`.

        Args:
            at: The moment.
            thread_id: The new thread; without it, a branch in this one.
            graph: The graph, compiled with this saver: needed for `values`.
            values: Values to write first, by the graph's `update_state`.
            as_node: The node that counts as the writer of these values.
            by: Who does it, for the audit trail.

        Returns:
            The config to go on from: `graph.invoke(None, config)`. It is the thread's, for all later runs; but for a
            branch without `values` it is that of the branch's first checkpoint: one run with it makes the branch the
            latest, and later runs take the thread's config.

        Raises:
            InvalidInput: `values` or `as_node` without a graph, or with one of another saver. Nothing was made.
            Exception: What the graph's `update_state` raises. A new thread is deleted again.
        """
        moment = self.moment(at)
        if values is None and as_node is None:
            config = self._saver.fork(moment, thread_id, by=by)
        else:
            config = self._fork_with_values(moment, thread_id, graph, values, as_node, by)
        self.refresh()
        return config

    def _fork_with_values(
        self, moment: Moment, thread_id: str | None, graph: Any, values: Any, as_node: str | None, by: str | None
    ) -> RunnableConfig:
        if graph is None:
            raise InvalidInput("values= and as_node= are written by the graph's update_state: pass graph=, too")
        engine = engine_of(getattr(graph, "checkpointer", None))
        if engine is None or not engine.is_same_store(self._saver.engine):
            raise InvalidInput("values= are written by the graph: it must be compiled with the saver of this timeline")
        config = self._saver.fork(moment, thread_id, by=by)
        try:
            graph.update_state(config, values, as_node=as_node)
        except BaseException:
            if thread_id is not None:  # which is new: it held nothing a moment ago
                self._saver.delete_thread(thread_id)
            raise
        return {"configurable": {"thread_id": config["configurable"]["thread_id"]}}

    def label(self, at: Reference, name: str) -> None:
        """Give a moment a name; see `KeelSaver.label`."""
        self._saver.label(self.moment(at), name)
        self.refresh()

    def unlabel(self, name: str) -> None:
        """Take a name back."""
        self._saver.unlabel(self.thread_id, name)
        self.refresh()

    # -- showing it --------------------------------------------------------------------------------------------

    def plot(self) -> Any:
        """Show how the size of the state, tokens and cost grew. The whole thread is read."""
        return self[:].plot()

    def __str__(self) -> str:
        """Return the latest moments as a table in plain text."""
        return str(self.latest())

    __repr__ = __str__

    def __rich__(self) -> Any:
        """Return the latest moments as a table for a terminal."""
        return self.latest().__rich__()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.latest()._repr_mimebundle_()

    def _repr_html_(self) -> str:
        return self.latest()._repr_html_()
