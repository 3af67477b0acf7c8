"""The options that commands share, and how they open a store with them.

What reaches the terminal: consoles, and text made safe and short enough to print.

The bar that a person sees while a command works.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import monotonic
from typing import Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from langgraph_keel import open_saver
from langgraph_keel.display.text import UNSAFE, plain
from langgraph_keel.errors import InvalidInput, KeelError, NotFound, RefusedType
from langgraph_keel.retention.policy import LONGEST

_CREDENTIALS = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]*@")


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that takes every string literally: no markup, no emoji codes, no highlighting."""
    return Console(markup=False, emoji=False, highlight=False, stderr=stderr, quiet=quiet)


def shell_word(text: str) -> str:
    """Return `text` as one word for a shell to read; what could steer a terminal is spelled out as bash and zsh do."""
    if plain(text) == text:
        return shlex.quote(text)
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", inner) + "'"


def block(text: str, style: str = "", limit: int | None = None) -> Text:
    """Return `text` as lines to print, cut after `limit` characters with a note of what is missing."""
    shown = Text(plain(text if limit is None else text[:limit], keep="\n\t"), style, overflow="fold")
    if limit is not None and len(text) > limit:
        shown.append(f" … {len(text) - limit:,} more characters (--full)", "dim")
    return shown


def local_time(timestamp: str, now: datetime | None = None) -> str:
    """Return an ISO timestamp in local time: the hour alone if it is of today."""
    try:
        moment = datetime.fromisoformat(timestamp).astimezone()
    except ValueError:
        return plain(timestamp)
    today = (now or datetime.now()).astimezone().date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M}"


def without_password(url: str) -> str:
    """Return `url` fit to be shown."""
    return plain(_CREDENTIALS.sub(r"\1:***@", url))


def print_json(value: Any) -> None:
    """Print `value` as JSON in ASCII, which every pipe and terminal can carry."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def report_error(error: KeelError, *, as_json: bool) -> None:
    """Print `error`: one red line on standard error, or one JSON object on standard output."""
    if as_json:
        print_json({"error": {"code": error.code, "message": str(error)}})
        return
    console(stderr=True).print(error_line(error), soft_wrap=True)


def error_line(error: KeelError) -> Text:
    """Return the line that names an error."""
    return Text.assemble(("error: ", "bold red"), plain(str(error)), (f" [{error.code}]", "dim"), style="red")


DEFAULT_URL = "sqlite:///keel.db"
_JSON = "langgraph_keel.json"


def _remember_json(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[_JSON] = wanted
    return wanted


def wants_json(ctx: typer.Context) -> bool:
    """Tell whether the command that ran was given `--json`."""
    return bool(ctx.meta.get(_JSON))


Url = Annotated[str, typer.Option("--url", envvar="KEEL_URL", metavar="URL", help="The store to look into.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", callback=_remember_json, help="Print JSON, and nothing else, to standard output."),
]
Full = Annotated[bool, typer.Option("--full", help="Shorten nothing: whole ids, whole values, every channel.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, so that values of its classes can be read (found from the current "
        "directory too). Repeatable.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Only threads that this model has written, as asked for or served."),
]
Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")]


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def duration(text: str) -> float:
    """Return the seconds that an option such as `90s`, `15m`, `12h`, `7d` or `2w` means.

    Raises:
        InvalidInput: It is none of these: a number alone might be meant as days, and a policy deletes.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise InvalidInput(f"{text!r} is no duration: use a number with s, m, h, d or w, such as 12h or 7d")
    number, unit = found.groups()
    if not unit:
        raise InvalidInput(f"{text!r} is no duration without a unit: say {number}d, {number}h or {number}s")
    seconds = float(number) * _SECONDS[unit]
    if not 0 < seconds < LONGEST:
        raise InvalidInput(f"{text!r}: a duration must be more than 0, and less than 300 years")
    return seconds


@contextmanager
def reading(url: str, imports: list[str] | None = None) -> Iterator[Any]:
    """Open the store at `url` for reading only, with the user's own classes imported before."""
    for module in imports or ():
        _import(module)
    try:
        with open_saver(url, read_only=True) as saver:
            yield saver
    except RefusedType as error:
        raise advised(error) from None


@contextmanager
def changing(url: str) -> Iterator[Any]:
    """Open a store that is there already, to change it. What is not found in it is said with the store's name."""
    with open_saver(url, read_only=True) as saver:
        saver.get_tuple({"configurable": {"thread_id": "is there a store?"}})
    try:
        with open_saver(url) as saver:
            yield saver
    except NotFound as error:
        raise NotFound(f"{error} (in {without_password(url)})") from None


def url_to_name(url: str) -> str:
    """Return the URL that another command must be given to find this store; empty if it does without one."""
    is_implied = url == (os.environ.get("KEEL_URL") or DEFAULT_URL)
    return "" if is_implied else without_password(url)


def _import(module: str) -> None:
    sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(f"--import {module}: {error}") from error
    finally:
        sys.path.remove("")


def advised(error: RefusedType) -> RefusedType:
    """Return the error with the option that helps, if the class was only not imported."""
    module = error.type_name.rpartition(".")[0]
    if module in sys.modules:
        return error
    advice = f"{error.reason} If you trust it: --import {module}"
    return type(error)(error.type_name, advice, error.path, error.where)


T = TypeVar("T")
Tell: TypeAlias = Callable[[int, int | None], None]
"""Told how much is done, and of how much if that is known."""

PATIENCE = 0.5
"""Seconds that work may take without a word: a bar that is gone at once only flickers."""


@contextmanager
def bar(what: str, *, quiet: bool = False) -> Iterator[Tell]:
    """Show how far some work is, on standard error, if that is a terminal and the work takes longer than `PATIENCE`."""
    errors = console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Progress(*columns, console=errors, transient=True)
    task, begun = shown.add_task(what, total=None), monotonic()

    def tell(done: int, total: int | None) -> None:
        shown.update(task, completed=done, total=total)
        if errors.is_terminal and not quiet and monotonic() - begun > PATIENCE:
            shown.start()

    try:
        yield tell
    finally:
        if shown.live.is_started:  # else it would print an empty line
            shown.stop()


def counted(items: Sequence[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """Yield the items; a bar shows how many of them are done."""
    with bar(what, quiet=quiet) as tell:
        for number, item in enumerate(items):
            tell(number, len(items))
            yield item
