"""`keel demo`: an agent is killed in the middle of its work, and another process finishes it."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_keel.cli import demo_run as run
from langgraph_keel.cli.demo_agent import JOURNAL
from langgraph_keel.cli.demo_model import SCRIPT, TASK
from langgraph_keel.cli.demo_proof import Claim, Evidence, claims, gather
from langgraph_keel.cli.demo_screen import Screen
from langgraph_keel.cli.options import AsJson
from langgraph_keel.cli.terminal import console, print_json

_SUSPENSE = 0.8
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Play in this store instead of a temporary database."),
]
Dir = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Put the demo's files here instead of a temporary directory."),
]
KillAt = Annotated[
    int,
    typer.Option("--kill-at", min=2, max=len(SCRIPT), help="Kill while the last tool call of this turn is at work."),
]
Pace = Annotated[float, typer.Option("--pace", min=0.0, max=5.0, help="Seconds that every call takes at least.")]


def demo(url: Url = None, directory: Dir = None, kill_at: KillAt = 4, pace: Pace = 0.25, json: AsJson = False) -> None:
    """Kill an agent in the middle of its work and see another process finish it. No key, no network.

    A LangGraph agent with seven tools and a scripted model works in a child process. One of its tools is made
    to hang, and the process is killed with SIGKILL. A new process resumes the thread by its id; tool calls that
    had finished beside the hanging one are answered from the ledger of tool calls. The demo then counts, from the
    agent's journal and the store, what was restored and what ran twice; it exits with 1 if a claim does not hold.

    Example: `keel demo --dir ./keel-demo`
    """
    began = time.monotonic()
    stage = _stage(url, directory, pace)
    screen = Screen(console(quiet=json))
    found, pids = _play(stage, screen, kill_at)
    proven = claims(found)
    screen.history(stage, found.final, found.kept)
    screen.proof(found, proven)
    seconds = time.monotonic() - began
    screen.next_steps(stage, found, seconds)
    if json:
        print_json(_result(stage, found, proven, pids) | {"seconds": round(seconds, 2)})
    if not all(claim.holds for claim in proven):
        raise typer.Exit(1)


def _stage(url: str | None, directory: Path | None, pace: float) -> run.Stage:
    folder = directory.absolute() if directory else Path(tempfile.mkdtemp(prefix="keel-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    where = url or f"sqlite:///{folder / 'agent.db'}"
    thread = run.free_thread(where)
    if (folder / JOURNAL).exists():
        raise run.DemoError(f"{folder} holds the journal of an earlier demo: choose another --dir")
    return run.Stage(where, thread, folder, pace)


def _play(stage: run.Stage, screen: Screen, kill_at: int) -> tuple[Evidence, tuple[int, int]]:
    screen.opening(stage)
    with _agent(stage, screen, "--task", TASK, "--stall-at", str(kill_at)) as first:
        screen.process(first.process.pid, "graph.invoke(task)")
        status = _run_until_killed(first, screen, kill_at)
    kept = run.snapshot(stage)
    screen.kept(kept)
    with _agent(stage, screen) as second:
        screen.process(second.process.pid, f'graph.invoke(None, {{"configurable": {{"thread_id": "{stage.thread}"}}}})')
        _run_to_the_end(second, screen)
    pids = first.process.pid, second.process.pid
    return gather(stage, kept, run.snapshot(stage), pids[0], status), pids


@contextmanager
def _agent(stage: run.Stage, screen: Screen, *arguments: str) -> Iterator[run.Agent]:
    with closing(run.Agent(stage, *arguments)) as agent:
        try:
            yield agent
        finally:
            screen.rest()


def _run_until_killed(agent: run.Agent, screen: Screen, kill_at: int) -> int:
    events, seen = agent.events(), list[run.Event]()
    for event in events:
        screen.step(event)
        seen.append(event)
        if hangs(seen, kill_at):
            break
    else:
        agent.end()
        raise agent.failure()
    time.sleep(_SUSPENSE)
    status = agent.end(kill=True)
    for event in events:
        screen.step(event)
    screen.killed(agent.process.pid, status)
    return status


def hangs(seen: list[run.Event], turn: int) -> bool:
    """Return whether all that is left of a turn is the call that hangs: the ledger has the results of the others."""
    events = [event for event in seen if event["turn"] == turn]
    asked = sum(len(event["asks"]) for event in events if event["event"] == "model_answered")
    count = Counter(event["event"] for event in events)
    return 0 < count["tool_began"] == asked == count["tool_kept"] + 1


def _run_to_the_end(agent: run.Agent, screen: Screen) -> None:
    for event in agent.events():
        screen.step(event)
    if agent.end() != 0:
        raise agent.failure()


def _result(stage: run.Stage, found: Evidence, proven: list[Claim], pids: tuple[int, int]) -> dict[str, Any]:
    before, after = found.paid(found.before), found.paid(found.after)
    return {
        "url": stage.url,
        "thread_id": stage.thread,
        "dir": str(stage.folder),
        "killed": {"pid": pids[0], "returncode": found.status, "at_work": list(found.cut.values())},
        "resumed": {"pid": pids[1], "step": found.kept.step, "messages": len(found.kept.messages)},
        "model_calls": {"before": len(before), "after": len(after), "twice": len({*before} & {*after})},
        "tool_calls": {
            "finished_before": len(found.finished),
            "finished_after": len(found.calls(found.after, "ended")),
            "cut": len(found.cut),
            "began_twice": sorted(found.repeated.values()),
            "from_ledger": list(found.answered.values()),
        },
        "ledger": {
            "calls": len(found.final.calls),
            "hits": sum(found.final.hits.values()),
            "hit_rate": round(found.final.hit_rate, 4),
        },
        "booked": found.booked,
        "checkpoints": {"kept": len(found.kept.rows), "final": len(found.final.rows)},
        "claims": [{"claim": claim.text, "holds": claim.holds} for claim in proven],
        "proved": all(claim.holds for claim in proven),
    }
