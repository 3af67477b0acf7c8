"""`keel provenance`: which model wrote a thread, with what, and where that changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli import checkpoints
from langgraph_keel.cli.naming import EVERY_NS, config_of, named, no_thread
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Thread, Url, reading
from langgraph_keel.cli.show import Fitting, table_of
from langgraph_keel.cli.terminal import console, local_time, print_json
from langgraph_keel.core.provenance import ModelCall
from langgraph_keel.core.recorded import DriftMark
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.timeline.safe import plain

Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", "-c", metavar="ID", help="Only the calls that led to this one: its id, or its start or end."
    ),
]
_COLUMNS = ("step", "node", "model → served", "with", "tokens", "time")
_GAP = 2
_GONE = Text("The first checkpoints are gone, and calls with them: there were more.", "yellow")


def provenance(
    thread: Thread,
    checkpoint: Checkpoint = None,
    url: Url = DEFAULT_URL,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List the calls of models that wrote a thread: which model answered, with what, and where that changed.

    Example: `keel provenance my-thread`
    """
    with reading(url, imports) as saver:
        calls, marks = _found(saver, thread, checkpoint)
        is_cut = checkpoint is None and not json and _is_cut(saver, thread)
    if json:
        print_json({"thread_id": thread, "calls": as_json(calls), "drift": as_json(marks)})
    else:
        console().print(calls_page(thread, calls, marks, console().width, full=full))
    if is_cut:
        console().print(_GONE)


def _found(saver: Any, thread: str, wanted: str | None) -> tuple[Sequence[ModelCall], Sequence[DriftMark]]:
    """Return the calls and the marks of a thread, or of one checkpoint in it."""
    calls, marks = saver.provenance(config_of(thread, None)), saver.drifts(thread)
    if wanted is not None:
        place = named(saver, thread, EVERY_NS, wanted)
        at = checkpoints.ns_of(place), checkpoints.id_of(place)
        calls = [call for call in calls if (call.checkpoint_ns, call.checkpoint_id) == at]
        marks = [mark for mark in marks if ("", mark.checkpoint_id) == at]
    elif not calls and not next(iter(saver.list(config_of(thread, None), limit=1)), None):
        raise no_thread(saver, thread, "")
    return calls, marks


def _is_cut(saver: Any, thread: str) -> bool:
    """Return whether calls of a thread are gone; `False` too if nobody knows: without messages, or damaged."""
    return any(line["usage"] is None for line in saver.trajectories([thread], on_skip=lambda *_: None))


# -- the page --------------------------------------------------------------------------------------------------


def calls_page(
    thread: str, calls: Sequence[ModelCall], marks: Sequence[DriftMark], width: int, *, full: bool
) -> RenderableType:
    """Return the page of `keel provenance` for a terminal of this width."""
    if not calls and not marks:
        return Text(f"No calls of models recorded for thread {plain(thread)}", "dim")
    parts = list(_with_marks(calls, marks))
    if full:
        body = [_mark(part) if isinstance(part, DriftMark) else _whole(part) for part in parts]
        return Group(_title(thread, calls), *body)
    narrow = [_mark(part) if isinstance(part, DriftMark) else _stacked(part) for part in parts]
    return Group(_title(thread, calls), Fitting(Group(*_tables(parts, width)), Group(*narrow), 70))


def _with_marks(calls: Sequence[ModelCall], marks: Sequence[DriftMark]) -> Iterator[ModelCall | DriftMark]:
    """Yield the calls, each mark before the first call after the change."""
    for call in calls:
        yield from (mark for mark in marks if mark.call_id == call.id)
        yield call
    known = {call.id for call in calls}
    yield from (mark for mark in marks if mark.call_id not in known)


def _title(thread: str, calls: Sequence[ModelCall]) -> Text:
    tokens = [sum(_count(call, name) for call in calls) for name in ("input_tokens", "output_tokens")]
    costs = [call.cost for call in calls if call.cost is not None]
    is_known = all(call.cost is not None for call in calls if call.error is None)
    told = f" · {len(calls):,} call{'s' * (len(calls) != 1)} of models"
    told += f" · {tokens[0]:,} → {tokens[1]:,} tokens" if any(tokens) else ""
    told += f" · cost {'' if is_known else 'at least '}{_money(sum(costs))}" if costs else ""
    return Text.assemble("thread ", (plain(thread), "bold"), (told, "dim"))


def _mark(mark: DriftMark) -> Text:
    """Return what changed, a line for each change."""
    step = "" if mark.step is None else f"drift at step {mark.step}: "
    text = Text(style="yellow", overflow="fold")
    for number, change in enumerate(mark.changes):
        text.append("\n" * bool(number) + f"! {step}{plain(change)}")
    return text


def _tables(parts: Sequence[ModelCall | DriftMark], width: int) -> Iterator[RenderableType]:
    """Yield tables of calls with the marks between them, all with the same widths of columns."""
    rows = {part.id: _cells(part) for part in parts if isinstance(part, ModelCall)}
    widths = _widths(rows.values(), width)
    table = _table(widths, with_header=True)
    for part in parts:
        if isinstance(part, ModelCall):
            table.add_row(*rows[part.id])
            continue
        if table.row_count or table.show_header:
            yield table
        yield _mark(part)
        table = _table(widths, with_header=False)
    if table.row_count:
        yield table


def _table(widths: Sequence[int], *, with_header: bool) -> Table:
    table = table_of(*_COLUMNS)
    table.show_header, table.padding = with_header, (0, 1, 0, 0)
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    table.columns[0].justify = "right"
    return table


def _widths(rows: Iterable[Sequence[Text]], width: int) -> list[int]:
    """Return the widths of the columns; what is too much is taken from the models, then from the nodes."""
    lines = [[_COLUMNS[place], *(line for row in rows for line in row[place].plain.split("\n"))] for place in range(6)]
    widths = [max(map(cell_len, column)) for column in lines]
    for place, least in ((2, 24), (1, 8), (2, 10)):
        excess = sum(widths) + _GAP * 5 - width
        widths[place] = max(min(widths[place], least), widths[place] - max(0, excess))
    return widths


def _cells(call: ModelCall) -> list[Text]:
    step = Text("" if call.step is None else str(call.step))
    node = _lines((plain(call.path or call.node), "bold"), (f"attempt {call.attempt}" * (call.attempt > 1), "dim"))
    served = f"→ {plain(call.served_model)}" if call.served_model not in (None, call.model) else ""
    failed = f"→ failed: {plain(call.error)}" if call.error else ""
    cached = "from the cache" if call.cached else ""
    model = _lines((plain(call.model or "?"), "cyan"), (served, ""), (failed, "red"), (cached, "dim"))
    tokens = _lines((_tokens(call), ""), ("" if call.cost is None else _money(call.cost), "dim"))
    time = _lines((local_time(call.started_at).replace(" ", "\n"), ""), (_took(call), "dim"))
    return [step, node, model, _lines(*((line, "") for line in _given(call))), tokens, time]


def _lines(*lines: tuple[str, str]) -> Text:
    """Return texts with their styles, a line each, without the empty ones."""
    text = Text(overflow="fold")
    for line, style in lines:
        if line:
            text.append("\n" * bool(text.plain)).append(line, style)
    return text


def _given(call: ModelCall) -> list[str]:
    shown = (("seed", call.seed), ("temp", call.temperature), ("top_p", call.top_p), ("max", call.max_tokens))
    return [f"{name} {value}" for name, value in shown if value is not None]


def _tokens(call: ModelCall) -> str:
    return f"{_count(call, 'input_tokens'):,} → {_count(call, 'output_tokens'):,}" if call.usage else ""


def _count(call: ModelCall, name: str) -> int:
    """Return a count of tokens; 0 if a provider has put something else there."""
    count = call.usage.get(name)
    return count if isinstance(count, int) else 0


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 or amount == 0 else f"{amount:.3g}"


def _took(call: ModelCall) -> str:
    if call.seconds is None:
        return ""
    return f"{call.seconds:,.1f} s" if call.seconds >= 1 else f"{call.seconds * 1000:,.0f} ms"


def _stacked(call: ModelCall) -> RenderableType:
    """Return a call for a terminal too narrow for a table."""
    step, node, *others = _cells(call)
    first = Text.assemble(f"{step.plain:>4}  ", Text(", ").join(node.split("\n")))
    told = "  ".join(" ".join(other.plain.split("\n")) for other in others if other.plain)
    return Group(first, Padding(Text(told, "dim", overflow="fold"), (0, 0, 0, 6)))


def _whole(call: ModelCall) -> RenderableType:
    """Return all that is known of a call."""
    heading = Text.assemble("\nstep ", str(call.step), " ", (plain(call.path or call.node), "bold"))
    known = [(each.name, getattr(call, each.name)) for each in fields(call)]
    grid = Table.grid(padding=(0, 2))
    for name, value in known:
        if value not in (None, "", (), {}, False):
            shown = value if isinstance(value, str) else str(as_json(value))
            grid.add_row(Text(f"  {name}", "dim"), Text(plain(shown), overflow="fold"))
    return Group(heading, grid)
