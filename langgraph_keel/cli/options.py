"""Options that commands share, and functions that open stores for commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_keel import Keyring, open_saver
from langgraph_keel.backends.registry import url_of
from langgraph_keel.cli.commands import TENANT
from langgraph_keel.cli.output import console, shell_word, without_password
from langgraph_keel.display.text import count_of, plain
from langgraph_keel.engine.serde.serializer import find_unread
from langgraph_keel.engine.serde.unread import LOST
from langgraph_keel.errors import InvalidInput, NotFound, RefusedType
from langgraph_keel.opening import import_classes
from langgraph_keel.retention.policy import LONGEST

DEFAULT_URL = "sqlite:///agent.db"
_JSON = "langgraph_keel.json"

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

FORMS = "URLs are sqlite:///agent.db, files:DIRECTORY, postgresql://HOST/DATABASE or redis://HOST:PORT"


def confirm(question: str, otherwise: str) -> None:
    """Ask on standard error; exit with status 1 if the answer is no."""
    if not typer.confirm(question, err=True):
        typer.echo(otherwise, err=True)
        raise typer.Exit(1)


def _remember_json(ctx: typer.Context, wanted: bool) -> bool:
    ctx.meta[_JSON] = wanted
    return wanted


def wants_json(ctx: typer.Context) -> bool:
    """Return whether the command was given `--json`."""
    return bool(ctx.meta.get(_JSON))


Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask for confirmation. Required if there is no terminal to ask in."),
]
Actor = Annotated[
    str | None, typer.Option("--by", envvar="KEEL_REVIEWER", metavar="NAME", help="Your name, for the audit trail.")
]
Url = Annotated[str, typer.Option("--url", envvar="KEEL_URL", metavar="URL", callback=url_of, help="The store to use.")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", callback=_remember_json, is_eager=True, help="Print JSON, and nothing else, to standard output."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show full ids, full values and every channel.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import this module first, so that values of its classes can be read (also from the current "
        "directory). Repeatable.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Only threads with calls of this model, by the name in the request or in the reply.",
    ),
]
Ns = Annotated[str, typer.Option("--ns", metavar="NS", help="A subgraph's namespace; `*` for all namespaces.")]
Thread = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id.")]


def duration(text: str) -> float:
    """Return the seconds in an option such as `90s`, `15m`, `12h`, `7d` or `2w`."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise InvalidInput(f"{text!r} is not a duration: use a number with s, m, h, d or w, such as 12h or 7d")
    number, unit = found.groups()
    if not unit:
        raise InvalidInput(f"{text!r} is not a duration without a unit: use {number}d, {number}h or {number}s")
    seconds = float(number) * _SECONDS[unit]
    if not 0 < seconds < LONGEST:
        raise InvalidInput(f"{text!r}: a duration must be more than 0, and less than 300 years")
    return seconds


def read_time(param: typer.CallbackParam, text: str | None) -> Any:
    """Parse an age (`12h`, `7d`), or a date or time in ISO form, of an option."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=duration(text))
    except (InvalidInput, OverflowError):
        option = param.opts[0]
        raise InvalidInput(f"{option} {text!r}: give an age (90m, 12h, 7d), or a date (2026-11-23)") from None


# The callback converts them to times; the annotation is the type on the command line.
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        callback=read_time,
        help="Only threads active since then: an age (12h, 7d) or a date (2026-11-23).",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        callback=read_time,
        help="Only threads not active after this time: an age (12h, 7d) or a date (2026-11-23).",
    ),
]


@contextmanager
def open_store(url: str, *, migrate: bool = False, **options: Any) -> Iterator[Any]:
    """Open a store, or a tenant's view of it (`keel --tenant`).

    Keys and blobs default to those of the environment.
    """
    # `encryption=None` and `blobs=None` mean none. With `migrate`, plain text can be read, too.
    if "blobs" not in options and (blobs := os.environ.get("KEEL_BLOBS")):
        options["blobs"] = blobs
    if "encryption" not in options:
        if path := os.environ.get("KEEL_KEYS_FILE"):
            options["encryption"] = Keyring.from_file(path, migrate=migrate, hide_names=None)
        elif os.environ.get("KEEL_KEYS"):
            options["encryption"] = Keyring.from_env(migrate=migrate, hide_names=None)
    tenant = TENANT.get()
    with open_saver(url, **options) as saver:
        yield saver if tenant is None else saver.for_tenant(tenant)


def types_of(imports: list[str] | None) -> list[type] | None:
    """Return the classes of the modules that `--import` names."""
    found: list[Any] = [cls for module in imports or () for cls in import_classes(module, "--import")]
    return found or None


@contextmanager
def open_to_read(url: str, imports: list[str] | None = None, **options: Any) -> Iterator[Any]:
    """Open a store for reading; classes outside of `imports` become placeholders."""
    try:
        with _name_store(url), open_store(url, read_only=True, types=types_of(imports), **options) as saver:
            yield saver.raw
    except RefusedType as error:
        raise advise_import(error) from None


@contextmanager
def open_to_change(url: str, *, migrate: bool = False) -> Iterator[Any]:
    """Open an existing store for changes."""
    check_store(url)
    with _name_store(url), open_store(url, migrate=migrate) as saver:
        yield saver


def check_store(url: str, **options: Any) -> None:
    """Raise `NotFound` if the store does not exist."""
    try:
        with open_store(url, read_only=True, **options) as saver:
            saver.get_tuple({"configurable": {"thread_id": "is there a store?"}})
    except NotFound as error:
        if url == DEFAULT_URL and not os.environ.get("KEEL_URL"):
            raise NotFound(f"{error}: name the store with --url URL, or set KEEL_URL; {FORMS}") from None
        raise


@contextmanager
def _name_store(url: str) -> Iterator[None]:
    """Add the name of the store to a `NotFound` error."""
    try:
        yield
    except NotFound as error:
        check_store(url)  # raises the better error if the whole store is missing
        raise NotFound(f"{error} (in {without_password(url)})") from None


def url_to_name(url: str) -> str:
    """Return the URL that another command needs for this store, if any."""
    is_implied = url == url_of(os.environ.get("KEEL_URL") or DEFAULT_URL)
    return "" if is_implied else without_password(url)


def command_line(url: str, *words: str) -> str:
    """Return a shell command for the same store and tenant."""
    tenant, name = TENANT.get(), url_to_name(url)
    start = ["keel"] if tenant is None else ["keel", "--tenant", tenant]
    return " ".join(map(shell_word, [*start, *words, *(["--url", name] if name else [])]))


def advise_import(error: RefusedType) -> RefusedType:
    """Return the error, with advice to import the module if that can help."""
    advice = _advice([error.type_name], ())
    return type(error)(error.type_name, f"{error.reason}{advice}", error.path, error.where) if advice else error


def tell_unread(shown: Any, imports: list[str] | None) -> None:
    """Report to standard error the number of values not read, and how to read them."""
    found = list(find_unread(shown))
    if found:
        names = [each.type_name for each in found]
        reasons = "; ".join(dict.fromkeys(each.reason for each in found))
        tell_names(f"{count_of(len(found), 'value')} not read", names, imports, f": {reasons}")


def tell_names(what: str, names: Iterable[str], imports: list[str] | None, why: str = ".") -> None:
    """Report to standard error the classes of values that were not read."""
    known = dict.fromkeys(names)
    line = f"{what}, of {', '.join(known)}{why}{_advice(known, imports or ())}"
    console(stderr=True).print(Text(plain(line), "yellow"), soft_wrap=True)


def _advice(names: Iterable[str], imports: Collection[str]) -> str:
    """Return the `--import` options for the modules of these classes, if any."""
    modules: dict[str, None] = {}
    for name in names:
        module = re.split(r"\.(?=[A-Z])", name)[0]  # a class may be nested in another one
        if "<locals>" not in name:
            modules[name.rpartition(".")[0] if module == name else module] = None
    known = {*imports, *sys.stdlib_module_names, "__main__", LOST[0]}  # no module restores a lost value
    wanted = [f"--import {module}" for module in modules if module not in known]
    return f" If you trust it: {' '.join(wanted)}" if wanted else ""
