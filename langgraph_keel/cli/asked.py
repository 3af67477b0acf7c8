"""How requests for approval look on a terminal: all that a person decides on is shown, and shown whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from langgraph_keel.cli.show import Fitting, table_of
from langgraph_keel.cli.terminal import block, local_time, shell_word
from langgraph_keel.core.decisions import BY_EXPIRY, CLAIMED, CLOSED, OPEN, ApprovalRequest, Decision
from langgraph_keel.core.records import Address
from langgraph_keel.timeline.columns import counted
from langgraph_keel.timeline.diff import StateDiff
from langgraph_keel.timeline.diff_text import as_rich
from langgraph_keel.timeline.edits import edits
from langgraph_keel.timeline.plain import as_json
from langgraph_keel.timeline.safe import one_line, plain

_STYLE = {"waiting": "yellow", "claimed": "cyan", "approved": "green", "edited": "green", "answered": "green"}
_STYLE |= {"rejected": "red", "expired": "red"}
_ID = 14
"""Digits of an id that are shown at least: the first eight are those of its thread."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))


def request_json(request: ApprovalRequest) -> dict[str, Any]:
    """Return a request as `--json` prints it."""
    told = as_json(request)
    del told["audited"]
    return {**told, "interrupt_id": request.interrupt_id}


# -- many --------------------------------------------------------------------------------------------------------------


def requests_page(found: Sequence[ApprovalRequest], *, more: bool, full: bool) -> RenderableType:
    """Return the table of `keel approvals`, the oldest first; `advice` comes after it."""
    table, ids = table_of("id", "asked", "thread", "wants", "status", "expires"), short_ids(found)
    table.columns[0].no_wrap = True
    narrow: list[RenderableType] = []
    for request in found:
        name = Text(plain(request.id if full else ids[request.id]), "bold")
        asked, thread, status = (
            _ago(request.asked_at),
            Text(plain(request.thread_id), overflow="fold"),
            _status(request),
        )
        wants, expires = _wants(request, full), _expires(request)
        table.add_row(name, asked, thread, wants, status, expires)
        told = [asked, plain(request.thread_id), *(["expires " + expires] if expires else [])]
        narrow += [
            Text.assemble(name, "  ", status),
            Padding(wants, (0, 2)),
            Padding(Text(" · ".join(told), "dim"), (0, 2)),
        ]
    newer = [Text("… and newer ones: --limit shows more", "dim")] if more else []
    return Group(Fitting(table, Group(*narrow), 100), *newer)


def nothing_line(thread: str | None, *, is_filtered: bool) -> Text:
    """Return what `keel approvals` says if there is nothing to show."""
    of = "" if thread is None else f" in thread {plain(thread)}"
    return Text(f"No request for approval fits{of}" if is_filtered else f"Nothing waits for a decision{of}", "dim")


def short_ids(found: Iterable[ApprovalRequest]) -> Mapping[str, str]:
    """Return the beginning of each id, of one length that tells these apart."""
    ids = {request.id for request in found}
    longest = max(map(len, ids), default=0)
    size = next((n for n in range(_ID, longest) if len({name[:n] for name in ids}) == len(ids)), longest)
    return {name: name[:size] for name in ids}


def advice(found: Sequence[ApprovalRequest], url: str) -> Iterator[Text]:
    """Return how to decide: lines with commands that a shell takes as they are, not to be wrapped.

    Args:
        found: The requests that are shown.
        url: The store, if the command line must name it.
    """
    first = next((request for request in found if request.status in OPEN), None)
    if first is None:
        return
    words = [short_ids(found)[first.id], *(["--url", url] if url else [])]
    yield Text(f"Look at one, then decide ({', '.join(map(plain, first.allowed))}):", "dim")
    yield Text("  " + " ".join(map(shell_word, ["keel", "approval", *words])), "cyan")
    if first.allowed:
        needs = {"edit": ["--args", "JSON"], "answer": ["--value", "TEXT"]}.get(first.allowed[0], [])
        yield Text("  " + " ".join(map(shell_word, ["keel", first.allowed[0], *words, "--by", "NAME", *needs])), "cyan")


def _wants(request: ApprovalRequest, full: bool) -> Text:
    told = Text(one_line(request.action, 80), "bold", overflow="fold")
    asked = request.args if request.action else request.value
    if asked is not None:
        told.append(" " * bool(request.action) + _short(asked, full), "not bold")
    if request.facts:
        told.append("\n" + ", ".join(_fact(request, name, full) for name in request.facts), "not bold dim")
    return told


def _fact(request: ApprovalRequest, name: str, full: bool) -> str:
    now, was = request.facts[name], request.before.get(name)
    earlier = f" (was {_short(was, full)})" if name in request.before and was != now else ""
    return f"{one_line(name, 60)}: {_short(now, full)}{earlier}"


def _short(value: Any, full: bool) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(text, "\n") if full else one_line(text, 80)


def _status(request: ApprovalRequest) -> Text:
    told = plain(request.status)
    if request.status == CLAIMED:
        told += f" by {one_line(request.claimed_by, 40)}"
    elif request.decision and request.decision.by not in ("", BY_EXPIRY):
        # What is over says how it was decided: superseded although approved, if the facts have changed since.
        kind = f", {request.decision.kind}" if request.status in CLOSED else ""
        told += f"{kind} by {one_line(request.decision.by, 40)}"
    return Text(told, _STYLE.get(request.status, "dim"), overflow="fold")


def _expires(request: ApprovalRequest) -> str:
    return _in(request.expires_at) if request.expires_at and request.status in OPEN else ""


def _ago(timestamp: str) -> str:
    seconds = _seconds_until(timestamp)
    return plain(timestamp) if seconds is None else f"{_span(-seconds)} ago"


def _in(timestamp: str) -> str:
    seconds = _seconds_until(timestamp)
    return plain(timestamp) if seconds is None else f"in {_span(seconds)}"


def _seconds_until(timestamp: str) -> float | None:
    try:
        return (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # damaged, or without a zone
        return None


def _span(seconds: float) -> str:
    return next(
        (f"{seconds / size:,.0f} {unit}" for unit, size in _UNITS if seconds >= 2 * size), f"{max(seconds, 0):.0f} s"
    )


# -- one ---------------------------------------------------------------------------------------------------------------


def request_page(request: ApprovalRequest, decision: Decision | None = None) -> RenderableType:
    """Return all of a request: what will happen, on which facts, and what has happened to it.

    Args:
        request: The request.
        decision: What somebody is about to decide.
    """
    return Group(_heading(request), *_asked(request), *_around(request), *_decided(request, decision))


def _heading(request: ApprovalRequest) -> Text:
    told = [f"thread {plain(request.thread_id)}", f"asked {_ago(request.asked_at)} ({local_time(request.asked_at)})"]
    told += [f"owner {plain(request.owner)}"] if request.owner else []
    told += [f"question {request.part + 1} of {request.parts}"] if request.parts > 1 else []
    if expires := _expires(request):
        then = "is rejected then" if request.on_expiry == "reject" else "waits on then"
        told.append(f"expires {expires} ({local_time(str(request.expires_at))}), and {then}")
    return Text.assemble(
        "approval ", (plain(request.id), "bold green"), "  ", _status(request), "\n", (" · ".join(told), "dim")
    )


def _told_earlier(earlier: Mapping[str, Any]) -> str:
    reason = f", {earlier['reason']}" if earlier.get("reason") else ""
    edited = f", with {json.dumps(earlier.get('args'), ensure_ascii=False)}" if earlier["kind"] == "edit" else ""
    return f"{earlier['kind']} by {earlier.get('by')}{edited}{reason} (request {str(earlier.get('request'))[:_ID]})"


def _asked(request: ApprovalRequest) -> Iterator[RenderableType]:
    """Yield what is asked. Nothing is cut: what is approved unseen is not approved."""
    if request.description:
        yield _part("description", block(request.description))
    if request.action:
        args = Text("without arguments", "dim") if request.args is None else _laid_out(request.args)
        yield _part("wants", Text(plain(request.action), "bold", overflow="fold"), args)
    else:
        yield _part("asks", _laid_out(request.value))
    if request.facts:
        yield _part("facts", _laid_out(request.facts))
    if request.earlier.get("kind"):
        yield _part("decided before", Text(plain(_told_earlier(request.earlier)), overflow="fold"))
    if request.before:
        yield _part("changed since it was asked before", Changes("facts", request.before, request.facts))


def _decided(request: ApprovalRequest, decision: Decision | None) -> Iterator[RenderableType]:
    said = decision or request.decision
    if said is None:
        return
    title = f"about to {said.kind}" if decision else f"decided: {plain(said.kind)}"
    by = Text(f"by {plain(said.by) or 'the program that resumed the graph'}", overflow="fold")
    reason = [block(said.reason)] if said.reason else []
    if said.kind == "edit":
        yield _part(title, by, *reason, Changes("arguments", request.args, said.args))
    elif said.kind == "answer" and said.value is not None:
        yield _part(title, by, *reason, _laid_out(said.value))
    else:
        yield _part(title, by, *reason)


def _around(request: ApprovalRequest) -> Iterator[RenderableType]:
    who = ", ".join(map(plain, request.approvers)) or "anybody"
    yield _part("who may decide", Text(f"{who}: {', '.join(map(plain, request.allowed))}", overflow="fold"))
    if request.history:
        yield _part("history", *map(_event, request.history))


def _event(event: Mapping[str, Any]) -> Text:
    more = {
        name: value for name, value in event.items() if name not in ("kind", "at", "by") and value not in (None, "")
    }
    by = f" by {plain(str(event['by']))}" if event.get("by") else ""
    told = Text.assemble(
        (local_time(str(event.get("at"))), "dim"), f"  {plain(str(event.get('kind')))}{by}", overflow="fold"
    )
    return told.append("  " + one_line(json.dumps(more, ensure_ascii=False), 200), "dim") if more else told


def _part(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text.assemble("\n", (title, "bold cyan")), Padding(Group(*body), (0, 0, 0, 2)))


def _laid_out(value: Any) -> Text:
    return block(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))


@dataclass(frozen=True)
class Changes:
    """What changed between two values, as `keel diff` shows it.

    Attributes:
        name: What they are.
        before: The older one.
        after: The newer one.
    """

    name: str
    before: Any
    after: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show it without the title, which names two checkpoints."""
        found = list(edits(self.before, self.after, _mark, (self.name,)))
        shown = as_rich(StateDiff(Address(""), Address(""), found), full=True)
        _, *changes = cast(ConsoleRenderable, shown).__rich_console__(console, options)
        yield from changes


def _mark(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


# -- what was done -----------------------------------------------------------------------------------------------------


def decided_lines(request: ApprovalRequest, others: Sequence[ApprovalRequest]) -> Iterator[Text]:
    """Return what a command answers that has decided, and how the thread goes on; not to be wrapped.

    Args:
        request: The request.
        others: What its step asks besides, and nobody has decided.
    """
    what = one_line(request.action, 80) or "the question"
    yield Text(f"{request.status}: {what} of thread {plain(request.thread_id)}", _STYLE.get(request.status, ""))
    if others:
        ids = ", ".join(short_ids([request, *others])[each.id] for each in others)
        yield Text(f"Its step asks more, and goes on when that is decided, too: {ids}", "yellow")
        return
    thread = plain(repr(request.thread_id))
    yield Text(f"The thread goes on when it is resumed: graph.invoke(saver.approvals.resume({thread}), config)", "dim")
    yield Text("A worker does that by itself: saver.approvals.run_when_decided(graph)", "dim")


def swept_line(waiting: int, due: int) -> Text:
    """Return what `keel sweep` answers; the table of those that a reminder is due for comes after it."""
    if not waiting:
        return Text("No requests for approval are open.")
    reminded = f", {due:,} of them to be reminded of" if due else ""
    return Text(f"All threads that wait were looked after: {counted(waiting, 'request')} to decide{reminded}")
