"""A thread as a lazily read list of moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeAlias, overload

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langgraph_keel._langgraph import NS_END, NS_SEP
from langgraph_keel.display.messages import message_text
from langgraph_keel.display.text import count_of
from langgraph_keel.engine.checkpoints import delete_thread, get_tuple
from langgraph_keel.engine.config import Address, address_of, config_of, thread_id_of
from langgraph_keel.engine.engine import EngineSaver, engine_of
from langgraph_keel.engine.errands import Call
from langgraph_keel.engine.faces import Component, faces
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.serde.moved import publish
from langgraph_keel.errors import InvalidInput, MomentNotFound, NotFound
from langgraph_keel.history.comparison import Comparison, compare_branches
from langgraph_keel.history.deltas import read_values
from langgraph_keel.history.diff import StateDiff, diff_checkpoints
from langgraph_keel.history.labels import give_label, remove_label
from langgraph_keel.history.moment import Moment, Moments
from langgraph_keel.history.reading import SHORTEST_PART, STRETCH, Pages
from langgraph_keel.history.travel import fork_at, rewind_to, thread_config

SHOWN = 20  # moments by default

Reference: TypeAlias = Moment | int | str | Mapping[str, Any]
"""A moment, or its position, id (or a unique beginning or end), label or config."""


@publish
class Timeline(Component):
    """The moments of a thread, from the oldest, `tl[0]`, to the newest, `tl[-1]`.

    It is a snapshot of the thread at its first read; `refresh()` reads the thread again. Headers are read in pages,
    newest first, so `tl[-20:]` of a long thread reads little; `len(tl)`, `tl[14]` and a search read all headers.

    Methods accept a moment itself, its position, its checkpoint id (or a unique beginning or end of it), its label, or
    its config.
    """

    def __init__(self, saver: EngineSaver, thread_id: str, pages: Callable[[], Pages]) -> None:
        super().__init__(saver)
        self.thread_id = thread_id
        self._new = pages  # makes empty pages for the thread's entries
        self.pages = pages()

    def refresh(self) -> Self:
        """Discard the snapshot, and return the timeline."""
        self.pages = self._new()
        return self

    # -- as a list ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Count the moments. All headers are read."""
        return self.engine.run(self._count())

    def _count(self) -> Plan[int]:
        yield from self.pages.upto(None)
        return len(self.pages.entries)

    def __bool__(self) -> bool:
        """Return whether the thread has moments."""
        self.engine.run(self.pages.upto(1))
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
        """Return a moment by any reference, or a slice of moments."""
        return self.engine.run(self._slice(which)) if isinstance(which, slice) else self.moment(which)

    def _slice(self, which: slice) -> Plan[Moments]:
        if type(which.start) is int and which.start < 0 and which.stop is None and which.step in (None, 1):
            return (yield from self._latest(-which.start))
        count = yield from self._count()
        positions = range(count)[which]
        if not positions:
            return Moments((), 0, self)
        low, high = min(positions), max(positions)
        read = yield from self._between(count - 1 - high, count - low)
        found = {moment.position: moment for moment in read}
        moments = [found[each] for each in positions if each in found]
        return Moments(moments, low, self) if which.step in (None, 1) else self._select(moments)

    def _latest(self, count: int = SHOWN) -> Plan[Moments]:
        """Return the newest moments."""
        moments = yield from self._between(0, count)
        older = len(self.pages.entries) - len(moments) if self.pages.is_whole else None
        return Moments(moments, older, self)

    latest, alatest = faces(_latest)

    def _between(self, start: int, stop: int) -> Plan[list[Moment]]:
        """Return the moments at places counted from the newest, oldest first."""
        found = yield from self.pages.moments(range(start, stop))
        return [replace(moment, owner=self) for moment in reversed(found)]

    # -- finding moments ---------------------------------------------------------------------------------------

    def _moment(self, which: Reference) -> Plan[Moment]:
        """Return a moment by its id, label, position or config.

        Raises:
            MomentNotFound: If the position does not exist; also an `IndexError`.
            NotFound: If the moment does not exist.
            InvalidInput: If it belongs to another thread, or several ids match.
        """
        place = yield from self._place(which)
        found = yield from self._between(place, place + 1)
        if not found:
            raise NotFound(f"thread {self.thread_id!r}: the moment {which!r} was deleted")
        return found[0]

    moment, amoment = faces(_moment)

    def _place(self, which: Reference) -> Plan[int]:
        if isinstance(which, int):
            yield from self.pages.upto(-which if which < 0 else None)
            count = len(self.pages.entries)
            if not -count <= which < count:
                moments = count_of(count, "moment")
                raise MomentNotFound(f"thread {self.thread_id!r} has {moments}: there is no moment {which}")
            return -1 - which if which < 0 else count - 1 - which
        if isinstance(which, str):
            yield from self.pages.upto(1)
            if labelled := self.pages.labelled(which):
                return (yield from self._place_of(labelled))
            yield from self.pages.upto(None)
            places = self.pages.named(which)
            if len(places) == 1:
                return places[0]
            if places:
                ids = f"{len(places)} ids begin or end with {which!r}"
                raise InvalidInput(f"thread {self.thread_id!r}: {ids}: give more of it")
            why = "no label, and no id begins or ends so"
            if len(which) < SHORTEST_PART:
                least = f"of which at least {SHORTEST_PART} characters are needed"
                why = f"no label, and too short for a part of an id, {least}"
            raise NotFound(f"thread {self.thread_id!r} has no moment {which!r}: {why}")
        address = which.address if isinstance(which, Moment) else address_of(which)
        if address.thread_id != self.thread_id:
            raise InvalidInput(f"this timeline shows thread {self.thread_id!r}, not {address.thread_id!r}")
        return (yield from self._place_of(address))

    def _place_of(self, address: Address) -> Plan[int]:
        yield from self.pages.upto(1)
        if address.checkpoint_id is None:
            address = self.pages.heads.get(address.checkpoint_ns, address)
        if address not in self.pages.places:
            yield from self.pages.upto(None)
        place = self.pages.places.get(address)
        if place is None:
            raise NotFound(f"{address}: there is no such moment")
        return place

    def _find(
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
    ) -> Plan[Moments]:
        """Return the moments that match all filters, oldest first. Reads the whole thread.

        Args:
            node: A node whose output they store.
            tool: A tool whose result they store.
            model: A model that their step called.
            label: One of their labels.
            source: Their `source`: `"input"`, `"loop"`, `"update"` or `"fork"`.
            step: Their step.
            namespace: Their namespace; `""` for the root graph.
            channel: A channel that changed.
            text: A text in their added values, summary, questions, errors or labels; case-insensitive.
            asked: Whether they have a question, answered or not.
            waits: Whether they have an open question.
            after: Only later moments than this: a time (also as ISO text), or a moment.
            before: Only earlier moments than this.
            where: A function that is called with each moment, and returns whether it matches.

        Raises:
            InvalidInput: If `after` or `before` is neither a time nor a moment.
        """
        count = yield from self._count()  # then positions count from the first moment
        start, stop = (yield from self._when(after)), (yield from self._when(before))

        def fits(moment: Moment) -> bool:
            plain_namespace = NS_SEP.join(part.partition(NS_END)[0] for part in moment.namespace.split(NS_SEP))
            return (
                node in (None, *moment.nodes)
                and tool in (None, *(each.name for each in moment.tools))
                and model in (None, *moment.models)
                and label in (None, *moment.labels)
                and channel in (None, *(change.channel for change in moment.changes))
                and source in (None, moment.source)
                and step in (None, moment.step)
                and namespace in (None, moment.namespace, plain_namespace)
                and asked in (None, bool(moment.asked))
                and waits in (None, bool(moment.interrupts))
                and (text is None or text.casefold() in _text_of(moment).casefold())
                and (where is None or bool(where(moment)))
                and _compare(moment, start, 1) > 0
                and _compare(moment, stop, -1) < 0
            )

        every = yield from self._between(0, count)
        return self._select([moment for moment in every if fits(moment)])

    find, afind = faces(_find)

    def _select(self, moments: Sequence[Moment]) -> Moments:
        """Return some moments as a list, each drawn after its nearest listed ancestor."""
        shown = {moment.address for moment in moments}
        drawn = [replace(moment, parent=self.pages.nearest(moment.address, shown)) for moment in moments]
        return Moments(moments, 0, self, drawn)

    def _when(self, when: datetime | Reference | None) -> Plan[datetime | Moment | None]:
        if when is None:
            return None
        if isinstance(when, str) and self.pages.labelled(when) is None:
            with suppress(ValueError):
                return datetime.fromisoformat(when).astimezone()
        if isinstance(when, datetime):
            return when.astimezone()
        try:
            return (yield from self._moment(when))
        except (NotFound, InvalidInput) as error:
            raise InvalidInput(
                f"{when!r} is neither a time (a datetime, or text in ISO format) nor a moment"
            ) from error

    # -- values, branches and labels ---------------------------------------------------------------------------

    def _values(self, at: Reference) -> Plan[dict[str, Any]]:
        """Return the whole state at a moment, decoded.

        Of delta channels, it contains only messages: other values need the graph's reducer.

        Raises:
            NotFound: If the moment does not exist.
            RefusedType: If a value's type may not be revived here. `saver.raw.timeline(...)` returns placeholders
                instead.
        """
        moment = yield from self._moment(at)
        found = yield from get_tuple(self.engine.session, moment.config)
        if found is None:
            raise NotFound(f"{moment.address}: it was deleted")
        return (yield from read_values(self.engine.session, found))

    values, avalues = faces(_values)

    @property
    def head(self) -> Moment:
        """The latest moment of the root graph, from which a run continues.

        The newest moment may be on a branch instead.

        Raises:
            NotFound: If the thread has no moments.
        """
        return self.engine.run(self._head())

    async def ahead(self) -> Moment:
        """As `head`, asynchronously."""
        return await self.engine.arun(self._head())

    def _head(self) -> Plan[Moment]:
        return self._moment(thread_config(self.thread_id))

    def _diff(self, before: Reference, after: Reference | None = None) -> Plan[StateDiff]:
        """Return the changes between two moments.

        A moment of another thread may be passed itself, or by its config.

        Args:
            before: The older moment, or the one to treat as older.
            after: The other one; by default the latest (`head`).

        Raises:
            NotFound: If one of them does not exist.
        """
        first = yield from self._anywhere(before)
        second = yield from (self._anywhere(after) if after is not None else self._anywhere((yield from self._head())))
        return (yield from diff_checkpoints(self.engine.session, first, second))

    diff, adiff = faces(_diff)

    def _anywhere(self, which: Reference) -> Plan[Address]:
        if isinstance(which, Mapping):
            return address_of(which)
        return (which if isinstance(which, Moment) else (yield from self._moment(which))).address

    def _compare(self, left: Reference, right: Reference) -> Plan[Comparison]:
        """Return two branches side by side, from their last common moment.

        Each branch ends with a given moment, which may belong to a fork.

        Raises:
            NotFound: If one of them does not exist.
        """
        one, other = (
            each.owner if isinstance(each, Moment) and isinstance(each.owner, Timeline) else self
            for each in (left, right)
        )
        way, other_way = (yield one._call(one._way(left))), (yield other._call(other._way(right)))
        same = [a.checkpoint_id == b.checkpoint_id for a, b in zip(way, other_way, strict=False)]  # also in a fork
        parting = max([*same, False].index(False) - 1, 0)
        ours, theirs = one._call(one._at(way[parting:])), other._call(other._at(other_way[parting:]))
        return compare_branches((yield ours), (yield theirs))

    compare, acompare = faces(_compare)

    def _call(self, plan: Plan[Any]) -> Call:
        """Return an errand that runs a plan in the store of this timeline."""
        return Call(partial(self.engine.run, plan), partial(self.engine.arun, plan))

    def _way(self, which: Reference) -> Plan[Sequence[Address]]:
        moment = yield from self._moment(which)
        yield from self.pages.upto(None)
        return self.pages.way_to(moment.address)

    def _at(self, way: Sequence[Address]) -> Plan[list[Moment]]:
        found = []
        for address in way:
            found.append((yield from self._moment(config_of(address, "named"))))
        return found

    def _rewind(self, at: Reference, *, by: str | None = None) -> Plan[RunnableConfig]:
        """Make a moment the latest again, in this timeline, too; see `KeelSaver.rewind`."""
        moment = yield from self._moment(at)
        config = yield from rewind_to(self.engine.session, moment.address, by)
        self.refresh()
        return config

    rewind, arewind = faces(_rewind)

    def _fork(
        self,
        at: Reference,
        thread_id: str | None = None,
        *,
        graph: Any = None,
        values: Any = None,
        as_node: str | None = None,
        by: str | None = None,
    ) -> Plan[RunnableConfig]:
        """Fork at a moment, into a new thread or a branch; see `KeelSaver.fork`.

        Args:
            at: The moment.
            thread_id: The new thread; without it, a branch in this one.
            graph: The graph, compiled with this saver; required for `values` and `as_node`.
            values: Values to write first, by the graph's `update_state`.
            as_node: The node that counts as the writer of these values.
            by: The person, for the audit trail.

        Returns:
            The config to continue from: `graph.invoke(None, config)`. It is the thread's config, for all later runs.
            For a branch without `values`, it is the config of the branch's first checkpoint: run once with it to make
            the branch the latest, then use the thread's config.

        Raises:
            InvalidInput: If `values` or `as_node` is given without a graph, or with a graph of another saver. Nothing
                is stored then.
            Exception: If the graph's `update_state` raises it. A new thread is deleted again.
        """
        moment, session = (yield from self._moment(at)), self.engine.session
        writes = values is not None or as_node is not None
        if writes:
            if graph is None:
                raise InvalidInput("values= and as_node= need the graph's update_state: pass graph=, too")
            engine = engine_of(getattr(graph, "checkpointer", None))
            if engine is None or not engine.is_same_store(self.engine):
                raise InvalidInput("graph= writes values=, so it must be compiled with the saver of this timeline")
        config = yield from fork_at(session, moment.address, thread_id, by)
        if writes:
            update = partial(graph.update_state, config, values, as_node=as_node)
            try:
                yield Call(update, partial(graph.aupdate_state, config, values, as_node=as_node))
            except BaseException:
                if thread_id is not None:  # it is new, and was empty before
                    yield from delete_thread(session, thread_id_of(thread_id))
                raise
            config = thread_config(config["configurable"]["thread_id"])
        self.refresh()
        return config

    fork, afork = faces(_fork)

    def _label(self, at: Reference, name: str) -> Plan[None]:
        """Name a moment; see `saver.labels.set`."""
        moment = yield from self._moment(at)
        yield from give_label(self.engine.session, moment.address, name)
        self.refresh()

    label, alabel = faces(_label)

    def _unlabel(self, name: str) -> Plan[None]:
        """Remove a name."""
        yield from remove_label(self.engine.session, self.thread_id, name)
        self.refresh()

    unlabel, aunlabel = faces(_unlabel)

    # -- showing it --------------------------------------------------------------------------------------------

    def _plot(self, moments: Sequence[Moment] | None = None) -> Plan[Any]:
        """Return a plot of state size, tokens and cost, step by step.

        Args:
            moments: The moments to show; by default all, and the whole thread is read.
        """
        from langgraph_keel.history.render.plots import plot_moments

        shown = (yield from self._slice(slice(None))) if moments is None else moments
        return plot_moments((yield from self._measure(shown)))

    plot, aplot = faces(_plot)

    def _measure(self, moments: Sequence[Moment]) -> Plan[Sequence[Moment]]:
        places = [self.pages.places[moment.address] for moment in moments if moment.address in self.pages.places]
        sizes = yield from self.pages.measured(places)
        return [replace(moment, state_bytes=sizes.get(moment.address)) for moment in moments]

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


def _text_of(moment: Moment) -> str:
    """Return the searchable text of a moment."""
    new = (item for change in moment.changes for item in change.new)
    added = (message_text(item) if isinstance(item, BaseMessage) else str(item) for item in new)
    questions = (str(asked.value) for asked in moment.asked)
    return "\n".join([moment.summary, *added, *questions, *moment.errors, *moment.labels])


def _compare(moment: Moment, when: datetime | Moment | None, unbound: int) -> int:
    """Return 1 if a moment is later than `when`, -1 if earlier; `unbound` for `None`."""
    if when is None:
        return unbound
    if isinstance(when, Moment):
        return (moment.position > when.position) - (moment.position < when.position)
    return 0 if moment.time is None else (moment.time > when) - (moment.time < when)
