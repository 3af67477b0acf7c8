"""The page as an ASGI application: pages and forms as functions of a `Visit`."""

from __future__ import annotations

import json
import logging
import re
from asyncio import to_thread
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

from langchain_core.runnables import RunnableConfig
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from langgraph_keel.approvals.plans import request_now
from langgraph_keel.approvals.requests import (
    CURRENT,
    DECIDED,
    OPEN,
    ApprovalRequest,
    Approvals,
    Decision,
    apply_decision,
    request_at,
)
from langgraph_keel.display.html import text
from langgraph_keel.display.text import plain
from langgraph_keel.engine.entries import Status
from langgraph_keel.engine.plan import Plan
from langgraph_keel.engine.records import ThreadInfo
from langgraph_keel.errors import CorruptStore, InvalidInput, KeelError, NotFound
from langgraph_keel.history.reading import read_openings
from langgraph_keel.history.threads import ThreadFilter, ThreadPages, Usage, day_of, filter_of
from langgraph_keel.runs.marks import read_processes
from langgraph_keel.saver import KeelSaver
from langgraph_keel.tools.ledger import CallPages, KeptCall, is_doubt
from langgraph_keel.web import pages
from langgraph_keel.web.security import (
    HEADERS,
    LOOPBACK,
    Guard,
    Identify,
    Refusal,
    parse_fields,
    read_form,
    secret_of,
    status_of,
)

_log = logging.getLogger(__name__)

ROWS, LOOKED = 50, 50
"""Rows per page, and threads of each kind that are searched for calls in doubt."""
MOST_THREADS = 2_000
"""Maximum number of threads in the usage, most recently active first."""
EVERY = 5
"""Polling interval of a live page, in seconds."""
_LIVE = ("runs", "decided")
_STATIC = {"style.css": "text/css", "live.js": "text/javascript"}
_NUMBER = re.compile("-?[0-9]{1,9}")
Shown: TypeAlias = "Iterable[str] | Response"


@dataclass(slots=True)
class Visit:
    """A permitted request, and the properties of the page that answers it."""

    saver: KeelSaver
    guard: Guard
    by: str = ""
    session: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    live: int = 0  # polling interval of the page in seconds; 0 for none
    status: int = 200
    title: str = ""
    here: str = ""  # the page's entry in the navigation

    @property
    def raw(self) -> KeelSaver:
        """The read-only view of the saver, which needs no classes of the application."""
        return self.saver.raw

    @property
    def sign(self) -> pages.Sign | None:
        """Signs forms; `None` on a read-only page."""
        return None if self.guard.read_only else self._sign

    def _sign(self, what: str, **subject: str) -> str:
        return pages.hidden(token=self.guard.sign("form", self.session, what, *subject.values()), **subject)

    def check(self, what: str, *names: str) -> list[str]:
        """Check the token of a form; return the fields that identify its subject."""
        subject = [self.form.get(name, "") for name in names]
        self.guard.check_form(self.form, self.session, what, *subject)
        return subject

    def asked(self, name: str) -> str:
        """Return a field that the page requires in its address."""
        if not self.query.get(name):
            raise Refusal(400, f"The address has no {name}.")
        return self.query[name]

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number from the address."""
        given = self.query.get(name) or str(default)
        if not (given.isascii() and given.isdigit() and len(given) < 10 and int(given) <= most):
            raise Refusal(400, f"{name} must be a number up to {most:,}.")
        return int(given)


# -- pages ---------------------------------------------------------------------------------------------------------


async def show_inbox(visit: Visit) -> Shown:
    """Show the requests and doubts that wait for a person."""
    after = visit.query.get("after") or None
    found, decided = await visit.raw.engine.arun(_read_requests(visit.raw, after))
    doubts = await visit.raw.engine.arun(_find_doubts(visit.raw)) if after is None else ()
    processes = await visit.raw.engine.arun(read_processes(visit.raw.engine.session))
    more, count = len(found) > ROWS, len(found) + len(doubts)
    visit.live, visit.here = EVERY, "Inbox"
    visit.title = f"({count}{'+' * more}) Inbox" if count else "Inbox"
    return pages.inbox_page(found[:ROWS], more, doubts, decided, processes, visit.sign)


def _read_requests(saver: KeelSaver, after: str | None) -> Plan[tuple[list[ApprovalRequest], list[ApprovalRequest]]]:
    """Return a page of waiting requests and one more, and unused decisions."""
    # All requests are read once: two calls of `pending` took a third of the time for a page of 1,000.
    session, waiting = saver.engine.session, list[ApprovalRequest]()
    kept = yield from Approvals(session).all(CURRENT)
    found = sorted((request_at(each.request, session.now) for each in kept), key=lambda each: (each.asked_at, each.id))
    start = next((place + 1 for place, each in enumerate(found) if each.id == after), 0)
    for request in found[start:]:
        if request.status in OPEN and len(waiting) <= ROWS:
            now = yield from request_now(session, request)  # superseded if its run died
            waiting += [now] if now.status in OPEN else []
    return waiting, [each for each in found if each.status in DECIDED][:ROWS] if after is None else []


def _find_doubts(saver: KeelSaver) -> Plan[Sequence[KeptCall]]:
    """Return calls in doubt: shared ones, and those of recent threads."""
    session = saver.engine.session
    names: dict[str | None, None] = {None: None}
    for wanted in (filter_of(error="ToolOutcomeUnknown"), filter_of(status="incomplete")):
        # One page of the index: threads that wait for a person are also incomplete there, and may be many.
        page = yield from ThreadPages(session, LOOKED, wanted).next()
        names |= dict.fromkeys(info.thread_id for info in page or ())
    found: list[KeptCall] = []
    for name in names:
        calls = CallPages(session, name)
        while (some := (yield from calls.next())) is not None:
            found += [call for call in some if is_doubt(call)]
    return sorted(found, key=lambda call: call.started_at)


def _list_threads(
    saver: KeelSaver, wanted: ThreadFilter, after: str | None, limit: int, *, opens: bool = False
) -> Plan[list[tuple[ThreadInfo, str]]]:
    """Return threads, most recently active first, optionally with first messages."""
    listed, rows = ThreadPages(saver.engine.session, limit, wanted, after), list[tuple[ThreadInfo, str]]()
    while (page := (yield from listed.next())) is not None:
        texts = (yield from read_openings(saver.engine.session, listed.heads.values())) if opens else {}
        rows += [(info, texts.get(info.thread_id, "")) for info in page]
    return rows


async def show_threads(visit: Visit) -> Shown:
    """Show the list of threads."""
    query, visit.here, visit.title = visit.query, "Threads", "Threads"
    status, pattern = query.get("status") or None, query.get("q", "").strip()
    if status is not None and status not in get_args(Status):
        raise Refusal(400, "There is no such status.")
    days = visit.number("days", 0, 36_500)
    wanted = filter_of(
        match=(pattern if set("*?") & set(pattern) else f"*{escape(pattern)}*") if pattern else None,
        owner=query.get("owner") or None,
        status=cast(Status | None, status),
        label=query.get("label") or None,
        error=query.get("error") or None,
        since=datetime.now(UTC) - timedelta(days=days) if days else None,
    )
    labels, after = visit.raw.labels, query.get("after") or None
    found = await visit.raw.engine.arun(_list_threads(visit.raw, wanted, after, ROWS + 1, opens=True))
    rows = [(*each, [label.name for label in await labels.alist(each[0].thread_id)]) for each in found[:ROWS]]
    following = rows[-1][0].cursor if len(found) > ROWS else ""
    return pages.threads_page(rows, query, following)


async def show_thread(visit: Visit) -> Shown:
    """Show a thread."""
    name, skip, raw = visit.asked("id"), visit.number("skip", 0, 1_000_000), visit.raw
    status = await raw.astatus(name)
    if status.state == "new" and not status.doubts:
        raise NotFound(f"there is no thread {name!r}")
    timeline = await raw.atimeline(name, skip + pages.STEPS)
    latest = await timeline.alatest(skip + pages.STEPS)
    moments = latest[: len(latest) - skip] if skip else latest
    processes = await raw.engine.arun(read_processes(raw.engine.session))
    visit.title, visit.here = plain(name[:60]), "Threads"
    # A live page would discard the text typed into the form of a doubt.
    visit.live = EVERY if status.state in _LIVE and not (status.doubts or skip) else 0
    heads = [] if status.state == "new" else [timeline.pages.entries[0]]
    openings = await raw.engine.arun(read_openings(raw.engine.session, heads))
    workers = pages.workers_text(processes)
    return pages.thread_page(status, moments, skip, openings.get(name, ""), workers, visit.sign)


def _config(thread: str, checkpoint: str = "", ns: str = "") -> RunnableConfig:
    named = {"checkpoint_id": checkpoint} if checkpoint else {}
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, **named}}


async def show_moment(visit: Visit) -> Shown:
    """Show a moment of a thread, and its state."""
    thread, at = visit.asked("thread"), visit.asked("id")
    timeline = visit.raw.timeline(thread)
    moment = await timeline.amoment(_config(thread, at, visit.query.get("ns", "")))
    try:
        values = await timeline.avalues(moment)
    except CorruptStore as error:
        _log.warning("the state of a moment is not shown: %s", error)
        values = None
    visit.title, visit.here = "Moment", "Threads"
    return pages.moment_page(moment, values, visit.sign)


async def show_diff(visit: Visit) -> Shown:
    """Show the difference between two moments of a thread."""
    thread, before, after = visit.asked("thread"), visit.asked("from"), visit.query.get("to", "")
    timeline = visit.raw.timeline(thread)
    diff = await timeline.adiff(_reference(before), _reference(after) if after else None)
    visit.title, visit.here = "Difference", "Threads"
    return pages.diff_page(thread, diff, before, after)


def _reference(given: str) -> int | str:
    given = given.strip().removeprefix("#")
    return int(given) if _NUMBER.fullmatch(given) else given


async def show_calls(visit: Visit) -> Shown:
    """Show the calls of tools and models of a thread."""
    thread = visit.asked("thread")
    tools = [call async for call in visit.raw.tools.acalls(thread)]
    models = await visit.raw.provenance.aread(_config(thread) | {"configurable": {"thread_id": thread}})
    visit.title, visit.here = "Calls", "Threads"
    return pages.calls_page(thread, sorted(tools, key=lambda call: call.started_at), models)


async def show_handoff(visit: Visit) -> Shown:
    """Show the hand-off of a thread."""
    thread = visit.asked("thread")
    visit.title, visit.here = "Hand-off", "Threads"
    title = pages.el("h1", "Hand-off of ", pages.anchor("thread", plain(thread[:200]), id=thread))
    shown = await visit.raw.history.ahandoff(thread)
    return [title, pages.el("div", shown._repr_html_(), class_="card")]


async def show_usage(visit: Visit) -> Shown:
    """Show the usage of threads, and the properties of the store."""
    days = visit.number("days", 30, 36_500)
    since = datetime.now(UTC) - timedelta(days=days)
    taken: dict[str, defaultdict[str, Usage]] = {name: defaultdict(Usage) for name in ("day", "owner", "model")}
    statuses, count = defaultdict[str, int](int), 0
    async for info in visit.raw.athreads(MOST_THREADS + 1, since=since):
        count += 1
        if count > MOST_THREADS:
            break
        for what, name in (("day", day_of(info)), ("owner", info.owner), ("model", ", ".join(info.models))):
            taken[what][name] = taken[what][name].add(info)
        statuses[info.status] += 1
    info_of = await visit.raw.ainfo()
    by_size: dict[str, Mapping[str, Usage]] = {
        what: dict(sorted(found.items(), key=lambda each: (-sum(each[1].tokens), -each[1].threads, each[0]))[:20])
        for what, found in taken.items()
    }
    by_size["day"] = dict(sorted(taken["day"].items())[-60:])
    visit.title, visit.here = "Usage and health", "Usage"
    return pages.usage_page(by_size, statuses, info_of, days, count > MOST_THREADS)


# -- requests ------------------------------------------------------------------------------------------------------


async def show_request(visit: Visit) -> Shown:
    """Show a request."""
    return await _show(visit, await visit.raw.approvals.aget(visit.asked("id")))


async def _show(visit: Visit, found: ApprovalRequest, typed: str | None = None, why: str = "") -> Shown:
    status = await visit.raw.astatus(found.thread_id)
    visit.title, visit.here = pages.what_of(found), "Inbox"
    visit.live = EVERY if found.status in DECIDED or status.state in _LIVE else 0
    shown = pages.request_page(found, status, visit.sign, typed)
    return [pages.notice(text(why), tone="bad"), *shown] if why else shown


async def decide(visit: Visit) -> Shown:
    """Decide a request, or preview an edit."""
    (name,), form = visit.check("decide", "id"), visit.form
    kind, reason = form.get("kind", ""), form.get("reason", "")
    if kind not in ("approve", "reject", "edit", "answer", "preview"):
        raise Refusal(400, "There is no such decision.")
    approvals, extra = visit.saver.approvals, dict[str, Any]()
    found = await approvals.aget(name)
    typed = form.get("args", "") if kind in ("preview", "edit") else None
    try:
        if typed is not None:
            extra["args"] = _loads(typed)
        elif kind == "answer":
            value = form.get("value", "").replace("\r\n", "\n")
            extra["value"] = _loads(value) if form.get("as_json") else value
        if kind == "preview":
            apply_decision(found, Decision("edit", visit.by, reason=reason, **extra))
            visit.title, visit.here = "Edit", "Inbox"
            return pages.preview_page(found, extra["args"], reason, visit._sign("decide", id=found.id))
        await getattr(approvals, f"a{kind}")(found.id, by=visit.by, reason=reason, **extra)
    except (KeelError, ValueError, RecursionError) as error:
        visit.status = status_of(error) if isinstance(error, KeelError) else 400
        if visit.status >= 500:
            raise
        return await _show(visit, await approvals.aget(found.id), typed, f"Nothing was decided: {error}")
    return _go("request", id=found.id)


def _loads(given: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(given, parse_constant=refuse)


async def settle(visit: Visit) -> Shown:
    """Settle a tool call in doubt."""
    thread, key = visit.check("settle", "thread", "key")
    decision, result = visit.form.get("decision", ""), visit.form.get("result") or None
    await visit.saver.tools.asettle(thread or None, key, decision, result, by=visit.by)
    return _go("thread", id=thread) if thread else _go("./")


async def label(visit: Visit) -> Shown:
    """Label a moment."""
    thread, at = visit.check("label", "thread", "id")
    await visit.saver.labels.aset(_config(thread, at), visit.form.get("name", "").strip())
    return _go("moment", thread=thread, id=at)


async def fork(visit: Visit) -> Shown:
    """Fork a thread at a moment, as a new thread."""
    (thread, at), target = visit.check("fork", "thread", "id"), visit.form.get("target", "").strip()
    if not target:
        raise InvalidInput("the new thread needs an id")
    await visit.saver.afork(_config(thread, at), target, by=visit.by)
    return _go("thread", id=target)


def _go(page: str, **query: str) -> Response:
    return RedirectResponse(pages.link(page, **query), 303)


Handler: TypeAlias = Callable[[Visit], Awaitable[Shown]]
ROUTES: Mapping[str, Mapping[str, Handler]] = {
    "": {"GET": show_inbox},
    "request": {"GET": show_request},
    "threads": {"GET": show_threads},
    "thread": {"GET": show_thread},
    "moment": {"GET": show_moment},
    "diff": {"GET": show_diff},
    "calls": {"GET": show_calls},
    "handoff": {"GET": show_handoff},
    "usage": {"GET": show_usage},
    "decide": {"POST": decide},
    "settle": {"POST": settle},
    "label": {"POST": label},
    "fork": {"POST": fork},
}
"""The handlers by path and method, except for static files and the login."""


class KeelApp:
    """The page as an ASGI application. `keel_app` creates it."""

    def __init__(self, saver: KeelSaver, guard: Guard) -> None:
        self.saver, self.guard = saver, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        if scope["type"] != "http":
            return
        response = await self._answer(Request(scope, receive))
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        visit = Visit(self.saver, self.guard)
        try:
            return await self._visit(visit, request)
        except Refusal as error:
            status, why = error.status, str(error)
        except KeelError as error:
            status, why = status_of(error), str(error)
            if status >= 500:
                _log.warning("a page is not shown: %s", error)
        except Exception:
            _log.exception("a page has failed")
            status, why = 500, "This page failed. The error is in the log of the server."
        return self._page(visit, status, [pages.error_page(status, why)])

    async def _visit(self, visit: Visit, request: Request) -> Response:
        root, path = request.scope.get("root_path", ""), request.scope["path"]
        name = path.removeprefix(root).removeprefix("/")
        self.guard.check_host(request)
        visit.query = parse_fields(request.scope.get("query_string", b""))
        if name == "login" and request.method == "GET":
            return self.guard.begin(request, visit.query)
        visit.by, visit.session = await self.guard.find_person(request)
        route: Mapping[str, Handler | None] | None = {"GET": None} if name in _STATIC else ROUTES.get(name)
        if route is None:
            raise Refusal(404, "There is no such page.")
        if request.method not in route:
            response = self._page(visit, 405, [pages.error_page(405, f"{request.method} is not for this page.")])
            response.headers["Allow"] = ", ".join(route)
            return response
        handler = route[request.method]
        if handler is None:
            body = await to_thread((Path(__file__).parent / name).read_bytes)
            return Response(body, media_type=_STATIC[name])
        if request.method == "POST":
            self.guard.check_origin(request)
            visit.form = await read_form(request)
        shown = await handler(visit)
        # In a thread: drawing a long thread takes time, and must not block other requests.
        return shown if isinstance(shown, Response) else await to_thread(self._page, visit, visit.status, shown)

    def _page(self, visit: Visit, status: int, shown: Iterable[str]) -> Response:
        if not visit.session:  # not signed in: no style sheet either
            return HTMLResponse(pages.bare("".join(shown)), status)
        person = f"{visit.by} (read-only)" if visit.by and self.guard.read_only else visit.by
        store, live = repr(self.saver)[1:-1], visit.live if status == 200 else 0
        html = pages.layout(visit.title, *shown, store=store, person=person, live=live, here=visit.here)
        return HTMLResponse(html, status)


def keel_app(
    saver: KeelSaver,
    *,
    identify: Identify,
    hosts: Collection[str] = LOOPBACK,
    read_only: bool = False,
    secret: str | bytes | None = None,
) -> KeelApp:
    """Return a web page for a store, as an ASGI application.

        app.mount("/keel", keel_app(saver, identify=who))

    On it, people decide approval requests, settle calls in doubt, and inspect, label and fork threads. The page runs no
    graph and deletes nothing.

    Args:
        saver: The saver. A tenant's view (`saver.for_tenant(name)`) shows only the tenant's data.
        identify: Called with each request (`starlette.requests.Request`); may be asynchronous. Returns the name of
            the person that the application has authenticated, or `None` to refuse the request. Every named person sees
            all threads of the saver, and decides under this name.
        hosts: The host names of the page, without ports; requests for other names are refused.
        read_only: Whether deciding, settling, labelling and forking are disabled.
        secret: The key of form tokens, at least 16 bytes, random by default. All processes that serve the page need
            the same key.

    Raises:
        InvalidInput: If `secret` is too short, `identify` cannot be called, or `hosts` is not a collection of names.
    """
    if not callable(identify):
        raise InvalidInput(f"identify must be a function of a request, not {identify!r:.100}")
    if isinstance(hosts, str):
        raise InvalidInput(f"hosts must be a collection of names, such as [{hosts!r:.100}]")
    names = frozenset(name.lower() for name in hosts)
    return KeelApp(saver, Guard(identify, names, read_only, secret_of(secret)))
