"""The commands for the ledger of tool calls: `tools`, `settle`, `cache stats` and `cache clear`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.history import config_of, no_thread
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    Actor,
    AsJson,
    Full,
    Imports,
    Url,
    Yes,
    confirm,
    keel_words,
    open_to_change,
    open_to_read,
    tell_unread,
    url_to_name,
)
from langgraph_keel.cli.output import Rows, console, local_time, print_json, shell_word, with_bar
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import count_of, format_seconds, one_line, plain
from langgraph_keel.errors import DECISIONS, InvalidInput, short_key
from langgraph_keel.tools.ledger import KeptCall, begins_with, is_doubt

_STYLE = {"done": "green", "claimed": "cyan", "waiting": "yellow", "failed": "red", "unknown": "bold magenta"}
_SHOWN = {"claimed": "running"}
_DECIDED = {"retry": "may run again", "done": "done (settled)", "skip": "skipped"}
_ADVISED = 5
"""Calls that a command is shown for."""


def calls_page(owner: str | None, calls: Sequence[KeptCall], *, full: bool) -> RenderableType:
    """Return the page of `keel tools`; `advice` comes after it."""
    whose = "shared by threads" if owner is None else f"of thread {plain(owner)}"
    if not calls:
        return Text(f"No tool calls {whose} in the ledger (ToolCache keeps them there)", "dim")
    columns = ("time", "tool", "state", ">took", ">hits", ">saved", "key")
    rows = Rows(columns, [_cells(call, full) for call in calls], heads=2)
    return Group(Text(f"tool calls {whose} · {len(calls)}"), rows)


def _cells(call: KeptCall, full: bool) -> tuple[str | Text, ...]:
    name = Text(plain(call.tool), "bold", overflow="fold")
    if call.args is not None:
        shown = json.dumps(as_json(call.args), ensure_ascii=False, sort_keys=True)  # models give them in any order
        name.append(" " + (plain(shown) if full else one_line(shown, 80)), "not bold dim")
    if call.tool_call_id and (full or call.state == "unknown" or _is_not_kept(call)):
        name.append("\ncall " + one_line(call.tool_call_id, 80), "not bold dim")
    if call.error and not call.decided:
        name.append("\n" + (plain(call.error, "\n") if full else one_line(call.error, 120)), "not bold red")
    state = Text(_state(call), _STYLE.get(call.state, ""))
    key = call.key if full else short_key(call.key)
    took = ""
    if call.ended_at and not call.decided:  # else a person has said later that it ended
        start, end = map(datetime.fromisoformat, (call.started_at, call.ended_at))
        took = format_seconds((end - start).total_seconds())
    return local_time(call.started_at), name, state, took, f"{call.hits:,}", _money(call.saved), key


def _state(call: KeptCall) -> str:
    if _is_not_kept(call):
        return "done, not kept"
    return _DECIDED.get(call.decided) or plain(_SHOWN.get(call.state, call.state))


def _is_not_kept(call: KeptCall) -> bool:
    """Return whether a call is done, and there is no result for the step that made it, should that be resumed."""
    return call.state == "done" and not call.is_kept


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount else ""


def advice(owner: str | None, calls: Sequence[KeptCall], url: str) -> Iterable[Text]:
    """Return what can be done about doubts: lines with commands that a shell takes as they are, not to be wrapped."""
    where = ["--shared"] if owner is None else ["--thread", owner]
    where += ["--url", url] if url else []
    text = (
        "Nobody knows how it ended. Find out, and settle it: done if it happened, retry if it did not and may "
        "run again, skip if it shall not be repeated"
    )
    doubts = [call for call in calls if is_doubt(call)]
    yield from _commands(text, DECISIONS, where, doubts)
    if owner is not None and doubts and doubts[-1].args is None:
        words = [*keel_words(), "show", owner, doubts[-1].checkpoint_id, *(["--url", url] if url else [])]
        shown = " ".join(map(shell_word, words))
        yield Text(f"{shown}  shows the arguments, which ToolCache(store_arguments=True) keeps here", "dim")
    text = (
        "Done, but the result was not kept: if its step is resumed, say what it was (--result TEXT), or retry, or skip"
    )
    yield from _commands(text, ["done"], where, [call for call in calls if _is_not_kept(call)])


def _commands(text: str, decisions: Sequence[str], where: Sequence[str], calls: Sequence[KeptCall]) -> Iterable[Text]:
    if calls:
        yield Text(text, "magenta")
    for call in calls[: -_ADVISED - 1 : -1]:  # the newest first
        for decision in decisions:
            words = [*keel_words(), "settle", short_key(call.key), decision, *where]
            yield Text("  " + " ".join(map(shell_word, words)), "cyan")
    if len(calls) > _ADVISED:
        yield Text(f"  and {len(calls) - _ADVISED:,} more", "dim")


def settlement_line(call: KeptCall, decision: str) -> Text:
    """Return what `keel settle` answers."""
    text = {"retry": "may be made again", "done": "counts as done", "skip": "will not be repeated"}
    which = f"{plain(call.tool)} of thread {plain(call.thread_id)}: call {short_key(call.key)}"
    return Text(f"{which} {text[decision]}. Resume its thread.", "green")


def clear_line(tools: Mapping[str, int], *, nodes: bool, done: bool, is_asked: bool = False) -> Text:
    """Return what `keel cache clear` answers, given how many calls of each tool there are."""
    count = sum(tools.values())
    parts = [count_of(count, "call")] if count or not nodes else []
    if tools and not done:
        parts[0] += f" ({', '.join(f'{plain(name)} ×{times:,}' for name, times in sorted(tools.items()))})"
    parts += ["all results of nodes"] if nodes else []
    what = " and ".join(parts)
    if done:
        return Text(f"Forgot {what}.")
    if not count and not nodes:
        return Text("There is nothing to forget.")
    text = f"forget {what}; what is asked for again runs again."
    return Text(f"Would {text}" if is_asked else f"Nothing was changed. --yes would {text}")


@dataclass(frozen=True, slots=True)
class ToolStats:
    """The calls of one tool, over all threads."""

    tool: str
    calls: int
    done: int
    failed: int
    unknown: int
    hits: int
    hit_rate: float
    saved: float
    nbytes: int


def by_tool(calls: Iterable[KeptCall]) -> list[ToolStats]:
    """Return the numbers of each tool, by name."""
    tools: dict[str, list[KeptCall]] = {}
    for call in calls:
        tools.setdefault(call.tool, []).append(call)
    rows = []
    for tool, found in sorted(tools.items()):
        states, hits = Counter(call.state for call in found), sum(call.hits for call in found)
        ended = states["done"], states["failed"], states["unknown"]
        saved, nbytes = sum(call.saved for call in found), sum(call.nbytes for call in found)
        rows.append(ToolStats(tool, len(found), *ended, hits, hits / (hits + len(found)), saved, nbytes))
    return rows


def stats_page(rows: Sequence[ToolStats]) -> RenderableType:
    """Return the page of `keel cache stats`."""
    if not rows:
        return Text("No tool calls in the ledger", "dim")
    columns = ("tool", ">calls", ">done", ">failed", ">unknown", ">hits", ">hit rate", ">saved", ">bytes")
    cells: list[Sequence[str | Text]] = []
    for row in rows:
        counts = [f"{count:,}" for count in (row.calls, row.done, row.failed, row.unknown, row.hits)]
        name = Text(plain(row.tool), "bold", overflow="fold")
        cells.append([name, *counts, f"{row.hit_rate:.0%}", _money(row.saved), f"{row.nbytes:,}"])
    return Rows(columns, cells)


Thread = Annotated[
    str | None, typer.Argument(metavar="THREAD", help="The thread's id; left out with --shared, or for all in doubt.")
]
Shared = Annotated[bool, typer.Option("--shared", help="The calls that threads share.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The call's key, or the beginning of it.")]
Unknown = Annotated[
    bool,
    typer.Option(
        "--unknown",
        help="Only calls that somebody has to settle: nobody knows how they ended. Of all threads, if none is named.",
    ),
]
Result = Annotated[
    str | None, typer.Option("--result", metavar="TEXT", help="With done: what the tool would have said.")
]
Nodes = Annotated[bool, typer.Option("--nodes", help="The cached results of nodes (KeelCache).")]
Expired = Annotated[bool, typer.Option("--expired", help="Only what has expired.")]
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
    unknown: Unknown = False,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List the tool calls of a thread, or those in doubt of all: what ran, and how it ended.

    Also how often each was answered from the ledger since, and what that saved.

    Example: `keel tools my-thread`, or `keel tools --unknown` for all calls that somebody has to settle
    """
    if unknown:
        _list_unknown(thread, url, shared, full=full, imports=imports, json=json)
        return
    owner = _owner(thread, shared)
    with open_to_read(url, imports) as saver:
        calls = sorted(saver.tools.calls(owner), key=lambda call: call.started_at)
        if owner is not None and not calls and saver.get_tuple(config_of(owner, "")) is None:
            raise no_thread(saver, owner, "")
        has_shared = owner is not None and not json and any(True for _ in saver.tools.calls(None))
    tell_unread(calls, imports)
    if json:
        print_json({"thread_id": owner, "calls": [call_json(call) for call in calls]})
        return
    console().print(calls_page(owner, calls, full=full))
    for line in advice(owner, calls, url_to_name(url)):
        console().print(line, soft_wrap=True)
    if has_shared:
        console().print(Text("Calls that threads share are not among them: keel tools --shared", "dim"), soft_wrap=True)


def _list_unknown(
    thread: str | None, url: str, shared: bool, *, full: bool, imports: list[str] | None, json: bool
) -> None:
    """List the calls in doubt of a thread, of those that threads share, or of all."""
    owner = None if thread is None and not shared else _owner(thread, shared)
    with open_to_read(url, imports) as saver:
        if thread is None and not shared:
            every = _every_call(saver, quiet=json)
        else:
            every = ((owner, call) for call in saver.tools.calls(owner))
        found = sorted((each for each in every if is_doubt(each[1])), key=lambda each: each[1].started_at)
    if json:
        print_json({"thread_id": owner, "calls": [call_json(call) for _, call in found]})
    elif not found:
        console().print(Text("No call of a tool is in doubt", "dim"))
    by_owner: dict[str | None, list[KeptCall]] = {}
    for whose, call in found:
        by_owner.setdefault(whose, []).append(call)
    for whose, calls in () if json else by_owner.items():
        console().print(calls_page(whose, calls, full=full))
        for line in advice(whose, calls, url_to_name(url)):
            console().print(line, soft_wrap=True)


def settle(
    key: Key,
    decision: Annotated[
        Decision,
        typer.Argument(
            metavar="retry|done|skip",
            case_sensitive=False,
            help="May it run again, was it done, or shall it not be repeated?",
        ),
    ],
    thread: Annotated[str | None, typer.Option("--thread", "-t", metavar="THREAD", help="The thread.")] = None,
    url: Url = DEFAULT_URL,
    shared: Shared = False,
    result: Result = None,
    by: Actor = None,
    json: AsJson = False,
) -> None:
    """Say what became of a tool call that was cut off, so that its thread can go on.

    Example: `keel settle 3f2a91 done --thread my-thread --result "paid, receipt 17"`
    """
    owner = _owner(thread, shared)
    with open_to_change(url) as saver:
        saver.tools.settle(owner, key, decision.value, result, by=by)
        (call,) = [call for call in saver.tools.calls(owner) if begins_with(call.key, key)]
    if json:
        print_json({"decision": decision.value, **call_json(call)})
    else:
        console().print(settlement_line(call, decision.value), soft_wrap=True)


@cache.command()
def stats(url: Url = DEFAULT_URL, imports: Imports = None, json: AsJson = False) -> None:
    """Count the calls of all threads by tool: runs, answers from the ledger, failures, doubts, and what was saved.

    Example: `keel cache stats --url sqlite:///agent.db`
    """
    with open_to_read(url, imports) as saver:
        rows = by_tool(call for _, call in _every_call(saver, quiet=json))
    if json:
        print_json({"tools": [asdict(row) for row in rows]})
    else:
        console().print(stats_page(rows))


@cache.command()
def clear(
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="THREAD", help="The settled calls of this thread.")
    ] = None,
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
    if yes:
        found = Counter(_clear(url, owners, nodes, expired))
    else:
        now = datetime.now(UTC)
        with open_to_read(url) as saver:
            calls = [call for owner in owners for call in saver.tools.calls(owner) if call.state in ("done", "failed")]
        ends = [(call.tool, call.expires_at) for call in calls]
        found = Counter(name for name, end in ends if not expired or (end and datetime.fromisoformat(end) <= now))
    if json:
        print_json({"calls": found.total(), "done": yes})
        return
    is_asked = not yes and sys.stdin.isatty()
    console().print(clear_line(found, nodes=nodes, done=yes, is_asked=is_asked))
    if is_asked and (found or nodes):
        confirm("Forget it?", "Nothing was forgotten.")
        console().print(clear_line(Counter(_clear(url, owners, nodes, expired)), nodes=nodes, done=True))


def _clear(url: str, owners: Iterable[str | None], nodes: bool, expired: bool) -> dict[str, int]:
    from langgraph_keel.tools.cache import ToolCache
    from langgraph_keel.tools.node_cache import KeelCache

    with open_to_change(url) as saver:
        ledger = ToolCache(saver)
        if nodes:
            KeelCache(saver).clear()
        return {"of any tool": sum(ledger.clear(owner, expired_only=expired) for owner in owners)}


def _owner(thread: str | None, shared: bool) -> str | None:
    if thread is None and not shared:
        raise InvalidInput("name a thread (`keel threads` lists them), or give --shared for calls that threads share")
    if thread is not None and shared:
        raise InvalidInput("give a thread, or --shared for the calls that threads share, not both")
    return thread


def _every_call(saver: Any, *, quiet: bool) -> Iterator[tuple[str | None, KeptCall]]:
    """Yield all calls, each with the thread whose it is; `None` for those that threads share."""
    yield from ((None, call) for call in saver.tools.calls(None))
    for info in with_bar(list(saver.threads()), "Reading threads", quiet=quiet):
        yield from ((info.thread_id, call) for call in saver.tools.calls(info.thread_id))


def call_json(call: KeptCall) -> dict[str, Any]:
    """Return a call as `--json` prints it."""
    return {**asdict(call), "args": as_json(call.args), "saved": call.saved}
