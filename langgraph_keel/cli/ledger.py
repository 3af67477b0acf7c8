"""How the ledger of tool calls looks on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from langgraph_keel.cli.as_json import as_json
from langgraph_keel.cli.show import Fitting, table_of
from langgraph_keel.cli.terminal import local_time, one_line, plain
from langgraph_keel.core.calls import KeptCall

_STYLE = {"done": "green", "claimed": "cyan", "waiting": "yellow", "failed": "red", "unknown": "bold magenta"}
_SHOWN = {"claimed": "running"}
_KEY = 12


def calls_page(owner: str | None, calls: Sequence[KeptCall], *, full: bool) -> RenderableType:
    """Return the page of `keel tools`."""
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
    return Group(Text(f"tool calls {whose} · {len(calls)}"), Fitting(table, Group(*narrow), 80), *_advice(owner, calls))


def _cells(call: KeptCall, full: bool) -> tuple[str | Text, ...]:
    name = Text(plain(call.tool), "bold", overflow="fold")
    if call.args is not None:
        shown = json.dumps(as_json(call.args), ensure_ascii=False)
        name.append(" " + (plain(shown) if full else one_line(shown, 80)), "not bold dim")
    if call.error:
        name.append("\n" + (plain(call.error, "\n") if full else one_line(call.error, 120)), "not bold red")
    state = Text(_SHOWN.get(call.state, call.state), _STYLE.get(call.state, ""))
    key = call.key if full else call.key[:_KEY]
    return local_time(call.started_at), name, state, _took(call), f"{call.hits:,}", _money(call.saved), key


def _took(call: KeptCall) -> str:
    if call.ended_at is None:
        return ""
    seconds = (datetime.fromisoformat(call.ended_at) - datetime.fromisoformat(call.started_at)).total_seconds()
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1000:,.0f} ms"


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount else ""


def _advice(owner: str | None, calls: Sequence[KeptCall]) -> Iterable[Text]:
    doubtful = [call for call in calls if call.state == "unknown"]
    if doubtful:
        where = "--shared" if owner is None else f"--thread {plain(owner)}"
        key = doubtful[0].key[:_KEY]
        yield Text("Of unknown outcome: find out what became of it, and say so:", "magenta")
        yield Text(f"  keel settle {key} retry|done|skip {where}", "cyan")


def settled_line(key: str, decision: str) -> Text:
    """Return what `keel settle` answers."""
    told = {
        "retry": "may be made again",
        "done": "counts as done",
        "skip": "will not be repeated",
    }
    return Text(f"Call {plain(key)} {told[decision]}. Resume its thread.", "green")


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
