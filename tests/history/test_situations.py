"""The status of a thread in every situation of the docs, on all backends."""

from __future__ import annotations

import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from support.log_graphs import CONFIG, State, graph, say
from support.places import Place
from support.savers import SAVERS, each_backend, each_face, needing
from support.situations import (
    PAGE,
    Broken,
    Stage,
    ask,
    asks,
    decided,
    failed,
    graph_of,
    killed,
    killed_claimed,
    rows_of,
    stopped,
    with_table,
)
from support.tool_graphs import run

from langgraph_keel import KeelSaver, MemorySaver, SqliteSaver

STATES = {
    "new",
    "idle",
    "runs",
    "waits",
    "decided",
    "failed",
    "forked",
    "rewound",
    "arrived",
    "unfinished",
    "cut off",
    "stopped",
}


@pytest.mark.slow
@each_face
async def test_the_page_lists_the_status_of_every_situation(place: Place, face: Any) -> None:
    rows = await rows_of(place, face)
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_table(text, rows), "run `python tests/write.py situations`, and look"
    assert {row[0].strip("`") for row in rows.values()} == STATES
    harmless = {name for name, row in rows.items() if row[1] == "no"}
    assert set(rows) - harmless == {
        "decided",
        "killed, with a claim",
        "its decision taken, and killed",
        "marked, drained",
        "marked, cancelled after the grace time of a drain",
        "marked, its input accepted",
        "marked, killed",
        "marked, killed after a breakpoint",
    }


@pytest.fixture
async def stage(place: Place) -> Any:
    async with AsyncExitStack() as stack:
        saver = await stack.enter_async_context(place.open())
        yield Stage(place, saver, "sync", await stack.enter_async_context(AsyncExitStack()))


async def test_a_run_without_a_claim_is_not_cut_off_by_an_older_claim(stage: Stage) -> None:
    """A run without a claim has started since the killed process left its claim."""
    await killed_claimed(stage, "t")
    assert stage.saver.status("t").can_go_on
    await stage.elsewhere("t")
    assert stage.saver.status("t").state == "unfinished"


async def test_a_decision_that_killed_two_runs_is_not_resumed_again(stage: Stage) -> None:
    await decided(stage, "t")
    seen = []
    for _ in range(2):
        found = stage.saver.status("t")
        seen.append((found.state, found.can_go_on))
        await stage.elsewhere("t", dies=True, given=found.given)
    found = stage.saver.status("t")
    assert [*seen, (found.state, found.can_go_on)] == [("decided", True), ("cut off", True), ("cut off", False)]
    assert found.given == stage.saver.approvals.resume("t")


async def test_a_finished_run_resets_the_count_of_deaths(stage: Stage) -> None:
    await killed_claimed(stage, "t")
    with stage.place.open(on_busy="wait") as saver:
        graph_of(saver).invoke(None, CONFIG)
    await killed_claimed(stage, "t")
    assert stage.saver.status("t").can_go_on


async def test_a_copied_decision_is_not_resumed_in_the_target(stage: Stage, tmp_path: Path) -> None:
    """Otherwise a copy of production would repeat a payment that was approved there."""
    await decided(stage, "t")
    with MemorySaver() as staging:
        stage.saver.moving.copy_to(staging)
        found = staging.status("t")
        assert (found.state, found.can_go_on, bool(found.given)) == ("arrived", False, True)
        assert stage.saver.status("t").can_go_on


async def test_a_failed_copy_names_its_original(stage: Stage) -> None:
    """A worker may have continued the original since."""
    await failed(stage, "t")
    assert "copied" not in str(stage.saver.status("t"))
    with MemorySaver() as staging:
        stage.saver.moving.copy_to(staging)
        found = staging.status("t")
        assert (found.state, found.can_go_on) == ("failed", False)
        assert "It was copied or imported here, and its original may have run these steps" in str(found)


async def test_a_copy_that_has_run_is_an_ordinary_thread(stage: Stage) -> None:
    await stopped(stage, "source")
    stage.saver.copy_thread("source", "t")
    graph_of(stage.saver).invoke(None, CONFIG)
    await stopped(stage, "t")
    assert stage.saver.status("t").state == "unfinished"
    stage.saver.copy_thread("t", "u")
    stage.saver.fork({"configurable": {"thread_id": "t"}}, "f")
    stage.saver.rewind({"configurable": {"thread_id": "f"}})
    assert [stage.saver.status(name).state for name in "uf"] == ["arrived", "rewound"]


async def test_a_fork_of_a_waiting_thread_waits_after_it_has_run(stage: Stage) -> None:
    """A fork lacks the writes of its last checkpoint; it asks when its step runs."""
    await asks(stage, "t")
    stage.saver.fork({"configurable": {"thread_id": "t"}}, "f")
    found = stage.saver.status("f")
    assert (found.state, found.questions, found.can_go_on) == ("forked", 0, False)
    graph_of(stage.saver, ask).invoke(None, {"configurable": {"thread_id": "f"}})
    found = stage.saver.status("f")
    assert (found.state, found.questions, found.can_go_on) == ("waits", 1, False)


# -- what has something left, by the index -------------------------------------------------------------------------


async def test_idle_threads_take_no_trips(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[Any] = []
    driver = stage.saver.engine.session.driver
    send = type(driver).send

    def counted(self: Any, request: Any) -> Any:
        trips.append(request)
        return send(self, request)

    monkeypatch.setattr(type(driver), "send", counted)
    await killed(stage, "t")
    await asks(stage, "asks")

    def look() -> tuple[set[str], int]:
        trips.clear()
        found = {each.thread_id for each in stage.saver.unfinished()}
        return found, len(trips)

    few = look()
    assert few[0] == {"t", "asks"}
    for number in range(20):
        graph(stage.saver, say("a")).invoke({"log": []}, {"configurable": {"thread_id": f"idle {number}"}})
    assert look() == few
    assert few[1] <= 25


def test_a_damaged_thread_does_not_hide_others(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A program that resumes interrupted threads must reach the end of the list."""
    path = tmp_path / "keel.db"
    with SqliteSaver(path) as saver:
        for name in ("good", "bad", "fine"):
            graph_of(saver, interrupt_before=["pay"]).invoke({"log": []}, {"configurable": {"thread_id": name}})
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        whose = "(SELECT id FROM threads WHERE name = 'bad')"
        connection.execute(f"UPDATE entries SET header = x'07' WHERE key >> 32 = {whose}")
    with SqliteSaver(path) as saver:
        assert [each.thread_id for each in saver.unfinished()] == ["fine", "good"]
    assert "bad" in caplog.text


# -- a router that failed --------------------------------------------------------------------------------------------


@each_backend
@each_face
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_failed_router_runs_again_when_its_thread_resumes(
    backend: str, face: str, durability: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """LangGraph stores the node's result with the error, as if its task were done."""
    needing(backend, request)
    routed: list[int] = []

    def route(state: State) -> str:
        routed.append(1)
        if len(routed) == 1:
            raise Broken
        return "sink"

    with SAVERS[backend](tmp_path) as saver:
        builder = StateGraph(State).add_node(*say("n")).add_node(*say("sink"))
        builder.add_edge(START, "n").add_conditional_edges("n", route, ["sink"])
        made = builder.compile(checkpointer=saver)
        with pytest.raises(Broken):
            await run(made, face, {"log": []}, CONFIG, durability=durability)
        assert isinstance(saver, KeelSaver)
        assert saver.status("t").state == "failed"
        assert [channel for _, channel, _ in saver.get_tuple(CONFIG).pending_writes] == ["__error__"]  # type: ignore[union-attr]
        state = await run(made, face, None, CONFIG, durability=durability)
        assert state["log"] == ["n", "sink"]
        assert len(routed) == 2
