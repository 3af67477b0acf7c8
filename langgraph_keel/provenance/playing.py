"""What a replay asks for besides the store: to run the graph for some steps. And the drivers that do it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any

from langgraph_keel.core.plan import AsyncDriver, Driver
from langgraph_keel.errors import StoreError
from langgraph_keel.provenance.held import Held, Refused


@dataclass(slots=True)
class Played:
    """What became of a run.

    Attributes:
        made: The steps it has made and their checkpoints.
        error: What it ended in.
    """

    made: list[tuple[int, str]] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Play:
    """A request: run the graph until it has made a step, and not a task further.

    Attributes:
        graph: The graph, on the replay's own saver.
        given: Its input.
        config: Its config.
        until: The step.
        since: The checkpoint it begins from, which LangGraph tells of once more.
        held: What holds its tools back.
        options: Other arguments of the run.
        on_step: Told of each step.
    """

    graph: Any
    given: Any
    config: Mapping[str, Any]
    until: int
    since: str | None
    held: Held
    options: Mapping[str, Any] = field(default_factory=dict)
    on_step: Callable[[int], object] | None = None

    def run(self) -> Played:
        """Run it in this thread."""
        played = Played()
        with self.held.active(), closing(self._events(self.graph.stream)) as events:
            for event in _until_it_fails(events, played):
                if self._is_over(played, event):
                    break
        return played

    async def arun(self) -> Played:
        """Run it in this loop."""
        played = Played()
        with self.held.active():
            async with aclosing(self._events(self.graph.astream)) as events:
                await self._afollow(events, played)
        return played

    async def _afollow(self, events: AsyncIterator[Any], played: Played) -> None:
        async for event in _auntil_it_fails(events, played):
            if self._is_over(played, event):
                return

    def _events(self, stream: Callable[..., Any]) -> Any:
        # LangGraph tells of a checkpoint when it is stored, and before it begins a task of the next step.
        return stream(self.given, self.config, stream_mode="checkpoints", durability="sync", **self.options)

    def _is_over(self, played: Played, event: Mapping[str, Any]) -> bool:
        if self.held.refused:
            return True  # the step was made without what a tool would have said
        step, made = event["metadata"]["step"], event["config"]["configurable"]["checkpoint_id"]
        if made == self.since:
            return False
        played.made.append((step, made))
        self.held.step = step + 1
        if self.on_step is not None:
            self.on_step(step)
        return bool(step >= self.until)


def _note(error: BaseException, played: Played) -> None:
    """Keep what the graph has raised; `Held.refused` says of itself what `Refused` ends, also in a group of tasks."""
    is_refusal = isinstance(error, BaseExceptionGroup) and error.subgroup(Refused)
    if isinstance(error, Refused) or is_refusal:
        return
    if isinstance(error, StoreError) or not isinstance(error, Exception):
        raise error
    played.error = error


def _until_it_fails(events: Iterator[Any], played: Played) -> Iterator[Any]:
    try:
        yield from events
    except BaseException as error:
        _note(error, played)


async def _auntil_it_fails(events: AsyncIterator[Any], played: Played) -> AsyncIterator[Any]:
    try:
        async for event in events:
            yield event
    except BaseException as error:
        _note(error, played)


def cached_subgraphs(graph: Any) -> list[str]:
    """Return the subgraphs with nodes that a cache of their own may answer: only the root graph's is switched off."""
    inner = ((name, each) for name, each in graph.get_subgraphs(recurse=True) if getattr(each, "cache", None))
    return [name for name, each in inner if each.cache_policy or any(node.cache_policy for node in each.nodes.values())]


class ReplayDriver:
    """Carries out what a replay asks for, in the calling thread."""

    def __init__(self, store: Driver[Any, Any]) -> None:
        self._store = store

    def send(self, request: Any) -> Any:
        """Run the graph, or send to the store."""
        return request.run() if isinstance(request, Play) else self._store.send(request)


class AsyncReplayDriver:
    """As `ReplayDriver`, for a running loop."""

    def __init__(self, store: AsyncDriver[Any, Any]) -> None:
        self._store = store

    async def send(self, request: Any) -> Any:
        """Run the graph, or send to the store."""
        return await (request.arun() if isinstance(request, Play) else self._store.send(request))
