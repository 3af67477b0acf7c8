"""`keel tail`: print the events of threads as they happen."""

from __future__ import annotations

import json as json_of
import signal
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from langgraph_keel.cli.history import moment_json
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Imports, Url, open_to_read, read_time
from langgraph_keel.cli.output import console, local_time, print_json
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import one_line
from langgraph_keel.history.moment import Moment

if TYPE_CHECKING:
    from langgraph_keel.history.feed import Event, Feed

_STYLES = {"waiting": "bold yellow", "failed": "bold red", "done": "green"}
_EVERY = 1.0
"""Minimum interval between two cursors in the output, in seconds."""


def _read_after(param: typer.CallbackParam, text: str) -> Any:
    return text if text.startswith("[") else read_time(param, text)


Thread = Annotated[str | None, typer.Argument(metavar="THREAD", help="The thread's id; all threads by default.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")]
After = Annotated[
    str,
    typer.Option(
        "--after",
        metavar="CURSOR",
        callback=_read_after,
        help="Start after a cursor (from --json), or at an age (12h, 7d) or a date (2026-11-23).",
    ),
]


def tail(
    thread: Thread = None,
    url: Url = DEFAULT_URL,
    follow: Follow = False,
    after: After = "1h",
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """Print checkpoints and status changes of one thread, or of all threads.

    Events are in the order in which they are seen. With -f, it waits for new ones from any process. With -f and --json,
    it prints one JSON object per line, and from time to time a cursor. A program that continues after the last cursor
    misses nothing, but may see events twice.

    Example: `keel tail -f --after 10m`
    """
    with open_to_read(url, imports) as saver:
        feed: Feed = saver.history.follow(thread, after, timeout=None if follow else 0)
        if json and not follow:
            print_json({"events": [_event_json(each) for each in feed], "cursor": feed.cursor})
            return
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        shown, printed = console(), monotonic()
        try:
            for event in feed:
                if not json:
                    is_screen = shown.is_terminal
                    shown.print(_line(event), no_wrap=is_screen, soft_wrap=not is_screen, overflow="ellipsis")
                    continue
                print(json_of.dumps(_event_json(event)), flush=True)
                if monotonic() - printed > _EVERY:
                    printed = monotonic()
                    print(json_of.dumps({"cursor": feed.cursor}), flush=True)
        except KeyboardInterrupt:  # Ctrl-C or SIGTERM
            pass
        finally:
            if json:
                print(json_of.dumps({"cursor": feed.cursor}), flush=True)


def _event_json(event: Event) -> dict[str, Any]:
    if isinstance(event, Moment):
        return {"thread_id": event.thread_id, "kind": "checkpoint"} | moment_json(event) | {"summary": event.summary}
    names = ("status", "checkpoint_id", "next", "error", "owner")
    return {"thread_id": event.thread_id, "kind": "status"} | {name: as_json(getattr(event, name)) for name in names}


def _line(event: Event) -> Text:
    """Return an event as one line; a terminal cuts it at its width."""
    from langgraph_keel.history.render.rows import join_names, timeline_rows

    name = Text(one_line(event.thread_id, 24), "bold")
    if isinstance(event, Moment):
        (row,) = timeline_rows([event])
        said = " · ".join([row.nodes, *([row.model] if row.model else []), *(note.text for note in row.notes)])
        where = f"{row.where} " if row.where else ""
        time = local_time(event.time.isoformat()) if event.time else ""
        # Not the step number: other commands would read it as a position in the history.
        return Text.assemble((time, "dim"), "  ", name, (f"  {where}{one_line(event.id[-8:])}  ", "dim"), said)
    more = " ".join([*([f"before {join_names(event.next)}"] if event.next else []), one_line(event.error)])
    status = event.status, _STYLES.get(event.status, "cyan")
    return Text.assemble("          ", name, "  ", status, f" {more}".rstrip())
