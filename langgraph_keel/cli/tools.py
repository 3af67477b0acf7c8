"""The commands for the ledger of tool calls: `tools`, `settle`, `cache stats` and `cache clear`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli import ledger as render
from langgraph_keel.cli.bars import counted
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Url, changing, reading, url_to_name
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.core.calls import KeptCall
from langgraph_keel.errors import InvalidInput
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.tools import KeelCache, ToolCache

Thread = Annotated[str | None, typer.Argument(metavar="[THREAD]", help="The thread's id; left out with --shared.")]
Shared = Annotated[bool, typer.Option("--shared", help="The calls that threads share.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The call's key, or the beginning of it.")]
Result = Annotated[
    str | None, typer.Option("--result", metavar="TEXT", help="With done: what the tool would have said.")
]
Nodes = Annotated[bool, typer.Option("--nodes", help="The cached results of nodes (KeelCache).")]
Expired = Annotated[bool, typer.Option("--expired", help="Only what has expired.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without this, only say what would be done.")]
cache = typer.Typer(no_args_is_help=True, help="The cache of tool results: what it holds and saves, and clearing it.")


class Decision(StrEnum):
    """What became of a call."""

    retry = "retry"
    done = "done"
    skip = "skip"


def tools(
    thread: Thread = None,
    url: Url = DEFAULT_URL,
    shared: Shared = False,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List the tool calls of a thread: what ran, how it ended, what was answered from the ledger since.

    Example: `keel tools my-thread`
    """
    owner = _owner(thread, shared)
    with reading(url, imports) as saver:
        calls = sorted(saver.tools(owner), key=lambda call: call.started_at)
        has_shared = owner is not None and not json and any(True for _ in saver.tools(None))
    if json:
        print_json({"thread_id": owner, "calls": [call_json(call) for call in calls]})
        return
    console().print(render.calls_page(owner, calls, full=full))
    for line in render.advice(owner, calls, url_to_name(url)):
        console().print(line, soft_wrap=True)
    if has_shared:
        console().print(Text("Calls that threads share are not among them: keel tools --shared", "dim"), soft_wrap=True)


def settle(
    key: Key,
    decision: Annotated[
        Decision,
        typer.Argument(case_sensitive=False, help="May it run again, was it done, or shall it not be repeated?"),
    ],
    thread: Annotated[str | None, typer.Option("--thread", "-t", help="The thread.")] = None,
    url: Url = DEFAULT_URL,
    shared: Shared = False,
    result: Result = None,
    json: AsJson = False,
) -> None:
    """Say what became of a tool call that was cut off, so that its thread can go on.

    Example: `keel settle 3f2a91 done --thread my-thread --result "paid, receipt 17"`
    """
    owner = _owner(thread, shared)
    with changing(url) as saver:
        ToolCache(saver).settle(owner, key, decision.value, result)
        (call,) = [call for call in saver.tools(owner) if call.key.startswith(key)]
    if json:
        print_json({"decision": decision.value, **call_json(call)})
    else:
        console().print(render.settled_line(call, decision.value), soft_wrap=True)


@cache.command()
def stats(url: Url = DEFAULT_URL, imports: Imports = None, json: AsJson = False) -> None:
    """Count the calls of all threads by tool: runs, answers from the ledger, failures, doubts, and what was saved.

    Example: `keel cache stats --url sqlite:///agent.db`
    """
    with reading(url, imports) as saver:
        rows = render.by_tool(_every_call(saver, quiet=json))
    if json:
        print_json({"tools": [asdict(row) for row in rows]})
    else:
        console().print(render.stats_page(rows))


@cache.command()
def clear(
    thread: Annotated[str | None, typer.Option("--thread", "-t", help="The settled calls of this thread.")] = None,
    shared: Shared = False,
    nodes: Nodes = False,
    expired: Expired = False,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Forget stored results: the tools will run again. Calls under way, or of unknown outcome, stay.

    Example: `keel cache clear --thread my-thread --yes`
    """
    if not (thread or shared or nodes):
        raise InvalidInput("say what to clear: --thread THREAD, --shared or --nodes")
    if nodes and expired:
        raise InvalidInput("--expired is for tool calls: results of nodes that have expired are never used")
    owners = [*([thread] if thread else []), *([None] if shared else [])]
    found = Counter(_cleared(url, owners, nodes, expired) if yes else _to_clear(url, owners, expired))
    if json:
        print_json({"calls": found.total(), "done": yes})
    else:
        console().print(render.clear_line(found, nodes=nodes, done=yes))


def _to_clear(url: str, owners: Iterable[str | None], expired: bool) -> Iterable[str]:
    with reading(url) as saver:
        return [call.tool for owner in owners for call in saver.tools(owner) if _would_go(call, expired)]


def _would_go(call: KeptCall, expired: bool) -> bool:
    is_over = call.expires_at is not None and datetime.fromisoformat(call.expires_at) <= datetime.now(UTC)
    return call.state in ("done", "failed") and (is_over or not expired)


def _cleared(url: str, owners: Iterable[str | None], nodes: bool, expired: bool) -> dict[str, int]:
    with changing(url) as saver:
        ledger = ToolCache(saver)
        if nodes:
            KeelCache(saver).clear()
        return {"of any tool": sum(ledger.clear(owner, expired_only=expired) for owner in owners)}


def _owner(thread: str | None, shared: bool) -> str | None:
    if (thread is None) != shared:
        raise InvalidInput("give a thread, or --shared for the calls that threads share, not both")
    return thread


def _every_call(saver: Any, *, quiet: bool) -> Iterator[KeptCall]:
    yield from saver.tools(None)
    for info in counted(list(saver.threads()), "Reading threads", quiet=quiet):
        yield from saver.tools(info.thread_id)


def call_json(call: KeptCall) -> dict[str, Any]:
    """Return a call as `--json` prints it."""
    return {**asdict(call), "args": as_json(call.args), "saved": call.saved}
