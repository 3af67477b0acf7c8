"""The commands for the ledger: `tools`, `settle`, `cache stats`, `cache clear`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

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
    command_line,
    confirm,
    open_to_change,
    open_to_read,
    tell_unread,
)
from langgraph_keel.cli.output import Rows, console, local_time, print_answer, print_json, print_lines, with_bar
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import count_of, format_seconds, one_line, plain
from langgraph_keel.errors import DECISIONS, InvalidInput, short_key
from langgraph_keel.retention.erase import each_stray
from langgraph_keel.tools.ledger import NEVER_BEGAN, KeptCall, begins_with, is_doubt

_STYLE = {"done": "green", "claimed": "cyan", "waiting": "yellow", "failed": "red", "unknown": "bold magenta"}
_SHOWN = {"claimed": "running"}
_DECIDED = {"retry": "may run again", "done": "done (settled)", "skip": "skipped"}
_COPIED = "Settle it here as it was settled there: done if it happened, skip to not run it again here"
_ADVISED = 5
"""Maximum number of calls for which commands are shown."""


def calls_page(owner: str | None, calls: Sequence[KeptCall], *, full: bool) -> RenderableType:
    """Return the page of `keel tools`."""
    whose = "shared by threads" if owner is None else f"of thread {plain(owner)}"
    if not calls:
        return Text(f"No tool calls {whose} in the ledger (ToolCache records them)", "dim")
    columns = ("time", "tool", "state", ">took", ">hits", ">saved", "key")
    rows = Rows(columns, [_cells(call, full) for call in calls], heads=2)
    return Group(Text(f"tool calls {whose} · {len(calls)}"), rows)


def _cells(call: KeptCall, full: bool) -> tuple[str | Text, ...]:
    name = Text(plain(call.tool), "bold", overflow="fold")
    if call.args is not None:
        shown = json.dumps(as_json(call.args), ensure_ascii=False, sort_keys=True)  # models write them in any order
        name.append(" " + (plain(shown) if full else one_line(shown, 80)), "not bold dim")
    if full or call.state == "unknown" or _is_not_kept(call) or _may_have_acted(call):
        for what, value in (("call", call.tool_call_id), ("idempotency key", call.idempotency_key)):
            name.append(f"\n{what} {one_line(value, 80)}" if value else "", "not bold dim")
    if call.error and not call.decided:
        name.append("\n" + (plain(call.error, "\n") if full else one_line(call.error, 120)), "not bold red")
    state = Text(_state(call), _STYLE.get(call.state, ""))
    key = call.key if full else short_key(call.key)
    took = ""
    if call.ended_at and not call.decided:  # a settled call has no end of its own
        start, end = map(datetime.fromisoformat, (call.started_at, call.ended_at))
        took = format_seconds((end - start).total_seconds())
    return local_time(call.started_at), name, state, took, f"{call.hits:,}", _money(call.saved), key


def _state(call: KeptCall) -> str:
    if _is_not_kept(call):
        return "done, not kept"
    return _DECIDED.get(call.decided) or plain(_SHOWN.get(call.state, call.state))


def _may_have_acted(call: KeptCall) -> bool:
    """Return whether a call raised an error, and a person has not settled it."""
    return call.state == "failed" and not call.decided and call.error != NEVER_BEGAN


def _is_not_kept(call: KeptCall) -> bool:
    """Return whether a call is done, but has no stored result for its step."""
    return call.state == "done" and not call.is_kept


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount else ""


def advice(owner: str | None, calls: Sequence[KeptCall], url: str, *, is_over: bool = False) -> Iterable[Text]:
    """Yield lines with the commands that settle calls; failed ones, unless their thread has finished."""
    where = ["--shared"] if owner is None else ["--thread", owner]
    question = (
        "The outcome is unknown. Find out, and settle it: done if it happened, retry if it did not and may "
        "run again, skip to not run it again"
    )
    for original in sorted({call.original for call in calls if is_doubt(call) and call.original}):
        text = f"Shared with thread {plain(original)}. Wait until it has ended there, or settle it there"
        yield Text(f"{text}. After retry, it runs when that thread continues", "magenta")
        yield Text(f"  {command_line(url, 'tools', original, '--unknown')}", "cyan")
    doubts = [call for call in calls if is_doubt(call) and not call.original]
    for place in sorted({call.copied_from for call in doubts if call.copied_from}):
        text = f"Copied from {plain(place)}, where the call has run or may still run. Look there first"
        yield Text(f"{text} (`keel tools`). If the original will never run again: retry --moved", "magenta")
    yield from _commands(question, DECISIONS, url, where, [call for call in doubts if not call.copied_from])
    yield from _commands(_COPIED, DECISIONS[::2], url, where, [call for call in doubts if call.copied_from])
    if owner is not None and doubts and doubts[-1].args is None:
        shown = command_line(url, "show", owner, doubts[-1].checkpoint_id)
        yield Text(f"See the arguments (stored here with ToolCache(store_arguments=True)): {shown}", "dim")
    text = (
        "Done, but the result was not stored. If its step is resumed: give the result (--result TEXT), retry, or skip"
    )
    yield from _commands(text, ["done"], url, where, [call for call in calls if _is_not_kept(call)])
    text = (
        "A failed call is made again when its step is resumed. If it has acted in spite of its error, settle it first"
    )
    yield from _commands(text, ["done"], url, where, [call for call in calls if _may_have_acted(call) and not is_over])


def _commands(
    text: str, decisions: Sequence[str], url: str, where: Sequence[str], calls: Sequence[KeptCall]
) -> Iterable[Text]:
    if calls:
        yield Text(text, "magenta")
    for call in calls[: -_ADVISED - 1 : -1]:  # the newest first
        for decision in decisions:
            yield Text(f"  {command_line(url, 'settle', short_key(call.key), decision, *where)}", "cyan")
    if len(calls) > _ADVISED:
        yield Text(f"  and {len(calls) - _ADVISED:,} more", "dim")


def clear_line(tools: Mapping[str, int], *, nodes: bool, done: bool, is_asked: bool = False) -> Text:
    """Return the answer of `keel cache clear`, given the number of calls of each tool."""
    count = sum(tools.values())
    parts = [count_of(count, "call")] if count or not nodes else []
    if tools and not done:
        parts[0] += f" ({', '.join(f'{plain(name)} ×{times:,}' for name, times in sorted(tools.items()))})"
    parts += ["all node results"] if nodes else []
    what = " and ".join(parts)
    if done:
        return Text(f"Cleared {what}.")
    if not count and not nodes:
        return Text("There is nothing to clear.")
    text = f"clear {what}, to run again when needed."
    return Text(f"Would {text}" if is_asked else f"Nothing was changed. --yes would {text}")


def by_tool(calls: Iterable[KeptCall]) -> list[dict[str, Any]]:
    """Return statistics of each tool, sorted by name, as `--json` prints them."""
    tools: dict[str, list[KeptCall]] = {}
    for call in calls:
        tools.setdefault(call.tool, []).append(call)
    rows = []
    for tool, found in sorted(tools.items()):
        states, hits = Counter(call.state for call in found), sum(call.hits for call in found)
        row: dict[str, Any] = {"tool": tool, "calls": len(found)}
        row |= {name: states[name] for name in ("done", "failed", "unknown")}
        row |= {"hits": hits, "hit_rate": hits / (hits + len(found))}
        rows.append(row | {name: sum(getattr(call, name) for call in found) for name in ("saved", "nbytes")})
    return rows


def stats_page(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the page of `keel cache stats`."""
    if not rows:
        return Text("No tool calls in the ledger", "dim")
    columns = ("tool", ">calls", ">done", ">failed", ">unknown", ">hits", ">hit rate", ">saved", ">bytes")
    cells: list[Sequence[str | Text]] = []
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("calls", "done", "failed", "unknown", "hits")]
        name = Text(plain(row["tool"]), "bold", overflow="fold")
        cells.append([name, *counts, f"{row['hit_rate']:.0%}", _money(row["saved"]), f"{row['nbytes']:,}"])
    return Rows(columns, cells)


Thread = Annotated[
    str | None,
    typer.Argument(
        metavar="THREAD",
        help="The thread's id. Leave it out with --shared, or for the unknown outcomes of all threads.",
    ),
]
Shared = Annotated[
    bool, typer.Option("--shared", help='Calls that threads share, of tools with `scope="shared"` or a function.')
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The call's key, or the start of it.")]
Unknown = Annotated[
    bool,
    typer.Option(
        "--unknown",
        help="Only calls with an unknown outcome, which must be settled. Without THREAD, those of all threads.",
    ),
]
Result = Annotated[
    str | None,
    typer.Option("--result", metavar="TEXT", help="With done: the result that the tool would have returned."),
]
Nodes = Annotated[bool, typer.Option("--nodes", help="The cached results of nodes (KeelCache).")]
Expired = Annotated[bool, typer.Option("--expired", help="Only expired results.")]
cache = typer.Typer(no_args_is_help=True, help="Show statistics of stored tool results, or clear them.")


def tools(
    thread: Thread = None,
    url: Url = DEFAULT_URL,
    shared: Shared = False,
    unknown: Unknown = False,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List the tool calls of a thread, or all calls with an unknown outcome.

    Shows the state of each call, how often its stored result was used again, and the cost that this saved.

    Example: `keel tools my-thread`, or `keel tools --unknown` for all calls that must be settled
    """
    is_of_all = unknown and thread is None and not shared
    owner = None if is_of_all else _owner(thread, shared)
    by_owner: dict[str | None, list[KeptCall]] = {} if unknown else {owner: []}
    has_shared = is_over = False
    with open_to_read(url, imports) as saver:
        every = _every_call(saver, quiet=json) if is_of_all else ((owner, call) for call in saver.tools.calls(owner))
        wanted = (each for each in every if not unknown or is_doubt(each[1]))
        found = sorted(wanted, key=lambda each: each[1].started_at)
        if owner is not None and not unknown:
            if not found and saver.get_tuple(config_of(owner, "")) is None:
                raise no_thread(saver, owner, "")
            has_shared = not json and any(True for _ in saver.tools.calls(None))
            is_over = any(_may_have_acted(call) for _, call in found) and saver.status(owner).state == "idle"
    calls = [call for _, call in found]
    if not unknown:
        tell_unread(calls, imports)
    if json:
        print_json({"thread_id": owner, "calls": [call_json(call) for call in calls]})
        return
    for whose, call in found:
        by_owner.setdefault(whose, []).append(call)
    for whose, theirs in by_owner.items():
        console().print(calls_page(whose, theirs, full=full))
        print_lines(advice(whose, theirs, url, is_over=is_over))
    if not by_owner:
        console().print(Text("No tool call has an unknown outcome", "dim"))
    if has_shared:
        print_lines([Text("Calls that threads share are not included: keel tools --shared", "dim")])


def settle(
    key: Key,
    decision: Annotated[
        Literal["retry", "done", "skip"],
        typer.Argument(
            metavar="retry|done|skip",
            case_sensitive=False,
            help="retry: it may run again; done: it happened; skip: do not run it again.",
        ),
    ],
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="THREAD", help="The thread of the call.")
    ] = None,
    url: Url = DEFAULT_URL,
    shared: Shared = False,
    result: Result = None,
    by: Actor = None,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved",
            help="With retry, for a call of a thread copied from another store: confirms that the call will never run "
            "there.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Settle a tool call whose outcome is unknown, so that its thread can continue.

    Example: `keel settle 3f2a91 done --thread my-thread --result "paid, receipt 17"`
    """
    owner = _owner(thread, shared)
    with open_to_change(url) as saver:
        saver.tools.settle(owner, key, decision, result, by=by, moved=moved)
        (call,) = [call for call in saver.tools.calls(owner) if begins_with(call.key, key)]
        status = "" if json else str(saver.status(call.thread_id))
    if json:
        print_json({"decision": decision, **call_json(call)})
    else:
        text = {"retry": "may run again", "done": "counts as done", "skip": "will not run again"}
        which = f"{plain(call.tool)} of thread {plain(call.thread_id)}: call {short_key(call.key)}"
        print_lines([Text(f"{which} {text[decision]}.", "green"), Text(plain(status))])


@cache.command()
def stats(url: Url = DEFAULT_URL, imports: Imports = None, json: AsJson = False) -> None:
    """Count the calls of all threads by tool: runs, hits, failures, savings.

    Example: `keel cache stats --url sqlite:///agent.db`
    """
    with open_to_read(url, imports) as saver:
        rows = by_tool(call for _, call in _every_call(saver, quiet=json))
    print_answer({"tools": rows}, stats_page(rows), as_json=json)


@cache.command()
def clear(
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="THREAD", help="The finished calls of this thread.")
    ] = None,
    shared: Shared = False,
    nodes: Nodes = False,
    expired: Expired = False,
    url: Url = DEFAULT_URL,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Clear stored results, so that the tools run again.

    Running calls and unknown outcomes are kept.

    Example: `keel cache clear --thread my-thread --yes`
    """
    if not (thread or shared or nodes):
        raise InvalidInput("choose the results to clear: --thread THREAD, --shared or --nodes")
    if nodes and expired:
        raise InvalidInput("--expired is for tool calls: expired node results are never used")
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
        confirm("Clear?", "Nothing was cleared.")
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
    """Yield all calls, each with its thread; `None` for shared calls."""
    yield from ((None, call) for call in saver.tools.calls(None))
    names = [info.thread_id for info in saver.threads()]
    # A run that was killed in its first step may have called tools without storing a checkpoint.
    saver.engine.run(each_stray(saver.engine.session.store, names.append))
    for name in with_bar(names, "Reading threads", quiet=quiet):
        yield from ((name, call) for call in saver.tools.calls(name))


def call_json(call: KeptCall) -> dict[str, Any]:
    """Return a call as `--json` prints it."""
    return {**asdict(call), "args": as_json(call.args), "saved": call.saved}
