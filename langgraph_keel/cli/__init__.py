"""The `keel` command line: its commands, and how it reports errors."""

from __future__ import annotations

import gc
import sys
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from langgraph_keel.cli.commands import PANELS, TENANT, hide_types, load_command
from langgraph_keel.errors import InvalidInput, KeelError

_DESTRUCTIVE = ("delete", "erase", "prune", "reclaim")
"""Commands that are never suggested for a misspelling."""
_UsageError: Any = typer.BadParameter.__base__  # click's class, or that of the copy in newer versions of Typer


class KeelGroup(TyperGroup):
    """A group of commands that reports a `KeelError` in one line or as JSON.

    The exit status is 2 for `InvalidInput`, and 1 for other errors.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeelError as error:
            from langgraph_keel.cli.options import wants_json
            from langgraph_keel.cli.output import report_error

            report_error(error, as_json=wants_json(ctx))
            raise typer.Exit(2 if isinstance(error, InvalidInput) else 1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None  # as shells do; older versions of Typer exit with 1
        except _UsageError as error:
            error.message = error.message.removeprefix("Value error, ")  # from Pydantic, in new Typers
            if option := getattr(error, "option_name", None):
                # Compared without dashes, which all options have in common.
                names = {each.lstrip("-"): each for each in getattr(error, "possibilities", None) or ()}
                error.possibilities = [names[name] for name in get_close_matches(option.lstrip("-"), names)]
            raise


class TopGroup(KeelGroup):
    """The top-level group, which imports only the command that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "suggest_commands": False})
        hide_types(self)
        for panel, commands in PANELS.items():
            for name, summary in commands.items():
                self.add_command(TyperCommand(name, help=summary, rich_help_panel=panel))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command; explain a misplaced one."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            if getattr(error, "option_name", None):
                error.message += " before the command; a command's own options come after it: keel threads --url URL"
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the called command, the command, and the other words."""
        try:
            name, _, rest = super().resolve_command(ctx, args)
        except _UsageError as error:
            close = get_close_matches(args[0], [name for name in self.commands if name not in _DESTRUCTIVE])
            error.message += f" Did you mean {', '.join(map(repr, close))}?" if close else ""
            raise
        return name, name and load_command(name), rest


app = typer.Typer(
    name="keel",
    cls=TopGroup,
    no_args_is_help=True,
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
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", envvar="KEEL_TENANT", metavar="NAME", help="Use only this tenant's data."),
]


@app.callback()
def keel(show_version: Version = False, tenant: Tenant = None) -> None:
    """Inspect and manage the threads that LangGraph agents store with Keel.

    New here? `keel demo` kills an agent mid-run and resumes it, in a few seconds. `keel threads` lists the threads in
    agent.db; use --url, or set KEEL_URL, for another store.
    """
    TENANT.set(tenant)


def main() -> None:
    """Run `keel`; the console entry point."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal cannot print are escaped, instead of raising an error.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    # Garbage collection while modules are imported, and at exit, took a quarter of the time of `keel threads`.
    gc.set_threshold(50_000)
    try:
        app()
    finally:
        gc.freeze()
