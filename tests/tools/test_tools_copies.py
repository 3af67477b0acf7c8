"""Copies of threads with tool calls: a resumed copy does not repeat a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.savers import each_face
from support.tool_graphs import ASKED, answers, hello, question, resume, run, thread
from test_tools_forks import BOTH, Shop, die, graph_of, saver, shop, states_of

from langgraph_keel import InvalidInput, KeelSaver, MemorySaver, SqliteSaver, ToolOutcomeUnknown
from langgraph_keel.moving.copy import CopyReport

__all__ = ["saver", "shop"]  # fixtures


def refused(report: CopyReport, *tools: str) -> bool:
    """Whether thread `t` was not copied because it would call these tools again."""
    return not report.copied and f"repeat these tool calls: {', '.join(tools)}. The target" in report.failed["t"]


async def ask(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Let an agent look something up and ask a person in the same step."""
    shop.asks = True
    assert ASKED in await run(graph_of(saver, shop, BOTH), face, hello(), thread("t"))


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_result_that_is_not_in_the_state_is_copied_or_refused(tmp_path: Path, face: str) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await ask(source, face, shop)
        assert refused(source.moving.copy_to(target, mode="look"), "look")
        assert refused(source.moving.copy_to(target), "look")
        assert target.get_tuple(thread("t")) is None
        assert source.moving.copy_to(target, shared=True).is_done
        assert source.moving.copy_to(target).is_done  # with the same secret, which the target has now
        await resume(graph_of(target, shop, BOTH), face, "yes", thread("t"))
        assert (shop.looked, len(shop.refunded)) == (["17"], 1)


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_call_in_doubt_is_copied_or_refused(tmp_path: Path, face: str) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await die(graph_of(source, shop), face, shop)
        assert refused(source.moving.copy_to(target), "refund")
        assert source.moving.copy_to(target, shared=True).is_done
        with pytest.raises(ToolOutcomeUnknown):
            await run(graph_of(target, shop), face, None, thread("t"))
        assert len(shop.refunded) == 1


async def test_unused_results_are_not_copied_to_a_target_with_another_secret(tmp_path: Path) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await run(graph_of(target, Shop()), "sync", hello(), thread("own"))
        await ask(source, "sync", shop)
        assert refused(source.moving.copy_to(target, shared=True), "look")
        await resume(graph_of(source, shop, BOTH), "sync", "yes", thread("t"))
        report = source.moving.copy_to(target)  # its results are part of the state now
        assert (report.copied, report.failed, "secret" in report.left) == (1, {}, True)


# -- an open call, in the copy and in the original -------------------------------------------------------------------


async def copied(source: KeelSaver, target: KeelSaver, face: str, **options: Any) -> CopyReport:
    """Copy all threads, with the secret of the ledger."""
    copy = source.moving.copy_to if face == "sync" else source.moving.acopy_to
    done: Any = copy(target, shared=True, **options)
    report: CopyReport = done if face == "sync" else await done
    assert report.is_done
    return report


@pytest.mark.parametrize("decided", ["", "retry"])
@each_face
async def test_an_open_call_in_a_copy_belongs_to_the_original(
    saver: KeelSaver, face: str, shop: Shop, decided: str
) -> None:
    """The original may still make the call, or has made it: the copy cannot know."""
    with MemorySaver() as source:
        await die(graph_of(source, shop), face, shop)
        (call,) = source.tools.calls("t")
        if decided:
            source.tools.settle("t", call.key, decided)
        await copied(source, saver, face)
        assert (await copied(source, saver, face, mode="verify")).copied == 0
    (there,) = saver.tools.calls("t")
    assert (there.state, there.decided, there.original, bool(there.copied_from)) == ("unknown", "", "", True)
    assert "was copied or imported" in str(saver.status("t"))
    assert [each.key for each in saver.status("t").doubts] == [call.key]
    graph = graph_of(saver, shop)
    with pytest.raises(ToolOutcomeUnknown):
        await run(graph, face, None, thread("t"))
    with pytest.raises(InvalidInput, match=r"was copied from .* moved=True"):
        await saver.tools.asettle("t", call.key, "retry")
    assert (states_of(saver, "t"), len(shop.refunded)) == (["unknown"], 1)
    await saver.tools.asettle("t", call.key, "retry", by="ann", moved=True)
    assert (saver.approvals.audit()[-1].content or {})["moved"] is True
    result = await run(graph, face, None, thread("t"))
    assert (answers(result)["call-1"].content, len(shop.refunded), len(set(shop.refunded))) == ("refunded", 2, 1)


@each_face
async def test_an_open_call_belongs_to_the_original_in_forks_of_a_copy_too(
    saver: KeelSaver, face: str, shop: Shop
) -> None:
    """Also if the copied thread was deleted, and in a third store."""
    with MemorySaver() as source, MemorySaver() as third:
        await die(graph_of(source, shop), face, shop)
        (call,) = source.tools.calls("t")
        await copied(source, saver, face)
        saver.fork(thread("t"), "fork")
        saver.copy_thread("t", "other")

        def shared(saver: KeelSaver) -> list[tuple[str, bool]]:
            names = ("fork", "other")
            return [(each.original, bool(each.copied_from)) for name in names for each in saver.tools.calls(name)]

        assert shared(saver) == [("t", False), ("t", False)]
        saver.delete_thread("t")
        await copied(saver, third, face)
        assert shared(saver) == shared(third) == [("", True), ("fork", False)]
        for each in (saver, third):
            with pytest.raises(InvalidInput, match="was copied from"):
                await each.tools.asettle("fork", call.key, "retry")
        await saver.tools.asettle("fork", call.key, "done")
        assert states_of(saver, "fork", "other") == ["done", "done"]


@each_face
async def test_a_question_about_a_copied_call_does_not_offer_retry(saver: KeelSaver, face: str, shop: Shop) -> None:
    with MemorySaver() as source:
        await die(graph_of(source, shop), face, shop)
        await copied(source, saver, face)
    graph = graph_of(saver, shop, unknown="ask")
    asked = question(await run(graph, face, None, thread("t")))
    assert (asked["decisions"], bool(asked["copied_from"])) == (["done", "skip"], True)
    asked = question(await resume(graph, face, "retry", thread("t")))
    assert ("was copied from" in asked["problem"], len(shop.refunded)) == (True, 1)


@each_face
async def test_a_repeated_copy_updates_finished_calls(saver: KeelSaver, face: str, shop: Shop) -> None:
    with MemorySaver() as source:
        graph = graph_of(source, shop)
        await die(graph, face, shop)
        await copied(source, saver, face)
        (call,) = source.tools.calls("t")
        source.tools.settle("t", call.key, "retry")
        await copied(source, saver, face)
        assert states_of(saver, "t") == ["unknown"]
        await run(graph, face, None, thread("t"))
        await copied(source, saver, face)
    assert (states_of(saver, "t"), saver.status("t").state, len(shop.refunded)) == (["done"], "idle", 2)


async def test_a_call_that_may_be_retried_is_not_copied_without_the_secret(tmp_path: Path) -> None:
    """Without the secret, the copy's run would make it as a new call."""
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await die(graph_of(source, shop), "sync", shop)
        (call,) = source.tools.calls("t")
        source.tools.settle("t", call.key, "retry")
        assert refused(source.moving.copy_to(target), "refund")
