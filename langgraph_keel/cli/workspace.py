"""`keel workspace`: the files that were saved with checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.history import At, config_of, moment_of, open_timeline
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Thread, Url, Yes, check_store, confirm, open_store
from langgraph_keel.cli.output import print_answer
from langgraph_keel.display.text import format_size, plain
from langgraph_keel.workspace.records import Workspace

workspace = typer.Typer(help="List, compare and restore files that were saved with checkpoints.", no_args_is_help=True)

_BESIDE = "The directory of the saved files (`Workspace(repository=...)`), if it is not next to the store."
Dir = Annotated[
    Path, typer.Option("--dir", envvar="KEEL_WORKSPACE", metavar="DIR", help="The directory whose files are saved.")
]
Repo = Annotated[Path | None, typer.Option("--repository", metavar="DIR", help=_BESIDE)]
Into = Annotated[Path | None, typer.Option("--into", metavar="DIR", help="Restore into this directory instead.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        metavar="PATTERN",
        help="A pattern of paths that are not saved. Repeat it for each pattern of your `Workspace(ignore=...)`.",
    ),
]
After = Annotated[str, typer.Argument(metavar="MOMENT", help="The checkpoint to compare with, named in the same way.")]


def _open(url: str, directory: Path, repository: Path | None, ignore: list[str] | None = None) -> Any:
    check_store(url)
    return open_store(url, workspace=Workspace(directory, ignore=ignore or (), repository=repository))


def _config(saver: Any, thread: str, at: str) -> Any:
    return config_of(thread, "", moment_of(open_timeline(saver, thread), at).id)


@workspace.command()
def ls(
    thread: Thread, at: At = "-1", url: Url = DEFAULT_URL, where: Dir = Path(), repo: Repo = None, json: AsJson = False
) -> None:
    """List the files that were saved with a checkpoint.

    Example: `keel workspace ls my-thread`
    """
    with _open(url, where, repo) as saver:
        files = saver.workspace.files(_config(saver, thread, at))
    rows = [{"path": plain(path), "size": size} for path, size in files.items()]
    lines = (f"{format_size(size):>8} {plain(path)}" for path, size in files.items())
    print_answer({"files": rows}, Text("\n".join(lines) or "No files."), as_json=json)


@workspace.command()
def diff(
    thread: Thread,
    before: At,
    after: After = "-1",
    url: Url = DEFAULT_URL,
    directory: Dir = Path(),
    repository: Repo = None,
    json: AsJson = False,
) -> None:
    """Show the differences between the files of two checkpoints.

    Example: `keel workspace diff my-thread 3 5`
    """
    with _open(url, directory, repository) as saver:
        found = saver.workspace.diff(_config(saver, thread, before), _config(saver, thread, after))
    print_answer(found.to_dict(), Text(str(found)), as_json=json)


@workspace.command()
def restore(
    thread: Thread,
    at: At = "-1",
    url: Url = DEFAULT_URL,
    directory: Dir = Path(),
    repository: Repo = None,
    ignore: Ignore = None,
    into: Into = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Restore the files of a checkpoint. Shows the changes first, and asks.

    Example: `keel workspace restore my-thread 5 --dir work`
    """
    with _open(url, directory, repository, ignore) as saver:
        config = _config(saver, thread, at)
        if not yes:
            typer.echo(str(saver.workspace.preview(config, into)), err=True)
            confirm("Restore these files?", "Nothing was restored.")
        done = saver.workspace.restore(config, into)
    print_answer(done.to_dict(), Text(str(done)), as_json=json)
