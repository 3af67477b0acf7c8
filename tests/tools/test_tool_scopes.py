"""Scopes and versions of results, nested calls, and idempotency keys."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolArg, StructuredTool, tool
from support.tool_graphs import Killed
from support.tools.caches import Clock, Counting, call, clock, config, keeping, saver

from langgraph_keel import InvalidConfig, KeelSaver, ToolCache, ToolOutcomeUnknown, ToolPolicy
from langgraph_keel.testing.faults import Fault, Injected, with_tap

__all__ = ["clock", "saver"]  # fixtures


def of_tenant(config: RunnableConfig) -> str:
    return str(config["configurable"]["tenant"])


def of(tenant: str, thread: str = "t") -> RunnableConfig:
    return config(thread, tenant=tenant)


def in_run(run: str, thread: str = "t") -> RunnableConfig:
    return {**config(thread), "metadata": {"run_id": run}}


@pytest.mark.parametrize(
    ("scope", "same", "others"),
    [
        ("thread", (config("t"), in_run("r")), [config("u")]),
        ("run", (in_run("r"), in_run("r")), [in_run("q"), in_run("r", "u")]),
        ("shared", (config("t"), config("u")), []),
        (of_tenant, (of("a", "t"), of("a", "u")), [of("b", "t"), of("", "t")]),
    ],
    ids=["thread", "run", "shared", "function"],
)
def test_a_scope_limits_the_reuse_of_results(
    saver: KeelSaver, scope: Any, same: tuple[RunnableConfig, RunnableConfig], others: list[RunnableConfig]
) -> None:
    make, cache = Counting(), keeping(saver, scope=scope)
    for where in (*same, *others, *same):
        call(cache, make.tool, "call-1", where)
    assert make.runs == 1 + len(others)


def test_scopes_do_not_share_results(saver: KeelSaver) -> None:
    make = Counting()
    where = {**of("r"), "metadata": {"run_id": "r"}}
    for scope in ("thread", "run", "shared", of_tenant):
        call(keeping(saver, scope=scope), make.tool, "call-1", where)  # type: ignore[arg-type]
    assert make.runs == 4


def test_a_run_scope_without_a_run_id_is_refused(saver: KeelSaver) -> None:
    make = Counting()
    with pytest.raises(InvalidConfig, match="run_id"):
        call(keeping(saver, scope="run"), make.tool)
    with pytest.raises(InvalidConfig, match="without a thread"):
        call(keeping(saver), make.tool, where={"configurable": {}})
    assert make.runs == 0


def test_the_context_of_a_cache_separates_calls(saver: KeelSaver) -> None:
    make = Counting()
    contexts: list[Any] = ["", "gpt-5", "gpt-6", of_tenant]
    for context in contexts * 2:
        call(ToolCache(saver, context=context), make.tool, "call-1", of("a"))
    assert make.runs == 4


def test_scope_and_context_are_delimited(saver: KeelSaver) -> None:
    make = Counting()
    for tenant, context in (("a", "b\nc"), ("a\nb", "c")):
        cache = ToolCache(saver, default=ToolPolicy(scope=of_tenant), context=context)
        call(cache, make.tool, "call-1", of(tenant))
    assert make.runs == 2


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_different_version_is_a_different_tool(saver: KeelSaver) -> None:
    make = Counting()
    for version in ("1", "1", "2", "2", "1"):
        call(keeping(saver, version=version), make.tool)
    assert make.runs == 3


def test_a_tool_whose_source_or_schema_changed_runs_again(saver: KeelSaver) -> None:
    runs: list[str] = []

    def one(x: int = 0) -> str:
        """Make."""
        runs.append("one")
        return "1"

    def other(x: int = 0) -> str:
        """Make."""
        runs.append("other")
        return "1"

    def wider(x: int = 0, y: int | None = None) -> str:
        """Make."""
        runs.append("wider")
        return "1"

    for function in (one, one, other, other, wider):
        call(keeping(saver), StructuredTool.from_function(function, name="make"))
    assert runs == ["one", "other", "wider"]


def test_one_cache_distinguishes_tools_with_equal_names(saver: KeelSaver) -> None:
    """A deleted tool's data is not used for a new tool at the same address."""
    cache = keeping(saver)
    seen = []
    for n in range(5):
        make = StructuredTool.from_function(eval(f"lambda x=0: {n}"), name="make", description=f"version {n}")
        seen.append(call(cache, make).content)
        del make
    assert seen == ["0", "1", "2", "3", "4"]


# -- nested calls ------------------------------------------------------------------------------------------------------


def nested(cache: ToolCache, depths: list[int]) -> StructuredTool:
    """A tool that calls itself through the same cache, three levels deep."""

    def make(x: int, config: RunnableConfig) -> str:
        """Make."""
        depths.append(x)
        return "deep" if len(depths) == 3 else str(cache.tool(it).invoke({"x": x}, config))

    async def amake(x: int, config: RunnableConfig) -> str:
        """Make."""
        depths.append(x)
        return "deep" if len(depths) == 3 else str(await cache.tool(it).ainvoke({"x": x}, config))

    it = StructuredTool.from_function(make, amake, name="make")
    return it


@pytest.mark.timeout(20)
async def test_a_tool_may_call_itself_with_equal_arguments(saver: KeelSaver) -> None:
    for thread in ("t", "u"):
        depths: list[int] = []
        cache = keeping(saver)
        it = cache.tool(nested(cache, depths))
        results = []
        for _ in range(2):
            results.append(
                it.invoke({"x": 1}, config(thread)) if thread == "t" else await it.ainvoke({"x": 1}, config(thread))
            )
        assert results == ["deep", "deep"]
        assert depths == [1, 1, 1]


# -- idempotency keys --------------------------------------------------------------------------------------------------


class Paying:
    """A tool `pay` that notes its idempotency keys and raises `end`, if it is set."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.end: BaseException | None = None

        @tool
        def pay(amount: int, once: Annotated[str, InjectedToolArg] = "") -> str:
            """Pay."""
            self.keys.append(once)
            if self.end:
                raise self.end
            return f"paid {amount}"

        self.tool = pay

    def cut_off(self, cache: ToolCache, end: BaseException) -> None:
        self.end = end
        with pytest.raises(type(end)):
            call(cache, self.tool, amount=1)
        self.end = None
        cache.close()


def paying(saver: KeelSaver, **policy: Any) -> ToolCache:
    return keeping(saver, idempotency_argument="once", **policy)


def test_every_attempt_at_a_call_has_the_same_idempotency_key(saver: KeelSaver, clock: Clock) -> None:
    pay, cache = Paying(), paying(saver, unknown="retry", ttl=60)
    for end in (Killed(), RuntimeError("refused"), Killed()):
        pay.cut_off(cache, end)
    assert call(cache, pay.tool, "call-2", amount=1).content == "paid 1"
    assert len(pay.keys) == 4
    assert len(set(pay.keys)) == 1
    assert len(pay.keys[0]) >= 32
    clock.now += 60_000
    call(cache, pay.tool, amount=1)
    call(cache, pay.tool, amount=2)
    assert len(set(pay.keys)) == 3


@pytest.mark.parametrize("end", [Killed(), RuntimeError()], ids=["unknown", "failed"])
@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
@pytest.mark.parametrize("trip", [0, 1])
def test_the_idempotency_key_survives_a_store_failure(
    saver: KeelSaver, end: BaseException, lost_reply: bool, trip: int
) -> None:
    """A failed attempt must keep the key under which an earlier one may have paid."""
    pay, fault = Paying(), Fault(lost_reply=lost_reply)
    cache = paying(with_tap(saver, fault), unknown="retry")
    pay.cut_off(cache, end)
    fault.arm(trip)
    with pytest.raises(Injected):
        call(cache, pay.tool, amount=1)
    cache.close()
    call(cache, pay.tool, amount=1)
    assert len(pay.keys) == 2
    assert len(set(pay.keys)) == 1


@pytest.mark.parametrize("lost_reply", [False, True], ids=["not sent", "reply lost"])
def test_a_doubt_survives_a_store_failure(saver: KeelSaver, lost_reply: bool) -> None:
    """A failed retry must leave the doubt, so that the next caller is notified of it."""
    pay, cache = Paying(), paying(with_tap(saver, Fault(2, lost_reply=lost_reply)), unknown="retry", version="1")
    pay.cut_off(paying(saver, version="1"), Killed())
    with pytest.raises(Injected):
        call(cache, pay.tool, amount=1)
    cache.close()
    with pytest.raises(ToolOutcomeUnknown):
        call(paying(saver, version="1"), pay.tool, amount=1)
    assert len(pay.keys) == 1


def test_an_interrupted_call_is_repeated_only_on_request(saver: KeelSaver) -> None:
    pay, cache = Paying(), paying(saver)
    pay.cut_off(cache, Killed())
    with pytest.raises(ToolOutcomeUnknown) as raised:
        call(cache, pay.tool, amount=1)
    assert len(pay.keys) == 1
    cache.settle(raised.value.thread_id, raised.value.key, "retry")
    assert call(cache, pay.tool, amount=1).content == "paid 1"
    assert len(pay.keys) == 2
    assert len(set(pay.keys)) == 1
