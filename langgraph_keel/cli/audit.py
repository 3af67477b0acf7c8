"""`keel audit`: the audit trail of approvals, and its verification."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.approvals.interrupts import describe_question, text_of
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, open_to_read
from langgraph_keel.cli.output import Rows, bar, console, local_time, print_json
from langgraph_keel.display.text import count_of, one_line, plain
from langgraph_keel.engine.audit import AuditEvent, AuditVerdict

audit = typer.Typer(no_args_is_help=True, help="Show the audit trail of approvals, or verify that it is unchanged.")
_PAGE = 1000
_IDS = ("call", "checkpoint", "thread", "twin", "n", "thread_id", "checkpoint_id", "interrupt_id", "request")
_UNSHOWN = (*_IDS, "args_hash", "at", "by", "kind", "description")


@audit.command()
def show(
    thread: Annotated[
        str | None, typer.Option("--thread", "-t", metavar="THREAD", help="Only the events of this thread.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many, the newest.")
    ] = 50,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """List people's decisions and actions, newest last.

    The content of an event is deleted with its thread.

    Example: `keel audit show --thread my-thread`
    """
    with open_to_read(url) as saver, bar("Reading events", quiet=json) as tell:
        chosen: deque[AuditEvent] = deque(maxlen=limit + 1)
        after = 0
        while page := saver.approvals.audit(after, _PAGE):
            chosen += [event for event in page if thread is None or (event.content or {}).get("thread_id") == thread]
            after = page[-1].number
            tell(after, None)
    shown, more = list(chosen)[-limit:], len(chosen) > limit
    if json:
        print_json({"events": [asdict(event) for event in shown], "more": more})
        return
    if more:
        console().print(Text("… and older ones: --limit shows more", "dim"))
    columns = (">event", "time", "what", "by", "thread", "about")
    rows = Rows(columns, [*map(_cells, shown)], heads=5, at=80)
    console().print(rows if shown else Text("No events in the audit trail", "dim"))


@audit.command()
def verify(
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="N:HASH", help="An event noted earlier, which must still exist."),
    ] = None,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Verify that no event was changed, removed or inserted. Exit status 1 if one was.

    It prints the last event. Note it in a safe place, and pass it to `--expect` the next time. Then it is also detected
    if the whole trail was rewritten, or cut off at the end.

    Example: `keel audit verify --expect 17:9f86d081884c7d65…`
    """
    with open_to_read(url) as saver, bar("Checking events", quiet=json) as tell:
        verdict: AuditVerdict = saver.approvals.verify_audit(expect, tell)
    if json:
        print_json({"ok": verdict.ok, **asdict(verdict)})
    else:
        removed = f", {verdict.removed:,} without content (deleted with their threads)" if verdict.removed else ""
        count = f"{count_of(verdict.events, 'event')}{removed}"
        lines = [Text(plain(problem), "red") for problem in verdict.problems]
        if verdict.problems:
            lines.append(Text(f"The audit trail is not what was written: {count}", "bold red"))
        else:
            lines.append(Text(f"The audit trail is unchanged: {count}", "green"))
            lines.append(Text(f"Note this event down for --expect:\n{verdict.head}"))
        console().print(Text("\n").join(lines), soft_wrap=True)
    if not verdict.ok:
        raise typer.Exit(1)


def _cells(event: AuditEvent) -> tuple[str, str, Text, Text, Text, Text]:
    start = str(event.number), local_time(event.at), Text(plain(event.kind), "bold")
    if event.content is None:
        return *start, Text(), Text(), Text("deleted with its thread", "dim")
    by, thread = (Text(plain(str(event.content.get(name, ""))), overflow="fold") for name in ("by", "thread_id"))
    return *start, by, thread, Text(one_line(_about(event.content), 200), overflow="fold")


def _about(content: Mapping[str, Any]) -> str:
    """Return the facts of an event; long values, hashes and ids are in `--json`."""
    facts = {name: value for name, value in content.items() if name not in _UNSHOWN and value not in ("", None)}
    action, reason = (str(facts.pop(name, "")) for name in ("action", "reason"))
    what = f"{action} {text_of(facts.pop('args'))}" if action and "args" in facts else action
    asked = describe_question(facts.pop("value")) if "value" in facts else ""
    rest = [f"{name} {text_of(value)}" for name, value in facts.items()]
    return " · ".join(each for each in (what, asked, reason, *rest) if each)
