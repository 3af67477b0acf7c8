"""Requests as a notebook shows them: a table, newest facts beside those of an earlier decision, all text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_keel.core.decisions import DECIDED, OPEN, ApprovalRequest
from langgraph_keel.timeline.markup import FAINT, PAGE, SMALL, cell, chip, code, head, table, tag, text
from langgraph_keel.timeline.safe import one_line

SHORT = 12
"""Digits of an id that are shown: 8 of its thread, and 4 of its own."""
_NAMES = ("request", "thread", "what the agent asks", "facts", "status")
_WAITS, _DONE, _OVER = ("230,140,20", ".28"), ("47,159,79", ".24"), ("127,127,127", ".18")


class Requests(list[ApprovalRequest]):
    """Requests for approval: a list, and a table in a notebook."""

    def _repr_html_(self) -> str:
        if not self:
            return tag("div", "nothing waits for anybody", style=FAINT)
        return tag("div", table(head(_NAMES), tag("tbody", *map(_row, self))), style=PAGE)


def _row(request: ApprovalRequest) -> str:
    id_ = code(request.id[:SHORT], "", request.id)
    return tag(
        "tr",
        cell(id_, *_small(f"{request.asked_at[:10]} {request.asked_at[11:19]} UTC"), style="white-space:nowrap"),
        cell(text(request.thread_id), *_small(request.owner), style="overflow-wrap:anywhere"),
        cell(*_asked(request), style="width:50%;overflow-wrap:anywhere"),
        cell(*_facts(request)),
        cell(*_status(request)),
    )


def _small(said: str) -> Iterator[str]:
    if said:
        yield tag("div", text(one_line(said)), style=f"{SMALL};{FAINT}")


def _asked(request: ApprovalRequest) -> Iterator[str]:
    if request.action:
        yield code(f"{request.action}({arguments(request.args)})")
    elif not request.description:
        yield text(one_line(str(request.value)))
    yield from _small(request.description)


def arguments(args: Any) -> str:
    """Return arguments on one line."""
    said = ", ".join(f"{name}={value!r}" for name, value in args.items()) if isinstance(args, Mapping) else repr(args)
    return one_line("" if args is None else said)


def _facts(request: ApprovalRequest) -> Iterator[str]:
    for name, fact in request.facts.items():
        was = request.before.get(name, fact)
        old = [tag("s", text(one_line(str(was))), style=FAINT), " → "] if was != fact else []
        yield tag("div", text(f"{name}: "), *old, tag("b", text(one_line(str(fact)))))


def _status(request: ApprovalRequest) -> Iterator[str]:
    colour = _WAITS if request.status in OPEN else _DONE if request.status in DECIDED else _OVER
    yield chip(request.status, *colour)
    if request.claimed_by:
        yield from _small(f"by {request.claimed_by}")
    if request.decision and (request.decision.by or request.decision.reason):
        yield from _small(" — ".join(filter(None, (f"by {request.decision.by}", request.decision.reason))))
