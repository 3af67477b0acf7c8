"""The commands that remove from a store, or forbid it: `prune`, `delete`, `retention`, `erase`, `hold`, `reclaim`."""

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

_MOST = 50  # threads in a table


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
            shown.append(Text(f"{plain(name)} stays as it is: {plain(why)}", "red"))
    return Group(*shown, Text(total_line(report), "yellow" if report.dry_run else "green"))


def total_line(report: PruneReport) -> str:
    """Return the totals in one line."""
    if isinstance(report, SweepReport) and not report.has_policies:
        return "No policies are stored: nothing was pruned (`keel retention set` makes one)."
    what = [count_of(report.removed, "checkpoint")] if report.removed or not report.deleted else []
    what += [count_of(report.deleted, "whole thread")] if report.deleted else []
    back = f", {format_size(report.bytes)}" if report.bytes else ""
    looked = f" Looked at {count_of(report.looked, 'thread')}." if isinstance(report, SweepReport) else ""
    return f"{'Would remove' if report.dry_run else 'Removed'} {' and '.join(what)}{back}.{looked}"


retention = typer.Typer(no_args_is_help=True, help="The policies by which `keel sweep` prunes and deletes threads.")


Last = Annotated[
    int | None, typer.Option("--keep-last", metavar="N", help="Keep the newest N on the way to the latest.")
]
Within = Annotated[
    str | None, typer.Option("--within", metavar="TIME", help="Keep those younger than this: 90s, 15m, 12h, 7d, 2w.")
]
Each = Annotated[Per | None, typer.Option("--per", help="Keep the last one of each run, or of each day (UTC).")]
Points = Annotated[bool, typer.Option("--branch-points", help="Keep those where ways part.")]
Threads = Annotated[list[str], typer.Argument(metavar="THREAD", help="The threads' ids.")]
OnlyLook = Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")]


def prune(
    threads: Threads,
    url: Url = DEFAULT_URL,
    last: Last = None,
    within: Within = None,
    per: Each = None,
    branch_points: Points = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the threads, with all that is theirs.")] = False,
    dry_run: OnlyLook = False,
    by: Actor = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove old checkpoints of threads; without options all but the latest.

    What has a label stays, and what waits for a person. Programs may write to the threads meanwhile.

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
    """Delete threads, with all that is theirs.

    Shows what would go, and asks. Checkpoints go with labels, tool calls, archives and requests for approval.

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
    """Show the policies of a store. Of those that fit a thread, the first one counts.

    Example: `keel retention show`
    """
    with open_to_read(url) as saver:
        found = saver.retention.policies()
    _show_policies(found, json=json)


@retention.command("set")
def set_(
    url: Url = DEFAULT_URL,
    threads: Annotated[str, typer.Option("--threads", metavar="PATTERN", help="For which threads: `chat-*`.")] = "*",
    last: Last = None,
    within: Within = None,
    per: Each = None,
    branch_points: Points = False,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="TIME", help="Only threads without activity for so long.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="Delete threads without activity for so long.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Say what stays of the threads that a pattern fits. Nothing is removed before the next `keel sweep`.

    It takes the place of an earlier policy for the same pattern. A new one comes before the others, but after those
    whose threads it fits, too: the one for `*` comes last.

    Example: `keel retention set --threads 'chat-*' --keep-last 20 --ttl 90d`
    """
    times = {"idle": idle, "ttl": ttl}
    rules = _rules(last, within, per, branch_points) | {
        name: duration(value) for name, value in times.items() if value is not None
    }
    new = Retention(threads=threads, **rules)
    if new.says_nothing:
        raise InvalidInput(
            "say what to keep: --keep-last, --within, --per or --branch-points, or how long a thread lives: --ttl "
            "(--keep-last 1 keeps the latest)"
        )
    if "," in threads:
        typer.echo(f"{threads!r} is one pattern with a comma in it: for several, set a policy for each", err=True)
    with open_to_change(url) as saver:
        found = [new if policy.threads == threads else policy for policy in saver.retention.policies()]
        if new not in found:  # before a policy whose threads it fits, it would be the one that counts for them
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
    """Forget policies, so that `keel sweep` removes nothing by them. All of them, or the one for a pattern.

    Example: `keel retention clear --threads 'chat-*'`
    """
    with open_to_change(url) as saver:
        held = saver.retention.policies()
        found = [policy for policy in held if threads not in (None, policy.threads)]
        if threads is not None and found == list(held):
            raise NotFound(f"no policy is stored for {threads!r}: `keel retention show` lists them")
        saver.retention.set_policy(*found)
    _show_policies(found, json=json)


def _show_policies(policies: Sequence[Retention], *, json: bool) -> None:
    page: RenderableType = Text("No policies: everything stays (`keel retention set` makes one)", "dim")
    if policies:
        page = Group(*(Text(plain(str(policy)), overflow="fold") for policy in policies))
    print_answer({"policies": [policy.to_dict() for policy in policies]}, page, as_json=json)


User = Annotated[str, typer.Option("--user", metavar="ID", help="Whose: as `user_id` names them in their threads.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]
Others = Annotated[Shared, typer.Option("--shared", help="What to do with threads that name others as well.")]
Nodes = Annotated[Cached, typer.Option("--node-cache", help="What to do with KeelCache, which names no thread.")]
Which = Annotated[What, typer.Option("--what", help="What to erase: threads, data (items of the store), or all.")]
Strays = Annotated[bool, typer.Option("--strays", help="Delete also what is stored of threads without a checkpoint.")]
Whole = Annotated[bool, typer.Option("--full", help="Do all that can be done, also what makes others wait.")]


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
    """Delete the threads of a person, their items, or both, and say what went and what did not.

    Shows what would go, and asks. Exit status 1 if anything of the person is left, or may be. Stop what runs for the
    person before. Threads that name others as well are reported.

    Example: `keel erase --user alice@example.com --dry-run`
    """
    options: dict[str, Any] = {"what": what, "shared": shared, "node_cache": node_cache}
    if not (yes or dry_run) and (json or not sys.stdin.isatty()):
        raise InvalidInput("nothing was erased: there is nobody to ask; look with --dry-run, then add --yes")
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
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Whom. Without it, lists holds.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why: a case, no name.")] = None,
    release: Annotated[bool, typer.Option("--release", help="End the holds, or the one with this reason.")] = False,
    by: Actor = None,
    url: Url = DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Put a person on hold, so that nothing of theirs is removed; release them, or list all holds.

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
    """Give back the space of what was deleted. `--full` locks the tables, or the file, for as long as it takes.

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
    space = [f"Space after that: {_space(receipt.reclaimed)}"] if receipt.reclaimed else []
    # The first lines of a look name them already.
    shared = [] if receipt.dry_run else [f"  shared: {thread_id!r}" for thread_id in receipt.shared]
    done, *more = str(replace(receipt, reclaimed=None)).splitlines()
    for line in [done, *shared, *more, *space]:
        console().print(plain(line), soft_wrap=True)
    for thread_id, why in receipt.failed.items():
        console(stderr=True).print(f"  {plain(thread_id)}: {plain(why)}", style="red", soft_wrap=True)
