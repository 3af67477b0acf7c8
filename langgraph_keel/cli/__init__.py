"""The `keel` command line: its commands, and how it reports errors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from langgraph_keel.cli import (
    admin,
    approvals,
    archive,
    audit,
    demo,
    history,
    provenance,
    retention,
    threads,
    tools,
)
from langgraph_keel.cli.options import wants_json
from langgraph_keel.cli.output import report_error
from langgraph_keel.errors import KeelError

__all__ = ["app", "main"]


_UsageError: Any = typer.BadParameter.__base__  # click's, or that of the copy that newer Typers bring


class KeelGroup(TyperGroup):
    """The top command: every `KeelError` becomes one line (or one JSON object) and exit status 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeelError as error:
            report_error(error, as_json=wants_json(ctx))
            raise typer.Exit(1) from None
        except _UsageError as error:
            if option := getattr(error, "option_name", None):
                error.possibilities = _similar(option, getattr(error, "possibilities", None) or ())
            raise


def _similar(option: str, possible: Iterable[str]) -> list[str]:
    """Return the options that one may be a misspelling of: not those that have only the dashes in common."""
    names = {each.lstrip("-"): each for each in possible}
    return [names[name] for name in get_close_matches(option.lstrip("-"), names)]


app = typer.Typer(
    name="keel",
    cls=KeelGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print("langgraph-keel", version("langgraph-keel"))
    except PackageNotFoundError:
        print("langgraph-keel (not installed)")
    raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave."),
]


@app.callback()
def keel(show_version: Version = False) -> None:
    """Look into the threads that LangGraph agents keep in Keel.

    New here? `keel demo` kills an agent at work and resumes it, in a few seconds.
    """


app.command()(demo.demo)
app.command()(threads.threads)
app.command()(history.history)
app.command()(threads.show)
app.command()(history.timeline)
for command in (history.diff, history.rewind, history.fork, history.label):
    app.command(context_settings=history.MOMENTS)(command)
app.command()(history.unlabel)
app.command()(provenance.provenance)
app.command()(archive.archive)
app.command()(provenance.export)
app.command()(admin.schema)
app.command()(tools.tools)
app.command()(tools.settle)
app.add_typer(tools.cache, name="cache")
app.command()(approvals.approvals)
app.command()(approvals.approval)
app.command()(approvals.approve)
app.command()(approvals.reject)
app.command()(approvals.edit)
app.command()(approvals.answer)
app.command()(approvals.sweep)
app.add_typer(audit.audit, name="audit")
app.command()(retention.prune)
app.add_typer(retention.retention, name="retention")
app.command()(retention.erase)
app.command()(retention.reclaim)
app.command()(admin.check)
app.command()(admin.repair)


def main() -> None:
    """Run `keel`; the console entry point."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot print a character gets its escape, not a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    app()
