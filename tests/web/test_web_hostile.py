"""Hostile states: markup, addresses, styles, control characters, sizes, odd ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from support.web_threads import Client, Page

from langgraph_keel import KeelSaver, MemorySaver, request_approval
from langgraph_keel.display.text import UNSAFE
from langgraph_keel.web import keel_app
from langgraph_keel.web.pages import link

EVILS: Mapping[str, str] = {
    "script": "<script>alert(1)</script>",
    "image": '<img src=x onerror="alert(1)">',
    "attribute": '" onmouseover="alert(1)" x="',
    "single quotes": "' onfocus='alert(1)' autofocus='",
    "end of an element": "</textarea></pre></code></main><h1>Approved</h1>",
    "end of a style": "</style><style>body{display:none}</style>",
    "style": '"style="position:fixed;inset:0;background:url(//evil.example)',
    "comment": "--><!-- <b>x</b>",
    "cdata": "]]><![CDATA[<b>",
    "entity": "&lt;script&gt;&#60;b&#62;",
    "address": "javascript:alert(1)",
    "data address": "data:text/html,<script>alert(1)</script>",
    "other origin": "//evil.example/x?thread=1&id=2#main",
    "svg": "<svg/onload=alert(1)>",
    "base": '<base href="//evil.example">',
    "refresh": '<meta http-equiv="refresh" content="0;url=//evil.example">',
    "form": '<form action="//evil.example"><button>Approve</button></form>',
    "template": "{{7*7}}${7*7}<%= 7*7 %>%(x)s{0}",
    "terminal": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "right to left": "\u202egnp.exe\u2066 \u200f",
    "zero": "before\x00after",
    "lines": "one\r\nSet-Cookie: a=b\n\n\u2028two",
    "byte order": "\ufeff\ufffe\uffff",
    "emoji": "👩‍👩‍👧 e\u0301 ﷽",
    "dots": "..",
    "path": "../../etc/passwd",
    "percent": "%2e%2e%2f%00",
    "query": "a&b=c;d#e?f=g",
    "digits": "9" * 5_000,
    "long": "x" * 300_000,
}
ELEMENTS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "strong", "nav", "span", "p", "main"),
    *("footer", "h1", "h2", "h3", "div", "article", "form", "label", "input", "textarea", "button", "details"),
    *("summary", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "time", "ol", "ul", "li", "svg", "line"),
    *("path", "circle", "b", "br", "mark", "s", "del", "ins", "section", "fieldset", "legend", "select", "option"),
    *("dl", "dt", "dd"),
}
STYLES = re.compile(r"(url|expression|import|position:fixed|@)", re.IGNORECASE)


def check(html: str) -> Page:
    """Check that a page contains only elements that Keel draws."""
    found = Page(html)
    assert not UNSAFE.search(html.replace("\n", "").replace("\t", ""))
    for name, attributes in found.elements:
        assert name in ELEMENTS, name
        assert not [
            each for each in attributes if each.startswith("on") or each in ("srcdoc", "formaction", "autofocus")
        ]
        assert not STYLES.search(attributes.get("style") or "")
        for address in (attributes.get("href"), attributes.get("action"), attributes.get("src")):
            if name != "link" and address:
                parts = urlsplit(address)
                assert (parts.scheme, parts.netloc) == ("", ""), address
    assert [given for name, given in found.elements if name == "script"] in ([], [{"src": "live.js", "defer": None}])
    assert [given for name, given in found.elements if name == "meta"][1:] == [
        {"name": "viewport", "content": "width=device-width,initial-scale=1"},
        {"name": "color-scheme", "content": "light dark"},
    ]
    return found


def storable(evil: str) -> str:
    """Return an id or a name that stores accept: no NUL, at most 200 characters."""
    return evil.replace("\x00", "").replace("\ufffe", "").replace("\uffff", "")[:200]


class Evil(Exception):
    """The error of a node."""


class State(MessagesState):
    values: dict[str, Any]


async def hostile(saver: KeelSaver, evil: str) -> tuple[str, str]:
    """Store a thread of hostile values and one that waits, and return their ids."""
    name = storable(evil)

    def talk(state: State) -> Any:
        call = {"name": evil, "args": {evil: evil, "list": [evil]}, "id": evil, "type": "tool_call"}
        said = [AIMessage(evil, name=evil, tool_calls=[call]), ToolMessage(evil, tool_call_id=evil, name=evil)]
        return {"messages": said, "values": {evil: {evil: [evil, {evil}]}}}

    def ask(state: State) -> Any:
        request_approval(
            evil, {evil: evil, "deep": [{evil: evil}]}, facts={evil: evil}, description=evil, approvers=[name, "maria"]
        )

    def fail(state: State) -> Any:
        raise type(name, (Evil,), {})(evil)

    node = re.sub(r"[:|]", "", name) or "node"
    for thread, action in ((name, talk), (f"{name} asks", ask), (f"{name} fails", fail)):
        graph = StateGraph(State).add_node(node, action).add_edge(START, node).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": thread, "user_id": name}}
        given: Any = {"messages": [("user", evil)]}
        with suppress(Evil):
            await graph.ainvoke(given, config)
    return name, f"{name} asks"


@pytest.mark.parametrize("evil", EVILS.values(), ids=EVILS)
async def test_values_of_a_thread_are_shown_only_as_text(evil: str) -> None:
    async with MemorySaver() as saver:
        name, asks = await hostile(saver, evil)
        await saver.labels.aset({"configurable": {"thread_id": name}}, f"label {name}"[:190])
        async with Client(keel_app(saver, identify=lambda _: "maria")) as page:

            async def look(path: str) -> Page:
                reply = await page.get(path)
                assert reply.status_code == 200, reply.text
                assert len(reply.content) < 4_000_000
                return check(reply.text)

            inbox = await look("/")
            listed = await look("/threads")
            # The links of the list lead to the threads, whatever their ids are.
            for each in [each for each in listed.links if each.startswith("thread?")]:
                await look(each)
            thread = await look(link("thread", id=name))
            moments = [each for each in thread.links if each.startswith("moment?")]
            for each in moments:
                await look(each)
            await look(link("diff", thread=name, **{"from": "0"}))
            await look(link("calls", thread=name))
            await look("/usage")
            (request,) = await saver.approvals.apending(asks)
            opened = await look(link("request", id=request.id))
            if opened.forms:
                assert len(evil) < 100_000
                edited = opened.form("decide", kind="preview") | {
                    "args": '{"deep": [], "x": 1}',
                    "reason": evil[:2_000],
                }
                reply = await page.post("decide", data=edited, headers={"sec-fetch-site": "same-origin"})
                assert reply.status_code == 400
                check(reply.text)
                await page.submit("decide", opened.form("decide") | {"kind": "reject", "reason": evil[:2_000]})
                decision = (await saver.approvals.aget(request.id)).decision
                assert decision
                assert decision.reason == evil[:2_000]
                await look(link("request", id=request.id))
            else:
                assert len(evil) > 100_000
                assert not inbox.forms
            for path in (link("threads", q=name), link("threads", label=name, owner=name, error=name)):
                await look(path)
            for path in (link("thread", id=f"no {name}"), link("diff", thread=name, **{"from": f"no {name}"})):
                reply = await page.get(path)
                assert reply.status_code in (400, 404)
                check(reply.text)


@pytest.mark.parametrize("evil", ["..", "a/b", "%2e%2e%2f", "%", "a b", "a?b=c&d", "#", "é", "'", "\u202e"])
async def test_a_thread_with_any_id_is_found(evil: str) -> None:
    async with MemorySaver() as saver:
        await hostile(saver, evil)
        async with Client(keel_app(saver, identify=lambda _: "maria")) as page:
            listed = await page.page("/threads")
            link_of = next(each for each in listed.links if each == link("thread", id=evil))
            shown = await page.page(link_of)
            await page.page(next(each for each in shown.links if each.startswith("moment?")))


@pytest.mark.parametrize(
    "path", ["thread?id=%00", "thread?id=", "thread", "moment?thread=x", "diff?thread=x&from=", "request"]
)
async def test_an_address_without_an_id_is_refused(path: str) -> None:
    async with MemorySaver() as saver, Client(keel_app(saver, identify=lambda _: "maria")) as page:
        assert (await page.get(path)).status_code in (400, 404)


async def test_a_value_of_ten_megabytes_does_not_make_a_large_page() -> None:
    def write(state: State) -> Any:
        return {"values": {"big": "x<b>" * 2_500_000}, "messages": [AIMessage("y" * 100_000)]}

    async with MemorySaver() as saver, Client(keel_app(saver, identify=lambda _: "maria")) as page:
        graph = StateGraph(State).add_node("write", write).add_edge(START, "write").compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "big"}}
        given: Any = {"messages": [("user", "z" * 100_000)]}
        await graph.ainvoke(given, config)
        shown = await page.page("/thread?id=big")
        for path in [
            "/threads",
            *(each for each in shown.links if each.startswith("moment?")),
            "/diff?thread=big&from=0",
        ]:
            reply = await page.get(path)
            assert (reply.status_code, len(reply.content) < 300_000) == (200, True), path
            check(reply.text)
