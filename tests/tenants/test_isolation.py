"""Random work of two tenants and the default view on one store is isolated.

Each operation is executed twice: on the tenant's view of the shared store, and on the tenant's own store in memory.
Names of threads, runs, labels, tools and users are the same for all, so that any leak makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Annotated, Any, TypedDict
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from support.cli_threads import keel, keel_json
from support.places import Place
from support.tiers import sized

from langgraph_keel import KeelError, KeelSaver, MemorySaver, Retention, ToolCache, ToolPolicy
from langgraph_keel.retention.policy import DEFAULT

WHO = ("", "acme", "acme2")
THREADS = ("t", "u", "t2")
USERS = ("ada", "ben")
RUNS = [UUID(int=number) for number in range(1, 5)]
LABELS = ("good", "bad")


class State(TypedDict, total=False):
    log: Annotated[list[str], lambda old, new: old + new]
    messages: Annotated[list[Any], add_messages]


class Program:
    """The operations of a tenant with one saver, and the data that it can see."""

    def __init__(self, shared: KeelSaver, who: str, cache: ToolCache, url: str = "") -> None:
        self.shared, self.who, self.url = shared, who, url
        self.saver = saver = shared.for_tenant(who) if who else shared
        self.made = 0

        @tool
        def price(item: str) -> str:
            """Return the price of an item: how often it was asked for."""
            self.made += 1
            return f"{item} costs {self.made}"

        def say(state: State) -> State:
            said = state["log"][-1]
            return {"log": [f"answer {interrupt(said)}" if said.endswith("?") else f"so {said}"]}

        def next_of(state: State) -> str:
            return "tools" if state.get("messages") and isinstance(state["messages"][-1], AIMessage) else END

        graph: Any = StateGraph(State).add_node("say", say).add_edge(START, "say")
        graph = graph.add_node("tools", ToolNode([price], wrap_tool_call=cache.wrap_tool_call))
        self.graph = graph.add_conditional_edges("say", next_of).add_edge("tools", END).compile(checkpointer=saver)

    # -- operations ----------------------------------------------------------------------------------------------

    def talk(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self._run({"log": [text]}, thread, user, run)

    def buy(self, thread: str, user: str, run: UUID, text: str) -> Any:
        asked = AIMessage("", id=text, tool_calls=[{"name": "price", "args": {"item": text[:1]}, "id": text}])
        return self._run({"log": [text], "messages": [asked]}, thread, user, run)

    def _run(self, given: Any, thread: str, user: str, run: UUID) -> Any:
        config = {"configurable": {"thread_id": thread, "user_id": user, "run_id": str(run)}}
        return self.graph.invoke(given, config)["log"][-1]

    def ask(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.talk(thread, user, run, f"{text}?")

    def decide(self, thread: str, user: str, run: UUID, text: str) -> Any:
        (request, *_) = self.saver.approvals.pending(thread)
        self.saver.approvals.answer(request.id, value=text, by=user)
        config = {"configurable": {"thread_id": thread, "run_id": str(run)}}
        return self.graph.invoke(self.saver.approvals.resume(thread), config)["log"]

    def delete(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.delete_thread(thread)

    def delete_runs(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.delete_for_runs([str(run)])

    def copy(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.copy_thread(thread, f"{thread}2")

    def fork(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.fork(at(thread), f"{thread}3")["configurable"]["thread_id"]

    def rewind(self, thread: str, user: str, run: UUID, text: str) -> Any:
        moments = list(self.saver.timeline(thread))
        self.saver.rewind(moments[len(moments) // 2])
        return len(moments)

    def prune(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.prune([thread], strategy="keep_latest").removed

    def keep(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.retention.set_policy(Retention(threads=thread, last=1 + len(text) % 3))

    def sweep(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return sorted((each.thread_id, each.removed) for each in self.saver.retention.sweep().threads)

    def erase(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return sorted(self.saver.retention.erase(user).threads)

    def label(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.saver.labels.set(at(thread), LABELS[len(text) % 2])

    def clear(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return ToolCache(self.saver).clear(None)

    def reclaim(self, thread: str, user: str, run: UUID, text: str) -> Any:
        self.saver.retention.reclaim_space(strays=True)

    def leave(self, thread: str, user: str, run: UUID, text: str) -> Any:
        return self.who and self.shared.tenants.delete(self.who, reclaim=False).left

    def delete_by_command(self, thread: str, user: str, run: UUID, text: str) -> Any:
        if self.saver.get_tuple(at(thread)) and not self._commands("delete", thread, "--yes"):
            self.saver.delete_thread(thread)

    def prune_by_command(self, thread: str, user: str, run: UUID, text: str) -> Any:
        if self.saver.get_tuple(at(thread)) and not self._commands("prune", thread, "--yes"):
            self.saver.prune([thread], strategy=DEFAULT)  # the policy of `keel prune`

    def label_by_command(self, thread: str, user: str, run: UUID, text: str) -> Any:
        names = [label.name for label in self.saver.labels.list(thread)]
        if self.saver.get_tuple(at(thread)) and text not in names and not self._commands("label", thread, "-1", text):
            self.saver.labels.set(self.saver.timeline(thread)[-1], text)

    def leave_by_command(self, thread: str, user: str, run: UUID, text: str) -> Any:
        if self.who and not (self.url and keel("tenants", "delete", self.who, "--yes", "--url", self.url)):
            self.shared.tenants.delete(self.who)

    def _commands(self, *words: str) -> bool:
        """Call a command, as another user would; `False` if the store has no URL."""
        tenant = ["--tenant", self.who] if self.who else []
        return bool(self.url and keel(*tenant, *words, "--url", self.url))

    # -- visible data --------------------------------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        saver = self.saver
        threads = sorted(each.thread_id for each in saver.threads())
        return {
            "threads": sorted((each.thread_id, each.checkpoints, each.owner) for each in saver.threads()),
            "listed": sorted(
                (each.config["configurable"]["thread_id"], each.metadata.get("step"), each.metadata.get("source"))
                for each in saver.list(None)
            ),
            "runs": {run.int: sum(1 for _ in saver.list(None, filter={"run_id": str(run)})) for run in RUNS},
            "states": {each: texts_of(saver.get_tuple(at(each))) for each in THREADS},
            "status": {each: saver.status(each).state for each in THREADS},
            "waits": sorted((each.thread_id, str(each.value)) for each in saver.approvals.pending(limit=None)),
            "audit": sorted(  # a background thread records at any time that a request was superseded
                (each.kind, str((each.content or {}).get("thread_id")))
                for each in saver.approvals.audit(limit=100_000)
                if each.kind != "tenant deleted"  # shown to the store's operator
            ),
            "labels": {each: [label.name for label in saver.labels.list(each)] for each in threads},
            "policies": [str(each) for each in saver.retention.policies()],
            "tools": sorted((each.tool, each.state) for each in saver.tools.calls(None)),
            "unfinished": sorted(each.thread_id for each in saver.unfinished()),
        }


def texts_of(found: Any) -> Any:
    """The texts of a state, whose message ids are random."""
    if found is None:
        return None
    values = found.checkpoint["channel_values"]
    return values.get("log"), [each.text for each in values.get("messages", ())]


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


OFTEN: Sequence[Callable[..., Any]] = [Program.talk, Program.ask, Program.buy, Program.decide] * 4
LEAVING = [Program.leave, Program.leave_by_command]
"""Operations that are chosen once in a hundred."""
SELDOM: Sequence[Callable[..., Any]] = [
    each for name, each in vars(Program).items() if name[0] != "_" and name != "seen" and each not in (*OFTEN, *LEAVING)
]


def outcome(act: Callable[..., Any], program: Program, *given: Any) -> Any:
    """The result of an operation, or the name of its error."""
    try:
        return act(program, *given)
    except (KeelError, ValueError, LookupError) as error:
        return type(error).__name__


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_work_of_tenants_is_isolated(place: Place) -> None:
    with place.open() as shared:
        work(shared, "" if place.options else place.url)  # a command finds a store by its URL alone


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_work_of_tenants_is_isolated_in_memory() -> None:
    with MemorySaver() as shared:
        work(shared)


def work(shared: KeelSaver, url: str = "") -> None:
    random, count = Random(19), sized(30, 60, 10_000)
    policies = {"price": ToolPolicy(scope="shared", ttl=1e6)}
    cache = ToolCache(shared, policies)  # one for all, as in a program that builds its graph once
    theirs = {who: Program(shared, who, cache, url) for who in WHO}
    alone = {who: Program(saver := MemorySaver(), who, ToolCache(saver, policies)) for who in WHO}
    for number in range(count):
        acts = LEAVING if random.random() < 0.01 else (*OFTEN, *SELDOM)
        who, act = random.choice(WHO), random.choice(acts)
        given = random.choice(THREADS), random.choice(USERS), random.choice(RUNS), f"{random.choice('abc')}{number}"
        where = f"operation {number}: {who or 'nobody'} does {act.__name__} {given}"
        assert outcome(act, theirs[who], *given) == outcome(act, alone[who], *given), where
        if number % 10 == 0 or number == count - 1:
            for each in WHO:
                assert theirs[each].seen() == alone[each].seen(), f"{where}: seen by {each or 'nobody'}"
    assert set(shared.tenants.list()) <= {*WHO[1:]}
    for who in WHO if url else ():
        words = ["--tenant", who] if who else []
        found = keel_json(*words, "threads", "--limit", "1000", "--url", url)["threads"]
        assert sorted(each["thread_id"] for each in found) == [each[0] for each in theirs[who].seen()["threads"]]
