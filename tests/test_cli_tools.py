"""`keel tools`, `keel settle` and `keel cache`, on ledgers of agents that were cut off."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli_threads import EVIL, RAW, keel, keel_json
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from langgraph_keel import KeelCache, ToolCache, ToolOutcomeUnknown, ToolPolicy, open_saver

CALLS = [("search", {"query": "tides\x1b[2J"}), ("pay", {"amount": 100}), ("search", {"query": "tides\x1b[2J"})]
PAID = {"search": ToolPolicy(cost=0.25)}


class Gone(BaseException):
    """The end of a process, as far as the ledger is concerned."""


@tool
def search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool
def pay(amount: int) -> str:
    """Pay, and be cut off."""
    raise Gone


def call(n: int) -> dict[str, Any]:
    name, args = CALLS[n]
    return {"name": name, "args": args, "id": f"call-{n}", "type": "tool_call"}


def agent(state: MessagesState) -> dict[str, Any]:
    done = sum(isinstance(message, ToolMessage) for message in state["messages"])
    order = [0, 2, 1]
    return {"messages": [AIMessage("", tool_calls=[call(order[done])] if done < 3 else [])]}


def graph(saver: Any, cache: ToolCache) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([search, pay], wrap_tool_call=cache.wrap_tool_call))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with two threads: each has searched twice, was answered once from the ledger, and died as it paid."""
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver, ToolCache(saver, PAID, store_arguments=True) as cache:
        for thread in ("trip", EVIL):
            with pytest.raises(Gone):
                graph(saver, cache).invoke({"messages": [("user", "go")]}, config(thread), durability="sync")
    return where


def test_tools_lists_what_ran_and_how_it_ended(url: str) -> None:
    shown = keel("tools", "trip", "--url", url, COLUMNS="140").stdout
    assert re.search(r"search \{.*tides.*done +\d+ ms +1 +0.25 ", shown)
    assert re.search(r'pay \{"amount": 100\}.*unknown', shown)
    assert not RAW.search(shown)
    calls = keel_json("tools", "trip", "--url", url)["calls"]
    assert [(made["tool"], made["state"], made["hits"], made["saved"]) for made in calls] == [
        ("search", "done", 1, 0.25),
        ("pay", "unknown", 0, 0.0),
    ]
    assert calls[1]["args"] == {"amount": 100}


def test_tools_advises_what_to_do_about_a_doubt(url: str) -> None:
    key = keel_json("tools", "trip", "--url", url)["calls"][1]["key"]
    assert f"keel settle {key[:12]} retry|done|skip --thread trip" in keel("tools", "trip", "--url", url).stdout


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_nothing_raw_reaches_the_terminal(url: str, columns: str) -> None:
    for command in (("tools", EVIL), ("tools", EVIL, "--full"), ("cache", "stats")):
        assert not RAW.search(keel(*command, "--url", url, COLUMNS=columns).stdout)


def test_a_doubt_is_settled_and_the_thread_goes_on(url: str) -> None:
    key = keel_json("tools", "trip", "--url", url)["calls"][1]["key"]
    with open_saver(url) as saver, ToolCache(saver, PAID) as cache, pytest.raises(ToolOutcomeUnknown, match=key[:16]):
        graph(saver, cache).invoke(None, config("trip"))
    told = keel("settle", key[:8], "done", "--thread", "trip", "--result", "paid, receipt 17", "--url", url).stdout
    assert "counts as done" in told
    with open_saver(url) as saver, ToolCache(saver, PAID) as cache:
        state = graph(saver, cache).invoke(None, config("trip"))
    assert [message.content for message in state["messages"] if message.type == "tool"][-1] == "paid, receipt 17"
    again = keel("settle", key[:8], "retry", "--thread", "trip", "--url", url, status=1)
    assert "nothing to settle" in again.stderr


def test_settle_names_what_it_does_not_find(url: str) -> None:
    assert "there is no call" in keel("settle", "0000", "retry", "-t", "trip", "--url", url, status=1).stderr
    assert "more than one call" in keel("settle", "", "retry", "-t", "trip", "--url", url, status=1).stderr
    assert "--shared" in keel("settle", "ab", "retry", "--url", url, status=1).stderr
    keel("settle", "ab", "perhaps", "-t", "trip", "--url", url, status=2)


def test_stats_count_by_tool_over_all_threads(url: str) -> None:
    pay_row, search_row = keel_json("cache", "stats", "--url", url)["tools"]
    assert (pay_row["tool"], pay_row["calls"], pay_row["unknown"], pay_row["hit_rate"]) == ("pay", 2, 2, 0.0)
    assert (search_row["calls"], search_row["done"], search_row["hits"], search_row["saved"]) == (2, 2, 2, 0.5)
    assert "50%" in keel("cache", "stats", "--url", url).stdout


def test_clear_forgets_what_is_settled_and_keeps_doubts(url: str) -> None:
    assert "--yes" in keel("cache", "clear", "--thread", "trip", "--url", url).stdout
    assert len(keel_json("tools", "trip", "--url", url)["calls"]) == 2
    assert "Forgot 1 call." in keel("cache", "clear", "--thread", "trip", "--yes", "--url", url).stdout
    assert [made["tool"] for made in keel_json("tools", "trip", "--url", url)["calls"]] == ["pay"]
    assert len(keel_json("tools", EVIL, "--url", url)["calls"]) == 2


def test_clear_takes_shared_calls_and_results_of_nodes(url: str) -> None:
    with open_saver(url) as saver:
        KeelCache(saver).set({(("ns",), "key"): (1, None)})
        shared = ToolCache(saver, default=ToolPolicy(scope="shared"))
        shared.tool(search).invoke({"query": "x"}, config("trip"))
    assert len(keel_json("tools", "--shared", "--url", url)["calls"]) == 1
    told = keel("cache", "clear", "--shared", "--nodes", "--yes", "--url", url).stdout
    assert "Forgot 1 call and all results of nodes." in told
    with open_saver(url) as saver:
        assert KeelCache(saver).get([(("ns",), "key")]) == {}
        assert list(saver.tools(None)) == []


def test_clear_wants_to_know_what(url: str) -> None:
    assert "say what to clear" in keel("cache", "clear", "--yes", "--url", url, status=1).stderr
    assert "--expired" in keel("cache", "clear", "--nodes", "--expired", "--url", url, status=1).stderr


def test_a_thread_or_shared_not_both(url: str) -> None:
    assert "not both" in keel("tools", "trip", "--shared", "--url", url, status=1).stderr
    assert "No tool calls of thread other" in keel("tools", "other", "--url", url).stdout
