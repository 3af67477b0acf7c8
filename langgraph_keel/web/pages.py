"""The pages as HTML. `display.html` escapes all text; links are created here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import starmap
from typing import Any, get_args
from urllib.parse import urlencode

from langgraph_keel.approvals.interrupts import describe_question
from langgraph_keel.approvals.render import json_text, length_of, request_html
from langgraph_keel.approvals.requests import OPEN, ApprovalRequest, describe_end
from langgraph_keel.display.html import chip, code, folded, pre, tag, text
from langgraph_keel.display.text import cut, format_money, format_seconds, format_size, one_line
from langgraph_keel.engine.config import Address
from langgraph_keel.engine.entries import Status
from langgraph_keel.engine.records import ThreadInfo
from langgraph_keel.errors import DECISIONS, short_key
from langgraph_keel.history.moment import Moment, Moments
from langgraph_keel.history.records import DiffRecord, MomentRecord
from langgraph_keel.history.render.details import moment_html, state_html
from langgraph_keel.history.render.diff import diff_html
from langgraph_keel.history.render.html import timeline_html
from langgraph_keel.history.status import ThreadStatus
from langgraph_keel.history.threads import Usage
from langgraph_keel.provenance.records import ModelCall
from langgraph_keel.retention.info import StoreInfo
from langgraph_keel.runs.records import ProcessRecord
from langgraph_keel.tools.ledger import KeptCall, is_doubt

SHORT, LONG = 4_000, 100_000
"""Maximum characters of a request that is decided in a list, and on its page."""
STEPS = 50
"""Moments per page."""
CALLS = 100
"""Maximum number of calls on a page, latest first."""
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60))
_TONES = {"waits": "warn", "failed": "bad", "decided": "warn", "cut off": "bad", "runs": "good"}
_TONES |= {"waiting": "warn", "claimed": "warn", "incomplete": "warn", "unknown": "bad", "rejected": "bad"}
_TONES |= {"approved": "good", "edited": "good", "answered": "good", "done": "good", "expired": "bad"}
_MEANINGS = {
    "retry": "it did not happen, and may run again",
    "done": "it happened",
    "skip": "do not run it again",
}
_HEAD = (
    '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    '<meta name="color-scheme" content="light dark">'
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%232563eb' "
    "d='M1 9h14l-3 5H4zM7 1h2v7H7z'/%3E%3C/svg%3E"
)
Sign = Callable[..., str]
"""Returns the hidden fields of a form for a subject."""


def el(name: str, /, *inner: str, **attributes: str) -> str:
    """Return an element; `class_` and `for_` set `class` and `for`."""
    return tag(name, *inner, **{key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()})


def link(page: str, **query: object) -> str:
    """Return the address of a page.

    Ids are in the query: in a path, browsers resolve `..`.
    """
    given = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{page}?{urlencode(given, errors='replace')}" if given else page


def anchor(page: str, said: str, **query: object) -> str:
    """Return a link; `said` is text."""
    return el("a", text(said), href=link(page, **query))


def badge(state: str) -> str:
    """Return a coloured label for a state."""
    return el("span", text(one_line(state, 40)), class_=f"badge {_TONES.get(state, '')}")


def notice(*inner: str, tone: str = "") -> str:
    """Return a highlighted paragraph."""
    return el("p", *inner, class_=f"notice {tone}")


def when(at: str) -> str:
    """Return a time as an age, with the date on hover."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):  # damaged, or without a zone
        return text(one_line(at, 40))
    span = next((f"{abs(seconds) // size:,.0f} {unit}" for unit, size in _UNITS if abs(seconds) >= size), "")
    said = f"{span} ago" if seconds >= 60 else f"in {span}" if seconds <= -60 else "now"
    return el("time", said, datetime=at, title=f"{at[:19].replace('T', ' ')} UTC")


# -- the frame -----------------------------------------------------------------------------------------------------


def layout(title: str, *main: str, store: str, person: str = "", live: int = 0, here: str = "") -> str:
    """Return a page; `live` is its polling interval in seconds, or 0."""
    pages = (("./", "Inbox"), ("threads", "Threads"), ("usage", "Usage"))
    links = (el("a", name, href=page, aria_current="page" if here == name else "") for page, name in pages)
    who = el("span", text(one_line(person, 60)), class_="who", title="The reviewer") if person else ""
    head = (
        f'{_HEAD}{tag("title", text(f"{title} · Keel" if title else "Keel"))}<link rel="stylesheet" href="style.css">'
    )
    head += f'<link rel="icon" href="{_ICON}">' + '<script src="live.js" defer></script>' * bool(live)
    body = (
        el("a", "Skip to the page", href="#main", class_="skip"),
        el("header", el("strong", "Keel"), el("nav", *links, aria_label="Pages"), who),
        el("p", id="news", role="status", class_="news"),
        el("main", *main, id="main"),
        el("footer", text(one_line(store))),
    )
    return f'<!doctype html><html lang="en"><head>{head}</head>{el("body", *body, data_live=str(live or ""))}</html>'


def bare(inner: str) -> str:
    """Return a page for a visitor without a session."""
    head = f'{_HEAD}<title>Keel</title><link rel="icon" href="data:,">'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head>{el("body", inner, style="font-family:sans-serif")}</html>'
    )


def error_page(status: int, why: str) -> str:
    """Return an error message in place of a page."""
    titles = {
        401: "Not signed in",
        403: "Not allowed",
        404: "Not found",
        409: "Not possible any more",
        503: "The store is not available",
    }
    more = {503: "As far as is known, this request changed nothing. Load the page again later."}
    title = titles.get(status, "That did not work")
    return el("h1", title) + notice(text(cut(why, 2_000)), tone="bad") + el("p", more.get(status, ""))


# -- forms ---------------------------------------------------------------------------------------------------------


def hidden(**values: str) -> str:
    """Return hidden fields."""
    return "".join(f'<input type="hidden" name="{name}" value="{text(value)}">' for name, value in values.items())


def _button(said: str, tone: str = "", **attributes: str) -> str:
    return el("button", said, type="submit", class_=tone, **attributes)


def _field(name: str, label: str, of: str, *, more: str = "") -> str:
    at = f"{name}-{of}"
    box = f'<input id="{text(at)}" name="{name}" maxlength="2000" autocomplete="off"{more}>'
    return el("label", label, for_=at) + box


def _area(name: str, label: str, of: str, value: str = "") -> str:
    at, rows = f"{name}-{of}", min(max(value.count("\n") + 1, 3), 20)
    start = f'<textarea id="{text(at)}" name="{name}" rows="{rows}" spellcheck="false" required>'
    return f"{el('label', label, for_=at)}{start}\n{text(value)}</textarea>"


def decide_forms(request: ApprovalRequest, fields: str, typed: str | None = None) -> str:
    """Return the forms that decide a request; `typed` are refused arguments."""
    of, allowed, action = request.id[:12], request.allowed, link("decide")

    def form(kind: str, *inner: str) -> str:
        return el("form", fields, hidden(kind=kind), *inner, method="post", action=action, class_="stack")

    reason = _field("reason", "Reason (optional)", f"a{of}")
    kinds = [(kind, tone) for kind, tone in (("approve", "good"), ("reject", "bad")) if kind in allowed]
    names = {"approve": "Approve", "reject": "Reject"} if request.action else {"approve": "Yes", "reject": "No"}
    row = el("div", *(_button(names[kind], tone, name="kind", value=kind) for kind, tone in kinds), class_="row")
    parts = [el("form", fields, reason, row, method="post", action=action, class_="stack")] if kinds else []
    if "edit" in allowed and request.action:
        given = json_text(request.args) if typed is None else typed
        area = _area("args", "All arguments, as JSON", of, given)
        inner = form("preview", area, _field("reason", "Reason (optional)", f"e{of}"), _button("Show the difference"))
        parts.append(folded("Edit before it is done", inner, is_open=typed is not None))
    if "answer" in allowed:
        box = '<label class="inline"><input type="checkbox" name="as_json" value="1"> The answer is JSON</label>'
        inner = form("answer", _area("value", "Answer", of), box, _button("Send the answer", "good"))
        parts = [*parts, folded("Answer in words", inner)] if request.action else [inner, *parts]
    return el("div", *parts, class_="decide")


def settle_form(call: KeptCall, fields: str) -> str:
    """Return the form that settles a call in doubt."""
    choices = (
        f'<label class="inline"><input type="radio" name="decision" value="{each}" required> {_MEANINGS[each]}</label>'
        for each in DECISIONS
    )
    of = call.key[:12]
    result = _field("result", "If it happened: the result of the tool", of)
    legend = el("legend", "What happened?")
    inner = fields + el("fieldset", legend, *choices) + result + _button("Settle it")
    return el("form", inner, method="post", action="settle", class_="stack")


# -- the inbox -----------------------------------------------------------------------------------------------------


def inbox_page(
    requests: Sequence[ApprovalRequest],
    more: bool,
    doubts: Sequence[KeptCall],
    decided: Sequence[ApprovalRequest],
    processes: Sequence[ProcessRecord],
    sign: Sign | None,
) -> Iterator[str]:
    """Yield the inbox: waiting requests, doubts, and unused decisions."""
    yield el("h1", "Inbox")
    if not requests and not doubts:
        yield el("p", "No request waits for a decision.", class_="empty")
    yield from (request_card(each, SHORT, sign) for each in requests)
    if more:
        yield el("p", anchor("./", "Newer requests", after=requests[-1].id))
    if doubts:
        yield el("h2", "Tool calls with an unknown outcome")
        yield el(
            "p", "Their process ended while the tool ran. Find out what happened, and settle them.", class_="faint"
        )
        yield from (doubt_card(each, sign) for each in doubts)
    yield el("h2", "Decisions and workers")
    items = [
        el("li", anchor("request", what_of(each), id=each.id), f" {badge(each.status)} ", when(each.decision.at))
        for each in decided
        if each.decision
    ]
    if items:
        yield el("p", "Decided, but not used by a run yet:") + el("ul", *items)
    yield workers_text(processes)


def workers_text(processes: Sequence[ProcessRecord]) -> str:
    """Return a line with the processes that are known to run graphs on this store."""
    if not processes:
        said = "No running process is known for this store. A decision is kept until a worker or your program uses it: "
        return el("p", f"{said}this page runs no graph.", class_="faint")
    holders = (process.holder.split("/") for process in processes)
    names = sorted({f"{host} (process {rest[1]})" for host, *rest in holders if len(rest) > 1})
    shown = ", ".join(map(text, (one_line(name, 60) for name in names[:5])))
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    verb = "runs graphs" if len(names) == 1 else "run graphs"
    return el("p", f"{shown}{more} {verb} on this store.", class_="faint")


def what_of(request: ApprovalRequest) -> str:
    """Return the subject of a request, in a few words."""
    return one_line(request.action or describe_question(request.value), 80) or "A question"


def request_card(
    request: ApprovalRequest, longest: int, sign: Sign | None, typed: str | None = None, level: str = "h2"
) -> str:
    """Return a request, with its forms if it is shown in full and can be decided."""
    facts = [badge(request.status), "asked ", when(request.asked_at)]
    facts += [" in ", anchor("thread", one_line(request.thread_id, 60), id=request.thread_id)]
    facts += [text(f" of {one_line(request.owner, 60)}")] if request.owner else []
    facts += [f" · question {request.part + 1} of {request.parts}"] if request.parts > 1 else []
    if request.expires_at and request.status in OPEN:
        then = "then is rejected" if request.on_expiry == "reject" else "then keeps waiting"
        facts += [" · expires ", when(request.expires_at), f", {then}"]
    facts += [text(f" · held by {one_line(request.claimed_by, 60)}")] if request.claimed_by else []
    parts = [
        el(level, anchor("request", what_of(request), id=request.id)),
        el("p", *facts, class_="faint"),
        request_html(request, longest),
    ]
    if request.status not in OPEN:
        parts.append(notice(text(f"{describe_end(request)}."), tone=_TONES.get(request.status, "")))
        if request.decision and request.decision.reason:
            parts.append(el("p", text(f"Reason: {cut(request.decision.reason, SHORT)}")))
    elif length_of(request) > longest:
        whole = anchor("request", "Open it to decide", id=request.id)
        rest = f"Too long to show in full here. Read and decide it in a terminal: {code(f'keel approval {request.id}')}"
        parts.append(notice(whole if longest < LONG else rest, tone="warn"))
    elif sign is not None:
        parts.append(decide_forms(request, sign("decide", id=request.id), typed))
    return el("article", *parts, class_="card")


def doubt_card(call: KeptCall, sign: Sign | None) -> str:
    """Return a call in doubt, with the form to settle it."""
    args = [pre(cut(json_text(call.args), SHORT))] if call.args is not None else []
    facts = [badge(call.state), "began ", when(call.started_at), " in "]
    facts.append(anchor("thread", one_line(call.thread_id, 60), id=call.thread_id))
    if call.idempotency_key:
        facts += [", with the idempotency key ", code(call.idempotency_key)]
    title = el("h3", text(one_line(call.tool, 80)), " ", code(short_key(call.key)))
    parts = [title, el("p", *facts, class_="faint"), *args]
    if call.original:
        where = anchor("thread", one_line(call.original, 60), id=call.original)
        parts.append(notice("It is shared with thread ", where, ": settle it there.", tone="warn"))
    elif sign is not None:
        parts.append(settle_form(call, sign("settle", thread=call.thread_id, key=call.key)))
    return el("article", *parts, class_="card")


def request_page(request: ApprovalRequest, status: ThreadStatus, sign: Sign | None, typed: str | None) -> Iterator[str]:
    """Yield a request, and the state of its thread if it is decided."""
    yield request_card(request, LONG, sign, typed, "h1")
    if request.status not in OPEN:
        yield el("h2", "The thread now") + status_text(status)


def preview_page(request: ApprovalRequest, args: Any, reason: str, fields: str) -> Iterator[str]:
    """Yield the changes of an edit, and the form that sends it."""
    from langgraph_keel.history.edits import edits

    found = list(edits(request.args, args, lambda value: json_text(value).encode(), ("arguments",)))
    changed = diff_html(DiffRecord(Address(""), Address(""), found), has_title=False)
    yield el("h1", "Edit ", anchor("request", what_of(request), id=request.id))
    yield el("div", changed, class_="card")
    given = hidden(kind="edit", args=json_text(args), reason=reason)
    cancel = anchor("request", "Back to the request", id=request.id)
    row = el("div", _button("Approve with these arguments", "good"), cancel, class_="row")
    yield el("form", fields, given, row, method="post", action="decide", class_="stack")


# -- threads -------------------------------------------------------------------------------------------------------


def threads_page(
    rows: Sequence[tuple[ThreadInfo, str, Sequence[str]]], query: Mapping[str, str], following: str
) -> Iterator[str]:
    """Yield the list of threads with its filters.

    A row is a thread, its first message and its labels.
    """
    yield el("h1", "Threads")
    yield _filters(query)
    if not rows:
        yield el("p", "No thread matches.", class_="empty")
        return
    names = ("Thread", "Status", "Owner", "Steps", "Cost", "Last activity")
    yield _table("list", names, map(_thread_row, rows))
    if following:
        rest = {name: value for name, value in query.items() if name != "after"}
        yield el("p", anchor("threads", "Older threads", **rest, after=following))


def _thread_row(row: tuple[ThreadInfo, str, Sequence[str]]) -> Sequence[str]:
    info, opening, labels = row
    name = anchor("thread", one_line(info.thread_id, 80), id=info.thread_id)
    marks = (" " + chip(one_line(label, 40), "222,170,0", ".30", "mark") for label in labels[:5])
    first = el("div", text(opening), class_="faint opening") if opening else ""
    status = badge(info.status) + text(one_line(info.error or ", ".join(info.next), 60))
    cost = "" if info.cost is None else format_money(info.cost)
    owner, steps = text(one_line(info.owner, 60)), f"{info.checkpoints:,}"
    return "".join((name, *marks, first)), status, owner, steps, cost, when(info.updated_at)


def _table(kind: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = el("thead", el("tr", *(el("th", name, scope="col") for name in names)))
    body = (el("tr", el("th", first, scope="row"), *(el("td", cell) for cell in rest)) for first, *rest in rows)
    return el("table", head, el("tbody", *body), class_=kind)


def _filters(query: Mapping[str, str]) -> str:
    def select(name: str, label: str, options: Iterable[tuple[str, str]]) -> str:
        chosen = query.get(name, "")
        inner = (f'<option value="{value}"{" selected" * (value == chosen)}>{said}</option>' for value, said in options)
        return el("label", label, el("select", *inner, name=name))

    def word(name: str, label: str) -> str:
        return el("label", label, f'<input name="{name}" value="{text(query.get(name, ""))}" maxlength="200">')

    statuses = [("", "any"), *((each, each) for each in get_args(Status))]
    spans = [("", "any time"), ("1", "last day"), ("7", "last 7 days"), ("30", "last 30 days")]
    inner = [word("q", "Id"), select("status", "Status", statuses), word("owner", "Owner"), word("label", "Label")]
    inner += [word("error", "Error"), select("days", "Active", spans), _button("Search")]
    return el("form", *inner, method="get", action="threads", class_="filters", role="search")


def status_text(status: ThreadStatus) -> str:
    """Return the status of a thread and the next step, as in `saver.status`."""
    said = str(status)
    waiting = (each for each in status.requests if each.status in OPEN)
    links = (anchor("request", f"Decide: {what_of(each)}", id=each.id) for each in waiting)
    said = el("p", text(cut(said[:1].upper() + said[1:], 2_000)))
    return el("div", badge(status.state), said, *links, class_="card")


def thread_page(
    status: ThreadStatus, moments: Moments, skip: int, opening: str, workers: str, sign: Sign | None
) -> Iterator[str]:
    """Yield a thread: its status, its doubts and its timeline."""
    name = status.thread_id
    yield el("h1", "Thread ", text(one_line(name, 200)))
    yield el("p", text(opening), class_="faint") if opening else ""
    yield status_text(status)
    yield workers if status.state == "decided" else ""
    yield from (doubt_card(each, sign) for each in status.doubts)
    links = [anchor("calls", "Tool and model calls", thread=name)]
    links += [anchor("handoff", "Hand-off", thread=name)] if status.checkpoint_id else []
    links += [anchor("moment", "Latest state", thread=name, id=status.checkpoint_id)] if status.checkpoint_id else []
    yield el("p", " · ".join(links))
    yield el("h2", "Timeline")

    def address(moment: MomentRecord) -> str:
        return link("moment", thread=moment.thread_id, ns=moment.namespace, id=moment.id)

    yield el("div", timeline_html(moments, moments.older, address), class_="card timeline")
    pages = [anchor("thread", "Newer", id=name, skip=max(skip - STEPS, 0) or None)] if skip else []
    pages += [anchor("thread", "Older", id=name, skip=skip + STEPS)] if moments and moments[0].parent else []
    yield el("p", " · ".join(pages))
    yield _compare_form(name)


def _compare_form(thread: str, before: str = "", after: str = "") -> str:
    fields = (("from", "From", "number, id or label", before), ("to", "To", "the latest", after))
    inputs = (
        el("label", label, f'<input name="{name}" value="{text(value)}" placeholder="{hint}" maxlength="200">')
        for name, label, hint, value in fields
    )
    inner = (hidden(thread=thread), *inputs, _button("Compare"))
    return el("h2", "Compare two moments") + el("form", *inner, method="get", action="diff", class_="filters")


def moment_page(moment: Moment, values: Mapping[str, Any] | None, sign: Sign | None) -> Iterator[str]:
    """Yield a moment: its events, its state, and the forms to label and fork it."""
    thread = moment.thread_id
    yield el("h1", "Moment of ", anchor("thread", one_line(thread, 200), id=thread))
    yield el("div", moment_html(moment), class_="card")
    ways = []
    if moment.parent:
        ways.append(anchor("moment", "Previous moment", thread=thread, ns=moment.namespace, id=moment.parent))
        ways.append(anchor("diff", "Changes of this step", thread=thread, to=moment.id, **{"from": moment.parent}))
    ways.append(anchor("diff", "Changes since", thread=thread, **{"from": moment.id}))
    yield el("p", " · ".join(ways))
    state = notice("The state cannot be shown here: use `keel show`.") if values is None else state_html(values)
    yield el("h2", "State") + el("div", state, class_="card")
    if sign is None or moment.namespace:
        return
    at = {"thread": thread, "id": moment.id}
    name = _field("name", "Name", "label", more=" required")
    label = el("form", sign("label", **at), name, _button("Label this"), method="post", action="label", class_="stack")
    target = _field("target", "Id of the new thread", "fork", more=" required")
    hint = el("p", "The new thread has this history. Your program must run it.", class_="faint")
    fork = el("form", sign("fork", **at), target, hint, _button("Fork from here"), method="post", action="fork",
              class_="stack")  # fmt: skip
    yield el("div", el("section", el("h2", "Label"), label), el("section", el("h2", "Fork"), fork), class_="columns")


def diff_page(thread: str, diff: Any, before: str, after: str) -> Iterator[str]:
    """Yield the difference between two moments."""
    yield el("h1", "Difference in ", anchor("thread", one_line(thread, 200), id=thread))
    ends = (
        anchor("moment", said, thread=each.thread_id, ns=each.checkpoint_ns, id=each.checkpoint_id)
        for said, each in (("the older moment", diff.before), ("the newer moment", diff.after))
    )
    yield el("p", " · ".join(ends))
    yield el("div", diff_html(diff), class_="card diff")
    yield _compare_form(thread, before, after)


def calls_page(thread: str, tools: Sequence[KeptCall], models: Sequence[ModelCall]) -> Iterator[str]:
    """Yield the tool and model calls of a thread, latest first."""
    yield el("h1", "Calls of ", anchor("thread", one_line(thread, 200), id=thread))
    yield from _calls(
        "Tools", ("Tool", "State", "Began", "Hits"), [*map(_tool_row, tools[: -CALLS - 1 : -1])], len(tools)
    )
    names = ("Model", "Node", "Tokens", "Cost", "Took")
    yield from _calls("Models", names, [*map(_model_row, models[: -CALLS - 1 : -1])], len(models))


def _calls(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], count: int) -> Iterator[str]:
    yield el("h2", title)
    yield el("div", _table("chart", names, rows), class_="card scroll") if rows else el("p", "None.", class_="empty")
    yield el("p", f"The last {CALLS} of {count:,}.", class_="faint") if count > CALLS else ""


def _tool_row(call: KeptCall) -> Sequence[str]:
    args = "" if call.args is None else el("div", text(one_line(json_text(call.args), 300)), class_="faint")
    error = el("div", text(one_line(call.error, 200)), class_="bad-text") if call.error and not call.decided else ""
    state = "in doubt" if is_doubt(call) else {"claimed": "running"}.get(call.state, call.state)
    settled = text(f" settled: {call.decided}") if call.decided else ""
    return text(one_line(call.tool, 80)) + args + error, badge(state) + settled, when(call.started_at), f"{call.hits:,}"


def _model_row(call: ModelCall) -> Sequence[str]:
    counts = (f"{call.usage.get(name, 0)}" for name in ("input_tokens", "output_tokens")) if call.usage else ()
    tokens = " + ".join(counts)
    error = el("div", text(one_line(call.error, 200)), class_="bad-text") if call.error else ""
    cost = "" if call.cost is None else format_money(call.cost)
    took = "" if call.seconds is None else format_seconds(call.seconds)
    name = one_line(call.served_model or call.model or "", 80)
    return text(name) + error, text(one_line(call.node, 60)), text(one_line(tokens, 40)), cost, took


# -- usage ---------------------------------------------------------------------------------------------------------


def usage_page(
    taken: Mapping[str, Mapping[str, Usage]], statuses: Mapping[str, int], info: StoreInfo, days: int, is_cut: bool
) -> Iterator[str]:
    """Yield the usage of threads, and the properties of the store."""
    yield el("h1", "Usage and health")
    spans = (anchor("usage", str(each), days=each) if each != days else el("b", str(each)) for each in (1, 7, 30, 365))
    yield el("p", "Threads that were active in the last ", " · ".join(spans), " days")
    if is_cut:
        yield notice("Only the most recently active threads are counted: `keel usage` counts all.", tone="warn")
    facts = {
        "waits for a decision": f"{info.waiting:,}",
        **{f"threads {status}": f"{count:,}" for status, count in statuses.items()},
        "threads in the store": f"{info.threads:,}",
        "checkpoints": f"{info.checkpoints:,}",
        "size": "" if info.size is None else format_size(info.size),
    }
    yield el("dl", *(el("div", el("dt", text(name)), el("dd", text(said))) for name, said in facts.items() if said))
    for what, found in taken.items():
        yield el("h2", f"By {what}") + _bars(what, found)
    yield el("p", text(f"A completed write is {info.durability}."), class_="faint")


def _bars(what: str, found: Mapping[str, Usage]) -> str:
    """Return a chart of the known cost, or of tokens, or of threads."""
    measures: Sequence[Callable[[Usage], float]]
    measures = [lambda each: each.cost or 0.0, lambda each: sum(each.tokens), lambda each: each.threads]
    measure = next((each for each in measures if any(map(each, found.values()))), measures[0])
    most = max(map(measure, found.values()), default=0) or 1

    def row(name: str, each: Usage) -> Sequence[str]:
        bar = el("div", class_="bar", style=f"width:{100 * measure(each) / most:.1f}%")
        cost = "" if each.cost is None else format_money(each.cost)
        return text(one_line(name, 60) or "(none)"), bar, f"{sum(each.tokens):,}", cost, f"{each.threads:,}"

    names = (what.capitalize(), "", "Tokens", "Cost", "Threads")
    return el("div", _table("chart", names, starmap(row, found.items())), class_="card scroll")
