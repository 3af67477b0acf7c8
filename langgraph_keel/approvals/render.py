"""A request for approval as HTML: action, facts, approvers and history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_keel.approvals.requests import ApprovalRequest
from langgraph_keel.display.html import FAINT, SMALL, cell, code, folded, head, pre, table, tag, text
from langgraph_keel.display.jsonable import as_json
from langgraph_keel.display.text import UNSAFE, cut, one_line

_NAME, _EVENT = 60, 300


def json_text(value: Any) -> str:
    """Return a value as indented JSON, with unsafe characters escaped."""
    dumped = json.dumps(as_json(value), indent=2, ensure_ascii=False)
    return UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", dumped)


def length_of(request: ApprovalRequest) -> int:
    """Return the number of characters of a question when displayed."""
    asked = (request.args, request.facts, request.before) if request.action else (request.value, request.facts)
    return len(request.description) + sum(len(json_text(part)) for part in asked)


def request_html(request: ApprovalRequest, longest: int) -> str:
    """Return a request as HTML; of each value, at most `longest` characters."""
    return tag("div", *_parts(request, longest), style="font-size:14px;line-height:1.5")


def _parts(request: ApprovalRequest, longest: int) -> Iterator[str]:
    if request.description:
        yield _words(cut(request.description, longest))
    if not request.action:
        yield _value(request.value, longest)
    elif isinstance(request.args, Mapping):
        rows = (_row(name, _value(value, longest)) for name, value in request.args.items())
        yield table(tag("tbody", *rows)) if request.args else tag("div", "without arguments", style=FAINT)
    elif request.args is not None:
        yield _value(request.args, longest)
    if request.facts or request.before:
        names = dict.fromkeys([*request.facts, *request.before])
        yield tag("div", "Facts that the decision depends on", style=f"margin-top:8px;{SMALL};{FAINT}")
        yield table(
            *([head(("", "at the earlier decision", "now"))] if request.before else []),
            tag("tbody", *(_fact(request, name, longest) for name in names)),
        )
    if (earlier := request.earlier).get("kind"):
        said = f"Decided before: {earlier['kind']} by {earlier.get('by')}"
        said += f", {earlier['reason']}" if earlier.get("reason") else ""
        yield tag("div", text(one_line(said, _EVENT)), style=SMALL)
    for warning in request.warnings:
        yield tag("div", tag("mark", text(one_line(warning, 1_000))), style="margin-top:8px")
    if who := ", ".join(one_line(each, _NAME) for each in request.approvers):
        yield tag("div", text(f"May decide: {who}"), style=f"margin-top:8px;{SMALL};{FAINT}")
    if request.history:
        events = (tag("li", text(one_line(_event(each), _EVENT))) for each in request.history)
        yield folded(tag("span", "History", style=f"{SMALL};{FAINT}"), tag("ol", *events, style=SMALL))


def _row(name: str, *values: str) -> str:
    style = "font-weight:400;white-space:nowrap;width:1%"
    return tag("tr", cell(code(one_line(name, _NAME)), name="th", style=style), *map(cell, values))


def _fact(request: ApprovalRequest, name: str, longest: int) -> str:
    now = _value(request.facts[name], longest) if name in request.facts else ""
    if not request.before:
        return _row(name, now)
    was = request.before.get(name)
    old = _value(was, longest) if name in request.before else ""
    has_changed = name not in request.before or was != request.facts.get(name)
    return _row(name, tag("s", old) if has_changed else old, tag("mark", now) if has_changed else now)


def _value(value: Any, longest: int) -> str:
    if isinstance(value, str):
        return _words(cut(value, longest)) if value else tag("span", "(empty)", style=FAINT)
    return pre(cut(json_text(value), longest))


def _words(words: str) -> str:
    return tag("div", text(words), style="white-space:pre-wrap;overflow-wrap:anywhere")


def _event(event: Mapping[str, Any]) -> str:
    known = {name: event.get(name) for name in ("at", "kind", "by")}
    more = {name: value for name, value in event.items() if name not in known and value not in (None, "")}
    by = f" by {known['by']}" if known["by"] else ""
    at = f"{str(known['at'])[:19].replace('T', ' ')} UTC"
    return f"{at} {known['kind']}{by}{f' {json.dumps(as_json(more), ensure_ascii=False)}' if more else ''}"
