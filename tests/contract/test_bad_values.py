"""Unstorable values, refused types, impossible options: errors with their reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import METADATA, checkpoint_of, config_for, put, value_of
from support.contract.bad_input import saver, threads
from support.engine.states import Note

from langgraph_keel import (
    InvalidConfig,
    InvalidInput,
    KeelError,
    MemorySaver,
    RefusedType,
    SqliteSaver,
    StoreClosed,
    UnstorableValue,
)

__all__ = ["saver"]


# -- values and types --------------------------------------------------------------------------------------------------


class Tool:
    """Holds a connection or a lock, which cannot be restored."""

    def __reduce__(self) -> Any:
        raise AssertionError("nothing may be called to find out")


UNSTORABLE: list[tuple[Any, str, str]] = [
    (Tool(), "", "test_bad_values.Tool"),
    ([1, [Tool()]], r"\[1\]\[0\]", "test_bad_values.Tool"),
    ({"a": {"b": Tool()}}, r"\['a'\]\['b'\]", "test_bad_values.Tool"),
    ([{"k": (1, Tool())}], r"\[0\]\['k'\]\[1\]", "test_bad_values.Tool"),
    (Tool().__reduce__, "", "builtins.method"),
    (iter([]), "", "builtins.list_iterator"),
    (object(), "", "builtins.object"),
    (Tool, "", "builtins.type"),
]


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("memo", ["warm", "cold"])
@pytest.mark.parametrize(("value", "path", "kind"), UNSTORABLE, ids=[f"{kind}{path}" for _, path, kind in UNSTORABLE])
def test_an_unstorable_value_is_refused(saver: Any, value: Any, path: str, kind: str, memo: str, size: str) -> None:
    filler = list(range(400)) if size == "large" else []
    config = saver.put(config_for("t"), checkpoint_of("00000001", {"v": [1], "f": filler}), METADATA, {})
    if memo == "cold":
        saver.engine.session.memo.forget_thread("t")
    with pytest.raises(UnstorableValue, match=f"thread 't', checkpoint 00000002, channel 'v'.*{path}") as caught:
        saver.put(config, checkpoint_of("00000002", {"f": filler, "v": value}), METADATA, {})
    assert caught.value.type_name.startswith(kind)
    with pytest.raises(UnstorableValue, match=r"thread 't', checkpoint 00000001.*task-1 to \['v'\]"):
        saver.put_writes(config, [("w", 1), ("v", value)], "task-1")
    assert [found.checkpoint["id"] for found in saver.list(config_for("t"))] == ["00000001"]
    assert saver.get_tuple(config).pending_writes == []
    saver.put(config, checkpoint_of("00000003", {"f": filler, "v": [1, 2]}), METADATA, {})
    assert value_of(saver, "t") == [1, 2]


def test_unstorable_metadata_is_refused(saver: Any) -> None:
    with pytest.raises(UnstorableValue, match=r"thread 't'.*metadata.*\['tool'\]: test_bad_values\.Tool"):
        saver.put(config_for("t"), checkpoint_of("00000001", {}), {**METADATA, "tool": Tool()}, {})
    assert threads(saver) == {"before"}


def test_an_unlisted_type_is_refused_on_load(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    values = {"plain": [1], "notes": [1, {"deep": (Note("t"),)}]}
    with SqliteSaver(path) as saver:
        config = saver.put(config_for("t"), checkpoint_of("00000001", values), METADATA, {})
        saver.put(config, checkpoint_of("00000002", {"plain": [1]}), METADATA, {})
        saver.put_writes(config, [("notes", Note("t"))], "task-1")
    with SqliteSaver(path, types=[]) as saver:
        says = r"thread 't', checkpoint 00000001, channel 'notes'.*support\.engine\.states\.Note.*types="
        with pytest.raises(RefusedType, match=says) as caught:
            saver.get_tuple(config)
        assert caught.value.type_name == "support.engine.states.Note"
        assert value_at(saver, "00000002") == {"plain": [1]}  # the other writes are unaffected
    with SqliteSaver(path, types=[Note]) as saver:
        assert value_at(saver, "00000001") == values


def value_at(saver: Any, checkpoint_id: str) -> Any:
    return saver.get_tuple(config_for("t", checkpoint_id)).checkpoint["channel_values"]


# -- options and closing -----------------------------------------------------------------------------------------------


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    with pytest.raises(InvalidInput, match="on_conflict must be 'raise' or 'fork', not 'x'"):
        SqliteSaver(path, on_conflict="x")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="pass types= or serde=, not both"):
        MemorySaver(types=[], serde=MemorySaver().serde)
    assert not path.exists()


async def test_a_closed_saver_refuses_every_call(tmp_path: Path) -> None:
    path = tmp_path / "keel.db"
    saver = SqliteSaver(path)
    config = put(saver, "t", 1)
    saver.close()
    saver.close()
    calls = [
        lambda: saver.get_tuple(config),
        lambda: put(saver, "t", 2, "00000002"),
        lambda: saver.put_writes(config, [("v", 1)], "task"),
        lambda: list(saver.list(None)),
        lambda: saver.delete_thread("t"),
        lambda: saver.prune(["t"]),
        saver.setup,
    ]
    for call in calls:
        with pytest.raises(StoreClosed, match=r"keel\.db: this saver was closed: make another one"):
            call()
    with pytest.raises(StoreClosed, match=r"keel\.db"):
        await saver.aget_tuple(config)
    with SqliteSaver(path) as again:
        assert value_of(again, "t") == 1


def test_errors_are_keel_errors_and_builtin_errors() -> None:
    for error, fits in ((InvalidConfig, ValueError), (UnstorableValue, TypeError), (RefusedType, TypeError)):
        assert issubclass(error, fits)
        assert issubclass(error, KeelError)
