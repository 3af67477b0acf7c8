"""All that is known of one moment, as a page: in a notebook, in a terminal, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from langgraph_keel.display.html import FAINT, PAGE, chip, code, elements, folded, pre, tag, text
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.messages import cut, spoken
from langgraph_keel.display.text import one_line, plain
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.render.html import notes, question_of
from langgraph_keel.history.render.rows import listed, money, path, size, source_of, trouble, twin_of
from langgraph_keel.history.render.terminal import TONES, WIDTH, Parts, plain_lines, rich_line, wrapped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_LINE = 1_000
_CODE = ("checkpoint", "namespace", "continues", "rewound to", "branched from")
_NAMES = 15


def moment_html(moment: Moment) -> str:
    """Return one moment as HTML."""
    labels = (chip(one_line(label, 60), "222,170,0", ".30", "mark") for label in moment.labels)
    title = tag("div", tag("b", text(title_of(moment))), *(f" {label}" for label in labels), style="margin-bottom:4px")
    facts = "".join(_fact(name, value) for name, value in facts_of(moment))
    style = f"border-collapse:collapse;table-layout:auto;margin:0 0 4px 0;{PAGE}"
    problems = notes(note for note in trouble(moment) if note.tone not in ("waits", "asked"))
    parts = [title, tag("table", tag("tbody", facts), style=style), problems, *_opened(moment)]
    return tag("div", *parts, style=PAGE)


def moment_text(moment: Moment, width: int = WIDTH) -> str:
    """Return one moment as plain text."""
    return plain_lines(_lines(moment, width))


def moment_rich(moment: Moment) -> MomentPage:
    """Return one moment for a rich console, as wide as that is."""
    return MomentPage(moment)


@dataclass(frozen=True, slots=True)
class MomentPage:
    """One moment for a rich console."""

    moment: Moment

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        yield from map(rich_line, _lines(self.moment, options.max_width))


# -- what is known ---------------------------------------------------------------------------------------------


def title_of(moment: Moment) -> str:
    """Return a moment's place and what ran, on one line."""
    ran = listed(moment.nodes) or one_line(moment.source, 60)
    within = f"{path(moment.namespace)} › " if moment.namespace else ""
    step = f"step {one_line(str(moment.step), 12)}" if moment.step is not None else ""
    return " · ".join(part for part in (f"#{moment.position}", step, within + ran) if part)


def facts_of(moment: Moment) -> Iterator[tuple[str, str]]:
    """Yield what is known of a moment in few words, each with its name; what it has not is left out."""
    seconds = f"{moment.time.astimezone():%Y-%m-%d %H:%M:%S %z}" if moment.time else ""
    twin = twin_of(moment) or ("", "")
    found = {
        "checkpoint": moment.id,
        "thread": moment.thread_id,
        "namespace": moment.namespace,
        "continues": moment.parent or "",
        twin[0]: twin[1] or "the start",
        "forked from": source_of(moment),
        "time": seconds,
        "source": moment.source,
        "next": listed(moment.next),
        "models": listed(moment.models),
        "tools": listed([f"{tool.name} (replayed)" if tool.is_replayed else tool.name for tool in moment.tools]),
        "tokens": f"{moment.tokens[0]:,} read, {moment.tokens[1]:,} written" if any(moment.tokens) else "",
        "cost": "" if moment.cost is None else money(moment.cost),
        "stored": size(moment.bytes),
        "state": "" if moment.state_bytes is None else size(moment.state_bytes),
    }
    yield from ((name, one_line(value, _LINE)) for name, value in found.items() if name and value)


def _metadata(moment: Moment) -> str:
    return cut(json.dumps(as_json(moment.metadata), indent=2, ensure_ascii=False))


# -- as HTML ---------------------------------------------------------------------------------------------------


def _fact(name: str, value: str) -> str:
    style = "text-align:left;vertical-align:top;padding:1px 14px 1px 0;border:0;font-weight:400"
    wrap = "overflow-wrap:anywhere;white-space:normal"
    shown = (
        code(value) if name in ("checkpoint", "namespace", "continues", "rewound to", "branched from") else text(value)
    )
    return tag("tr", tag("th", text(name), style=f"{style};{FAINT}"), tag("td", shown, style=f"{style};{wrap}"))


def _opened(moment: Moment) -> Iterator[str]:
    """Yield what is longer: questions and changes open, metadata folded."""
    for asked in moment.interrupts:
        name = f"{'waits' if moment.is_leaf else 'asked'} {code(one_line(asked.id, 60))}"
        yield folded(name, question_of(asked), is_open=True)
    for change in moment.changes:
        name = f"{code(one_line(change.channel, 60))} {text(one_line(change.text, _LINE))}"
        yield folded(name, elements(change.new), is_open=True) if change.new else tag("div", name)
    if moment.metadata:
        yield folded(tag("span", "metadata", style=FAINT), pre(_metadata(moment)))


# -- as text ---------------------------------------------------------------------------------------------------


def _lines(moment: Moment, width: int) -> Iterator[Parts]:
    labels = [(f" [{one_line(label, 60)}]", "bold yellow") for label in moment.labels]
    yield from wrapped([(title_of(moment), "bold"), *labels], width)
    for name, value in facts_of(moment):
        yield from _indented([(value, "")], width, _NAMES, (name, "dim"))
    for note in trouble(moment):
        yield from wrapped([(note.text, TONES.get(note.tone, ""))], width)
    failed = [(" failed", "bold red")]
    for change in moment.changes:
        title = [(one_line(change.channel, 60), "bold cyan"), (f"  {one_line(change.text, _LINE)}", "dim")]
        yield from wrapped(title, width)
        for said in spoken(change.new):
            words = [*said.text.split("\n"), *(f"→ {call}" for call in said.calls)]
            yield from _indented([(said.who, "bold"), *failed[: said.has_failed]], width, 2)
            yield from (
                line for each in words if each for line in _indented([(plain(each.expandtabs(4)), "")], width, 4)
            )


def _indented(parts: Parts, width: int, by: int, name: tuple[str, str] = ("", "")) -> Iterator[Parts]:
    """Yield parts as lines that stand in from the margin, the first beside a name."""
    for number, line in enumerate(wrapped(parts, max(16, width - by))):
        shown = name if not number else ("", "")
        yield [shown, (" " * (by - len(shown[0])), ""), *line]
