"""Delta channels through a wrapper that uses only the public contract of savers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from support.retention.threads import BACKENDS
from typing_extensions import TypedDict

from langgraph_keel import KeelSaver, NotFound, Retention


class Wrapper(BaseCheckpointSaver[Any]):
    """Forwards the required methods; delta channels use the inherited walk."""

    def __init__(self, inner: KeelSaver) -> None:
        super().__init__(serde=inner.serde)
        self.inner = inner

    def get_tuple(self, config: Any) -> Any:
        return self.inner.get_tuple(config)

    def list(self, *args: Any, **options: Any) -> Iterator[Any]:
        return self.inner.list(*args, **options)

    def put(self, *args: Any) -> Any:
        return self.inner.put(*args)

    def put_writes(self, *args: Any) -> None:
        self.inner.put_writes(*args)

    async def aget_tuple(self, config: Any) -> Any:
        return await self.inner.aget_tuple(config)

    def alist(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        return self.inner.alist(*args, **options)

    async def aput(self, *args: Any) -> Any:
        return await self.inner.aput(*args)

    async def aput_writes(self, *args: Any) -> None:
        await self.inner.aput_writes(*args)

    def get_next_version(self, *args: Any) -> Any:
        return self.inner.get_next_version(*args)


def fold(state: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(state or []), *(word for write in writes for word in write)]


class State(TypedDict):
    words: Annotated[list[str], DeltaChannel(fold)]


def graph_on(saver: BaseCheckpointSaver[Any]) -> Any:
    return StateGraph(State).add_node("n", lambda _: {"words": ["n"]}).add_edge(START, "n").compile(checkpointer=saver)


def chat(thread_id: str, **options: Any) -> Any:
    return {"configurable": {"thread_id": thread_id}, **options}


def delete_first_run(saver: KeelSaver) -> str:
    saver.delete_for_runs(["run 0"])
    return "t"


def fork_what_is_kept(saver: KeelSaver) -> str:
    saver.prune(["t"])
    saver.fork(saver.get_tuple(chat("t")).config, thread_id="fork")  # type: ignore[union-attr]
    saver.delete_thread("t")
    return "fork"


def copy_what_is_kept(saver: KeelSaver) -> str:
    saver.prune(["t"])
    saver.copy_thread("t", "copy")
    return "copy"


def prune_twice(saver: KeelSaver) -> str:
    saver.prune(["t"], strategy=Retention(last=3))
    saver.prune(["t"])
    return "t"


REMOVALS: list[Callable[[KeelSaver], str]] = [prune_twice, delete_first_run, fork_what_is_kept, copy_what_is_kept]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("remove", REMOVALS)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_wrapper_reads_delta_channels_after_removals(
    stores: Any, backend: str, remove: Callable[[KeelSaver], str], face: str
) -> None:
    async def call(method: str, *args: Any) -> Any:
        return getattr(graph, method)(*args) if face == "sync" else await getattr(graph, f"a{method}")(*args)

    with stores[backend].open() as saver:
        graph = graph_on(Wrapper(saver))
        for number, word in enumerate("abc"):
            await call("invoke", {"words": [word]}, chat("t", metadata={"run_id": f"run {number}"}))
        config = chat(remove(saver))
        assert (await call("get_state", config)).values == {"words": ["a", "n", "b", "n", "c", "n"]}
        assert await call("invoke", {"words": ["d"]}, config) == {"words": ["a", "n", "b", "n", "c", "n", "d", "n"]}
    stores[backend].wipe()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_from_a_hidden_pruned_checkpoint_is_refused(stores: Any, backend: str) -> None:
    with stores[backend].open() as saver:
        graph = graph_on(saver)
        graph.invoke({"words": ["a"]}, chat("t"))
        saver.prune(["t"])
        hidden = saver.get_tuple(chat("t")).parent_config
        with pytest.raises(NotFound, match="pruned"):
            graph.invoke(None, hidden)
        with pytest.raises(NotFound, match="pruned"):
            graph.update_state(hidden, {"words": ["x"]})
        assert graph.get_state(chat("t")).values == {"words": ["a", "n"]}
    stores[backend].wipe()
