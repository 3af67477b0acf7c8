"""Problems of new users: doubts, exits, wrong policies, failing functions."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from support.cli_threads import keel
from support.places import Place
from support.tool_graphs import FACES, Killed, answers, calls, hello, question, resume, run, thread, tool_graph
from support.tools.caches import THREAD

from langgraph_keel import (
    InvalidConfig,
    InvalidInput,
    MemorySaver,
    SqliteSaver,
    ToolCache,
    ToolOutcomeUnknown,
    ToolPolicy,
)

pytestmark = pytest.mark.timeout(120)
PAY = calls(("pay", {"amount": 100}, "call-1"))


def mortal(runs: list[int]) -> BaseTool:
    """A tool that is cut off at its first call."""

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        runs.append(amount)
        if len(runs) == 1:
            raise Killed
        return f"paid {amount}"

    return pay


def looking(runs: list[str]) -> BaseTool:
    @tool
    def look(q: str) -> str:
        """Look."""
        runs.append(q)
        return f"seen {q}"

    return look


LOOK = calls(("look", {"q": "x"}, "call-1"))
TWICE = [LOOK, calls(("look", {"q": "x"}, "call-2"))]


def of_all(config: RunnableConfig) -> str:
    return "all"


# -- doubts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["thread", "shared", of_all], ids=["thread", "shared", "function"])
@pytest.mark.parametrize("way", ["command", "method"])
def test_a_doubt_explains_how_to_settle_it(scope: Any, way: str, tmp_path: Path) -> None:
    runs: list[int] = []
    with SqliteSaver(tmp_path / "keel.db") as saver:
        cache = ToolCache(saver, {"pay": ToolPolicy(scope=scope)})
        graph = tool_graph(cache, [mortal(runs)], [PAY])
        with pytest.raises(Killed):
            graph.invoke(hello(), thread("ada l."))
        cache.close()
        with pytest.raises(ToolOutcomeUnknown, match="skip") as caught:
            graph.invoke(None, thread("ada l."))
        doubt = caught.value
        assert (doubt.thread_id, doubt.tool_call_id) == ("ada l." if scope == "thread" else None, "call-1")
        again = pickle.loads(pickle.dumps(doubt))
        assert (again.thread_id, again.tool_call_id, str(again)) == (doubt.thread_id, "call-1", str(doubt))
        if way == "method":
            cache.settle(doubt.thread_id, doubt.key, "Retry")
        else:
            commands = [shlex.split(command) for command in re.findall("`keel (.*?)`", str(doubt))]
            assert [words[2] for words in commands] == ["done", "retry", "skip"]
            told = keel(*commands[1], "--url", f"sqlite:///{tmp_path}/keel.db", COLUMNS="300").stdout
            assert f"pay of thread ada l.: call {doubt.key[:12]} may run again" in told
        assert answers(graph.invoke(None, thread("ada l.")))["call-1"].content == "paid 100"
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("key", "decision", "result", "problem"),
    [
        (None, "done", None, "None is not a call's key"),
        ("abcde", "done", None, "at least its first 6"),
        ("abcdef", "retry", "paid", "belongs to the decision 'done'"),
        ("abcdef", "perhaps", None, "'perhaps' is not an answer"),
        ("abcdef", None, None, "None is not an answer"),
    ],
)
def test_invalid_settlements_are_refused(key: Any, decision: Any, result: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ToolCache(MemorySaver()).settle("t", key, decision, result)


@pytest.mark.parametrize("answer", ["Skip", {"decision": " DONE "}], ids=str)
async def test_a_question_shows_arguments_and_accepts_any_case(answer: Any) -> None:
    runs: list[int] = []
    with ToolCache(MemorySaver(), default=ToolPolicy(unknown="ask")) as cache:
        graph = tool_graph(cache, [mortal(runs)], [PAY])
        with pytest.raises(Killed):
            await run(graph, "sync", hello(), thread("t"))
        cache.close()
        asked = question(await run(graph, "sync", None, thread("t")))
        assert (asked["args"], asked["tool_call_id"]) == ({"amount": 100}, "call-1")
        assert [call.args for call in cache.saver.tools.calls("t")] == [None]  # not stored without `store_arguments`
        assert "call-1" in answers(await resume(graph, "sync", answer, thread("t")))
        decided = "skip" if answer == "Skip" else "done"
        assert [call.decided for call in cache.saver.tools.calls("t")] == [decided]
    assert runs == [100]


# -- the end of a program ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
async def test_closing_the_saver_writes_the_hits(place: Place, face: str) -> None:
    def blocking() -> None:
        with place.open() as saver:
            tool_graph(ToolCache(saver, default=THREAD), [looking([])], TWICE).invoke(hello(), thread("t"))

    async def running() -> None:
        async with place.open() as saver:
            graph = tool_graph(ToolCache(saver, default=THREAD), [looking([])], TWICE)
            await graph.ainvoke(hello(), thread("t"))

    await (asyncio.to_thread(blocking) if face == "sync" else running())
    with place.open() as saver:
        assert [call.hits for call in saver.tools.calls("t")] == [1]


def test_closing_a_copy_writes_the_hits_and_closing_twice_is_harmless() -> None:
    saver = MemorySaver()
    cache = ToolCache(saver, default=THREAD)
    tool_graph(cache, [looking([])], TWICE).invoke(hello(), thread("t"))
    saver.with_allowlist([("a", "B")]).close()
    assert [call.hits for call in saver.tools.calls("t")] == [1]
    saver.close()


@pytest.mark.slow
def test_a_saver_does_not_keep_its_caches_alive() -> None:
    saver = MemorySaver()
    ToolCache(saver)
    gc.collect()
    assert not [kept for kept in saver.engine.closers if isinstance(kept, ToolCache)]


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost": "0.25"},
        {"cost": float("nan")},
        {"cost": -1},
        {"cost": True},
        {"ttl": "3600"},
        {"ttl": float("inf")},
        {"ttl": 0},
        {"max_bytes": "1"},
        {"cache_if": True},
        {"ignore": "conn"},
        {"ignore": None},
        {"ignore": [1]},
        {"unknown_errors": "TimeoutError"},
        {"unknown_errors": [TimeoutError]},
        {"unknown_errors": (TimeoutError, KeyboardInterrupt)},
        {"idempotency_argument": True},
        {"idempotency_argument": ""},
    ],
    ids=str,
)
def test_invalid_policies_are_refused_by_option(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{next(iter(wrong))}="):
        ToolPolicy(**wrong)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policies": {"pay": "retry"}}, "policy of pay"),
        ({"policies": {"pay": ToolPolicy}}, "policy of pay"),
        ({"policies": [ToolPolicy()]}, "by the names of tools"),
        ({"default": {"unknown": "retry"}}, "default"),
        ({"secret": "s" * 32}, "bytes, not str"),
        ({"lease": "30"}, "lease"),
    ],
    ids=str,
)
def test_invalid_cache_options_are_refused_by_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ToolCache(MemorySaver(), **options)


def test_a_plain_function_is_not_accepted_as_a_tool() -> None:
    def pay(amount: int) -> str:
        return "paid"

    with pytest.raises(InvalidInput, match=r"langchain_core\.tools\.tool\(function\)"):
        ToolCache(MemorySaver()).tool(pay)  # type: ignore[arg-type]


PLAIN = {"type": "object", "properties": {"q": {"type": "string"}}}


@pytest.mark.parametrize("policy", [{"ignore": ["Q"]}, {"idempotency_argument": "key"}], ids=str)
@pytest.mark.parametrize("schema", [None, PLAIN], ids=["model", "plain"])
def test_a_policy_that_names_an_unknown_argument_is_refused(policy: dict[str, Any], schema: Any) -> None:
    runs: list[str] = []
    look = looking(runs)
    if schema:
        look = StructuredTool(name="look", description="Look", args_schema=schema, func=lambda q: runs.append(q))
    cache = ToolCache(MemorySaver(), {"look": ToolPolicy(**policy)})
    graph = tool_graph(cache, [look], TWICE)
    for _ in range(2):
        with pytest.raises(InvalidInput, match=f"{next(iter(policy))}=.*'look' has no such argument; it has q"):
            graph.invoke(hello(), thread("t"))
    assert list(cache.saver.tools.calls("t")) == []
    assert runs == []


def test_a_policy_may_name_injected_and_extra_arguments() -> None:
    keys: list[str] = []

    @tool
    def look(q: str, key: Annotated[str, InjectedToolArg] = "", **kwargs: Any) -> str:
        """Look."""
        keys.append(key)
        return q

    policy = ToolPolicy(ignore=["anything"], idempotency_argument="key")
    with ToolCache(MemorySaver(), {"look": policy}) as cache:
        assert cache.tool(look).invoke({"q": "x"}, thread("t")) == "x"
    assert len(keys[0]) == 32


@pytest.mark.parametrize(("name", "warned"), [("serch", True), ("other", False), ("search_b", False)])
def test_a_policy_for_a_misspelt_tool_name_is_warned_of(
    name: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """For any tool, once one is called; once, even if the tools are made again."""

    def search(q: str) -> str:
        """Search."""
        return "found"

    def search_b(q: str) -> str:
        """Search."""
        return "found"

    with caplog.at_level(logging.WARNING), ToolCache(MemorySaver(), {name: ToolPolicy(ttl=60)}) as cache:
        for q in "xy":
            script = [calls(("search_b", {"q": q}, f"call-{q}"))]
            tool_graph(cache, [tool(search), tool(search_b)], script).invoke(hello(), thread(q))
    told = [record.getMessage() for record in caplog.records]
    assert told == (
        ["tool 'search' has no policy, but 'serch', which is not a tool, has one: is that name misspelt?"] * warned
    )


# -- user functions that fail ------------------------------------------------------------------------------------------


def of_tenant(config: RunnableConfig) -> str:
    return str(config["configurable"]["tenant"])


def of_nobody(config: RunnableConfig) -> Any:
    return None


@pytest.mark.parametrize(("scope", "cause"), [(of_tenant, KeyError), (of_nobody, InvalidInput)])
def test_a_failing_scope_function_names_the_tool(scope: Callable[[Any], str], cause: type[Exception]) -> None:
    runs: list[str] = []
    cache = ToolCache(MemorySaver(), {"look": ToolPolicy(scope=scope)})
    with pytest.raises(InvalidInput, match="tool 'look': the scope function of its ToolPolicy") as caught:
        tool_graph(cache, [looking(runs)], TWICE).invoke(hello(), thread("t"))
    assert isinstance(caught.value.__cause__, cause)
    assert runs == []


@pytest.mark.parametrize("face", FACES)
async def test_a_failing_cache_if_does_not_lose_the_result(face: str, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []
    policy = ToolPolicy(scope="thread", cache_if=lambda result: 1 // 0 > 0)
    with ToolCache(MemorySaver(), {"look": policy}) as cache:
        said = answers(await run(tool_graph(cache, [looking(runs)], TWICE), face, hello(), thread("t")))
        assert said["call-1"].content == "seen x"
        assert [(call.state, call.is_kept) for call in cache.saver.tools.calls("t")] == [("done", False)]
    assert "tool 'look': its result is not kept, because cache_if of its ToolPolicy failed" in caplog.text
    assert runs == ["x", "x"]  # two calls by the model, neither of them kept


# -- runs --------------------------------------------------------------------------------------------------------------


def looking_graph(cache: ToolCache, runs: list[str]) -> Any:
    kept = cache.tool(looking(runs))

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", kept.invoke({"q": "x"}))]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node")


RUNS = [UUID(int=1), UUID(int=1), UUID(int=2)]


def test_the_run_id_of_the_config_names_the_run() -> None:
    runs: list[str] = []
    with ToolCache(MemorySaver(), default=ToolPolicy(scope="run")) as cache:
        graph = looking_graph(cache, runs).compile(checkpointer=cache.saver)
        with pytest.raises(InvalidConfig, match="run_id"):
            graph.invoke(hello(), thread("t"))
        for run_id in RUNS:
            graph.invoke(hello(), {**thread("t"), "run_id": run_id})
        assert {call.run_id for call in cache.saver.tools.calls("t")} == {str(run_id) for run_id in RUNS}
    assert runs == ["x", "x"]


def test_the_run_id_in_the_metadata_reaches_a_subgraph() -> None:
    runs: list[str] = []
    with ToolCache(MemorySaver(), default=ToolPolicy(scope="run")) as cache:
        inner = looking_graph(cache, runs).compile()
        builder = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
        graph: Any = builder.compile(checkpointer=cache.saver)
        with pytest.raises(InvalidConfig, match="in a subgraph: in its metadata"):
            graph.invoke(hello(), {**thread("t"), "run_id": RUNS[0]})
        for _ in range(2):
            graph.invoke(hello(), {**thread("t"), "metadata": {"run_id": "r"}})
    assert runs == ["x"]


# -- imports -----------------------------------------------------------------------------------------------------------

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == sys.argv[1] else found(name, *more)
sys.meta_path.insert(0, Missing())
from langgraph_keel import *
print(*[name for name in ("SqliteSaver", "PostgresSaver", "RedisSaver") if name in globals()])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("client", "there"), [("psycopg", "SqliteSaver RedisSaver"), ("redis", "SqliteSaver PostgresSaver")]
)
def test_a_star_import_skips_savers_without_their_client(client: str, there: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT, client], capture_output=True, text=True, check=True)
    assert done.stdout.split() == there.split()
