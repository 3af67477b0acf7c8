"""The `keel` command line: look into a store, and a demonstration that needs no key and no network."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from langgraph_keel.cli import app as commands
from langgraph_keel.cli.admin import check, repair, schema
from langgraph_keel.cli.approvals import answer, approval, approvals, approve, audit, edit, reject, sweep
from langgraph_keel.cli.archive import archive
from langgraph_keel.cli.demo import demo
from langgraph_keel.cli.history import MOMENTS, diff, fork, label, rewind, timeline, unlabel
from langgraph_keel.cli.options import report_error, wants_json
from langgraph_keel.cli.provenance import export, provenance
from langgraph_keel.cli.retention import erase, prune, reclaim, retention
from langgraph_keel.cli.tools import cache, settle, tools
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


app.command()(demo)
app.command()(commands.threads)
app.command()(commands.history)
app.command()(commands.show)
app.command()(timeline)
app.command(context_settings=MOMENTS)(diff)
app.command(context_settings=MOMENTS)(rewind)
app.command(context_settings=MOMENTS)(fork)
app.command(context_settings=MOMENTS)(label)
app.command()(unlabel)
app.command()(provenance)
app.command()(archive)
app.command()(export)
app.command()(schema)
app.command()(tools)
app.command()(settle)
app.add_typer(cache, name="cache")
app.command()(approvals)
app.command()(approval)
app.command()(approve)
app.command()(reject)
app.command()(edit)
app.command()(answer)
app.command()(sweep)
app.add_typer(audit, name="audit")
app.command()(prune)
app.add_typer(retention, name="retention")
app.command()(erase)
app.command()(reclaim)
app.command()(check)
app.command()(repair)


def main() -> None:
    """Run `keel`; the console entry point."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot print a character gets its escape, not a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    app()
