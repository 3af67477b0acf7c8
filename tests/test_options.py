"""The options of savers are typed once; type checkers know them everywhere.

mypy checks this file with `warn_unused_ignores`: each `type: ignore` below is an error that it must find.
"""

from __future__ import annotations

import ast
import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type, get_type_hints

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

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
from langgraph_keel.engine.hooks import Hook
from langgraph_keel.options import FileOptions, PostgresOptions, RedisOptions, SqliteOptions, options_of


def options_are_checked(path: Path) -> None:
    """Never called: it is for mypy."""
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


@pytest.mark.parametrize(
    ("saver", "options"),
    [
        (KeelSaver, SaverOptions),
        (MemorySaver, SaverOptions),
        (SqliteSaver, SqliteOptions),
        (FileSaver, FileOptions),
        (PostgresSaver, PostgresOptions),
        (RedisSaver, RedisOptions),
    ],
)
def test_every_option_is_in_the_signature_and_typed_for_open_saver(saver: type[KeelSaver], options: type) -> None:
    parameters = inspect.signature(saver).parameters.values()
    named = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert named == {name: option.default for name, option in options_of(options).items()}
    types, opened = get_type_hints(options), get_type_hints(OpenOptions)
    elsewhere = {"read_only", "client", "async_client"}
    assert {name: types[name] for name in types if name not in elsewhere}.items() <= opened.items()


def read_default(text: str) -> object:
    number, _, unit = text.partition(" ")
    if number.isdigit():
        return int(number) * {"": 1, "KB": 1 << 10, "MB": 1 << 20}[unit]
    return ast.literal_eval(text.strip("`")) if text.startswith("`") else None


def test_the_table_of_options_is_complete_with_defaults() -> None:
    page = (Path(__file__).parents[1] / "langgraph_keel" / "options.md").read_text()
    table = page.partition("## Options of every saver")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|")[:2] for line in table.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.split(",")] for line in rows for row in line]
    written = {
        name.strip("`"): read_default(default)
        for names, defaults in zip(cells[::2], cells[1::2], strict=True)
        for name, default in zip(names, defaults, strict=True)
    }
    given = {name: option.default for name, option in options_of(SaverOptions).items()}
    assert written == given | {"upgrades": None, "extra_hooks": None}


@pytest.mark.parametrize("make", [MemorySaver, lambda **options: open_saver("memory:", **options)])
def test_an_unknown_option_is_an_error(make: type[MemorySaver]) -> None:
    with pytest.raises(InvalidInput, match=r"'on_drfit'.*'on_drift'"):
        make(on_drfit="raise")  # type: ignore[call-arg]


def make_file_saver(path: Path, **options: Any) -> KeelSaver:
    return FileSaver(path / "store", **options)


def make_sqlite_saver(path: Path, **options: Any) -> KeelSaver:
    return SqliteSaver(path / "store.db", **options)


def make_postgres_saver(path: Path, **options: Any) -> KeelSaver:
    return PostgresSaver("postgresql://localhost/nowhere", **options)


def make_redis_saver(path: Path, **options: Any) -> KeelSaver:
    return RedisSaver("redis://localhost/0", **options)


def make_memory_saver(path: Path, **options: Any) -> KeelSaver:
    return MemorySaver(**options)


MAKERS: dict[Any, type] = {
    make_memory_saver: SaverOptions,
    make_sqlite_saver: SqliteOptions,
    make_file_saver: FileOptions,
    make_postgres_saver: PostgresOptions,
    make_redis_saver: RedisOptions,
}


@pytest.mark.parametrize(("make", "name"), [(make, name) for make in MAKERS for name in MAKERS[make].__annotations__])
def test_every_option_refuses_an_arbitrary_object(make: Any, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rf"^{name}\b.*\b(must be|is a list of)\b.*<object object"):
        make(tmp_path, **{name: object()})
    assert not list(tmp_path.iterdir())


BAD: dict[str, list[Any]] = {
    "timeout": ["x", None, -5, True, float("nan"), float("inf"), 1e7, timedelta(seconds=3)],
    "read_only": ["no", None, 0],
    "auto_setup": ["no", 1],
    "provenance": ["no", None, 1],
    "memo_entries": ["a", -1, 2.5, None, True],
    "memo_bytes": ["64MB", -1, None],
    "memory": ["64MB", -1, None, True],
    "git": ["yes", None],
    "pool_size": [0, "4", None, 2.0],
    "max_connections": [0, "4", None],
    "partitions": [-1, 1025, "2", None],
    "prepare_threshold": [-1, "5"],
    "schema": [5],
    "prefix": [5, None],
    "refresh_ttl_on_read": ["yes"],
    "durability": ["none", None, []],
    "allow_eviction": ["no"],
    "client": ["localhost"],
    "async_client": ["localhost"],
    "serde": ["json", object],
    "extra_hooks": [None, "a", 5],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_an_invalid_value_is_named_when_a_saver_is_made(name: str, value: object, tmp_path: Path) -> None:
    makers = [make for make in MAKERS if name in MAKERS[make].__annotations__]
    assert makers
    for make in makers:
        with pytest.raises(InvalidInput) as error:
            make(tmp_path, **{name: value})
        assert str(error.value).startswith(f"{name} must be ")
        assert str(error.value).endswith(f", not {value!r}")
    assert not list(tmp_path.iterdir())


GOOD: dict[str, list[Any]] = {
    "timeout": [0, 0.5, 2_000_000],
    "memo_entries": [0, 1],
    "memo_bytes": [0],
    "memory": [0],
    "pool_size": [1],
    "partitions": [0, 1024],
    "prepare_threshold": [0, None],
    "schema": [None, "agents"],
    "serde": [None, JsonPlusSerializer()],
    "extra_hooks": [(), [Hook()]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in GOOD for value in GOOD[name]])
def test_extreme_valid_values_are_accepted(name: str, value: object, tmp_path: Path) -> None:
    for make in MAKERS:
        if name in MAKERS[make].__annotations__:
            make(tmp_path, **{name: value}).close()


def test_an_error_does_not_repeat_a_url_given_as_a_client() -> None:
    with pytest.raises(InvalidInput, match="client must be a client of the package redis, not a URL"):
        RedisSaver(client="redis://:secret@localhost")


def test_open_saver_checks_read_only() -> None:
    with pytest.raises(InvalidInput, match="read_only must be True or False, not 'no'"):
        open_saver("memory:", read_only="no")  # type: ignore[arg-type]
