"""One moment as a page, in a notebook, in a terminal and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langgraph_keel.display.html import FAINT, PAGE, chip, code, elements, folded, pre, tag, text
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import LONGEST, last_elements, value_text
from langgraph_keel.display.text import count_of, cut, format_money, format_size, is_internal, one_line, plain
from langgraph_keel.history.records import MomentRecord
from langgraph_keel.history.render.html import notes_html, question_html
from langgraph_keel.history.render.rows import fork_source, join_names, path_of, problem_notes, twin_of
from langgraph_keel.history.render.terminal import TONES

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_LINE = 1_000
_IDS = ("checkpoint", "namespace", "continues", "rewound to", "branched from")
"""Facts that are shown as code."""


def title_of(moment: MomentRecord) -> str:
    """Return a moment's position and nodes on one line."""
    ran = join_names(moment.nodes) or one_line(moment.source, 60)
    within = f"{path_of(moment.namespace)} › " if moment.namespace else ""
    return " · ".join(part for part in (f"#{moment.position}", within + ran) if part)


def facts_of(moment: MomentRecord) -> Iterator[tuple[str, str]]:
    """Yield the known facts of a moment, by name."""
    seconds = f"{moment.time.astimezone():%Y-%m-%d %H:%M:%S %z}" if moment.time else ""
    twin = twin_of(moment) or ("", "")
    facts = {
        "checkpoint": moment.id,
        "step": "" if moment.step is None else one_line(str(moment.step), 12),
        "thread": moment.thread_id,
        "namespace": moment.namespace,
        "continues": moment.parent or "",
        twin[0]: twin[1] or "the start",
        "forked from": fork_source(moment),
        "time": seconds,
        "source": moment.source,
        "next": join_names(moment.next),
        "models": join_names(moment.models),
        "tools": join_names([f"{tool.name} (replayed)" if tool.is_replayed else tool.name for tool in moment.tools]),
        "tokens": f"{moment.tokens[0]:,} read, {moment.tokens[1]:,} written" if any(moment.tokens) else "",
        "cost": "" if moment.cost is None else format_money(moment.cost),
        "stored": format_size(moment.bytes),
        "state": "" if moment.state_bytes is None else format_size(moment.state_bytes),
    }
    yield from ((name, one_line(value, _LINE)) for name, value in facts.items() if name and value)


def moment_html(moment: MomentRecord) -> str:
    """Return one moment as HTML: facts as a table, metadata folded."""
    labels = (chip(one_line(label, 60), "222,170,0", ".30", "mark") for label in moment.labels)
    title = tag("div", tag("b", text(title_of(moment))), *(f" {label}" for label in labels), style="margin-bottom:4px")
    style = "text-align:left;vertical-align:top;padding:1px 14px 1px 0;border:0;font-weight:400"
    wrap = f"{style};overflow-wrap:anywhere;white-space:normal"
    facts = ""
    for name, value in facts_of(moment):
        shown = code(value) if name in _IDS else text(value)
        facts += tag("tr", tag("th", text(name), style=f"{style};{FAINT}"), tag("td", shown, style=wrap))
    style = f"border-collapse:collapse;table-layout:auto;margin:0 0 4px 0;{PAGE}"
    problems = notes_html(note for note in problem_notes(moment) if note.tone not in ("waits", "asked"))
    parts = [title, tag("table", tag("tbody", facts), style=style), problems]
    for asked in moment.interrupts:
        name = f"{'waits' if moment.is_leaf else 'asked'} {code(one_line(asked.id, 60))}"
        parts.append(folded(name, question_html(asked), is_open=True))
    for change in moment.changes:
        name = f"{code(one_line(change.channel, 60))} {text(one_line(change.text, _LINE))}"
        parts.append(folded(name, elements(change.new), is_open=True) if change.new else tag("div", name))
    if moment.metadata:
        metadata = cut(json.dumps(as_json(moment.metadata), indent=2, ensure_ascii=False), LONGEST)
        parts.append(folded(tag("span", "metadata", style=FAINT), pre(metadata)))
    return tag("div", *parts, style=PAGE)


def state_html(values: Mapping[str, object]) -> str:
    """Return a state as HTML: the end of lists, and the beginning of other values."""
    parts = []
    for channel, value in values.items():
        if is_internal(channel):
            continue
        count = count_of(len(value), "element") if isinstance(value, list) else ""
        name = f"{code(one_line(channel, 60))} {tag('span', count, style=FAINT)}"
        parts.append(folded(name, elements(value) if isinstance(value, list) else pre(value_text(value)), is_open=True))
    return tag("div", *(parts or ["no values"]), style=PAGE)


@dataclass(frozen=True, slots=True)
class MomentPage:
    """One moment for a rich console."""

    moment: MomentRecord

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title, the facts, the problems and the changes."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        labels = [(f" [{one_line(label, 60)}]", "bold yellow") for label in self.moment.labels]
        yield Text.assemble((title_of(self.moment), "bold"), *labels, overflow="fold")
        facts = Table.grid(padding=(0, 1))
        facts.add_column(width=14, style="dim")
        facts.add_column(overflow="fold")
        for name, value in facts_of(self.moment):
            facts.add_row(Text(name), Text(value))
        yield facts
        for note in problem_notes(self.moment):
            yield Text(note.text, TONES.get(note.tone, ""), overflow="fold")
        for change in self.moment.changes:
            channel = (one_line(change.channel, 60), "bold cyan")
            yield Text.assemble(channel, (f"  {one_line(change.text, _LINE)}", "dim"), overflow="fold")
            for message in last_elements(change.new):
                who = Text(message.who, "bold", overflow="fold")
                yield Padding(who.append(" failed", "bold red") if message.has_failed else who, (0, 0, 0, 2))
                lines = [*message.text.split("\n"), *(f"→ {call}" for call in message.calls)]
                words = "\n".join(plain(line.expandtabs(4)) for line in lines if line)
                if words:
                    yield Padding(Text(words, overflow="fold"), (0, 0, 0, 4))
