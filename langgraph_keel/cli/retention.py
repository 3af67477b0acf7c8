"""The commands that remove data, or forbid its removal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.history import check_thread
from langgraph_keel.cli.options import (
    DEFAULT_URL,
    Actor,
    AsJson,
    Url,
    Yes,
    confirm,
    duration,
    open_to_change,
    open_to_read,
)
from langgraph_keel.cli.output import bar, console, local_time, print_answer, print_json, table_of, thread_name
from langgraph_keel.display.text import count_of, format_size, plain
from langgraph_keel.errors import InvalidInput, NotFound
from langgraph_keel.retention.erase import Cached, Shared, What
from langgraph_keel.retention.holds import Hold
from langgraph_keel.retention.policy import DEFAULT, Per, Retention
from langgraph_keel.retention.prune import PruneReport, SweepReport
from langgraph_keel.retention.receipt import Receipt
from langgraph_keel.retention.reclaim import Reclaimed

_MOST = 50  # maximum number of threads in a table


def prune_page(report: PruneReport) -> RenderableType:
    """Return the answer of `keel prune` and `keel sweep`."""
    changed = [each for each in report.threads if each.is_changed]
    table = table_of("thread", *([">would remove", ">kept", ">bytes"] if report.dry_run else [">removed", ">kept"]))
    for each in changed[:_MOST]:
        removed = "all of it" if each.deleted else f"{each.removed:,}"
        size = [format_size(each.bytes or 0)] if report.dry_run else []
        table.add_row(thread_name(each.thread_id, "bold"), removed, f"{each.kept:,}", *size)
    shown: list[RenderableType] = [table] if changed else []
    if len(changed) > _MOST:
        shown.append(Text(f"… and {count_of(len(changed) - _MOST, 'more thread')} (--json shows all)", "dim"))
    if isinstance(report, SweepReport):
        for name, why in report.failed.items():
            shown.append(Text(f"{plain(name)} was not changed: {plain(why)}", "red"))
    return Group(*shown, Text(total_line(report), "yellow" if report.dry_run else "green"))


def total_line(report: PruneReport) -> str:
    """Return the totals in one line."""
    if isinstance(report, SweepReport) and not report.has_policies:
        return "There are no retention policies: nothing was pruned (`keel retention set` adds one)."
    what = [count_of(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [count_of(report.deleted, "whole thread")] if report.deleted else []
    back = f", {format_size(report.bytes)}" if report.bytes else ""
    looked = f" Looked at {count_of(report.looked, 'thread')}." if isinstance(report, SweepReport) else ""
    return f"{'Would remove' if report.dry_run else 'Removed'} {' and '.join(what)}{back}.{looked}"


retention = typer.Typer(
    no_args_is_help=True, help="Show and change the policies by which `keel sweep` prunes and deletes threads."
)


Last = Annotated[
    int | None,
    typer.Option("--keep-last", metavar="N", help="Keep the newest N checkpoints on the path to the latest."),
]
Within = Annotated[
    str | None,
    typer.Option("--within", metavar="TIME", help="Keep checkpoints younger than this: 90s, 15m, 12h, 7d, 2w."),
]
Each = Annotated[Per | None, typer.Option("--per", help="Keep the last checkpoint of each run, or of each day (UTC).")]
Points = Annotated[bool, typer.Option("--branch-points", help="Keep checkpoints where branches start.")]
Threads = Annotated[list[str], typer.Argument(metavar="THREAD", help="The threads' ids.")]
OnlyLook = Annotated[bool, typer.Option("--dry-run", help="Remove nothing; show a preview.")]


def prune(
    threads: Threads,
    url: Url = DEFAULT_URL,
    last: Last = None,
    within: Within = None,
    per: Each = None,
    branch_points: Points = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the threads and everything that belongs to them.")
    ] = False,
    dry_run: OnlyLook = False,
    by: Actor = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove old checkpoints of threads. Without options, all except the latest.

    Checkpoints with a label, and those that wait for a person, are kept. Programs may write concurrently.

    Example: `keel prune my-thread --keep-last 20 --dry-run`
    """
    rules = _rules(last, within, per, branch_points)
    if delete and rules:
        options = (f"--{'keep-last' if name == 'last' else name.replace('_', '-')}" for name in rules)
        raise InvalidInput(f"--delete keeps nothing: leave out {', '.join(options)}")
    strategy = "delete" if delete else Retention(**rules) if rules else DEFAULT
    _remove(threads, strategy, url, by, dry_run=dry_run, yes=yes, json=json)


def delete(
    threads: Threads,
    url: Url = DEFAULT_URL,
    dry_run: OnlyLook = False,
    by: Actor = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete threads and everything that belongs to them.

    Deletes checkpoints, labels, tool calls, archives and approval requests. Shows a preview, and asks.

    Example: `keel delete my-thread --dry-run`
    """
    _remove(threads, "delete", url, by, dry_run=dry_run, yes=yes, json=json)


def _remove(
    threads: Sequence[str], strategy: Any, url: str, by: str | None, *, dry_run: bool, yes: bool, json: bool
) -> None:
    is_asked = sys.stdin.isatty() and not (yes or json)
    if not (dry_run or yes or is_asked):
        raise InvalidInput("nothing was removed: there is no terminal to ask in; add --yes, or --dry-run to look")
    if dry_run or is_asked:
        with open_to_read(url) as saver:
            report = _prune(saver, threads, strategy, None, json=json, dry_run=True)
        print_answer(report.to_dict(), prune_page(report), as_json=json)
        if dry_run or not any(each.is_changed for each in report.threads):
            return
        confirm("Remove it?", "Nothing was removed.")
    with open_to_change(url) as saver:
        report = _prune(saver, threads, strategy, by, json=json, dry_run=False)
    print_answer(report.to_dict(), prune_page(report), as_json=json)


def _rules(last: int | None, within: str | None, per: Per | None, branch_points: bool) -> dict[str, Any]:
    given = {
        "last": last,
        "within": None if within is None else duration(within),
        "per": per,
        "branch_points": branch_points or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _prune(
    saver: Any, threads: Sequence[str], strategy: Any, by: str | None, *, json: bool, dry_run: bool
) -> PruneReport:
    for thread in threads:
        check_thread(saver, thread)  # before anything is removed
    with bar("Looking at threads" if dry_run else "Pruning threads", quiet=json, keeps=not dry_run) as tell:
        report: PruneReport = saver.prune(threads, strategy=strategy, dry_run=dry_run, on_progress=tell, by=by)
    return report


@retention.command()
def show(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show the policies of a store. The first policy that matches a thread applies.

    Example: `keel retention show`
    """
    with open_to_read(url) as saver:
        found = saver.retention.policies()
    _show_policies(found, json=json)


@retention.command("set")
def set_(
    url: Url = DEFAULT_URL,
    threads: Annotated[
        str, typer.Option("--threads", metavar="PATTERN", help="The pattern of thread ids, such as `chat-*`.")
    ] = "*",
    last: Last = None,
    within: Within = None,
    per: Each = None,
    branch_points: Points = False,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="TIME", help="Only threads that have been inactive for this long.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Delete threads that have been inactive for this long.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Set the policy for threads that match a pattern.

    Nothing is removed before the next `keel sweep`.

    An earlier policy for the same pattern is replaced. The first policy that matches a thread applies, so a new policy
    is placed before the others, but after those with a narrower pattern. The policy for `*` is always last.

    Example: `keel retention set --threads 'chat-*' --keep-last 20 --ttl 90d`
    """
    times = {"idle": idle, "ttl": ttl}
    rules = _rules(last, within, per, branch_points) | {
        name: duration(value) for name, value in times.items() if value is not None
    }
    new = Retention(threads=threads, **rules)
    if new.says_nothing:
        raise InvalidInput(
            "the policy needs a rule: --keep-last, --within, --per, --branch-points or --ttl (--keep-last 1 keeps only "
            "the latest checkpoint)"
        )
    if "," in threads:
        typer.echo(
            f"{threads!r} is one pattern that contains a comma: for several patterns, set a policy for each", err=True
        )
    with open_to_change(url) as saver:
        found = [new if policy.threads == threads else policy for policy in saver.retention.policies()]
        if new not in found:  # before a policy that it covers, it would hide it
            place = max((place for place, policy in enumerate(found, 1) if new.covers(policy)), default=0)
            found.insert(place, new)
        found.sort(key=lambda policy: policy.threads == "*")
        saver.retention.set_policy(*found)
    _show_policies(found, json=json)


@retention.command()
def clear(
    url: Url = DEFAULT_URL,
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="PATTERN", help="Only the policy for this pattern.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Remove all policies, or the one for a pattern.

    Example: `keel retention clear --threads 'chat-*'`
    """
    with open_to_change(url) as saver:
        held = saver.retention.policies()
        found = [policy for policy in held if threads not in (None, policy.threads)]
        if threads is not None and found == list(held):
            raise NotFound(f"there is no policy for {threads!r}: `keel retention show` lists them")
        saver.retention.set_policy(*found)
    _show_policies(found, json=json)


def _show_policies(policies: Sequence[Retention], *, json: bool) -> None:
    page: RenderableType = Text("No policies: everything is kept (`keel retention set` adds one)", "dim")
    if policies:
        page = Group(*(Text(plain(str(policy)), overflow="fold") for policy in policies))
    print_answer({"policies": [policy.to_dict() for policy in policies]}, page, as_json=json)


User = Annotated[str, typer.Option("--user", metavar="ID", help="The person's `user_id`, as in their threads.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Erase nothing; show a preview.")]
Others = Annotated[Shared, typer.Option("--shared", help="How to treat threads that also name other people.")]
Nodes = Annotated[
    Cached, typer.Option("--node-cache", help="How to treat the results in KeelCache, which belong to no thread.")
]
Which = Annotated[What, typer.Option("--what", help="What to erase: threads, data (items of the store), or all.")]
Strays = Annotated[bool, typer.Option("--strays", help="Also delete records of threads without a checkpoint.")]
Whole = Annotated[bool, typer.Option("--full", help="Reclaim all space, which may block other processes.")]


def erase(
    user: User,
    what: Which = "threads",
    dry_run: DryRun = False,
    shared: Others = "report",
    node_cache: Nodes = "clear",
    full: Whole = False,
    by: Actor = None,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Erase a person's threads, items, or both, and report the result.

    Shows a preview, and asks. Stop the person's runs first. Threads that also name other people are
    reported. Exit status 1 if data of the person is left, or may be.

    Example: `keel erase --user alice@example.com --dry-run`
    """
    options: dict[str, Any] = {"what": what, "shared": shared, "node_cache": node_cache}
    if not (yes or dry_run) and (json or not sys.stdin.isatty()):
        raise InvalidInput("nothing was erased: confirmation is required. Look with --dry-run, then add --yes")
    if dry_run or not yes:
        with open_to_read(url) as saver, bar("Looking at threads", quiet=json) as tell:
            found: Receipt = saver.retention.erase(user, dry_run=True, on_progress=tell, **options)
        _print(found, json=json)
        if dry_run:
            return
        if not (found.threads or found.items):
            raise typer.Exit(0 if found.complete else 1)
        confirm("Erase?", "Nothing was erased.")
    with open_to_change(url) as saver, bar("Erasing", quiet=json, keeps=True) as tell:
        receipt: Receipt = saver.retention.erase(
            user, reclaim="full" if full else True, on_progress=tell, by=by, **options
        )
    _print(receipt, json=json)
    raise typer.Exit(0 if receipt.complete else 1)


def hold(
    user: Annotated[
        str | None, typer.Option("--user", metavar="ID", help="The person. Without it, all holds are listed.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="The reason, such as a case number (no names).")
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Release all holds of the person, or the one with this reason.")
    ] = False,
    by: Actor = None,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Place a hold on a person, whose data is then kept; release or list holds.

    Example: `keel hold --user alice@example.com --reason "case 17" --by legal`
    """
    if (user is None and (release or reason)) or (user is not None and not (by and (release or reason))):
        raise InvalidInput("a hold needs --user, --reason and --by; its release needs --user and --by")
    with open_to_read(url) if user is None else open_to_change(url) as saver:
        if user is None:
            found: Sequence[Hold] = saver.retention.holds()
        elif release:
            found = saver.retention.release(user, by=by, reason=reason)
        else:
            found = [saver.retention.hold(user, reason=reason, by=by)]
    table = table_of("user", "since", "by", "reason")
    for each in found:
        table.add_row(plain(each.user_id), local_time(each.at), plain(each.by), plain(each.reason))
    total = Text(f"{'Released ' if release else ''}{count_of(len(found), 'hold')}")
    print_answer({"holds": [asdict(each) for each in found]}, Group(*([table] if found else []), total), as_json=json)


def reclaim(full: Whole = False, strays: Strays = False, url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Reclaim the space of deleted data.

    `--full` locks the tables, or the file, while it runs.

    Example: `keel reclaim --full`
    """
    with open_to_change(url) as saver, bar("Looking at threads", quiet=json, keeps=True) as tell:
        reclaimed: Reclaimed = saver.retention.reclaim_space(full=full, strays=strays, on_progress=tell)
    print_answer(reclaimed.to_dict(), Text(_space(reclaimed)), as_json=json)


def _space(reclaimed: Reclaimed) -> str:
    if reclaimed.before is None or reclaimed.after is None:
        return reclaimed.note
    return f"{format_size(reclaimed.before)} before, {format_size(reclaimed.after)} after: {reclaimed.note}"


def _print(receipt: Receipt, *, json: bool) -> None:
    if json:
        ids = {"thread_ids": receipt.threads, "shared_ids": receipt.shared, "failed_ids": receipt.failed}
        print_json({**receipt.to_dict(), **{name: list(found) for name, found in ids.items()}})
        return
    space = [f"Space: {_space(receipt.reclaimed)}"] if receipt.reclaimed else []
    # The first lines of a dry run list them already.
    shared = [] if receipt.dry_run else [f"  shared: {thread_id!r}" for thread_id in receipt.shared]
    done, *more = str(replace(receipt, reclaimed=None)).splitlines()
    for line in [done, *shared, *more, *space]:
        console().print(plain(line), soft_wrap=True)
    for thread_id, why in receipt.failed.items():
        console(stderr=True).print(f"  {plain(thread_id)}: {plain(why)}", style="red", soft_wrap=True)
