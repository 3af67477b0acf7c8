"""Copies of threads with tool calls: a run that is resumed in the target does not make a call a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tool_graphs import ASKED, hello, resume, run, thread
from test_tools_forks import BOTH, Shop, die, graph_of

from langgraph_keel import KeelSaver, SqliteSaver, ToolOutcomeUnknown
from langgraph_keel.moving.copy import CopyReport


def refused(report: CopyReport, *tools: str) -> bool:
    """Whether thread `t` was not copied, as these tools would be called again."""
    return not report.copied and f"these tool calls again: {', '.join(tools)}. The target" in report.failed["t"]


async def ask(saver: KeelSaver, face: str, shop: Shop) -> None:
    """Let an agent look, and ask a person in the same step."""
    shop.asks = True
    assert ASKED in await run(graph_of(saver, shop, BOTH), face, hello(), thread("t"))


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_result_that_no_state_has_yet(tmp_path: Path, face: str) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await ask(source, face, shop)
        assert refused(source.moving.copy_to(target, mode="look"), "look")
        assert refused(source.moving.copy_to(target), "look")
        assert target.get_tuple(thread("t")) is None
        assert source.moving.copy_to(target, shared=True).is_done
        assert source.moving.copy_to(target).is_done  # with the same secret, which it has by now
        await resume(graph_of(target, shop, BOTH), face, "yes", thread("t"))
        assert (shop.looked, len(shop.refunded)) == (["17"], 1)


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_call_in_doubt(tmp_path: Path, face: str) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await die(graph_of(source, shop), face, shop)
        assert refused(source.moving.copy_to(target), "refund")
        assert source.moving.copy_to(target, shared=True).is_done
        with pytest.raises(ToolOutcomeUnknown):
            await run(graph_of(target, shop), face, None, thread("t"))
        assert len(shop.refunded) == 1


async def test_a_target_with_another_secret(tmp_path: Path) -> None:
    shop = Shop()
    with SqliteSaver(tmp_path / "one.db") as source, SqliteSaver(tmp_path / "two.db") as target:
        await run(graph_of(target, Shop()), "sync", hello(), thread("own"))
        await ask(source, "sync", shop)
        assert refused(source.moving.copy_to(target, shared=True), "look")
        await resume(graph_of(source, shop, BOTH), "sync", "yes", thread("t"))
        report = source.moving.copy_to(target)  # its results are part of the state now
        assert (report.copied, report.failed, "secret" in report.left) == (1, {}, True)
