"""Names and habits from LangGraph's savers are accepted, or answered with advice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from support.savers import SAVERS, needing

import langgraph_keel
from langgraph_keel import (
    FileSaver,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    PostgresSaver,
    RedisSaver,
    Retention,
    SqliteSaver,
    ToolCache,
    ToolPolicy,
    open_saver,
)


@pytest.mark.parametrize("name", ["SqliteSaver", "PostgresSaver", "RedisSaver"])
def test_async_names_are_aliases_of_the_same_classes(name: str) -> None:
    assert getattr(langgraph_keel, f"Async{name}") is getattr(langgraph_keel, name)


@pytest.mark.parametrize("name", SAVERS)
async def test_setup_and_close_work_as_on_savers_of_langgraph(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    needing(name, request)
    builder = StateGraph(MessagesState).add_node("add", lambda _: {"messages": []}).add_edge(START, "add")
    thread_id = uuid4()
    config: Any = {"configurable": {"thread_id": thread_id}}
    with SAVERS[name](tmp_path) as opened:
        saver: Any = opened
        saver.setup()
        await saver.setup()
        await saver.asetup()
        graph = builder.compile(checkpointer=saver)
        await graph.ainvoke({"messages": []}, config)
        await graph.ainvoke({"messages": []}, config)
        assert [each.thread_id async for each in saver.athreads()] == [str(thread_id)]
        assert len([each async for each in saver.alist(config)]) == 6
        await saver.adelete_thread(thread_id)
        assert await saver.aget_tuple(config) is None
        await saver.aclose()
        await saver.aclose()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: SqliteSaver("a.db", pipe=None),  # type: ignore[call-arg]
            "SqliteSaver has no option 'pipe': leave it out",
        ),
        (
            lambda: PostgresSaver.from_conn_string("postgresql://", pipeline=True),  # type: ignore[call-arg]
            "PostgresSaver.*'pipeline': leave it",
        ),
        (
            lambda: RedisSaver(redis_url="redis://"),  # type: ignore[call-arg]
            "RedisSaver.*'redis_url': pass the URL as the first argument",
        ),
        (
            lambda: RedisSaver(redis_client=object()),  # type: ignore[call-arg]
            "'redis_client': pass client=",
        ),
        (
            lambda: RedisSaver("redis://", refresh_ttl=True),  # type: ignore[call-arg]
            "do you mean 'refresh_ttl_on_read'",
        ),
        (
            lambda: FileSaver("a", keeplast=3),  # type: ignore[call-arg]
            "FileSaver has no option 'keeplast': do you mean 'keep_last'",
        ),
        (
            lambda: open_saver("sqlite:///a.db", on_drfit="raise"),  # type: ignore[call-arg]
            "SqliteSaver.*'on_drfit': do you mean 'on_drift'",
        ),
        (
            lambda: open_saver("memory:", zzz=1),  # type: ignore[call-arg]
            "MemorySaver has no option 'zzz': it has .*busy_timeout, .*types",
        ),
        (
            lambda: ToolPolicy(tll=60),  # type: ignore[call-arg]
            "ToolPolicy has no option 'tll': do you mean 'ttl'?",
        ),
        (
            lambda: Retention(keep=3),  # type: ignore[call-arg]
            "Retention has no option 'keep': it has branch_points, .*within",
        ),
        (
            lambda: FileSaver(3),  # type: ignore[arg-type]
            "a builtins.int is not a path",
        ),
    ],
)
def test_an_unsupported_argument_is_refused_with_advice(make: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make()


def test_a_connection_in_place_of_a_path_is_refused() -> None:
    connection: Any = sqlite3.connect(":memory:")
    with closing(connection), pytest.raises(InvalidInput, match=r"a sqlite3\.Connection is not a path.*pass the path"):
        SqliteSaver(connection)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (MemorySaver, "<MemorySaver>"),
        (lambda: SqliteSaver(":memory:"), "<SqliteSaver :memory:>"),
        (
            lambda: PostgresSaver("postgresql://ada:secret@db:5433/agents"),
            "<PostgresSaver PostgreSQL at db:5433/agents>",
        ),
        (lambda: RedisSaver("redis://:secret@db:6380/2"), "<RedisSaver redis://db:6380/2, prefix keel>"),
    ],
)
def test_repr_of_a_saver_names_its_store_and_no_password(make: Callable[[], KeelSaver], said: str) -> None:
    with make() as saver:
        assert repr(saver) == said


def test_repr_of_a_saver_on_disk_contains_its_path(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "a.db") as sqlite, FileSaver(tmp_path / "a\rb") as files:
        assert f"{sqlite!r} {files!r}" == rf"<SqliteSaver {tmp_path}/a.db> <FileSaver {tmp_path}/a\x0db>"


def test_repr_of_a_tool_cache_shows_policies_and_no_secret() -> None:
    policies = {"search": ToolPolicy(scope="thread", ttl=60), "sleep": None}
    with MemorySaver() as saver, ToolCache(saver, policies, secret=b"0123456789abcdef") as cache:
        said = f"{policies}, default={ToolPolicy()}"
        assert repr(cache) == f"ToolCache(<MemorySaver>, {said})"
