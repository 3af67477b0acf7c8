"""`keel archive`: what was taken out of a thread's messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from langchain_core.messages import BaseMessage
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.history import check_thread
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Thread, Url, open_to_read, tell_unread
from langgraph_keel.cli.output import Indented, Rows, block, console, local_time, print_json
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import message_text, speaker
from langgraph_keel.display.text import count_of, one_line, plain
from langgraph_keel.errors import InvalidInput
from langgraph_keel.summaries.archive.archive import SHORT, size_text, taken_by, total
from langgraph_keel.summaries.archive.parts import Archived
from langgraph_keel.summaries.archive.references import part_in

_LONG = 400
"""Characters of a message that are shown."""
_HIDDEN = ("digests", "pieces", "thread_id")


def archive(
    thread: Thread,
    search: Annotated[
        str | None, typer.Option("--search", "-s", metavar="TEXT", help="Show the messages that hold this text.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part", metavar="ID", help="Show the messages of the part whose id begins so (6 digits or more)."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List what was taken out of a thread's messages, oldest first; or show messages of it.

    Example: `keel archive my-thread --search invoice`
    """
    with open_to_read(url, imports) as saver:
        if search is not None and not search.strip():
            raise InvalidInput("--search needs a text to look for; without it, the parts are listed")
        kept = saver.archive(thread)
        entries: Sequence[Archived] = kept.entries()
        if not entries:
            check_thread(saver, thread)
        asked = search is not None or part is not None
        named = None if part is None else part_in(entries, part)
        found = list(_messages(kept, named, search)) if asked else []
    if json:
        print_json(_as_json(thread, entries, found, asked))
    elif asked:
        console().print(_messages_page(found, search, full=full))
    else:
        console().print(_parts_page(thread, entries, full=full))
    tell_unread([message for _, _, message in found], imports)


def _messages(kept: Any, entry: Archived | None, search: str | None) -> Iterator[tuple[Archived, int, BaseMessage]]:
    if search is None:
        yield from ((entry, index, message) for index, message in enumerate(kept.messages(entry)) if entry)
        return
    hits = kept.search(search)
    yield from ((hit.entry, hit.index, hit.message) for hit in hits if entry is None or hit.entry.id == entry.id)


def _parts_page(thread: str, entries: Sequence[Archived], *, full: bool) -> RenderableType:
    title = Text(plain(total(thread, entries)), "bold" if entries else "dim")
    columns = ("part", "time", "messages", "taken out by", "what stands for them now")
    rows = Rows(columns, [[*_cells(entry, full=full)] for entry in entries], heads=3, at=90)
    return Group(title, rows) if entries else title


def _cells(entry: Archived, *, full: bool) -> Iterator[Text]:
    yield Text(entry.id if full else entry.id[:SHORT], "bold")
    yield Text(local_time(entry.at.isoformat()))
    yield Text(size_text(entry))
    pinned = ["pinned"] if entry.pinned else []
    yield Text(" · ".join(filter(None, (entry.by, one_line(taken_by(entry)), *pinned))), overflow="fold")
    summary = entry.summary or ""
    yield block(summary) if full else Text(one_line(summary, 120), overflow="fold")


def _messages_page(
    found: Sequence[tuple[Archived, int, BaseMessage]], search: str | None, *, full: bool
) -> RenderableType:
    shown: list[RenderableType] = [] if search is None else [_count(found, search)]
    for entry, index, message in found:
        text = (
            local_time(entry.at.isoformat()),
            f"{entry.id[:SHORT]}, message {index}",
            plain(str(getattr(message, "id", None) or "")),
        )
        shown.append(Text.assemble((plain(speaker(message)), "bold"), ("  " + "  ".join(filter(None, text)), "dim")))
        shown.append(Indented(_excerpt(message_text(message), search, full=full)))
    return Group(*shown)


def _count(found: Sequence[tuple[Archived, int, BaseMessage]], search: str) -> Text:
    if not found:
        return Text("No archived message holds that text", "dim")
    parts = len({entry.id for entry, _, _ in found})
    hold = f"{len(found):,} message{'s hold' if len(found) > 1 else ' holds'}"
    return Text(f"{hold} {one_line(search, 60)!r}, in {count_of(parts, 'part')}", "bold")


def _excerpt(text: str, search: str | None, *, full: bool) -> Text:
    """Return what is shown of a message; of a long one, where the hit is."""
    hit = re.search(re.escape(search), text, re.IGNORECASE) if search else None
    start = 0 if full or hit is None or hit.end() <= _LONG else hit.start() - _LONG // 4
    shown = block(text[start:], limit=None if full else _LONG)
    if search:
        shown.highlight_regex(re.compile(re.escape(plain(search, keep="\n\t")), re.IGNORECASE), "reverse")
    return Text.assemble((f"… {start:,} characters before … " if start else "", "dim"), shown, overflow="fold")


def _as_json(
    thread: str, entries: Sequence[Archived], found: Sequence[tuple[Archived, int, BaseMessage]], asked: bool
) -> dict[str, Any]:
    if not asked:
        parts = [
            {name: value for name, value in as_json(entry).items() if name not in _HIDDEN}
            | {"at": entry.at.isoformat()}
            for entry in entries
        ]
        return {"thread_id": thread, "parts": parts}
    text = [{"part": entry.id, "index": index, "message": as_json(message)} for entry, index, message in found]
    return {"thread_id": thread, "messages": text}
