"""`keel tools`, `keel settle` and `keel cache`, on ledgers of killed agents."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from support.cli_threads import EVIL, RAW, keel, keel_json

from langgraph_keel import KeelCache, ToolCache, ToolOutcomeUnknown, ToolPolicy, open_saver
from langgraph_keel.cli.options import url_to_name
from langgraph_keel.errors import short_key

CALLS = [("search", {"query": "tides\x1b[2J"}), ("pay", {"amount": 100}), ("search", {"query": "tides\x1b[2J"})]
PAID = {"search": ToolPolicy(scope="thread", cost=0.25)}
LOOSE = ToolPolicy()


class Gone(BaseException):
    """Raised in place of the death of a process."""


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
    """A store with two threads that each searched twice, and died in a payment.

    The second search was answered from the ledger.
    """
    where = f"sqlite:///{tmp_path / 'agent.db'}"
    with open_saver(where) as saver, ToolCache(saver, PAID, store_arguments=True) as cache:
        for thread in ("trip", EVIL):
            with pytest.raises(Gone):
                graph(saver, cache).invoke({"messages": [("user", "go")]}, config(thread), durability="sync")
    return where


def test_tools_lists_calls_and_their_outcomes(url: str) -> None:
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


@pytest.mark.parametrize("columns", ["40", "200"])
@pytest.mark.parametrize("thread", ["trip", EVIL])
def test_suggested_commands_can_be_run_in_a_shell(url: str, thread: str, columns: str) -> None:
    key = keel_json("tools", thread, "--url", url)["calls"][1]["key"]
    lines = re.findall(r"^  (keel settle .*)$", keel("tools", thread, "--url", url, COLUMNS=columns).stdout, re.M)
    where = ["--thread", thread, "--url", url]
    for line, decision in zip(lines, ("done", "retry", "skip"), strict=True):
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
        assert words.stdout.splitlines() == ["keel", "settle", short_key(key), decision, *where]
    assert "--url" not in keel("tools", thread, KEEL_URL=url).stdout


@pytest.mark.parametrize("decision", ["done", "retry", "skip"])
def test_tools_suggests_a_command_for_each_outcome_of_a_doubt(url: str, decision: str) -> None:
    shown = keel("tools", "trip", "--url", url).stdout
    assert "done if it happened, retry if it did not" in shown
    (line,) = re.findall(rf"^  keel (settle .* {decision} .*)$", shown, re.M)
    keel(*shlex.split(line))
    assert keel_json("tools", "trip", "--url", url)["calls"][1]["decided"] == decision


@pytest.mark.parametrize("is_over", [True, False])
def test_a_failed_call_is_offered_for_settling_until_its_thread_has_finished(is_over: bool, tmp_path: Path) -> None:
    """A handled error becomes a message, and no resume makes its call again."""

    def charge(amount: int) -> str:
        """Charge, but lose the reply."""
        raise ValueError("no reply")

    where = f"sqlite:///{tmp_path / 'agent.db'}"
    made = {"name": "charge", "args": {"amount": 5}, "id": "call-1", "type": "tool_call"}
    with open_saver(where) as saver, ToolCache(saver) as cache:
        builder = StateGraph(MessagesState)
        node = ToolNode([charge], wrap_tool_call=cache.wrap_tool_call, handle_tool_errors=is_over)
        charging = builder.add_node("tools", node).add_edge(START, "tools").compile(checkpointer=saver)
        with nullcontext() if is_over else pytest.raises(ValueError, match="no reply"):
            charging.invoke({"messages": [AIMessage("", tool_calls=[made])]}, config("t"))
    shown = keel("tools", "t", "--url", where, COLUMNS="140").stdout
    assert re.search(r"charge.*failed", shown)
    assert ("keel settle " in shown) == (not is_over)


def test_a_copied_call_is_retried_only_with_moved(url: str, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    keel("copy", url, copy, "--with-shared", "--thread", "trip")
    key = short_key(keel_json("tools", "trip", "--url", copy)["calls"][1]["key"])
    words = ("settle", key, "retry", "--thread", "trip", "--url", copy)
    told = keel(*words, status=2).stderr
    assert re.search(r"was copied from .*--moved", told, re.DOTALL)
    assert keel_json("tools", "trip", "--url", copy)["calls"][1]["decided"] == ""
    keel(*words, "--moved", "--by", "ann")
    assert keel_json("tools", "trip", "--url", copy)["calls"][1]["decided"] == "retry"
    (event,) = keel_json("audit", "show", "--url", copy)["events"][-1:]
    assert (event["content"]["moved"], event["content"]["by"]) == (True, "ann")


def test_an_invalid_decision_is_refused(url: str) -> None:
    told = keel("settle", "abc", "done|retry|skip", "--thread", "trip", "--url", url, status=2, COLUMNS="200").stderr
    assert "'done|retry|skip' is not one of" in told
    assert "Value error" not in told


def test_arguments_are_shown_in_a_fixed_order(url: str) -> None:
    @tool
    def send(to: str, amount: int) -> str:
        """Send."""
        return "sent"

    with open_saver(url) as saver, ToolCache(saver, store_arguments=True) as kept:
        for args in ({"to": "bob", "amount": 1}, {"amount": 2, "to": "bob"}):
            kept.tool(send).invoke(args, config("orders"))
    shown = keel("tools", "orders", "--url", url, COLUMNS="140").stdout
    assert re.findall(r"send \{.*?\}", shown) == [f'send {{"amount": {n}, "to": "bob"}}' for n in (1, 2)]


def test_suggested_commands_mask_passwords() -> None:
    assert url_to_name("postgresql://ada:secret@localhost/agents") == "postgresql://ada:***@localhost/agents"


def doubtful(url: str, thread: str, count: int, policy: ToolPolicy = LOOSE) -> None:
    """Leave `count` calls with unknown outcomes in a thread."""
    with open_saver(url) as saver, ToolCache(saver, {"pay": policy}) as kept:
        for amount in range(count):
            with pytest.raises(Gone):
                kept.tool(pay).invoke({"amount": amount}, config(thread))


def test_tools_suggests_commands_for_at_most_five_doubts(url: str) -> None:
    doubtful(url, "many", 8)
    shown = keel("tools", "many", "--url", url).stdout
    assert (shown.count("  keel settle "), "and 3 more" in shown) == (15, True)


def test_tools_mentions_shared_calls(url: str) -> None:
    assert "keel tools --shared" not in keel("tools", "trip", "--url", url).stdout
    doubtful(url, "trip", 1, ToolPolicy(scope="shared"))
    assert "keel tools --shared" in keel("tools", "trip", "--url", url).stdout
    assert " done --shared --url" in keel("tools", "--shared", "--url", url).stdout


DECIDED = {"retry": "may run again", "done": "done (settled)", "skip": "skipped"}


@pytest.mark.parametrize("decision", DECIDED)
def test_tools_shows_the_decision_of_a_person(url: str, decision: str) -> None:
    key = keel_json("tools", "trip", "--url", url)["calls"][1]["key"]
    told = keel("settle", key[:6], decision.upper(), "-t", "trip", "--url", url).stdout
    assert re.match(rf"pay of thread trip: call {re.escape(short_key(key))} \w", told)
    shown = keel("tools", "trip", "--url", url, COLUMNS="140").stdout
    (line,) = [line for line in shown.splitlines() if short_key(key) in line]
    assert DECIDED[decision] in line
    assert not re.search(r"\d m?s ", line)  # the time the person took is not the tool's
    assert "a person said" not in shown
    assert keel_json("tools", "trip", "--url", url)["calls"][1]["decided"] == decision


def test_tools_shows_calls_without_a_cached_result(url: str) -> None:
    with open_saver(url) as saver, ToolCache(saver, default=ToolPolicy(cache_if=lambda result: False)) as kept:
        call = {"name": "search", "args": {"query": "x"}, "id": "call-\x1b9", "type": "tool_call"}
        kept.tool(search).invoke(call, config("loose"))
    (made,) = keel_json("tools", "loose", "--url", url)["calls"]
    shown = keel("tools", "loose", "--url", url, COLUMNS="140").stdout
    assert "done, not kept" in shown
    assert r"call call-\x1b9" in shown
    assert f"keel settle {short_key(made['key'])} done --thread loose --url" in shown
    keel("settle", short_key(made["key"]), "done", "--result", "found", "--thread", "loose", "--url", url)
    assert "not kept" not in keel("tools", "loose", "--url", url).stdout


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_control_characters_are_escaped(url: str, columns: str) -> None:
    for command in (("tools", EVIL), ("tools", EVIL, "--full"), ("cache", "stats")):
        assert not RAW.search(keel(*command, "--url", url, COLUMNS=columns).stdout)


def test_a_thread_resumes_after_a_doubt_is_settled(url: str) -> None:
    key = keel_json("tools", "trip", "--url", url)["calls"][1]["key"]
    name = re.escape(short_key(key))
    with open_saver(url) as saver, ToolCache(saver, PAID) as cache, pytest.raises(ToolOutcomeUnknown, match=name):
        graph(saver, cache).invoke(None, config("trip"))
    told = keel("settle", key[:8], "done", "--thread", "trip", "--result", "paid, receipt 17", "--url", url).stdout
    assert "counts as done" in told
    with open_saver(url) as saver, ToolCache(saver, PAID) as cache:
        state = graph(saver, cache).invoke(None, config("trip"))
    assert [message.content for message in state["messages"] if message.type == "tool"][-1] == "paid, receipt 17"
    again = keel("settle", key[:8], "retry", "--thread", "trip", "--url", url, status=1)
    assert "nothing to settle" in again.stderr


def test_settle_explains_unknown_calls_and_invalid_options(url: str) -> None:
    told = keel("settle", "000000", "retry", "-t", "trip", "--url", url, status=1).stderr
    assert "there is no call" in told
    assert url in told
    assert "first 6 characters" in keel("settle", "00000", "retry", "-t", "trip", "--url", url, status=2).stderr
    given = ("settle", "000000", "retry", "-t", "trip", "--result", "paid", "--url", url)
    assert "belongs to the decision 'done'" in keel(*given, status=2).stderr
    assert "--shared" in keel("settle", "ab", "retry", "--url", url, status=2).stderr
    keel("settle", "ab", "perhaps", "-t", "trip", "--url", url, status=2)


def test_stats_count_calls_by_tool_over_all_threads(url: str) -> None:
    pay_row, search_row = keel_json("cache", "stats", "--url", url)["tools"]
    assert (pay_row["tool"], pay_row["calls"], pay_row["unknown"], pay_row["hit_rate"]) == ("pay", 2, 2, 0.0)
    assert (search_row["calls"], search_row["done"], search_row["hits"], search_row["saved"]) == (2, 2, 2, 0.5)
    assert "50%" in keel("cache", "stats", "--url", url).stdout


def test_clear_removes_finished_calls_and_keeps_doubts(url: str) -> None:
    assert "--yes would clear 1 call (search ×1)" in keel("cache", "clear", "--thread", "trip", "--url", url).stdout
    assert keel_json("cache", "clear", "--thread", "trip", "--url", url) == {"calls": 1, "done": False}
    expired = keel("cache", "clear", "--thread", "trip", "--expired", "--url", url).stdout
    assert expired == "There is nothing to clear.\n"
    assert len(keel_json("tools", "trip", "--url", url)["calls"]) == 2
    assert "Cleared 1 call." in keel("cache", "clear", "--thread", "trip", "--yes", "--url", url).stdout
    assert [made["tool"] for made in keel_json("tools", "trip", "--url", url)["calls"]] == ["pay"]
    assert len(keel_json("tools", EVIL, "--url", url)["calls"]) == 2


@pytest.mark.parametrize(("said", "status", "left"), [("n\n", 1, 2), ("y\n", 0, 1)], ids=["no", "yes"])
def test_clear_asks_for_confirmation_in_a_terminal(
    url: str, typed: Any, capfd: pytest.CaptureFixture[str], said: str, status: int, left: int
) -> None:
    """Like every command that has --yes."""
    assert typed(said, "cache", "clear", "--thread", "trip", "--url", url) == status
    out, err = capfd.readouterr()
    assert out.startswith("Would clear 1 call (search ×1)")
    assert "Clear? [y/N]" in err
    assert len(keel_json("tools", "trip", "--url", url)["calls"]) == left


def test_clear_asks_nothing_if_there_is_nothing_to_clear(
    url: str, typed: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed("", "cache", "clear", "--thread", "trip", "--expired", "--url", url) == 0
    assert capfd.readouterr().out == "There is nothing to clear.\n"


def test_clear_removes_shared_calls_and_node_results(url: str) -> None:
    with open_saver(url) as saver:
        KeelCache(saver).set({(("ns",), "key"): (1, None)})
        shared = ToolCache(saver, default=ToolPolicy(scope="shared"))
        shared.tool(search).invoke({"query": "x"}, config("trip"))
    assert len(keel_json("tools", "--shared", "--url", url)["calls"]) == 1
    told = keel("cache", "clear", "--shared", "--nodes", "--yes", "--url", url).stdout
    assert "Cleared 1 call and all node results." in told
    with open_saver(url) as saver:
        assert KeelCache(saver).get([(("ns",), "key")]) == {}
        assert list(saver.tools.calls(None)) == []


def test_clear_with_nodes_only_counts_no_calls(url: str) -> None:
    assert keel("cache", "clear", "--nodes", "--yes", "--url", url).stdout == "Cleared all node results.\n"


@pytest.mark.parametrize("scheme", ["sqlite:///", "files:"])
def test_a_missing_store_is_not_created(scheme: str, tmp_path: Path) -> None:
    where = f"{scheme}{tmp_path / 'missing'}"
    for command in (
        ("settle", "000000", "retry", "-t", "trip"),
        ("cache", "clear", "-t", "trip"),
        ("cache", "clear", "-t", "trip", "--yes"),
        ("cache", "clear", "--nodes", "--yes"),
    ):
        told = keel(*command, "--url", where, status=1).stderr
        assert "there is no" in told
        assert str(tmp_path / "missing") in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cost", ["a lot", float("nan")], ids=str)
def test_stats_ignore_an_invalid_cost(url: str, cost: Any) -> None:
    policy = ToolPolicy(scope="shared")
    object.__setattr__(policy, "cost", cost)
    doubtful(url, "bad", 1, policy)
    pay_row, _ = keel_json("cache", "stats", "--url", url)["tools"]
    assert (pay_row["calls"], pay_row["saved"]) == (3, 0.0)
    keel("tools", "--shared", "--url", url)


def test_clear_without_a_selection_is_refused(url: str) -> None:
    assert "choose the results to clear" in keel("cache", "clear", "--yes", "--url", url, status=2).stderr
    assert "--expired" in keel("cache", "clear", "--nodes", "--expired", "--url", url, status=2).stderr


def test_a_thread_and_shared_together_are_refused(url: str) -> None:
    assert "not both" in keel("tools", "trip", "--shared", "--url", url, status=2).stderr
    with open_saver(url) as saver:
        config: Any = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
        saver.put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    assert "No tool calls of thread other" in keel("tools", "other", "--url", url).stdout


def test_an_unknown_thread_is_an_error(url: str) -> None:
    assert "there is no thread 'nobody'" in keel("tools", "nobody", "--url", url, status=1).stderr
    assert "name a thread" in keel("tools", "--url", url, status=2).stderr


def test_a_call_that_is_retried_automatically_needs_no_settling(url: str) -> None:
    policies = PAID | {"pay": ToolPolicy(unknown="retry")}
    with open_saver(url) as saver, ToolCache(saver, policies) as cache, pytest.raises(Gone):
        graph(saver, cache).invoke({"messages": [("user", "go")]}, config("again"), durability="sync")
    calls = keel_json("tools", "again", "--url", url)["calls"]
    assert [(call["state"], call["retries"]) for call in calls] == [("done", False), ("unknown", True)]
    assert "keel settle" not in keel("tools", "again", "--url", url).stdout
    assert keel_json("tools", "again", "--unknown", "--url", url)["calls"] == []
    assert len(keel_json("tools", "--unknown", "--url", url)["calls"]) == 2


def test_doubts_of_all_threads_are_listed_with_settle_commands(url: str) -> None:
    found = keel_json("tools", "--unknown", "--url", url)
    assert found["thread_id"] is None
    assert sorted(call["thread_id"] for call in found["calls"]) == sorted([EVIL, "trip"])
    assert {(call["tool"], call["state"]) for call in found["calls"]} == {("pay", "unknown")}
    shown = keel("tools", "--unknown", "--url", url, COLUMNS="200").stdout
    assert shown.count("keel settle") == 2 * 3
    assert "--thread trip" in shown
    assert all(call["idempotency_key"] in shown for call in found["calls"])
    assert not RAW.search(shown)
    assert [call["thread_id"] for call in keel_json("tools", "trip", "--unknown", "--url", url)["calls"]] == ["trip"]
    key = next(call["key"] for call in found["calls"] if call["thread_id"] == "trip")
    keel("settle", key, "done", "--thread", "trip", "--result", "paid", "--url", url)
    assert [call["thread_id"] for call in keel_json("tools", "--unknown", "--url", url)["calls"]] == [EVIL]
    assert "unknown outcome" in keel("tools", "--unknown", "--shared", "--url", url).stdout


def test_a_doubt_of_a_thread_without_a_checkpoint_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run was killed in the first step, before it stored any checkpoint."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    monkeypatch.setitem(globals(), "CALLS", [CALLS[1]])

    def put(*_: Any) -> None:
        raise Gone

    with open_saver(url) as saver, ToolCache(saver) as cache:
        monkeypatch.setattr(saver, "put", put)
        with pytest.raises(Gone):
            graph(saver, cache).invoke({"messages": [("user", "go")]}, config("t"), durability="exit")
        assert list(saver.threads()) == []
    (doubt,) = keel_json("tools", "--unknown", "--url", url)["calls"]
    assert (doubt["thread_id"], doubt["tool"]) == ("t", "pay")
