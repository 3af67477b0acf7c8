"""The commands that make a store hold less: `erase` a person's data, `reclaim` the space of what was deleted."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from langgraph_keel.cli.bars import bar
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, changing, reading
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.core.receipt import Receipt
from langgraph_keel.core.reclaiming import Reclaimed
from langgraph_keel.errors import InvalidInput
from langgraph_keel.timeline.columns import size
from langgraph_keel.timeline.safe import plain


class Shared(StrEnum):
    """What becomes of threads that name others as well."""

    report = "report"
    delete = "delete"


class Cached(StrEnum):
    """What becomes of results of nodes, which name no thread."""

    clear = "clear"
    report = "report"


User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose: as `user_id` names them in their threads.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
Others = Annotated[Shared, typer.Option("--shared", help="What to do with threads that name others as well.")]
Nodes = Annotated[Cached, typer.Option("--node-cache", help="What to do with KeelCache, which names no thread.")]
Strays = Annotated[bool, typer.Option("--strays", help="Delete also what is stored of threads without a checkpoint.")]
Whole = Annotated[bool, typer.Option("--full", help="Do all that can be done, also what makes others wait.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def erase(
    user: User,
    dry_run: DryRun = False,
    shared: Others = Shared.report,
    node_cache: Nodes = Cached.clear,
    full: Whole = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Delete all that is stored of a person, and say what went and what did not.

    Shows what would go, and asks. Exit status 1 if anything of the person is left, or may be. Stop what runs for the
    person before. Threads that name others as well are reported.

    Example: `keel erase --user alice@example.com --dry-run`
    """
    options = {"shared": shared.value, "node_cache": node_cache.value}
    if not (yes or dry_run):
        _check_terminal(json=json)
    if dry_run or not yes:
        with reading(url) as saver, bar("Looking at threads", quiet=json) as tell:
            found: Receipt = saver.erase(user, dry_run=True, on_progress=tell, **options)
        _print(found, json=json)
        if dry_run:
            return
        if not found.threads:
            _end(found)
        _confirm()
    with changing(url) as saver, bar("Erasing", quiet=json) as tell:
        receipt: Receipt = saver.erase(user, reclaim="full" if full else True, on_progress=tell, **options)
    _print(receipt, json=json)
    _end(receipt)


def reclaim(full: Whole = False, strays: Strays = False, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Give back the space of what was deleted. `--full` locks the tables, or the file, for as long as it takes.

    Example: `keel reclaim --full`
    """
    with changing(url) as saver, bar("Looking at threads", quiet=json) as tell:
        reclaimed: Reclaimed = saver.reclaim(full=full, strays=strays, on_progress=tell)
    if json:
        print_json(reclaimed.to_dict())
    else:
        console().print(_space(reclaimed), soft_wrap=True)


def _space(reclaimed: Reclaimed) -> str:
    if reclaimed.before is None or reclaimed.after is None:
        return reclaimed.note
    return f"{size(reclaimed.before)} before, {size(reclaimed.after)} after: {reclaimed.note}"


def _end(receipt: Receipt) -> NoReturn:
    raise typer.Exit(0 if receipt.complete else 1)


def _check_terminal(*, json: bool) -> None:
    if json or not sys.stdin.isatty():
        raise InvalidInput("nothing was erased: there is nobody to ask; look with --dry-run, then add --yes")


def _confirm() -> None:
    """Ask; on standard error, as standard output may go to a file."""
    if not typer.confirm("Erase?", err=True):
        typer.echo("Nothing was erased.", err=True)
        raise typer.Exit(1)


def _print(receipt: Receipt, *, json: bool) -> None:
    if json:
        print_json(_told(receipt))
        return
    space = [f"Space after that: {_space(receipt.reclaimed)}"] if receipt.reclaimed else []
    # The first lines of a look name them already.
    shared = [] if receipt.dry_run else [f"  shared: {thread_id!r}" for thread_id in receipt.shared]
    done, *more = str(replace(receipt, reclaimed=None)).splitlines()
    for line in [done, *shared, *more, *space]:
        console().print(plain(line), soft_wrap=True)
    for thread_id, why in receipt.failed.items():
        console(stderr=True).print(f"  {plain(thread_id)}: {plain(why)}", style="red", soft_wrap=True)


def _told(receipt: Receipt) -> dict[str, Any]:
    ids = {"thread_ids": receipt.threads, "shared_ids": receipt.shared, "failed_ids": receipt.failed}
    return {**receipt.to_dict(), **{name: list(found) for name, found in ids.items()}}
