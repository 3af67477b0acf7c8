"""The commands for approvals. The reviewer sees a request in full before deciding."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from langgraph_keel.approvals.interrupts import describe_question, text_of
from langgraph_keel.approvals.requests import (
    BY_EXPIRY,
    CLAIMED,
    CLOSED,
    EXPIRED,
    OPEN,
    STATUSES,
    ApprovalRequest,
    Decision,
    apply_decision,
    describe_end,
    is_decided_so,
)
from langgraph_keel.cli.history import config_of, no_thread
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    AsJson,
    Full,
    Url,
    command_line,
    confirm,
    open_to_change,
    open_to_read,
)
from langgraph_keel.cli.output import (
    Rows,
    bar,
    block,
    console,
    local_time,
    print_answer,
    print_json,
    print_lines,
    thread_name,
)
from langgraph_keel.cli.retention import prune_page
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import count_of, one_line, plain, short_ids
from langgraph_keel.engine.config import Address
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.edits import edits
from langgraph_keel.history.records import DiffRecord
from langgraph_keel.history.render.diff import DiffPage

_STYLE = {"waiting": "yellow", "claimed": "cyan", "approved": "green", "edited": "green", "answered": "green"}
_STYLE |= {"rejected": "red", "expired": "red"}
_ID = 14
"""Minimum number of shown digits of an id; the first eight identify the thread."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))

_LONGEST = 1_000_000_000
"""Maximum value of an option in seconds, about thirty years."""


def request_json(request: ApprovalRequest) -> dict[str, Any]:
    """Return a request as `--json` prints it."""
    fields = as_json(request)
    del fields["audited"]
    return {**fields, "interrupt_id": request.interrupt_id}


def requests_page(found: Sequence[ApprovalRequest], *, more: bool, full: bool) -> RenderableType:
    """Return the table of `keel approvals`, oldest first."""
    ids = _ids_of(found)
    rows = []
    for request in found:
        name = Text(plain(request.id if full else ids[request.id]), "bold")
        facts = _wants(request, full), _status(request), _expires(request)
        rows.append((name, _ago(request.asked_at), thread_name(request.thread_id), *facts))
    newer = [Text("… and newer ones: --limit shows more", "dim")] if more else []
    return Group(Rows(("id", "asked", "thread", "wants", "status", "expires"), rows, at=100), *newer)


def _ids_of(found: Iterable[ApprovalRequest]) -> Mapping[str, str]:
    """Return a unique prefix of each id; all have the same length."""
    return short_ids((request.id for request in found), _ID, from_start=True)


def advice(found: Sequence[ApprovalRequest], url: str) -> Iterator[Text]:
    """Yield lines with the commands that show and decide a request."""
    first = next((request for request in found if request.status in OPEN), None)
    if first is None:
        return
    name = _ids_of(found)[first.id]
    yield Text(f"Look at one, then decide ({', '.join(map(plain, first.allowed))}):", "dim")
    yield Text(f"  {command_line(url, 'approval', name)}", "cyan")
    if first.allowed:
        needs = {"edit": " --args JSON", "answer": " --value TEXT"}.get(first.allowed[0], "")
        yield Text(f"  {command_line(url, first.allowed[0], name)} --by NAME{needs}", "cyan")


def _wants(request: ApprovalRequest, full: bool) -> Text:
    text = Text(one_line(request.action, 80), "bold", overflow="fold")
    if not request.action:
        text.append(_short(describe_question(request.value), full), "not bold")
    else:
        decision = request.decision
        args = decision.args if decision and decision.kind == "edit" else request.args
        text.append("" if args is None else f" {_short(args, full)}", "not bold")
    facts = [one_line(warning, 200).rstrip(".") for warning in request.warnings]
    for name, now in request.facts.items():
        was = request.before.get(name, now)
        earlier = f" (was {_short(was, full)})" if was != now else ""
        facts.append(f"{one_line(name, 60)}: {_short(now, full)}{earlier}")
    return text.append("\n" + ", ".join(facts) if facts else "", "not bold dim")


def _short(value: Any, full: bool) -> str:
    return plain(text_of(value), "\n") if full else one_line(text_of(value), 80)


def _status(request: ApprovalRequest) -> Text:
    text = plain(request.status)
    if request.status == CLAIMED:
        text += f" by {one_line(request.claimed_by, 40)}"
    elif request.decision and request.decision.by not in ("", BY_EXPIRY):
        # A closed request also shows its decision: an approved one is superseded if its facts have changed since.
        kind = f", {request.decision.kind}" if request.status in CLOSED else ""
        text += f"{kind} by {one_line(request.decision.by, 40)}"
    return Text(text, _STYLE.get(request.status, "dim"), overflow="fold")


def _expires(request: ApprovalRequest) -> str:
    if not request.expires_at or request.status not in OPEN:
        return ""
    seconds = _seconds_until(request.expires_at)
    return plain(request.expires_at) if seconds is None else f"in {_span(seconds)}"


def _ago(timestamp: str) -> str:
    seconds = _seconds_until(timestamp)
    return plain(timestamp) if seconds is None else f"{_span(-seconds)} ago"


def _seconds_until(timestamp: str) -> float | None:
    try:
        return (datetime.fromisoformat(timestamp) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # damaged, or without a zone
        return None


def _span(seconds: float) -> str:
    return next(
        (f"{seconds / size:,.0f} {unit}" for unit, size in _UNITS if seconds >= 2 * size), f"{max(seconds, 0):.0f} s"
    )


def request_page(request: ApprovalRequest, decision: Decision | None = None) -> RenderableType:
    """Return a request in full: the action, its facts and its history."""
    who = f"{', '.join(map(plain, request.approvers)) or 'anyone'}: {', '.join(map(plain, request.allowed))}"
    return Group(
        _heading(request),
        *_question(request),
        _part("who may decide", Text(who, overflow="fold")),
        *([_part("history", *map(_event, request.history))] if request.history else []),
        *_decision(request, decision),
    )


def _heading(request: ApprovalRequest) -> Text:
    text = [f"thread {plain(request.thread_id)}", f"asked {_ago(request.asked_at)} ({local_time(request.asked_at)})"]
    text += [f"owner {plain(request.owner)}"] if request.owner else []
    text += [f"question {request.part + 1} of {request.parts}"] if request.parts > 1 else []
    if expires := _expires(request):
        then = "then is rejected" if request.on_expiry == "reject" else "then keeps waiting"
        text.append(f"expires {expires} ({local_time(str(request.expires_at))}), {then}")
    return Text.assemble(
        "approval ", (plain(request.id), "bold green"), "  ", _status(request), "\n", (" · ".join(text), "dim")
    )


def _question(request: ApprovalRequest) -> Iterator[RenderableType]:
    """Yield the question, unabridged."""
    if request.description:
        yield _part("description", block(request.description))
    if request.action:
        args = Text("without arguments", "dim") if request.args is None else _value_text(request.args)
        yield _part("wants", Text(plain(request.action), "bold", overflow="fold"), args)
    else:
        yield _part("asks", _value_text(request.value))
    if request.facts:
        yield _part("facts", _value_text(request.facts))
    if (earlier := request.earlier).get("kind"):
        text = f"{earlier['kind']} by {earlier.get('by')}"
        if earlier["kind"] == "edit":
            text += f", with {json.dumps(earlier.get('args'), ensure_ascii=False)}"
        text += f", {earlier['reason']}" if earlier.get("reason") else ""
        text += f" (request {str(earlier.get('request'))[:_ID]})"
        yield _part("decided earlier", Text(plain(text), overflow="fold"))
    if request.before:
        yield _part("changed since it was asked earlier", _changes("facts", request.before, request.facts))


def _decision(request: ApprovalRequest, decision: Decision | None) -> Iterator[RenderableType]:
    verdict = decision or request.decision
    if verdict is None:
        return
    title = f"about to {verdict.kind}" if decision else f"decided: {plain(verdict.kind)}"
    by = Text(f"by {plain(verdict.by) or 'the program that resumed the graph'}", overflow="fold")
    reason = [block(verdict.reason)] if verdict.reason else []
    if verdict.unchecked:
        reason.append(Text("not checked against the arguments of the request", "yellow"))
    if verdict.kind == "edit":
        yield _part(title, by, *reason, _changes("arguments", request.args, verdict.args))
    elif verdict.kind == "answer" and verdict.value is not None:
        yield _part(title, by, *reason, _value_text(verdict.value))
    else:
        yield _part(title, by, *reason)


def _event(event: Mapping[str, Any]) -> Text:
    more = {
        name: value for name, value in event.items() if name not in ("kind", "at", "by") and value not in (None, "")
    }
    by = f" by {plain(str(event['by']))}" if event.get("by") else ""
    text = Text.assemble(
        (local_time(str(event.get("at"))), "dim"), f"  {plain(str(event.get('kind')))}{by}", overflow="fold"
    )
    return text.append("  " + one_line(json.dumps(more, ensure_ascii=False), 200), "dim") if more else text


def _part(title: str, *body: RenderableType) -> RenderableType:
    return Group(Text.assemble("\n", (title, "bold cyan")), Padding(Group(*body), (0, 0, 0, 2)))


def _value_text(value: Any) -> Text:
    return block(value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))


def _changes(name: str, before: Any, after: Any) -> DiffPage:
    """Return the difference between two values, as in `keel diff`."""
    found = list(edits(before, after, lambda value: json.dumps(value, sort_keys=True).encode(), (name,)))
    return DiffPage(DiffRecord(Address(""), Address(""), found), full=True, has_title=False)


def decision_lines(request: ApprovalRequest, others: Sequence[ApprovalRequest]) -> Iterator[Text]:
    """Yield the result of a decision, and how to resume the thread."""
    what = one_line(request.action, 80) or "the question"
    yield Text(f"{request.status}: {what} of thread {plain(request.thread_id)}", _STYLE.get(request.status, ""))
    if others:
        ids = ", ".join(_ids_of([request, *others])[each.id] for each in others)
        yield Text(f"Its step continues when these requests are decided, too: {ids}", "yellow")
        return
    if request.status in CLOSED:
        yield Text("The agent has already used this decision, and its thread has continued", "dim")
        return
    thread = plain(repr(request.thread_id))
    yield Text(f"To continue the thread: graph.invoke(saver.approvals.resume({thread}), config)", "dim")
    yield Text("A worker does this automatically: saver.approvals.run_when_decided(graph)", "dim")


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="The request's id, or its first digits. If several match: the one that waits for a decision."
    ),
]
By = Annotated[str, typer.Option("--by", envvar="KEEL_REVIEWER", metavar="NAME", help="The reviewer's name.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, for the agent and the audit trail.")]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for confirmation. Without a terminal to ask in, --yes or --json is required."
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many, oldest first.")]


def approvals(
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD",
            help="Only requests of this thread. They are brought up to date in the store first.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    every: Annotated[bool, typer.Option("--all", help="Also requests that are decided or closed.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", metavar="STATUS", help=f"Only requests with this status: {', '.join(STATUSES)}. Repeatable."
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="NAME", help="Only requests of this owner's threads.")
    ] = None,
    action: Annotated[
        str | None, typer.Option("--action", metavar="NAME", help="Only requests for this action.")
    ] = None,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than", metavar="SECONDS", min=0, max=_LONGEST, help="Only requests that are at least this old."
        ),
    ] = None,
    limit: Limit = 50,
    full: Full = False,
    json: AsJson = False,
) -> None:
    """List requests that wait for a person's decision, in all threads, oldest first.

    Example: `keel approvals --action book_flight`
    """
    given: Any = {"owner": owner, "action": action, "older_than": older_than}
    wanted = status or (STATUSES if every else OPEN)
    with open_to_read(url) if thread is None else open_to_change(url) as saver:
        found = saver.approvals.pending(thread, **given, status=wanted, limit=limit + 1)
        if thread is not None and not found and saver.get_tuple(config_of(thread, "")) is None:
            raise no_thread(saver, thread, "")
    shown, more = found[:limit], len(found) > limit
    if json:
        print_json({"approvals": [request_json(each) for each in shown], "more": more})
    elif shown:
        console().print(requests_page(shown, more=more, full=full))
        print_lines(advice(shown, url))
    else:
        is_filtered = wanted is not OPEN or any(value is not None for value in given.values())
        none = "No approval request matches" if is_filtered else "No request waits for a decision"
        console().print(Text(none if thread is None else f"{none} in thread {plain(thread)}", "dim"))


def approval(request: Id, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show a request: action, facts and their changes, reviewers and history.

    Example: `keel approval 3f2a91bc04d1e7`
    """
    with open_to_read(url) as saver:
        found = saver.approvals.get(request)
        page = Group(request_page(found), *(Text(plain(warning), "yellow") for warning in found.warnings))
    print_answer(request_json(found), page, as_json=json)


def approve(
    request: Id, by: By, url: Url = DEFAULT_URL, reason: Reason = "", yes: Yes = False, json: AsJson = False
) -> None:
    """Approve a request: the agent acts as it asked.

    Shows the request first, and asks for confirmation.

    Example: `keel approve 3f2a91bc04d1e7 --by ann --reason "within budget"`
    """
    _decide(request, Decision("approve", by, reason=reason), url, yes=yes, json=json)


def reject(
    request: Id, by: By, url: Url = DEFAULT_URL, reason: Reason = "", yes: Yes = False, json: AsJson = False
) -> None:
    """Reject a request: the agent does not act, and receives the reason.

    Shows the request first, and asks for confirmation.

    Example: `keel reject 3f2a91bc04d1e7 --by ann --reason "too expensive"`
    """
    _decide(request, Decision("reject", by, reason=reason), url, yes=yes, json=json)


def edit(
    request: Id,
    by: By,
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="All arguments as JSON, or @FILE to read them from a file.")
    ],
    url: Url = DEFAULT_URL,
    reason: Reason = "",
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked", help="Accept arguments that do not match the request; the audit trail records this."
        ),
    ] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Approve a request with other arguments. Shows the difference first.

    Example: `keel edit 3f2a91bc04d1e7 --by ann --args '{"flight": "LH 123", "seat": "aisle"}'`
    """
    try:
        given = _loads(Path(args[1:]).read_text(encoding="utf-8") if args.startswith("@") else args)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"--args {args!r:.100}: {error}") from None
    _decide(request, Decision("edit", by, reason=reason, args=given, unchecked=unchecked), url, yes=yes, json=json)


def answer(
    request: Id,
    by: By,
    value: Annotated[str, typer.Option("--value", metavar="TEXT", help="The answer, as JSON or plain text.")],
    url: Url = DEFAULT_URL,
    reason: Reason = "",
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Answer a question: the agent's `interrupt()` returns the value.

    Shows the question first, and asks for confirmation.

    Example: `keel answer 3f2a91bc04d1e7 --by ann --value "by train, please"`
    """
    try:
        given = _loads(value)
    except (ValueError, RecursionError):
        given = value
    _decide(request, Decision("answer", by, reason=reason, value=given), url, yes=yes, json=json)


def revise(request: Id, by: By, url: Url = DEFAULT_URL, reason: Reason = "", json: AsJson = False) -> None:
    """Withdraw a decision that the agent cannot act on, to decide again.

    The audit trail records the reviewer.

    Example: `keel revise 3f2a91bc04d1e7 --by ann --reason "no such flight"`
    """
    with open_to_change(url) as saver:
        done = saver.approvals.revise(request, by=by, reason=reason)
    if json:
        print_json(request_json(done))
        return
    console().print(Text(f"{done.status}: {one_line(done.action, 80) or 'the question'}", _STYLE.get(done.status, "")))
    print_lines(advice([done], url))


def sweep(
    url: Url = DEFAULT_URL,
    remind_after: Annotated[
        int | None,
        typer.Option(
            "--remind-after",
            metavar="SECONDS",
            min=0,
            max=_LONGEST,
            help="List requests that have waited this long; repeat each one after the same time.",
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Prune or delete at most this many threads.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show a preview.")] = False,
    json: AsJson = False,
) -> None:
    """Apply retention policies; expire and close approval requests.

    Any process may run it at any time, for example every hour. With --remind-after, it also lists the requests of which
    the reviewers should be reminded.

    Example: `keel sweep --remind-after 86400`
    """
    opened = open_to_read(url) if dry_run else open_to_change(url)
    with opened as saver, bar("Sweeping threads", quiet=json, keeps=not dry_run) as tell:
        swept = saver.retention.sweep(dry_run=dry_run, limit=most, remind_after=remind_after, on_progress=tell)
        due = sorted(swept.reminders, key=lambda request: request.asked_at)
        waiting = len(saver.approvals.pending(limit=None))
    if json:
        reminders = [request_json(each) for each in due]
        print_json({"waiting": waiting, "reminders": reminders, "retention": swept.to_dict()})
        return
    console().print(prune_page(swept))
    if not dry_run:
        reminded = f", {len(due):,} of them due for a reminder" if due else ""
        to_decide = f"Waiting for a decision: {count_of(waiting, 'request')}{reminded}"
        console().print(Text(to_decide if waiting else "No approval requests are open."))
    if due:
        console().print(requests_page(due, more=False, full=False))


def _decide(name: str, decision: Decision, url: str, *, yes: bool, json: bool) -> None:
    with open_to_change(url) as saver:
        found = saver.approvals.get(name)
        is_repeated = is_decided_so(found, decision)
        is_open = found.status in OPEN
        if is_open:
            apply_decision(found, decision)  # raises an error now, not after the reviewer has read it
        if not json and (is_open or is_repeated):
            console().print(request_page(found, decision if is_open else None))
            print_lines(Text(plain(warning), "yellow") for warning in found.warnings)
        if is_open and not (yes or json):
            if not sys.stdin.isatty():
                raise InvalidInput(f"nothing was decided: there is no terminal to ask in; add --yes to {decision.kind}")
            confirm(f"{decision.kind.capitalize()}?", "Nothing was decided.")
        # The full id: the given prefix may match a newer request by now.
        given = {
            "edit": {"args": decision.args, "unchecked": decision.unchecked},
            "answer": {"value": decision.value},
        }.get(decision.kind, {})
        done = getattr(saver.approvals, decision.kind)(found.id, by=decision.by, reason=decision.reason, **given)
        asked = () if json else saver.approvals.pending(done.thread_id, status=[*OPEN, EXPIRED], limit=None)
        # The step continues with all of its decisions together.
        others = [each for each in asked if each.task_id == done.task_id and not each.is_settled]
    if json:
        print_json(request_json(done))
        return
    console().print()
    if is_repeated:
        console().print(Text(f"Nothing was changed: {plain(describe_end(found))}", "yellow"), soft_wrap=True)
    print_lines(decision_lines(done, others))


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_no_json)


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
