"""Threads that ask, for the tests of the approval commands; and their inspection."""

from __future__ import annotations

from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from langgraph_keel import open_saver, request_approval
from support.cli_threads import EVIL, keel_json

LONG = "x" * 3000
ARGS = {"flight": "LH 1", "note": EVIL, "terms": LONG}


class Trip(TypedDict):
    told: Any


def graph(saver: Any, price: int = 1200, expires_in: float = 3600) -> Any:
    """Return a graph that asks whether to book at a price."""

    def book(state: Trip) -> dict[str, Any]:
        said = request_approval(
            "book",
            ARGS,
            facts={"price": price, "branch:to": [EVIL]},
            description=f"Fly\n{EVIL}",
            approvers=["ann", "bob"],
            expires_in=expires_in,
        )
        return {"told": (said.kind, said.by, said.reason, said.args)}

    return StateGraph(Trip).add_node("book", book).add_edge(START, "book").compile(checkpointer=saver)


def questions(saver: Any) -> Any:
    def ask(state: Trip) -> dict[str, Any]:
        return {"told": interrupt({"question": f"How? {EVIL}"})}

    return StateGraph(Trip).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)


def config(thread: str, owner: str = "ada") -> Any:
    return {"configurable": {"thread_id": thread, "user_id": owner}}


def asked(where: str) -> str:
    """Run threads that ask.

    `trip` asks twice, as the price has changed. One thread has a hostile name.
    """
    start: Any = {"told": None}
    with open_saver(where) as saver:
        graph(saver).invoke(start, config("trip"))
        (first,) = saver.approvals.pending("trip")
        saver.approvals.approve(first.id, by="ann", reason=f"good price {EVIL}")
        graph(saver, 1500).invoke(saver.approvals.resume("trip"), config("trip"))
        questions(saver).invoke(start, config(EVIL, "eve"))
    return where


def waiting(url: str, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = keel_json("approvals", "--url", url, *options)["approvals"]
    return found


def id_of(url: str, thread: str) -> str:
    (request,) = waiting(url, thread)
    return str(request["id"])


def went_on(url: str, thread: str, build: Any, *options: Any) -> Any:
    with open_saver(url) as saver:
        return build(saver, *options).invoke(saver.approvals.resume(thread), config(thread))["told"]
