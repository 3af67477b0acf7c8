"""The commands for approvals: `approvals`, `approval`, `approve`, `reject`, `edit`, `answer` and `sweep`."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from langgraph_keel.cli import asked as render
from langgraph_keel.cli.bars import bar
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Url, changing, reading, url_to_name
from langgraph_keel.cli.pruned import pruned_page
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.core.decisions import EXPIRED, OPEN, STATUSES, ApprovalRequest, Decision, decided
from langgraph_keel.errors import InvalidInput

_LONGEST = 1_000_000_000
"""Seconds that an option takes: some thirty years."""
Id = Annotated[str, typer.Argument(metavar="ID", help="The request's id, or the beginning of it.")]
By = Annotated[str, typer.Option("--by", envvar="KEEL_REVIEWER", metavar="NAME", help="Who decides.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the agent and for the audit trail.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Decide without asking.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many, the oldest.")]


def approvals(
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="[THREAD]", help="Only of this thread; what it asked unnoted is noted, what is moot closed."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    every: Annotated[bool, typer.Option("--all", help="Also what is decided, or over.")] = False,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help=f"Only of this status: {', '.join(STATUSES)}. Repeatable."),
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", metavar="NAME", help="Only of this owner's threads.")] = None,
    action: Annotated[str | None, typer.Option("--action", metavar="NAME", help="Only of this action.")] = None,
    older_than: Annotated[
        int | None,
        typer.Option("--older-than", metavar="SECONDS", min=0, max=_LONGEST, help="Only what was asked so long ago."),
    ] = None,
    limit: Limit = 50,
    full: Full = False,
    json: AsJson = False,
) -> None:
    """List what waits for a person's decision, over all threads, the oldest first.

    Example: `keel approvals --action book_flight`
    """
    given: Any = {"owner": owner, "action": action, "older_than": older_than}
    wanted = STATUSES if every else status or OPEN
    with reading(url) if thread is None else changing(url) as saver:
        found = saver.approvals.pending(thread, **given, status=wanted, limit=limit + 1)
    shown, more = found[:limit], len(found) > limit
    if json:
        print_json({"approvals": [render.request_json(each) for each in shown], "more": more})
    elif shown:
        console().print(render.requests_page(shown, more=more, full=full))
        for line in render.advice(shown, url_to_name(url)):
            console().print(line, soft_wrap=True)
    else:
        is_filtered = wanted is not OPEN or any(value is not None for value in given.values())
        console().print(render.nothing_line(thread, is_filtered=is_filtered))


def approval(request: Id, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show a request: what will happen, the facts and how they have changed, who may decide, what happened to it.

    Example: `keel approval 3f2a91bc04d1e7`
    """
    with reading(url) as saver:
        found = saver.approvals.get(request)
    if json:
        print_json(render.request_json(found))
    else:
        console().print(render.request_page(found))


def approve(
    request: Id, by: By, url: Url = DEFAULT_URL, reason: Reason = "", yes: Yes = False, json: AsJson = False
) -> None:
    """Let the agent act as it has asked. Shown first, and asked once more in a terminal.

    Example: `keel approve 3f2a91bc04d1e7 --by ann --reason "within budget"`
    """
    _decide(request, Decision("approve", by, reason=reason), url, yes=yes, json=json)


def reject(
    request: Id, by: By, url: Url = DEFAULT_URL, reason: Reason = "", yes: Yes = False, json: AsJson = False
) -> None:
    """Do not let the agent act; it is told the reason.

    Example: `keel reject 3f2a91bc04d1e7 --by ann --reason "too dear"`
    """
    _decide(request, Decision("reject", by, reason=reason), url, yes=yes, json=json)


def edit(
    request: Id,
    by: By,
    args: Annotated[
        str, typer.Option("--args", metavar="JSON", help="All arguments, as JSON; or @FILE, which holds them.")
    ],
    url: Url = DEFAULT_URL,
    reason: Reason = "",
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Let the agent act with other arguments. How they differ is shown first.

    Example: `keel edit 3f2a91bc04d1e7 --by ann --args '{"flight": "LH 123", "seat": "aisle"}'`
    """
    _decide(request, Decision("edit", by, reason=reason, args=_arguments(args)), url, yes=yes, json=json)


def answer(
    request: Id,
    by: By,
    value: Annotated[str, typer.Option("--value", metavar="TEXT", help="The answer: JSON, or else text.")],
    url: Url = DEFAULT_URL,
    reason: Reason = "",
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Answer a question: the value is what the agent's `interrupt()` returns.

    Example: `keel answer 3f2a91bc04d1e7 --by ann --value "by train, please"`
    """
    _decide(request, Decision("answer", by, reason=reason, value=_value(value)), url, yes=yes, json=json)


def sweep(
    url: Url = DEFAULT_URL,
    remind_after: Annotated[
        int | None,
        typer.Option(
            "--remind-after",
            metavar="SECONDS",
            min=0,
            max=_LONGEST,
            help="List what has waited so long, once in that time.",
        ),
    ] = None,
    most: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Prune or delete at most so many threads.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; say what would go.")] = False,
    json: AsJson = False,
) -> None:
    """Look after all threads: prune and delete as `keel retention` says, expire requests, close what is moot.

    Any process may do it at any time, say every hour; the list is of requests to be reminded of.

    Example: `keel sweep --remind-after 86400`
    """
    opened = reading(url) if dry_run else changing(url)
    with opened as saver, bar("Looking after threads", quiet=json) as tell:
        swept = saver.sweep(dry_run=dry_run, limit=most, remind_after=remind_after, on_progress=tell)
        due = sorted(swept.reminders, key=lambda request: request.asked_at)
        waiting = len(saver.approvals.pending(limit=None))
    if json:
        reminders = [render.request_json(each) for each in due]
        print_json({"waiting": waiting, "reminders": reminders, "retention": swept.to_dict()})
        return
    console().print(pruned_page(swept))
    if not dry_run:
        console().print(render.swept_line(waiting, len(due)))
    if due:
        console().print(render.requests_page(due, more=False, full=False))


def _decide(name: str, decision: Decision, url: str, *, yes: bool, json: bool) -> None:
    """Show a request, ask whether it is meant, decide, and say how the thread goes on."""
    with changing(url) as saver:
        found = saver.approvals.get(name)
        decided(found, decision)  # what will be refused is refused before anybody thinks about it
        if not json:
            console().print(render.request_page(found, decision))
        if not (yes or json):
            _confirm(decision)
        # By the whole id: that is what was shown, whatever was asked meanwhile.
        given = {"edit": {"args": decision.args}, "answer": {"value": decision.value}}.get(decision.kind, {})
        done = getattr(saver.approvals, decision.kind)(found.id, by=decision.by, reason=decision.reason, **given)
        others = () if json else _others(saver, done)
    if json:
        print_json(render.request_json(done))
        return
    console().print()
    for line in render.decided_lines(done, others):
        console().print(line, soft_wrap=True)


def _confirm(decision: Decision) -> None:
    """Ask; on standard error, as standard output may go to a file.

    Raises:
        InvalidInput: There is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise InvalidInput(f"nothing was decided: there is no terminal to ask in; add --yes to {decision.kind}")
    if not typer.confirm(f"{decision.kind.capitalize()}?", err=True):
        typer.echo("Nothing was decided.", err=True)
        raise typer.Exit(1)


def _others(saver: Any, request: ApprovalRequest) -> Sequence[ApprovalRequest]:
    """Return what the step of a request asks besides, and nobody has decided: it goes on with all of it at once."""
    found = saver.approvals.pending(request.thread_id, status=[*OPEN, EXPIRED], limit=None)
    return [each for each in found if each.task_id == request.task_id and not each.is_settled]


def _arguments(given: str) -> Any:
    """Return the arguments that the command line gives, or the file that it names.

    Raises:
        InvalidInput: They are no JSON, or cannot be read.
    """
    try:
        text = Path(given[1:]).read_text(encoding="utf-8") if given.startswith("@") else given
        return _json.loads(text, parse_constant=_no_json)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"--args {given!r:.100}: {error}") from None


def _value(given: str) -> Any:
    try:
        return _json.loads(given, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return given


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
