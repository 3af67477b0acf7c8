"""The commands that remove history: `prune`, and `retention show`, `set` and `clear`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from langgraph_keel.cli.bars import bar
from langgraph_keel.cli.naming import config_of, no_thread
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Url, changing, duration, reading
from langgraph_keel.cli.pruned import policies_page, pruned_page
from langgraph_keel.cli.terminal import console, print_json
from langgraph_keel.core.policies import Retention, meant
from langgraph_keel.core.pruned import PruneReport
from langgraph_keel.errors import InvalidInput, NotFound

retention = typer.Typer(no_args_is_help=True, help="The policies by which `keel sweep` prunes and deletes threads.")


class Per(StrEnum):
    """Of what the last checkpoint stays."""

    run = "run"
    day = "day"


Last = Annotated[int | None, typer.Option("--keep-last", metavar="N", min=1, help="Keep the newest N checkpoints.")]
Within = Annotated[
    str | None, typer.Option("--within", metavar="TIME", help="Keep those younger than this: 90s, 15m, 12h, 7d, 2w.")
]
Each = Annotated[Per | None, typer.Option("--per", help="Keep the last one of each run, or of each day (UTC).")]
Points = Annotated[bool, typer.Option("--branch-points", help="Keep those where ways part.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def prune(
    threads: Annotated[list[str], typer.Argument(metavar="THREAD...", help="The threads' ids.")],
    url: Url = DEFAULT_URL,
    last: Last = None,
    within: Within = None,
    per: Each = None,
    branch_points: Points = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the threads, with all that is theirs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would go.")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove old checkpoints of threads; without options all but the latest.

    What has a label stays, and what waits for a person. Programs may write to the threads meanwhile.

    Example: `keel prune my-thread --keep-last 20 --dry-run`
    """
    rules = _rules(last, within, per, branch_points)
    if delete and rules:
        raise InvalidInput(f"--delete keeps nothing: leave out {', '.join(_options(rules))}")
    strategy = "delete" if delete else Retention(**rules or {"last": 1})
    is_asked = sys.stdin.isatty() and not (yes or json)
    if not (dry_run or yes or is_asked):
        raise InvalidInput("nothing was removed: there is no terminal to ask in; add --yes, or --dry-run to look")
    if dry_run or is_asked:
        with reading(url) as saver:
            report = _pruned(saver, threads, strategy, json=json, dry_run=True)
        _show(report, json=json)
        if dry_run or not any(each.is_changed for each in report.threads):
            return
        _confirm()
    with changing(url) as saver:
        report = _pruned(saver, threads, strategy, json=json, dry_run=False)
    _show(report, json=json)


def _rules(last: int | None, within: str | None, per: Per | None, branch_points: bool) -> dict[str, Any]:
    given = {
        "last": last,
        "within": None if within is None else duration(within),
        "per": None if per is None else per.value,
        "branch_points": branch_points or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _options(rules: Mapping[str, Any]) -> list[str]:
    return [f"--{'keep-last' if name == 'last' else name.replace('_', '-')}" for name in rules]


def _pruned(saver: Any, threads: Sequence[str], strategy: Any, *, json: bool, dry_run: bool) -> PruneReport:
    for thread in threads:
        if next(iter(saver.list(config_of(thread, None), limit=1)), None) is None:
            raise no_thread(saver, thread, "")  # a name that is misspelt, before anything is removed
    with bar("Looking at threads" if dry_run else "Pruning threads", quiet=json) as tell:
        report: PruneReport = saver.prune(threads, strategy=strategy, dry_run=dry_run, on_progress=tell)
    return report


def _show(report: PruneReport, *, json: bool) -> None:
    if json:
        print_json(report.to_dict())
    else:
        console().print(pruned_page(report))


def _confirm() -> None:
    if not typer.confirm("Remove it?", err=True):
        typer.echo("Nothing was removed.", err=True)
        raise typer.Exit(1)


@retention.command()
def show(url: Url = DEFAULT_URL, json: AsJson = False) -> None:
    """Show the policies of a store. Of those that fit a thread, the first one counts.

    Example: `keel retention show`
    """
    with reading(url) as saver:
        found = saver.retention()
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
    meant(new)
    if "," in threads:
        typer.echo(f"{threads!r} is one pattern with a comma in it: for several, set a policy for each", err=True)
    with changing(url) as saver:
        found = _with(saver.retention(), new)
        saver.set_retention(*found)
    _show_policies(found, json=json)


def _with(policies: Sequence[Retention], new: Retention) -> list[Retention]:
    found = [new if policy.threads == new.threads else policy for policy in policies]
    if new not in found:
        # Before it, it would be the one that counts for theirs.
        place = max((place for place, policy in enumerate(found, 1) if new.covers(policy)), default=0)
        found.insert(place, new)
    return sorted(found, key=lambda policy: policy.threads == "*")


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
    with changing(url) as saver:
        held = saver.retention()
        found = [policy for policy in held if threads not in (None, policy.threads)]
        if threads is not None and found == list(held):
            raise NotFound(f"no policy is stored for {threads!r}: `keel retention show` lists them")
        saver.set_retention(*found)
    _show_policies(found, json=json)


def _show_policies(policies: Sequence[Retention], *, json: bool) -> None:
    if json:
        print_json({"policies": [policy.to_dict() for policy in policies]})
    else:
        console().print(policies_page(policies))
