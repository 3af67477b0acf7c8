"""Moments as timelines contain them.

A chat with tools, rewound, with branches and a subgraph; hostile texts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Interrupt

from langgraph_keel.engine.config import Address
from langgraph_keel.history.moment import Moment
from langgraph_keel.history.records import Change, ToolUse

START = datetime(2026, 11, 22, 10, 14, 20, tzinfo=UTC)
CALL = "migrate:8bc2e80d-e44f-1700-c10f-4a0d0203b4b1"
HOSTILE = "<script>alert('1')</script>\x1b[31m\u202e[red]</td>&amp;"


def id_at(number: int) -> str:
    """Return an id like LangGraph's: ids share their beginning and differ at the end."""
    return f"1f1e6316-72e9-6127-8001-{number * 0x9E3779B1 % (1 << 48):012x}"


class Thread:
    """A growing thread; every checkpoint continues the head, or `after` if given."""

    def __init__(self, name: str = "support-42") -> None:
        self.name = name
        self.moments: list[Moment] = []
        self.heads: dict[str, Moment] = {}

    def add(
        self,
        *nodes: str,
        after: Moment | None = None,
        ns: str = "",
        caller: Moment | None = None,
        is_branch: bool = False,
        **said: Any,
    ) -> Moment:
        """Add a moment; a branch does not become the head."""
        parent = after or self.heads.get(ns)
        place = len(self.moments)
        metadata = said.pop("metadata", {}) | {"parents": self.parents(ns, caller)}
        said = {
            "parent": parent.id if parent else None,
            "step": (parent.step or 0) + 1 if parent else -1,
            "source": "loop" if nodes else "input",
            "time": START + timedelta(seconds=7 * place),
            "bytes": 300 + 97 * len(nodes),
            "state_bytes": 1000 + 410 * place,
        } | said
        made = Moment(
            address=Address(self.name, ns, id_at(place)), position=place, nodes=nodes, metadata=metadata, **said
        )
        self.moments.append(made)
        if not is_branch:
            self.heads[ns] = made
        return made

    def parents(self, ns: str, caller: Moment | None) -> dict[str, str]:
        """Return LangGraph's `parents` metadata, which names the graphs around a subgraph."""
        outer = (
            (caller.metadata["parents"] if caller.namespace else {}) | {caller.namespace: caller.id} if caller else {}
        )
        return outer if ns else {}

    def finished(self) -> list[Moment]:
        """Return the moments, oldest first, with fields that depend on the whole thread."""
        heads = {moment.address for moment in self.heads.values()}
        continued = {(moment.namespace, moment.parent) for moment in self.moments}
        return [
            replace(moment, is_head=moment.address in heads, is_leaf=(moment.namespace, moment.id) not in continued)
            for moment in self.moments
        ]


def chain(length: int, **said: Any) -> list[Moment]:
    """Return a thread without branches."""
    thread = Thread()
    for number in range(length):
        thread.add(*["agent"][: number > 0], **said)
    return thread.finished()


def messages(*new: Any) -> tuple[Change, ...]:
    return (Change("messages", f"+{len(new)}", new),)


def chat() -> Thread:
    """Return a chat.

    An agent looks things up with two tools; the ledger answers one of the calls.
    """
    thread = Thread()
    ask = HumanMessage("Please move the customers table to the new schema.", id="h1")
    call = {"name": "read_schema", "args": {"table": "customers"}, "id": "c1"}
    plan = AIMessage("I read the schema first.", id="a1", tool_calls=[call, {**call, "name": "count_rows", "id": "c2"}])
    found = [
        ToolMessage("customers(id, name, email)", tool_call_id="c1", name="read_schema", id="t1"),
        ToolMessage("12,482", tool_call_id="c2", name="count_rows", id="t2"),
    ]
    thread.add(summary="", next=("__start__",))
    thread.add(source="loop", summary="messages +1 human", changes=messages(ask), labels=("asked",))
    thread.add("agent", changes=messages(plan), summary='messages +1 ai: "I read the schema first."', **model(220, 41))
    tools = (ToolUse("read_schema"), ToolUse("count_rows", is_replayed=True))
    thread.add("tools", changes=messages(*found), summary="messages +2 tool", tools=tools)
    answer = AIMessage("The plan: **copy**, check, swap.", id="a2")
    thread.add(
        "agent", changes=messages(answer), summary='messages +1 ai: "The plan: copy, check, swap."', **model(388, 96)
    )
    return thread


def model(read: int, written: int, name: str = "gpt-5.1") -> dict[str, Any]:
    return {"models": (name,), "tokens": (read, written), "cost": read * 2e-6 + written * 8e-6}


def story() -> list[Moment]:
    """Return a thread with everything that a timeline shows.

    A migration that failed, was rewound, branched, and waits for an answer.
    """
    thread = chat()
    before = thread.moments[-1]
    asks = Interrupt(value={"question": "Migrate 12,482 rows?", "rows": 12482}, id="i1")
    gate = thread.add(
        "plan", summary="plan added (3 steps)", interrupts=(asks,), labels=("before migration",), next=("migrate",)
    )
    inner = thread.add(ns=CALL, caller=gate, next=("copy",))
    thread.add("copy", ns=CALL, caller=gate, after=inner, summary="copied 0 → 12,482", **model(120, 30, "small-1"))
    thread.add("check", ns=CALL, caller=gate, summary="bad 0 → 311", bytes=2480)
    thread.add(
        "migrate", after=gate, summary="copied 12,482, bad 311", tools=tuple(ToolUse("copy_row") for _ in range(31))
    )
    failed = thread.add(
        "swap", summary="swapped true", is_branch=True, errors=("MigrationError('311 rows have no e-mail address')",),
        pending=("audit",), next=("report",), drift=("model gpt-5.1 → gpt-5.2",), **model(410, 12, "gpt-5.2"),
    )  # fmt: skip
    twin = thread.add(after=before, source="fork", step=gate.step, summary="", metadata={"keel_rewound_to": gate.id})
    thread.add(
        source="update", after=gate, is_branch=True, summary='plan[1] "check" → "repair"', labels=("with repair",)
    )
    thread.add("repair", after=twin, summary="bad 311 → 0", bytes=1_482_113, **model(501, 77))
    thread.add(
        "report", summary="messages +1 ai", interrupts=(Interrupt(value="Send the report?", id="i2"),), next=("send",)
    )
    assert failed.position == 10
    return thread.finished()


def hostile() -> list[Moment]:
    """Return a thread in which all texts of people and models attempt an injection."""
    thread = Thread(HOSTILE)
    thread.add(source=HOSTILE, labels=(HOSTILE, ""))
    ns = f"{HOSTILE}:1234"
    said: dict[str, Any] = {
        "summary": HOSTILE,
        "changes": (Change(HOSTILE, HOSTILE, [HumanMessage(HOSTILE, name=HOSTILE), {HOSTILE: HOSTILE}, HOSTILE]),),
        "models": (HOSTILE,),
        "tools": (ToolUse(HOSTILE), ToolUse(HOSTILE, is_replayed=True)),
        "interrupts": (Interrupt(value={HOSTILE: HOSTILE}, id=HOSTILE), Interrupt(value=HOSTILE, id="x")),
        "errors": (HOSTILE,),
        "pending": (HOSTILE,),
        "drift": (HOSTILE,),
        "next": (HOSTILE,),
        "metadata": {HOSTILE: HOSTILE, "keel_rewound_to": HOSTILE},
    }
    thread.add(HOSTILE, **said)
    thread.add(HOSTILE, ns=ns, caller=thread.moments[-1], **said)
    thread.add(HOSTILE, after=thread.moments[0], is_branch=True, **said)
    return thread.finished()


def wide(branches: int) -> list[Moment]:
    """Return one moment with many children."""
    thread = Thread()
    first = thread.add()
    for _ in range(branches):
        thread.add("agent", after=first)
    return thread.finished()


def shuffled(parents: Sequence[int | None]) -> list[Moment]:
    """Return moments with the given places as parents.

    A parent that is not older is omitted.
    """
    thread = Thread()
    for parent in parents:
        thread.add("agent", is_branch=True, parent=None if parent is None else id_at(parent), step=1)
    return thread.finished()


def long(length: int) -> list[Moment]:
    """Return a long thread that calls a model in each fourth step, rewound once."""
    thread = Thread()
    for number in range(length * 3 // 4):
        thread.add("agent", state_bytes=1000 + 31 * number, **(model(100 + number, 20) if number % 4 == 0 else {}))
    kept = thread.moments[length // 2]
    for number in range(length - len(thread.moments)):
        thread.add("agent", after=None if number else kept, state_bytes=2000 + 15 * (length // 2 + number))
    return thread.finished()


def branches() -> tuple[list[Moment], list[Moment]]:
    """Return the branches of `story`: to the failure and its subgraph, and to the end."""
    moments = story()
    return moments[:11], [*moments[:5], *(moments[place] for place in (11, 13, 14))]


def bushy(length: int) -> list[Moment]:
    """Return a thread in which each moment has two children."""
    return shuffled([(at - 1) // 2 if at else None for at in range(length)])


def calls(function: Callable[[], object]) -> int:
    """Count the functions that are called, Python's and C's."""
    count = 0

    def counted(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
