"""The commands `keel import` and `keel export --to-langgraph`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Imports, Url, check_store, open_store, types_of
from langgraph_keel.cli.output import bar, print_answer, print_failures
from langgraph_keel.display.text import count_of
from langgraph_keel.errors import NotFound

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="The store to import from: `sqlite:///old.db`, the path of such a file, or `postgresql://...`. It is "
        "only read.",
    ),
]
These = Annotated[
    list[str] | None, typer.Option("--thread", "-t", metavar="THREAD", help="Only this thread. Repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read and decode all threads, and write nothing.")]

_SAID = {
    "updated": "updated",
    "present": "there already",
    "deleted": "skipped: deleted here after an earlier import",
    "failed": "skipped because of errors",
}


def import_(
    source: Source,
    url: Url = DEFAULT_URL,
    threads: These = None,
    dry_run: DryRun = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Import threads from one of LangGraph's own savers, and compare them.

    The application may run at the same time. Run it again at any time: imported threads are skipped, or updated if they
    have continued in the source only. Exit status 1 if a thread could not be imported.

    Example: `keel import old.db --url postgresql://localhost/agents`
    """
    is_there = True
    if dry_run:
        try:
            check_store(url)
        except NotFound:
            is_there = False
    with (
        open_store(url if is_there else "memory:", types=types_of(imports), read_only=dry_run) as saver,
        bar("Importing threads", quiet=json, speed=True, keeps=not dry_run) as tell,
    ):
        report = saver.moving.import_from(source, threads, dry_run=dry_run, on_progress=tell)
    _print_report(report, "imported", "would be moved" if dry_run else "moved", json=json)


def export_to_langgraph(
    url: str, target: str, threads: list[str] | None, imports: list[str] | None, json: bool
) -> None:
    """Write threads into the store of one of LangGraph's savers."""
    check_store(url)
    with (
        open_store(url, read_only=True, types=types_of(imports)) as saver,
        bar("Exporting threads", quiet=json, speed=True, keeps=True) as tell,
    ):
        report = saver.moving.export_to(target, threads, on_progress=tell)
    _print_report(report, "exported", "written", json=json)


def _print_report(report: Any, name: str, done: str, *, json: bool) -> None:
    """Print the report of an import or export; exit with status 1 if one failed."""
    words, counts = {name: f"{done} ({count_of(report.checkpoints, 'checkpoint')})"} | _SAID, report.threads
    lines = [f"{count_of(counts[name], 'thread')} {said}." for name, said in words.items() if counts[name]]
    print_answer(report.to_dict(), Text("\n".join(lines) or "There are no threads."), as_json=json)
    print_failures({} if json else report.failed)
    if report.failed:
        raise typer.Exit(1)
