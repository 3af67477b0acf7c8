"""An archive as a table: in plain text, and in a notebook, with all text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from langgraph_keel.core.archived import Archived
from langgraph_keel.timeline.columns import size
from langgraph_keel.timeline.markup import FAINT, PAGE, SMALL, cell, chip, code, folded, head, pre, table, tag, text
from langgraph_keel.timeline.safe import one_line, plain
from langgraph_keel.timeline.spoken import cut

SHORT = 12
"""Digits of an id that are shown."""
LONG = 96
"""Characters of a summary that stand on its line."""
MOST = 12
"""Parts that are shown, the newest."""
_NAMES = ("part", "when", "messages", "taken out by", "what stands for them now")
_COLOURS = {"summary": ("47,159,79", ".22"), "window": ("47,159,179", ".20"), "rule": ("127,127,127", ".18")}


def taken(entry: Archived) -> str:
    """Return who took a part out, and where."""
    step = "" if entry.step is None else f"step {entry.step}"
    node = " › ".join(filter(None, (entry.checkpoint_ns.partition(":")[0], entry.node)))
    return ", ".join(filter(None, (entry.model, node, step)))


def when(entry: Archived) -> str:
    """Return when a part was archived."""
    return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"


def counted(entry: Archived) -> str:
    """Return how much a part holds."""
    return f"{entry.count:,} · {size(entry.bytes)}"


def total(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return how much an archive holds, on one line."""
    if not entries:
        return f"the archive of thread {one_line(thread_id)} is empty"
    parts = f"{len(entries):,} part{'s' * (len(entries) != 1)}"
    count, nbytes = sum(entry.count for entry in entries), sum(entry.bytes for entry in entries)
    return f"archive of thread {one_line(thread_id)}: {parts}, {count:,} messages, {size(nbytes)}"


def as_text(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as plain text, a line for each part."""
    rows = [(e.id[:SHORT], when(e), counted(e), _by(e), _stands_for(e, LONG)) for e in entries[-MOST:]]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, row, widths), row[4])).rstrip() for row in rows]
    return "\n".join([total(thread_id, entries), *(f"  {line}" for line in [*_older(entries), *lines])])


def _older(entries: Sequence[Archived]) -> Iterator[str]:
    if len(entries) > MOST:
        yield f"… {len(entries) - MOST:,} older: entries() returns all"


def _by(entry: Archived) -> str:
    pinned = " (pinned)" if entry.pinned else ""
    return one_line(" ".join(filter(None, (entry.by, taken(entry))))) + pinned


def _stands_for(entry: Archived, limit: int) -> str:
    return one_line(entry.summary or "", limit)


def as_html(thread_id: str, entries: Sequence[Archived]) -> str:
    """Return an archive as HTML; a long summary opens by a click."""
    title = tag("div", text(total(thread_id, entries)), style="" if entries else FAINT)
    if not entries:
        return title
    older = [tag("div", text(line), style=FAINT) for line in _older(entries)]
    return tag("div", title, *older, table(head(_NAMES), tag("tbody", *map(_row, entries[-MOST:]))), style=PAGE)


def _row(entry: Archived) -> str:
    return tag(
        "tr",
        cell(code(entry.id[:SHORT], "", entry.id), *_pinned(entry), style="white-space:nowrap"),
        cell(text(when(entry)), style=f"{SMALL};white-space:nowrap"),
        cell(text(counted(entry)), style="white-space:nowrap"),
        cell(
            chip(entry.by, *_COLOURS.get(entry.by, _COLOURS["rule"])),
            tag("span", text(one_line(taken(entry))), style=SMALL),
        ),
        cell(*_said(entry), style="width:40%;overflow-wrap:anywhere"),
    )


def _pinned(entry: Archived) -> Iterator[str]:
    if entry.pinned:
        yield " " + chip("pinned", "222,170,0", ".30")


def _said(entry: Archived) -> Iterator[str]:
    summary = entry.summary or ""
    line = one_line(summary, LONG)
    if line != plain(summary):
        yield folded(text(line), pre(cut(summary)))
    else:
        yield text(line)
