"""A thread as a list of moments: to look at, to search, to go back in. Read as far as somebody looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig

from langgraph_keel.core.address import config_of
from langgraph_keel.core.checkpoints import where_is
from langgraph_keel.core.records import Address
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.timeline.beside import Beside, side_by_side
from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.listing import SHOWN, Listing, Reference
from langgraph_keel.timeline.moment import Moment

__all__ = ["SHOWN", "Timeline"]


class Timeline(Listing):
    """A thread's moments, oldest first. `tl[0]` is the first one, `tl[-1]` the one that was put last.

    It shows the thread as it was when it was first looked at; `refresh()` looks again. Headers are read in pages, from
    the newest on, so `tl[-20:]` of a long thread reads little; `len(tl)`, `tl[14]` and a search read all headers.

    Wherever a method takes a moment, it takes the moment itself, its position, its checkpoint id (or the end of it, if
    that is unique), its label, or its config.

    Args:
        saver: Where the thread is.
        thread_id: The thread.
        pages: Makes what holds that which is read of it.
    """

    # -- going through it --------------------------------------------------------------------------------------

    def values(self, at: Reference) -> dict[str, Any]:
        """Return the state at a moment, all of it decoded; without delta channels, which only their graph can make.

        Raises:
            NotFound: There is no such moment.
            RefusedType: A value is of a type that may not be revived here.
        """
        moment = self.moment(at)
        found = self._saver.get_tuple(moment.config)
        if found is None:
            raise NotFound(f"{where_is(moment.address)}: it was deleted")
        return dict(found.checkpoint["channel_values"])

    @property
    def head(self) -> Moment:
        """The latest moment of the root graph, from which a run goes on; what was put last may be on a branch.

        Raises:
            NotFound: The thread has none.
        """
        return self.moment({"configurable": {"thread_id": self.thread_id}})

    def diff(self, before: Reference, after: Reference | None = None) -> StateDiff:
        """Return what changed between two moments; a moment of another thread may be passed itself, or by its config.

        Args:
            before: The older one, or whichever shall count as that.
            after: The other; the latest (`head`) if left out.

        Raises:
            NotFound: One of them is not there.
            RefusedType: What changed is of a type that may not be revived here.
        """
        return self._saver.diff(self._anywhere(before), self.head if after is None else self._anywhere(after))

    def _anywhere(self, which: Reference) -> Moment | Mapping[str, Any]:
        return which if isinstance(which, Moment | Mapping) else self.moment(which)

    def compare(self, left: Reference, right: Reference) -> Beside:
        """Return two ways side by side, from where they part: each ends with the moment given; either may be a fork's.

        Raises:
            NotFound: One of them is not there.
        """
        (one, way), (other, other_way) = self._way(left), self._way(right)
        same = [a.checkpoint_id == b.checkpoint_id for a, b in zip(way, other_way, strict=False)]  # also in a fork
        parting = max([*same, False].index(False) - 1, 0)
        return side_by_side(one._at(way[parting:]), other._at(other_way[parting:]))

    def _way(self, which: Reference) -> tuple[Timeline, Sequence[Address]]:
        """Return the way to a moment, and the timeline that it is in."""
        if isinstance(which, Moment) and isinstance(which.owner, Timeline) and which.owner is not self:
            return which.owner._way(which)
        moment = self.moment(which)
        self._read(None)
        return self, self.pages.way_to(moment.address)

    def _at(self, way: Sequence[Address]) -> list[Moment]:
        return [self.moment(config_of(address, "named")) for address in way]

    def rewind(self, at: Reference) -> RunnableConfig:
        """Make a moment the latest again; see `Travel.rewind`. This timeline shows it then."""
        config = self._saver.rewind(self.moment(at))
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
    ) -> RunnableConfig:
        """Begin another way from a moment, in a thread of its own or on a branch; see `Travel.fork`.

        Args:
            at: The moment.
            thread_id: The new thread; without it, a branch in this one.
            graph: The graph, compiled with this saver: needed for `values`.
            values: What the fork begins with, written by the graph's `update_state`.
            as_node: The node that is taken to have written them.

        Returns:
            The config to go on from: `graph.invoke(None, config)`. That of the thread, from then on; but of a branch
            without `values`, that of its first checkpoint: begin one run with it, which makes the branch the latest.

        Raises:
            InvalidInput: `values` or `as_node` without a graph, or with one of another saver. Nothing was made.
            Exception: What the graph's `update_state` raises. A new thread is deleted again.
        """
        moment = self.moment(at)
        if values is None and as_node is None:
            config = self._saver.fork(moment, thread_id)
        else:
            config = self._forked_with(moment, thread_id, self._of_this_saver(graph), values, as_node)
        self.refresh()
        return config

    def _of_this_saver(self, graph: Any) -> Any:
        if graph is None:
            raise InvalidInput("values= and as_node= are written by the graph's update_state: pass graph=, too")
        if getattr(getattr(graph, "checkpointer", None), "_backend", None) is not self._saver._backend:
            raise InvalidInput("values= are written by the graph: it must be compiled with the saver of this timeline")
        return graph

    def _forked_with(
        self, moment: Moment, thread_id: str | None, graph: Any, values: Any, as_node: str | None
    ) -> RunnableConfig:
        config = self._saver.fork(moment, thread_id)
        try:
            graph.update_state(config, values, as_node=as_node)
        except BaseException:
            if thread_id is not None:  # which is new: it held nothing a moment ago
                self._saver.delete_thread(thread_id)
            raise
        return {"configurable": {"thread_id": config["configurable"]["thread_id"]}}

    def label(self, at: Reference, name: str) -> None:
        """Give a moment a name; see `Travel.label`."""
        self._saver.label(self.moment(at), name)
        self.refresh()

    def unlabel(self, name: str) -> None:
        """Take a name back."""
        self._saver.unlabel(self.thread_id, name)
        self.refresh()

    # -- showing it --------------------------------------------------------------------------------------------

    def plot(self) -> Any:
        """Return a picture: size of the state, tokens and cost, step by step. All of the thread is read."""
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
