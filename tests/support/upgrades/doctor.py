"""A shop's agent and twelve changes that break its stored threads.

    python doctor.py DIRECTORY THREADS [unchanged]

One process tries them all: each version runs in a forked child, so that classes of other versions are absent. The
report of `keel doctor` for each is printed as JSON.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

SHOP = '''
import operator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Order:
    item: str
    size: Size


class State(TypedDict):
    kind: str
    order: Order
    amount: float | None
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    said: str
    never: str


class Inner(TypedDict, total=False):
    said: str


@tool
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def intake(state):
    if state["kind"] == "fails":
        raise ConnectionError
    amount = None if state["kind"] == "asks" else 1.0
    return {"order": Order("tea", Size.LARGE), "amount": amount, "log": ["intake"], "messages": [("user", "hi")]}


def route(state):
    return {"asks": "ask", "inside": "research", "memory": "diary", "tool": "model"}.get(state["kind"], "finish")


def ask(state):
    return {"said": interrupt("pay?")}


def model(state):
    call = {"name": "pay", "args": {"amount": 1}, "id": "1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def finish(state):
    state.get("never")
    return {"log": ["finish"], "said": "done"}


def inside(state):
    return {"said": interrupt("inside?")}


def note(state):
    return {"said": "noted"}


inner = StateGraph(Inner).add_node("inside", inside).add_edge(START, "inside").compile()
memory = StateGraph(Inner).add_node("note", note).add_edge(START, "note").compile(checkpointer=True)


def build(saver=None):
    builder = StateGraph(State).add_node("intake", intake).add_node("ask", ask).add_node("research", inner)
    builder.add_node("diary", memory).add_node("model", model).add_node("tools", ToolNode([pay]))
    builder.add_node("finish", finish).add_edge(START, "intake").add_edge("model", "tools")
    builder.add_conditional_edges("intake", route)
    for node in ("ask", "research", "diary", "tools"):
        builder.add_edge(node, "finish")
    return builder.compile(checkpointer=saver, interrupt_before=["tools"])


graph = build()
'''

ENDED = [('.add_node("ask", ask)', ""), ('("ask", "research",', '("research",'), ('"asks": "ask", ', "")]
Change = list[tuple[str, str]]
BREAKS: dict[str, tuple[Change, str, str]] = {
    "a class that moved": ([("Order", "Purchase")], "unread", ""),
    "a member of an enumeration": ([('    LARGE = "l"\n', ""), ("Size.LARGE", "Size.SMALL")], "unread", ""),
    "a new field": ([("    size: Size\n", "    size: Size\n    price: int\n")], "unread", ""),
    "a type that is narrower": ([("amount: float | None", "amount: float")], "type", "amount"),
    "a node that is gone": (ENDED, "node", "ask"),
    "a question of another node": ([('"ask"', '"confirm"')], "question", "ask"),
    "another reducer": ([("Annotated[list[str], operator.add]", "list[str]")], "reducer", "log"),
    "a graph in another node": ([('"research"', '"study"'), ('"diary"', '"journal"')], "subgraph", "diary"),
    "a tool that is gone": ([("def pay(", "def settle("), ("[pay]", "[settle]")], "tool", "pay"),
    "a channel of another name": ([("said", "spoken")], "channel", "said"),
    "a new channel": (
        [("    never: str\n", "    never: str\n    tax: float\n"), ('["finish"]', 'str(state["tax"])')],
        "required",
        "tax",
    ),
}
"""Each change, and the expected report of `keel doctor`: the breakage and its place."""


def shop(source: str) -> Any:
    """Return a version of the shop, as the main module of its process."""
    module = ModuleType("shop")
    sys.modules["shop"] = module
    exec(compile(source, "shop.py", "exec"), vars(module))
    return module


def write(url: str, threads: int, serde: Any = None) -> None:
    """Have the first version write threads."""
    from langgraph_keel import open_saver

    with open_saver(url, serde=serde) as saver:
        graph = shop(SHOP).build(saver)
        kinds = ("done", "asks", "inside", "memory", "tool", "fails")
        for number in range(threads):
            with suppress(ConnectionError):
                given = {"kind": kinds[number % len(kinds)], "log": ["in"]}
                graph.invoke(given, {"configurable": {"thread_id": f"t{number}"}})


def diagnose(source: str, url: str) -> dict[str, Any]:
    """Return the report of `keel doctor` for a version."""
    from langgraph_keel.cli import app

    shop(source)
    out, errors, status = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            app(["doctor", "shop:graph", "--url", url, "--json"])
        except SystemExit as ended:
            status = int(ended.code or 0)
    return {"status": status, "said": out.getvalue(), "errors": errors.getvalue()}


def in_child(job: Callable[[], Any], place: Path) -> Any:
    """Return the result of a function that runs in a forked process."""
    child = os.fork()
    if not child:
        try:
            place.write_text(json.dumps(job()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(place.read_text())


def main(directory: Path, threads: int, *only: str) -> dict[str, Any]:
    """Try all changes; or only unchanged code, and print the seconds that it takes."""
    import langgraph.prebuilt  # noqa: F401  # once, for all children
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    from langgraph_keel import SqliteSaver  # noqa: F401
    from langgraph_keel.cli import app  # noqa: F401

    url, other, place = f"sqlite:///{directory}/shop.db", f"sqlite:///{directory}/other.db", directory / "said.json"
    in_child(lambda: write(url, threads), place)
    if only:
        began = perf_counter()
        return {"unchanged": in_child(lambda: diagnose(SHOP, url), place), "seconds": perf_counter() - began}
    in_child(lambda: write(other, 6, JsonPlusSerializer()), place)
    before = (directory / "shop.db").read_bytes()
    said = {"unchanged": in_child(lambda: diagnose(SHOP, url), place)}
    for name, (change, _, _) in BREAKS.items():
        source = SHOP
        for old, new in change:
            assert old in source, (name, old)
            source = source.replace(old, new)
        said[name] = in_child(partial(diagnose, source, url), place)
    said["another serializer"] = in_child(lambda: diagnose(SHOP, other), place)
    assert (directory / "shop.db").read_bytes() == before
    return said


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
