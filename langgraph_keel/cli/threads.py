"""`keel threads`: the threads of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from json import loads as json_of
from typing import Annotated, Any, Literal, get_args

import typer
from rich.bar import Bar
from rich.console import RenderableType
from rich.text import Text

from langgraph_keel.approvals.plans import answers_of, find_open_requests, find_waiting_threads
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Model, Since, Thread, Until, Url, open_to_read
from langgraph_keel.cli.output import (
    Rows,
    bar,
    console,
    local_time,
    print_answer,
    print_json,
    print_lines,
    table_of,
    thread_name,
    with_bar,
    without_password,
)
from langgraph_keel.display.text import count_of, format_money, format_size, plain
from langgraph_keel.engine.entries import Status
from langgraph_keel.errors import InvalidInput
from langgraph_keel.history.status import UnfinishedThreads
from langgraph_keel.history.threads import Order, Usage, count_threads, filter_of

Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many.")]
Match = Annotated[
    str | None, typer.Option("--match", metavar="PATTERN", help="Only threads whose id matches: `customer-*`.")
]
Owner = Annotated[str | None, typer.Option("--owner", metavar="ID", help="Only threads of this person (`user_id`).")]
Waiting = Annotated[bool, typer.Option("--waiting", help="Only threads that wait for a person's decision.")]
StatusIs = Annotated[
    str | None,
    typer.Option("--status", metavar="STATUS", help=f"Only threads with this status: {', '.join(get_args(Status))}."),
]
Node = Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only threads in which this node runs next.")]
Error = Annotated[
    str | None, typer.Option("--error", metavar="CLASS", help="Only threads that failed with this error: `ValueError`.")
]
LabelIs = Annotated[str | None, typer.Option("--label", metavar="LABEL", help="Only threads with this label.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only threads with this metadata in the latest checkpoint: a number, true, false, null, or text. "
        "Repeatable.",
    ),
]


OrderBy = Annotated[Order, typer.Option("--order", help="Sort by last activity.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Continue after a cursor of the previous page.")
]
Count = Annotated[bool, typer.Option("--count", help="Count threads by status, day and owner, and add up their usage.")]
Unfinished = Annotated[
    bool, typer.Option("--unfinished", help="Only threads with something left to do. Reads each of them.")
]


def threads(
    url: Url = DEFAULT_URL,
    limit: Limit = 50,
    match: Match = None,
    owner: Owner = None,
    waiting: Waiting = False,
    since: Since = None,
    until: Until = None,
    status: StatusIs = None,
    node: Node = None,
    error: Error = None,
    label: LabelIs = None,
    where: Where = None,
    model: Model = None,
    order: OrderBy = "newest",
    after: After = None,
    count: Count = False,
    unfinished: Unfinished = False,
    json: AsJson = False,
) -> None:
    """List the threads of a store, most recently active first.

    Filters are combined with AND. An `incomplete` thread has steps left. With --unfinished, every thread with
    something left to do is listed with the reason, and with the next step that is safe.

    Example: `keel threads --status failed --error TimeoutError --since 24h`
    """
    wanted: dict[str, Any] = {"model": model, "match": match, "owner": owner, "waiting": waiting, "status": status}
    wanted |= {"node": node, "error": error, "label": label, "where": _where(where), "since": since, "until": until}
    with open_to_read(url) as saver:
        if count:
            _count(saver, wanted, json)
            return
        if unfinished:
            found: list[Any] = []
            pages = UnfinishedThreads(saver.engine.session, filter_of(**wanted), order)
            while len(found) <= limit and (page := saver.engine.run(pages.next())) is not None:
                found += page
            tries = [_tries_of(saver, each) for each in found[:limit]]
        else:
            found = list(saver.threads(limit + 1, order=order, after=after, **wanted))
            found = _mark_waiting(saver, found, show_decided=not json)
        others = 0 if found else sum(1 for _ in saver.threads())
        tenants = 0 if found or others or saver.tenant else len(saver.tenants.list())
    more, found = len(found) > limit, found[:limit]
    if json:
        rows = map(_status_json, found, tries) if unfinished else map(_thread_json, found)
        print_json({"threads": list(rows), "more": more})
    elif not found:
        console().print(Text(_say_none(url, others, tenants, unfinished, wanted), "dim"), soft_wrap=True)
    elif unfinished:
        print_lines(map(_status_line, found, tries))
        print_lines([Text("Idle threads may have tool calls with an unknown outcome: keel tools --unknown", "dim")])
    else:
        console().print(_threads_table(found))
    if more and not json:
        following = "" if unfinished else "; --json prints the cursors that --after takes"
        age = "older" if order == "newest" else "newer"
        console().print(Text(f"… and {age} ones: --limit shows more{following}", "dim"), soft_wrap=True)


def _where(words: list[str] | None) -> dict[str, Any] | None:
    asked: dict[str, Any] = {}
    for word in words or ():
        key, is_pair, text = word.partition("=")
        if not is_pair or not key:
            raise InvalidInput(f"--where {word!r}: use KEY=VALUE, such as step=5")
        try:
            asked[key] = json_of(text)
        except ValueError:
            asked[key] = text
    return asked or None


def _count(saver: Any, wanted: Mapping[str, Any], as_json: bool) -> None:
    counts = count_threads(with_bar(saver.threads(**wanted), "Counting threads", quiet=as_json))
    owners = {owner: usage.to_dict() for owner, usage in counts.owners.items()}
    data = {**counts.all.to_dict(), "statuses": counts.statuses, "owners": owners, "days": counts.days}
    print_answer(data, Text(str(counts)), as_json=as_json)


def status(thread: Thread, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show the remaining work of a thread, and the safe next step.

    Example: `keel status my-thread`
    """
    with open_to_read(url) as saver:
        found = saver.status(thread)
        tries = _tries_of(saver, found)
    print_answer(_status_json(found, tries), _status_line(found, tries), as_json=json)


UsedBy = Annotated[Literal["owner", "tenant", "status", "day", "thread"], typer.Option("--by", help="Group by this.")]
WithBytes = Annotated[bool, typer.Option("--bytes", help="Measure the stored bytes, which reads all data.")]


def usage(
    by: UsedBy = "owner",
    measured: WithBytes = False,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Report usage by owner, tenant, status, day or thread.

    Shows tokens, cost, checkpoints and bytes. The highest usage comes first; days are in order. Deleted threads are not
    included.

    Example: `keel usage --by tenant --since 30d --json`
    """
    with open_to_read(url) as saver:
        taken = usage_of(saver, by, quiet=json, bytes=measured, since=since, until=until)
    if json:
        print_json({"by": by, "usage": {name: each.to_dict() for name, each in taken.items()}})
        return
    shown = dict(list(taken.items())[-limit:] if by == "day" else list(taken.items())[:limit])
    console().print(usage_table(by, shown))
    if len(shown) < len(taken):
        console().print(Text(f"… and {len(taken) - len(shown):,} more: --limit shows them", "dim"))


def usage_of(saver: Any, by: str, *, quiet: bool, **wanted: Any) -> Mapping[str, Usage]:
    """Return the usage of threads, with a progress bar."""
    with bar("Counting threads", quiet=quiet) as tell:
        found: Mapping[str, Usage] = saver.usage(by, on_progress=tell, **wanted)
    return found


def usage_table(what: str, taken: Mapping[str, Usage]) -> RenderableType:
    """Return a table of usage; of days, with a bar for the number of threads."""
    measured = any(usage.bytes is not None for usage in taken.values())
    table = table_of(what, ">threads", ">checkpoints", ">tokens", ">cost", *([">bytes"] if measured else []))
    if what == "day":
        table.add_column("", min_width=10)
    most = max((usage.threads for usage in taken.values()), default=1)
    for name, usage in taken.items():
        given, written = usage.tokens
        cost = "" if usage.cost is None else format_money(usage.cost)
        figures: list[RenderableType] = [f"{usage.threads:,}", f"{usage.checkpoints:,}"]
        figures += [f"{given:,} + {written:,}", cost]
        figures += [format_size(usage.bytes or 0)] if measured else []
        figures += [Bar(most, 0, usage.threads)] if what == "day" else []  # as wide as the table leaves room
        table.add_row(thread_name(name or "(none)", "bold"), *figures)
    return table


def _mark_waiting(saver: Any, found: Sequence[Any], *, show_decided: bool) -> list[Any]:
    """Mark threads that wait for a person, or whose requests are decided."""
    session, marked = saver.engine.session, []
    waits = saver.engine.run(find_waiting_threads(session, {info.thread_id for info in found}))
    for info in found:
        if info.thread_id in waits:
            info = replace(info, facts=(*info.facts, ("waits", "for a person")))
        elif show_decided and info.status == "waiting":
            requests = saver.engine.run(find_open_requests(session, info.thread_id))
            if answers_of([each for each in requests if each.checkpoint_id == info.latest]):
                info = replace(info, status="decided")
        marked.append(info)
    return marked


def _say_none(url: str, others: int, tenants: int, unfinished: bool, wanted: Mapping[str, Any]) -> str:
    if tenants:
        held = count_of(tenants, "tenant")
        return (
            f"No threads in {without_password(url)} except those of {held}: `keel tenants`, "
            "`keel --tenant NAME threads`"
        )
    if not others:
        return f"No threads in {without_password(url)}"
    if unfinished and not any(wanted.values()):
        return f"All threads in {without_password(url)} are idle; `keel tools --unknown` lists unknown outcomes"
    return f"None of {count_of(others, 'thread')} in {without_password(url)} matches"


def _tries_of(saver: Any, status: Any) -> Any:
    """Return the attempts of workers to continue a thread. One round trip."""
    from langgraph_keel.recovery.recover import tries_at

    return saver.engine.run(tries_at(saver.engine.session, status.thread_id, status.checkpoint_id))[0]


def _status_line(status: Any, tries: Any) -> Text:
    """Return a status as text, with the process and the attempts of workers."""
    parts = status.holder.split("/")
    facts = [f"process {parts[2]} on {parts[0]}"] if len(parts) == 4 else []
    tried = f"{count_of(tries.count, 'attempt')} to recover it (workers give up after --attempts)"
    facts += [tried] if tries.count else []
    facts += [f"last error: {tries.error}"] if tries.error else []
    return Text.assemble(plain(str(status)), (f"  {plain(', '.join(facts))}" if facts else "", "dim"))


def _status_json(status: Any, tries: Any) -> dict[str, Any]:
    fields = ("thread_id", "state", "can_go_on", "updated_at", "questions", "stopped", "holder")
    return {
        **{name: getattr(status, name) for name in fields},
        "next": list(status.next),
        "requests": [request.id for request in status.requests],
        "errors": list(status.errors),
        "doubts": [call.key for call in status.doubts],
        "attempts": tries.count,
        "attempt_error": tries.error,
    }


def _threads_table(found: Sequence[Any]) -> RenderableType:
    rows = []
    for info in found:
        facts = dict(info.facts)
        person = f" {facts.pop('waits')}" if info.status == "waiting" and "waits" in facts else ""
        status = f"{info.status}{person}{f': {info.error}' if info.error else ''}" if info.status else ""
        cost = "" if info.cost is None else format_money(info.cost)
        row = {"status": status, "next": ", ".join(info.next), "owner": info.owner, "cost": cost}
        rows.append({name: value for name, value in row.items() if value} | facts)
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells: list[Sequence[str | Text]] = []
    for info, row in zip(found, rows, strict=True):
        texts = [Text(plain(str(row.get(name, ""))), overflow="fold") for name in names]
        cells.append(
            [thread_name(info.thread_id, "bold"), *texts, f"{info.checkpoints:,}", local_time(info.updated_at)]
        )
    return Rows(["thread", *map(plain, names), ">checkpoints", "last activity"], cells, at=60)


def _thread_json(info: Any) -> dict[str, Any]:
    fields = ("thread_id", "checkpoints", "step", "updated_at", "latest", "owner", "status", "error", "cost", "cursor")
    lists = {name: list(getattr(info, name)) for name in ("models", "next", "tokens")}
    return {**{name: getattr(info, name) for name in fields}, **lists, "facts": dict(info.facts)}
