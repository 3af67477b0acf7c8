"""An agent that calls three tools concurrently is killed at random moments.

No finished tool runs again, and an interrupted tool runs again only if the user says so.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.places import Place
from support.races import context
from support.tiers import sized
from support.tools.children import SLOW, THREE, End, Life, Lives, Moment, Outside, open_nursery

from langgraph_keel import ToolCache

KILLS = sized(5, 5, 9)
"""Kills per combination of face and durability: 30 on each backend, or 54."""
DURABILITIES = ("sync", "async", "exit")
CONFIRMED = "A person confirmed that this call was carried out."


@pytest.fixture(scope="module")
def lives() -> Iterator[Lives]:
    with open_nursery(context()) as opened:
        yield opened


States = dict[str, set[str]]


def states(life: Life) -> States:
    """The states of each tool in the ledger; the claim of a dead process is `unknown`.

    If its checkpoint was lost, a call may have two names: the model gave it another name when it was requested again.
    If the process was killed while one name took over from the other, the second one is in doubt.
    """
    if life.place.kind in ("postgres", "redis"):
        time.sleep(0.02)  # requests of the killed process may still be on their way through the server
    with life.place.open() as saver:
        found: States = {}
        for call in saver.tools.calls(life.thread):
            found.setdefault(call.tool, set()).add(call.state)
        return found


def begun(life: Life) -> Counter[str]:
    lines = Outside(life.path).lines()
    return Counter({tool: lines[f"begin {tool}"] for tool in THREE})


@dataclass
class Watched:
    """One thread over several lives; each is checked by its effects outside."""

    lives: Lives
    life: Life
    decision: str
    words: Counter[str] = field(default_factory=Counter)
    doubted: set[str] = field(default_factory=set)
    before: States = field(default_factory=dict)
    kills: int = 0
    in_the_middle: int = 0

    def live(self, moment: Moment | None, answer: str | None) -> End:
        before, lines = self.before, begun(self.life)
        end = self.lives(replace(self.life, moment=moment, answer=answer))
        after, more = states(self.life), begun(self.life) - lines
        self.doubted |= {tool for tool, state in after.items() if "unknown" in state}
        self.check_begun(before, more)
        assert [tool for tool in before if "done" in before[tool] and "done" not in after[tool]] == []
        self.before = after
        getattr(self, f"check_{end.how}")(before, after, *end.values)
        return end

    def check_begun(self, before: States, more: Counter[str]) -> None:
        assert max(more.values(), default=0) <= 1
        assert [tool for tool in more if before.get(tool) == {"done"}] == []
        again = [tool for tool in more if "unknown" in before.get(tool, ())]
        if self.life.unknown != "retry":
            assert len(again) <= self.words["ask"]
            self.words["ask"] -= len(again)

    def check_killed(self, before: States, after: States) -> None:
        self.kills += 1
        self.in_the_middle += sorted(map(sorted, after.values())) == [["done"], ["done"], ["unknown"]]

    def check_finished(self, before: States, after: States, *said: str) -> None:
        assert [tool for tool in THREE if "done" not in after[tool]] == []
        for tool, text in zip(THREE, said, strict=True):
            assert text == f"{tool} did it" or (text == CONFIRMED and tool in self.doubted)
        if self.life.unknown == "raise":
            assert {"unknown"} not in before.values()

    def check_unknown(self, before: States, after: States, tool: str, key: str) -> None:
        assert self.life.unknown == "raise"
        assert "unknown" in after[tool]
        with self.life.place.open() as saver, ToolCache(saver) as cache:
            cache.settle(self.life.thread, key, self.decision)
        self.before = states(self.life)
        self.words[tool] += self.decision == "retry"

    def check_asked(self, before: States, after: States, *questions: Any) -> None:
        assert self.life.unknown == "ask"
        assert all("unknown" in after[question["tool"]] for question in questions)
        self.words["ask"] += len(questions) * (self.decision == "retry")

    def check_all(self) -> None:
        """A tool never in doubt ran once; others at most once more per word of the user."""
        lines = Outside(self.life.path).lines()
        for tool in THREE:
            ran = lines[f"begin {tool}"], lines[f"end {tool}"]
            assert ran == (1, 1) or tool in self.doubted
            if self.life.unknown == "raise":
                assert ran[0] <= 1 + self.words[tool]


def live_on(watched: Watched, moments: list[Moment]) -> None:
    """Let the thread live until it has finished; kill it at these moments."""
    end, answer = End("killed"), None
    for _ in range(20):
        end = watched.live(moments.pop() if moments else None, answer)
        answer = watched.decision if end.how == "asked" else None
        if end.how == "finished":
            return watched.check_all()
    pytest.fail(f"it does not come to an end: {end}, {watched}")


def moment_of(chance: random.Random) -> Moment:
    """Mostly while the slow tool runs, otherwise at any request."""
    if chance.random() < 0.6:
        return Moment("begin slow", 1, chance.uniform(0, 1.2 * SLOW))
    return Moment("store", chance.randint(1, 36), chance.choice([0, chance.uniform(0, 0.003)]))


def kill(lives: Lives, life: Life, kills: int) -> None:
    """Kill threads at random moments, some of them twice.

    Stops after at least `kills` kills, once a kill has caught two finished tools and an unfinished one. On a busy
    machine the first five kills may all miss that.
    """
    chance = random.Random(f"{life.place.kind} {life.graph} {life.is_async} {life.durability}")
    done = in_the_middle = 0
    for number in range(10 * kills):
        unknown = ("raise", "retry", "raise", "ask")[number % 4]
        thread = replace(life, thread=f"{number}", path=life.path / f"{number}", unknown=unknown)  # type: ignore[arg-type]
        watched = Watched(lives, thread, chance.choice(["retry", "done"]))
        live_on(watched, [moment_of(chance) for _ in range(1 + number % 2)])
        done, in_the_middle = done + watched.kills, in_the_middle + watched.in_the_middle
        if done >= kills and in_the_middle:
            return
    pytest.fail(f"only {done} were killed, {in_the_middle} of them in the middle")


@pytest.mark.slow
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync-face", "async-face"])
def test_agents_killed_at_random_moments_repeat_no_call(
    lives: Lives, place: Place, tmp_path: Path, is_async: bool, durability: Any
) -> None:
    life = Life(place=place, path=tmp_path, thread="", is_async=is_async, durability=durability)
    kill(lives, life, KILLS)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync-face", "async-face"])
def test_agents_of_langchain_killed_at_random_moments_repeat_no_call(
    lives: Lives, place: Place, tmp_path: Path, is_async: bool, durability: Any
) -> None:
    """LangChain's own agent, with the cache as its middleware."""
    life = Life(place=place, path=tmp_path, thread="", is_async=is_async, durability=durability, graph="agent")
    kill(lives, life, 5)
