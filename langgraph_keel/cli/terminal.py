"""What reaches the terminal: consoles, and text made safe and short enough to print."""

from __future__ import annotations

import json
import re
import shlex
import sys
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from langgraph_keel.errors import KeelError
from langgraph_keel.timeline.safe import UNSAFE, plain

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
