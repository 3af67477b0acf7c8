"""`keel show`: the state at one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from langgraph_keel._langgraph import INTERRUPT
from langgraph_keel.approvals.interrupts import asks_of, describe_question, text_of
from langgraph_keel.cli.history import EVERY_NS, MOMENT, config_of, moment_of, no_thread, open_timeline
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Ns, Thread, Url, open_to_read, tell_unread
from langgraph_keel.cli.output import block, console, local_time, print_json
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import calls_of, content_text
from langgraph_keel.display.text import is_internal, one_line, plain
from langgraph_keel.engine.entries import next_nodes
from langgraph_keel.engine.serde.unread import Unread
from langgraph_keel.errors import NotFound
from langgraph_keel.history import changes as steps
from langgraph_keel.history.deltas import read_values

if TYPE_CHECKING:
    from langgraph.types import Interrupt

Checkpoint = Annotated[
    str | None, typer.Argument(metavar="MOMENT", help=f"The checkpoint: {MOMENT}. The latest if left out.")
]

_EDITED = "hitl_edited_tool_calls"
"""The channel of `HumanInTheLoopMiddleware` with edited calls, by id."""
_LONGEST_TEXT = 2_000
_MOST_MESSAGES = 40
_ROLE_STYLE = {"human": "bold cyan", "ai": "bold green", "tool": "bold yellow", "system": "bold magenta"}


def show(
    thread: Thread,
    checkpoint: Checkpoint = None,
    url: Url = DEFAULT_URL,
    ns: Ns = "",
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Show the state at a checkpoint: channels, metadata, writes, questions.

    Example: `keel show my-thread`, or one checkpoint of it: `keel show my-thread 14`
    """
    with open_to_read(url, imports) as saver:
        if checkpoint is None:
            config = config_of(thread, None if ns == EVERY_NS else ns)
            found: CheckpointTuple | None = next(saver.list(config, limit=1), None)
        else:
            moment = moment_of(open_timeline(saver, thread), checkpoint)
            if ns not in ("", EVERY_NS, moment.namespace):
                raise NotFound(f"thread {thread!r}: {checkpoint!r} is in namespace {moment.namespace!r}, not in {ns!r}")
            found = saver.get_tuple(moment.config)
        if found is None:
            raise no_thread(saver, thread, ns)
        position = open_timeline(saver, thread).moment(found.config).position
        values = found.checkpoint["channel_values"] = saver.engine.run(read_values(saver.engine.session, found))
    if json:
        print_json({"position": position, **_checkpoint_json(found)})
    else:
        console().print(_checkpoint_page(found, position, full=full))
    channels = [*values.items(), *(write[1:] for write in found.pending_writes or [])]
    shown = [value for name, value in channels if full or json or not is_internal(name)]
    tell_unread([shown, found.metadata], imports)


def ns_of(found: CheckpointTuple) -> str:
    """Return the namespace of a checkpoint; the root graph's is empty."""
    return str(found.config["configurable"].get("checkpoint_ns") or "")


def nodes_after(found: CheckpointTuple) -> tuple[str, ...]:
    """Return the nodes that run from a checkpoint."""
    return next_nodes(cast(Any, found.checkpoint), found.checkpoint["channel_values"])


def interrupts(found: CheckpointTuple) -> tuple[Interrupt, ...]:
    """Return the open questions of tasks that have written nothing since."""
    return steps.open_questions(found.pending_writes or [])


def value_lines(value: Any, *, full: bool = False, indent: int = 2, made: Any = None) -> RenderableType:
    """Return a value to print, shortened without `full`; for `made` see `_message`."""
    if isinstance(value, BaseMessage):
        value = [value]
    kinds = [isinstance(each, BaseMessage) for each in value] if isinstance(value, list) else []
    # The classes of some messages may be missing.
    is_conversation = any(kinds) and all(isinstance(each, BaseMessage | Unread) for each in value)
    body = _conversation(value, full, made) if is_conversation else _text(value, full)
    return Padding(body, (0, 0, 0, indent))


def _text(value: Any, full: bool) -> Text:
    from rich.pretty import pretty_repr

    shown = value if isinstance(value, str) else pretty_repr(value, max_width=72)
    return block(shown, limit=None if full else _LONGEST_TEXT)


def _conversation(messages: Sequence[BaseMessage | Unread], full: bool, made: Any) -> RenderableType:
    shown = messages if full else messages[-_MOST_MESSAGES:]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for message in shown:
        if isinstance(message, Unread):
            grid.add_row(Text(plain(message.qualname), "bold"), _text(message, full))
            continue
        grid.add_row(Text(plain(message.type), _ROLE_STYLE.get(message.type, "bold")), _message(message, full, made))
    left_out = len(messages) - len(shown)
    note = [Text(f"… {left_out:,} earlier messages (--full)", "dim")] if left_out else []
    return Group(*note, grid)


def _message(message: BaseMessage, full: bool, made: Any) -> RenderableType:
    """Return a message to print; `made` has the calls that a reviewer edited, by id."""
    text = content_text(message.content)
    parts = [block(text, limit=None if full else _LONGEST_TEXT)] if text else []
    if isinstance(message, ToolMessage):
        label = Text(plain(message.name or message.tool_call_id), "dim")
        parts.insert(0, label.append(" failed", "red") if message.status == "error" else label)
    calls = calls_of(message)
    for text, call in zip(calls, getattr(message, "tool_calls", ()) if calls else (), strict=True):
        new = made.get(str(call.get("id"))) if isinstance(made, dict) and isinstance(call, dict) else None
        edits = calls_of(AIMessage.model_construct(tool_calls=[new])) if new else ()
        shown = [f", edited to {one_line(each, 300)}" for each in edits]
        parts.append(Text.assemble(("→ ", "dim"), one_line(text, 300), *shown))
    return Group(*(parts or [Text("(empty)", "dim")]))


def _checkpoint_page(found: CheckpointTuple, position: int, *, full: bool) -> RenderableType:
    values = found.checkpoint["channel_values"]
    shown = {name: value for name, value in values.items() if full or not is_internal(name)}
    made = values.get(_EDITED)
    state = [_section(name, _size(value), value_lines(value, full=full, made=made)) for name, value in shown.items()]
    parts = [_heading(found, position), *(state or [Text("\nno values", "dim")])]
    parts.append(_section("metadata", "", value_lines(dict(found.metadata), full=full)))
    if asked := interrupts(found):
        questions = Group(*(_question(each.value, full) for each in asked))
        parts.append(_section("waits for an answer", "", Padding(questions, (0, 0, 0, 2))))
    writes = [write for write in found.pending_writes or [] if full or not is_internal(write[1])]
    grid = Table.grid(padding=(0, 2))
    for task, channel, value in writes:
        if channel != INTERRUPT:
            name = Text(f"  {plain(channel)} ({plain(task[:8])})", "yellow", overflow="fold")
            grid.add_row(name, value_lines(value, indent=0))
    if grid.row_count:
        parts.append(_section("pending writes", "by tasks that ran from here", grid))
    return Group(*parts)


def _heading(found: CheckpointTuple, position: int) -> Text:
    place = [f"thread {plain(str(found.config['configurable']['thread_id']))}", f"#{position}"]
    if ns := ns_of(found):
        place.append(f"namespace {plain(ns)}")
    place.append(local_time(found.checkpoint["ts"]))
    following = plain(", ".join(nodes_after(found))) or "nothing"
    return Text.assemble(
        ("checkpoint ", ""), (plain(found.checkpoint["id"]), "bold green"), "\n",
        (" · ".join(place), "dim"), "\n", ("next: ", "dim"), following,
    )  # fmt: skip


def _section(name: str, note: str, body: RenderableType) -> RenderableType:
    title = Text.assemble("\n", (plain(name), "bold cyan"), (f"  {plain(note)}" if note else "", "dim"))
    return Group(title, body)


def _size(value: Any) -> str:
    if isinstance(value, Unread):
        return f"{value.qualname}, not read"
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, list | dict | set | tuple) else kind


def _question(value: Any, full: bool) -> Text:
    asks = asks_of(value)
    if any(ask.action for ask in asks):
        text = " · ".join([describe_question(value), *(ask.description for ask in asks if ask.description)])
    else:
        text = "\n".join(_lines(as_json(value)))
    return block(text, limit=None if full else _LONGEST_TEXT)


def _lines(value: Any) -> Iterator[str]:
    """Yield plain data as lines, with nested values indented."""
    if not _has_parts(value):
        yield from text_of(value).split("\n")
        return
    for name, part in value.items() if isinstance(value, dict) else ((None, part) for part in value):
        first, *below = _lines(part)
        if name is not None and _has_parts(part):
            first, below = "", [first, *below]
        yield f"- {first}" if name is None else f"{name}: {first}".rstrip()
        yield from (f"  {line}" for line in below)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _checkpoint_json(found: CheckpointTuple) -> dict[str, Any]:
    return {
        "thread_id": found.config["configurable"]["thread_id"],
        "checkpoint_ns": ns_of(found),
        "checkpoint_id": found.checkpoint["id"],
        "parent_checkpoint_id": ((found.parent_config or {}).get("configurable") or {}).get("checkpoint_id"),
        "ts": found.checkpoint["ts"],
        "next": list(nodes_after(found)),
        "values": as_json(found.checkpoint["channel_values"]),
        "metadata": as_json(dict(found.metadata)),
        "pending_writes": [
            {"task_id": task, "channel": channel, "value": as_json(value)}
            for task, channel, value in found.pending_writes or []
        ],
        "interrupts": [{"id": asked.id, "value": as_json(asked.value)} for asked in interrupts(found)],
    }
