"""A store with everything that the web page shows, and a client that sends forms."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

import httpx
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from langgraph_keel import KeelSaver, ToolCache, request_approval

MAIL = {"to": "bo@example.org", "body": "Dear Bo"}
REFUND = {"order": "A-1042", "amount": 249}
THREADS = ("refund/A-1042", "trip", "mail", "chat", "bank", "paid")


class State(MessagesState):
    total: float


class Gone(BaseException):
    """Ends a process, as far as the ledger is concerned."""


@tool
def pay(amount: int) -> str:
    """Pay, and be cut off."""
    raise Gone


def refund(state: State) -> Any:
    decision = request_approval(
        "refund", REFUND, facts={"paid": 249}, description="The parcel arrived broken.", approvers=["maria", "tom"]
    )
    return {"messages": [AIMessage(f"{decision.kind} by {decision.by}")]}


def trip(state: State) -> Any:
    return {"messages": [AIMessage(f"Seat: {interrupt('Window or aisle?')}")]}


def mail(state: State) -> Any:
    allowed = {f"allow_{name}": True for name in ("accept", "edit", "ignore", "respond")}
    asked = {"action_request": {"action": "send_email", "args": MAIL}, "config": allowed, "description": "Write to Bo"}
    return {"messages": [AIMessage(str(interrupt([asked])))]}


def chat(state: State) -> Any:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}")], "total": len(state["messages"]) / 2}


def fail(state: State) -> Any:
    raise TimeoutError("the bank does not answer")


def graph_of(saver: KeelSaver, node: Any) -> Any:
    return StateGraph(State).add_node("agent", node).add_edge(START, "agent").compile(checkpointer=saver)


async def talk(saver: KeelSaver, node: Any, thread: str, *said: str, owner: str = "ada") -> None:
    for each in said:
        try:
            config: Any = {"configurable": {"thread_id": thread, "user_id": owner}}
            await graph_of(saver, node).ainvoke({"messages": [("user", each)]}, config)
        except TimeoutError:
            pass


async def fill(saver: KeelSaver) -> None:
    """Create threads: three wait, one is done, one has failed, one is in doubt."""
    await talk(saver, refund, "refund/A-1042", "Refund my order, please", owner="bo")
    await talk(saver, trip, "trip", "Oslo, please")
    await talk(saver, mail, "mail", "Write to Bo")
    await talk(saver, chat, "chat", "Hello!", "And now?", "Thank you")
    await talk(saver, fail, "bank", "Pay the bank")
    call = {"name": "pay", "args": {"amount": 100}, "id": "call-1", "type": "tool_call"}
    cache = ToolCache(saver, store_arguments=True)
    node = ToolNode([pay], wrap_tool_call=cache.wrap_tool_call, awrap_tool_call=cache.awrap_tool_call)
    tools = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile(checkpointer=saver)
    try:
        config: Any = {"configurable": {"thread_id": "paid"}}
        await tools.ainvoke({"messages": [AIMessage("", tool_calls=[call])]}, config)
    except Gone:
        pass
    while [call.state async for call in saver.tools.acalls("paid")] != ["unknown"]:  # noted after the run
        await asyncio.sleep(0.01)


class Page(HTMLParser):
    """A page's forms with their fields, its links, and all of its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.forms: list[tuple[str, dict[str, str]]] = []
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "form":
            self.forms.append((str(given.get("action")), {}))
        elif tag == "input" and given.get("type") == "hidden":
            self.forms[-1][1][str(given["name"])] = str(given["value"])
        elif tag == "a":
            self.links.append(str(given["href"]))

    def handle_data(self, data: str) -> None:
        self.words += data

    def form(self, action: str, **known: str) -> dict[str, str]:
        """Return the hidden fields of the first form that has these values."""
        return next(fields for to, fields in self.forms if to == action and known.items() <= fields.items())


class Client(httpx.AsyncClient):
    """A browser, as far as the page can detect."""

    def __init__(self, app: Any, base: str = "http://localhost/", **options: Any) -> None:
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        super().__init__(transport=transport, base_url=base, follow_redirects=True, **options)

    async def page(self, path: str, status: int = 200) -> Page:
        reply = await self.get(path)
        assert reply.status_code == status, reply.text
        return Page(reply.text)

    async def submit(
        self, path: str, fields: Mapping[str, str], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Page:
        reply = await self.post(path, data=fields, headers={"sec-fetch-site": "same-origin"} | dict(headers or {}))
        assert reply.status_code == status, reply.text
        return Page(reply.text)

    async def decide(self, page: str, status: int = 200, **fields: str) -> Page:
        """Open a page and submit its first form for a decision, with more fields."""
        opened = await self.page(page)
        return await self.submit("decide", opened.form("decide") | fields, status)


def address(base: str, link: str) -> str:
    """Resolve a link of a page like a browser."""
    return urljoin(base, link)
