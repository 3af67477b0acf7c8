"""Names and texts in PostgreSQL may have any content and length."""

from __future__ import annotations

from typing import Any

import pytest
from support.backends.postgres_puts import rows
from support.checkpoints import METADATA, checkpoint_of, config_for, put, value_of

from langgraph_keel import InvalidConfig, PostgresSaver


@pytest.mark.parametrize(
    "text", ["a\0b", "\1", "\0011", "\0010", "\1\0" * 3, "😀\0", "x\0" * 400, "é" * 200, "~" + "x" * 400]
)
def test_any_text_is_read_back(postgres_url: str, text: str) -> None:
    with PostgresSaver(postgres_url) as saver:
        config = put(saver, text, {"key": text, text: 1}, text)
        saver.put_writes(config, [(text, text)], text, text)
        for found in [saver.get_tuple(config_for(text)), *saver.list(None), *saver.list(config_for(text))]:
            assert found
            assert found.config["configurable"]["thread_id"] == text
            assert found.checkpoint["id"] == text
            assert found.checkpoint["channel_values"]["v"] == {"key": text, text: 1}
            assert found.pending_writes == [(text, text, text)]
        assert [info.thread_id for info in saver.threads()] == [text]


@pytest.mark.parametrize(
    "names", [["NULL", "null", " ", "a b"], ['"', "\\", '\\"', "\\\\n\n"], ["{}", "a,b", "{a,b}", "é\0\1"]]
)
def test_channels_may_have_any_name(postgres_url: str, names: list[str]) -> None:
    """They are sent in arrays, which have special characters.

    Lists grow, and other values are replaced.
    """
    with PostgresSaver(postgres_url) as saver:
        for n in range(1, 4):
            values: dict[str, Any] = {name: [name] * n if at % 2 else f"{name} {n}" for at, name in enumerate(names)}
            saver.put(config_for("t", f"{n - 1}"), checkpoint_of(f"{n}", values), METADATA, {})
    with PostgresSaver(postgres_url) as saver:
        found = saver.get_tuple(config_for("t"))
        assert found
        assert found.checkpoint["channel_values"] == values


def test_long_names_with_a_common_prefix_stay_distinct(postgres_url: str) -> None:
    names = ["x" * 300, "x" * 301, "x" * 300 + "~", "x" * 255]
    with PostgresSaver(postgres_url) as saver:
        for name in names:
            put(saver, name, name)
        # A long name's stored replacement is itself a valid name.
        keys = [key for (key,) in rows(postgres_url, "SELECT thread_id FROM keel_threads")]
        for key in keys:
            if key not in names:
                put(saver, key, "another")
        assert [value_of(saver, name) for name in names] == names
        assert {info.thread_id for info in saver.threads()} == {*names, *keys}


@pytest.mark.parametrize("name", ["L" * 300, "n|" * 200], ids=["thread", "namespace"])
def test_long_names_work_in_every_operation(postgres_url: str, name: str) -> None:
    """Copy to a long id, then read, continue, prune and delete, in a deep namespace."""
    with PostgresSaver(postgres_url) as saver:
        for n in range(3):
            saver.put(under(name), checkpoint_of(f"{n}", {"v": ["x" * n]}), METADATA, {})
        saver.copy_thread("source", name)
        found = saver.get_tuple(under(name, name))
        assert found
        assert [one.config["configurable"]["thread_id"] for one in saver.list(under(name, name))] == [name] * 3
        saver.put(found.config, checkpoint_of("3", {"v": []}), METADATA, {})
        assert {info.thread_id for info in saver.threads()} == {"source", name}
        saver.prune([name])
        assert rows(postgres_url, "SELECT count(*) FROM keel_items WHERE thread_id <> 'source'") == [(0,)]
        saver.delete_thread(name)
        assert rows(postgres_url, "SELECT count(*) FROM keel_floors WHERE thread_id <> 'source'") == [(0,)]


def under(ns: str, thread: str = "source") -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns}}


def test_a_lone_surrogate_is_refused_by_name(postgres_url: str) -> None:
    with PostgresSaver(postgres_url) as saver:
        with pytest.raises(InvalidConfig, match="surrogate"):
            put(saver, "lone \ud800")
        put(saver, "t", "lone \ud800")
        assert value_of(saver, "t") == "lone \ud800"
