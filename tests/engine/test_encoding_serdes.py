"""Any serializer works: values come back as it restores them, in the small form."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.checkpoints import checkpoint_of, config_for
from support.engine.states import Note, form

from langgraph_keel import CorruptStore, KeelSerializer, MemorySaver, SqliteSaver, UnstorableValue
from langgraph_keel.saver import KeelSaver

METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}


class PickleSerializer:
    """Some programs use this; Keel never does by itself."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


class JsonSerializer:
    """Supports only plain data."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "json", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "json"
        return json.loads(data[1])


def encrypted() -> SerializerProtocol:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


SERDES: dict[str, Callable[[], Any]] = {
    "json plus": JsonPlusSerializer,
    "encrypted": encrypted,
    "encrypted keel": lambda: EncryptedSerializer.from_pycryptodome_aes(KeelSerializer(), key=b"0123456789abcdef"),
    "pickle": PickleSerializer,
    "json": JsonSerializer,
}


def plain_state() -> dict[str, Any]:
    return {
        "numbers": [1, 2.0, True, None, "text"],
        "documents": [{"id": n, "text": f"secret-text-{n}" * 5} for n in range(40)],
        "tree": {f"key{n}": {"deep": [n, {"secret-key": f"secret-leaf-{n}" * 3}]} for n in range(60)},
        "small": {"a": 1},
        "text": "secret-short",
        "long": "secret-long " * 40,
        "nothing": None,
        "pair": (1, "two"),
    }


def rich_state() -> dict[str, Any]:
    return plain_state() | {
        "messages": [
            HumanMessage("secret-question", id="1"),
            AIMessage("", id="2", tool_calls=[{"name": "t", "args": {"x": "secret-arg"}, "id": "c"}]),
        ],
        "odd": {1: "a", (2, 3): "b", None: "c"},
        "set": {1, 2},
        "note": Note("secret-title", [1, (2,)]),
        "bytes": b"secret-bytes" * 9,
    }


STATES = {"plain": plain_state, "rich": rich_state}
CASES = [(name, state) for name in SERDES for state in STATES if (name, state) != ("json", "rich")]


def through(serde: SerializerProtocol, value: Any) -> Any:
    return serde.loads_typed(serde.dumps_typed(value))


def expected(serde: SerializerProtocol, values: dict[str, Any]) -> dict[str, Any]:
    """Return the expected value.

    A list is serialized by element, which makes no difference to `JsonPlusSerializer` and others.
    """
    return {
        name: [through(serde, part) for part in value] if type(value) is list else through(serde, value)
        for name, value in deepcopy(values).items()
    }


def edit(values: dict[str, Any], step: int) -> None:
    values["numbers"].append(step)
    values["documents"][step]["text"] = f"secret-edit-{step}"
    del values["documents"][-1]
    values["tree"]["key7"]["deep"].append({"secret-key": f"secret-leaf-{step}"})
    values["tree"].pop(f"key{step + 20}")
    values["text"] += "!"
    if "note" in values:
        values["note"].parts.append(step)
        values["messages"][step % 2].content = f"secret-content-{step}"


def open_saver(kind: str, path: Path, serde: Any) -> KeelSaver:
    return SqliteSaver(path / "keel.db", serde=serde) if kind == "sqlite" else MemorySaver(serde=serde)


# LangGraph's serializer logs unexpected types; only its results count here.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(("name", "state"), CASES)
def test_values_are_read_as_the_serializer_restores_them(name: str, state: str, kind: str, tmp_path: Path) -> None:
    serde = SERDES[name]()
    saver = open_saver(kind, tmp_path, serde)
    values, config = STATES[state](), config_for("t")
    wanted = []
    for step in range(12):
        edit(values, step)
        config = saver.put(config, checkpoint_of(f"{step:08}", values), METADATA, {})
        wanted.append(expected(serde, values))
        saver.put_writes(config, [("tree", values["tree"]), ("text", values["text"])], f"task{step}")
    if kind == "sqlite":
        saver.close()
        saver = open_saver(kind, tmp_path, SERDES[name]())
    for step, want in enumerate(wanted):
        found = saver.get_tuple(config_for("t", f"{step:08}"))
        assert found
        assert {key: form(part) for key, part in found.checkpoint["channel_values"].items()} == {
            key: form(part) for key, part in want.items()
        }
        assert [form(value) for _, _, value in found.pending_writes or ()] == [form(want["tree"]), form(want["text"])]
        assert found.metadata == METADATA
    saver.close()


def stored_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.iterdir()))


def fill(path: Path, serde: Any) -> None:
    with SqliteSaver(path / "keel.db", serde=serde) as saver:
        values, config = rich_state(), config_for("t")
        for step in range(12):
            edit(values, step)
            metadata: Any = {**METADATA, "note": "secret-metadata"}
            config = saver.put(config, checkpoint_of(f"{step:08}", values), metadata, {})
            saver.put_writes(config, [("text", "secret-write")], f"task{step}")
        copied = stored_bytes(path)
    (path / "copied-while-open").write_bytes(copied)


def test_encrypted_values_do_not_appear_in_the_file(tmp_path: Path) -> None:
    fill(tmp_path, encrypted())
    stored = stored_bytes(tmp_path)
    assert b"secret" not in stored
    assert b"documents" in stored  # the names of channels are not hidden


def test_unencrypted_values_appear_in_the_file(tmp_path: Path) -> None:
    fill(tmp_path, PickleSerializer())
    assert b"secret" in stored_bytes(tmp_path)


def test_a_wrong_key_raises_corrupt_store(tmp_path: Path) -> None:
    fill(tmp_path, encrypted())
    wrong = EncryptedSerializer.from_pycryptodome_aes(key=b"fedcba9876543210")
    with SqliteSaver(tmp_path / "keel.db", serde=wrong) as saver, pytest.raises(CorruptStore, match="MAC"):
        saver.get_tuple(config_for("t"))


@pytest.mark.parametrize("written", ["json plus", "encrypted", "pickle", "json"])
def test_keel_serializer_refuses_values_of_another_serializer(written: str, tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "keel.db", serde=SERDES[written]()) as saver:
        saver.put(config_for("t"), checkpoint_of("00000001", plain_state()), METADATA, {})
    with (
        SqliteSaver(tmp_path / "keel.db") as saver,
        pytest.raises(CorruptStore, match=r"another serializer.*serde="),
    ):
        saver.get_tuple(config_for("t"))


def test_a_store_may_change_its_serializer(tmp_path: Path) -> None:
    """Values of Keel's serializer can be read next to those of a foreign one."""
    values = rich_state()
    del values["note"]
    with SqliteSaver(tmp_path / "keel.db") as saver:
        config = saver.put(config_for("t"), checkpoint_of("00000001", values), METADATA, {})
    before = deepcopy(values)
    with SqliteSaver(tmp_path / "keel.db", serde=PickleSerializer()) as saver:
        found = saver.get_tuple(config)
        assert found
        assert {k: form(v) for k, v in found.checkpoint["channel_values"].items()} == {
            k: form(v) for k, v in before.items()
        }
        edit(values, 1)
        saver.put(found.config, checkpoint_of("00000002", values), METADATA, {})
        now = saver.get_tuple(config_for("t"))
        assert now
        assert {k: form(v) for k, v in now.checkpoint["channel_values"].items()} == {
            k: form(v) for k, v in values.items()
        }


@pytest.mark.parametrize(
    ("value", "kind", "where"),
    [
        ([1, {"a": {1}}], "builtins.dict", r"\[1\]"),
        ({1, 2}, "builtins.set", ""),
        ({"a": {2}}, "builtins.dict", ""),
        (b"x", "builtins.bytes", ""),
    ],
)
def test_a_value_the_serializer_cannot_store_is_named(value: Any, kind: str, where: str) -> None:
    saver = MemorySaver(serde=JsonSerializer())
    config = saver.put(config_for("t"), checkpoint_of("00000001", {"c": [1]}), METADATA, {})
    with pytest.raises(UnstorableValue, match=f"thread 't'.*channel 'c'.*{where}.*JsonSerializer") as caught:
        saver.put(config, checkpoint_of("00000002", {"c": value}), METADATA, {})
    assert caught.value.type_name == kind
    found = saver.get_tuple(config_for("t"))
    assert found
    assert found.checkpoint["channel_values"] == {"c": [1]}
