"""A thread and a graph that replays it, by both faces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from langgraph_keel import KeelSaver, Replay, ToolCache
from support.provenance.replay_graphs import acting, agent, everything, hello, replayed
from support.savers import BACKENDS, SAVERS, each_face, needing
from support.tool_graphs import run, thread

faces = each_face


@dataclass
class Scene:
    """A saver, a cache, and the file to which tools append their lines."""

    saver: KeelSaver
    cache: ToolCache
    path: Path

    def tools(self, says: str = "did") -> list[Any]:
        return [acting("pay", self.path, says), acting("search", self.path, says)]

    def agent(self, cached: bool = True, says: str = "did", **options: Any) -> Any:
        return agent(self.saver, self.tools(says), self.cache if cached else None, **options)

    @property
    def acted(self) -> list[str]:
        return sorted(self.path.read_text().splitlines()) if self.path.exists() else []

    @property
    def threads(self) -> list[str]:
        return [info.thread_id for info in self.saver.threads()]


def opened(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    needing(name, request)
    with SAVERS[name](tmp_path) as saver:
        assert isinstance(saver, KeelSaver)
        with ToolCache(saver) as cache:
            yield Scene(saver, cache, tmp_path / "lines")


@pytest.fixture(params=BACKENDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    yield from opened(request.param, request, tmp_path)


@pytest.fixture
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    yield from opened("memory", request, tmp_path)


async def is_same(scene: Scene, face: str, graph: Any, **options: Any) -> Replay:
    """Replay, and check that it reports "same" and changes nothing."""
    acted, before = scene.acted, everything(scene.saver, "t")
    replay = await replayed(scene.saver, face, graph, thread("t"), **options)
    assert str(replay).splitlines()[1:] == []
    assert replay.same
    assert (scene.acted, everything(scene.saver, "t"), scene.threads) == (acted, before, ["t"])
    return replay


async def two_turns(scene: Scene, face: str, **options: Any) -> Any:
    graph = scene.agent(**options)
    for text in ("hello", "and again"):
        await run(graph, face, hello(text), thread("t"))
    return graph
