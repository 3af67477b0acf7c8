"""The options of savers are typed once: mypy and editors know them wherever a saver is made.

mypy checks this file with `warn_unused_ignores`: each `type: ignore` below is an error that it must find.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import assert_type

import pytest

from langgraph_keel import (
    FileSaver,
    InvalidInput,
    KeelSaver,
    MemorySaver,
    OpenOptions,
    PostgresSaver,
    RedisSaver,
    SaverOptions,
    SqliteSaver,
    open_saver,
)
from langgraph_keel.backends.files.saver import FileOptions
from langgraph_keel.backends.postgres.saver import PostgresOptions
from langgraph_keel.backends.redis.saver import RedisOptions
from langgraph_keel.backends.sqlite.saver import SqliteOptions
from langgraph_keel.options import OptionsBesidesTtl


def options_are_checked(path: Path) -> None:
    """Nobody calls this: it is for mypy."""
    assert_type(SqliteSaver(path, on_drift="raise", keep_last=3), SqliteSaver)
    SqliteSaver(path, on_drift="panic")  # type: ignore[arg-type]
    SqliteSaver(path, on_drfit="raise")  # type: ignore[call-arg]
    FileSaver(path, keep_last="3")  # type: ignore[arg-type]
    PostgresSaver("postgresql://", memo_bytes=None)  # type: ignore[arg-type]
    RedisSaver("redis://", owner="ada")  # type: ignore[arg-type]
    MemorySaver(read_only=True)  # type: ignore[call-arg]

    assert_type(FileSaver.from_conn_string("a", git=True, ttl=60), FileSaver)
    FileSaver.from_conn_string("a", git="yes")  # type: ignore[arg-type]
    SqliteSaver.from_conn_string("a", git=True)  # type: ignore[call-arg]
    RedisSaver.from_conn_string("redis://", durability="none")  # type: ignore[arg-type]

    assert_type(open_saver("sqlite:///a.db", graph_version="1.4", schema="agents", git=True), KeelSaver)
    open_saver("sqlite:///a.db", graph_version=1.4)  # type: ignore[arg-type]
    open_saver("sqlite:///a.db", grpah_version="1.4")  # type: ignore[call-arg]
    options: SaverOptions = {"on_conflict": "fork", "provenance": False}
    assert_type(MemorySaver(**options), MemorySaver)
    options["on_conflict"] = "merge"  # type: ignore[typeddict-item]


def arguments_of(saver: type[KeelSaver]) -> set[str]:
    parameters = inspect.signature(saver.__init__).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("saver", "options", "shared"),
    [
        (SqliteSaver, SqliteOptions, SaverOptions),
        (FileSaver, FileOptions, SaverOptions),
        (PostgresSaver, PostgresOptions, SaverOptions),
        (RedisSaver, RedisOptions, OptionsBesidesTtl),
    ],
)
def test_every_argument_of_a_saver_is_typed_in_all_places(saver: type[KeelSaver], options: type, shared: type) -> None:
    names = set(options.__annotations__)
    assert names - set(shared.__annotations__) == arguments_of(saver)
    assert names - {"read_only", "client", "async_client"} <= set(OpenOptions.__annotations__)


@pytest.mark.parametrize("make", [MemorySaver, lambda **options: open_saver("memory:", **options)])
def test_an_unknown_option_is_an_error_at_run_time_too(make: type[MemorySaver]) -> None:
    with pytest.raises(InvalidInput, match=r"'on_drfit'.*'on_drift'"):
        make(on_drfit="raise")  # type: ignore[call-arg]
