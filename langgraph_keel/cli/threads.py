"""How threads, histories and checkpoints look: as tables and pages for a person, as JSON for a program.

What a checkpoint says about its run: which nodes ran, what comes next, what waits, where it branched.

How one value of a state looks: messages as a conversation, text as text, the rest laid out by `repr`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Interrupt
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.pretty import pretty_repr
from rich.table import Table
from rich.text import Text

from langgraph_keel.cli.options import block, local_time, without_password
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import call_text, content_text
from langgraph_keel.display.text import count_of, is_internal, one_line, plain, short_ids
from langgraph_keel.history import changes as steps
from langgraph_keel.provenance.records import ModelCall


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint in a thread's history.

    Attributes:
        ran: The nodes whose work this checkpoint stores.
        next: The nodes that run from here.
        follows: Whether its parent is the checkpoint put just before it in the same namespace.
        head: Whether nothing continues it.
        pending: Channels written by tasks that finished in a step which did not; only at a head.
        interrupts: Questions that wait for an answer.
        errors: What tasks failed with, as their `repr`; only at a head.
        models: The models that were called on the way here, as served if they said so.
    """

    id: str
    parent: str | None
    ns: str
    step: int | None
    source: str
    ts: str
    ran: tuple[str, ...]
    next: tuple[str, ...]
    follows: bool
    head: bool
    pending: tuple[str, ...]
    interrupts: tuple[Interrupt, ...]
    errors: tuple[str, ...]
    models: tuple[str, ...] = ()


def id_of(found: CheckpointTuple) -> str:
    """Return the checkpoint's id."""
    return found.checkpoint["id"]


def parent_of(found: CheckpointTuple) -> str | None:
    """Return the id of the checkpoint it continues."""
    config = found.parent_config
    return None if config is None else config["configurable"].get("checkpoint_id")


def ns_of(found: CheckpointTuple) -> str:
    """Return the namespace it belongs to; the root graph's is empty."""
    return str(found.config["configurable"].get("checkpoint_ns") or "")


def next_nodes(found: CheckpointTuple) -> tuple[str, ...]:
    """Return the nodes that run from here."""
    return steps.next_nodes(cast(Any, found.checkpoint), found.checkpoint["channel_values"])


def nodes_run(found: CheckpointTuple, parent: CheckpointTuple | None) -> tuple[str, ...]:
    """Return the nodes that ran between the parent and this checkpoint."""
    if parent is None or found.metadata.get("source") != "loop":
        return ()
    before = cast(Any, parent.checkpoint)
    return steps.nodes_run(cast(Any, found.checkpoint), before, before["channel_values"])


def interrupts(found: CheckpointTuple) -> tuple[Interrupt, ...]:
    """Return the questions of tasks that asked and have written nothing since."""
    return steps.interrupts(found.pending_writes or [])


def rows(found: Sequence[CheckpointTuple], saver: Any, calls: Iterable[ModelCall] = ()) -> list[Row]:
    """Return the history of `found`, which is newest first; parents outside it are looked up in `saver`.

    Args:
        found: The checkpoints.
        saver: Where they are.
        calls: The calls of models in the thread.
    """
    models = _models(calls)
    known = {(ns_of(item), id_of(item)): item for item in found}
    parents = {(ns_of(item), parent_of(item)) for item in found}
    return [
        _row(
            item,
            _parent(item, known, saver),
            _follows(found, place),
            (ns_of(item), id_of(item)) not in parents,
            tuple(models.get((ns_of(item), id_of(item)), ())),
        )
        for place, item in enumerate(found)
    ]


def _models(calls: Iterable[ModelCall]) -> dict[tuple[str, str | None], dict[str, None]]:
    """Return per place of a checkpoint the names of the models, each once, in the order of the calls."""
    models: dict[tuple[str, str | None], dict[str, None]] = {}
    for call in calls:
        name = call.served_model or call.model
        if name and call.error is None:
            models.setdefault((call.checkpoint_ns, call.checkpoint_id), {})[name] = None
    return models


def _parent(item: CheckpointTuple, known: dict[tuple[str, str], CheckpointTuple], saver: Any) -> CheckpointTuple | None:
    if item.parent_config is None:
        return None
    return known.get((ns_of(item), parent_of(item) or "")) or saver.get_tuple(item.parent_config)


def _follows(found: Sequence[CheckpointTuple], place: int) -> bool:
    item = found[place]
    before = next((other for other in found[place + 1 :] if ns_of(other) == ns_of(item)), None)
    return before is None or parent_of(item) == id_of(before)


def _row(
    item: CheckpointTuple, parent: CheckpointTuple | None, follows: bool, head: bool, models: tuple[str, ...]
) -> Row:
    writes = item.pending_writes or []
    return Row(
        id=id_of(item),
        parent=parent_of(item),
        ns=ns_of(item),
        step=item.metadata.get("step"),
        source=str(item.metadata.get("source", "")),
        ts=item.checkpoint["ts"],
        ran=nodes_run(item, parent),
        next=next_nodes(item),
        follows=follows,
        head=head,
        pending=steps.written(writes) if head else (),
        interrupts=steps.interrupts(writes),
        errors=steps.errors(writes) if head else (),
        models=models,
    )


_LONGEST_TEXT = 2_000
_MOST_MESSAGES = 40
_ROLE_STYLE = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow", "system": "bold magenta"}


def value_lines(value: Any, *, full: bool = False, indent: int = 2) -> RenderableType:
    """Return `value` to print; without `full` only so much of it that a page stays readable."""
    if isinstance(value, BaseMessage):
        value = [value]
    conversation = isinstance(value, list) and value and all(isinstance(item, BaseMessage) for item in value)
    body = _conversation(value, full) if conversation else _text(value, full)
    return Padding(body, (0, 0, 0, indent))


def _text(value: Any, full: bool) -> Text:
    shown = value if isinstance(value, str) else pretty_repr(value, max_width=72)
    return block(shown, limit=None if full else _LONGEST_TEXT)


def _conversation(messages: Sequence[BaseMessage], full: bool) -> RenderableType:
    shown = messages if full else messages[-_MOST_MESSAGES:]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for message in shown:
        grid.add_row(Text(plain(message.type), _ROLE_STYLE.get(message.type, "bold")), _message(message, full))
    left_out = len(messages) - len(shown)
    note = [Text(f"… {left_out:,} earlier messages (--full)", "dim")] if left_out else []
    return Group(*note, grid)


def _message(message: BaseMessage, full: bool) -> RenderableType:
    text = content_text(message.content)
    parts = [block(text, limit=None if full else _LONGEST_TEXT)] if text else []
    if isinstance(message, ToolMessage):
        label = Text(plain(message.name or message.tool_call_id), "dim")
        parts.insert(0, label.append(" failed", "red") if message.status == "error" else label)
    if isinstance(message, AIMessage):
        parts += [Text.assemble(("→ ", "dim"), _called(call)) for call in message.tool_calls]
    return Group(*(parts or [Text("(empty)", "dim")]))


def _called(call: ToolCall) -> str:
    return one_line(call_text(call["name"], call["args"]), 300)


Cells = tuple[str, Text, str, Text, Text]
_SOURCE_STYLE = {"input": "cyan", "update": "yellow", "fork": "magenta"}


@dataclass(frozen=True)
class Fitting:
    """The wide form of something where the terminal is at least `at` columns wide, else the narrow one."""

    wide: RenderableType
    narrow: RenderableType
    at: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Choose by the width there is."""
        yield self.wide if options.max_width >= self.at else self.narrow


def table_of(*columns: str | Text) -> Table:
    """Return a table without rows."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def threads_table(found: Sequence[Any], url: str, *, more: bool) -> RenderableType:
    """Return the table of `keel threads`."""
    if not found:
        return Text(f"No threads in {without_password(url)}", "dim")
    table = table_of("thread", "checkpoints", "last step", "last activity")
    table.columns[1].justify = table.columns[2].justify = "right"
    narrow: list[RenderableType] = []
    for info in found:
        name, step = Text(plain(info.thread_id), "bold", overflow="fold"), _step(info.step)
        table.add_row(name, f"{info.checkpoints:,}", step, local_time(info.updated_at))
        told = f"  {info.checkpoints:,} checkpoints · step {step or '?'} · {local_time(info.updated_at)}"
        narrow += [name, Text(told, "dim")]
    return Group(Fitting(table, Group(*narrow), 60), *_more(more))


def no_threads_of(model: str, others: int) -> Text:
    """Return what `keel threads --model` says where this model has written none of the threads."""
    return Text(f"None of {count_of(others, 'thread')} was written by {plain(repr(model))}.", "dim")


def _step(step: object) -> str:
    return "" if step is None else plain(str(step))


def _more(more: bool) -> Iterable[Text]:
    return [Text("… and older ones: --limit shows more", "dim")] if more else []


def threads_json(found: Sequence[Any], *, more: bool) -> dict[str, Any]:
    """Return what `keel threads --json` prints."""
    fields = ("thread_id", "checkpoints", "step", "updated_at", "latest")
    threads = [{**{name: getattr(info, name) for name in fields}, "models": list(info.models)} for info in found]
    return {"threads": threads, "more": more}


def history_table(
    thread: str,
    rows: Sequence[Row],
    *,
    more: bool = False,
    full: bool = False,
    every_ns: bool = False,
    marks: Mapping[str, str] | None = None,
) -> RenderableType:
    """Return the table of `keel history`, newest first; `marks` puts a remark beside a checkpoint id."""
    short = short_ids(row.id for row in rows)
    if full:
        short = {row.id: row.id for row in rows}
    cells = [_history_cells(row, short, every_ns, (marks or {}).get(row.id, "")) for row in rows]
    table: RenderableType = _table(cells, [])
    if any(row.models for row in rows):
        wide = _table(cells, [", ".join(map(plain, row.models)) for row in rows])
        table = Fitting(wide, table, min(_width_of(wide), 140 if full else 100))
    narrow = [line for row in cells for line in _stacked(*row)]
    title = Text.assemble("thread ", (plain(thread), "bold"), (f" · {_count(rows, more)}", "dim"))
    return Group(title, Fitting(table, Group(*narrow), 110 if full else 60), *_more(more))


def _table(rows: Sequence[Cells], models: Sequence[str]) -> Table:
    """Return the rows of a history as a table, with a column for models if they are given."""
    table = table_of("step", "checkpoint", "time", "what happened", *["model"] * bool(models), "next")
    table.columns[0].justify = "right"
    for column in table.columns[:3]:
        column.no_wrap = True
    for number, row in enumerate(rows):
        table.add_row(*row[:4], *models[number : number + 1], row[4])
    return table


def _width_of(table: Table) -> int:
    """Return how wide a table is if nothing in it is folded."""
    return Console(width=1000).measure(table).maximum


def _stacked(step: str, marker: Text, time: str, happened: Text, following: Text) -> list[RenderableType]:
    """Return one checkpoint in two lines, for a terminal too narrow for a table."""
    first = Text.assemble(f"{step:>4}  ", marker, ("  " + time, "dim"), overflow="fold")
    return [first, Padding(Text.assemble(happened, (" → ", "dim"), following, overflow="fold"), (0, 0, 0, 6))]


def _count(rows: Sequence[Row], more: bool) -> str:
    return f"the last {len(rows)} checkpoints" if more else count_of(len(rows), "checkpoint")


def _history_cells(row: Row, short: Mapping[str, str], every_ns: bool, mark: str) -> Cells:
    marker = Text(plain(short[row.id]), "bold green" if row.head else "green")
    return _step(row.step), marker, local_time(row.ts), _happened(row, short, every_ns), _next(row, mark)


def _happened(row: Row, short: Mapping[str, str], every_ns: bool) -> Text:
    told = Text(plain(", ".join(row.ran)) or plain(row.source), _SOURCE_STYLE.get(row.source, ""))
    if every_ns and row.ns:
        told.append(f" in {plain(row.ns)}", "dim")
    if not row.follows:
        told.append(f" (branch from {_parent_text(row, short)})", "magenta")
    return told


def _parent_text(row: Row, short: Mapping[str, str]) -> str:
    return "nothing" if row.parent is None else plain(short.get(row.parent, row.parent))


def _next(row: Row, mark: str = "") -> Text:
    """Return what runs next, and what holds it up."""
    told = Text(plain(", ".join(row.next)))
    if not row.next and row.head:
        told = Text("done", "dim")
    if row.pending:
        told.append(f" ({len(row.pending)} written: {plain(', '.join(row.pending))})", "yellow")
    for asked in row.interrupts:
        told.append(f" · {'waits' if row.head else 'asked'}: {one_line(_short(asked.value), 60)}", "yellow")
    for error in row.errors:
        told.append(f" · failed: {one_line(error, 60)}", "red")
    return told.append(f" {mark}" if mark else "", "bold red")


def _short(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def history_json(thread: str, rows: Sequence[Row], *, more: bool) -> dict[str, Any]:
    """Return what `keel history --json` prints."""
    return {"thread_id": thread, "checkpoints": [row_json(row) for row in rows], "more": more}


def row_json(row: Row) -> dict[str, Any]:
    """Return one checkpoint of a history as JSON."""
    return {
        "checkpoint_id": row.id,
        "parent_checkpoint_id": row.parent,
        "checkpoint_ns": row.ns,
        "step": as_json(row.step),
        "source": row.source,
        "ts": row.ts,
        "ran": list(row.ran),
        "next": list(row.next),
        "follows_previous": row.follows,
        "head": row.head,
        "pending_writes": list(row.pending),
        "errors": list(row.errors),
        "interrupts": [{"id": asked.id, "value": as_json(asked.value)} for asked in row.interrupts],
        "models": list(row.models),
    }


def checkpoint_page(found: CheckpointTuple, *, full: bool = False) -> RenderableType:
    """Return the page of `keel show`: the state first, then what surrounds it."""
    values = found.checkpoint["channel_values"]
    shown = {name: value for name, value in values.items() if full or not is_internal(name)}
    state = [_section(name, _size(value), value_lines(value, full=full)) for name, value in shown.items()]
    return Group(_heading(found), *(state or [Text("\nno values", "dim")]), *_surroundings(found, full))


def _heading(found: CheckpointTuple) -> Text:
    place = [f"thread {plain(str(found.config['configurable']['thread_id']))}"]
    if ns := ns_of(found):
        place.append(f"namespace {plain(ns)}")
    place += [f"step {plain(str(found.metadata.get('step', '?')))}", local_time(found.checkpoint["ts"])]
    following = plain(", ".join(next_nodes(found))) or "nothing"
    return Text.assemble(
        ("checkpoint ", ""), (plain(id_of(found)), "bold green"), "\n",
        (" · ".join(place), "dim"), "\n", ("next: ", "dim"), following,
    )  # fmt: skip


def _section(name: str, note: str, body: RenderableType) -> RenderableType:
    title = Text.assemble("\n", (plain(name), "bold cyan"), (f"  {plain(note)}" if note else "", "dim"))
    return Group(title, body)


def _size(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | dict | set | tuple) else kind


def _surroundings(found: CheckpointTuple, full: bool) -> Iterable[RenderableType]:
    yield _section("metadata", "", value_lines(dict(found.metadata), full=full))
    writes = [write for write in found.pending_writes or [] if full or not is_internal(write[1])]
    if asked := interrupts(found):
        yield _section("waits for an answer", "", _pairs((item.id, item.value) for item in asked))
    if ordinary := [write for write in writes if write[1] != "__interrupt__"]:
        note = "by tasks that ran from here"
        yield _section("pending writes", note, _pairs((f"{write[1]} ({write[0][:8]})", write[2]) for write in ordinary))


def _pairs(items: Iterable[tuple[str, Any]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in items:
        grid.add_row(Text("  " + plain(name), "yellow", overflow="fold"), value_lines(value, indent=0))
    return grid


def checkpoint_json(found: CheckpointTuple) -> dict[str, Any]:
    """Return what `keel show --json` prints."""
    return {
        "thread_id": found.config["configurable"]["thread_id"],
        "checkpoint_ns": ns_of(found),
        "checkpoint_id": id_of(found),
        "parent_checkpoint_id": parent_of(found),
        "ts": found.checkpoint["ts"],
        "next": list(next_nodes(found)),
        "values": as_json(found.checkpoint["channel_values"]),
        "metadata": as_json(dict(found.metadata)),
        "pending_writes": [
            {"task_id": task, "channel": channel, "value": as_json(value)}
            for task, channel, value in found.pending_writes or []
        ],
        "interrupts": [{"id": asked.id, "value": as_json(asked.value)} for asked in interrupts(found)],
    }
