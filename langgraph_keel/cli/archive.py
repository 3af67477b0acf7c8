"""`keel archive`: the archived messages of a thread."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import typer
from langchain_core.messages import BaseMessage
from rich.console import Group, RenderableType
from rich.text import Text

from langgraph_keel.cli.history import check_thread
from langgraph_keel.cli.options import DEFAULT_URL, AsJson, Full, Imports, Thread, Url, open_to_read, tell_unread
from langgraph_keel.cli.output import Indented, Rows, block, local_time, print_answer
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import message_text, speaker
from langgraph_keel.display.text import count_of, one_line, plain
from langgraph_keel.errors import InvalidInput
from langgraph_keel.summaries.archive.archive import SHORT, size_text, taken_by, total
from langgraph_keel.summaries.archive.parts import Archived
from langgraph_keel.summaries.archive.references import part_in

_LONG = 400  # characters of a message
_HIDDEN = ("digests", "pieces", "thread_id")
Found: TypeAlias = tuple[Archived, int, BaseMessage]
"""A match: the part of the archive, the message's index in it, and the message."""


def archive(
    thread: Thread,
    search: Annotated[
        str | None, typer.Option("--search", "-s", metavar="TEXT", help="Show the messages that contain this text.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            "--part", metavar="ID", help="Show the messages of the part whose id starts with this (6 digits or more)."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    full: Full = False,
    imports: Imports = None,
    json: AsJson = False,
) -> None:
    """List or show messages that were removed from a thread's state and archived.

    Each removal of messages is one part of the archive. Without --search and --part, the parts are listed.

    Example: `keel archive my-thread --search invoice`
    """
    with open_to_read(url, imports) as saver:
        if search is not None and not search.strip():
            raise InvalidInput("--search needs a text; leave it out to list the parts")
        kept = saver.archive(thread)
        entries: Sequence[Archived] = kept.entries()
        if not entries:
            check_thread(saver, thread)
        asked = search is not None or part is not None
        named = None if part is None else part_in(entries, part)
        found: list[Found] = []
        if search is not None:
            hits = kept.search(search)
            found = [(hit.entry, hit.index, hit.message) for hit in hits if named is None or hit.entry.id == named.id]
        elif named is not None:
            found = [(named, index, message) for index, message in enumerate(kept.messages(named))]
    if asked:
        text = [{"part": entry.id, "index": index, "message": as_json(message)} for entry, index, message in found]
        page = _messages_page(found, search, full=full)
        print_answer({"thread_id": thread, "messages": text}, page, as_json=json)
        tell_unread([message for _, _, message in found], imports)
        return
    parts = []
    for entry in entries:
        fields = {name: value for name, value in as_json(entry).items() if name not in _HIDDEN}
        parts.append(fields | {"at": entry.at.isoformat()})
    title = Text(plain(total(thread, entries)), "bold" if entries else "dim")
    columns = ("part", "time", "messages", "removed by", "replaced by")
    rows = Rows(columns, [[*_cells(entry, full=full)] for entry in entries], heads=3, at=90)
    answer = {"thread_id": thread, "parts": parts}
    print_answer(answer, Group(title, rows) if entries else title, as_json=json)


def _cells(entry: Archived, *, full: bool) -> Iterator[Text]:
    yield Text(entry.id if full else entry.id[:SHORT], "bold")
    yield Text(local_time(entry.at.isoformat()))
    yield Text(size_text(entry))
    pinned = ["pinned"] if entry.pinned else []
    yield Text(" · ".join(filter(None, (entry.by, one_line(taken_by(entry)), *pinned))), overflow="fold")
    summary = entry.summary or ""
    yield block(summary) if full else Text(one_line(summary, 120), overflow="fold")


def _messages_page(found: Sequence[Found], search: str | None, *, full: bool) -> RenderableType:
    shown: list[RenderableType] = [] if search is None else [_count(found, search)]
    for entry, index, message in found:
        name = plain(str(getattr(message, "id", None) or ""))
        text = local_time(entry.at.isoformat()), f"{entry.id[:SHORT]}, message {index}", name
        shown.append(Text.assemble((plain(speaker(message)), "bold"), ("  " + "  ".join(filter(None, text)), "dim")))
        shown.append(Indented(_excerpt(message_text(message), search, full=full)))
    return Group(*shown)


def _count(found: Sequence[Found], search: str) -> Text:
    if not found:
        return Text("No archived message contains that text", "dim")
    parts = len({entry.id for entry, _, _ in found})
    hold = f"{len(found):,} message{'s contain' if len(found) > 1 else ' contains'}"
    return Text(f"{hold} {one_line(search, 60)!r}, in {count_of(parts, 'part')}", "bold")


def _excerpt(text: str, search: str | None, *, full: bool) -> Text:
    hit = re.search(re.escape(search), text, re.IGNORECASE) if search else None
    start = 0 if full or hit is None or hit.end() <= _LONG else hit.start() - _LONG // 4
    shown = block(text[start:], limit=None if full else _LONG)
    if search:
        shown.highlight_regex(re.compile(re.escape(plain(search, keep="\n\t")), re.IGNORECASE), "reverse")
    return Text.assemble((f"… {start:,} characters before … " if start else "", "dim"), shown, overflow="fold")
