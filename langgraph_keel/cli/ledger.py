"""How the ledger of tool calls looks on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from langgraph_keel.cli.show import Fitting, table_of
from langgraph_keel.cli.terminal import local_time, shell_word
from langgraph_keel.core.calls import KeptCall
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.timeline.safe import one_line, plain

_STYLE = {"done": "green", "claimed": "cyan", "waiting": "yellow", "failed": "red", "unknown": "bold magenta"}
_SHOWN = {"claimed": "running"}
_DECIDED = {"retry": "may run again", "done": "done (settled)", "skip": "skipped"}
_KEY = 12
_ADVISED = 5
"""Calls that a command is shown for."""


def calls_page(owner: str | None, calls: Sequence[KeptCall], *, full: bool) -> RenderableType:
    """Return the page of `keel tools`; `advice` comes after it."""
    whose = "shared by threads" if owner is None else f"of thread {plain(owner)}"
    if not calls:
        return Text(f"No tool calls {whose} in the ledger (ToolCache keeps them there)", "dim")
    table = table_of("time", "tool", "state", "took", "hits", "saved", "key")
    for column in table.columns[3:6]:
        column.justify = "right"
    narrow: list[RenderableType] = []
    for call in calls:
        cells = _cells(call, full)
        table.add_row(*cells)
        told = "  ".join(str(cell) for cell in (cells[0], *cells[3:]) if str(cell))
        narrow += [Text.assemble(cells[2], "  ", cells[1]), Padding(Text(told, "dim"), (0, 2))]
    return Group(Text(f"tool calls {whose} · {len(calls)}"), Fitting(table, Group(*narrow), 80))


def _cells(call: KeptCall, full: bool) -> tuple[str | Text, ...]:
    name = Text(plain(call.tool), "bold", overflow="fold")
    if call.args is not None:
        shown = json.dumps(as_json(call.args), ensure_ascii=False)
        name.append(" " + (plain(shown) if full else one_line(shown, 80)), "not bold dim")
    if call.tool_call_id and (full or call.state == "unknown" or _is_not_kept(call)):
        name.append("\ncall " + one_line(call.tool_call_id, 80), "not bold dim")
    if call.error and not call.decided:
        name.append("\n" + (plain(call.error, "\n") if full else one_line(call.error, 120)), "not bold red")
    state = Text(_state(call), _STYLE.get(call.state, ""))
    key = call.key if full else call.key[:_KEY]
    return local_time(call.started_at), name, state, _took(call), f"{call.hits:,}", _money(call.saved), key


def _state(call: KeptCall) -> str:
    if _is_not_kept(call):
        return "done, not kept"
    return _DECIDED.get(call.decided) or plain(_SHOWN.get(call.state, call.state))


def _is_not_kept(call: KeptCall) -> bool:
    """Return whether a call is done, and there is no result for the step that made it, should that be resumed."""
    return call.state == "done" and not call.is_kept


def _took(call: KeptCall) -> str:
    if call.ended_at is None or call.decided:  # a person has said later that it ended
        return ""
    seconds = (datetime.fromisoformat(call.ended_at) - datetime.fromisoformat(call.started_at)).total_seconds()
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.0f} ms"


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount else ""


def advice(owner: str | None, calls: Sequence[KeptCall], url: str) -> Iterable[Text]:
    """Return what can be done about doubts: lines with commands that a shell takes as they are, not to be wrapped.

    Args:
        owner: The thread; `None` for calls that threads share.
        calls: Its calls, oldest first.
        url: The store, if the command line must name it.
    """
    where = ["--shared"] if owner is None else ["--thread", owner]
    where += ["--url", url] if url else []
    told = "Of unknown outcome. Find out what became of it, and say so: retry, or instead of that done, or skip"
    yield from _commands(told, "retry", where, [call for call in calls if call.state == "unknown"])
    told = (
        "Done, but the result was not kept: if its step is resumed, say what it was (--result TEXT), or retry, or skip"
    )
    yield from _commands(told, "done", where, [call for call in calls if _is_not_kept(call)])


def _commands(told: str, decision: str, where: Sequence[str], calls: Sequence[KeptCall]) -> Iterable[Text]:
    if calls:
        yield Text(told, "magenta")
    for call in calls[: -_ADVISED - 1 : -1]:  # the newest first
        words = ["keel", "settle", call.key[:_KEY], decision, *where]
        yield Text("  " + " ".join(map(shell_word, words)), "cyan")
    if len(calls) > _ADVISED:
        yield Text(f"  and {len(calls) - _ADVISED:,} more", "dim")


def settled_line(call: KeptCall, decision: str) -> Text:
    """Return what `keel settle` answers."""
    told = {
        "retry": "may be made again",
        "done": "counts as done",
        "skip": "will not be repeated",
    }
    which = f"{plain(call.tool)} of thread {plain(call.thread_id)}: call {call.key[:_KEY]}"
    return Text(f"{which} {told[decision]}. Resume its thread.", "green")


def clear_line(tools: Mapping[str, int], *, nodes: bool, done: bool) -> Text:
    """Return what `keel cache clear` answers, given how many calls of each tool there are."""
    count = sum(tools.values())
    parts = [f"{count:,} call{'s' * (count != 1)}"] if count or not nodes else []
    if tools and not done:
        parts[0] += f" ({', '.join(f'{plain(name)} ×{times:,}' for name, times in sorted(tools.items()))})"
    parts += ["all results of nodes"] if nodes else []
    what = " and ".join(parts)
    if done:
        return Text(f"Forgot {what}.")
    return Text(f"Nothing was changed. --yes forgets {what}: they will run again when asked.")


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
    return [_counted(tool, tools[tool]) for tool in sorted(tools)]


def _counted(tool: str, calls: Sequence[KeptCall]) -> ToolStats:
    states = [call.state for call in calls]
    hits = sum(call.hits for call in calls)
    return ToolStats(
        tool,
        len(calls),
        states.count("done"),
        states.count("failed"),
        states.count("unknown"),
        hits,
        hits / (hits + len(calls)),
        sum(call.saved for call in calls),
        sum(call.nbytes for call in calls),
    )


def stats_page(rows: Sequence[ToolStats]) -> RenderableType:
    """Return the page of `keel cache stats`."""
    if not rows:
        return Text("No tool calls in the ledger", "dim")
    table = table_of("tool", "calls", "done", "failed", "unknown", "hits", "hit rate", "saved", "bytes")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        counts = [f"{count:,}" for count in (row.calls, row.done, row.failed, row.unknown, row.hits)]
        rate = f"{row.hit_rate:.0%}"
        table.add_row(Text(plain(row.tool), "bold"), *counts, rate, _money(row.saved), f"{row.nbytes:,}")
    return table
