"""`keel threads`: the threads of a store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Model, Url, open_to_read
from langgraph_keel.cli.output import Fitting, console, local_time, print_json, table_of, without_password
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.errors import InvalidInput

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")]


Unfinished = Annotated[
    bool, typer.Option("--unfinished", help="Only threads that are not idle: cut off, waiting, decided, or being run.")
]


def threads(
    url: Url = DEFAULT_URL,
    limit: Limit = 50,
    model: Model = None,
    unfinished: Unfinished = False,
    json: AsJson = False,
) -> None:
    """List the threads in a store, the one last active first.

    Example: `keel threads --unfinished --url sqlite:///agent.db`
    """
    if unfinished and model is not None:
        raise InvalidInput("--unfinished looks at all threads: leave out --model")
    if unfinished:
        _list_unfinished(url, limit, json)
        return
    with open_to_read(url) as saver:
        found = list(saver.threads(limit=limit + 1, model=model))
        others = sum(1 for _ in saver.threads()) if model is not None and not found else 0
    if json:
        print_json(_threads_json(found[:limit], more=len(found) > limit))
    elif others:
        text = f"None of {count_of(others, 'thread')} was written by {plain(repr(model))}."
        console().print(Text(text, "dim"))
    else:
        console().print(_threads_table(found[:limit], url, more=len(found) > limit))


def _list_unfinished(url: str, limit: int, json: bool) -> None:
    with open_to_read(url) as saver:
        found = list(islice(saver.unfinished(), limit + 1))
    more, found = len(found) > limit, found[:limit]
    if json:
        print_json({"threads": list(map(_standing_json, found)), "more": more})
    elif not found:
        console().print(Text(f"All threads in {without_password(url)} are idle", "dim"))
    else:
        for standing in found:
            console().print(Text(plain(str(standing))), soft_wrap=True)
        if more:
            console().print(Text("… and others: --limit shows more", "dim"))


def _standing_json(standing: Any) -> dict[str, Any]:
    fields = ("thread_id", "state", "updated_at", "questions")
    return {
        **{name: getattr(standing, name) for name in fields},
        "next": list(standing.next),
        "requests": [request.id for request in standing.requests],
        "errors": list(standing.errors),
        "doubts": [call.key for call in standing.doubts],
    }


def _threads_table(found: Sequence[Any], url: str, *, more: bool) -> RenderableType:
    """Return the table of `keel threads`."""
    if not found:
        return Text(f"No threads in {without_password(url)}", "dim")
    table = table_of("thread", "checkpoints", "last activity")
    table.columns[1].justify = "right"
    narrow: list[RenderableType] = []
    for info in found:
        name = Text(plain(info.thread_id), "bold", overflow="fold")
        table.add_row(name, f"{info.checkpoints:,}", local_time(info.updated_at))
        facts = f"  {info.checkpoints:,} checkpoints · {local_time(info.updated_at)}"
        narrow += [name, Text(facts, "dim")]
    older = [Text("… and older ones: --limit shows more", "dim")] if more else []
    return Group(Fitting(table, Group(*narrow), 60), *older)


def _threads_json(found: Sequence[Any], *, more: bool) -> dict[str, Any]:
    """Return what `keel threads --json` prints."""
    fields = ("thread_id", "checkpoints", "step", "updated_at", "latest")
    threads = [{**{name: getattr(info, name) for name in fields}, "models": list(info.models)} for info in found]
    return {"threads": threads, "more": more}
