"""`keel threads`: the threads of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from langgraph_keel.approvals.plans import find_waiting_threads
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Model, Url, moment_since, open_to_read
from langgraph_keel.cli.output import Fitting, console, local_time, print_json, table_of, without_password
from langgraph_keel.display.text import count_of, plain

Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Show at most this many.")]
Match = Annotated[
    str | None, typer.Option("--match", metavar="PATTERN", help="Only threads whose ids fit: `customer-*`.")
]
Owner = Annotated[
    str | None, typer.Option("--owner", metavar="ID", help="Only this person's, as `user_id` names them.")
]
Waiting = Annotated[bool, typer.Option("--waiting", help="Only threads that wait for a person's decision.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only threads active since: so long ago (12h, 7d), or 2026-11-23."),
]
Unfinished = Annotated[
    bool, typer.Option("--unfinished", help="Only threads that are not idle: cut off, waiting, decided, or being run.")
]


def threads(
    url: Url = DEFAULT_URL,
    limit: Limit = 50,
    match: Match = None,
    owner: Owner = None,
    waiting: Waiting = False,
    since: Since = None,
    model: Model = None,
    unfinished: Unfinished = False,
    json: AsJson = False,
) -> None:
    """List the threads in a store, the one last active first.

    Those that wait for a person are marked. What is asked for together must all be so. With --unfinished, each thread
    is looked at, which tells those that were cut off, and what to do is said.

    Example: `keel threads --match 'customer-*' --waiting --since 7d`
    """
    after = None if since is None else moment_since(since)
    wanted: dict[str, Any] = {"model": model, "match": match, "owner": owner, "waiting": waiting, "since": after}
    with open_to_read(url) as saver:
        if unfinished:
            found = list(islice(_find_unfinished(saver, wanted), limit + 1))
        else:
            found = _mark_waiting(saver, list(saver.threads(limit + 1, **wanted)))
        others = 0 if found else sum(1 for _ in saver.threads())
        tenants = 0 if found or others or saver.tenant else len(saver.tenants())
    more, found = len(found) > limit, found[:limit]
    if json:
        fields = _standing_json if unfinished else _thread_json
        print_json({"threads": list(map(fields, found)), "more": more})
    elif not found:
        console().print(Text(_say_none(url, others, tenants, unfinished, wanted), "dim"), soft_wrap=True)
    elif unfinished:
        for standing in found:
            console().print(Text(plain(str(standing))), soft_wrap=True)
    else:
        console().print(_threads_table(found))
    if more and not json:
        console().print(Text("… and older ones: --limit shows more", "dim"))


def _mark_waiting(saver: Any, found: Sequence[Any]) -> list[Any]:
    """Return the threads, with a fact more for each that waits for a person: one listing of requests, not one each."""
    waits = saver.engine.run(find_waiting_threads(saver.engine.session, {info.thread_id for info in found}))
    mark = ("waits", "for a person")
    return [replace(info, facts=(*info.facts, mark)) if info.thread_id in waits else info for info in found]


def _find_unfinished(saver: Any, wanted: Mapping[str, Any]) -> Iterator[Any]:
    for info in saver.threads(**wanted):
        standing = saver.where(info.thread_id)
        if standing.state not in ("new", "idle"):  # new: deleted meanwhile
            yield standing


def _say_none(url: str, others: int, tenants: int, unfinished: bool, wanted: Mapping[str, Any]) -> str:
    if tenants:
        held = count_of(tenants, "tenant")
        return (
            f"No threads in {without_password(url)} but those of {held}: `keel tenants`, `keel --tenant NAME threads`"
        )
    if not others:
        return f"No threads in {without_password(url)}"
    if unfinished and not any(wanted.values()):
        return f"All threads in {without_password(url)} are idle"
    return f"None of {count_of(others, 'thread')} in {without_password(url)} fits"


def _standing_json(standing: Any) -> dict[str, Any]:
    fields = ("thread_id", "state", "updated_at", "questions")
    return {
        **{name: getattr(standing, name) for name in fields},
        "next": list(standing.next),
        "requests": [request.id for request in standing.requests],
        "errors": list(standing.errors),
        "doubts": [call.key for call in standing.doubts],
    }


def _threads_table(found: Sequence[Any]) -> RenderableType:
    """Return the table of `keel threads`; whose they are, and each fact of a feature, if any thread has it."""
    rows = [{**({"owner": info.owner} if info.owner else {}), **dict(info.facts)} for info in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = table_of("thread", *map(plain, names), "checkpoints", "last activity")
    table.columns[-2].justify = "right"
    narrow: list[RenderableType] = []
    for info, row in zip(found, rows, strict=True):
        name, time = Text(plain(info.thread_id), "bold", overflow="fold"), local_time(info.updated_at)
        facts = [plain(str(row.get(each, ""))) for each in names]
        table.add_row(name, *(Text(fact, overflow="fold") for fact in facts), f"{info.checkpoints:,}", time)
        line = " · ".join([*filter(None, facts), count_of(info.checkpoints, "checkpoint"), time])
        narrow += [name, Padding(Text(line, "dim", overflow="fold"), (0, 2))]
    return Fitting(table, Group(*narrow), 60)


def _thread_json(info: Any) -> dict[str, Any]:
    """Return what `keel threads --json` prints of a thread."""
    fields = ("thread_id", "checkpoints", "step", "updated_at", "latest", "owner")
    return {**{name: getattr(info, name) for name in fields}, "models": list(info.models), "facts": dict(info.facts)}
