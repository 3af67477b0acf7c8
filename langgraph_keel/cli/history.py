"""The commands for a thread's history, and lookup of threads and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.approvals.interrupts import describe_question
from langgraph_keel.approvals.requests import OPEN, STATUSES, SUPERSEDED, ApprovalRequest
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    Actor,
    AsJson,
    Full,
    Imports,
    Ns,
    Thread,
    Url,
    command_line,
    open_to_change,
    open_to_read,
    tell_names,
    tell_unread,
)
from langgraph_keel.cli.output import Rows, console, local_time, print_json, print_lines
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import count_of, one_line, plain
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.reading import Pages
from langgraph_keel.history.timeline import Timeline
from langgraph_keel.tools.ledger import KeptCall, is_doubt

if TYPE_CHECKING:
    from langgraph_keel.history.render.rows import TimelineRow

EVERY_NS = "*"
"""Selects all namespaces of a thread."""

MOMENT = (
    "its # in `keel timeline` and `keel history` (-1 is the latest), its label, its id, or the start or end of its id"
)

_SAME_LEDGER = (
    "calls that this thread already made with the same arguments are answered from the ledger, except those that used "
    "a person's answer: they ask again, and run again if approved; others run"
)
_OWN_LEDGER = "calls made up to this point are answered from the ledger; others run"


def config_of(thread: str, ns: str | None, checkpoint: str | None = None) -> Any:
    """Return the config of a thread, with its namespace and checkpoint if given."""
    given = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}
    return {"configurable": {key: value for key, value in given.items() if value is not None}}


def check_thread(saver: Any, thread: str) -> None:
    """Raise `NotFound` if the thread has no checkpoint."""
    if not _has_checkpoint(saver, thread):
        raise no_thread(saver, thread, "")


def _has_checkpoint(saver: Any, thread: str) -> bool:
    # Reads no values: a thread that has lost one can still be deleted.
    return any(True for _ in saver.raw.list(config_of(thread, None), limit=1))


def no_thread(saver: Any, thread: str, ns: str) -> NotFound:
    """Return the error for a thread, or a namespace in it, that does not exist."""
    if ns and _has_checkpoint(saver, thread):
        return NotFound(f"thread {thread!r} has nothing in namespace {ns!r}: --ns '*' shows all namespaces")
    # No similar name is suggested: it may be the thread of another customer.
    return NotFound(f"there is no thread {thread!r}: `keel threads` lists all threads")


def open_timeline(saver: Any, thread: str) -> Timeline:
    """Return the timeline of a thread."""
    found: Timeline = saver.timeline(thread)
    if not found:
        raise no_thread(saver, thread, "")
    return found


def moment_of(found: Timeline, at: str) -> Moment:
    """Return the moment that a command-line argument names."""
    if at.startswith("--"):
        raise InvalidInput(f"no such option: {at}")
    is_position = at.removeprefix("-").isdecimal() and len(at) < 8  # longer numbers are ends of ids
    return found.moment(int(at) if is_position else at)


At = Annotated[str, typer.Argument(metavar="MOMENT", help=f"The checkpoint: {MOMENT}.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many, the newest.")]
Every = Annotated[bool, typer.Option("--all", help="Show the whole thread.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The label: any text except a number.")]
NewThread = Annotated[
    str | None, typer.Argument(metavar="NEW", help="The new thread's id. Without it, a branch in the same thread.")
]


def history(
    thread: Thread,
    url: Url = DEFAULT_URL,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many.")] = 50,
    ns: Ns = "",
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List a thread's checkpoints, newest first: nodes, questions, branches.

    Example: `keel history my-thread --limit 10`
    """
    with open_to_read(url, imports) as saver:
        pages = partial(Pages, saver.engine.session, thread, is_brief=True)
        found = latest_moments(Timeline(saver, thread, pages), ns, limit + 1)
        if not found:
            raise no_thread(saver, thread, ns)
    moments, more = found[:limit], len(found) > limit
    if json:
        rows = []
        for place, moment in enumerate(moments):
            before = next((each for each in found[place + 1 :] if each.namespace == moment.namespace), None)
            rows.append(moment_json(moment) | {"follows_previous": before is None or moment.parent == before.id})
        print_json({"thread_id": thread, "checkpoints": rows, "more": more})
    else:
        console().print(history_table(thread, found, limit, full=full, every_ns=ns == EVERY_NS))
    tell_unread([moment.interrupts for moment in moments], imports)


def latest_moments(timeline: Timeline, ns: str, limit: int) -> Sequence[Moment]:
    """Return the latest moments of a namespace, or of all of them, newest first."""
    count = limit
    while True:
        moments = timeline.latest(count)
        found = [moment for moment in reversed(moments) if ns in (EVERY_NS, moment.namespace)]
        if len(found) >= limit or len(moments) < count:
            return found[:limit]
        count *= 2


def moment_json(moment: Moment) -> dict[str, Any]:
    """Return a moment as commands print it with `--json`."""
    return {
        "position": moment.position,
        "checkpoint_id": moment.id,
        "parent_checkpoint_id": moment.parent,
        "checkpoint_ns": moment.namespace,
        "step": as_json(moment.step),
        "source": moment.source,
        "ts": moment.time.isoformat() if moment.time else None,
        "ran": list(moment.nodes),
        "next": list(moment.next),
        "models": list(moment.models),
        "interrupts": [{"id": asked.id, "value": as_json(asked.value)} for asked in moment.interrupts],
        "errors": list(moment.errors),
        "pending_writes": list(moment.pending),
        "head": moment.is_head,
        "leaf": moment.is_leaf,
    }


def history_table(
    thread: str, moments: Sequence[Moment], limit: int, *, full: bool = False, every_ns: bool = False
) -> RenderableType:
    """Return the table of `keel history`."""
    from langgraph_keel.history.render.rows import timeline_rows

    rows = []
    for row in timeline_rows(moments)[:limit]:
        name = Text(plain(row.moment.id) if full else row.id, "bold green" if row.moment.is_head else "green")
        time = local_time(row.moment.time.isoformat()) if row.moment.time else ""
        style = {"input": "cyan", "update": "yellow", "fork": "magenta"}.get(row.moment.source, "")
        ran = Text(row.nodes, style, overflow="fold")
        ran.append(f" · {row.model}" if row.model else "", "not bold dim")
        ran.append(f" in {plain(row.moment.namespace)}" if every_ns and row.moment.namespace else "", "dim")
        ran.append("".join(f" ({note.text})" for note in row.notes if note.tone == "origin"), "magenta")
        rows.append((row.place, name, time, ran, _next(row)))
    page = Rows((">#", "checkpoint", "time", "what happened", "next"), rows, heads=4, at=110 if full else 60)
    more = len(moments) > limit
    count = f"the last {limit} checkpoints" if more else count_of(len(moments), "checkpoint")
    title = Text.assemble("thread ", (plain(thread), "bold"), (f" · {count}", "dim"))
    older = [Text("… and older ones: --limit shows more", "dim")] if more else []
    return Group(title, page, *older)


def _next(row: TimelineRow) -> Text:
    from langgraph_keel.history.render.rows import join_names
    from langgraph_keel.history.render.terminal import TONES

    moment = row.moment
    is_done = not (moment.next or moment.pending or moment.interrupts or moment.errors)
    text = Text("done", "dim") if is_done else Text(join_names(moment.next))
    for note in row.notes:
        text.append(f" · {note.text}" if note.tone in ("pending", "waits", "failed") else "", TONES.get(note.tone, ""))
    return text


def timeline(
    thread: Thread,
    url: Url = DEFAULT_URL,
    limit: Limit = 20,
    every: Every = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Draw a thread as a tree of checkpoints: nodes, changes, branches, labels.

    Example: `keel timeline my-thread`
    """
    with open_to_read(url, imports) as saver:
        found = open_timeline(saver, thread)
        moments = found[:] if every else found.latest(limit)
        if json:
            rows = [
                moment_json(moment)
                | {
                    "changes": {change.channel: change.text for change in moment.changes},
                    "labels": list(moment.labels),
                    "tools": [{"name": tool.name, "is_replayed": tool.is_replayed} for tool in moment.tools],
                    "not_read": list(moment.unread),
                    "drift": list(moment.drift),
                    "tokens": list(moment.tokens),
                    "cost": moment.cost,
                    "bytes": moment.bytes,
                }
                for moment in moments
            ]
            print_json({"thread_id": thread, "moments": rows, "older": moments.older})
        else:
            console().print(moments)
    names = [name for moment in moments for name in moment.unread]
    if names:
        count = sum(bool(moment.unread) for moment in moments)
        tell_names(f"{count_of(count, 'moment')} with values that were not read", names, imports)


def rewind(thread: Thread, at: At, url: Url = DEFAULT_URL, by: Actor = None, json: AsJson = False) -> None:
    """Make an earlier checkpoint the latest of its thread.

    Nothing is deleted; the next run starts there.

    Example: `keel rewind my-thread 14`
    """
    with open_to_change(url) as saver:
        found = open_timeline(saver, thread)
        moment = moment_of(found, at)
        found.rewind(moment, by=by)
        now = found[-1]
    if json:
        print_json({"thread_id": thread, "rewound_to": moment.id, "checkpoint_id": now.id, "next": list(moment.next)})
        return
    console().print(_sentence("rewound ", thread, f" to #{moment.position}"))
    print_lines(_outlook(moment, _SAME_LEDGER))
    console().print(Text(f"See: {command_line(url, 'timeline', thread)}", "dim"))


def fork(
    thread: Thread, at: At, new: NewThread = None, url: Url = DEFAULT_URL, by: Actor = None, json: AsJson = False
) -> None:
    """Branch off at a checkpoint, to a new thread or within the same thread.

    For a new thread, it reports which tool calls that thread would repeat, and which approvals given in the original
    thread would count there, too.

    Example: `keel fork my-thread 14 what-if`
    """
    with open_to_change(url) as saver:
        found = open_timeline(saver, thread)
        moment = moment_of(found, at)
        config = found.fork(moment, new, by=by)["configurable"]
        theirs = [] if new is None else list(saver.tools.calls(new))
        doubts, made = [call for call in theirs if is_doubt(call)], {call.key for call in theirs}
        ours = [] if new is None else saver.tools.calls(thread)  # the fork has copies of the calls up to the fork point
        calls = [call for call in ours if call.key not in made and call.state in ("done", "claimed", "unknown")]
        calls.sort(key=lambda call: call.started_at)
        given = [] if new is None or not moment.next else _approvals_before(saver, found, moment)
        given = [request for request in given if not any(_has_used(call, request) for call in theirs)]
        status = "" if new is None or json else str(saver.status(new))
    if json:
        told = {"thread_id": config["thread_id"], "checkpoint_id": config.get("checkpoint_id", moment.id)}
        rest = {"calls_after": [_call_json(call) for call in calls], "doubts": [_call_json(call) for call in doubts]}
        print_json({**told, "next": list(moment.next), **rest, "approvals": [request.id for request in given]})
    elif new is None:
        branch = plain(config["checkpoint_id"])
        console().print(_sentence("a branch of ", thread, f" at #{moment.position}: checkpoint {branch}"))
        print_lines(_outlook(moment, _SAME_LEDGER, "A run that names this checkpoint"))
    else:
        console().print(_sentence("forked ", thread, f" at #{moment.position} to thread {plain(new)}"))
        print_lines([*_outlook(moment, _OWN_LEDGER), Text(plain(status), "yellow"), *_warnings(thread, given)])
        console().print(Text(f"See: {command_line(url, 'timeline', new)}", "dim"))


def _outlook(moment: Moment, ledger: str, run: str = "The next run") -> Iterator[Text]:
    if moment.next:
        again = "; its questions are asked again" if moment.asked else ""
        yield Text(f"{run} continues with {plain(', '.join(moment.next))}{again}.")
        yield Text(f"Tools of a ToolCache: {ledger}.", "dim")
    else:
        yield Text("No step is left to run: the thread waits for new input.")


def _approvals_before(saver: Any, found: Timeline, moment: Moment) -> list[ApprovalRequest]:
    """Return approvals since the last input, on which the next step may act."""
    len(found)  # reads the whole thread
    steps = set[str | None]()
    for address in reversed(found.pages.way_to(moment.address)):
        each = found.moment(str(address.checkpoint_id))
        if each.source == "input":
            break
        steps.add(each.parent)
    status = [status for status in STATUSES if status not in (*OPEN, SUPERSEDED)]
    requests = saver.approvals.pending(found.thread_id, status=status, limit=None)
    approved = [request for request in requests if request.decision and request.decision.kind != "reject"]
    return [request for request in approved if request.checkpoint_id in steps]


def _has_used(call: KeptCall, request: ApprovalRequest) -> bool:
    """Return whether a finished call has asked for this approval itself, in its own step."""
    return (call.state, call.tool, call.checkpoint_id) == ("done", request.action, request.checkpoint_id)


def _warnings(thread: str, given: Sequence[ApprovalRequest]) -> Iterator[Text]:
    """Yield a warning for each approval that a run of the fork may act on."""
    for request in given:
        what = plain(request.action) or one_line(describe_question(request.value), 60)
        by = f" by {plain(request.decision.by)}" if request.decision and request.decision.by else ""
        text = f"The next step may act on an approval that was given in {plain(thread)}: {what}{by} ({request.id})."
        yield Text(text, "yellow")


def _call_json(call: KeptCall) -> dict[str, Any]:
    return {"tool": call.tool, "state": call.state, "key": call.key, "tool_call_id": call.tool_call_id}


def label(thread: Thread, at: At, name: Name, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Label a checkpoint; commands accept the label, and pruning keeps it.

    Example: `keel label my-thread 14 "before migration"`
    """
    with open_to_change(url) as saver:
        found = open_timeline(saver, thread)
        moment = moment_of(found, at)
        moment.label(name)
    _print_label(thread, name, f"#{moment.position} is now", json, moment.id)


def unlabel(thread: Thread, name: Name, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Remove a label.

    Example: `keel unlabel my-thread "before migration"`
    """
    with open_to_change(url) as saver:
        saver.labels.remove(thread, name)
    _print_label(thread, name, "removed the label", json, None)


def _print_label(thread: str, name: str, what: str, json: bool, checkpoint: str | None) -> None:
    if json:
        print_json({"thread_id": thread, "label": name, "checkpoint_id": checkpoint})
    else:
        console().print(_sentence("", thread, f": {what} {plain(repr(name))}"))


def _sentence(before: str, thread: str, after: str) -> Text:
    return Text.assemble(before, (plain(thread), "bold"), after)


Before = Annotated[str, typer.Argument(metavar="A", help=f"The checkpoint: {MOMENT}.")]
After = Annotated[
    str | None,
    typer.Argument(metavar="B", help="The checkpoint to compare with, named in the same way; the latest if left out."),
]
Other = Annotated[
    str | None, typer.Option("--other", metavar="THREAD", help="The thread of B, if it is a different one.")
]
AsPatch = Annotated[bool, typer.Option("--patch", help="Print a JSON Patch (RFC 6902) that turns A into B.")]


def diff(
    thread: Thread,
    before: Before,
    after: After = None,
    url: Url = DEFAULT_URL,
    other: Other = None,
    patch: AsPatch = False,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Show the changes between two checkpoints: messages by word, values by path.

    Example: `keel diff my-thread 14 "before migration"`
    """
    from langgraph_keel.history.render.diff import DiffPage

    with open_to_read(url, imports) as saver:
        found = saver.diff(config_at(saver, thread, before), config_at(saver, other or thread, after))
    if patch or json:
        print_json(found.to_patch() if patch else found.plain())
    else:
        console().print(DiffPage(found, full))
    tell_unread([(edit.before, edit.after) for edit in found], imports)


def config_at(saver: Any, thread_id: str, text: str | None) -> Any:
    """Return the config of the moment that `text` names, by default the latest."""
    found = open_timeline(saver, thread_id)
    return config_of(thread_id, "") if text is None else moment_of(found, text).config
